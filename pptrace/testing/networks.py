"""Checks for the tests of network models."""

from __future__ import annotations

from collections import deque
from fractions import Fraction
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from pptrace.errors import ConfigError, PluginError
from pptrace.network.contract import NO_ROUTE, UNLIMITED, Links, Paths, check_links, check_paths
from pptrace.plugins.construction import GuardedNetwork, checked_options
from pptrace.plugins.guards import guarded
from pptrace.plugins.providers import Provided, Provider
from pptrace.plugins.requests import NetworkRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from pptrace.plugins.offers import NetworkOffer
    from pptrace.steps.columns import Int32s, Int64s

_HERE = Provider(name="under test")
_SEPARATE_PAIRS = 256
"""Maximum number of pairs that are queried separately."""
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

    - Capacities are positive and other figures not negative. Links have distinct names, and paths use existing
      links. Therefore a larger message never takes less time.
    - Every endpoint has a route to every other endpoint unless ``routed`` is false for the pair. The path of an
      endpoint to itself has no links. No path uses a link twice.
    - An uncontended message is not faster than a link or a flow rate limit on its path.
    - Two builds are equal. Paths do not depend on the order of the pairs or on the other pairs of a query. (Ways
      that are all equal count as one.)
    - The slowest pair does not become faster with more endpoints.
    - The minimum cut between the lower and the upper half of the endpoints, by number, is ``bisection``; of an odd
      number of endpoints, the lower half is smaller. A cut is a set of links that every path between the halves
      contains, and every combination of parts of such paths. The smaller cut of both directions counts.

    Args:
        offer: the network's offer, or a registry's record of it.
        endpoints: numbers of endpoints to check.
        nics: number of NICs, the last endpoints; for the inside of a node.
        per_node: number of consecutive endpoints of one node; for a fabric.
        options: options as a user would write them.
        routed: whether there is a route between two endpoints; always true by default.
        bisection: the closed form in kB/s, of the number of endpoints; not checked by default.

    Raises:
        AssertionError: a check fails, or the network rejects a size; names size, pair, link and figures.
        PluginError: the plugin's code raised an exception.
        ConfigError: the offer does not take the options.
    """
    if not isinstance(offer, Provided):
        offer = Provided(offer=guarded(_HERE, offer, "network"), provider=_HERE)
    provided = offer
    checked = checked_options(provided, options or {}, "options")
    smaller: Subject | None = None
    for size in sorted(endpoints):
        request = NetworkRequest(endpoints=size, nics=nics, per_node=per_node, options=checked)
        subject = Subject.build(provided, request)
        _assert_reachable(subject, routed)
        _assert_no_link_to_itself(subject)
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
        pair = row // subject.paths.per_pair
        src, dst = int(subject.src[pair]), int(subject.dst[pair])
        expected = routed is None or src == dst or routed(src, dst)
        if expected and rate == NO_ROUTE:
            raise subject.error("no route", row)
        if not expected and rate != NO_ROUTE:
            raise subject.error(f"a route of {_format_rate(rate or _NO_LIMIT)} where none is expected", row)


def _assert_no_link_to_itself(subject: Subject) -> None:
    for row in np.flatnonzero(np.diff(subject.paths.link_ptr)).tolist():
        pair = row // subject.paths.per_pair
        if subject.src[pair] == subject.dst[pair]:
            link = subject.link(subject.paths.link_ptr[row])
            raise subject.error(f"goes over link {link}, and needs none", row)


def _assert_no_link_twice(subject: Subject) -> None:
    row = _rows_of_links(subject.paths)
    order = np.lexsort((subject.paths.link, row))
    is_repeated = (np.diff(row[order]) == 0) & (np.diff(subject.paths.link[order]) == 0)
    for entry in order[:-1][is_repeated]:
        raise subject.error(f"goes over link {subject.link(entry)} twice", int(row[entry]))


def _assert_rates_fit(subject: Subject) -> None:
    links, paths = subject.links, subject.paths
    flow_limit_kbps, limit_kbps = links.flow_rate_kbps[paths.link], links.rate_kbps[paths.link] // paths.weight
    limit_kbps = np.where(flow_limit_kbps > 0, np.minimum(flow_limit_kbps, limit_kbps), limit_kbps)
    row = _rows_of_links(paths)
    rate = np.where(paths.rate_kbps == UNLIMITED, _NO_LIMIT, paths.rate_kbps)[row]
    for entry in np.flatnonzero(rate > limit_kbps).tolist():
        description = f"link {subject.link(entry)} gives {limit_kbps[entry]} kB/s"
        raise subject.error(
            f"a message alone gets {_format_rate(rate[entry])}, and {description}", int(row[entry])
        )


def _rows_of_links(paths: Paths) -> Int64s:
    """Return the row of each entry of the paths' links."""
    return np.repeat(np.arange(len(paths)), np.diff(paths.link_ptr))


def _assert_repeatable(subject: Subject, second: Subject) -> None:
    if len(subject.links) != len(second.links):
        raise subject.error(f"{len(subject.links)} links, and {len(second.links)} in a second build")
    for column in ("name", "rate_kbps", "latency_ns", "overhead_ns", "flow_rate_kbps"):
        values = zip(getattr(subject.links, column), getattr(second.links, column), strict=True)
        for link, (expected, actual) in enumerate(values):
            if expected != actual:
                name = subject.links.name[link]
                raise subject.error(f"link {name}: {column} is {expected}, and {actual} in a second build")
    expected_routes = routes(subject.links, subject.paths)
    _assert_same(subject, expected_routes, np.arange(len(expected_routes)), second.paths, "in a second build")
    order = np.random.default_rng(0).permutation(len(expected_routes))
    _assert_same(subject, expected_routes, order, subject.query(order), "where the pairs are in another order")
    for pair in order[:_SEPARATE_PAIRS]:
        pairs = np.array([pair])
        _assert_same(subject, expected_routes, pairs, subject.query(pairs), "where only this pair is requested")


def _assert_same(
    subject: Subject, expected_routes: list[list[Route]], pairs: Int64s, paths: Paths, when: str
) -> None:
    """Assert that ``paths`` of some pairs equal their earlier routes."""
    for pair, actual in zip(pairs.tolist(), routes(subject.links, paths), strict=True):
        expected, row = expected_routes[pair], pair * subject.paths.per_pair
        if len(expected) != len(actual):
            raise subject.error(f"{len(expected)} paths, and {len(actual)} {when}", row)
        for index, (first, second) in enumerate(zip(expected, actual, strict=True)):
            if first != second:
                column = next(name for name, value in asdict(first).items() if value != getattr(second, name))
                name = f"{column} of path {index}" if len(actual) > 1 else column
                values = [_format_value(getattr(route, column)) for route in (first, second)]
                raise subject.error(f"{name}: {values[0]}, and {values[1]} {when}", row)


def _assert_not_faster(smaller: Subject, larger: Subject) -> None:
    (smaller_kbps, smaller_row), (larger_kbps, larger_row) = _slowest(smaller), _slowest(larger)
    if smaller_kbps < larger_kbps:
        slowest = f"the slowest pair, {larger.pair(larger_row)}, gets {_format_rate(larger_kbps)}"
        raise larger.error(
            f"{slowest}, and {smaller.pair(smaller_row)} of {smaller.title} {_format_rate(smaller_kbps)}"
        )


def _slowest(subject: Subject) -> tuple[int, int]:
    """Return the lowest rate between two different endpoints, and its row."""
    rate = subject.paths.rate_kbps
    is_different = np.repeat(subject.src != subject.dst, subject.paths.per_pair)
    rate = np.where(is_different & (rate > 0), rate, _NO_LIMIT)
    row = int(rate.argmin())
    return int(rate[row]), row


def _assert_bisection(subject: Subject, stated_kbps: int) -> None:
    half = int(subject.src[-1] + 1) // 2
    src_is_lower, dst_is_lower = subject.src < half, subject.dst < half
    crosses = np.repeat(src_is_lower != dst_is_lower, subject.paths.per_pair) & (
        subject.paths.rate_kbps != NO_ROUTE
    )
    for row in np.flatnonzero(crosses & (np.diff(subject.paths.link_ptr) == 0)).tolist():
        raise subject.error(f"bisection is stated as {_format_rate(stated_kbps)}, and no link is between", row)
    cuts = [
        (*minimum_cut(subject.links, subject.query(np.flatnonzero(pairs))), side)
        for side, pairs in (("lower", src_is_lower & ~dst_is_lower), ("upper", ~src_is_lower & dst_is_lower))
    ]
    rate_kbps, cut, side = min(cuts, key=itemgetter(0))
    if rate_kbps != stated_kbps:
        names = _format_value(tuple(subject.links.name[link] for link in cut))
        actual = f"{_format_rate(rate_kbps)} out of the {side} half, what {names} hold"
        raise subject.error(f"bisection is stated as {_format_rate(stated_kbps)}, and the paths' is {actual}")


def _format_rate(rate_kbps: object) -> str:
    return "no limit" if rate_kbps == _NO_LIMIT else f"{rate_kbps} kB/s"


def _format_value(value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    limit = 8
    return f"[{', '.join(map(str, value[:limit]))}{', …' if len(value) > limit else ''}]"


class Route(Struct, frozen=True, kw_only=True):
    """One path between two endpoints as plain values and names of links."""

    links: tuple[str, ...]
    """The shared links."""
    weights: tuple[int, ...]
    """Number of flows on each link."""
    route: tuple[str, ...]
    """The displayed links."""
    rate_kbps: int
    """Rate of an uncontended message."""
    latency_ns: int
    """Wire latency."""
    overhead_ns: int
    """Launch overhead."""


class Subject(Struct, frozen=True, kw_only=True):
    """A network of one size with the paths of all pairs of endpoints."""

    title: str
    """Name and size for messages."""
    network: GuardedNetwork
    """The network that the plugin built."""
    links: Links
    """The checked links."""
    src: Int32s
    """Source of each pair."""
    dst: Int32s
    """Target of each pair."""
    paths: Paths
    """The checked paths."""

    @classmethod
    def build(cls, provided: Provided[NetworkOffer], request: NetworkRequest) -> Subject:
        """Build a network and query the paths of all pairs.

        Raises:
            AssertionError: the network rejects the request, or has invalid links or paths.
            PluginError: the plugin's code raised an exception.
        """
        offer, provider = provided.offer, provided.provider
        title = f"{offer.name} with {request.endpoints} endpoints"
        try:
            built = offer.build(request)
        except ConfigError as error:
            raise AssertionError(f"{title}: refused: {error}") from error
        network = GuardedNetwork(provider=provider, name=offer.name, network=built)
        links = network.links
        try:
            check_links(links)
        except PluginError as error:
            raise AssertionError(f"{title}: {error}") from error
        endpoints = np.arange(request.endpoints, dtype=np.int32)
        src, dst = np.repeat(endpoints, endpoints.size), np.tile(endpoints, endpoints.size)
        paths = _query_paths(title, network, len(links), src, dst)
        return cls(title=title, network=network, links=links, src=src, dst=dst, paths=paths)

    def query(self, pairs: Int64s) -> Paths:
        """Query the paths of some pairs in the given order."""
        return _query_paths(self.title, self.network, len(self.links), self.src[pairs], self.dst[pairs])

    def error(self, problem: str, row: int | None = None) -> AssertionError:
        """Return the error of a row of the paths, or of the network."""
        pair = "" if row is None else f"endpoint {self.pair(row)}: "
        return AssertionError(f"{self.title}: {pair}{problem}")

    def pair(self, row: int) -> str:
        """Return the two endpoints of a row of the paths."""
        pair = row // self.paths.per_pair
        return f"{self.src[pair]} to {self.dst[pair]}"

    def link(self, entry: int) -> str:
        """Return the name of the link of an entry of the paths' lists."""
        return self.links.name[int(self.paths.link[entry])]


def routes(links: Links, paths: Paths) -> list[list[Route]]:
    """Return the routes of each pair by path; only the first if all are equal."""
    names = np.array([*links.name, ""], dtype=object)
    used, displayed, weight = names[paths.link].tolist(), names[paths.route].tolist(), paths.weight.tolist()
    ptr, route_ptr = paths.link_ptr.tolist(), paths.route_ptr.tolist()
    columns = zip(paths.rate_kbps.tolist(), paths.latency_ns.tolist(), paths.overhead_ns.tolist(), strict=True)
    rows = [
        Route(
            links=tuple(used[ptr[row] : ptr[row + 1]]), weights=tuple(weight[ptr[row] : ptr[row + 1]]),
            route=tuple(displayed[route_ptr[row] : route_ptr[row + 1]]),
            rate_kbps=rate, latency_ns=latency, overhead_ns=overhead,
        )
        for row, (rate, latency, overhead) in enumerate(columns)
    ]  # fmt: skip
    pairs = [rows[first : first + paths.per_pair] for first in range(0, len(rows), paths.per_pair)]
    return [of_pair[:1] if all(path == of_pair[0] for path in of_pair) else of_pair for of_pair in pairs]


def _query_paths(title: str, network: GuardedNetwork, links: int, src: Int32s, dst: Int32s) -> Paths:
    """Return the paths of some pairs; an error names the first pair with invalid paths."""
    paths = network.unchecked_paths(src, dst)
    try:
        check_paths(paths, src.size, links)
    except PluginError as error:
        if src.size == 1:
            raise AssertionError(f"{title}: endpoint {src[0]} to {dst[0]}: {error}") from error
        for pair in range(src.size):
            _query_paths(title, network, links, src[pair : pair + 1], dst[pair : pair + 1])
        raise AssertionError(f"{title}: {error}") from error
    return paths


_SOURCE, _SINK = -1, -2

Residual = dict[int, dict[int, Fraction]]
"""Residual capacity between nodes; link ``l`` is the arc from node ``2 l`` to ``2 l + 1``."""


def minimum_cut(links: Links, paths: Paths) -> tuple[Fraction, tuple[int, ...]]:
    """Return the minimum cut of the graph whose arcs join consecutive links of ``paths``: its capacity and links.

    It is the set of links with the least total capacity that disconnects all paths; capacity 0 without a path.

    The capacity of a link is divided by the lowest weight of a path on it. Each path has at least one link.

    Algorithm: J. Edmonds and R. M. Karp, "Theoretical Improvements in Algorithmic Efficiency for Network Flow
    Problems", Journal of the ACM 19 (1972): augment the shortest path with residual capacity until there is none.
    """
    routed = paths.rate_kbps != NO_ROUTE
    residual = _graph(links, paths, paths.link_ptr[:-1][routed], paths.link_ptr[1:][routed])
    flow_kbps = Fraction(0)
    while True:
        reached = _shortest_paths(residual)
        if _SINK not in reached:
            cut = tuple(link for link in range(len(links)) if 2 * link in reached and 2 * link + 1 not in reached)
            return flow_kbps, cut
        flow_kbps += _augment(residual, reached)


def _graph(links: Links, paths: Paths, first: NDArray[np.int32], end: NDArray[np.int32]) -> Residual:
    on_path = np.zeros(paths.link.size, dtype=bool)
    has_successor = np.zeros(paths.link.size, dtype=bool)
    for low, high in zip(first.tolist(), end.tolist(), strict=True):
        on_path[low:high] = has_successor[low : high - 1] = True
    lowest_weight: dict[int, int] = {}
    for link, weight in zip(paths.link[on_path].tolist(), paths.weight[on_path].tolist(), strict=True):
        lowest_weight[link] = min(weight, lowest_weight.get(link, weight))
    capacities = {link: Fraction(int(links.rate_kbps[link]), weight) for link, weight in lowest_weight.items()}
    unlimited = sum(capacities.values(), Fraction(1))
    residual: Residual = {_SOURCE: {}, _SINK: {}}
    for link, capacity in capacities.items():
        residual[2 * link], residual[2 * link + 1] = {2 * link + 1: capacity}, {}
    entries = np.flatnonzero(has_successor)
    arcs = [(_SOURCE, 2 * link) for link in set(paths.link[first].tolist())]
    arcs += [(2 * link + 1, _SINK) for link in set(paths.link[end - 1].tolist())]
    successors = zip(paths.link[entries].tolist(), paths.link[entries + 1].tolist(), strict=True)
    arcs += {(2 * link + 1, 2 * successor) for link, successor in successors}
    for tail, head in arcs:
        residual[tail][head] = unlimited
    return residual


def _shortest_paths(residual: Residual) -> dict[int, int]:
    """Return the nodes reachable by residual capacity, each with its predecessor on a shortest path."""
    predecessor, waiting = {_SOURCE: _SOURCE}, deque([_SOURCE])
    while waiting and _SINK not in predecessor:
        node = waiting.popleft()
        for successor, capacity in residual[node].items():
            if capacity and successor not in predecessor:
                predecessor[successor] = node
                waiting.append(successor)
    return predecessor


def _augment(residual: Residual, predecessor: dict[int, int]) -> Fraction:
    """Augment the flow along the path to the sink; return the added flow."""
    path, node = [], _SINK
    while node != _SOURCE:
        path.append((predecessor[node], node))
        node = predecessor[node]
    amount = min(residual[tail][head] for tail, head in path)
    for tail, head in path:
        residual[tail][head] -= amount
        residual[head][tail] = residual[head].get(tail, Fraction(0)) + amount
    return amount
