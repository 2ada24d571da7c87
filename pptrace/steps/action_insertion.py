"""Insertion of host copies, recomputations and gathers into a table.

Source of the rule: Wan et al., PipeOffload: Improving Scalability of Pipeline Parallelism with Memory
Optimization, ICML 2025, arXiv:2503.01328: copies out as early as they can be, copies back as late as they may be.

Source of the idea that they need not wait for a gradient: Liu et al., Mario: Near Zero-cost Activation
Checkpointing in Pipeline Parallelism, PPoPP 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.config.choices import Reshard
from pptrace.steps.actions import CellColumns
from pptrace.steps.kinds import COMPUTE, GRADIENTS, STAGE_ENDS, WEIGHT_GRADIENTS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from pptrace.steps.columns import Int32s
    from pptrace.steps.issue_order import IssueOrder
    from pptrace.steps.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """What ranks compute one after the other: actions alone, and overlapped pairs as one."""

    of_row: NDArray[np.int64]
    """Each row's block, counted over all ranks; -1 for what does not compute."""
    first: NDArray[np.int64]
    """Each block's first row."""
    last: NDArray[np.int64]
    """Each block's last row."""


class Worked(NamedTuple):
    """What rows work on, one value per row and microbatch."""

    number: NDArray[np.int64]
    """Place of the row among those asked for."""
    stage: NDArray[np.int32]
    microbatch: NDArray[np.int64]


def blocks_of(table: Schedule | IssueOrder) -> Blocks:
    """Return the blocks of a table; what ends a step is in none."""
    rows = np.flatnonzero(COMPUTE.mask(table.kind) & ~STAGE_ENDS.mask(table.kind))
    rank, pair = np.searchsorted(table.row_ptr, rows, side="right"), table.pair[rows]
    begins = np.ones(rows.size, dtype=bool)
    begins[1:] = (pair[1:] < 0) | (pair[1:] != pair[:-1]) | (rank[1:] != rank[:-1])
    of_row = np.full(len(table), -1, dtype=np.int64)
    of_row[rows] = begins.cumsum() - 1
    return Blocks(of_row=of_row, first=rows[begins], last=rows[np.append(begins[1:], begins[:1])])


def worked(schedule: Schedule, rows: NDArray[np.int64]) -> Worked:
    """Return the stages and microbatches of rows, of an action on several microbatches each of them."""
    span = schedule.span[rows]
    if span.max(initial=1) == 1:
        return Worked(np.arange(rows.size), schedule.stage[rows], schedule.microbatch[rows].astype(np.int64))
    number = np.repeat(np.arange(rows.size), span)
    offset = np.arange(number.size) - np.repeat(np.cumsum(span) - span, span)
    return Worked(number, schedule.stage[rows][number], schedule.microbatch[rows][number] + offset)


def rows_of(schedule: Schedule, chosen: NDArray[np.bool_], *sorts: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Return the rows of chosen stages and microbatches; rows of several microbatches extend the choice.

    Args:
        schedule: the table.
        chosen: shape (stages, microbatches).
        sorts: masks of the rows in question, one for each list of them that is returned.
    """
    among = [np.flatnonzero(sort) for sort in sorts]
    all_worked = [worked(schedule, rows) for rows in among]
    while True:
        whole, found = np.zeros_like(chosen), []
        for rows, (number, stage, microbatch) in zip(among, all_worked, strict=True):
            taken = np.zeros(rows.size, dtype=bool)
            taken[number[chosen[stage, microbatch]]] = True
            more = taken[number]
            whole[stage[more], microbatch[more]] = True
            found.append(rows[taken])
        if not (whole & ~chosen).any():
            return found
        chosen = whole


def inserted(
    schedule: Schedule, at: NDArray[np.int64], kind: NDArray[np.int8] | Kind, source: NDArray[np.int64]
) -> Schedule:
    """Return a table with further actions.

    Args:
        schedule: the table.
        at: the rows before which they stand, in order, on the rank of ``source``; one place's in the order given.
        kind: their kinds.
        source: rows whose rank, stage and microbatches they have.
    """
    rank = np.searchsorted(schedule.row_ptr, source, side="right") - 1
    shift = np.cumsum([0, *np.bincount(rank, minlength=schedule.ranks)])
    place = at + np.arange(at.size)
    new = np.zeros(len(schedule) + at.size, dtype=bool)
    new[place] = True
    row = np.empty(new.size, dtype=np.int64)
    row[place], row[~new] = source, np.arange(len(schedule))
    cells = schedule.cells.taken(row)
    cells.kind[place] = kind
    cells.pair[place] = -1
    return replace(schedule, row_ptr=schedule.row_ptr + shift, **cells._asdict())


def inserted_of_stages(schedule: Schedule, added: NDArray[np.int64]) -> Schedule:
    """Return a table with further actions that belong to stages and to no microbatch.

    Args:
        schedule: the table.
        added: their columns: the row before which each stands, its rank, kind and stage; one place's in the order
            given.
    """
    if not added.shape[1]:
        return schedule
    at, rank, kind, stage = added[:, np.lexsort((np.arange(added.shape[1]), added[1], added[0]))]
    cells = CellColumns(kind=kind, stage=stage, microbatch=-1, span=1, pair=-1)
    shift = np.cumsum([0, *np.bincount(rank, minlength=schedule.ranks)])
    inserted = (np.insert(values, at, new) for values, new in zip(schedule.cells, cells, strict=True))
    return replace(schedule, row_ptr=schedule.row_ptr + shift, **CellColumns(*inserted)._asdict())


def with_copies(schedule: Schedule, chosen: NDArray[np.bool_], ahead: ArrayLike = 1) -> Schedule:
    """Return a table in which chosen activations are on the host between their forward and their backward.

    A copy out stands behind its forward. A copy back stands ``ahead`` blocks before its backward, but not before
    its copy out; it starts when the rank gets there. A block is an action or an overlapped pair. Activations that
    one action works on are copied together.

    Args:
        schedule: a table without copies of these activations.
        chosen: shape (stages, microbatches): which activations.
        ahead: how many blocks, for all or by stage and microbatch; 0 puts a copy back right before its backward.

    >>> from pptrace.steps.schedule import Schedule
    >>> table = Schedule.from_rows([["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"]])
    >>> with_copies(table, np.array([[True, False, False]])).rows()
    [['0F0', '0OFFLOAD0', '0F1', '0RELOAD0', '0F2', '0B0', '0B1', '0B2']]
    """
    forward, backward = rows_of(schedule, chosen, schedule.kind == Kind.F, GRADIENTS.mask(schedule.kind))
    blocks, far = blocks_of(schedule), np.broadcast_to(ahead, chosen.shape)
    out = blocks.last[blocks.of_row[forward]] + 1
    behind = np.zeros(chosen.shape, dtype=np.int64)
    number, stage, microbatch = worked(schedule, forward)
    behind[stage, microbatch] = out[number]
    first = schedule.stage[backward], schedule.microbatch[backward]
    back = blocks.first[np.maximum(blocks.of_row[backward] - far[first], 0)]
    number, stage, microbatch = worked(schedule, backward)
    np.maximum.at(back, number, behind[stage, microbatch])
    at, source = np.concatenate([out, back]), np.concatenate([forward, backward])
    kind = np.repeat(np.array([Kind.OFFLOAD, Kind.RELOAD], dtype=np.int8), [out.size, back.size])
    order = np.argsort(
        2 * at + (kind == Kind.RELOAD), kind="stable"
    )  # of two sorted runs: little more than a merge
    return inserted(schedule, at[order], kind[order], source[order])


def waits_for_copies(schedule: Schedule, behind: int) -> Int32s:
    """Return waits of ranks for their copies out, as :attr:`Schedule.waits` has them.

    What a rank computes ``behind`` blocks after a copied forward starts once the copy is done; 0 lets no block
    between. The copies back start when their ranks get there, as ever.
    """
    blocks, out = blocks_of(schedule), np.flatnonzero(schedule.kind == Kind.OFFLOAD)
    own = np.searchsorted(blocks.first, out) + behind
    there = own < blocks.first.size
    out, own = out[there], own[there]
    rows = blocks.first[own]
    same = np.searchsorted(schedule.row_ptr, rows, side="right") == np.searchsorted(
        schedule.row_ptr, out, side="right"
    )
    columns = [
        values[side[same]]
        for side in (out, rows)
        for values in (schedule.kind, schedule.stage, schedule.microbatch)
    ]
    return np.stack(columns, axis=1).astype(np.int32)


class _Block(NamedTuple):
    """What a rank computes at once: an action, or an overlapped pair."""

    first: int
    behind: int
    """The place behind its last row."""
    stages: tuple[int, ...]
    """Its stages that are sharded, in order."""
    forwards: frozenset[int]
    """Those of which it has a forward and nothing else."""


class _Added(NamedTuple):
    at: int
    kind: Kind
    stage: int


def with_gathers(
    schedule: Schedule, sharded: NDArray[np.bool_], reshard: Reshard | None, active: int | None = None
) -> Schedule:
    """Return a table that gathers stages' weights before passes of them, and frees them.

    With ``never``, as PyTorch's pipeline runtime does it (``_add_unshard_reshard`` of
    ``torch.distributed.pipelining.schedules``): before each computation, the next ``active`` stages of those to
    come are gathered, and others are freed. Else each gather is issued one computation ahead, so that it runs
    beside that one.

    Args:
        schedule: the table, without gathers.
        sharded: which stages' weights are sharded, shape (stages,).
        reshard: when they are freed; None for weights that are whole all the time, and gathered once.
        active: under ``never``, stages of a rank that are gathered at once; None for all.
    """
    blocks, columns = blocks_of(schedule), []
    for rank in range(schedule.ranks):
        own = _blocks_of_rank(schedule, blocks, rank, sharded)
        added = _once(own) if reshard is None else _freed(own, reshard)
        if reshard is Reshard.NEVER:
            added = _kept(own, active)
        columns += [(at, rank, kind, stage) for at, kind, stage in added]
    return inserted_of_stages(schedule, np.array(columns, dtype=np.int64).reshape(-1, 4).T)


def with_reductions(schedule: Schedule, reduced: NDArray[np.bool_]) -> Schedule:
    """Return a table that reduces gradients of the stages that are meant behind each of their weight gradients."""
    rows = np.flatnonzero(WEIGHT_GRADIENTS.mask(schedule.kind) & reduced[schedule.stage])
    blocks = blocks_of(schedule)
    behind = blocks.last[blocks.of_row[rows]] + 1
    kinds = np.full(rows.size, Kind.REDUCE_GRAD)
    return inserted_of_stages(
        schedule, np.stack([behind, schedule.rank_of_row()[rows], kinds, schedule.stage[rows]])
    )


def _blocks_of_rank(schedule: Schedule, blocks: Blocks, rank: int, sharded: NDArray[np.bool_]) -> list[_Block]:
    low, high = int(schedule.row_ptr[rank]), int(schedule.row_ptr[rank + 1])
    found = []
    for number in np.unique(blocks.of_row[low:high]).tolist():
        if number < 0:
            continue
        first, last = int(blocks.first[number]), int(blocks.last[number])
        rows = [(int(schedule.kind[row]), int(schedule.stage[row])) for row in range(first, last + 1)]
        rows = [(kind, stage) for kind, stage in rows if sharded[stage]]
        others = {stage for kind, stage in rows if kind != Kind.F}
        stages = tuple(dict.fromkeys(stage for _, stage in rows))
        found.append(_Block(first, last + 1, stages, frozenset(stages) - others))
    return found


def _once(blocks: Sequence[_Block]) -> Iterator[_Added]:
    """Gather each stage one computation ahead of its first."""
    seen: set[int] = set()
    ahead = blocks[0].first if blocks else 0
    for block in blocks:
        for stage in block.stages:
            if stage not in seen:
                yield _Added(ahead, Kind.UNSHARD, stage)
        seen.update(block.stages)
        ahead = block.first


def _kept(blocks: Sequence[_Block], active: int | None) -> Iterator[_Added]:
    """Gather the stages that compute next, as many as may be there at once."""
    gathered: list[int] = []
    for block, coming in zip(blocks, _coming(blocks, active), strict=True):
        for stage in [stage for stage in gathered if stage not in coming]:
            yield _Added(block.first, Kind.RESHARD, stage)
            gathered.remove(stage)
        for stage in [stage for stage in coming if stage not in gathered]:
            yield _Added(block.first, Kind.UNSHARD, stage)
            gathered.append(stage)
    for stage in gathered:
        yield _Added(blocks[-1].behind, Kind.RESHARD, stage)


def _coming(blocks: Sequence[_Block], active: int | None) -> list[list[int]]:
    """Return, per block, its stages and the stages of later blocks, in order of next use.

    The list has at most ``active`` stages, but at least those of the block.
    """
    order: list[int] = []
    found = []
    for block in reversed(blocks):
        order = [*block.stages, *(stage for stage in order if stage not in block.stages)]
        found.append(order if active is None else order[: max(active, len(block.stages))])
    return found[::-1]


def _freed(blocks: Sequence[_Block], reshard: Reshard) -> Iterator[_Added]:
    """Gather the stages of a block before the previous block, and free stages after the block."""
    gathered: set[int] = set()
    ahead = blocks[0].first if blocks else 0
    for place, block in enumerate(blocks):
        for stage in block.stages:
            if stage not in gathered:
                yield _Added(ahead, Kind.UNSHARD, stage)
        free = set(block.stages) if reshard is Reshard.ALWAYS else block.forwards
        if place == len(blocks) - 1:
            free = gathered | set(block.stages)
        gathered = (gathered | set(block.stages)) - free
        for stage in sorted(free):
            yield _Added(block.behind, Kind.RESHARD, stage)
        ahead = block.first


def with_recompute(schedule: Schedule, chosen: NDArray[np.bool_], *, early: bool = False) -> Schedule:
    """Return a table in which chosen forwards are computed again, right before the block of their backward.

    Args:
        schedule: a table in which these forwards are not computed again.
        chosen: shape (stages, microbatches): which forwards.
        early: whether that may start before the backward's gradient is there; else it waits for it.

    >>> import numpy as np
    >>> from pptrace.steps.schedule import Schedule
    >>> table = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"]])
    >>> with_recompute(table, np.array([[False, True]])).rows()
    [['0F0', '0F1', '0B0', '0RECOMPUTE1', '0B1']]
    """
    (backward,) = rows_of(schedule, chosen, GRADIENTS.mask(schedule.kind))
    blocks = blocks_of(schedule)
    again = inserted(schedule, blocks.first[blocks.of_row[backward]], Kind.RECOMPUTE, backward)
    return replace(again, recompute_waits=not early)
