"""Messages on links."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.config.quantities import format_rate
from pptrace.traces.kernels import first_free
from pptrace.traces.scene import CARRIES, NAMES, RECEIVES, TOWARDS_NEXT
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.placement import Placement
    from pptrace.timeline.timeline import Routes, Timeline

__all__ = ["Hops", "Peers", "link_title", "routed"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hops:
    """One per message and link, by lane, then time; columns of shape (hops,) but where they say."""

    row: Int32s
    """The message's row in the timeline, whose times are the hop's."""
    place: Int32s
    """Which link of the message's route it is, from 0."""
    lane_link: Int32s
    """Shape (lanes,): the link of each lane, ascending; a link has as many as it had messages at once."""
    lane_copy: Int32s
    """Shape (lanes,): which of its link's lanes it is, from 0."""
    lane_ptr: Int64s
    """Shape (lanes + 1,): lane ``l`` has the hops ``lane_ptr[l]:lane_ptr[l + 1]``."""
    sent: Int32s
    """Shape (messages,): the rows that have hops, ascending."""
    message: Int32s
    """Which of :attr:`sent` the hop is of."""
    peer: Int32s
    """Shape (messages,): the rank at the message's other end, -1 where unknown."""

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        """Spread a timeline's routes over lanes; without routes there are no hops."""
        routes = timeline.routes
        if routes is None or not routes.link.size:
            none = np.zeros(0, dtype=np.int32)
            return cls(row=none, place=none, lane_link=none, lane_copy=none, lane_ptr=np.zeros(1, dtype=np.int64),
                       sent=none, message=none, peer=none)  # fmt: skip
        length = np.diff(routes.ptr)
        sent = np.flatnonzero(length).astype(np.int32)
        message = np.repeat(np.arange(sent.size, dtype=np.int32), length[sent])
        place = np.arange(routes.link.size, dtype=np.int32) - np.repeat(routes.ptr[:-1], length)
        order = _by_link_and_time(timeline, routes.link, sent, message)
        link, hops = np.unique(routes.link, return_counts=True)
        copy, lanes = _spread(timeline, sent[message[order]], hops)
        before = np.cumsum(lanes) - lanes
        lane = np.repeat(before, hops) + copy
        order = order[np.argsort(lane, kind="stable")]
        return cls(
            row=sent[message[order]],
            place=place[order],
            lane_link=np.repeat(link, lanes),
            lane_copy=(np.arange(int(lanes.sum())) - np.repeat(before, lanes)).astype(np.int32),
            lane_ptr=np.concatenate([[0], np.cumsum(np.bincount(lane))]),
            sent=sent,
            message=message[order],
            peer=_peers(timeline, sent),
        )

    def __len__(self) -> int:
        return int(self.row.size)

    @property
    def link(self) -> Int32s:
        """The link of each hop."""
        return np.repeat(self.lane_link, np.diff(self.lane_ptr))

    def titles(self, timeline: Timeline) -> NDArray[np.bytes_]:
        """Return a title such as ``SEND_F 3 0>1`` for each of :attr:`sent`."""
        names = np.array(NAMES, dtype=np.bytes_)
        kind = timeline.kind[self.sent]
        rank = timeline.rank_of_row()[self.sent]
        microbatch, span = timeline.microbatch[self.sent], timeline.span[self.sent]
        into = RECEIVES[kind]
        ends = np.where(into, self.peer, rank), np.where(into, rank, self.peer)
        what = np.strings.add(names[kind], _texts(microbatch, span, _microbatches))
        titles: NDArray[np.bytes_] = np.strings.add(what, _texts(*ends, _between))
        return titles


def link_title(routes: Routes, link: int) -> str:
    """Return a link's name with its capacity, such as ``leaf0>spine2 (50 GB/s)``."""
    name, rate_kbps = routes.name[link], int(routes.rate_kbps[link])
    return f"{name} ({format_rate(rate_kbps * 1000)})" if rate_kbps > 0 else name


def routed(rows: int, row: Int64s, place: Int64s, link: Int64s) -> tuple[Int32s, Int32s] | None:
    """Return ``ptr`` and ``link`` of the routes that hops spell out in any order; None where some are missing."""
    if row.size and not 0 <= row.min() <= row.max() < rows:
        return None
    order = np.lexsort((place, row))
    length = np.bincount(row, minlength=rows)
    ptr = np.concatenate([[0], np.cumsum(length)])
    whole = np.array_equal(place[order], np.arange(row.size) - np.repeat(ptr[:-1], length))
    return (ptr.astype(np.int32), link[order].astype(np.int32)) if whole else None


def _by_link_and_time(timeline: Timeline, link: Int32s, sent: Int32s, message: Int32s) -> Int64s:
    """Return the order of hops by link, then by their messages' starts and ends, then along the route."""
    rank = np.empty(sent.size, dtype=np.int64)
    rank[np.lexsort((timeline.end_ns[sent], timeline.start_ns[sent]))] = np.arange(sent.size)
    return np.argsort(link * np.int64(sent.size) + rank[message], kind="stable")


def _spread(timeline: Timeline, row: Int32s, hops: Int64s) -> tuple[Int64s, Int64s]:
    """Return the lane of each hop among its link's, and how many lanes each link takes."""
    lane, lanes = np.zeros(row.size, dtype=np.int64), np.zeros(hops.size, dtype=np.int64)
    until = np.zeros(int(hops.max()), dtype=np.int64)
    ptr = np.concatenate([[0], np.cumsum(hops)])
    run(first_free, [ptr, timeline.start_ns[row], timeline.end_ns[row]], [until, lane, lanes], work=row.size)
    return lane, lanes


def _peers(timeline: Timeline, rows: Int32s) -> Int32s:
    """Take the lane's peer where it serves one only, else the neighbour that the placement tells."""
    peer = np.repeat(timeline.lane_peer, np.diff(timeline.lane_ptr))[rows]
    carried = CARRIES[timeline.kind[rows]]
    told = np.where(carried, Peers.of(timeline.placement).among(timeline, rows), np.int32(-1))
    return np.where(peer >= 0, peer, told)


def _texts(first: Int32s, second: Int32s, spelt: Callable[[int, int], str]) -> NDArray[np.bytes_]:
    """Spell pairs of numbers, each that occurs once."""
    width = int(second.max(initial=0)) + 2
    keys, place = np.unique((first.astype(np.int64) + 1) * width + second + 1, return_inverse=True)
    spelling = [spelt(key // width - 1, key % width - 1) for key in keys.tolist()]
    return np.array(spelling, dtype=np.bytes_)[place]


def _microbatches(microbatch: int, span: int) -> str:
    return "" if microbatch < 0 else f" {microbatch}" + (f"+{span}" if span > 1 else "")


def _between(source: int, target: int) -> str:
    return f" {source}>{target}" if source >= 0 and target >= 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The neighbours of each stage on each route; -1 where a stage has none, or several."""

    microbatch_route: Int32s
    """Shape (microbatches,): each microbatch's route."""
    after: Int32s
    """Shape (routes, stages): the rank that holds the next stage."""
    before: Int32s
    """Shape (routes, stages): the rank that holds the stage before."""

    @classmethod
    def of(cls, placement: Placement) -> Self:
        """Find the neighbours along the placement's edges."""
        source, target = placement.edges[:, 0], placement.edges[:, 1]
        return cls(
            microbatch_route=placement.microbatch_route,
            after=_only(placement.stage_rank, source, target),
            before=_only(placement.stage_rank, target, source),
        )

    def among(self, timeline: Timeline, rows: slice | Int32s) -> Int32s:
        """Return the peer of each row's message, by its stage, microbatch and direction."""
        microbatch, stage = timeline.microbatch[rows], timeline.stage[rows]
        known = (microbatch >= 0) & (microbatch < self.microbatch_route.size) & (stage < self.after.shape[1])
        route = np.zeros_like(microbatch)
        route[known] = self.microbatch_route[microbatch[known]]
        stage = np.where(known, stage, 0)
        onward = TOWARDS_NEXT[timeline.kind[rows]]
        peer = np.where(onward, self.after[route, stage], self.before[route, stage])
        return np.where(known, peer, np.int32(-1))


def _only(stage_rank: Int32s, at: Int32s, neighbour: Int32s) -> Int32s:
    """Return the rank of each stage's neighbour where it has one only on the route."""
    route, edge = np.nonzero((stage_rank[:, at] >= 0) & (stage_rank[:, neighbour] >= 0))
    count = np.zeros_like(stage_rank)
    np.add.at(count, (route, at[edge]), 1)
    rank = np.full_like(stage_rank, -1)
    rank[route, at[edge]] = stage_rank[route, neighbour[edge]]
    return np.where(count == 1, rank, np.int32(-1))
