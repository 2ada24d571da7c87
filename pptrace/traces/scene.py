"""Scenes of traces, for both formats: names of slices, messages on links, a rank's part of a step.

Names, categories and colors of kinds come from the table of kinds.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.quantities import format_rate
from pptrace.errors import ConfigError
from pptrace.steps.kinds import COMMUNICATION, COMPUTE, KINDS, TABLE, Kind, Role
from pptrace.steps.kinds import RECEIVES as RECEIVING
from pptrace.steps.kinds import TOWARDS_NEXT as WITH_NEXT
from pptrace.timeline.kernels.rows import assign_lanes
from pptrace.timeline.messages import messages
from pptrace.timeline.timeline import LANE_COLUMNS, LOADS_KEY, ROW_COLUMNS
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.kinds import Stream
    from pptrace.steps.placement import Placement
    from pptrace.timeline.messages import Messages
    from pptrace.timeline.timeline import Routes, Timeline

COLLECTIVE = "collective"
"""The category of communication within a group of ranks, for actions and segments."""

_CATEGORIES = {
    Role.COMPUTE: "compute", Role.SEND: "communication", Role.RECEIVE: "communication", Role.COPY: "copy",
    Role.COLLECTIVE: COLLECTIVE, Role.WAIT: "communication",
}  # fmt: skip

NAMES = tuple(kind.name for kind in KINDS)
"""Names of kinds; the index is the kind's number, as in all tuples and arrays of kinds here."""

CATEGORY = tuple(_CATEGORIES[traits.role] for traits in KINDS.values())
"""Category of each kind: ``compute``, ``communication``, ``collective`` or ``copy``."""

COLORS = tuple(traits.trace_color for traits in KINDS.values())
"""Color of each kind: a reserved color name of chrome://tracing (``cname``)."""

_COLORS = [traits.perfetto_text or kind.name for kind, traits in KINDS.items()]
COLOR_TEXTS = tuple(dict.fromkeys(_COLORS))
"""Texts from which the Perfetto UI derives the colors of kinds (``correlation_id``)."""
COLOR_NUMBERS = np.array([COLOR_TEXTS.index(text) for text in _COLORS], dtype=np.int32)
"""Index of the text of each kind."""

NUMBERED = np.array([traits.role is Role.COMPUTE and not traits.per_stage for traits in KINDS.values()])
"""Whether each kind computes on a microbatch; its names contain the microbatch's number."""

_ALL_KINDS = np.arange(len(Kind))

CARRIES = COMMUNICATION.mask(_ALL_KINDS)
"""Whether each kind is a message between ranks, on either side."""

IS_RECEIVING = RECEIVING.mask(_ALL_KINDS)
"""Whether each kind is the receiver's side of a message."""

TOWARDS_NEXT = WITH_NEXT.mask(_ALL_KINDS)
"""Whether the rank at a message's other end holds the next stage; else it holds the previous stage."""

COLOR_BY = ("kind", "microbatch")
"""Properties that determine a slice's color. chrome://tracing reads ``cname`` of Chrome JSON. The Perfetto UI
reads ``correlation_id`` of Perfetto traces, and colors by name without it."""

_STREAM_TITLES = {"COMM": "communication", "RECV": "receive"}


def stream_title(stream: Stream) -> str:
    """Return a stream's name in words.

    >>> from pptrace.steps.kinds import Stream
    >>> stream_title(Stream.COMM), stream_title(Stream.DATA_PARALLEL)
    ('communication', 'data parallel')
    """
    return _STREAM_TITLES.get(stream.name) or stream.name.lower().replace("_", " ")


_OF_EXPERTS = ("experts", "dispatch", "combine")
"""First words of the names of segments whose time depends on the loads of experts."""


class Labels(Struct, frozen=True):
    """Distinct texts that follow the kind in names of slices, by span, microbatch and segment."""

    microbatch: list[str]
    """Empty, `` 3``, or `` 6+2`` for two microbatches from 6."""
    segment: list[str]
    """Empty, or the segment's name after a blank."""
    of_row: Int32s
    """The index of each row's texts."""


class Scene(Struct, frozen=True, kw_only=True, dict=True):
    """A step, or a rank's part of it, with the content that both formats share."""

    timeline: Timeline
    """The rows; their causes are row numbers of the full step."""
    first_row: int = 0
    """The number of the first row in the full step."""
    color_by: str = COLOR_BY[0]
    """One of :data:`COLOR_BY`."""

    @cached_property
    def loads(self) -> Int32s:
        """Shape (rows,): load of experts of each action, or of its segments of experts; -1 for others.

        Empty for equal loads.
        """
        timeline = self.timeline
        kinds = timeline.provenance.get(LOADS_KEY, {}).get("microbatches", [])
        if not kinds:
            return np.zeros(0, dtype=np.int32)
        parts = max(timeline.placement.microbatches // len(kinds), 1)
        place = np.minimum(timeline.microbatch // parts, len(kinds) - 1)
        load = np.array(kinds, dtype=np.int32)[np.maximum(place, 0)]
        chosen = COMPUTE.mask(timeline.kind) & (timeline.microbatch >= 0)
        if timeline.parts is not None:
            names = timeline.parts.names
            is_of_experts = np.array([*(name.startswith(_OF_EXPERTS) for name in names), True])
            chosen &= is_of_experts[timeline.parts.name]
        return np.where(chosen, load, np.int32(-1))

    @classmethod
    def of(cls, timeline: Timeline, options: Mapping[str, Any]) -> Self:
        """Return the scene of all ranks, or of the option ``rank``; ``color`` is one of :data:`COLOR_BY`.

        Raises:
            ConfigError: an option has an unknown value.
        """
        rank, color = options.get("rank"), options.get("color", COLOR_BY[0])
        if color not in COLOR_BY:
            raise ConfigError(f"{color!r} is none of {', '.join(COLOR_BY)}", key="color")
        if rank is None:
            return cls(timeline=timeline, color_by=color)
        if rank not in timeline.lane_rank:
            raise ConfigError(f"the timeline has no rank {rank}", key="rank")
        part, first_row = _part_of(timeline, rank)
        return cls(timeline=part, first_row=first_row, color_by=color)

    @cached_property
    def hops(self) -> Hops:
        """Hops of messages over links."""
        return Hops.of(self.timeline)

    @cached_property
    def messages(self) -> Messages:
        """Both ends of each message."""
        return messages(self.timeline)

    @cached_property
    def peer(self) -> Int32s:
        """Shape (rows,): the peer of each row's lane, else of its message, -1 for none.

        The peer of a message is the rank of its other end, or the neighbour by the placement without such a slice.
        """
        timeline = self.timeline
        peer = np.repeat(timeline.lane_peer, np.diff(timeline.lane_ptr))
        is_open = (peer < 0) & CARRIES[timeline.kind]
        if not is_open.any():
            return peer
        ends, rank = self.messages, timeline.rank_of_row()
        sides = (ends.send, ends.recv, ends.consumer), (ends.recv, ends.send, ends.producer)
        for row, transfer, action in sides:
            other_end = np.where(transfer >= 0, transfer, action)
            known = (row >= 0) & (other_end >= 0) & is_open[row]
            peer[row[known]] = rank[other_end[known]]
        unmatched = np.flatnonzero(is_open & (peer < 0))
        if unmatched.size:
            peer[unmatched] = Peers.of(timeline.placement).of_rows(timeline, unmatched)
        return peer

    def hop_titles(self) -> NDArray[np.bytes_]:
        """Return a title such as ``SEND_F 3 0>1`` for each message with hops."""
        names, sent = np.array(NAMES, dtype=np.bytes_), self.hops.sent
        kind, rank, peer = self.timeline.kind[sent], self.timeline.rank_of_row()[sent], self.peer[sent]
        source, target = np.where(IS_RECEIVING[kind], (peer, rank), (rank, peer))
        labels = labels_of(self.timeline, sent)
        action = np.strings.add(names[kind], np.array(labels.microbatch, dtype=np.bytes_)[labels.of_row])
        titles: NDArray[np.bytes_] = np.strings.add(action, _ends(source, target))
        return titles


def labels_of(timeline: Timeline, rows: slice | Int32s = slice(None)) -> Labels:
    """Return the labels of the given rows."""
    parts, microbatch = timeline.parts, timeline.microbatch[rows]
    segments = [""] if parts is None else ["", *(f" {name}" for name in parts.names)]
    microbatches = int(microbatch.max(initial=-1)) + 2
    key = timeline.span[rows].astype(np.int64) * microbatches + microbatch + 1
    keys, of_row = numbered(key if parts is None else key * len(segments) + parts.name[rows] + 1)
    pairs, segment = np.divmod(keys, len(segments))
    span, first = np.divmod(pairs, microbatches)
    texts = list(map(_microbatch_text, (first - 1).tolist(), span.tolist()))
    return Labels(texts, [segments[index] for index in segment.tolist()], of_row)


def _microbatch_text(microbatch: int, span: int) -> str:
    return "" if microbatch < 0 else f" {microbatch}" + (f"+{span}" if span > 1 else "")


def _ends(source: Int32s, target: Int32s) -> NDArray[np.bytes_]:
    """Return `` 0>1`` for each pair of ranks, empty where a rank is unknown."""
    width = int(target.max(initial=0)) + 2
    keys, index = np.unique((source.astype(np.int64) + 1) * width + target + 1, return_inverse=True)
    pairs = [(key // width - 1, key % width - 1) for key in keys.tolist()]
    texts = [f" {source}>{target}" if source >= 0 and target >= 0 else "" for source, target in pairs]
    return np.array(texts, dtype=np.bytes_)[index]


def rank_name(timeline: Timeline, rank: int, digits: int) -> str:
    """Return the name of a rank's tracks; ranks of encoders on separate GPUs have the name of the encoder.

    Numbers of ranks have ``digits``, for viewers that sort by name.
    """
    configuration = timeline.provenance.get("configuration")
    parallel = configuration.get("parallel") if isinstance(configuration, dict) else None
    written = parallel if isinstance(parallel, dict) else {}
    named, last_rank = written.get("encoders"), 0
    for name, grid in {"encoder": written.get("encoder"), **(named if isinstance(named, dict) else {})}.items():
        encoder_ranks = grid.get("pp") if isinstance(grid, dict) else 0
        last_rank += encoder_ranks if isinstance(encoder_ranks, int) else 0
        if 0 <= rank < last_rank:
            return f"rank {rank:0{digits}} ({name})"
    return f"rank {rank:0{digits}}"


_DENSE = 1 << 24
"""Limit of keys for numbering with a mask; larger keys are sorted."""


def numbered(keys: NDArray[np.integer[Any]]) -> tuple[NDArray[Any], Int32s]:
    """Return the distinct keys in ascending order, and each row's index among them; keys are not negative."""
    largest = int(keys.max(initial=0))
    if largest >= _DENSE:
        distinct, index = np.unique(keys, return_inverse=True)
        return distinct, index.astype(np.int32)
    present = np.zeros(largest + 1, dtype=bool)
    present[keys] = True
    return np.flatnonzero(present), (np.cumsum(present, dtype=np.int32) - np.int32(1))[keys]


def _part_of(timeline: Timeline, rank: int) -> tuple[Timeline, int]:
    """Return a rank's rows and the first row's number; causes and waits keep row numbers of the full step.

    The part includes the links of the rank's messages. The first rank's part includes the cluster's counters.
    """
    lanes, rows = timeline.rank_slices(rank)
    owners = {rank, -1} if lanes.start == 0 else {rank}
    part = replace(
        timeline,
        lane_ptr=timeline.lane_ptr[lanes.start : lanes.stop + 1] - rows.start,
        counters=tuple(counter for counter in timeline.counters if counter.rank in owners),
        routes=None if timeline.routes is None else timeline.routes.of_rows(np.arange(rows.start, rows.stop)),
        why=None if timeline.why is None else timeline.why.of_ranks({rank}, timeline.rank_of_row()),
        parts=None if timeline.parts is None else timeline.parts.of_rows(np.arange(rows.start, rows.stop)),
        **{name: getattr(timeline, name)[lanes] for name in LANE_COLUMNS[:3]},
        **{name: getattr(timeline, name)[rows] for name in ROW_COLUMNS},
    )
    return part, rows.start


def links_and_segments(timeline: Timeline) -> dict[str, Any]:
    """Return the links and the names of segments that the timeline has, as JSON values."""
    routes, parts = timeline.routes, timeline.parts
    links = {} if routes is None else {"routes": [routes.name, routes.rate_kbps.tolist(), routes.link.size]}
    return links if parts is None else {**links, "segments": parts.names}


class Hops(Struct, frozen=True, kw_only=True, eq=False):
    """Hops of messages over links, by lane, then time; columns have shape (hops,) unless stated."""

    row: Int32s
    """The message's row in the timeline, which has the times of the hop."""
    place: Int32s
    """Index of the link along the message's route, from 0."""
    lane_link: Int32s
    """Shape (lanes,): the link of each lane, ascending; a link has a lane per simultaneous message."""
    lane_copy: Int32s
    """Shape (lanes,): index of the lane among the lanes of its link, from 0."""
    lane_ptr: Int64s
    """Shape (lanes + 1,): lane ``l`` has the hops ``lane_ptr[l]:lane_ptr[l + 1]``."""
    sent: Int32s
    """Shape (messages,): the rows with hops, ascending."""
    message: Int32s
    """Index of the hop's message in :attr:`sent`."""

    @classmethod
    def of(cls, timeline: Timeline) -> Self:
        """Spread a timeline's routes over lanes; without routes there are no hops."""
        routes = timeline.routes
        if routes is None or not routes.link.size:
            none = np.zeros(0, dtype=np.int32)
            return cls(row=none, place=none, lane_link=none, lane_copy=none, lane_ptr=np.zeros(1, dtype=np.int64),
                       sent=none, message=none)  # fmt: skip
        length = np.diff(routes.ptr)
        sent = np.flatnonzero(length).astype(np.int32)
        message = np.repeat(np.arange(sent.size, dtype=np.int32), length[sent])
        place = np.arange(routes.link.size, dtype=np.int32) - np.repeat(routes.ptr[:-1], length)
        order = _by_link_and_time(timeline, routes.link, sent, message)
        link, hops = np.unique(routes.link, return_counts=True)
        copy, lanes = _spread(timeline, sent[message[order]], hops)
        first_lane = np.cumsum(lanes) - lanes
        lane = np.repeat(first_lane, hops) + copy
        order = order[np.argsort(lane, kind="stable")]
        return cls(
            row=sent[message[order]],
            place=place[order],
            lane_link=np.repeat(link, lanes),
            lane_copy=(np.arange(int(lanes.sum())) - np.repeat(first_lane, lanes)).astype(np.int32),
            lane_ptr=np.concatenate([[0], np.cumsum(np.bincount(lane))]),
            sent=sent,
            message=message[order],
        )

    def __len__(self) -> int:
        return int(self.row.size)

    @property
    def link(self) -> Int32s:
        """The link of each hop."""
        return np.repeat(self.lane_link, np.diff(self.lane_ptr))


def column_defaults(duration_ns: Int64s) -> dict[str, Int64s | int]:
    """Return the defaults of columns that files have only where a value differs, for rows of given durations."""
    return {
        "span": 1, "lag_ns": 0, "uncontended_ns": duration_ns, "collective_ns": 0, "size_bytes": 0, "pair": -1,
    }  # fmt: skip


def link_title(routes: Routes, link: int) -> str:
    """Return a link's name with its capacity, such as ``leaf0>spine2 (50 GB/s)``."""
    name, rate_kbps = routes.name[link], int(routes.rate_kbps[link])
    return f"{name} ({format_rate(rate_kbps * 1000)})" if rate_kbps > 0 else name


def _by_link_and_time(timeline: Timeline, link: Int32s, sent: Int32s, message: Int32s) -> Int64s:
    """Return the order of hops by link, then by their messages' starts and ends, then along the route."""
    rank = np.empty(sent.size, dtype=np.int64)
    rank[np.lexsort((timeline.end_ns[sent], timeline.start_ns[sent]))] = np.arange(sent.size)
    return np.argsort(link * np.int64(sent.size) + rank[message], kind="stable")


def _spread(timeline: Timeline, row: Int32s, hops: Int64s) -> tuple[Int64s, Int64s]:
    """Return the lane of each hop among its link's lanes, and the number of lanes of each link."""
    lane, lanes = np.zeros(row.size, dtype=np.int64), np.zeros(hops.size, dtype=np.int64)
    until = np.zeros(int(hops.max()), dtype=np.int64)
    ptr = np.concatenate([[0], np.cumsum(hops)])
    run(assign_lanes, [ptr, timeline.start_ns[row], timeline.end_ns[row]], [until, lane, lanes], work=row.size)
    return lane, lanes


def peers_of(timeline: Timeline, rows: NDArray[np.integer]) -> Int32s:
    """Return :attr:`Scene.peer` of the given rows."""
    peer: Int32s = Scene(timeline=timeline).peer[rows]
    return peer


class Peers(Struct, frozen=True, kw_only=True):
    """The neighbours of each stage on each route; -1 where a stage has no or several neighbours."""

    microbatch_route: Int32s
    """Shape (microbatches,): each microbatch's route."""
    after: Int32s
    """Shape (passes, routes, stages): the rank of the next stage's forward, and of its backward."""
    before: Int32s
    """Shape (passes, routes, stages): those of the previous stage."""

    @classmethod
    def of(cls, placement: Placement) -> Self:
        """Find the neighbours along the placement's edges."""
        source, target = placement.edges[:, 0], placement.edges[:, 1]
        return cls(
            microbatch_route=placement.microbatch_route,
            after=np.stack([_unique_neighbour(ranks, source, target) for ranks in placement.pass_ranks]),
            before=np.stack([_unique_neighbour(ranks, target, source) for ranks in placement.pass_ranks]),
        )

    def of_rows(self, timeline: Timeline, rows: NDArray[np.integer]) -> Int32s:
        """Return the peer of each row's message, by its stage, microbatch and direction."""
        microbatch, stage = timeline.microbatch[rows], timeline.stage[rows]
        known = (microbatch >= 0) & (microbatch < self.microbatch_route.size) & (stage < self.after.shape[2])
        route = np.zeros_like(microbatch)
        route[known] = self.microbatch_route[microbatch[known]]
        stage = np.where(known, stage, 0)
        onward, of_pass = TOWARDS_NEXT[timeline.kind[rows]], TABLE.with_backward[timeline.kind[rows]]
        peer = np.where(onward, self.after[of_pass, route, stage], self.before[of_pass, route, stage])
        return np.where(known, peer, np.int32(-1))


def _unique_neighbour(stage_rank: Int32s, stage: Int32s, neighbour: Int32s) -> Int32s:
    """Return the rank of each stage's neighbour on each route, -1 unless the stage has exactly one neighbour."""
    route, edge = np.nonzero((stage_rank[:, stage] >= 0) & (stage_rank[:, neighbour] >= 0))
    count = np.zeros_like(stage_rank)
    np.add.at(count, (route, stage[edge]), 1)
    rank = np.full_like(stage_rank, -1)
    rank[route, stage[edge]] = stage_rank[route, neighbour[edge]]
    return np.where(count == 1, rank, np.int32(-1))
