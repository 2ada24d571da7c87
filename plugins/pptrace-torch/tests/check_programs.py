"""Checks that need PyTorch in several processes: ``python check_programs.py gradients`` or ``captures FOLDER``."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from pipelines import gradient_errors, loss_of, modules, on_each_rank, run_step, stages_of
from runnable import NOT_RUN, runnable_tables
from torch.distributed import distributed_c10d
from torch.distributed.pipelining import schedules

from pptrace.errors import PptraceError, ScheduleError
from pptrace.plugin import Registry
from pptrace_torch import capture, load

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS, MICROBATCHES = 2, 4
"""Sizes of captured runs; in those with several stages per rank, some stages are neither first nor last."""
CLOSE = 5e-6
CLASSES: dict[str, Callable[[int], list[int]]] = {
    "ScheduleGPipe": lambda rank: [rank],
    "Schedule1F1B": lambda rank: [rank],
    "ScheduleInterleaved1F1B": lambda rank: [rank, rank + RANKS],
    "ScheduleLoopedBFS": lambda rank: [rank, rank + RANKS],
    "ScheduleInterleavedZeroBubble": lambda rank: [rank, rank + RANKS],
    "ScheduleZBVZeroBubble": lambda rank: [rank, 2 * RANKS - 1 - rank],
    "ScheduleDualPipeV": lambda rank: [rank, 2 * RANKS - 1 - rank],
}
"""Schedule classes of PyTorch, and the stages of a rank."""
REPLACED = (
    "forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk",
    "get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops",
)  # fmt: skip
"""Methods of a stage that annotations replace."""


def gradients() -> None:
    """Compare the gradients of every schedule with autograd's, and refuse the stages of another rank.

    On two ranks, all messages of a rank with several stages go to the same peer.
    """
    tables = {ranks: runnable_tables(ranks, 3 * ranks) for ranks in (3, 2)}
    assert set(Registry.load().schedules) - set(tables[3]) == NOT_RUN
    tables[2] = {name: table for name, table in tables[2].items() if table.stages > table.ranks}
    assert tables[2]
    for ranks, of_ranks in tables.items():
        for name, error in gradient_errors(ranks, of_ranks).items():
            assert error < CLOSE, f"{name} on {ranks} ranks: {error}"
    table = runnable_tables(RANKS, MICROBATCHES)["1f1b"]
    reasons = on_each_rank(
        RANKS, lambda rank: error_of(lambda: load(table, stages_of(modules(RANKS), [(rank + 1) % RANKS]), loss_of))
    )
    assert all("stages" in reason for reason in reasons), reasons


def captures(folder: str) -> None:
    """Record every schedule class of PyTorch and a table, and check what a failure leaves."""
    table = runnable_tables(RANKS, MICROBATCHES)["zb-h1"]

    def results(rank: int) -> dict[str, str]:
        found = {name: captured(class_pipeline(name, rank), Path(folder) / name) for name in CLASSES}
        pipeline = load(table, stages_of(modules(RANKS), [rank]), loss_of)
        return found | {
            "table": captured(pipeline, Path(folder) / "table"),
            "failures": failures(rank, Path(folder)),
        }

    for rank, found in enumerate(on_each_rank(RANKS, results)):
        assert found == dict.fromkeys([*CLASSES, "table", "failures"], "clean"), f"rank {rank}: {found}"


def class_pipeline(name: str, rank: int) -> Any:
    """Return a schedule of a class of PyTorch."""
    indices = CLASSES[name](rank)
    stages = stages_of(modules(len(indices) * RANKS), indices)
    return getattr(schedules, name)(stages if len(stages) > 1 else stages[0], MICROBATCHES, loss_fn=loss_of)


def captured(pipeline: Any, folder: Path) -> str:
    """Return ``clean`` if a capture removed all its changes."""
    before = replaced_functions(pipeline)
    with capture(pipeline, folder, after=1, warmup=1, steps=2):
        run_steps(pipeline, 5)
    return "clean" if replaced_functions(pipeline) == before else "changes are left"


def failures(rank: int, folder: Path) -> str:
    """Return ``clean`` if captures that fail say why, leave no trace, and keep what is not theirs."""
    pipeline = class_pipeline("Schedule1F1B", rank)
    stage = pipeline._stage  # noqa: SLF001 - no public name
    own_step, own_forward = pipeline.step, stage.forward_one_chunk
    pipeline.step = partial(own_step)
    stage.forward_one_chunk = partial(own_forward)
    before = replaced_functions(pipeline)

    def run(output: Path, **window: int) -> None:
        with capture(pipeline, output, **window):
            run_steps(pipeline, 3)

    def raise_in_recording() -> None:
        with capture(pipeline, folder / "raising", after=0, warmup=1, steps=3):
            run_steps(pipeline, 2)
            raise ScheduleError("of the program")

    (folder / f"file{rank}").write_text("")
    reasons = [
        error_of(lambda: run(folder / "short", after=0, warmup=1, steps=3)),
        error_of(raise_in_recording),
        error_of(lambda: run(folder / f"file{rank}")),
        error_of(lambda: run(folder / "none", steps=0)),
    ]
    for reason, words in zip(reasons, ("3 of 4 steps", "of the program", "cannot be made", "steps"), strict=True):
        if words not in reason or "\n" in reason:
            return f"{words}: {reason}"
    left = [str(file) for name in ("short", "raising", "none") for file in (folder / name).glob("*")]
    if left:
        return f"left: {left}"
    return "clean" if replaced_functions(pipeline) == before else "changes are left"


def run_steps(pipeline: Any, count: int) -> None:
    """Run some steps of a pipeline."""
    stages = local_stages(pipeline)
    for _ in range(count):
        dist.barrier()
        run_step(pipeline, [stage.stage_index for stage in stages], stages[0].num_stages, MICROBATCHES)


def replaced_functions(pipeline: Any) -> list[Any]:
    """Return everything that a capture replaces."""
    functions = [getattr(module, name) for module in (dist, distributed_c10d) for name in ("isend", "irecv")]
    methods = [getattr(stage, name) for stage in local_stages(pipeline) for name in REPLACED]
    marks = [hasattr(stage, "pptrace_marks") for stage in local_stages(pipeline)]
    return [*functions, *methods, *marks, pipeline.step]


def local_stages(pipeline: Any) -> list[Any]:
    """Return this rank's stages of a schedule."""
    return getattr(pipeline, "_stages", None) or [pipeline._stage]  # noqa: SLF001 - no public name


def error_of(function: Callable[[], Any]) -> str:
    """Return the message of an error that a user can cause."""
    try:
        function()
    except PptraceError as error:
        return str(error)
    return "accepted"


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"gradients": gradients, "captures": captures}[sys.argv[1]](*sys.argv[2:])
