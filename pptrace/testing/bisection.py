"""What crosses the middle of a network: the minimum cut between two halves of its endpoints."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from pptrace.network.contract import NO_ROUTE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.network.contract import Links, Paths

__all__ = ["Cut", "minimum_cut"]

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
