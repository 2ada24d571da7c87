"""Computations of a step: durations, host gaps and arrivals of inputs.

A timeline is split into durations of computations, host gaps before them, and transfer times of messages. A replay
of the same order with these times reproduces the step. A replay with times of another step shows their effect.

A receive that does not wait does not record the arrival of its message; the call alone takes 50 to 200 us on a
host. The message arrives between the moment both ends are ready and the end of the receive. An arrival counts as
observed where the receiver waits for at least half of that interval. Otherwise it was earlier, more likely. The
message then gets the usual transfer time of its link, and the wait counts as host time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from pptrace.sim.task_graph import ActionTimes
from pptrace.steps.actions import CELL, Cells
from pptrace.steps.columns import Int32s, Int64s, difference, find
from pptrace.steps.kinds import COMMUNICATION, RECEIVES, TOWARDS_NEXT, Kind, Pass, Stream, message_kind
from pptrace.steps.schedule import Schedule
from pptrace.timeline.actions import folded
from pptrace.timeline.messages import compute_rows, messages

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from pptrace.steps.actions import CellColumns
    from pptrace.steps.placement import Placement
    from pptrace.timeline.messages import Messages
    from pptrace.timeline.timeline import Timeline

_SENDER = np.array(
    [
        message_kind(sends=True, forward=kind.traits.direction is Pass.FORWARD) if kind in RECEIVES else kind
        for kind in Kind
    ],
    dtype=np.int8,
)
"""By kind of a receive, the kind of its send; other kinds are unchanged."""
_ONCE_PER_MICROBATCH = ([Kind.F], [Kind.B, Kind.I])
"""Kinds that every stage computes once for each microbatch; their results go to other stages."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfers(Cells):
    """One value per message, identified by its send."""

    source: Int32s
    """The sending rank."""
    target: Int32s
    """The receiving rank."""
    size_bytes: Int64s
    """Size; 0 where unknown."""
    duration_ns: Int64s
    """Time from both ends ready to arrival; -1 where unknown."""
    blocked_ns: Int64s
    """Other time between the end of the producer and the start of the consumer: until both ends were ready, and
    until other messages of the same kernel arrived. 0 where unknown."""
    observed: NDArray[np.bool_]
    """Whether the arrival is known: the consumer waited for it, or a simulation recorded it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Computations(Cells):
    """One value per computation, by rank, then in execution order."""

    placement: Placement
    """The ranks of the stages."""
    rank: Int32s
    """The rank."""
    row: Int64s
    """Its row in the timeline; of two merged rows, the second."""
    start_ns: Int64s
    """Its start."""
    end_ns: Int64s
    """Its end."""
    duration_ns: Int64s
    """Its duration; of two merged computations, the sum."""
    gap_ns: Int64s
    """Time from its rank free and its inputs present to its start."""
    collective_ns: Int64s
    """The part of its duration in collectives of its tensor-, context- or expert-parallel group."""
    waited: NDArray[np.bool_]
    """Whether it waited for a message, so that the host gap before it is unknown."""
    outside: NDArray[np.bool_]
    """Whether it waited for an unrecorded computation, so that its gap is no host gap."""
    transfers: Transfers
    """The messages between ranks."""

    @property
    def order(self) -> Schedule:
        """The table of the computations."""
        ptr = np.searchsorted(self.rank, np.arange(self.placement.ranks + 1))
        return Schedule.of_cells(self.placement, ptr, self.cells)

    @property
    def places(self) -> Int64s:
        """The index of each in an array of kinds x stages x microbatches."""
        stages, microbatches = self.placement.stages, self.placement.microbatches
        places: Int64s = (self.kind.astype(np.int64) * stages + self.stage) * microbatches + self.microbatch
        return places

    @property
    def span_ns(self) -> int:
        """Time from the first start to the last end."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self) else 0

    def equals(self, other: Computations) -> bool:
        """Return whether another step has the same computations and messages at the same times."""
        columns = ("rank", *CELL, "start_ns", "end_ns", "duration_ns", "gap_ns")
        of_messages = ("source", "target", "kind", "stage", "microbatch", "size_bytes", "duration_ns")
        return not (difference(self, other, columns) or difference(self.transfers, other.transfers, of_messages))

    @property
    def host_gap_ns(self) -> Int64s:
        """The host gaps; 0 before computations that depend on unrecorded ones."""
        return np.where(self.outside, 0, self.gap_ns)

    @property
    def host_gaps_ns(self) -> Int64s:
        """The gaps that only the host caused, without those before the first action of a rank."""
        follows = np.diff(self.rank, prepend=-1) == 0
        gaps: Int64s = self.gap_ns[follows & ~self.waited & ~self.outside]
        return gaps

    @property
    def partial(self) -> bool:
        """Whether computations are missing, of unrecorded ranks or of recorded ones."""
        cells = self.placement.stages * self.placement.microbatches
        forwards, backwards = (int(self.span[np.isin(self.kind, kinds)].sum()) for kinds in _ONCE_PER_MICROBATCH)
        return bool(self.outside.any()) or not forwards == backwards == cells

    @property
    def lacks_ranks(self) -> bool:
        """Whether a rank of the pipeline has no computation."""
        return bool(np.setdiff1d(np.arange(self.placement.ranks), self.rank).size)

    def renumbered(self, numbers: Sequence[int], ranks: int) -> Self:
        """Return a copy with other, ascending rank numbers, in a pipeline of ``ranks`` ranks."""
        new = np.array(numbers, dtype=np.int32)
        table = self.placement.stage_rank
        placement = replace(self.placement, ranks=ranks, stage_rank=np.where(table >= 0, new[table], -1))
        transfers = replace(self.transfers, source=new[self.transfers.source], target=new[self.transfers.target])
        return replace(self, placement=placement, rank=new[self.rank], transfers=transfers)

    def folded(self, stages: Collection[int]) -> Self:
        """Return a copy in which input and weight gradients of some stages are one backward.

        This is valid for first stages only, whose input gradient has no consumer.
        """
        if not stages:
            return self
        chosen = np.isin(self.stage, list(stages))
        first, second = chosen & (self.kind == Kind.I), chosen & (self.kind == Kind.W)
        gradient_ns = np.zeros((self.placement.stages, self.placement.microbatches), dtype=np.int64)
        gradient_ns[self.stage[first], self.microbatch[first]] = self.duration_ns[first]
        duration = self.duration_ns + np.where(second, gradient_ns[self.stage, self.microbatch], 0)
        merged = replace(self, kind=np.where(second, np.int8(Kind.B), self.kind), duration_ns=duration)
        columns = {field.name: getattr(merged, field.name) for field in fields(merged)}
        kept = {name: values[~first] for name, values in columns.items() if isinstance(values, np.ndarray)}
        return replace(merged, **kept)

    def times(
        self, *, durations: Self | None = None, transfers: Self | None = None, gaps: Self | None = None,
        holds: Self | None = None, held: bool = True,
    ) -> ActionTimes:  # fmt: skip
        """Return times by action; a given step replaces one kind of times where it has the same action.

        Args:
            durations: the step with the durations of computations.
            transfers: the step with the transfer times.
            gaps: the step with the host gaps.
            holds: the step with the blocked times of messages.
            held: whether transfer times include blocked times.
        """
        sends = [
            (_sends(step.transfers, self.placement), step.transfers, column)
            for column, other in (("duration_ns", transfers), ("blocked_ns", holds))
            for step in (self, other)
            if step is not None
        ]
        place = np.unique(np.concatenate([self.places, *(places for places, _, _ in sends)]))
        duration, transfer = (np.full(place.size, -1, dtype=np.int64) for _ in range(2))
        gap, hold = (np.zeros(place.size, dtype=np.int64) for _ in range(2))
        for times, column, other in ((duration, "duration_ns", durations), (gap, "gap_ns", gaps)):
            times[find(place, self.places)] = getattr(self, column)
            if other is not None:
                there = np.isin(other.places, self.places)
                times[find(place, other.places[there])] = getattr(other, column)[there]
        for places, moves, column in sends:
            times, index = transfer if column == "duration_ns" else hold, find(place, places)
            times[index] = np.where(moves.duration_ns >= 0, getattr(moves, column), times[index])
        if held:
            transfer = np.where(transfer >= 0, transfer + hold, transfer)
        return ActionTimes(place=place, duration_ns=duration, gap_ns=gap, transfer_ns=transfer)


class Extent(NamedTuple):
    """The number of computations of a step and the time that they span."""

    computations: int
    span_ns: int


def extent(timeline: Timeline) -> Extent:
    """Return the number of computations and their span, without extracting them."""
    timeline = folded(timeline)
    rows = np.concatenate([*compute_rows(timeline), np.zeros(0, dtype=np.int64)]).astype(np.int64)
    span = int(timeline.end_ns[rows].max() - timeline.start_ns[rows].min()) if rows.size else 0
    return Extent(rows.size, span)


def extract_computations(timeline: Timeline, *, lacks_ranks: bool = False) -> Computations:
    """Return the computations of a step, with segments merged into actions.

    Args:
        timeline: the step.
        lacks_ranks: whether recordings of ranks are missing.
    """
    timeline = folded(timeline)
    by_rank = compute_rows(timeline)
    rows = np.concatenate(by_rank) if by_rank else np.zeros(0, dtype=np.int64)
    before = np.zeros(len(timeline), dtype=np.int64)
    for row in by_rank:
        before[row[1:]] = timeline.end_ns[row[:-1]]
    pairs = messages(timeline)
    found = arrivals(timeline, pairs, before)
    ready = before.copy()
    np.maximum.at(ready, found.consumer, found.arrival_ns)
    released, waited = is_released_by_message(timeline), np.zeros(len(timeline), dtype=np.bool_)
    released[pairs.consumer[(pairs.consumer >= 0) & (pairs.producer < 0)]] = (
        False  # nothing else records these waits
    )
    seen = found.observed & (released[found.consumer] | (timeline.cause[found.consumer] < 0))
    waited[found.consumer[seen]] = True
    first = np.concatenate([[0], np.cumsum([row.size for row in by_rank])[:-1]]).astype(np.int64)
    gap = np.where(released, 0, np.maximum(timeline.start_ns - ready, 0))[rows]
    cells = timeline.cells.taken(rows)
    outside = depends_on_missing(cells, timeline.placement, lacks_ranks=lacks_ranks)
    first = first[first < rows.size]
    since = timeline.start_ns[rows[first]] - min(timeline.start_ns[rows], default=0)
    # Before the first action of a rank is no host gap, but possibly a wait for an unrecorded computation.
    gap[first] = np.where(outside[first], np.minimum(gap[first], since), 0)
    return Computations(
        **cells._asdict(), placement=timeline.placement, rank=timeline.rank_of_row()[rows],
        row=rows, start_ns=timeline.start_ns[rows], end_ns=timeline.end_ns[rows],
        duration_ns=(timeline.end_ns - timeline.start_ns)[rows], gap_ns=gap,
        collective_ns=timeline.collective_ns[rows], waited=waited[rows],
        outside=outside,
        transfers=_transfers(timeline, found),
    )  # fmt: skip


def _sends(transfers: Transfers, placement: Placement) -> Int64s:
    """Return the index of each send in kinds x stages x microbatches; 0 where the placement lacks it."""
    here = (transfers.stage < placement.stages) & (transfers.microbatch < placement.microbatches)
    cells: Int64s = (
        transfers.kind.astype(np.int64) * placement.stages + transfers.stage
    ) * placement.microbatches + transfers.microbatch
    return np.where(here, cells, 0)


def _transfers(timeline: Timeline, found: Arrivals) -> Transfers:
    cells, rank, size = timeline.cells.taken(found.row), timeline.rank_of_row(), timeline.size_bytes
    received, ahead = RECEIVES.mask(cells.kind), TOWARDS_NEXT.mask(cells.kind)
    cells = cells._replace(
        kind=_SENDER[cells.kind], stage=cells.stage + np.where(received, np.where(ahead, 1, -1), 0)
    )
    return Transfers(
        **cells._asdict(), source=rank[found.producer], target=rank[found.consumer],
        size_bytes=np.maximum(size[found.row], np.where(found.send >= 0, size[found.send], 0)),
        duration_ns=found.duration_ns, blocked_ns=found.blocked_ns, observed=found.observed,
    )  # fmt: skip


def depends_on_missing(cells: CellColumns, placement: Placement, *, lacks_ranks: bool) -> NDArray[np.bool_]:
    """Return which computations need an activation or a gradient of a computation that is missing.

    Args:
        cells: the computations.
        placement: their stages.
        lacks_ranks: whether ranks are missing, so that stages can follow the last known one.
    """
    needs = np.zeros(cells.kind.size, dtype=np.bool_)
    if not cells.kind.size:
        return needs
    away = np.stack([placement.edges, placement.edges[:, ::-1]])
    for kinds, edges in zip(_ONCE_PER_MICROBATCH, away, strict=True):
        rows = np.flatnonzero(np.isin(cells.kind, kinds) & (cells.microbatch >= 0))
        needs[rows] = _lacks_maker(cells.taken(rows), placement, edges)
    if lacks_ranks:
        lasts = np.setdiff1d(np.arange(placement.stages), placement.edges[:, 0])
        needs |= np.isin(cells.kind, _ONCE_PER_MICROBATCH[1]) & np.isin(cells.stage, lasts)
    return needs


def _lacks_maker(cells: CellColumns, placement: Placement, edges: Int32s) -> NDArray[np.bool_]:
    """Return which computations of one pass lack one of those that their stage takes a result from.

    Args:
        cells: all computations of the pass; each is one of a stage from its first microbatch on.
        placement: their stages.
        edges: shape (edges, 2): the stage that makes a result, and the one that takes it.
    """
    width = placement.microbatches + 1
    stage, microbatch = cells.stage.astype(np.int64), cells.microbatch.astype(np.int64)
    first = stage * width + microbatch
    starts, ends = np.sort(first), np.sort(np.minimum(first + cells.span, stage * width + width - 1))
    cell, cell_of_row = np.unique(first, return_inverse=True)
    by_taker = edges[np.argsort(edges[:, 1], kind="stable")].astype(np.int64)
    begin, end = (np.searchsorted(by_taker[:, 1], cell // width, side=side) for side in ("left", "right"))
    asking = np.repeat(np.arange(cell.size), end - begin)
    maker = by_taker[np.arange(asking.size) + (end - np.cumsum(end - begin))[asking], 0]
    needed = maker * width + cell[asking] % width
    made = np.searchsorted(starts, needed, side="right") > np.searchsorted(ends, needed, side="right")
    lacking = np.zeros(cell.size, dtype=np.bool_)
    lacking[asking[~made & _exists(placement, maker, cell[asking] % width)]] = True
    return lacking[cell_of_row]


def _exists(placement: Placement, stage: Int64s, microbatch: Int64s) -> NDArray[np.bool_]:
    """Return whether each microbatch's route has a stage; a stage that no route has is missing."""
    nowhere: NDArray[np.bool_] = np.all(placement.stage_rank < 0, axis=0)
    return nowhere[stage] | (placement.stage_rank[placement.microbatch_route[microbatch], stage] >= 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One value per message with a known producer and consumer."""

    producer: Int32s
    """The row of its producer."""
    consumer: Int32s
    """The row of its consumer."""
    row: Int32s
    """Its own row: its receive where recorded, else its send."""
    send: Int32s
    """The row of its send, -1 where there is none."""
    duration_ns: Int64s
    """Time from both ends ready to arrival."""
    blocked_ns: Int64s
    """Other time between producer and consumer, as in :attr:`Transfers.blocked_ns`."""
    observed: NDArray[np.bool_]
    """Whether the arrival is known."""
    arrival_ns: Int64s
    """Its arrival."""


def arrivals(timeline: Timeline, pairs: Messages, before: Int64s) -> Arrivals:
    """Return the arrivals of the messages of a step.

    Args:
        timeline: the step.
        pairs: its messages.
        before: per row, the end of the previous computation of the rank.
    """
    known = (pairs.producer >= 0) & (pairs.consumer >= 0)
    producer, consumer, send, recv = (
        column[known] for column in (pairs.producer, pairs.consumer, pairs.send, pairs.recv)
    )
    rows = np.where(recv >= 0, recv, send)
    there = timeline.end_ns[rows] + timeline.lag_ns[rows]
    # Simulations and GPU recordings have causes of slices, and the time when both ends were ready.
    caused = timeline.cause[consumer] >= 0
    ready = np.where(caused, timeline.start_ns[rows], np.where(recv >= 0, timeline.enter_ns[rows], 0))
    left = np.where(caused, timeline.end_ns[producer], _left_ns(timeline, producer, send))
    ready = np.maximum(ready, left)
    took = np.maximum(there - ready, 0)
    held = np.where(caused, ready, left) - timeline.end_ns[producer]
    joined = caused & is_released_by_message(timeline)[consumer]
    held[joined] += np.maximum(timeline.start_ns[consumer] - there, 0)[joined]
    enter = timeline.enter_ns[consumer]
    looked = np.maximum(before[consumer], np.where(enter < timeline.start_ns[consumer], enter, 0))
    watched = there - looked
    observed = caused | ((watched > 0) & (2 * watched >= took))
    took = _usual_durations(took, observed, timeline.rank_of_row()[producer], timeline.rank_of_row()[consumer])
    return Arrivals(
        producer=producer, consumer=consumer, row=rows, send=send, duration_ns=took, blocked_ns=held,
        observed=observed, arrival_ns=np.where(observed, there, ready + took),
    )  # fmt: skip


def _left_ns(timeline: Timeline, producer: Int32s, send: Int32s) -> Int64s:
    """Return the earliest departure of each message: the end of its producer, or of the overlapped pair.

    The end of the pair counts where the host posts the send after the pair. The end of the first member is only an
    estimate inside the pair.
    """
    paired = timeline.pair >= 0
    pair = np.where(paired, timeline.rank_of_row().astype(np.int64) * len(timeline) + timeline.pair, -1)
    ends = timeline.end_ns.copy()
    if paired.any():
        numbers, place = np.unique(pair, return_inverse=True)
        last = np.full(numbers.size, np.iinfo(np.int64).min)
        np.maximum.at(last, place.reshape(-1), timeline.end_ns)
        ends = np.where(paired, last[place.reshape(-1)], ends)
    posted = np.where(send >= 0, timeline.enter_ns[send], 0)
    own: Int64s = timeline.end_ns[producer]
    return np.where(posted >= ends[producer], ends[producer], own)


def _usual_durations(took: Int64s, observed: NDArray[np.bool_], source: Int32s, target: Int32s) -> Int64s:
    """Return transfer times; unobserved ones are at most the median of the observed ones of the same link.

    A link without observed messages uses the median over all links, or its own minimum where nothing is observed.
    """
    durations = took.copy()
    link = source.astype(np.int64) * (int(target.max(initial=0)) + 1) + target
    for number in np.unique(link[~observed]):
        same = link == number
        seen = took[same & observed] if (same & observed).any() else took[observed]
        usual = int(np.median(seen)) if seen.size else int(took[same].min())
        unseen = same & ~observed
        durations[unseen] = np.minimum(took[unseen], usual)
    return durations


def is_released_by_message(timeline: Timeline) -> NDArray[np.bool_]:
    """Return, per row, whether its recorded cause is a message."""
    off_compute = timeline.lane_stream[timeline.lane_of_row()] != Stream.COMPUTE
    is_message = COMMUNICATION.mask(timeline.kind) & off_compute
    released: NDArray[np.bool_] = np.append(is_message, False)[timeline.cause]
    return released
