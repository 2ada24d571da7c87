"""Assert what a network promises: between every two of its endpoints, and across its middle."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.hooks.build import checked_options
from pptrace.hooks.provider import Provided, Provider
from pptrace.model.request import NetworkRequest
from pptrace.network.contract import NO_ROUTE, UNLIMITED
from pptrace.testing.bisection import minimum_cut
from pptrace.testing.subject import Route, Subject, routes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pptrace.hooks.offers import NetworkOffer
    from pptrace.model.columns import Int64s
    from pptrace.network.contract import Paths

__all__ = ["assert_valid_network"]

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
    told = routes(subject.links, subject.paths)
    _assert_same(subject, told, np.arange(len(told)), again.paths, "in a second build")
    order = np.random.default_rng(0).permutation(len(told))
    _assert_same(subject, told, order, subject.ask(order), "where the pairs are in another order")
    for pair in order[:_ALONE]:
        alone = np.array([pair])
        _assert_same(subject, told, alone, subject.ask(alone), "where this pair is asked for alone")


def _assert_same(subject: Subject, told: list[list[Route]], pairs: Int64s, paths: Paths, when: str) -> None:
    """Assert that ``paths``, those of some pairs, say of each what was told before."""
    for pair, now in zip(pairs.tolist(), routes(subject.links, paths), strict=True):
        before, row = told[pair], pair * subject.paths.ways
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
