"""Use of links: rates, utilization and delays of messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.steps.columns import Int32s, Int64s, column
from pptrace.timeline.timeline import Counter, Routes, step_functions

if TYPE_CHECKING:
    from pptrace.network.contract import Links, Paths
    from pptrace.timeline.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Times in which one message went at one rate."""

    row: Int32s
    """The message's row in the timeline."""
    start_ns: Int64s
    """From when."""
    end_ns: Int64s
    """Until when; never the same instant."""
    rate_kbps: Int64s
    """Rate of each of its flows; 0 while it waited for a link."""
    limit: Int32s
    """The link that held it at this rate, -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
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
    """Row of each change of rate; sorted by row, then time. Messages that nothing held up have none."""
    at_ns: Int64s
    """When the rate changed."""
    rate_kbps: Int64s
    """The rate of each of the message's flows from then on."""
    limit: Int32s
    """The link that set the rate, -1 where it went as fast as alone."""

    def __post_init__(self) -> None:
        for name in ("at_ns", "rate_kbps"):
            object.__setattr__(self, name, column(getattr(self, name), np.int64))
        for name in ("source", "target", "path", "row", "limit"):
            object.__setattr__(self, name, column(getattr(self, name), np.int32))

    def routes(self) -> Routes:
        """Return the links of each message's first flow, as a timeline keeps them."""
        sent = self.path >= 0
        length = np.zeros(self.path.size, dtype=np.int64)
        length[sent] = np.diff(self.paths.route_ptr)[self.path[sent]]
        ptr = np.concatenate([[0], np.cumsum(length)])
        first = np.repeat(self.paths.route_ptr[:-1][self.path[sent]] - ptr[:-1][sent], length[sent])
        return Routes(
            name=self.links.name,
            rate_kbps=self.links.rate_kbps,
            ptr=ptr.astype(np.int32),
            link=self.paths.route[np.arange(int(ptr[-1])) + first],
        )

    def segments(self, start_ns: Int64s, end_ns: Int64s) -> Segments:
        """Return the times at one rate of every message that takes time on its path.

        Args:
            start_ns: start of each of the timeline's rows.
            end_ns: end of each row.
        """
        changed = np.zeros(self.path.size, dtype=bool)
        changed[self.row] = True
        last = np.ones(self.row.size, dtype=bool)
        last[:-1] = self.row[1:] != self.row[:-1]
        until = end_ns[self.row].copy()
        until[~last] = self.at_ns[1:][~last[:-1]]
        plain = np.flatnonzero((self.path >= 0) & ~changed).astype(np.int32)
        path = self.path[plain]
        moves = self.paths.rate_kbps[path] > 0
        plain, path = plain[moves], path[moves]
        begun = np.concatenate([self.at_ns, start_ns[plain] + self.paths.overhead_ns[path]])
        ended = np.concatenate([until, end_ns[plain]])
        takes = np.flatnonzero(ended > begun)
        return Segments(
            row=np.concatenate([self.row, plain])[takes],
            start_ns=begun[takes],
            end_ns=ended[takes],
            rate_kbps=np.concatenate([self.rate_kbps, self.paths.rate_kbps[path]])[takes],
            limit=np.concatenate([self.limit, np.full(plain.size, -1, dtype=np.int32)])[takes],
        )


_KILO = 1000
_SECOND_NS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """One link over the step, or several that were used alike."""

    names: tuple[str, ...]
    """The link, and those with the same figures."""
    rate_kbps: int
    """Its capacity."""
    size_bytes: int
    """Bytes that went over it, those of all replicas."""
    utilisation: float
    """Those bytes over what it could have carried in the step."""
    delay_ns: int
    """What messages lost because this link held them to less than they have alone."""
    from_ns: int
    """When it first held one up; 0 for never."""
    until_ns: int
    """When it last did."""
    hops: tuple[tuple[int, int], ...]
    """Pairs of pipeline ranks that used it, the one with most bytes first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """What one link cost the messages between one pair of ranks."""

    source: int
    """The sending rank."""
    target: int
    """The receiving rank."""
    link: str
    """The link that held them to less than they have alone."""
    delay_ns: int
    """What they lost there, in sum."""


def busiest_links(timeline: Timeline, traffic: Traffic, step_ns: int) -> list[LinkUse]:
    """Return the links that carried anything, the fullest first; links used alike are one entry."""
    sent = np.flatnonzero(traffic.path >= 0)
    paths, links = traffic.paths, traffic.links
    carried = np.zeros(len(paths), dtype=np.int64)
    np.add.at(carried, traffic.path[sent], timeline.size_bytes[sent])
    path = np.repeat(np.arange(len(paths)), np.diff(paths.link_ptr))
    size = carried[path] * paths.weight
    total = np.zeros(len(links), dtype=np.int64)
    np.add.at(total, paths.link, size)
    moving = traffic.segments(timeline.start_ns, timeline.end_ns)
    lost, held = _lost_ns(traffic, moving), moving.limit >= 0
    delay = np.zeros(len(links), dtype=np.int64)
    np.add.at(delay, moving.limit[held], lost[held])
    first = np.full(len(links), np.iinfo(np.int64).max)
    last = np.zeros(len(links), dtype=np.int64)
    slowed = held & (lost > 0)
    np.minimum.at(first, moving.limit[slowed], moving.start_ns[slowed])
    np.maximum.at(last, moving.limit[slowed], moving.end_ns[slowed])
    users = _users(path // paths.ways, paths.link, size)
    alike: dict[tuple[object, ...], list[int]] = {}
    for link in np.flatnonzero(total).tolist():
        alike.setdefault((total[link], links.rate_kbps[link], delay[link], users[link]), []).append(link)
    found = []
    for same in alike.values():
        link = same[0]
        size_bytes, rate_kbps = int(total[link]), int(links.rate_kbps[link])
        found.append(LinkUse(
            names=tuple(links.name[link] for link in same), rate_kbps=rate_kbps, size_bytes=size_bytes,
            utilisation=size_bytes * (_SECOND_NS // _KILO) / (rate_kbps * (step_ns or 1)),
            delay_ns=int(delay[link]), from_ns=int(first[link]) if last[link] else 0, until_ns=int(last[link]),
            hops=tuple((int(traffic.source[pair]), int(traffic.target[pair])) for pair in users[link]),
        ))  # fmt: skip
    return sorted(found, key=lambda use: (-use.utilisation, -use.delay_ns, use.names))


def delays(timeline: Timeline, traffic: Traffic) -> list[Delay]:
    """Return what each link cost each pair of ranks, the most first."""
    moving = traffic.segments(timeline.start_ns, timeline.end_ns)
    lost = _lost_ns(traffic, moving)
    slowed = np.flatnonzero((moving.limit >= 0) & (lost > 0))
    pair = traffic.path[moving.row[slowed]] // traffic.paths.ways
    key, entry = np.unique(pair.astype(np.int64) * len(traffic.links) + moving.limit[slowed], return_inverse=True)
    total = np.zeros(key.size, dtype=np.int64)
    np.add.at(total, entry, lost[slowed])
    found = []
    for pair_and_link, delay_ns in zip(key.tolist(), total.tolist(), strict=True):
        index, link = divmod(pair_and_link, len(traffic.links))
        source, target = int(traffic.source[index]), int(traffic.target[index])
        found.append(Delay(source=source, target=target, link=traffic.links.name[link], delay_ns=delay_ns))
    return sorted(found, key=lambda delay: (-delay.delay_ns, delay.source, delay.target, delay.link))


def link_counters(timeline: Timeline, traffic: Traffic, most: int = 32) -> tuple[Counter, ...]:
    """Return the rate on each of the ``most`` links with the most bytes for their capacity, over time.

    Of links that were used alike the first one stands for all.
    """
    fullest = [use.names[0] for use in busiest_links(timeline, traffic, 0)[:most]]
    number = {name: link for link, name in enumerate(traffic.links.name)}
    chosen = sorted(number[name] for name in fullest)
    moving = traffic.segments(timeline.start_ns, timeline.end_ns)
    segment, link, weight = _over(traffic.paths, np.array(chosen, dtype=np.int32), traffic.path[moving.row])
    rate = moving.rate_kbps[segment] * weight * _KILO
    link, time_ns = np.tile(link, 2), np.concatenate([moving.start_ns[segment], moving.end_ns[segment]])
    order = np.lexsort((time_ns, link))
    total = np.cumsum(np.concatenate([rate, -rate])[order])
    return tuple(
        Counter(rank=-1, name=traffic.links.name[chosen[index]], unit="bytes/s", at_ns=at_ns, value=value)
        for index, at_ns, value in step_functions(link[order], time_ns[order], total)
    )


def _over(paths: Paths, chosen: Int32s, taken: Int32s) -> tuple[Int64s, Int64s, Int64s]:
    """Return each use of a chosen link by a taken path: by place in ``taken`` and ``chosen``, and how often.

    Paths lose their other links first: those of a large job have many, and hundreds of messages take each.
    """
    kept = np.flatnonzero(np.isin(paths.link, chosen))
    ptr = np.searchsorted(kept, paths.link_ptr)
    length = np.diff(ptr)[taken]
    entry = kept[np.arange(int(length.sum())) + np.repeat(ptr[:-1][taken] - np.cumsum(length) + length, length)]
    use = np.repeat(np.arange(taken.size), length)
    return use, np.searchsorted(chosen, paths.link[entry]), paths.weight[entry]


def _lost_ns(traffic: Traffic, moving: Segments) -> Int64s:
    """Return what each segment lost against the rate that its message has alone."""
    alone = traffic.paths.rate_kbps[traffic.path[moving.row]]
    took = moving.end_ns - moving.start_ns
    share = np.where(alone > 0, moving.rate_kbps / np.maximum(alone, 1), 1.0)
    lost: Int64s = np.rint(took * (1.0 - np.minimum(share, 1.0))).astype(np.int64)
    return lost


def _users(pair: Int64s, link: Int32s, size: Int64s) -> dict[int, tuple[int, ...]]:
    """Return the pairs on each link, the one with most bytes first."""
    total: dict[tuple[int, int], int] = {}
    for key in zip(link.tolist(), pair.tolist(), size.tolist(), strict=True):
        if key[2]:
            total[key[:2]] = total.get(key[:2], 0) + key[2]
    by_link: dict[int, list[tuple[int, int]]] = {}
    for (number, user), carried in total.items():
        by_link.setdefault(number, []).append((-carried, user))
    return {number: tuple(user for _, user in sorted(users)) for number, users in by_link.items()}
