"""Checks for the tests of network models."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import ConfigError, PluginError
from pptrace.network.contract import NO_ROUTE, UNLIMITED, Links, Paths
from pptrace.network.links import check_links, check_paths
from pptrace.plugins.construction import GuardedNetwork, checked_options
from pptrace.plugins.guards import call_plugin, plugin_code, plugin_error
from pptrace.plugins.offers import Provided, Provider
from pptrace.plugins.requests import NetworkRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from pptrace.plugins.offers import NetworkOffer
    from pptrace.steps.columns import Int32s, Int64s

_HERE = Provider(name="under test")
_ALONE = 256
"""How many pairs are asked for one by one; all where there are fewer."""
_NO_LIMIT = np.iinfo(np.int64).max


def assert_valid_network(
    offer: NetworkOffer | Provided[NetworkOffer],
    *,
    endpoints: Iterable[int] = (1, 2, 3, 4, 8, 16),
    nics: int = 0,
    per_node: int = 1,
    options: Mapping[str, Any] | None = None,
    routed: Callable[[int, int], bool] | None = None,
    bisection: Callable[[int], int] | int | None = None,
) -> None:
    """Assert that a network keeps the contract, with each number of ``endpoints``.

    - Capacities are positive, other figures not negative, links have names of their own, and paths go over
      links that are there. Hence a bigger message never takes less.
    - Every endpoint has a route to every other one, except where ``routed`` says no. To itself it has one over
      no link. No path goes over a link twice.
    - No message alone is faster than a link or a flow's cap on its path.
    - Two builds are equal, and so are paths that are asked for in another order, or one by one. (Ways that are
      all equal count as one.)
    - More endpoints never make the slowest pair faster.
    - The minimum cut between the lower half of the endpoints and the upper is ``bisection``. The halves are by
      number, the smaller one the lower. A cut is a set of links without which none of the network's own paths
      between the halves, nor any that is put together from pieces of them, is left; the lesser of both
      directions counts.

    Args:
        offer: the network's offer, or a registry's record of it.
        endpoints: the sizes to try.
        nics: how many of the endpoints, the last ones, are NICs; for the inside of a node.
        per_node: how many neighbouring endpoints are one node's; for a fabric.
        options: options as a user would write them.
        routed: whether there is a route between two endpoints; always unless given.
        bisection: the closed form in kB/s, of the number of endpoints; unchecked unless given.

    Raises:
        AssertionError: what is broken, or refused: the size, the pair, the link and the figures.
        PluginError: the plugin's code raised something.
        ConfigError: options that the offer does not take.
    """
    provided = offer if isinstance(offer, Provided) else Provided(offer=offer, provider=_HERE)
    checked = checked_options(provided, options or {}, "options")
    smaller: Subject | None = None
    for size in sorted(endpoints):
        request = NetworkRequest(endpoints=size, nics=nics, per_node=per_node, options=checked)
        subject = Subject.build(provided, request)
        _assert_reachable(subject, routed)
        _assert_none_to_itself(subject)
        _assert_no_link_twice(subject)
        _assert_rates_fit(subject)
        _assert_repeatable(subject, Subject.build(provided, request))
        if smaller is not None:
            _assert_not_faster(smaller, subject)
        if bisection is not None and size > 1:
            _assert_bisection(subject, bisection if isinstance(bisection, int) else bisection(size))
        smaller = subject if size > 1 else None


def _assert_reachable(subject: Subject, routed: Callable[[int, int], bool] | None) -> None:
    for row, rate in enumerate(subject.paths.rate_kbps.tolist()):
        pair = row // subject.paths.ways
        src, dst = int(subject.src[pair]), int(subject.dst[pair])
        expected = routed is None or src == dst or routed(src, dst)
        if expected and rate == NO_ROUTE:
            raise subject.broken("no route", row)
        if not expected and rate != NO_ROUTE:
            raise subject.broken(f"a route of {_rate(rate or _NO_LIMIT)} where none is expected", row)


def _assert_none_to_itself(subject: Subject) -> None:
    for row in np.flatnonzero(np.diff(subject.paths.link_ptr)).tolist():
        pair = row // subject.paths.ways
        if subject.src[pair] == subject.dst[pair]:
            link = subject.link(subject.paths.link_ptr[row])
            raise subject.broken(f"goes over link {link}, and needs none", row)


def _assert_no_link_twice(subject: Subject) -> None:
    row = _row_of_each(subject.paths)
    order = np.lexsort((subject.paths.link, row))
    again = (np.diff(row[order]) == 0) & (np.diff(subject.paths.link[order]) == 0)
    for entry in order[:-1][again]:
        raise subject.broken(f"goes over link {subject.link(entry)} twice", int(row[entry]))


def _assert_rates_fit(subject: Subject) -> None:
    links, paths = subject.links, subject.paths
    cap, most = links.flow_rate_kbps[paths.link], links.rate_kbps[paths.link] // paths.weight
    most = np.where(cap > 0, np.minimum(cap, most), most)
    row = _row_of_each(paths)
    rate = np.where(paths.rate_kbps == UNLIMITED, _NO_LIMIT, paths.rate_kbps)[row]
    for entry in np.flatnonzero(rate > most).tolist():
        link = f"link {subject.link(entry)} gives {most[entry]} kB/s"
        raise subject.broken(f"a message alone gets {_rate(rate[entry])}, and {link}", int(row[entry]))


def _row_of_each(paths: Paths) -> Int64s:
    """Return the row that each entry of the paths' links belongs to."""
    return np.repeat(np.arange(len(paths)), np.diff(paths.link_ptr))


def _assert_repeatable(subject: Subject, again: Subject) -> None:
    if len(subject.links) != len(again.links):
        raise subject.broken(f"{len(subject.links)} links, and {len(again.links)} in a second build")
    for column in ("name", "rate_kbps", "latency_ns", "overhead_ns", "flow_rate_kbps"):
        figures = zip(getattr(subject.links, column), getattr(again.links, column), strict=True)
        for link, (one, other) in enumerate(figures):
            if one != other:
                name = subject.links.name[link]
                raise subject.broken(f"link {name}: {column} is {one}, and {other} in a second build")
    expected_routes = routes(subject.links, subject.paths)
    _assert_same(subject, expected_routes, np.arange(len(expected_routes)), again.paths, "in a second build")
    order = np.random.default_rng(0).permutation(len(expected_routes))
    _assert_same(subject, expected_routes, order, subject.ask(order), "where the pairs are in another order")
    for pair in order[:_ALONE]:
        alone = np.array([pair])
        _assert_same(subject, expected_routes, alone, subject.ask(alone), "where this pair is asked for alone")


def _assert_same(
    subject: Subject, expected_routes: list[list[Route]], pairs: Int64s, paths: Paths, when: str
) -> None:
    """Assert that ``paths`` of some pairs equal their earlier routes."""
    for pair, now in zip(pairs.tolist(), routes(subject.links, paths), strict=True):
        before, row = expected_routes[pair], pair * subject.paths.ways
        if len(before) != len(now):
            raise subject.broken(f"{len(before)} ways, and {len(now)} {when}", row)
        for way, (one, other) in enumerate(zip(before, now, strict=True)):
            if one != other:
                column = next(f.name for f in fields(Route) if getattr(one, f.name) != getattr(other, f.name))
                name = f"{column} of way {way}" if len(now) > 1 else column
                first, second = _shown(getattr(one, column)), _shown(getattr(other, column))
                raise subject.broken(f"{name}: {first}, and {second} {when}", row)


def _assert_not_faster(smaller: Subject, larger: Subject) -> None:
    (few, at_few), (many, at_many) = _slowest(smaller), _slowest(larger)
    if few < many:
        slowest = f"the slowest pair, {larger.pair(at_many)}, gets {_rate(many)}"
        raise larger.broken(f"{slowest}, and {smaller.pair(at_few)} of {smaller.title} {_rate(few)}")


def _slowest(subject: Subject) -> tuple[int, int]:
    """Return the lowest rate between two endpoints, and its row."""
    rate = subject.paths.rate_kbps
    other = np.repeat(subject.src != subject.dst, subject.paths.ways)
    rate = np.where(other & (rate > 0), rate, _NO_LIMIT)
    row = int(rate.argmin())
    return int(rate[row]), row


def _assert_bisection(subject: Subject, stated: int) -> None:
    half = int(subject.src[-1] + 1) // 2
    out, into = subject.src < half, subject.dst < half
    apart = np.repeat(out != into, subject.paths.ways) & (subject.paths.rate_kbps != NO_ROUTE)
    for row in np.flatnonzero(apart & (np.diff(subject.paths.link_ptr) == 0)).tolist():
        raise subject.broken(f"bisection is stated as {_rate(stated)}, and no link is between", row)
    cuts = [
        (minimum_cut(subject.links, subject.ask(np.flatnonzero(pairs))), side)
        for side, pairs in (("lower", out & ~into), ("upper", ~out & into))
    ]
    cut, side = min(cuts, key=lambda each: each[0].rate_kbps)
    if cut.rate_kbps != stated:
        names = _shown(tuple(subject.links.name[link] for link in cut.links))
        own = f"{_rate(cut.rate_kbps)} out of the {side} half, what {names} hold"
        raise subject.broken(f"bisection is stated as {_rate(stated)}, and the paths' is {own}")


def _rate(rate_kbps: object) -> str:
    return "no limit" if rate_kbps == _NO_LIMIT else f"{rate_kbps} kB/s"


def _shown(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    most = 8
    return f"[{', '.join(map(str, value[:most]))}{', …' if len(value) > most else ''}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a network says of one way between two endpoints, in plain values and links by name."""

    links: tuple[str, ...]
    """The shared links."""
    weights: tuple[int, ...]
    """How many flows there are on each."""
    route: tuple[str, ...]
    """The links for display."""
    rate_kbps: int
    """What a message alone gets."""
    latency_ns: int
    """Wire latency."""
    overhead_ns: int
    """Launch overhead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A network of some size; ``paths`` has the rows of every endpoint to every endpoint."""

    title: str
    """Name and size, as messages call it."""
    network: GuardedNetwork
    """What the plugin built."""
    links: Links
    """Its links, checked."""
    src: Int32s
    """Source of each pair."""
    dst: Int32s
    """Target of each pair."""
    paths: Paths
    """What lies between them, checked."""

    @classmethod
    def build(cls, provided: Provided[NetworkOffer], request: NetworkRequest) -> Subject:
        """Build a network and ask it everything.

        Raises:
            AssertionError: it refuses the request, or gives links or paths that no network has.
            PluginError: the plugin's code raised something.
        """
        offer, provider = provided.offer, provided.provider
        title = f"{offer.name} with {request.endpoints} endpoints"
        try:
            built = call_plugin(provider, offer.build, request)
        except ConfigError as error:
            raise AssertionError(f"{title}: refused: {error}") from error
        network = GuardedNetwork(provider=provider, name=offer.name, network=built)
        links = network.links
        try:
            check_links(links)
        except PluginError as error:
            raise AssertionError(f"{title}: {error}") from error
        every = np.arange(request.endpoints, dtype=np.int32)
        src, dst = np.repeat(every, every.size), np.tile(every, every.size)
        paths = _ask(title, network, len(links), src, dst)
        return cls(title=title, network=network, links=links, src=src, dst=dst, paths=paths)

    def ask(self, pairs: Int64s) -> Paths:
        """Ask for the paths of some of the pairs, in an order of the caller's."""
        return _ask(self.title, self.network, len(self.links), self.src[pairs], self.dst[pairs])

    def broken(self, what: str, row: int | None = None) -> AssertionError:
        """Return the error of a row of the paths, or of the whole."""
        pair = "" if row is None else f"endpoint {self.pair(row)}: "
        return AssertionError(f"{self.title}: {pair}{what}")

    def pair(self, row: int) -> str:
        """Return the two endpoints of a row of the paths."""
        pair = row // self.paths.ways
        return f"{self.src[pair]} to {self.dst[pair]}"

    def link(self, entry: int) -> str:
        """Return the name of the link of an entry of the paths' lists."""
        return self.links.name[int(self.paths.link[entry])]


def routes(links: Links, paths: Paths) -> list[list[Route]]:
    """Return what paths say, pair by pair and way by way; where all ways are equal, once."""
    names = np.array([*links.name, ""], dtype=object)
    over, shown, weight = names[paths.link].tolist(), names[paths.route].tolist(), paths.weight.tolist()
    ptr, route_ptr = paths.link_ptr.tolist(), paths.route_ptr.tolist()
    figures = zip(paths.rate_kbps.tolist(), paths.latency_ns.tolist(), paths.overhead_ns.tolist(), strict=True)
    rows = [
        Route(
            links=tuple(over[ptr[row] : ptr[row + 1]]), weights=tuple(weight[ptr[row] : ptr[row + 1]]),
            route=tuple(shown[route_ptr[row] : route_ptr[row + 1]]),
            rate_kbps=rate, latency_ns=latency, overhead_ns=overhead,
        )
        for row, (rate, latency, overhead) in enumerate(figures)
    ]  # fmt: skip
    pairs = [rows[first : first + paths.ways] for first in range(0, len(rows), paths.ways)]
    return [ways[:1] if all(way == ways[0] for way in ways) else ways for ways in pairs]


def _ask(title: str, network: GuardedNetwork, links: int, src: Int32s, dst: Int32s) -> Paths:
    """Return the paths of some pairs; where they are misshapen, name a pair that is so on its own."""
    name = f"paths of network {network.name!r}"
    with plugin_code(network.provider, network.network.paths, name=name):
        paths: object = network.network.paths(src, dst)
    if not isinstance(paths, Paths):
        raise plugin_error(network.provider, f"{name} returned {paths!r:.60}, expected Paths")
    try:
        check_paths(paths, src.size, links)
    except PluginError as error:
        if src.size == 1:
            raise AssertionError(f"{title}: endpoint {src[0]} to {dst[0]}: {error}") from error
        for one in range(src.size):
            _ask(title, network, links, src[one : one + 1], dst[one : one + 1])
        raise AssertionError(f"{title}: {error}") from error
    return paths


_SOURCE, _SINK = -1, -2

Residual = dict[int, dict[int, Fraction]]
"""What may still flow from a node to another; link ``l`` is the arc from node ``2 l`` to ``2 l + 1``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The links of least capacity without which no path is left."""

    rate_kbps: Fraction
    """Their capacity; 0 where there is no path."""
    links: tuple[int, ...]
    """The links."""


def minimum_cut(links: Links, paths: Paths) -> Cut:
    """Return the minimum cut of the graph in which a link leads to those that follow it on any of ``paths``.

    A link counts with its capacity, or as much of it as a path may take that lays several flows on it. Each
    path goes over one link at least.

    Algorithm: J. Edmonds and R. M. Karp, "Theoretical Improvements in Algorithmic Efficiency for Network Flow
    Problems", Journal of the ACM 19 (1972): fill the shortest path that has room until there is none.
    """
    routed = paths.rate_kbps != NO_ROUTE
    residual = _graph(links, paths, paths.link_ptr[:-1][routed], paths.link_ptr[1:][routed])
    found = Fraction(0)
    while True:
        before = _reached(residual)
        if _SINK not in before:
            cut = tuple(link for link in range(len(links)) if 2 * link in before and 2 * link + 1 not in before)
            return Cut(rate_kbps=found, links=cut)
        found += _fill(residual, before)


def _graph(links: Links, paths: Paths, first: NDArray[np.int32], end: NDArray[np.int32]) -> Residual:
    used = np.zeros(paths.link.size, dtype=bool)
    within = np.zeros(paths.link.size, dtype=bool)
    for low, high in zip(first.tolist(), end.tolist(), strict=True):
        used[low:high] = within[low : high - 1] = True
    least: dict[int, int] = {}
    for link, weight in zip(paths.link[used].tolist(), paths.weight[used].tolist(), strict=True):
        least[link] = min(weight, least.get(link, weight))
    room = {link: Fraction(int(links.rate_kbps[link]), weight) for link, weight in least.items()}
    whole = sum(room.values(), Fraction(1))
    residual: Residual = {_SOURCE: {}, _SINK: {}}
    for link, capacity in room.items():
        residual[2 * link], residual[2 * link + 1] = {2 * link + 1: capacity}, {}
    at = np.flatnonzero(within)
    arcs = [(_SOURCE, 2 * link) for link in set(paths.link[first].tolist())]
    arcs += [(2 * link + 1, _SINK) for link in set(paths.link[end - 1].tolist())]
    arcs += {(2 * a + 1, 2 * b) for a, b in zip(paths.link[at].tolist(), paths.link[at + 1].tolist(), strict=True)}
    for tail, head in arcs:
        residual[tail][head] = whole
    return residual


def _reached(residual: Residual) -> dict[int, int]:
    """Return the nodes that more can flow to, each with the one before it on a shortest way."""
    before, waiting = {_SOURCE: _SOURCE}, deque([_SOURCE])
    while waiting and _SINK not in before:
        node = waiting.popleft()
        for other, room in residual[node].items():
            if room and other not in before:
                before[other] = node
                waiting.append(other)
    return before


def _fill(residual: Residual, before: dict[int, int]) -> Fraction:
    """Send as much as goes along the way to the sink."""
    way, node = [], _SINK
    while node != _SOURCE:
        way.append((before[node], node))
        node = before[node]
    amount = min(residual[tail][head] for tail, head in way)
    for tail, head in way:
        residual[tail][head] -= amount
        residual[head][tail] = residual[head].get(tail, Fraction(0)) + amount
    return amount
