"""Tables of pptrace in PyTorch's pipeline runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from pptrace.plugin import Schedule, ScheduleError, compute_only, write_table
from pptrace_torch.manifest import check_table, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor
    from torch.distributed.pipelining import PipelineStage

__all__ = ["load"]


def load(
    table: Schedule | Path | str,
    stages: Sequence[PipelineStage] | PipelineStage,
    loss_fn: Callable[..., Tensor] | None = None,
    **options: Any,
) -> _PipelineScheduleRuntime:
    """Return PyTorch's runtime for a table, once it is sure that PyTorch runs it as pptrace reads it.

    Messages of the table are dropped: the runtime inserts its own.

    Args:
        table: a table, or its file (.csv or .txt).
        stages: this rank's stages; their group has one rank per row of the table.
        loss_fn: called with the last stage's output and the target.
        options: further arguments of the runtime, such as ``scale_grads`` or ``defer_pp_recv``.

    Raises:
        ScheduleError: PyTorch would refuse or misread the table, or the stages are others than the table's.
        TableError: the file cannot be read.

    >>> schedule = load("best.csv", stages, loss_fn)  # doctest: +SKIP
    """
    schedule = table if isinstance(table, Schedule) else read_table(Path(table))
    check_table(schedule)
    local_stages = list(stages) if isinstance(stages, (list, tuple)) else [stages]
    _check_stages(schedule, local_stages)
    runtime = _PipelineScheduleRuntime(
        local_stages, n_microbatches=schedule.microbatches, loss_fn=loss_fn, **options
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.csv"
        write_table(compute_only(schedule), file)
        runtime._load_csv(str(file))  # noqa: SLF001 - PyTorch has no public name for it
    return runtime


def _check_stages(schedule: Schedule, stages: Sequence[Any]) -> None:
    """Refuse stages that are not those of this rank's row.

    Raises:
        ScheduleError: what differs.
    """
    if not stages:
        raise ScheduleError("no stages: give this rank's stages")
    count, ranks, rank = stages[0].num_stages, stages[0].group_size, stages[0].group_rank
    if ranks != schedule.ranks:
        raise ScheduleError(f"the table has {schedule.ranks} ranks and the stages' group {ranks}: use as many")
    if count != schedule.stages:
        raise ScheduleError(f"the table has {schedule.stages} stages and the model {count}: split it into as many")
    given = sorted(stage.stage_index for stage in stages)
    expected = schedule.placement.stages_of(rank)
    if given != expected:
        raise ScheduleError(f"rank {rank} runs stages {expected} of the table and was given {given}: give those")
