"""Computations of a step: durations, host gaps and arrivals of inputs.

A timeline is split into durations of computations, host gaps before them, and transfer times of messages. A replay
of the same order with these times reproduces the step. A replay with times of another step shows their effect.

A receive that does not wait does not record the arrival of its message; the call alone takes 50 to 200 us on a
host. The message arrives between the moment both ends are ready and the end of the receive. An arrival counts as
observed where the receiver waits for at least half of that interval. Otherwise the arrival was probably earlier.
Then the message has the usual transfer time of its link, and the wait counts as host time.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec.structs import asdict, replace

from pptrace.sim.task_graph import ActionTimes
from pptrace.steps.actions import CELL, Cells
from pptrace.steps.columns import Int32s, Int64s, difference, find
from pptrace.steps.kinds import COMMUNICATION, RECEIVES, RECOMPUTES, TOWARDS_NEXT, Kind, Pass, Stream, message_kind
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


class Transfers(Cells, frozen=True, kw_only=True):
    """One value per message, identified by its send."""

    source: Int32s
    target: Int32s
    size_bytes: Int64s
    """Size; 0 where unknown."""
    duration_ns: Int64s
    """Time from both ends ready to arrival; -1 where unknown."""
    blocked_ns: Int64s
    """Other time between the end of the producer and the start of the consumer: until both ends were ready, and
    until other messages of the same kernel arrived. 0 where unknown."""
    late_ns: Int64s
    """Time from its departure to the post of its receive. A message that does not wait for its receiver took that
    much longer than ``duration_ns``."""
    observed: NDArray[np.bool_]
    """Whether the arrival is known: the consumer waited for it, or a simulation recorded it."""


class Computations(Cells, frozen=True, kw_only=True):
    """One value per computation, by rank, then in execution order."""

    placement: Placement
    rank: Int32s
    row: Int64s
    """Its row in the timeline; of two merged rows, the second."""
    start_ns: Int64s
    end_ns: Int64s
    duration_ns: Int64s
    """Its duration; of two merged computations, the sum."""
    gap_ns: Int64s
    """Time from its rank free and its inputs present to its start."""
    late_ns: Int64s
    """Time from its rank free to the arrival of its input, because its receive was posted after the departure; a
    replay in which messages do not wait for their receivers lacks it."""
    issue_ns: Int64s
    """Time from its rank free until the host had issued the messages before it and entered it; -1 where unknown.
    Where it waited for no message, the gap has it too."""
    host_ns: Int64s
    """The part of its duration before its first and after its last operator of the host; -1 where unknown."""
    collective_ns: Int64s
    """The part of its duration in collectives of its tensor-, context- or expert-parallel group."""
    waited: NDArray[np.bool_]
    """Whether it waited for a message, so that the gap before it is no host gap."""
    outside: NDArray[np.bool_]
    """Whether it waited for an unrecorded computation, so that its gap is no host gap."""
    transfers: Transfers
    """The messages between ranks."""
    recompute_waits: bool = False
    """Whether recomputed forwards wait for the messages of their backwards."""

    @property
    def order(self) -> Schedule:
        """The table of the computations."""
        ptr = np.searchsorted(self.rank, np.arange(self.placement.ranks + 1))
        order = Schedule.of_cells(self.placement, ptr, self.cells)
        return replace(order, recompute_waits=self.recompute_waits)

    @property
    def places(self) -> Int64s:
        """The index of each in an array of kinds x stages x microbatches."""
        return _places(self, self.placement)

    @property
    def begin_ns(self) -> int:
        """The first start; 0 without computations."""
        return int(self.start_ns.min()) if len(self) else 0

    @property
    def span_ns(self) -> int:
        """Time from the first start to the last end."""
        return int(self.end_ns.max()) - self.begin_ns if len(self) else 0

    def equals(self, other: Computations) -> bool:
        """Return whether another step has the same computations and messages at the same times."""
        columns = ("rank", *CELL, "start_ns", "end_ns", "duration_ns", "gap_ns")
        message_columns = ("source", "target", "kind", "stage", "microbatch", "size_bytes", "duration_ns")
        return not (
            difference(self, other, columns) or difference(self.transfers, other.transfers, message_columns)
        )

    @property
    def host_gap_ns(self) -> Int64s:
        """The host gaps; 0 before computations that depend on unrecorded ones."""
        return np.where(self.outside, 0, self.gap_ns)

    @property
    def issued_ns(self) -> Int64s:
        """The time of the host between the rank's previous action and this one; -1 where unknown.

        It is unknown before the first action of a rank and inside overlapped pairs. Waits for messages do not
        count, so actions that waited are not left out: those that did not wait are often those with a slow host.
        """
        follows = np.diff(self.rank, prepend=-1) == 0
        inside_pair = follows & (self.pair >= 0) & (np.diff(self.pair, prepend=-1) == 0)
        return np.where(
            follows & ~inside_pair & ~self.outside, np.where(self.waited, self.issue_ns, self.gap_ns), -1
        )

    @property
    def host_gaps_ns(self) -> Int64s:
        """The known times of :attr:`issued_ns`."""
        issued_ns = self.issued_ns
        return issued_ns[issued_ns >= 0]

    @property
    def partial(self) -> bool:
        """Whether computations are missing, of unrecorded ranks or of recorded ones."""
        cells = self.placement.stages * self.placement.microbatches
        forwards, backwards = (int(self.span[np.isin(self.kind, kinds)].sum()) for kinds in _ONCE_PER_MICROBATCH)
        return bool(self.outside.any()) or not forwards == backwards == cells

    @property
    def passes_of_ranks(self) -> Int64s:
        """The number of forwards and backwards of each rank.

        Weight gradients do not count: not every schedule has actions for them.
        """
        rows = np.isin(self.kind, [*chain(*_ONCE_PER_MICROBATCH)])
        return np.bincount(self.rank[rows], self.span[rows], self.placement.ranks).astype(np.int64)

    @property
    def lacks_ranks(self) -> bool:
        """Whether a rank of the pipeline has no computation."""
        return bool(np.setdiff1d(np.arange(self.placement.ranks), self.rank).size)

    def renumbered(self, numbers: Sequence[int], ranks: int) -> Self:
        """Return a copy with other, ascending rank numbers, in a pipeline of ``ranks`` ranks."""
        new = np.array(numbers, dtype=np.int32)
        placement = self.placement.with_ranks(np.append(new, np.int32(-1)), ranks)
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
        columns = asdict(merged).items()
        kept = {name: values[~first] for name, values in columns if isinstance(values, np.ndarray)}
        return replace(merged, **kept)

    def times(
        self, *, durations: Self | None = None, transfers: Self | None = None, gaps: Self | None = None,
        blocked: Self | None = None, late: Self | None = None, with_blocked: bool = True, with_late: bool = False,
    ) -> ActionTimes:  # fmt: skip
        """Return times by action; a given step replaces one kind of times where it has the same action.

        Args:
            durations: the step with the durations of computations.
            transfers: the step with the transfer times.
            gaps: the step with the host gaps.
            blocked: the step with the blocked times of messages.
            late: the step with the times of late receives.
            with_blocked: whether transfer times include blocked times.
            with_late: whether gaps include times of late receives.
        """
        sends = [
            (_places(step.transfers, self.placement), step.transfers, column)
            for column, other in (("duration_ns", transfers), ("blocked_ns", blocked))
            for step in (self, other)
            if step is not None
        ]
        own_places = self.places
        place = np.unique(np.concatenate([own_places, *(places for places, _, _ in sends)]))
        own_index = find(place, own_places)
        duration_ns, transfer_ns = (np.full(place.size, -1, dtype=np.int64) for _ in range(2))
        gap_ns, blocked_ns, late_ns = (np.zeros(place.size, dtype=np.int64) for _ in range(3))
        for times, column, other in (
            (duration_ns, "duration_ns", durations), (gap_ns, "gap_ns", gaps), (late_ns, "late_ns", late),
        ):  # fmt: skip
            times[own_index] = getattr(self, column)
            if other is not None:
                places = other.places
                common = np.isin(places, own_places)
                times[find(place, places[common])] = getattr(other, column)[common]
        for places, sent, column in sends:
            times, index = transfer_ns if column == "duration_ns" else blocked_ns, find(place, places)
            times[index] = np.where(sent.duration_ns >= 0, getattr(sent, column), times[index])
        if with_blocked:
            transfer_ns = np.where(transfer_ns >= 0, transfer_ns + blocked_ns, transfer_ns)
        gap_ns += late_ns if with_late else 0
        return ActionTimes(place=place, duration_ns=duration_ns, gap_ns=gap_ns, transfer_ns=transfer_ns)


def extent(timeline: Timeline) -> tuple[int, int]:
    """Return the number of computations and their span in nanoseconds, without extracting them."""
    timeline = folded(timeline)
    rows = np.concatenate([*compute_rows(timeline), np.zeros(0, dtype=np.int64)]).astype(np.int64)
    span = int(timeline.end_ns[rows].max() - timeline.start_ns[rows].min()) if rows.size else 0
    return rows.size, span


def extract_computations(
    timeline: Timeline, *, lacks_ranks: bool = False, host_ns: Int64s | None = None
) -> Computations:
    """Return the computations of a step, with segments merged into actions.

    Args:
        timeline: the step.
        lacks_ranks: whether recordings of ranks are missing.
        host_ns: shape (slices,): :attr:`Computations.host_ns` of a recorded step; None or empty where unknown.
    """
    timeline = folded(timeline)
    by_rank = compute_rows(timeline)
    rows = np.concatenate([*by_rank, np.zeros(0, dtype=np.int64)])
    previous_ns = np.zeros(len(timeline), dtype=np.int64)
    for rank_rows in by_rank:
        previous_ns[rank_rows[1:]] = timeline.end_ns[rank_rows[:-1]]
    pairs = messages(timeline)
    off_compute = timeline.lane_stream[timeline.lane_of_row()] != Stream.COMPUTE
    released = np.append(COMMUNICATION.mask(timeline.kind) & off_compute, False)[timeline.cause]
    transfers, consumer, arrival_ns, replayed_ns = _transfers(timeline, pairs, previous_ns, released)
    ready_ns, replayed_ready_ns = previous_ns.copy(), previous_ns.copy()
    np.maximum.at(ready_ns, consumer, arrival_ns)
    np.maximum.at(replayed_ready_ns, consumer, replayed_ns)
    # The gap includes waits for messages of unrecorded producers.
    released[pairs.consumer[(pairs.consumer >= 0) & (pairs.producer < 0)]] = False
    waited = np.zeros(len(timeline), dtype=np.bool_)
    waited[consumer[transfers.observed & (released[consumer] | (timeline.cause[consumer] < 0))]] = True
    gap_ns = np.where(released, 0, np.maximum(timeline.start_ns - ready_ns, 0))[rows]
    late_ns = np.maximum(np.minimum(ready_ns, timeline.start_ns) - replayed_ready_ns, 0)
    late_ns = np.where(released, 0, late_ns)[rows]
    cells = timeline.cells.taken(rows)
    outside = depends_on_missing(cells, timeline.placement, lacks_ranks=lacks_ranks)
    start_ns, end_ns, rank = timeline.start_ns[rows], timeline.end_ns[rows], timeline.rank_of_row()[rows]
    first = np.flatnonzero(np.diff(rank, prepend=-1))
    since_ns = start_ns[first] - start_ns.min(initial=np.iinfo(np.int64).max)
    # The first action of a rank has no host gap, but possibly a wait for an unrecorded computation.
    gap_ns[first] = np.where(outside[first], np.minimum(gap_ns[first], since_ns), 0)
    return Computations(
        **cells._asdict(), placement=timeline.placement, rank=rank, row=rows, start_ns=start_ns, end_ns=end_ns,
        duration_ns=end_ns - start_ns, gap_ns=gap_ns, late_ns=late_ns,
        issue_ns=_issue_ns(timeline, by_rank),
        host_ns=np.full(rows.size, -1, dtype=np.int64) if host_ns is None or not host_ns.size else host_ns[rows],
        collective_ns=timeline.collective_ns[rows], waited=waited[rows], outside=outside, transfers=transfers,
        recompute_waits=bool((released[rows] & RECOMPUTES.mask(cells.kind)).any()),
    )  # fmt: skip


def _issue_ns(timeline: Timeline, by_rank: Sequence[Int64s]) -> Int64s:
    """Return :attr:`Computations.issue_ns`, known in recordings of hosts alone.

    Their messages have no causes, and some were posted before both ends were ready. In other recordings a message
    begins with its data.
    """
    is_message = COMMUNICATION.mask(timeline.kind)
    is_message &= bool((timeline.enter_ns < timeline.start_ns)[is_message].any())
    rank_of_row, issues = timeline.rank_of_row(), [np.zeros(0, dtype=np.int64)]
    for rank, rows in enumerate(by_rank):
        start_ns, enter_ns = timeline.start_ns[rows], timeline.enter_ns[rows]
        free_ns = np.append(0, timeline.end_ns[rows[:-1]])[: rows.size]
        posts_ns = np.append(-1, np.sort(timeline.enter_ns[is_message & (rank_of_row == rank)]))
        last_post_ns = posts_ns[np.searchsorted(posts_ns, start_ns) - 1]
        is_entered, is_posted = enter_ns < start_ns, last_post_ns >= free_ns
        issued_ns = np.maximum(np.where(is_entered, enter_ns, 0), last_post_ns)
        known = (is_entered | is_posted) & (timeline.cause[rows] < 0)
        issues.append(np.where(known, np.maximum(issued_ns - free_ns, 0), -1))
    return np.concatenate(issues)


def _places(cells: Cells, placement: Placement) -> Int64s:
    """Return the index of each action in kinds x stages x microbatches; 0 where the placement lacks it."""
    stages, microbatches = placement.stages, placement.microbatches
    exists = (cells.stage < stages) & (cells.microbatch < microbatches)
    stage = cells.kind.astype(np.int64) * stages + cells.stage
    return np.where(exists, stage * microbatches + np.maximum(cells.microbatch, 0), 0)


def depends_on_missing(cells: CellColumns, placement: Placement, *, lacks_ranks: bool) -> NDArray[np.bool_]:
    """Return which computations need an activation or a gradient of a computation that is missing.

    Args:
        cells: the computations.
        placement: their stages.
        lacks_ranks: whether ranks are missing, so that stages can follow the last known stage.
    """
    is_dependent = np.zeros(cells.kind.size, dtype=np.bool_)
    if not cells.kind.size:
        return is_dependent
    for kinds, edges in zip(_ONCE_PER_MICROBATCH, (placement.edges, placement.edges[:, ::-1]), strict=True):
        rows = np.flatnonzero(np.isin(cells.kind, kinds) & (cells.microbatch >= 0))
        is_dependent[rows] = _lacks_producer(cells.taken(rows), placement, edges)
    if lacks_ranks:
        lasts = np.setdiff1d(np.arange(placement.stages), placement.edges[:, 0])
        is_dependent |= np.isin(cells.kind, _ONCE_PER_MICROBATCH[1]) & np.isin(cells.stage, lasts)
    return is_dependent


def _lacks_producer(cells: CellColumns, placement: Placement, edges: Int32s) -> NDArray[np.bool_]:
    """Return which computations of a pass lack a result that their stage consumes along an edge.

    ``edges`` are pairs of producing and consuming stage.
    """
    width = placement.microbatches + 1
    stage, microbatch = cells.stage.astype(np.int64), cells.microbatch.astype(np.int64)
    first = stage * width + microbatch
    starts, ends = np.sort(first), np.sort(np.minimum(first + cells.span, stage * width + width - 1))
    cell, cell_of_row = np.unique(first, return_inverse=True)
    by_consumer = edges[np.argsort(edges[:, 1], kind="stable")].astype(np.int64)
    begin, end = (np.searchsorted(by_consumer[:, 1], cell // width, side=side) for side in ("left", "right"))
    consumer = np.repeat(np.arange(cell.size), end - begin)
    producer = by_consumer[np.arange(consumer.size) + (end - np.cumsum(end - begin))[consumer], 0]
    needed = producer * width + cell[consumer] % width
    computed = np.searchsorted(starts, needed, side="right") > np.searchsorted(ends, needed, side="right")
    lacking = np.zeros(cell.size, dtype=np.bool_)
    # A stage on no route is missing; other stages exist only on their routes.
    unrouted = np.all(placement.stage_rank < 0, axis=0)
    routed = placement.stage_rank[placement.microbatch_route[cell[consumer] % width], producer] >= 0
    lacking[consumer[~computed & (unrouted[producer] | routed)]] = True
    return lacking[cell_of_row]


def _transfers(
    timeline: Timeline, pairs: Messages, previous_ns: Int64s, released: NDArray[np.bool_]
) -> tuple[Transfers, Int32s, Int64s, Int64s]:
    """Return the messages with known producer and consumer, the rows of their consumers, and their arrivals.

    The last column has arrivals in a replay in which messages do not wait for their receivers.

    ``previous_ns`` is the end of the previous computation of the rank; ``released`` rows have a message as cause.
    """
    known = (pairs.producer >= 0) & (pairs.consumer >= 0)
    producer, consumer, send, recv = (
        column[known] for column in (pairs.producer, pairs.consumer, pairs.send, pairs.recv)
    )
    rows, rank = np.where(recv >= 0, recv, send), timeline.rank_of_row()
    arrival_ns = timeline.end_ns[rows] + timeline.lag_ns[rows]
    # Simulations and GPU recordings have causes of slices, and the time when both ends were ready.
    caused = timeline.cause[consumer] >= 0
    departure_ns = np.where(caused, timeline.end_ns[producer], _departure_ns(timeline, producer, send))
    posted_ns = np.where(caused, timeline.start_ns[rows], np.where(recv >= 0, timeline.enter_ns[rows], 0))
    ready_ns = np.maximum(posted_ns, departure_ns)
    duration_ns = np.maximum(arrival_ns - ready_ns, 0)
    blocked_ns = np.where(caused, ready_ns, departure_ns) - timeline.end_ns[producer]
    joined = caused & released[consumer]
    blocked_ns[joined] += np.maximum(timeline.start_ns[consumer] - arrival_ns, 0)[joined]
    enter_ns = timeline.enter_ns[consumer]
    entered = enter_ns < timeline.start_ns[consumer]
    waited_ns = arrival_ns - np.maximum(previous_ns[consumer], np.where(entered, enter_ns, 0))
    observed = caused | ((waited_ns > 0) & (2 * waited_ns >= duration_ns))
    duration_ns = _usual_durations(duration_ns, observed, rank[producer], rank[consumer])
    cells, size = timeline.cells.taken(rows), timeline.size_bytes
    to_sender = np.where(TOWARDS_NEXT.mask(cells.kind), 1, -1)
    stage = cells.stage + np.where(RECEIVES.mask(cells.kind), to_sender, 0)
    transfers = Transfers(
        **cells._replace(kind=_SENDER[cells.kind], stage=stage)._asdict(),
        source=rank[producer], target=rank[consumer],
        size_bytes=np.maximum(size[rows], np.where(send >= 0, size[send], 0)),
        duration_ns=duration_ns, blocked_ns=blocked_ns, late_ns=np.where(caused, 0, ready_ns - departure_ns),
        observed=observed,
    )  # fmt: skip
    replayed_ns = timeline.end_ns[producer] + blocked_ns + duration_ns
    return transfers, consumer, np.where(observed, arrival_ns, ready_ns + duration_ns), replayed_ns


def _departure_ns(timeline: Timeline, producer: Int32s, send: Int32s) -> Int64s:
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
    ended_ns: Int64s = timeline.end_ns[producer]
    return np.where(posted >= ends[producer], ends[producer], ended_ns)


def _usual_durations(times_ns: Int64s, observed: NDArray[np.bool_], source: Int32s, target: Int32s) -> Int64s:
    """Return transfer times; unobserved times are limited to the median of observed times of the same link.

    A link without observed messages uses the median over all links, or its minimum where nothing is observed.
    """
    _, link = np.unique(source.astype(np.int64) * (int(target.max(initial=0)) + 1) + target, return_inverse=True)
    if not observed.any():
        shortest = np.full(int(link.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        np.minimum.at(shortest, link, times_ns)
        return shortest[link]
    (usual,) = group_quantiles(times_ns[observed], link[observed], int(link.max()) + 1)
    usual = np.where(np.isnan(usual), np.median(times_ns[observed]), usual).astype(np.int64)
    return np.where(observed, times_ns, np.minimum(times_ns, usual[link]))


def group_quantiles(
    values: NDArray[Any], groups: NDArray[np.integer], size: int = 0, shares: Sequence[float] = (0.5,)
) -> NDArray[np.float64]:
    """Return quantiles of the values of each group, shape (shares, groups); NaN for empty groups.

    Args:
        values: the values.
        groups: the group of each value, from 0.
        size: the number of groups; by default up to the last one with values.
        shares: the quantiles; the median by default.
    """
    count = np.bincount(groups, minlength=size)
    ordered = np.append(values[np.lexsort((values, groups))], 0).astype(np.float64)
    first = np.cumsum(count) - count
    position = np.multiply.outer(shares, np.maximum(count - 1, 0))
    lower = np.floor(position)
    weight = position - lower
    quantiles = ordered[first + lower.astype(int)] * (1 - weight)
    quantiles += ordered[first + np.ceil(position).astype(int)] * weight
    return np.where(count > 0, quantiles, np.nan)
