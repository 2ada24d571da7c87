"""The idealised table: where each action stands when every kind takes a whole number of slots."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import DeadlockError, ScheduleError
from pptrace.model.kinds import COMMUNICATION, COMPUTE, COPIES, STAGE_ENDS, Kind, KindSet, Stream
from pptrace.model.segments import Segment
from pptrace.model.workload import Workload
from pptrace.network.flat import Flat, ideal
from pptrace.schedule.policy import Policy, PolicyName
from pptrace.schedule.validate import validate
from pptrace.show.lenient import place_leniently
from pptrace.sim.simulate import simulate
from pptrace.timeline.folded import folded
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from fractions import Fraction

    from numpy.typing import NDArray

    from pptrace.model.action import Action
    from pptrace.model.placement import Placement
    from pptrace.schedule.table import Schedule
    from pptrace.timeline.timeline import Timeline

__all__ = ["Cell", "Drawing", "SlotsOfKind", "cropped", "draw"]

_DRAWN = KindSet(COMPUTE - STAGE_ENDS)
"""Kinds that take time in the idealised table."""

_ROWS = (Stream.COMPUTE, Stream.COPY_OUT, Stream.COPY_IN)
"""Streams that a rank's row shows."""

_PER_SLOT = Flat(rate_kbps=1_000_000)
"""A network on which a message of one byte takes one slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsOfKind:
    """Slots that each kind of action takes."""

    forward: int = Kind.F.traits.slots
    """A forward."""
    backward: int = Kind.B.traits.slots
    """A full backward."""
    input_gradient: int = Kind.I.traits.slots
    """A backward for the input gradient alone."""
    weight_gradient: int = Kind.W.traits.slots
    """A backward for the weight gradient alone."""

    def of(self, kind: Kind) -> int:
        """Return the slots of a kind."""
        slots: Mapping[Kind, int] = {
            Kind.F: self.forward,
            Kind.B: self.backward,
            Kind.I: self.input_gradient,
            Kind.W: self.weight_gradient,
        }
        return slots.get(kind, kind.traits.slots)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One action in the picture."""

    rank: int
    """Its row."""
    start: int
    """Its first slot."""
    length: int
    """Its slots."""
    action: Action
    """What it is."""
    route: int
    """Its microbatch's route."""
    marked: bool = False
    """Whether something is wrong with it."""
    chunk: int = 0
    """How many stages of its route its rank has before it."""
    pair: int = -1
    """Number of its overlapped pair on its rank, -1 outside."""

    @property
    def copies(self) -> bool:
        """Whether it is a thin bar along its row's edge, of one slot: a copy of activations, where it starts."""
        return self.action.kind in COPIES and not self.marked


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A schedule's table, ready to be drawn."""

    ranks: int
    """Rows."""
    length: int
    """Slots up to the end of the last action."""
    cells: tuple[Cell, ...]
    """Actions by rank, then by slot."""
    chunks: int
    """Most stages that a rank holds: above one, labels tell the stage."""
    bubble: Fraction | None
    """Idle share of the table where messages take no time; None where it is not valid."""
    step_slots: int = 0
    """Slots of the table where messages take no time; ``length`` has the drawn messages' slots as well."""
    error: ScheduleError | None = None
    """What is wrong with the schedule."""
    first: int = 0
    """The number of the first slot, where those before it were cut off."""
    orders: Mapping[tuple[Kind, ...], tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By the kinds of an overlapped pair's members, whose next computation comes, over and over."""

    @property
    def lacking(self) -> tuple[int, str]:
        """The rank that lacks an action, and which; a rank of -1 where none does."""
        if self.error is None or self.error.position >= 0 or not self.error.missing:
            return -1, ""
        return self.error.rank, self.error.missing


def draw(schedule: Schedule, slots: SlotsOfKind | None = None, *, messages: bool = False) -> Drawing:
    """Place a schedule's actions in slots.

    An invalid schedule is drawn too, as far as it goes, with the offending cells marked.

    Args:
        schedule: the table.
        slots: slots per kind.
        messages: whether sends and receives take a slot each on their rank's row, as in PyTorch's
            step simulator.
    """
    slots = slots or SlotsOfKind()
    try:
        validate(schedule)
        return _simulated(schedule, slots, messages=messages)
    except ScheduleError as error:
        return _as_far_as_it_goes(schedule, slots, error, messages=messages)


def cropped(drawing: Drawing, first: int, last: int) -> Drawing:
    """Return the slots from ``first`` up to ``last``, without that; a cell that is cut is in no pair."""
    cells = []
    for cell in drawing.cells:
        low, high = max(cell.start, first), min(cell.start + cell.length, last)
        if low < high:
            pair = cell.pair if high - low == cell.length else -1
            cells.append(replace(cell, start=low - first, length=high - low, pair=pair))
    length = min(last, drawing.length) - first
    return replace(drawing, cells=tuple(cells), length=length, first=drawing.first + first)


def _simulated(schedule: Schedule, slots: SlotsOfKind, *, messages: bool) -> Drawing:
    edges = int(schedule.placement.edges.shape[0])
    costs = {f"{kind.traits.cost}_ns": slots.of(kind) for kind in _DRAWN if kind.traits.cost}
    others = {
        kind: [(Segment(name=kind.name, duration_ns=slots.of(kind)),)] * schedule.stages
        for kind in _DRAWN if not kind.traits.cost
    }  # fmt: skip
    workload = Workload.uniform(schedule.stages, edges=edges, boundary_bytes=1, **costs)
    workload = workload.segmented(others) if others else workload
    timeline = simulate(schedule, workload, ideal())
    metrics = measure(timeline, workload)
    if messages:
        timeline = simulate(schedule, workload, _PER_SLOT, Policy(name=PolicyName.BLOCKING))
    return Drawing(
        ranks=schedule.ranks,
        length=int(timeline.end_ns.max(initial=0)),
        cells=tuple(_compute_cells(schedule, folded(timeline), messages=messages)),
        chunks=_chunks(schedule),
        bubble=metrics.bubble,
        step_slots=metrics.end_ns,
        orders=schedule.interleave,
    )


def _compute_cells(schedule: Schedule, timeline: Timeline, *, messages: bool) -> Iterator[Cell]:
    chunk = _chunk_of(schedule.placement)
    for lane in np.flatnonzero(np.isin(timeline.lane_stream, _ROWS)).tolist():
        rank, here = int(timeline.lane_rank[lane]), slice(*timeline.lane_ptr[lane : lane + 2].tolist())
        for row in range(here.start, here.stop):
            action = timeline.action(row)
            if messages or action.kind not in COMMUNICATION:
                start, end = int(timeline.start_ns[row]), int(timeline.end_ns[row])
                length = 1 if action.kind in COPIES else end - start
                yield _cell(schedule, chunk, rank, start, length, action, pair=int(timeline.pair[row]))


def _as_far_as_it_goes(schedule: Schedule, slots: SlotsOfKind, error: ScheduleError, *, messages: bool) -> Drawing:
    named = set(error.cycle) if isinstance(error, DeadlockError) else set[str]()
    rows: list[tuple[int, Action, int, bool]] = []
    chunk = _chunk_of(schedule.placement)
    for rank in range(schedule.ranks):
        for row in range(int(schedule.row_ptr[rank]), int(schedule.row_ptr[rank + 1])):
            action = schedule.action(row)
            marked = row == error.position or f"rank {rank}: {action}" in named
            drawn = marked or action.kind in _DRAWN or (messages and action.kind in COMMUNICATION)
            rows.append((rank, action, slots.of(action.kind) * action.span if drawn else 0, marked))
    at_fault = {at for at, (_, _, _, marked) in enumerate(rows) if marked}
    start = place_leniently(schedule, [length for _, _, length, _ in rows], at_fault)
    cells = [
        _cell(schedule, chunk, rank, at, length, action, pair=pair, marked=marked)
        for at, pair, (rank, action, length, marked) in zip(start, schedule.pair.tolist(), rows, strict=True)
        if length
    ]
    return Drawing(
        ranks=schedule.ranks,
        length=max((cell.start + cell.length for cell in cells), default=0),
        cells=tuple(cells),
        chunks=_chunks(schedule),
        bubble=None,
        orders=schedule.interleave,
        error=error,
    )


def _cell(
    schedule: Schedule,
    chunk: NDArray[np.int64],
    rank: int,
    start: int,
    length: int,
    action: Action,
    *,
    pair: int,
    marked: bool = False,
) -> Cell:
    placement = schedule.placement
    known = 0 <= action.microbatch < placement.microbatches
    route = int(placement.microbatch_route[action.microbatch]) if known else 0
    own = int(chunk[route, action.stage]) if 0 <= action.stage < placement.stages else 0
    return Cell(
        rank=rank, start=start, length=length, action=action, route=route, marked=marked, chunk=own, pair=pair
    )


def _chunk_of(placement: Placement) -> NDArray[np.int64]:
    """Return how many stages of a route the rank of each has before it, shape (routes, stages)."""
    before = np.zeros(placement.stage_rank.shape, dtype=np.int64)
    for route, ranks in enumerate(placement.stage_rank):
        seen = np.zeros(placement.ranks, dtype=np.int64)
        for stage, rank in enumerate(ranks):
            before[route, stage] = seen[rank]
            seen[rank] += rank >= 0
    return before


def _chunks(schedule: Schedule) -> int:
    return max((len(schedule.placement.stages_of(rank)) for rank in range(schedule.ranks)), default=1)
