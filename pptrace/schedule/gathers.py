"""Where a table gathers sharded weights and frees them, and where it reduces each microbatch's gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.config.choices import Reshard
from pptrace.model.kinds import WEIGHT_GRADIENTS, Kind
from pptrace.schedule.inserted import blocks_of, inserted_of_stages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pptrace.schedule.inserted import Blocks
    from pptrace.schedule.table import Schedule

__all__ = ["with_gathers", "with_reductions"]


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
    """Return, for each block, the stages of it and of those behind it, the next first; all of its own at least."""
    order: list[int] = []
    found = []
    for block in reversed(blocks):
        order = [*block.stages, *(stage for stage in order if stage not in block.stages)]
        found.append(order if active is None else order[: max(active, len(block.stages))])
    return found[::-1]


def _freed(blocks: Sequence[_Block], reshard: Reshard) -> Iterator[_Added]:
    """Gather what each block needs before the block ahead of it, and free what is not kept behind it."""
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
