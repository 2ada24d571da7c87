"""A slow second list scheduler, written from the words of the first: at each instant it looks at every action."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from pptrace.steps.placement import Placement

__all__ = ["Cell", "Rule", "Stuck", "World", "play", "replay"]


class Cell(NamedTuple):
    """An action, as a value that can be looked up."""

    kind: Kind
    stage: int
    microbatch: int
    span: int

    @property
    def microbatches(self) -> range:
        return range(self.microbatch, self.microbatch + self.span)

    def __str__(self) -> str:
        return str(Action(kind=self.kind, stage=self.stage, microbatch=self.microbatch, span=self.span))


Rule = Callable[[Cell], Sequence[int]]
"""Of the actions that may run, a rank takes that of the least rule; then of the least kind, stage, microbatch."""


class Stuck(Exception):  # noqa: N818 - an outcome, not a fault
    """Some actions can never start."""

    def __init__(self, cells: set[Cell]) -> None:
        self.cells = cells
        super().__init__(", ".join(map(str, sorted(cells))))


@dataclass
class World:
    """What is given: places, times, bounds."""

    placement: Placement
    times: Mapping[Kind, Sequence[int]]
    spans: Mapping[Kind, int] = field(default_factory=dict)
    transfer: int = 0
    stage_bound: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Most microbatches in flight by (route, stage)."""
    rank_bound: Mapping[int, int] = field(default_factory=dict)

    def cells(self) -> set[Cell]:
        return {
            Cell(kind, stage, microbatch, self.spans.get(kind, 1))
            for kind in self.times
            for stage in range(self.placement.stages)
            for microbatch in range(0, self.placement.microbatches, self.spans.get(kind, 1))
        }

    def rank(self, cell: Cell) -> int:
        return self.placement.rank_of(cell.stage, cell.microbatch)

    def time(self, cell: Cell) -> int:
        return self.times[cell.kind][cell.stage]

    @property
    def gradient(self) -> Kind:
        return Kind.I if Kind.I in self.times else Kind.B

    @property
    def last(self) -> Kind:
        return Kind.W if Kind.W in self.times else Kind.B

    def needs(self, cell: Cell) -> set[Cell]:
        """Return the actions that end before ``cell`` starts."""
        edges = [(int(low), int(high)) for low, high in self.placement.edges]
        if cell.kind is Kind.F:
            wanted = [(Kind.F, low) for low, high in edges if high == cell.stage]
        elif cell.kind is Kind.W:
            wanted = [(Kind.I, cell.stage)]
        else:
            wanted = [(self.gradient, high) for low, high in edges if low == cell.stage]
            wanted.append((Kind.F, cell.stage))
        return {self.holder(kind, stage, microbatch) for kind, stage in wanted for microbatch in cell.microbatches}

    def holder(self, kind: Kind, stage: int, microbatch: int) -> Cell:
        span = self.spans.get(kind, 1)
        return Cell(kind, stage, microbatch - microbatch % span, span)

    def ready(self, cell: Cell, ended: Mapping[Cell, int]) -> int | None:
        """Return from when on ``cell``'s needs are there; None while one has not ended."""
        needs = self.needs(cell)
        if not needs <= ended.keys():
            return None
        away = [ended[need] + self.transfer * (self.rank(need) != self.rank(cell)) for need in needs]
        return max(away, default=0)

    def in_flight(self, cell: Cell, started: set[Cell], ended: set[Cell]) -> tuple[int, int]:
        """Return the microbatches in flight on a cell's stage of its route, and on its rank."""
        route = self.placement.microbatch_route
        open_microbatches = [
            (schedule.stage, microbatch)
            for schedule in started
            if schedule.kind is Kind.F and self.rank(schedule) == self.rank(cell)
            for microbatch in schedule.microbatches
            if self.holder(self.last, schedule.stage, microbatch) not in ended
        ]
        own = [u for s, u in open_microbatches if s == cell.stage and route[u] == route[cell.microbatch]]
        return len(own), len(open_microbatches)

    def has_room(self, cell: Cell, started: set[Cell], ended: set[Cell]) -> bool:
        if cell.kind is not Kind.F:
            return True
        own, whole = self.in_flight(cell, started, ended)
        route = int(self.placement.microbatch_route[cell.microbatch])
        bounds = self.stage_bound.get((route, cell.stage)), self.rank_bound.get(self.rank(cell))
        held = zip((own, whole), bounds, strict=True)
        return all(bound is None or count + cell.span <= bound for count, bound in held)


def play(world: World, rule: Rule) -> list[list[Cell]]:
    """Return each rank's actions in the order of their starts.

    Raises:
        Stuck: some can never start.
    """
    rows: list[list[Cell]] = [[] for _ in range(world.placement.ranks)]
    waiting, ended = world.cells(), dict[Cell, int]()
    running: dict[int, tuple[int, Cell]] = {}
    now = 0
    while waiting or running:
        for rank, (end, cell) in list(running.items()):
            if end == now:
                ended[cell] = now
                del running[rank]
        started = world.cells() - waiting
        chosen = []
        for rank in set(range(world.placement.ranks)) - running.keys():
            may_run = [
                cell
                for cell in waiting
                if world.rank(cell) == rank
                and (ready := world.ready(cell, ended)) is not None
                and ready <= now
                and world.has_room(cell, started, set(ended))
            ]
            if may_run:
                chosen.append(min(may_run, key=lambda cell: (*rule(cell), cell.kind, cell.stage, cell.microbatch)))
        for cell in chosen:
            running[world.rank(cell)] = (now + world.time(cell), cell)
            rows[world.rank(cell)].append(cell)
            waiting.remove(cell)
        later = [end for end, _ in running.values()]
        later += [ready for cell in waiting if (ready := world.ready(cell, ended)) is not None and ready > now]
        if not later and waiting:
            raise Stuck(waiting)
        now = min(later, default=now)
    return rows


def replay(world: World, rows: Sequence[Sequence[Cell]]) -> dict[Cell, int]:
    """Return when each action of a table starts where every rank keeps its order and waits for nothing else."""
    starts, ended = dict[Cell, int](), dict[Cell, int]()
    at, free = [0] * len(rows), [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(rows):
            while at[rank] < len(row) and (ready := world.ready(row[at[rank]], ended)) is not None:
                cell = row[at[rank]]
                starts[cell] = max(ready, free[rank])
                ended[cell] = free[rank] = starts[cell] + world.time(cell)
                at[rank] += 1
                moved = True
    return starts
