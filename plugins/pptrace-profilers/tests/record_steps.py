"""Record steps of a pipeline with PyTorch's profiler: four processes, gloo, sleeps instead of work.

The fixture ``five-steps`` is what this wrote with torch 2.13.0:

    pptrace annotate -o pptrace_annotate.py
    python record_steps.py FOLDER --marks pptrace_annotate.py

Sleeps let more ranks than cores run side by side. Names of hosts and files are left out of the traces.
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
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.profiler import ProfilerActivity, profile, schedule

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
WIDTH, ROWS = 64, 32
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
    """One stage's work."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))
        self.seconds = seconds

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        weight = SleepOnWeight.apply(self.weight, self.seconds)
        return SleepOnActivation.apply(tensor * weight, self.seconds)


def ran(rank: int, options: argparse.Namespace, folder: str) -> None:
    """Run one rank's steps."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port), "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=options.ranks)
    stage = PipelineStage(Layer(options.sleep_ms / 1000), rank, options.ranks, torch.device("cpu"))
    pipeline = SCHEDULES[options.schedule](
        stage, n_microbatches=options.microbatches, loss_fn=lambda output, _: output.sum()
    )
    if options.marks:
        marks(options.marks).annotate(pipeline)
    batch = torch.ones(ROWS * options.microbatches, WIDTH)
    path = Path(folder) / f"rank{rank}.json"
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True,
        schedule=schedule(wait=0, warmup=1, active=options.steps, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:  # fmt: skip
        for _ in range(options.steps + 1):
            dist.barrier()
            given = (batch,) if rank == 0 else ()
            pipeline.step(*given, **({"target": batch} if rank == options.ranks - 1 else {}))
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
    parser.add_argument("--port", type=int, default=29533)
    options = parser.parse_args()
    Path(options.folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(ran, (options, folder), nprocs=options.ranks)


if __name__ == "__main__":
    sys.exit(main())
