"""The checks for network plugins find what is wrong, and find nothing wrong with sound networks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from pptrace.errors import ConfigError, PluginError
from pptrace.hooks import NetworkOffer, builtin
from pptrace.hooks.provider import Provided, Provider
from pptrace.network.contract import NO_ROUTE, Links, Paths
from pptrace.testing import assert_valid_network
from pptrace.testing.bisection import minimum_cut

if TYPE_CHECKING:
    from pptrace.model.request import NetworkRequest

RATE = 1000
SIZES = (2, 4, 5)
Change = Callable[[Paths, np.ndarray, np.ndarray], Paths]


@dataclass(frozen=True, kw_only=True)
class Ports:
    """A link up and a link down for each endpoint, and a switch between; ``change`` spoils it."""

    endpoints: int
    change: Change = field(default=lambda paths, _src, _dst: paths)
    spoil: Callable[[Links], Links] = field(default=lambda links: links)
    rate_kbps: int = RATE

    @property
    def links(self) -> Links:
        names = tuple(f"{way}{port}" for port in range(self.endpoints) for way in ("up", "down"))
        ports = np.ones(2 * self.endpoints, dtype=np.int64)
        return self.spoil(Links(name=names, rate_kbps=ports * self.rate_kbps, latency_ns=ports * 5))

    def paths(self, src: np.ndarray, dst: np.ndarray) -> Paths:
        others = src != dst
        ports = np.stack([2 * src[others], 2 * dst[others] + 1], axis=1).ravel()
        ptr = np.concatenate([[0], np.cumsum(2 * others)])
        return self.change(Paths.along(self.links, ptr, ports), src, dst)


def ports(request: NetworkRequest) -> Ports:
    return Ports(endpoints=request.endpoints)


def offer(build: Callable[[NetworkRequest], Any] = ports, **changes: Any) -> NetworkOffer:
    return NetworkOffer(**{"name": "mine", "summary": "Mine.", "build": build, **changes})


def changed(change: Change) -> NetworkOffer:
    return offer(lambda request: Ports(endpoints=request.endpoints, change=change))


def spoilt(spoil: Callable[[Links], Links]) -> NetworkOffer:
    return offer(lambda request: Ports(endpoints=request.endpoints, spoil=spoil))


def between(src: int, dst: int, **columns: int) -> Change:
    """Return a change of the figures of one pair."""

    def change(paths: Paths, sources: np.ndarray, targets: np.ndarray) -> Paths:
        here = (sources == src) & (targets == dst)
        return replace(
            paths, **{name: np.where(here, value, getattr(paths, name)) for name, value in columns.items()}
        )

    return change


def test_sound_networks_pass() -> None:
    for each in builtin.pptrace_networks():
        assert_valid_network(each, options={"bandwidth": "1 GB/s"} if each.name == "hockney" else None)
    assert_valid_network(offer(), bisection=lambda endpoints: endpoints // 2 * RATE)
    assert_valid_network(
        Provided(offer=offer(), provider=Provider(name="mine")), endpoints=(4,), bisection=2 * RATE
    )


def test_ways_that_are_equal_may_be_said_once() -> None:
    def twofold(paths: Paths, src: np.ndarray, dst: np.ndarray) -> Paths:
        """Two ways, unless only endpoints and themselves are asked for."""
        if (src == dst).all():
            return paths
        again = np.repeat(np.arange(len(paths)), 2)
        length = np.diff(paths.link_ptr)[again]
        link = [paths.link[paths.link_ptr[row] : paths.link_ptr[row + 1]] for row in again]
        columns = {name: getattr(paths, name)[again] for name in ("overhead_ns", "latency_ns", "rate_kbps")}
        ptr = np.concatenate([[0], np.cumsum(length)])
        return Paths(**columns, link_ptr=ptr, link=np.concatenate(link), ways=2)

    assert_valid_network(changed(twofold), endpoints=SIZES, bisection=lambda endpoints: endpoints // 2 * RATE)


def test_pairs_without_a_route_are_said_by_the_caller() -> None:
    def rails(paths: Paths, src: np.ndarray, dst: np.ndarray) -> Paths:
        return replace(paths, rate_kbps=np.where((src - dst) % 2, NO_ROUTE, paths.rate_kbps))

    network = changed(rails)

    assert_valid_network(network, endpoints=SIZES, routed=lambda src, dst: (src - dst) % 2 == 0)
    with pytest.raises(AssertionError, match=r"^mine with 2 endpoints: endpoint 0 to 1: no route$"):
        assert_valid_network(network, endpoints=SIZES)
    with pytest.raises(AssertionError, match="endpoint 0 to 3: a route of 1000 kB/s where none is expected"):
        assert_valid_network(offer(), endpoints=(4,), routed=lambda src, dst: abs(src - dst) < 3)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda links: replace(links, rate_kbps=np.where(np.arange(len(links)) == 3, 0, RATE)),
            "mine with 2 endpoints: link down1 has rate_kbps of 0: expected 1 to 2**60 (kB/s, ns)",
        ),
        (
            lambda links: replace(links, latency_ns=links.latency_ns - 10),
            "mine with 2 endpoints: link up0 has latency_ns of -5: expected 0 to 2**60 (kB/s, ns)",
        ),
        (
            lambda links: replace(links, name=("up0", *links.name[:1], *links.name[2:])),
            "mine with 2 endpoints: two links of the network are called up0: name each differently",
        ),
    ],
)
def test_links_that_no_network_has_are_found(spoil: Callable[[Links], Links], message: str) -> None:
    with pytest.raises(AssertionError, match=f"^{re.escape(message)}$"):
        assert_valid_network(spoilt(spoil), endpoints=SIZES)


def looping(paths: Paths, src: np.ndarray, dst: np.ndarray) -> Paths:
    del dst
    every = 2 * np.stack([src, src], axis=1).ravel()
    return replace(paths, link_ptr=2 * np.arange(src.size + 1), link=every, weight=[], route_ptr=[], route=[])


def turning_back(paths: Paths, src: np.ndarray, dst: np.ndarray) -> Paths:
    """Leave every port twice."""
    others = src != dst
    link = np.repeat(2 * src[others], 2)
    return replace(paths, link=link, route=link)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (between(1, 0, overhead_ns=-5), "endpoint 1 to 0: the network gives overhead_ns of -5 between two ranks"),
        (between(1, 0, rate_kbps=-2), "endpoint 1 to 0: the network gives rate_kbps of -2 between two ranks"),
        (lambda paths, *_: replace(paths, link=paths.link + 2), "the network's paths name link 5, and it has 4"),
        (lambda paths, *_: replace(paths, weight=paths.weight * 0), "weights are not one positive number"),
        (lambda paths, *_: replace(paths, ways=2), "gives 1 overhead_ns for 1 pairs of 2 ways: one each"),
        (between(1, 0, rate_kbps=NO_ROUTE), "endpoint 1 to 0: no route"),
        (between(1, 1, rate_kbps=NO_ROUTE), "endpoint 1 to 1: no route"),
        (looping, "endpoint 0 to 0: goes over link up0, and needs none"),
        (turning_back, "endpoint 0 to 1: goes over link up0 twice"),
        (between(1, 0, rate_kbps=1001), "1 to 0: a message alone gets 1001 kB/s, and link up1 gives 1000 kB/s"),
        (between(1, 0, rate_kbps=0), "1 to 0: a message alone gets no limit, and link up1 gives 1000 kB/s"),
        (
            lambda paths, *_: replace(paths, weight=paths.weight + (np.arange(paths.link.size) == 3)),
            "1 to 0: a message alone gets 1000 kB/s, and link down0 gives 500 kB/s",
        ),
    ],
)
def test_paths_that_no_network_has_are_found(change: Change, message: str) -> None:
    with pytest.raises(AssertionError, match=f"^mine with 2 endpoints: .*{re.escape(message)}"):
        assert_valid_network(changed(change), endpoints=SIZES)


def test_what_is_wrong_only_where_all_is_asked_for_is_found() -> None:
    def short(paths: Paths, src: np.ndarray, _: np.ndarray) -> Paths:
        return replace(paths, latency_ns=paths.latency_ns[:-1]) if src.size > 1 else paths

    with pytest.raises(
        AssertionError, match=r"^mine with 2 endpoints: the network gives 3 latency_ns for 4 pairs"
    ):
        assert_valid_network(changed(short), endpoints=SIZES)


def test_a_flow_above_its_cap_is_found() -> None:
    def capped(request: NetworkRequest) -> Ports:
        return Ports(
            endpoints=request.endpoints,
            spoil=lambda links: replace(links, flow_rate_kbps=links.rate_kbps * 3 // 4),
            change=between(0, 1, rate_kbps=800),
        )

    with pytest.raises(AssertionError, match="0 to 1: a message alone gets 800 kB/s, and link up0 gives 750 kB/s"):
        assert_valid_network(offer(capped), endpoints=SIZES)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rate_kbps": 999}, "link up0: rate_kbps is 1000, and 999 in a second build"),
        ({"endpoints": 3}, "4 links, and 6 in a second build"),
        ({"change": between(1, 0, latency_ns=7)}, "endpoint 1 to 0: latency_ns: 10, and 7 in a second build"),
    ],
)
def test_a_network_that_changes_between_builds_is_found(fields: dict[str, Any], message: str) -> None:
    turns = itertools.count()

    def fickle(request: NetworkRequest) -> Ports:
        return Ports(**({"endpoints": request.endpoints} | (fields if next(turns) % 2 else {})))

    with pytest.raises(AssertionError, match=f"^mine with 2 endpoints: {message}$"):
        assert_valid_network(offer(fickle), endpoints=(2,))


def test_paths_that_depend_on_the_question_are_found() -> None:
    def first_is_late(paths: Paths, *_: np.ndarray) -> Paths:
        return replace(paths, overhead_ns=paths.overhead_ns + 3 * (np.arange(len(paths)) == 0))

    def alone_is_late(paths: Paths, *_: np.ndarray) -> Paths:
        return replace(paths, overhead_ns=paths.overhead_ns + 3 * (len(paths) == 1))

    def turned(paths: Paths, src: np.ndarray, dst: np.ndarray) -> Paths:
        others = src != dst
        ways = np.stack([2 * dst[others] + 1, 2 * src[others]], axis=1).ravel()
        return replace(paths, link=ways, route=ways) if len(paths) == 1 else paths

    with pytest.raises(AssertionError, match=r"overhead_ns: [03], and [03] where the pairs are in another order"):
        assert_valid_network(changed(first_is_late), endpoints=SIZES)
    with pytest.raises(AssertionError, match="overhead_ns: 0, and 3 where this pair is asked for alone"):
        assert_valid_network(changed(alone_is_late), endpoints=SIZES)
    with pytest.raises(AssertionError, match=r"links: \[up\d, down\d\], and \[down\d, up\d\] where this pair"):
        assert_valid_network(changed(turned), endpoints=SIZES)


def test_more_endpoints_that_make_all_pairs_faster_are_found() -> None:
    growing = offer(lambda request: Ports(endpoints=request.endpoints, rate_kbps=100 * request.endpoints))

    with pytest.raises(
        AssertionError,
        match=r"^mine with 4 endpoints: the slowest pair, 0 to 1, gets 400 kB/s, "
        r"and 0 to 1 of mine with 2 endpoints 200 kB/s$",
    ):
        assert_valid_network(growing, endpoints=(4, 2))


def test_another_bisection_than_the_closed_form_is_found() -> None:
    with pytest.raises(
        AssertionError,
        match=r"^mine with 4 endpoints: bisection is stated as 1000 kB/s, and the paths' is "
        r"2000 kB/s out of the lower half, what \[up0, up1\] hold$",
    ):
        assert_valid_network(offer(), endpoints=SIZES, bisection=RATE)
    with pytest.raises(AssertionError, match="endpoint 0 to 1: bisection is stated as 1000 kB/s, and no link is"):
        assert_valid_network(next(o for o in builtin.pptrace_networks() if o.name == "ideal"), bisection=RATE)


def test_the_lesser_direction_is_the_bisection() -> None:
    upper_sends_less = spoilt(
        lambda links: replace(links, rate_kbps=np.where(np.arange(len(links)) == 6, RATE // 4, RATE))
    )

    assert_valid_network(upper_sends_less, endpoints=(4,), bisection=RATE + RATE // 4)


class Wanted(BaseModel, extra="forbid"):
    rate: int


def test_options_are_checked_as_a_user_s_are() -> None:
    def build(request: NetworkRequest) -> Ports:
        return Ports(endpoints=request.endpoints, rate_kbps=request.options["rate"])

    assert_valid_network(offer(build, options=lambda: Wanted), options={"rate": 7}, endpoints=(2,), bisection=7)
    with pytest.raises(ConfigError, match="speed: unknown key"):
        assert_valid_network(offer(build, options=lambda: Wanted), options={"speed": 7})
    with pytest.raises(ConfigError, match="network mine takes no options: leave out speed"):
        assert_valid_network(offer(), options={"speed": 7})


def test_a_size_that_is_refused_is_an_assertion_with_its_reason() -> None:
    def build(_: NetworkRequest) -> Ports:
        raise ConfigError("a radix of 4 holds 2 endpoints")

    with pytest.raises(AssertionError, match=r"^mine with 4 endpoints: refused: a radix of 4 holds 2 endpoints$"):
        assert_valid_network(offer(build), endpoints=(4,))


def test_the_request_says_which_endpoints_are_nics() -> None:
    asked = []

    def build(request: NetworkRequest) -> Ports:
        asked.append((request.endpoints, request.nics, request.per_node))
        return ports(request)

    assert_valid_network(offer(build), endpoints=(4,), nics=2, per_node=4)

    assert asked == [(4, 2, 4), (4, 2, 4)]


def test_an_exception_in_the_plugin_is_the_plugins_error_and_no_assertion() -> None:
    def broken(*_: object) -> Paths:
        raise ZeroDivisionError

    for build in (broken, lambda _: Ports(endpoints=2, change=broken), lambda _: object()):
        with pytest.raises(PluginError, match=r"raised (ZeroDivision|Attribute)Error"):
            assert_valid_network(offer(build))
    with pytest.raises(PluginError, match="paths of network 'mine' returned None, expected Paths"):
        assert_valid_network(changed(lambda *_: None))  # type: ignore[arg-type, return-value] # the point of it


@st.composite
def link_lists(draw: st.DrawFn) -> tuple[list[int], list[list[int]]]:
    rates = draw(st.lists(st.integers(1, 9), min_size=1, max_size=7))
    one = st.lists(st.integers(0, len(rates) - 1), min_size=1, max_size=4, unique=True)
    return rates, draw(st.lists(one, max_size=6))


@given(link_lists())
def test_the_minimum_cut_is_the_cheapest_of_all_sets_of_links_that_cut(
    drawn: tuple[list[int], list[list[int]]],
) -> None:
    rates, lists = drawn
    links = Links(rate_kbps=rates)
    paths = Paths.along(links, np.cumsum([0, *map(len, lists)]), [link for way in lists for link in way])

    cut = minimum_cut(links, paths)

    sets = [
        set(some) for count in range(len(rates) + 1) for some in itertools.combinations(range(len(rates)), count)
    ]
    cutting = [some for some in sets if not joined(lists, some)]
    assert cut.rate_kbps == min(sum(rates[link] for link in some) for some in cutting)
    assert set(cut.links) in cutting
    assert sum(rates[link] for link in cut.links) == cut.rate_kbps


def joined(lists: list[list[int]], without: set[int]) -> bool:
    """Return whether a walk along pieces of the lists leads from a first link to a last one."""
    known = {way[0] for way in lists} - without
    while True:
        steps = {b for way in lists for a, b in itertools.pairwise(way) if a in known} - without - known
        if not steps:
            return bool(known & {way[-1] for way in lists})
        known |= steps


def test_a_link_that_a_path_fills_with_several_flows_counts_for_less() -> None:
    paths = replace(Paths.along(Links(rate_kbps=[10]), [0, 1], [0]), weight=[3])

    assert minimum_cut(Links(rate_kbps=[10]), paths).rate_kbps == Fraction(10, 3)
