"""Each law of networks has a network that breaks it, and the check that finds it."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from breakable_network import RATE, Change, Ports, between, changed, offer, spoilt
from msgspec.structs import replace

from pptrace.network.contract import NO_ROUTE, Links, Paths
from pptrace.plugins import builtin
from pptrace.testing import assert_valid_network

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.plugins.requests import NetworkRequest

SIZES = (2, 4, 5)


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
        (lambda paths, *_: replace(paths, per_pair=2), "gives 1 overhead_ns for 1 pairs of 2 paths: one each"),
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
        per_pair = np.stack([2 * dst[others] + 1, 2 * src[others]], axis=1).ravel()
        return replace(paths, link=per_pair, route=per_pair) if len(paths) == 1 else paths

    with pytest.raises(AssertionError, match=r"overhead_ns: [03], and [03] where the pairs are in another order"):
        assert_valid_network(changed(first_is_late), endpoints=SIZES)
    with pytest.raises(AssertionError, match="overhead_ns: 0, and 3 where only this pair is requested"):
        assert_valid_network(changed(alone_is_late), endpoints=SIZES)
    with pytest.raises(
        AssertionError, match=r"links: \[up\d, down\d\], and \[down\d, up\d\] where only this pair"
    ):
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
