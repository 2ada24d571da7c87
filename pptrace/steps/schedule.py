"""Schedule table, positions of its actions, and graph of its stages."""

from __future__ import annotations

from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.errors import TableError
from pptrace.memo import memoized
from pptrace.steps.actions import (
    CELL,
    USUAL,
    Action,
    CellColumns,
    Cells,
    cell_columns,
    overlapped,
    waits_of,
)
from pptrace.steps.columns import Int32s, count_set, difference, uniform, unset
from pptrace.steps.kernels.tables import index_actions
from pptrace.steps.kinds import COMMUNICATION, TABLE, Kind, Result, present
from pptrace.steps.placement import infer_placement
from pptrace_kernel import fixed, halves, run_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from pptrace.steps.columns import Int8s
    from pptrace.steps.placement import Placement

_COLUMNS = ("row_ptr", *CELL)


class Schedule(Cells, frozen=True, kw_only=True, dict=True):
    """Ordered actions of each rank, in columns that are concatenated by rank.

    >>> table = Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]])
    >>> [str(action) for action in table[1]]
    ['1F0', '1B0']
    """

    placement: Placement
    """Rank of each stage, by route of microbatches."""
    row_ptr: Int32s
    """Shape (ranks + 1,): rank ``r`` holds the actions ``row_ptr[r]:row_ptr[r + 1]``."""
    interleave: Mapping[tuple[Kind, ...], tuple[int, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """Repeated order of members whose next segment runs on the compute stream, by the kinds of a pair's members.
    Other pairs run the segment that is ready first."""
    recompute_waits: bool = False
    """Whether a recomputed forward has the dependencies of its backward, as frameworks that recompute inside the
    backward do; otherwise it starts when its rank reaches it."""
    waits: tuple[Int32s, ...] = ()
    """Explicit waits, ``0F3@0OFFLOAD1`` in text: arrays of shape (waits, 6) with the columns of
    :func:`~pptrace.steps.actions.waits_of`."""

    @classmethod
    def from_columns(
        cls,
        placement: Placement,
        row_ptr: ArrayLike,
        kind: ArrayLike,
        stage: ArrayLike,
        microbatch: ArrayLike,
        *,
        span: ArrayLike | None = None,
        pair: ArrayLike | None = None,
    ) -> Self:
        """Build a schedule from columns; by default every span is 1 and no actions overlap."""
        count = np.asarray(kind).size
        cells = CellColumns(
            kind=np.asarray(kind),
            stage=np.asarray(stage),
            microbatch=np.asarray(microbatch),
            span=uniform(USUAL["span"], count) if span is None else np.asarray(span),
            pair=uniform(USUAL["pair"], count) if pair is None else np.asarray(pair),
        )
        return cls.of_cells(placement, row_ptr, cells)

    @classmethod
    def of_cells(cls, placement: Placement, row_ptr: ArrayLike, cells: CellColumns) -> Self:
        """Build a schedule from the columns of its actions."""
        return cls(placement=placement, row_ptr=np.asarray(row_ptr), **cells._asdict())

    @classmethod
    def from_rows(cls, rows: Sequence[Iterable[str | Action | None]], placement: Placement | None = None) -> Self:
        """Build a schedule from one list of actions (or their text) per rank; ``None`` and ``""`` are idle cells.

        Without a placement, the rank of a stage is the rank of its actions, and the stages form a chain.

        Raises:
            TableError: a text is not an action; the error has its row and column.
        """
        actions, ptr = list[Action](), [0]
        for rank, row in enumerate(rows):
            count = 0
            for position, cell in enumerate(row):
                if cell is None or (isinstance(cell, str) and not cell.strip()):
                    continue
                actions.append(cell if isinstance(cell, Action) else _parse_at(cell, rank, position))
                count += len(actions[-1].sub_actions) or 1
            ptr.append(ptr[-1] + count)
        cells = CellColumns(*(np.array(values, dtype=np.int32) for values in cell_columns(actions)))
        schedule = cls.of_cells(placement or infer_placement(np.asarray(ptr), cells), ptr, cells)
        waits = waits_of(actions)
        return replace(schedule, waits=(waits,)) if waits.size else schedule

    def awaited(self) -> dict[tuple[int, int, int], tuple[Action, ...]]:
        """Return the awaited actions by kind, stage and first microbatch of the waiting action."""
        awaited: dict[tuple[int, int, int], tuple[Action, ...]] = {}
        for kind, stage, microbatch, *waiting in (row for waits in self.waits for row in waits.tolist()):
            key = (waiting[0], waiting[1], waiting[2])
            action = Action(kind=Kind(kind), stage=stage, microbatch=microbatch)
            awaited[key] = (*awaited.get(key, ()), action)
        return awaited

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.row_ptr.size - 1)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return self.placement.stages

    @property
    def microbatches(self) -> int:
        """Number of microbatches."""
        return self.placement.microbatches

    @cached_property
    def updates(self) -> int:
        """Number of optimizer updates of each stage, 1 without any in the table.

        With several, the pipeline is not flushed between them, and a step is the time between two of them.
        """
        rows = np.flatnonzero(np.equal(self.kind, int(Kind.OPTIMIZER)))
        if rows.size <= self.stages:
            return 1
        rank = np.searchsorted(self.row_ptr, rows, side="right") - 1
        return max(1, int(np.bincount(rank * self.stages + self.stage[rows]).max()))

    @property
    def step_microbatches(self) -> int:
        """Number of microbatches of one update."""
        return self.microbatches // self.updates

    @property
    def has_communication(self) -> bool:
        """Whether the table contains sends or receives."""
        return bool(COMMUNICATION.mask(self.kind).any())

    @property
    def has_pairs(self) -> bool:
        """Whether the table has overlapped pairs."""
        return count_set(self.pair) > 0

    def __getitem__(self, rank: int) -> list[Action]:
        """Return one rank's actions in order, each overlapped pair as one action."""
        if not 0 <= rank < self.ranks:
            msg = f"rank {rank} of {self.ranks}"
            raise IndexError(msg)
        row: list[Action] = []
        pair, awaited = -1, self.awaited()
        for index in range(int(self.row_ptr[rank]), int(self.row_ptr[rank + 1])):
            action = self.action(index)
            if awaited:
                action = replace(action, after=awaited.get((action.kind, action.stage, action.microbatch), ()))
            previous_pair, pair = pair, int(self.pair[index])
            if pair < 0:
                row.append(action)
            else:
                members = (*row.pop().sub_actions, action) if pair == previous_pair else (action,)
                row.append(overlapped(members))
        return row

    def rank_at(self, index: int) -> int:
        """Return the rank of a position of the columns."""
        return int(np.searchsorted(self.row_ptr, index, side="right")) - 1

    def rank_of_row(self) -> NDArray[np.int64]:
        """Return each action's rank, shape (actions,)."""
        return np.repeat(np.arange(self.ranks), np.diff(self.row_ptr))

    def last_rows(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the last of the chosen rows of each rank and stage, -1 for none: shape (ranks, stages)."""
        rows, last = np.flatnonzero(chosen), np.full((self.ranks, self.stages), -1, dtype=np.int64)
        last[self.rank_of_row()[rows], self.stage[rows]] = rows  # in ascending order, so the last one remains
        return last

    def selected(self, rows: NDArray[np.integer]) -> Self:
        """Return the table with only the given rows."""
        return replace(
            self, row_ptr=np.searchsorted(rows, self.row_ptr).astype(np.int32), **self.cells.taken(rows)._asdict()
        )

    def of_first(self, microbatches: int) -> Self:
        """Return the table without its last microbatches; all other actions keep their order."""
        placement = replace(self.placement, microbatch_route=self.placement.microbatch_route[:microbatches])
        kept = self.selected(np.flatnonzero(self.microbatch < microbatches))
        waits = tuple(wait[(wait[:, [2, 5]] < microbatches).all(axis=1)] for wait in self.waits)
        return replace(kept, placement=placement, waits=waits)

    def rows(self) -> list[list[str]]:
        """Return every rank's actions as text."""
        return [[str(action) for action in self[rank]] for rank in range(self.ranks)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.placement == other.placement and self.rows() == other.rows()

    __hash__ = None  # type: ignore[assignment] # arrays inside: equal by value, not hashable

    def difference(self, other: Schedule) -> str:
        """Return the first difference between two schedules as text, or ``""``."""
        return difference(self, other, _COLUMNS)

    def __repr__(self) -> str:
        size = f"{self.ranks} ranks, {self.stages} stages, {self.microbatches} microbatches"
        return f"<Schedule {size}, {len(self)} actions>"


def _parse_at(cell: str, rank: int, position: int) -> Action:
    try:
        return Action.parse(cell)
    except TableError as error:
        raise TableError(error.message, rank=rank, position=position, cell=cell) from None


ABSENT = -1


class Positions(Struct, frozen=True):
    """Positions of actions in a schedule's columns."""

    by_result: Int32s
    """Shape (results, stages, microbatches): position or ``ABSENT``; 2 results (F, B), 3 (also I, W), or more."""
    problem: tuple[int, int, int] | None
    """Fault (a code of the kernel) and position of the first invalid action, and the position of the earlier equal
    action or the rank on which it should be; None if all are valid."""

    @property
    def results(self) -> int:
        """Number of indexed results."""
        return int(self.by_result.shape[0])

    def of(self, result: int) -> Int32s:
        """Return one result's positions, shape (stages, microbatches); all absent if no action has this result."""
        if result >= self.results:
            return np.full(self.by_result.shape[1:], ABSENT, dtype=np.int32)
        positions: Int32s = self.by_result[result]
        return positions


def index_schedule(schedule: Schedule) -> Positions:
    """Index every microbatch's actions; stop at the first that is out of range, duplicated or on a wrong rank."""
    placement = schedule.placement
    results = _results_of(schedule.kind)
    inputs = schedule.row_ptr, schedule.cells, graph_of(placement), TABLE
    for parts in (
        halves(placement.ranks, work=len(schedule)),
        [(0, placement.ranks)],
    ):  # again for the first problem
        by_result = unset(results * placement.stages * placement.microbatches)
        problem = np.zeros(3, dtype=np.int64)
        if not any(run_parts(index_actions, parts, inputs, (by_result, problem), work=len(schedule))):
            break
    fault, row, other = problem.tolist()
    by_result = by_result.reshape(results, placement.stages, placement.microbatches)
    return Positions(by_result=by_result, problem=(fault, row, other) if fault else None)


def _results_of(kind: Int8s) -> int:
    kinds = present(kind)
    # A full backward's second result is indexed only if some backwards are split.
    split = kinds[(TABLE.result[kinds] == Result.GRADIENT) & (TABLE.second_result[kinds] < 0)].size
    least = 1 + (Result.WEIGHT_GRADIENT if split else Result.GRADIENT)
    return max(least, 1 + int(TABLE.result[kinds].max(initial=-1)))


class StageGraph(NamedTuple):
    """A placement for kernels, with successors and predecessors of every stage as CSR."""

    ranks: int
    """Number of ranks."""
    stages: int
    """Number of stages."""
    microbatches: int
    """Number of microbatches."""
    routes: int
    """Number of routes."""
    edges: int
    """Number of edges."""
    nearby: int
    """Whether any rank holds both stages of an edge."""
    stage_rank: Int32s
    """Shape (routes x stages,): the rank of each stage's forward on each route, -1 where the route skips it."""
    backward_rank: Int32s
    """As ``stage_rank``, for backwards."""
    microbatch_route: Int32s
    """Shape (microbatches,): each microbatch's route."""
    edge_from: Int32s
    """Shape (edges,): first stage of each edge."""
    edge_to: Int32s
    """Shape (edges,): second stage of each edge."""
    succ_ptr: Int32s
    """Shape (stages + 1,)."""
    succ: Int32s
    """Successors of each stage."""
    succ_edge: Int32s
    """Index of the edge to each successor."""
    pred_ptr: Int32s
    """Shape (stages + 1,)."""
    pred: Int32s
    """Predecessors of each stage."""
    pred_edge: Int32s
    """Index of the edge from each predecessor."""

    @property
    def widest(self) -> int:
        """The most successors or predecessors of a stage."""
        return int(max(np.diff(self.succ_ptr).max(initial=0), np.diff(self.pred_ptr).max(initial=0)))


def graph_of(placement: Placement) -> StageGraph:
    """Return a placement's graph of stages."""
    return memoized(partial(_graph_of, placement), "graph of stages", placement)


def _graph_of(placement: Placement) -> StageGraph:
    edge_from, edge_to = (np.ascontiguousarray(side) for side in placement.edges.T)
    succ_ptr, succ_edge = _group_edges(edge_from, placement.stages)
    pred_ptr, pred_edge = _group_edges(edge_to, placement.stages)
    forward_rank, backward_rank = placement.pass_ranks
    nearby = any((ranks[:, edge_from] == ranks[:, edge_to]).any() for ranks in (forward_rank, backward_rank))
    return fixed(StageGraph(
        ranks=placement.ranks, stages=placement.stages, microbatches=placement.microbatches,
        routes=placement.routes,
        edges=edge_from.size, nearby=int(nearby), stage_rank=forward_rank.ravel(),
        backward_rank=backward_rank.ravel(),
        microbatch_route=placement.microbatch_route,
        edge_from=edge_from, edge_to=edge_to, succ_ptr=succ_ptr, succ=edge_to[succ_edge], succ_edge=succ_edge,
        pred_ptr=pred_ptr, pred=edge_from[pred_edge], pred_edge=pred_edge,
    ))  # fmt: skip


def _group_edges(key: Int32s, stages: int) -> tuple[Int32s, Int32s]:
    order = np.argsort(key, kind="stable").astype(np.int32)
    counts = np.bincount(key, minlength=stages)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32), order
