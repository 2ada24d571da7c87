"""What flows that all run at once leave each other on the links between them."""

from __future__ import annotations

from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ConfigError
from pptrace.network.contract import NO_ROUTE
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.network.contract import Links, Network, Paths

__all__ = ["Load", "flows_at_once"]

_AT_ONCE = 2**15
"""Pairs asked for at once, which bounds memory."""

_BYTE_NS = 1_000_000
"""Nanoseconds of a byte at one kB/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Flows of one size that start together and go on at one pace, that of the slowest."""

    overhead_ns: Int64s
    """Launch overhead of each flow."""
    latency_ns: Int64s
    """Wire latency of each flow, of its slowest way."""
    byte_ns: Fraction
    """What a byte of each flow takes: of the link with most flows for its capacity, or of a flow's own limit."""
    link: str
    """Name of the link that decides; empty where none does."""


def flows_at_once(network: Network, src: Int32s, dst: Int32s) -> Load:
    """Return what a flow from each ``src`` to its ``dst`` endpoint makes of the network.

    A flow's messages take the ways of its pair in turn, so each way carries an equal share of it. Where a path
    has no links to share, an endpoint sends one flow at a time, and receives one.

    Raises:
        ConfigError: two endpoints that no route joins.
    """
    links = network.links
    pair, flow, times = np.unique(src.astype(np.int64) * 2**31 + dst, return_inverse=True, return_counts=True)
    a, b = (ends.astype(np.int32) for ends in np.divmod(pair, 2**31))
    overhead, latency, bare_kbps = np.zeros((3, pair.size), dtype=np.int64)
    carried: dict[int, Int64s] = {}
    slowest = [(Fraction(0), "")]
    for first in range(0, pair.size, _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        paths = network.paths(a[some], b[some])
        _check_routes(paths, a[some], b[some])
        overhead[some] = paths.overhead_ns.reshape(-1, paths.ways).max(axis=1)
        latency[some] = paths.latency_ns.reshape(-1, paths.ways).max(axis=1)
        length = np.diff(paths.link_ptr)
        bare_kbps[some] = np.where(length == 0, paths.rate_kbps, 0).reshape(-1, paths.ways).max(axis=1)
        known = carried.setdefault(paths.ways, np.zeros(len(links), dtype=np.int64))
        np.add.at(known, paths.link, np.repeat(np.repeat(times[some], paths.ways), length) * paths.weight)
        slowest.append(_alone(paths, links))
    slowest = [_shared(carried, links), *slowest, (_in_turn(a, b, times, bare_kbps), "")]
    byte_ns, link = max(slowest, key=lambda found: found[0])
    return Load(overhead_ns=overhead[flow], latency_ns=latency[flow], byte_ns=byte_ns, link=link)


def _check_routes(paths: Paths, src: Int32s, dst: Int32s) -> None:
    lost = np.flatnonzero(paths.rate_kbps == NO_ROUTE)
    if lost.size:
        at = int(lost[0]) // paths.ways
        message = f"no route between GPU {src[at]} and GPU {dst[at]}, which take part in one collective"
        raise ConfigError(f"{message}: give the cluster a fabric, or fewer nodes", key="cluster")


def _shared(carried: Mapping[int, Int64s], links: Links) -> tuple[Fraction, str]:
    """Return a byte's time on the link with most flows for its capacity, the first of equals, and its name."""
    whole = lcm(*carried)
    flows = sum((count * (whole // ways) for ways, count in carried.items()), np.zeros(len(links), dtype=np.int64))
    slowest, link = Fraction(0), len(links)
    for rate in np.unique(links.rate_kbps[flows > 0]).tolist():
        busiest = int(np.argmax(np.where(links.rate_kbps == rate, flows, 0)))
        byte_ns = Fraction(int(flows[busiest]) * _BYTE_NS, whole * rate)
        if byte_ns > slowest or (byte_ns == slowest and busiest < link):
            slowest, link = byte_ns, busiest
    return slowest, links.name[link] if slowest else ""


def _alone(paths: Paths, links: Links) -> tuple[Fraction, str]:
    """Return a byte's time on the slowest path that a flow has to itself, and its tightest link."""
    limited = np.flatnonzero(paths.rate_kbps > 0)
    if not limited.size:
        return Fraction(0), ""
    row = int(limited[np.argmin(paths.rate_kbps[limited])])
    used = paths.link[paths.link_ptr[row] : paths.link_ptr[row + 1]]
    cap = np.where(links.flow_rate_kbps[used] > 0, links.flow_rate_kbps[used], links.rate_kbps[used])
    tightest = links.name[used[np.argmin(cap)]] if used.size else ""
    return Fraction(_BYTE_NS, int(paths.rate_kbps[row])), tightest


def _in_turn(src: Int32s, dst: Int32s, times: Int64s, rate_kbps: Int64s) -> Fraction:
    """Return a byte's time at the endpoint with most flows over no links, all as slow as the slowest."""
    bare = np.flatnonzero(rate_kbps)
    if not bare.size:
        return Fraction(0)
    flows = max(int(np.bincount(end[bare], times[bare]).max()) for end in (src, dst))
    return Fraction(flows * _BYTE_NS, int(rate_kbps[bare].min()))
