"""Placement of stages on ranks, given by a schedule or inferred from its table."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from msgspec import field
from msgspec.structs import force_setattr, replace

from pptrace.errors import ScheduleError
from pptrace.steps.actions import microbatches_of
from pptrace.steps.columns import Columns, ComparedColumns, Int32s, column, distinct_rows
from pptrace.steps.kinds import TABLE, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.steps.actions import CellColumns
    from pptrace.steps.columns import Int64s

_NO_RANKS = column(np.empty((0, 0)).astype(np.int32), np.int32)
_CHAIN = column(np.empty((0, 2)).astype(np.int32), np.int32)
_MOST_NEIGHBOURS = 1024
"""Stages that one stage may feed, and stages that may feed it: messages of a stage are matched one by one."""


class Placement(ComparedColumns, frozen=True, kw_only=True, eq=False, dict=True):
    """Routes of stages over ranks, and the route that each microbatch takes.

    >>> Placement.looped(ranks=2, microbatches=4, chunks=2).stage_rank.tolist()
    [[0, 1, 0, 1]]
    >>> Placement.v_shaped(ranks=2, microbatches=4).stage_rank.tolist()
    [[0, 1, 1, 0]]
    """

    ranks: int
    """Number of pipeline ranks."""
    stage_rank: Int32s
    """Shape (routes, stages): the rank that holds a stage on a route, -1 where the route skips it."""
    microbatch_route: Int32s
    """Shape (microbatches,): each microbatch's route."""
    edges: Int32s = field(default_factory=lambda: _CHAIN)
    """Shape (edges, 2): the stages' graph as (from, to), forward; by default the chain of all stages."""
    backward_rank: Int32s = field(default_factory=lambda: _NO_RANKS)
    """As ``stage_rank``, for backwards, which may be on other ranks: activations then go to these through host
    memory (``OFFLOAD``, ``RELOAD``). Empty where each backward is on the rank of its forward."""

    def __post_init__(self) -> None:
        Columns.__post_init__(self)
        if self.backward_rank.size == 0:
            force_setattr(self, "backward_rank", _NO_RANKS)
        if self.edges is _CHAIN:
            force_setattr(self, "edges", column(chain(self.stages), np.int32))
        elif self.edges.size == 0:
            force_setattr(self, "edges", column(np.empty((0, 2)).astype(np.int32), np.int32))

    @classmethod
    def of_stages(cls, stage_rank: object, microbatches: int, ranks: int = 0) -> Self:
        """Place all microbatches on one route, or each on its own row of ``stage_rank``'s routes in turn."""
        table = np.atleast_2d(np.asarray(stage_rank, dtype=np.int32))
        route = np.arange(microbatches, dtype=np.int32) % len(table)
        return cls(ranks=ranks or int(table.max()) + 1, stage_rank=table, microbatch_route=route)

    @classmethod
    def looped(cls, ranks: int, microbatches: int, chunks: int = 1) -> Self:
        """Place stage ``s`` on rank ``s mod ranks``: one chunk a rank, or interleaved chunks."""
        return cls.of_stages(np.arange(ranks * chunks) % ranks, microbatches, ranks)

    @classmethod
    def v_shaped(cls, ranks: int, microbatches: int, chunks: int = 2) -> Self:
        """Place stages down the ranks, then up, and so on: V for two chunks, waves for more."""
        down = np.arange(ranks)
        turns = [down if chunk % 2 == 0 else down[::-1] for chunk in range(chunks)]
        return cls.of_stages(np.concatenate(turns), microbatches, ranks)

    @property
    def stages(self) -> int:
        """Number of stages."""
        return int(self.stage_rank.shape[1])

    @property
    def microbatches(self) -> int:
        """Number of microbatches in the batch."""
        return int(self.microbatch_route.size)

    @property
    def routes(self) -> int:
        """Number of routes."""
        return int(self.stage_rank.shape[0])

    @property
    def pass_ranks(self) -> tuple[Int32s, Int32s]:
        """The ranks of forwards and of backwards, each of shape (routes, stages)."""
        return self.stage_rank, self.backward_rank if self.backward_rank.size else self.stage_rank

    @property
    def has_host_state(self) -> bool:
        """Whether backwards may be on other ranks than their forwards.

        Weights, gradients and optimizer state are then in host memory. Gathers copy weights to a rank, and
        reductions copy gradients back.
        """
        return self.backward_rank.size > 0

    @property
    def is_moved(self) -> NDArray[np.bool_]:
        """Whether a stage's backward is on another rank than its forward, shape (routes, stages)."""
        forward_rank, backward_rank = self.pass_ranks
        moved: NDArray[np.bool_] = forward_rank != backward_rank
        return moved

    def with_ranks(self, new: Int32s, ranks: int) -> Self:
        """Return the placement on other ranks; ``new`` has the number of each rank, and -1 last."""
        return replace(self, ranks=ranks, stage_rank=new[self.stage_rank], backward_rank=new[self.backward_rank])

    @cached_property
    def is_chain(self) -> bool:
        """Whether stage ``s`` feeds stage ``s + 1`` and nothing else."""
        return bool(np.array_equal(self.edges, chain(self.stages)))

    @property
    def graph(self) -> tuple[tuple[int, int], ...]:
        """The edges as (from, to), empty for a chain of all stages."""
        return () if self.is_chain else tuple((int(low), int(high)) for low, high in self.edges)

    @property
    def edge_fault(self) -> str:
        """Description of an invalid edge, as a phrase after "its"; empty for valid edges."""
        if self.edges.size and (self.edges.min() < 0 or self.edges.max() >= self.stages):
            return f"edges name stages beyond its {self.stages}"
        number = np.sort(self.edges[:, 0].astype(np.int64) * self.stages + self.edges[:, 1])
        twice = number[1:][number[1:] == number[:-1]]
        if twice.size:
            return f"edge from stage {twice[0] // self.stages} to stage {twice[0] % self.stages} occurs twice"
        for side, verb in enumerate(("feeds", "is fed by")):
            count = np.bincount(self.edges[:, side])
            if count.max(initial=0) > _MOST_NEIGHBOURS:
                most = int(np.argmax(count))
                return f"stage {most} {verb} {count[most]:,} stages: at most {_MOST_NEIGHBOURS:,} are possible"
        return ""

    def stages_ahead(self) -> Int64s:
        """Return the stages of the longest path, less those up to each stage: shape (stages,).

        >>> Placement.looped(ranks=3, microbatches=1).stages_ahead().tolist()
        [2, 1, 0]
        """
        depth = np.zeros(self.stages, dtype=np.int64)
        for low, high in sorted(self.edges.tolist()):
            depth[high] = max(depth[high], depth[low] + 1)
        ahead: Int64s = depth.max(initial=0) - depth
        return ahead

    def chunk_of_stage(self) -> Int64s:
        """Return the number of earlier stages of a route on the same rank, shape (routes, stages)."""
        chunk = np.zeros(self.stage_rank.shape, dtype=np.int64)
        for route, ranks in enumerate(self.stage_rank.tolist()):
            seen: Counter[int] = Counter()
            for stage, rank in enumerate(ranks):
                chunk[route, stage] = seen[rank]
                seen[rank] += 1
        return chunk

    def rank_of(self, stage: int, microbatch: int, *, backward: bool = False) -> int:
        """Return the rank that runs ``stage`` for ``microbatch``; if this is -1, the rank on the first route."""
        route = int(self.microbatch_route[microbatch]) if 0 <= microbatch < self.microbatches else 0
        return int(self.pass_ranks[backward][route, stage])

    def stages_of(self, rank: int) -> list[int]:
        """Return the stages that ``rank`` holds on any route, in order."""
        return np.flatnonzero(self.copies()[rank]).tolist()

    def copies(self) -> Int32s:
        """Return, per rank and stage, 1 where the rank holds the stage: shape (ranks, stages)."""
        return self._copies

    @cached_property
    def _copies(self) -> Int32s:
        held = np.zeros((self.ranks, self.stages), dtype=np.int32)
        for ranks in self.pass_ranks:
            route, stage = np.nonzero(ranks >= 0)
            held[ranks[route, stage], stage] = 1
        held.flags.writeable = False
        return held

    def holders(self) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that hold each stage on any route, in order.

        >>> Placement.v_shaped(ranks=2, microbatches=4).holders()
        ((0,), (1,), (1,), (0,))
        """
        return tuple(tuple(np.flatnonzero(rank_mask).tolist()) for rank_mask in self.copies().T)


def chain(stages: int) -> Int32s:
    """Return the edges of a chain of stages, shape (stages - 1, 2)."""
    first = np.arange(max(stages - 1, 0), dtype=np.int32)
    return np.stack([first, first + 1], axis=1).astype(np.int32)


def branch_edges(branches: Sequence[int], stages: int) -> Int32s:
    """Return the edges of chains side by side, which all feed the first stage of a last chain.

    Args:
        branches: stages of each chain before the last one.
        stages: stages of all chains.

    >>> branch_edges([2, 1], 5).tolist()
    [[0, 1], [1, 3], [2, 3], [3, 4]]
    """
    edges = chain(stages)
    edges[np.cumsum(branches, dtype=np.int64) - 1, 1] = sum(branches)
    return edges


_ROOM = 1 << 20
_PER_ACTION = 64
"""A table may name this many stages times microbatches, and this many more per action."""


def infer_placement(row_ptr: Int32s | Int64s, cells: CellColumns) -> Placement:
    """Return the placement that a table's own rows imply, its stages a chain.

    A microbatch's stage is on the rank of its first action (of the lowest rank, where ranks disagree:
    validation then names the misplaced one). If another rank copies its activation back from the host, the
    backward is there. Microbatches with equal ranks share a route.

    Raises:
        ScheduleError: a stage or microbatch is far beyond what so many actions can fill.
    """
    stage, microbatch, span = cells.stage, cells.microbatch, cells.span
    ranks = int(row_ptr.size - 1)
    rank = np.repeat(np.arange(ranks, dtype=np.int32), np.diff(row_ptr))
    placed = (microbatch >= 0) & (stage >= 0) & (span >= 1)
    last = microbatch.astype(np.int64) + span
    stages = int(stage.max(initial=-1)) + 1
    microbatches = int(last[placed].max(initial=0))
    room = _ROOM + _PER_ACTION * int(stage.size)
    if stages * max(microbatches, 1) > room or int(span[placed].sum(dtype=np.int64)) > room:
        raise _out_of_range(rank, cells, last)
    rows = np.flatnonzero(placed)
    number, _, microbatch_of = microbatches_of(cells, rows)
    rows = rows[number]

    def lowest(chosen: NDArray[np.bool_]) -> Int32s:
        taken = chosen[rows]
        cell = microbatch_of[taken] * stages + stage[rows][taken]
        return _lowest(microbatches * stages, cell, rank[rows][taken]).reshape(microbatches, stages)

    stage_rank, backward_rank = lowest(np.ones(stage.size, dtype=bool)), None
    if (cells.kind == Kind.RELOAD).any():
        out, back = lowest(cells.kind == Kind.OFFLOAD), lowest(cells.kind == Kind.RELOAD)
        is_moved = (out >= 0) & (back >= 0) & (out != back)
        of_backward = TABLE.with_backward[cells.kind] == 1
        backward_rank = np.where(is_moved, lowest(of_backward), stage_rank)
        stage_rank = np.where(is_moved, lowest(~of_backward), stage_rank)
    staged = np.flatnonzero(stage >= 0)
    default = _lowest(stages, stage[staged], rank[staged])
    if backward_rank is not None and (backward_rank != stage_rank).any():
        stage_rank, default = np.concatenate([stage_rank, backward_rank], axis=1), np.tile(default, 2)
    routes, microbatch_route = _routes(np.where(stage_rank < 0, default[None, :], stage_rank))
    routes = routes if microbatches else default[None, :]
    return Placement(
        ranks=ranks, stage_rank=routes[:, :stages], microbatch_route=microbatch_route,
        backward_rank=routes[:, stages:],
    )  # fmt: skip


def _lowest(size: int, cell: Int32s | Int64s, rank: Int32s) -> Int32s:
    """Return the lowest rank that is given for each of ``size`` cells, -1 where none is."""
    none = np.iinfo(np.int32).max
    lowest = np.full(size, none, dtype=np.int32)
    np.minimum.at(lowest, cell, rank)
    return np.where(lowest == none, np.int32(-1), lowest)


def _routes(stage_rank: Int32s) -> tuple[Int32s, Int32s]:
    """Return the distinct rows, in the order of their first microbatch, and each microbatch's."""
    if not stage_rank.size:
        return stage_rank[:1], np.zeros(len(stage_rank), dtype=np.int32)
    first, route = distinct_rows(stage_rank)
    return stage_rank[first], route


def _out_of_range(rank: Int32s, cells: CellColumns, last: Int64s) -> ScheduleError:
    kind, stage, microbatch = cells.kind, cells.stage, cells.microbatch
    far = int(np.argmax(last)) if int(last.max()) > int(stage.max()) else int(np.argmax(stage))
    number = "" if microbatch[far] < 0 else str(int(microbatch[far]))
    beyond = int(last[far] - microbatch[far])
    action = f"{int(stage[far])}{Kind(int(kind[far])).name}{number}{f'+{beyond}' if beyond > 1 else ''}"
    return ScheduleError(
        f"rank {int(rank[far])}: {action} is out of range: a table of {stage.size} actions cannot fill "
        f"that many stages and microbatches, which are numbered from 0 without gaps",
        rank=int(rank[far]),
        position=far,
        action=action,
    )
