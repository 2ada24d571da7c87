"""A step's computations and messages, each with its own time: what a replay needs, and what a diff compares.

The times of a timeline are taken apart so that a replay of the same order gives the step again, and a replay with
another's times says what those change: a computation's duration, the gap that the host left before it, the way of
a message from when both ends were ready until it was there.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

import numpy as np

from pptrace.analysis.steps.arrivals import arrivals, released_by_messages
from pptrace.analysis.steps.unrecorded import needs_unrecorded
from pptrace.model.cells import CELL, Cells
from pptrace.model.columns import Int32s, Int64s, difference, find
from pptrace.model.kinds import RECEIVES, TOWARDS_NEXT, Kind, Pass, message_kind
from pptrace.schedule.table import Schedule
from pptrace.sim.action_times import ActionTimes
from pptrace.timeline.folded import folded
from pptrace.timeline.messages import messages
from pptrace.timeline.order import compute_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from pptrace.analysis.steps.arrivals import Arrivals
    from pptrace.model.placement import Placement
    from pptrace.timeline.timeline import Timeline

__all__ = ["Performed", "Transfers", "performed"]

_SENDER = np.array(
    [
        message_kind(sends=True, forward=kind.traits.direction is Pass.FORWARD) if kind in RECEIVES else kind
        for kind in Kind
    ],
    dtype=np.int8,
)
"""By kind, that of the sender's side of a message; any other kind stays."""
_EACH = ([Kind.F], [Kind.B, Kind.I])
"""What every stage computes once for each microbatch."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Transfers(Cells):
    """One value per message, each the send of its stage."""

    source: Int32s
    """The sending rank."""
    target: Int32s
    """The receiving rank."""
    size_bytes: Int64s
    """Its size; 0 where unknown."""
    took_ns: Int64s
    """From when both ends were ready until it was there; -1 where unknown."""
    held_ns: Int64s
    """What else lay between its producer's end and its consumer's start for its sake: until both ends were ready,
    and until whatever it shared its kernel with was there. 0 where that is not known."""
    observed: NDArray[np.bool_]
    """Whether its arrival was seen: its consumer waited for it, or a simulation knows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Performed(Cells):
    """One value per computation, rank by rank, in the order in which they ran."""

    placement: Placement
    """Where each stage is."""
    rank: Int32s
    """The rank."""
    row: Int64s
    """Its row in the timeline; of two that are folded, the second's."""
    start_ns: Int64s
    """When it started."""
    end_ns: Int64s
    """When it ended."""
    duration_ns: Int64s
    """What it took; of two that are folded, both in sum."""
    gap_ns: Int64s
    """From when it could start, its rank free and its inputs there, to its start."""
    collective_ns: Int64s
    """The part of its duration in which it waited for its rank's own group."""
    waited: NDArray[np.bool_]
    """Whether it is known to have waited for a message, so that nobody saw what its host did meanwhile."""
    outside: NDArray[np.bool_]
    """Whether it waited for what nobody recorded, so that its gap is that wait, and not the host's."""
    transfers: Transfers
    """The messages between ranks."""

    @property
    def order(self) -> Schedule:
        """The table of what was computed."""
        ptr = np.searchsorted(self.rank, np.arange(self.placement.ranks + 1))
        return Schedule.of_cells(self.placement, ptr, self.cells)

    @property
    def places(self) -> Int64s:
        """The place of each among all kinds, stages and microbatches."""
        stages, microbatches = self.placement.stages, self.placement.microbatches
        places: Int64s = (self.kind.astype(np.int64) * stages + self.stage) * microbatches + self.microbatch
        return places

    @property
    def span_ns(self) -> int:
        """From the first one's start to the last one's end."""
        return int(self.end_ns.max() - self.start_ns.min()) if len(self) else 0

    def equals(self, other: Performed) -> bool:
        """Return whether another step did the same at the same times, to the nanosecond, on the same ranks."""
        columns = ("rank", *CELL, "start_ns", "end_ns", "duration_ns", "gap_ns")
        of_messages = ("source", "target", "kind", "stage", "microbatch", "size_bytes", "took_ns")
        return not (difference(self, other, columns) or difference(self.transfers, other.transfers, of_messages))

    @property
    def host_gap_ns(self) -> Int64s:
        """The gaps that the host left; 0 where one is a wait for what nobody recorded."""
        return np.where(self.outside, 0, self.gap_ns)

    @property
    def host_gaps_ns(self) -> Int64s:
        """The gaps of actions that nothing but the host held up; those of ranks' first ones are none."""
        follows = np.diff(self.rank, prepend=-1) == 0
        gaps: Int64s = self.gap_ns[follows & ~self.waited & ~self.outside]
        return gaps

    @property
    def partial(self) -> bool:
        """Whether computations are missing: of ranks that nobody recorded, or of what one of them did."""
        cells = self.placement.stages * self.placement.microbatches
        forwards, backwards = (int(self.span[np.isin(self.kind, kinds)].sum()) for kinds in _EACH)
        return bool(self.outside.any()) or not forwards == backwards == cells

    @property
    def lacks_ranks(self) -> bool:
        """Whether ranks are missing whose recordings nobody has."""
        return bool(np.setdiff1d(np.arange(self.placement.ranks), self.rank).size)

    @property
    def lacks_stages(self) -> bool:
        """Whether nobody computed on some stage."""
        return bool(np.setdiff1d(np.arange(self.placement.stages), self.stage).size)

    def renumbered(self, numbers: Sequence[int], ranks: int) -> Self:
        """Return this with other, ascending numbers for its ranks, of ``ranks`` in all."""
        new = np.array(numbers, dtype=np.int32)
        table = self.placement.stage_rank
        placement = replace(self.placement, ranks=ranks, stage_rank=np.where(table >= 0, new[table], -1))
        transfers = replace(self.transfers, source=new[self.transfers.source], target=new[self.transfers.target])
        return replace(self, placement=placement, rank=new[self.rank], transfers=transfers)

    def folded(self, stages: Collection[int]) -> Self:
        """Return this with each input gradient of some stages made one backward with its weight gradient.

        Only stages whose gradient goes nowhere can be folded: nothing then waits for the first of the two.
        """
        chosen = np.isin(self.stage, list(stages))
        first, second = chosen & (self.kind == Kind.I), chosen & (self.kind == Kind.W)
        earlier = dict(
            zip(zip(self.stage[first], self.microbatch[first], strict=True), self.duration_ns[first], strict=True)
        )
        duration = self.duration_ns.copy()
        for index in np.flatnonzero(second).tolist():
            duration[index] += earlier.get((self.stage[index], self.microbatch[index]), 0)
        kind = np.where(second, np.int8(Kind.B), self.kind)
        columns = {name.name: getattr(self, name.name) for name in fields(self)}
        columns |= {"kind": kind, "duration_ns": duration}
        kept = {
            name: values[~first] if isinstance(values, np.ndarray) else values for name, values in columns.items()
        }
        return type(self)(**kept)

    def times(
        self, *, durations: Self | None = None, transfers: Self | None = None, gaps: Self | None = None,
        holds: Self | None = None, held: bool = True,
    ) -> ActionTimes:  # fmt: skip
        """Return times by action, each sort from another step where one is given; what it lacks stays ours.

        Messages take what held them (``holds``) too, unless ``held`` is false.
        """
        sends = [
            (_sends(step.transfers, self.placement), step.transfers, column)
            for column, other in (("took_ns", transfers), ("held_ns", holds))
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
            times, index = transfer if column == "took_ns" else hold, find(place, places)
            times[index] = np.where(moves.took_ns >= 0, getattr(moves, column), times[index])
        if held:
            transfer = np.where(transfer >= 0, transfer + hold, transfer)
        return ActionTimes(place=place, duration_ns=duration, gap_ns=gap, transfer_ns=transfer)


def performed(timeline: Timeline, *, lacks_ranks: bool = False) -> Performed:
    """Take a step's times apart; :mod:`pptrace.analysis.steps.arrivals` says when messages were there.

    Actions in segments are taken whole.

    Args:
        timeline: the step.
        lacks_ranks: whether ranks are missing from it whose recordings nobody has.
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
    np.maximum.at(ready, found.consumer, found.there_ns)
    released, waited = released_by_messages(timeline), np.zeros(len(timeline), dtype=np.bool_)
    released[pairs.consumer[(pairs.consumer >= 0) & (pairs.producer < 0)]] = False  # their waits are all there is
    seen = found.observed & (released[found.consumer] | (timeline.cause[found.consumer] < 0))
    waited[found.consumer[seen]] = True
    first = np.concatenate([[0], np.cumsum([row.size for row in by_rank])[:-1]]).astype(np.int64)
    gap = np.where(released, 0, np.maximum(timeline.start_ns - ready, 0))[rows]
    cells = timeline.cells.taken(rows)
    outside = needs_unrecorded(cells, timeline.placement, lacks_ranks=lacks_ranks)
    first = first[first < rows.size]
    since = timeline.start_ns[rows[first]] - min(timeline.start_ns[rows], default=0)
    # What comes before a rank's first action is no gap between two, but may be a wait that nobody recorded.
    gap[first] = np.where(outside[first], np.minimum(gap[first], since), 0)
    return Performed(
        **cells._asdict(), placement=timeline.placement, rank=timeline.rank_of_row()[rows],
        row=rows, start_ns=timeline.start_ns[rows], end_ns=timeline.end_ns[rows],
        duration_ns=(timeline.end_ns - timeline.start_ns)[rows], gap_ns=gap,
        collective_ns=timeline.collective_ns[rows], waited=waited[rows],
        outside=outside,
        transfers=_transfers(timeline, found),
    )  # fmt: skip


def _sends(transfers: Transfers, placement: Placement) -> Int64s:
    """Return the cell of each message's send; those of stages and microbatches that are not here, none."""
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
        took_ns=found.took_ns, held_ns=found.held_ns, observed=found.observed,
    )  # fmt: skip
