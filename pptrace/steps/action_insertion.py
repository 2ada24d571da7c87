"""Insertion of host copies, recomputations and gathers into a table.

Offloads are issued as early and reloads as late as possible: Wan et al., PipeOffload: Improving Scalability of
Pipeline Parallelism with Memory Optimization, ICML 2025, arXiv:2503.01328. Recomputation before the gradient
arrives: Liu et al., Mario: Near Zero-cost Activation Checkpointing in Pipeline Parallelism, PPoPP 2025.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import Reshard
from pptrace.errors import ScheduleError
from pptrace.memo import memoized
from pptrace.steps.actions import microbatches_of
from pptrace.steps.columns import unset
from pptrace.steps.kinds import COMMUNICATION, COMPUTE, GRADIENTS, STAGE_ENDS, WEIGHT_GRADIENTS, Kind
from pptrace.steps.placement import Placement, branch_edges
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from pptrace.steps.columns import Int32s
    from pptrace.steps.message_calls import IssueOrder
    from pptrace.steps.schedule import Schedule


class Blocks(NamedTuple):
    """Computations of ranks in sequence: single actions, and overlapped pairs as a unit."""

    of_row: NDArray[np.int64]
    """Block of each row, counted over all ranks; -1 for rows that do not compute."""
    first: NDArray[np.int64]
    """First row of each block."""
    last: NDArray[np.int64]
    """Last row of each block."""


def blocks_of(table: Schedule | IssueOrder) -> Blocks:
    """Return the blocks of a table; optimizer updates are in no block."""
    rows = np.flatnonzero(COMPUTE.mask(table.kind) & ~STAGE_ENDS.mask(table.kind))
    rank, pair = np.searchsorted(table.row_ptr, rows, side="right"), table.pair[rows]
    begins = np.ones(rows.size, dtype=bool)
    begins[1:] = (pair[1:] < 0) | (pair[1:] != pair[:-1]) | (rank[1:] != rank[:-1])
    of_row = np.full(len(table), -1, dtype=np.int64)
    of_row[rows] = begins.cumsum() - 1
    return Blocks(of_row=of_row, first=rows[begins], last=rows[np.append(begins[1:], begins[:1])])


def rows_of(schedule: Schedule, chosen: NDArray[np.bool_], *masks: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """Return the rows of chosen stages and microbatches; rows of several microbatches extend the choice.

    Args:
        schedule: the table.
        chosen: shape (stages, microbatches).
        masks: masks of candidate rows; one list of rows is returned per mask.
    """
    candidates = [np.flatnonzero(mask) for mask in masks]
    microbatches = [microbatches_of(schedule, rows) for rows in candidates]
    while True:
        extended, chosen_rows = np.zeros_like(chosen), []
        for rows, (number, stage, microbatch) in zip(candidates, microbatches, strict=True):
            taken = np.zeros(rows.size, dtype=bool)
            taken[number[chosen[stage, microbatch]]] = True
            extended[stage[taken[number]], microbatch[taken[number]]] = True
            chosen_rows.append(rows[taken])
        if not (extended & ~chosen).any():
            return chosen_rows
        chosen = extended


def insert_actions(
    schedule: Schedule, row: NDArray[np.int64], kind: NDArray[np.int8] | Kind, source: NDArray[np.int64]
) -> Schedule:
    """Return a table with additional actions.

    Args:
        schedule: the table.
        row: ascending rows before which the actions are inserted, on the rank of ``source``.
        kind: kinds of the actions.
        source: rows that give the rank, stage and microbatches of the actions.
    """
    rank = np.searchsorted(schedule.row_ptr, source, side="right") - 1
    return _insert_copies(schedule, row, rank, source, kind=kind, pair=-1)


def insert_stage_actions(schedule: Schedule, added: NDArray[np.int64]) -> Schedule:
    """Return a table with additional actions of whole stages.

    Args:
        schedule: the table.
        added: rows of the array: the table's row before which each action is inserted, its rank, kind and stage.
            Actions at one position keep their order.
    """
    if not added.shape[1]:
        return schedule
    row, rank, kind, stage = added[:, np.lexsort((np.arange(added.shape[1]), added[1], added[0]))]
    return _insert_copies(schedule, row, rank, 0, kind=kind, stage=stage, microbatch=-1, span=1, pair=-1)


def _insert_copies(
    schedule: Schedule, row: NDArray[np.int64], rank: NDArray[np.int64], source: ArrayLike, **values: ArrayLike
) -> Schedule:
    """Insert copies of ``source`` rows with other ``values`` before the given rows, on the given ranks."""
    shift = np.cumsum([0, *np.bincount(rank, minlength=schedule.ranks)])
    place = row + np.arange(row.size)
    old = np.ones(len(schedule) + row.size, dtype=bool)
    old[place] = False
    origin = np.empty(old.size, dtype=np.int64)
    origin[place], origin[old] = source, np.arange(len(schedule))
    cells = schedule.cells.taken(origin)
    for name, column in values.items():
        getattr(cells, name)[place] = column
    return replace(schedule, row_ptr=schedule.row_ptr + shift, **cells._asdict())


def with_copies(schedule: Schedule, chosen: NDArray[np.bool_], ahead: ArrayLike = 1) -> Schedule:
    """Return a table in which chosen activations are offloaded between their forward and their backward.

    An offload follows its forward. A reload is issued ``ahead`` blocks before its backward, but not before its
    offload. A block is an action or an overlapped pair. Activations of one action are copied together.

    Args:
        schedule: a table without copies of these activations.
        chosen: shape (stages, microbatches): activations to offload.
        ahead: number of blocks, for all or by stage and microbatch; 0 reloads right before the backward.

    >>> from pptrace.steps.schedule import Schedule
    >>> table = Schedule.from_rows([["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"]])
    >>> with_copies(table, np.array([[True, False, False]])).rows()
    [['0F0', '0OFFLOAD0', '0F1', '0RELOAD0', '0F2', '0B0', '0B1', '0B2']]
    """
    forward, backward = rows_of(schedule, chosen, schedule.kind == Kind.F, GRADIENTS.mask(schedule.kind))
    blocks, distance = blocks_of(schedule), np.broadcast_to(ahead, chosen.shape)
    offload_at = blocks.last[blocks.of_row[forward]] + 1
    earliest_reload = np.zeros(chosen.shape, dtype=np.int64)
    number, stage, microbatch = microbatches_of(schedule, forward)
    earliest_reload[stage, microbatch] = offload_at[number]
    first = schedule.stage[backward], schedule.microbatch[backward]
    reload_at = blocks.first[np.maximum(blocks.of_row[backward] - distance[first], 0)]
    number, stage, microbatch = microbatches_of(schedule, backward)
    np.maximum.at(reload_at, number, earliest_reload[stage, microbatch])
    row, source = np.concatenate([offload_at, reload_at]), np.concatenate([forward, backward])
    kind = np.repeat(np.array([Kind.OFFLOAD, Kind.RELOAD], dtype=np.int8), [offload_at.size, reload_at.size])
    order = np.argsort(2 * row + (kind == Kind.RELOAD), kind="stable")
    return insert_actions(schedule, row[order], kind[order], source[order])


def waits_for_copies(schedule: Schedule, behind: int) -> Int32s:
    """Return waits of ranks for their offloads, with the columns of :attr:`Schedule.waits`.

    The block ``behind`` blocks after the next one of an offload starts when the offload has ended.
    """
    blocks, offloads = blocks_of(schedule), np.flatnonzero(schedule.kind == Kind.OFFLOAD)
    block = np.searchsorted(blocks.first, offloads) + behind
    exists = block < blocks.first.size
    offloads, rows = offloads[exists], blocks.first[block[exists]]
    rank_of_row = schedule.rank_of_row()
    same_rank = rank_of_row[rows] == rank_of_row[offloads]
    columns = [
        values[side[same_rank]]
        for side in (offloads, rows)
        for values in (schedule.kind, schedule.stage, schedule.microbatch)
    ]
    return np.stack(columns, axis=1).astype(np.int32)


def with_units(schedule: Schedule, units: int) -> Schedule:
    """Return a table in which each computation of the only stage is one action per unit of that stage.

    Units are the stages of the result. A forward passes through them in order, other computations in reverse
    order. An overlapped pair becomes a pair for each unit.

    Args:
        schedule: a table of one rank and one stage, with computations only.
        units: number of units.

    >>> from pptrace.steps.schedule import Schedule
    >>> with_units(Schedule.from_rows([["0F0", "0B0"]]), 2).rows()
    [['0F0', '1F0', '1B0', '0B0']]
    """
    return memoized(partial(_with_units, schedule, units), ("units", units), schedule, rows=units * len(schedule))


def _with_units(schedule: Schedule, units: int) -> Schedule:
    blocks = blocks_of(schedule)
    sizes = blocks.last - blocks.first + 1
    spans = zip(blocks.first.tolist(), blocks.last.tolist(), strict=True)
    rows = np.concatenate([np.tile(np.arange(first, last + 1), units) for first, last in spans])
    unit = np.concatenate([np.repeat(np.arange(units, dtype=np.int32), size) for size in sizes.tolist()])
    cells = schedule.cells.taken(rows)
    ascends = (cells.kind == Kind.F) | (cells.kind == Kind.RECOMPUTE)
    cells = cells._replace(
        stage=np.where(ascends, unit, units - 1 - unit).astype(np.int32),
        pair=np.where(cells.pair >= 0, cells.pair * units + unit, -1).astype(np.int32),
    )
    placement = Placement.looped(1, schedule.microbatches, units)
    return replace(schedule, placement=placement, row_ptr=np.array([0, rows.size]), **cells._asdict())


def with_branches(schedule: Schedule, branches: Sequence[int]) -> Schedule:
    """Return a table in which chains of stages run side by side before the other stages.

    Stage ``s`` of each chain has the row of stage ``s`` of the given table, whose first stages are those of the
    longest chain. So the warm-up of a rank depends on the longest path through all stages, as in Megatron-LM's
    ``MultiModulePipelineCommunicator`` (``current_stage``).

    Args:
        schedule: the table of the longest path, whose first ranks have the stages of the longest chain alone. With
            several chains, a table of computations with one stage per rank, in their order.
        branches: stages of each chain.

    Raises:
        ScheduleError: another table.

    >>> from pptrace.steps.schedule import Schedule
    >>> with_branches(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]), [1, 1]).rows()
    [['0F0', '0B0'], ['1F0', '1B0'], ['2F0', '2B0']]
    """
    if not branches:
        return schedule
    depth, chain_placement = max(branches), schedule.placement
    check_modules(chain_placement, [depth])
    if len(branches) == 1:
        return schedule
    has_others = bool(schedule.waits) or COMMUNICATION.mask(schedule.kind).any()
    if has_others or chain_placement != Placement.looped(chain_placement.ranks, chain_placement.microbatches):
        message = "has more than one stage per rank and computations, and encoders run side by side"
        raise ScheduleError(f"{message}: choose a schedule such as 1f1b")
    ranks = [*(rank for count in branches for rank in range(count)), *range(depth, schedule.ranks)]
    sizes = np.diff(schedule.row_ptr)[ranks]
    rows = np.concatenate([np.arange(*schedule.row_ptr[rank : rank + 2]) for rank in ranks])
    cells = schedule.cells.taken(rows)
    stage = np.repeat(np.arange(len(ranks), dtype=np.int32), sizes)
    cells = cells._replace(stage=np.where(cells.stage >= 0, stage, cells.stage))
    placement = Placement.looped(len(ranks), schedule.microbatches)
    placement = replace(placement, edges=branch_edges(branches, len(ranks)))
    return replace(schedule, placement=placement, row_ptr=np.cumsum([0, *sizes]), **cells._asdict())


def check_modules(placement: Placement, modules: Sequence[int]) -> None:
    """Check that consecutive ranks have the stages of encoders, and no rank has stages of several modules.

    Args:
        placement: stages on ranks.
        modules: stages and ranks of each encoder; the others are those of the decoder.

    Raises:
        ScheduleError: a stage is on a rank of another module.
    """
    ends, count = np.cumsum(modules, dtype=np.int64), sum(modules)
    module_of_stage = np.searchsorted(ends, np.arange(placement.stages), side="right")
    module_of_rank = np.searchsorted(ends, placement.stage_rank, side="right")
    mixed = np.flatnonzero(((placement.stage_rank >= 0) & (module_of_rank != module_of_stage)).any(axis=0))
    if mixed.size:
        message = f"has stage {mixed[0]} on rank {placement.stage_rank[:, mixed[0]].max()}"
        wanted = f"the first {count} ranks have the {count} stages of encoders alone"
        raise ScheduleError(f"{message}, and {wanted}: choose a schedule such as 1f1b")


class _Block(Struct, frozen=True):
    """An action or an overlapped pair, for gathers of weights."""

    first: int
    end: int
    """Position after its last row."""
    stages: tuple[int, ...]
    """Its sharded stages, in order."""
    forwards: frozenset[int]
    """Those of ``stages`` with a forward and no other action."""

    @property
    def is_forward(self) -> bool:
        """Whether it has forwards only."""
        return len(self.forwards) == len(self.stages)


_Added: TypeAlias = tuple[int, Kind, int]
"""Position, kind and stage of an added action."""


def with_gathers(
    schedule: Schedule,
    sharded: NDArray[np.bool_],
    reshard: Reshard | None,
    active: int | None = None,
    lookahead: Sequence[int] = (),
    prefetch: int | None = None,
    *,
    subgroups: bool = False,
) -> Schedule:
    """Return a table with gathers of stages' weights before their passes, and with their releases.

    ``never`` is the rule of PyTorch's pipeline runtime (``_add_unshard_reshard`` of
    ``torch.distributed.pipelining.schedules``): before each computation, stages that are not among the next
    ``active`` stages are freed, and the next ``lookahead`` stages are gathered. Both numbers are exceeded to take
    all stages of an overlapped pair. Other rules issue each gather one computation ahead, to overlap it.

    Args:
        schedule: the table, without gathers.
        sharded: shape (stages,): whether a stage's weights are sharded.
        reshard: rule for freeing; None for a single gather without freeing.
        active: for ``never``, the number of stages of a rank that are gathered at once; None for all.
        lookahead: for ``never``, the number of stages to gather ahead, by rank of a replica and at most
            ``active``; empty for ``active``.
        prefetch: for other rules, the number of units to gather ahead; None for stages that are no units.
        subgroups: for other rules, whether weights that a forward frees stay sharded over a part of their group.
    """

    def insert() -> Schedule:
        blocks = blocks_of(schedule)
        if reshard is Reshard.NEVER:
            return insert_stage_actions(schedule, _gather_next(schedule, blocks, sharded, active, lookahead))
        columns = []
        for rank in range(schedule.ranks):
            added = _gather_and_free(
                _blocks_of_rank(schedule, blocks, rank, sharded), reshard, prefetch, subgroups=subgroups
            )
            columns += [(row, rank, kind, stage) for row, kind, stage in added]
        return insert_stage_actions(schedule, np.array(columns, dtype=np.int64).reshape(-1, 4).T)

    key = "gathers", sharded.tobytes(), reshard, active, tuple(lookahead), prefetch, subgroups
    return memoized(insert, key, schedule, rows=2 * len(schedule))


def _gather_next(
    schedule: Schedule, blocks: Blocks, sharded: NDArray[np.bool_], active: int | None, lookahead: Sequence[int]
) -> NDArray[np.int64]:
    """Return gathers and releases by the rule ``never``, in the columns of :func:`insert_stage_actions`."""
    from pptrace.steps.kernels import pytorch as kernels

    rows, stages = len(schedule), schedule.stages
    most = stages if active is None else active
    added = np.empty((4, 2 * rows), dtype=np.int64)
    upcoming = kernels.Upcoming(
        next=np.full(stages, -1), stage=unset(stages), gathered=unset(stages),
        is_gathered=np.zeros(stages, dtype=np.int8), later=unset(rows),
    )  # fmt: skip
    count = run(
        kernels.gather_next,
        (
            np.searchsorted(blocks.first, schedule.row_ptr), blocks, schedule.stage, sharded, most,
            np.minimum(np.resize(lookahead or [most], schedule.ranks), most),
        ),
        (upcoming, kernels.Added(*added)),
        work=rows,
    )  # fmt: skip
    return added[:, :count]


def with_reductions(
    schedule: Schedule, reduced: NDArray[np.bool_], between_groups: NDArray[np.bool_] | None = None
) -> Schedule:
    """Return a table with a reduction after each weight gradient of some stages.

    Args:
        schedule: a table without reductions.
        reduced: shape (stages,): the stages that are reduced.
        between_groups: shape (stages,): those whose last reduction precedes one between shard groups; None for
            no stage.
    """
    between = np.zeros_like(reduced) if between_groups is None else between_groups
    key = "reductions", reduced.tobytes(), between.tobytes()
    return memoized(partial(_with_reductions, schedule, reduced, between), key, schedule, rows=2 * len(schedule))


def _with_reductions(
    schedule: Schedule, reduced: NDArray[np.bool_], between_groups: NDArray[np.bool_]
) -> Schedule:
    rows = np.flatnonzero(WEIGHT_GRADIENTS.mask(schedule.kind) & reduced[schedule.stage])
    blocks = blocks_of(schedule)
    row = blocks.last[blocks.of_row[rows]] + 1
    rank, kind = schedule.rank_of_row()[rows], np.full(rows.size, Kind.REDUCE_GRAD)
    added = np.stack([row, rank, kind, schedule.stage[rows]])
    last = schedule.last_rows(WEIGHT_GRADIENTS.mask(schedule.kind))
    groups = added[:, np.searchsorted(rows, last[(last >= 0) & reduced & between_groups])]
    groups[2] = Kind.REDUCE_GROUPS
    return insert_stage_actions(schedule, np.concatenate([added, groups], axis=1))


def _blocks_of_rank(schedule: Schedule, blocks: Blocks, rank: int, sharded: NDArray[np.bool_]) -> list[_Block]:
    low, high = int(schedule.row_ptr[rank]), int(schedule.row_ptr[rank + 1])
    rank_blocks = []
    for number in np.unique(blocks.of_row[low:high]).tolist():
        if number < 0:
            continue
        first, last = int(blocks.first[number]), int(blocks.last[number])
        rows = [(int(schedule.kind[row]), int(schedule.stage[row])) for row in range(first, last + 1)]
        rows = [(kind, stage) for kind, stage in rows if sharded[stage]]
        backwards = {stage for kind, stage in rows if kind != Kind.F}
        stages = tuple(dict.fromkeys(stage for _, stage in rows))
        rank_blocks.append(_Block(first, last + 1, stages, frozenset(stages) - backwards))
    return rank_blocks


def _gather_and_free(
    blocks: Sequence[_Block], reshard: Reshard | None, prefetch: int | None, *, subgroups: bool
) -> Iterator[_Added]:
    """Gather the stages of a block before it, and free stages after blocks unless without rule.

    A stage is gathered one block ahead, and a unit ``prefetch`` blocks ahead in the same pass. A unit whose
    backward follows its forward stays gathered, as FSDP2 keeps the last unit. With ``subgroups``, the gather after
    a release of a forward is one of :attr:`Kind.UNSHARD_SUBGROUP`.
    """
    gathered: set[int] = set()
    in_subgroup: set[int] = set()
    distance, pass_start = 1 if prefetch is None else prefetch, 0
    for index, block in enumerate(blocks):
        if prefetch is not None and index and block.is_forward != blocks[index - 1].is_forward:
            pass_start = index
        for stage in block.stages:
            if stage not in gathered:
                kind = Kind.UNSHARD_SUBGROUP if stage in in_subgroup else Kind.UNSHARD
                yield blocks[max(pass_start, index - distance)].first, kind, stage
        gathered.update(block.stages)
        if reshard is not None and index == len(blocks) - 1:
            free = set(gathered)
        else:
            free = _freed(block, reshard)
            if prefetch is not None and block.is_forward and index + 1 < len(blocks):
                free -= set(blocks[index + 1].stages) - blocks[index + 1].forwards
        gathered -= free
        in_subgroup = (in_subgroup - free) | (free & block.forwards if subgroups else set())
        for stage in sorted(free):
            yield block.end, Kind.RESHARD, stage


def _freed(block: _Block, reshard: Reshard | None) -> set[int]:
    """Return the stages that a rule frees after a block."""
    if reshard is Reshard.ALWAYS:
        return set(block.stages)
    if reshard is Reshard.FORWARD:
        return set(block.forwards)
    return set(block.stages) - block.forwards if reshard is Reshard.BACKWARD else set()


def with_recompute(schedule: Schedule, chosen: NDArray[np.bool_], *, early: bool = False) -> Schedule:
    """Return a table in which chosen forwards are recomputed right before the block of their backward.

    Args:
        schedule: a table without recomputation of these forwards.
        chosen: shape (stages, microbatches): forwards to recompute.
        early: whether recomputation can start before the backward's gradient arrives.

    >>> import numpy as np
    >>> from pptrace.steps.schedule import Schedule
    >>> table = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"]])
    >>> with_recompute(table, np.array([[False, True]])).rows()
    [['0F0', '0F1', '0B0', '0RECOMPUTE1', '0B1']]
    """
    (backward,) = rows_of(schedule, chosen, GRADIENTS.mask(schedule.kind))
    blocks = blocks_of(schedule)
    recomputed = insert_actions(schedule, blocks.first[blocks.of_row[backward]], Kind.RECOMPUTE, backward)
    return replace(recomputed, recompute_waits=not early)
