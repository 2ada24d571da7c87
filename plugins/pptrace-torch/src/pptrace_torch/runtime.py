"""PyTorch's pipeline runtime: tables that it runs, and recordings of its steps with the profiler."""

from __future__ import annotations

import sys
import tempfile
import time
import types
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import ScheduleGPipe
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.profiler import ProfilerActivity, profile, schedule

from pptrace.plugin import (
    ConfigError,
    OutputError,
    Schedule,
    ScheduleError,
    compute_only,
    replace_file,
    write_table,
)
from pptrace_profilers.annotation import module_for
from pptrace_torch.manifest import Manifest, check_table, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor
    from torch.distributed.pipelining import PipelineStage

__all__ = ["capture", "load", "record_steps"]


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
    order = table if isinstance(table, Schedule) else read_table(Path(table))
    check_table(order)
    local_stages = list(stages) if isinstance(stages, (list, tuple)) else [stages]
    _check_stages(order, local_stages)
    runtime = _PipelineScheduleRuntime(local_stages, n_microbatches=order.microbatches, loss_fn=loss_fn, **options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "table.csv"
        write_table(compute_only(order), file)
        runtime._load_csv(str(file))  # noqa: SLF001 - PyTorch has no public name for it
    return runtime


def _check_stages(order: Schedule, stages: Sequence[Any]) -> None:
    """Refuse stages that are not those of this rank's row.

    Raises:
        ScheduleError: what differs.
    """
    if not stages:
        raise ScheduleError("no stages: give this rank's stages")
    count, ranks, rank = stages[0].num_stages, stages[0].group_size, stages[0].group_rank
    if ranks != order.ranks:
        raise ScheduleError(f"the table has {order.ranks} ranks and the stages' group {ranks}: use as many")
    if count != order.stages:
        raise ScheduleError(f"the table has {order.stages} stages and the model {count}: split it into as many")
    given = sorted(stage.stage_index for stage in stages)
    expected = order.placement.stages_of(rank)
    if given != expected:
        raise ScheduleError(f"rank {rank} runs stages {expected} of the table and was given {given}: give those")


@contextmanager
def record_steps(
    file: Path, *, after: int = 0, warmup: int, steps: int, device: torch.device
) -> Iterator[profile]:
    """Yield a profiler whose ``step`` ends a step, and write a trace once all recorded steps have ended.

    Args:
        file: the trace, ``.json`` or ``.json.gz``.
        after: steps before the profiler starts.
        warmup: steps that it runs without recording.
        steps: recorded steps.
        device: where the stages run.
    """
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")
    window = schedule(wait=after, warmup=warmup, active=steps, repeat=1)

    def write(profiler: profile) -> None:
        if profiler.step_num < after + warmup + steps:  # the block ended early
            return
        with replace_file(file) as temporary:
            profiler.export_chrome_trace(str(temporary))

    with profile(activities=activities, record_shapes=True, schedule=window, on_trace_ready=write) as profiler:
        yield profiler


@contextmanager
def capture(
    pipeline: Any, folder: Path | str, *, after: int = 10, warmup: int = 1, steps: int = 3
) -> Iterator[None]:
    """Record some steps of a pipeline in the user's own program, a trace per rank.

    Works for every schedule class of ``torch.distributed.pipelining``. ``Schedule1F1B`` and ``ScheduleGPipe`` do
    not name their actions, so they are annotated inside this block. Each call of ``pipeline.step`` is a step.
    Global rank 0 also writes the manifest, and prints what the recording cost.

    Args:
        pipeline: the schedule.
        folder: receives ``rank0.json.gz`` and so on; it is made where it is missing.
        after: steps before the profiler starts.
        warmup: steps that it runs without recording.
        steps: recorded steps.

    Raises:
        ConfigError: an impossible number of steps, or the block ended before the last of these steps.
        OutputError: the folder cannot be made, or a file in it cannot be written.

    >>> with capture(schedule, "run/", after=10, warmup=1, steps=3):  # doctest: +SKIP
    ...     train()
    """
    folder, rank = Path(folder), dist.get_rank()
    if min(after, warmup) < 0 or steps < 1:
        raise ConfigError("capture takes after and warmup of at least 0, and steps of at least 1")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be made: {(error.strerror or str(error)).lower()}", file=folder) from None
    file = folder / f"rank{rank}.json.gz"
    device = stages_of(pipeline)[0].device
    durations_s: list[float] = []
    run_step, own_step = pipeline.step, pipeline.__dict__.get("step")
    with (
        _annotated(pipeline),
        record_steps(file, after=after, warmup=warmup, steps=steps, device=device) as profiler,
    ):

        def step(*args: Any, **options: Any) -> Any:
            start_s = time.perf_counter()
            output = run_step(*args, **options)
            durations_s.append(time.perf_counter() - start_s)
            profiler.step()
            return output

        pipeline.step = step
        try:
            yield
        finally:
            if own_step is None:
                del pipeline.step
            else:
                pipeline.step = own_step
    needed = after + warmup + steps
    if len(durations_s) < needed:
        raise ConfigError(
            f"capture saw {len(durations_s)} of {needed} steps: run more steps inside it, or lower after, warmup "
            "or steps"
        )
    if rank == 0:
        _manifest_of(pipeline).write(folder)
        sys.stderr.write(f"{_cost(durations_s[:after], durations_s[after + warmup : needed])} in {folder}\n")


def stages_of(pipeline: Any) -> list[Any]:
    """Return this rank's stages of a schedule; PyTorch has no public name for them."""
    return getattr(pipeline, "_stages", None) or [pipeline._stage]  # noqa: SLF001 - no public name


def _cost(before_s: list[float], recorded_s: list[float]) -> str:
    """Return in words how long steps took while they were recorded, and before."""
    text = f"recorded {len(recorded_s)} steps of {median(recorded_s) * 1e3:.3f} ms"
    return f"{text} (before the recording {median(before_s) * 1e3:.3f} ms)" if before_s else text


def _manifest_of(pipeline: Any) -> Manifest:
    """Return the manifest of a schedule's order."""
    if hasattr(pipeline, "_stage"):
        return Manifest.of(_one_stage_rows(pipeline), backend=dist.get_backend(), policy_options={})
    order = pipeline.pipeline_order_with_comms
    rows = [[str(action) for action in order[rank] if action.is_compute_op] for rank in sorted(order)]
    is_deferred = getattr(pipeline, "_defer_pp_recv", False)
    options = {"table_runtime": True, **({"receive": "deferred"} if is_deferred else {})}
    return Manifest.of(rows, backend=dist.get_backend(), policy_options=options)


def _one_stage_rows(pipeline: Any) -> list[list[str]]:
    """Return the rows of ``ScheduleGPipe`` or ``Schedule1F1B``.

    ``Schedule1F1B._get_pipeline_order`` of PyTorch 2.13 begins the last rank's row with microbatch 1.
    """
    stages, count = pipeline._stage.num_stages, pipeline._n_microbatches  # noqa: SLF001 - no public names
    rows = []
    for rank in range(stages):
        ahead = count if isinstance(pipeline, ScheduleGPipe) else min(stages - rank, count)
        row = [f"{rank}F{microbatch}" for microbatch in range(ahead)]
        for microbatch in range(count):
            row.append(f"{rank}B{microbatch}")
            row += [f"{rank}F{microbatch + ahead}"] * (microbatch + ahead < count)
        rows.append(row)
    return rows


@contextmanager
def _annotated(pipeline: Any) -> Iterator[None]:
    """Name the actions of a pipeline in traces, unless it is annotated, and remove all changes at the end."""
    if any(hasattr(stage, "pptrace_marks") for stage in stages_of(pipeline)):
        yield
        return
    annotation = types.ModuleType("pptrace_annotate")
    exec(module_for("pytorch"), annotation.__dict__)  # noqa: S102 - the text is part of this program
    annotation.annotate(pipeline)
    try:
        yield
    finally:
        annotation.restore(pipeline)
