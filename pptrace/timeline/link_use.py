"""Use of links: rates, utilization and delays of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.steps.columns import Columns, Int32s, Int64s, ranges
from pptrace.timeline.timeline import Routes

if TYPE_CHECKING:
    from pptrace.network.contract import Links, Paths
    from pptrace.timeline.timeline import Timeline


class Segments(Struct, frozen=True, kw_only=True):
    """Intervals in which the rate of a message is constant."""

    row: Int32s
    """The message's row in the timeline."""
    start_ns: Int64s
    """Start of the interval."""
    end_ns: Int64s
    """End of the interval, after its start."""
    rate_kbps: Int64s
    """Rate of each of the message's flows; 0 while it waits for a link."""
    limit: Int32s
    """The link that limits the rate, -1 for none."""


class Traffic(Columns, frozen=True, kw_only=True):
    """Links, the paths of each pair of ranks over them, and the rates of each message."""

    links: Links
    """All links of the network."""
    paths: Paths
    """Paths between the pairs of ranks with messages."""
    source: Int32s
    """Shape (pairs,): the sending rank."""
    target: Int32s
    """Shape (pairs,): the receiving rank."""
    path: Int32s
    """Shape (rows,): each message's path, on the row of its sender; -1 for other rows."""
    row: Int32s
    """Row of each change of rate; sorted by row, then time. Messages without contention have none."""
    at_ns: Int64s
    """Time of the change."""
    rate_kbps: Int64s
    """Rate of each of the message's flows after the change."""
    limit: Int32s
    """The link that limits the rate, -1 where the rate is the uncontended rate."""

    def of_rows(self, rows: Int64s, start_ns: int, end_ns: int) -> Traffic:
        """Return the traffic of some rows from ``start_ns``, the new zero of time, to ``end_ns``."""
        number = np.full(self.path.size, -1, dtype=np.int32)
        number[rows] = np.arange(rows.size, dtype=np.int32)
        kept = number[self.row] >= 0
        return replace(
            self, path=self.path[rows], row=number[self.row[kept]],
            at_ns=np.clip(self.at_ns[kept], start_ns, end_ns) - start_ns, rate_kbps=self.rate_kbps[kept],
            limit=self.limit[kept],
        )  # fmt: skip

    def routes(self) -> Routes:
        """Return the links of each message's first flow, as a timeline keeps them."""
        sent = self.path >= 0
        path, length = self.path[sent], np.zeros(self.path.size, dtype=np.int64)
        length[sent] = np.diff(self.paths.route_ptr)[path]
        return Routes(
            name=self.links.name, rate_kbps=self.links.rate_kbps, ptr=np.concatenate([[0], np.cumsum(length)]),
            link=self.paths.route[ranges(self.paths.route_ptr[:-1][path], length[sent])],
        )  # fmt: skip

    def segments(self, start_ns: Int64s, end_ns: Int64s) -> Segments:
        """Return the intervals of constant rate of every message that takes time on its path.

        ``start_ns`` and ``end_ns`` are the times of the timeline's rows.
        """
        changed = np.zeros(self.path.size, dtype=bool)
        changed[self.row] = True
        last = np.ones(self.row.size, dtype=bool)
        last[:-1] = self.row[1:] != self.row[:-1]
        changed_end = end_ns[self.row].copy()
        changed_end[~last] = self.at_ns[1:][~last[:-1]]
        plain = np.flatnonzero((self.path >= 0) & ~changed).astype(np.int32)
        path = self.path[plain]
        moves = self.paths.rate_kbps[path] > 0
        plain, path = plain[moves], path[moves]
        start = np.concatenate([self.at_ns, start_ns[plain] + self.paths.overhead_ns[path]])
        end = np.concatenate([changed_end, end_ns[plain]])
        lasts = np.flatnonzero(end > start)
        return Segments(
            row=np.concatenate([self.row, plain])[lasts],
            start_ns=start[lasts],
            end_ns=end[lasts],
            rate_kbps=np.concatenate([self.rate_kbps, self.paths.rate_kbps[path]])[lasts],
            limit=np.concatenate([self.limit, np.full(plain.size, -1, dtype=np.int32)])[lasts],
        )


_KILO = 1000
_SECOND_NS = 10**9


class LinkUse(Struct, frozen=True, kw_only=True):
    """Use of a link over the step; links with equal figures share one record."""

    names: tuple[str, ...]
    """Names of the links."""
    rate_kbps: int
    """Capacity of each link."""
    size_bytes: int
    """Bytes over each link, from all replicas."""
    utilisation: float
    """Bytes over the link as a fraction of its capacity during the step."""
    delay_ns: int
    """Total delay of messages whose rate this link limited, against their uncontended rate."""
    from_ns: int
    """Start of the first delay; 0 for none."""
    until_ns: int
    """End of the last delay; 0 for none."""
    hops: tuple[tuple[int, int], ...]
    """Pairs of pipeline ranks that used the link, by descending bytes."""


class Delay(Struct, frozen=True, kw_only=True):
    """Delay of the messages between a pair of ranks on a link."""

    source: int
    """The sending rank."""
    target: int
    """The receiving rank."""
    link: str
    """The link that limited their rate."""
    delay_ns: int
    """Total delay against the uncontended rate."""


def busiest_links(timeline: Timeline, traffic: Traffic, step_ns: int) -> list[LinkUse]:
    """Return the links that carried bytes, by descending utilisation; links with equal figures share an entry."""
    sent = np.flatnonzero(traffic.path >= 0)
    paths, links = traffic.paths, traffic.links
    carried = np.zeros(len(paths), dtype=np.int64)
    np.add.at(carried, traffic.path[sent], timeline.size_bytes[sent])
    path = np.repeat(np.arange(len(paths)), np.diff(paths.link_ptr))
    size = carried[path] * paths.weight
    total = np.zeros(len(links), dtype=np.int64)
    np.add.at(total, paths.link, size)
    segments = traffic.segments(timeline.start_ns, timeline.end_ns)
    lost_ns, limited = _lost_ns(traffic, segments), segments.limit >= 0
    delay = np.zeros(len(links), dtype=np.int64)
    np.add.at(delay, segments.limit[limited], lost_ns[limited])
    first = np.full(len(links), np.iinfo(np.int64).max)
    last = np.zeros(len(links), dtype=np.int64)
    delayed = limited & (lost_ns > 0)
    np.minimum.at(first, segments.limit[delayed], segments.start_ns[delayed])
    np.maximum.at(last, segments.limit[delayed], segments.end_ns[delayed])
    users = _users(path // paths.per_pair, paths.link, size)
    groups: dict[tuple[object, ...], list[int]] = {}
    for link in np.flatnonzero(total).tolist():
        groups.setdefault((total[link], links.rate_kbps[link], delay[link], users[link]), []).append(link)
    uses = []
    for group in groups.values():
        link = group[0]
        size_bytes, rate_kbps = int(total[link]), int(links.rate_kbps[link])
        uses.append(LinkUse(
            names=tuple(links.name[link] for link in group), rate_kbps=rate_kbps, size_bytes=size_bytes,
            utilisation=size_bytes * (_SECOND_NS // _KILO) / (rate_kbps * (step_ns or 1)),
            delay_ns=int(delay[link]), from_ns=int(first[link]) if last[link] else 0, until_ns=int(last[link]),
            hops=tuple((int(traffic.source[pair]), int(traffic.target[pair])) for pair in users[link]),
        ))  # fmt: skip
    return sorted(uses, key=lambda use: (-use.utilisation, -use.delay_ns, use.names))


def delays(timeline: Timeline, traffic: Traffic) -> list[Delay]:
    """Return the delay of each pair of ranks on each link, the longest first."""
    segments = traffic.segments(timeline.start_ns, timeline.end_ns)
    lost_ns = _lost_ns(traffic, segments)
    delayed = np.flatnonzero((segments.limit >= 0) & (lost_ns > 0))
    pair = traffic.path[segments.row[delayed]] // traffic.paths.per_pair
    pair_and_limit = pair.astype(np.int64) * len(traffic.links) + segments.limit[delayed]
    key, entry = np.unique(pair_and_limit, return_inverse=True)
    total = np.zeros(key.size, dtype=np.int64)
    np.add.at(total, entry, lost_ns[delayed])
    by_link = []
    for pair_and_link, delay_ns in zip(key.tolist(), total.tolist(), strict=True):
        index, link = divmod(pair_and_link, len(traffic.links))
        source, target = int(traffic.source[index]), int(traffic.target[index])
        by_link.append(Delay(source=source, target=target, link=traffic.links.name[link], delay_ns=delay_ns))
    return sorted(by_link, key=lambda delay: (-delay.delay_ns, delay.source, delay.target, delay.link))


def _lost_ns(traffic: Traffic, segments: Segments) -> Int64s:
    """Return the delay of each segment against the uncontended rate of its message."""
    alone_kbps = traffic.paths.rate_kbps[traffic.path[segments.row]]
    duration_ns = segments.end_ns - segments.start_ns
    share = np.where(alone_kbps > 0, segments.rate_kbps / np.maximum(alone_kbps, 1), 1.0)
    lost_ns: Int64s = np.rint(duration_ns * (1.0 - np.minimum(share, 1.0))).astype(np.int64)
    return lost_ns


def _users(pair: Int64s, link: Int32s, size: Int64s) -> dict[int, tuple[int, ...]]:
    """Return the pairs of ranks on each link, by descending bytes."""
    total: dict[tuple[int, int], int] = {}
    for link_index, pair_index, size_bytes in zip(link.tolist(), pair.tolist(), size.tolist(), strict=True):
        if size_bytes:
            key = link_index, pair_index
            total[key] = total.get(key, 0) + size_bytes
    by_link: dict[int, list[tuple[int, int]]] = {}
    for (link_index, pair_index), size_bytes in total.items():
        by_link.setdefault(link_index, []).append((-size_bytes, pair_index))
    return {link_index: tuple(pair for _, pair in sorted(pairs)) for link_index, pairs in by_link.items()}
