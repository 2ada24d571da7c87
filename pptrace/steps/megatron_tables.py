"""What Megatron-LM cannot run of a table, and the order of its training loop.

Source: Megatron-LM, core 0.20 (main of 22 August 2026), ``megatron/core/pipeline_parallel/schedules.py`` and
``combined_1f1b.py``. Chunk c of rank r is stage c p + r. A backward computes input and weight gradients
(``backward_step``), and each chunk takes its microbatches from a data iterator.

With g microbatches per group (``microbatch_group_size_per_vp_stage``), v chunks per rank and
w = min(v m, (v - 1) g + 2 (p - 1 - r)), rank r runs w forwards, then forward and backward in turns, then
backwards. One chunk per rank has w = min(m, p - 1 - r). With ``overlap_moe_expert_parallel_comm``, w is larger by
one, and each turn is an overlapped pair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.steps.kinds import PASSES, Kind
from pptrace.steps.placement import Placement
from pptrace.steps.pytorch_tables import compute_only

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.steps.columns import Int64s
    from pptrace.steps.schedule import Schedule


def unsupported_by_megatron(schedule: Schedule) -> Iterator[str]:
    """Yield the parts of a table that ``forward_step`` and ``backward_step`` of Megatron-LM cannot run.

    Messages of the table, and gathers and reductions of weights, are not part of the check.
    """
    table = compute_only(schedule)
    chunks, rest = divmod(table.stages, table.ranks)
    if rest or table.placement != Placement.looped(table.ranks, table.microbatches, chunks):
        yield "the placement of stages: it has stage s on rank s mod pp"
        return
    if table.ranks == 1 < chunks:
        yield f"{chunks} chunks on one rank: it needs two ranks or more"
    split = np.flatnonzero((table.kind == Kind.I) | (table.kind == Kind.W))
    if split.size:
        yield f"split backwards such as {table.action(int(split[0]))}: its backwards compute both gradients"
    foreign = np.flatnonzero(~PASSES.mask(table.kind) | (table.span > 1))
    if foreign.size:
        yield f"actions such as {table.action(int(foreign[0]))}"
    if table.awaited():
        yield "actions that wait for others (@)"
    if split.size or foreign.size:
        return
    everything = np.arange(table.microbatches)
    for stage in range(table.stages):
        of_stage = table.stage == stage
        forwards = table.microbatch[of_stage & (table.kind == Kind.F)]
        if not np.array_equal(forwards, everything):
            yield f"the forwards of stage {stage}: it runs one of each microbatch, in order"
            return
        if not np.array_equal(np.sort(table.microbatch[of_stage & (table.kind == Kind.B)]), everything):
            yield f"the backwards of stage {stage}: it runs one of each microbatch"
            return


def group_in_megatron(schedule: Schedule) -> int | None:
    """Return the microbatches per group if a table has the order of Megatron-LM's loop, else None.

    One chunk per rank has a single group of all microbatches.

    Args:
        schedule: a table without parts of :func:`unsupported_by_megatron`.
    """
    table = compute_only(schedule)
    ranks, chunks, microbatches = table.ranks, table.stages // table.ranks, table.microbatches
    leading_stages = table.stage[: table.row_ptr[1]][table.kind[: table.row_ptr[1]] == Kind.F]
    group = int(np.argmax(leading_stages != leading_stages[0])) or microbatches
    ranks_behind = np.arange(ranks)[::-1, None]
    warm_up = ranks_behind if chunks == 1 else 2 * ranks_behind + (chunks - 1) * group
    count = chunks * microbatches
    warm_up = np.minimum(warm_up + table.has_pairs, count)
    expected = _loop(ranks, chunks, microbatches, group, warm_up)
    position = np.arange(2 * count)
    in_turns = table.has_pairs & (position >= warm_up) & (position < 2 * count - warm_up)
    is_same = np.array_equal(np.stack((table.kind, table.stage, table.microbatch)), expected.reshape(3, -1))
    return group if is_same and np.array_equal(table.pair >= 0, in_turns.ravel()) else None


def _loop(ranks: int, chunks: int, microbatches: int, group: int, warm_up: Int64s) -> Int64s:
    """Return kinds, stages and microbatches of the loop, shape (3, ranks, actions of a rank)."""
    index = np.arange(chunks * microbatches)
    chunk, microbatch = np.divmod(index, microbatches)
    order = np.lexsort((microbatch, chunk, microbatch // group))
    chunk, microbatch = chunk[order], microbatch[order]
    expected = np.empty((3, ranks, 2 * index.size), dtype=np.int64)
    backwards_before, forwards_before = np.maximum(index - warm_up, 0), np.minimum(index + warm_up + 1, index.size)
    for kind, position, own_chunk in (
        (Kind.F, index + backwards_before, chunk),
        (Kind.B, index + forwards_before, chunks - 1 - chunk),
    ):
        stage = own_chunk * ranks + np.arange(ranks)[:, None]
        actions = (np.full_like(stage, kind), stage, np.broadcast_to(microbatch, stage.shape))
        for column, values in zip(expected, actions, strict=True):
            np.put_along_axis(column, position, values, axis=1)
    return expected
