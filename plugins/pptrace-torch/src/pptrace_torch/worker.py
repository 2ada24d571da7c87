"""One rank of a run: its stages, its steps under the profiler, and its trace."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from pptrace_torch.recording import record_steps
from pptrace_torch.runtime import load
from pptrace_torch.stages import WIDTH, real_stage, rows_of, sleeping_stage, token_loss, tokens

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pptrace_torch.manifest import Manifest

__all__ = ["Job", "run_rank"]

_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every rank runs."""

    manifest: Manifest
    """The table, the stages and the backend."""
    steps: int
    """Recorded steps; one more runs before them."""
    timeout_s: float
    """Limit of any wait for another rank."""
    folder: str
    """Folder of the traces and of the ranks' store."""


def run_rank(rank: int, job: Job, reports: Connection, parent: int) -> None:
    """Run one rank in its own process, and report its steps, its error or its end.

    Args:
        rank: the pipeline rank.
        job: what to run.
        reports: receives ``("step", number)``, ``("error", text)`` or ``("end",)``.
        parent: process that this one ends with.
    """
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends all ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    logging.disable(logging.CRITICAL)
    try:
        _run(rank, job, reports)
        reports.send(("end",))
    except BaseException as error:  # noqa: BLE001 - the parent reports it
        reports.send(("error", _described(error)))
        os._exit(1)
    os._exit(0)


def _described(error: BaseException) -> str:
    """Return the first cause of an error as one line, with the last place that is not PyTorch's."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/torch/" not in frame.filename]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}{place}"


def _run(rank: int, job: Job, reports: Connection) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    manifest = job.manifest
    schedule, device = manifest.schedule, _device(manifest.backend, rank)
    store = dist.FileStore(str(Path(job.folder) / ".store"), schedule.ranks)
    dist.init_process_group(
        manifest.backend, store=store, rank=rank, world_size=schedule.ranks,
        timeout=timedelta(seconds=job.timeout_s), device_id=device if device.type == "cuda" else None,
    )  # fmt: skip
    local_stages = schedule.placement.stages_of(rank)
    stages = [_stage(manifest, index, schedule.stages, device) for index in local_stages]
    runtime = load(schedule, stages, _sum if manifest.model is None else token_loss)
    batch, target = _data(manifest, schedule.microbatches, device)
    inputs = (batch,) if 0 in local_stages else ()
    targets: dict[str, Any] = {"target": target} if schedule.stages - 1 in local_stages else {}
    with record_steps(
        Path(job.folder) / f"rank{rank}.json.gz", warmup=1, steps=job.steps, device=device
    ) as profiler:
        for number in range(job.steps + 1):
            dist.barrier()
            runtime.step(*inputs, **targets)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            for stage in stages:
                stage.submod.zero_grad()
            profiler.step()
            reports.send(("step", number))
    dist.barrier()
    dist.destroy_process_group()


def _device(backend: str, rank: int) -> torch.device:
    """Return the device of a rank, and make it the current one."""
    if backend != "nccl":
        return torch.device("cpu")
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def _stage(manifest: Manifest, index: int, stages: int, device: torch.device) -> PipelineStage:
    if manifest.model is not None:
        return PipelineStage(real_stage(manifest.model, index).to(device), index, stages, device)
    return sleeping_stage(manifest, index, stages, device)


def _data(manifest: Manifest, microbatches: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the inputs and the targets of a step, the same on all ranks."""
    if manifest.model is not None:
        inputs, targets = tokens(manifest.model, microbatches)
        return inputs.to(device), targets.to(device)
    sizes = [times.message_bytes for stages in (manifest.stages, *manifest.classes) for times in stages]
    batch = torch.ones(rows_of(max(sizes)) * microbatches, WIDTH, device=device)
    return batch, batch


def _sum(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    return output.sum()
