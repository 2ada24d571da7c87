"""Record steps of a pipeline with PyTorch's profiler: some processes, gloo, sleeps or real computation.

The fixture ``five-steps`` is what this wrote with torch 2.13.0:

    pptrace annotate -o pptrace_annotate.py
    python record_steps.py FOLDER --marks pptrace_annotate.py

Sleeps let more ranks than cores run side by side. Real computation wants a core for each rank, and memory that was
touched before, for what the profiler keeps makes PyTorch take fresh pages:

    python record_steps.py FOLDER/zbv --schedule zbv --ranks 2 --pin --sleep-ms 0 --layers 6 --width 512 \
        --rows 256 --microbatches 16 --steps 3 --touched-mib 2500 --marks pptrace_annotate.py

Names of hosts and files are left out of the traces.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)
from torch.profiler import ProfilerActivity, profile, schedule

SCHEDULES: dict[str, tuple[Any, int]] = {
    "1f1b": (Schedule1F1B, 1), "gpipe": (ScheduleGPipe, 1), "interleaved1f1b": (ScheduleInterleaved1F1B, 2),
    "looped_bfs": (ScheduleLoopedBFS, 2), "interleaved_zb": (ScheduleInterleavedZeroBubble, 2),
    "zbv": (ScheduleZBVZeroBubble, 2),
}  # fmt: skip
"""Schedules, and how many stages a rank holds."""
THERE_AND_BACK = ("zbv",)
LEFT_OUT = ("host_name", "traceName", "trace_id", "username")


class SleepOnActivation(torch.autograd.Function):
    """Sleeps forward, and backward where the input gradient is made."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        time.sleep(seconds)
        return tensor.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.seconds)
        return gradient, None


class SleepOnWeight(torch.autograd.Function):
    """Sleeps backward where the weight gradient is made."""

    @staticmethod
    def forward(context: Any, weight: torch.Tensor, seconds: float) -> torch.Tensor:
        context.seconds = seconds
        return weight.view_as(weight)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(context.seconds)
        return gradient, None


class Layer(torch.nn.Module):
    """A stage's sleeps."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.seconds = seconds

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        weight = SleepOnWeight.apply(self.weight, self.seconds)
        return SleepOnActivation.apply(tensor * weight, self.seconds)


def work(options: argparse.Namespace, chunks: int) -> torch.nn.Module:
    """Return one stage's work: a rank's stages take as long together, however many it holds."""
    layers: list[torch.nn.Module] = []
    for _ in range(2 * options.layers // chunks):
        layers += [torch.nn.Linear(options.width, options.width), torch.nn.Tanh()]
    if options.sleep_ms:
        layers.append(Layer(options.width, options.sleep_ms / 1000 / chunks))
    return layers[0] if len(layers) == 1 else torch.nn.Sequential(*layers)


def schedule_of(rank: int, options: argparse.Namespace) -> tuple[Any, list[int]]:
    """Return a rank's schedule and the stages that it holds."""
    made, chunks = SCHEDULES[options.schedule]
    last = options.ranks * chunks - 1
    around = [rank + chunk * options.ranks for chunk in range(chunks)]
    held = [rank, last - rank] if options.schedule in THERE_AND_BACK else around
    device = torch.device("cpu")
    stages = [PipelineStage(work(options, chunks), stage, last + 1, device) for stage in held]
    pipeline = made(
        stages[0] if chunks == 1 else stages, n_microbatches=options.microbatches,
        loss_fn=lambda output, _: output.sum(),
    )  # fmt: skip
    return pipeline, held


def ran(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Run one rank's steps."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port), "GLOO_SOCKET_IFNAME": "lo"}
    if options.pin:
        os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
    torch.set_num_threads(1)
    touched = [torch.ones(1 << 18) for _ in range(options.touched_mib)]
    del touched
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    pipeline, held = schedule_of(rank, options)
    last = options.ranks * SCHEDULES[options.schedule][1] - 1
    if options.marks:
        marks(options.marks).annotate(pipeline)
    batch = torch.ones(options.rows * options.microbatches, options.width)
    path = Path(folder) / f"rank{rank}.json"
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=options.steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:  # fmt: skip
        for _ in range(options.steps + 1):
            dist.barrier()
            given = (batch,) if 0 in held else ()
            pipeline.step(*given, **({"target": batch} if last in held else {}))
            profiler.step()
    dist.destroy_process_group()
    target = Path(options.folder) / f"rank{rank}.json.gz"
    target.write_bytes(gzip.compress(stripped(path), compresslevel=9, mtime=0))


def marks(path: str) -> Any:
    """Return what ``pptrace annotate`` printed, as a module."""
    found = importlib.util.spec_from_file_location("pptrace_annotate", path)
    if found is None or found.loader is None:
        raise SystemExit(f"{path} is no module")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def stripped(path: Path) -> bytes:
    """Return a trace without what names the machine, and without what nothing reads."""
    trace = json.loads(path.read_bytes())
    kept = {key: value for key, value in trace.items() if key not in LEFT_OUT}
    for event in kept["traceEvents"]:
        for key in ("Input Strides", "Record function id", "Ev Idx"):
            event.get("args", {}).pop(key, None)
    return json.dumps(kept).encode()


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--marks", help="the module that pptrace annotate printed")
    parser.add_argument("--schedule", choices=tuple(SCHEDULES), default="1f1b")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--sleep-ms", type=float, default=20)
    parser.add_argument("--layers", type=int, default=0, help="linear layers of half a rank's work")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--pin", action="store_true", help="a core for each rank")
    parser.add_argument("--touched-mib", type=int, default=0, help="memory that is touched before")
    parser.add_argument("--port", type=int, default=29533)
    options = parser.parse_args()
    if options.touched_mib:  # glibc gives freed memory back otherwise; it reads this as the processes start
        os.environ |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 36)}
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        method = "spawn" if options.touched_mib else "fork"
        processes.start_processes(ran, (options, folder), nprocs=options.ranks, start_method=method)


if __name__ == "__main__":
    sys.exit(main())
