"""One rank of a run: stages of configured times or real layers, steps under the profiler, and the trace."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import time
import traceback
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

from pptrace_torch.runtime import load, record_steps

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from pptrace_torch.manifest import Manifest, StageTimes
    from pptrace_torch.scaled_model import ScaledModel


WIDTH = 256
"""Width of the messages of sleeping stages."""
_BYTES = 4
"""Bytes of a float32."""


class _SleepOnActivation(torch.autograd.Function):  # type: ignore[misc]  # PyTorch's types are not read
    """Sleeps in the forward, and in the backward that makes the input gradient."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, sleeps: _Sleeps) -> torch.Tensor:
        context.sleeps = sleeps
        occupy(sleeps.times.forward_ns, tensor.device)
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        times = context.sleeps.times
        duration_ns = (
            times.backward_ns - times.weight_gradient_ns if context.sleeps.whole else times.input_gradient_ns
        )
        occupy(duration_ns, gradients[0].device)
        return gradients[0], None


class _SleepOnWeight(torch.autograd.Function):  # type: ignore[misc]  # PyTorch's types are not read
    """Sleeps in the backward that makes the weight gradient."""

    @staticmethod
    def forward(context: Any, weight: torch.Tensor, sleeps: _Sleeps) -> torch.Tensor:
        context.sleeps = sleeps
        return weight.view_as(weight)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        times = context.sleeps.times
        duration_ns = times.weight_gradient_ns
        occupy(min(duration_ns, times.backward_ns) if context.sleeps.whole else duration_ns, gradients[0].device)
        return gradients[0], None


class _Sleeps(torch.nn.Module):  # type: ignore[misc]  # PyTorch's types are not read
    """A module that only sleeps."""

    def __init__(self, times: StageTimes) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.times = times
        """Times of the microbatch that runs."""
        self.whole = False
        """Whether the backward that runs is whole."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        weight = _SleepOnWeight.apply(self.weight, self)
        return _SleepOnActivation.apply(tensor * weight, self)


class _SleepingStage(PipelineStage):  # type: ignore[misc]  # PyTorch's types are not read
    """A stage that gives its module the times of the microbatch that runs."""

    def __init__(self, manifest: Manifest, index: int, stages: int, device: torch.device) -> None:
        super().__init__(_Sleeps(manifest.times(index, 0)).to(device), index, stages, device)
        self.manifest = manifest

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        self.submod.times = self.manifest.times(self.stage_index, fwd_chunk_id)
        return super().forward_one_chunk(fwd_chunk_id, *args, **options)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, full_backward: bool = True, **options: Any) -> Any:
        self.submod.times = self.manifest.times(self.stage_index, bwd_chunk_id)
        self.submod.whole = full_backward
        return super().backward_one_chunk(bwd_chunk_id, *args, full_backward=full_backward, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        self.submod.times = self.manifest.times(self.stage_index, bwd_chunk_id)
        return super().backward_weight_one_chunk(bwd_chunk_id, *args, **options)


class _Layer(torch.nn.Module):  # type: ignore[misc]  # PyTorch's types are not read
    """A transformer layer: attention and an MLP, each after a norm and with a residual connection."""

    def __init__(self, model: ScaledModel, mlp_width: int) -> None:
        super().__init__()
        hidden, self.causal = model.hidden, model.causal
        self.heads = (model.heads, model.kv_heads, model.kv_heads)
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(hidden) for _ in range(2))
        self.products = torch.nn.ModuleList(_linear(hidden, heads * model.head_dim) for heads in self.heads)
        self.output = _linear(model.heads * model.head_dim, hidden)
        self.inner = torch.nn.ModuleList(_linear(hidden, mlp_width) for _ in range(1 + model.gated))
        self.outer = _linear(mlp_width, hidden)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor + self._attention(self.norms[0](tensor))
        return tensor + self._mlp(self.norms[1](tensor))

    def _attention(self, tensor: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            product(tensor).unflatten(-1, (heads, -1)).transpose(1, 2)
            for product, heads in zip(self.products, self.heads, strict=True)
        )
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=self.causal, enable_gqa=self.heads[0] != self.heads[1]
        )
        return self.output(attended.transpose(1, 2).flatten(2))

    def _mlp(self, tensor: torch.Tensor) -> torch.Tensor:
        inner = functional.silu(self.inner[0](tensor))
        for product in self.inner[1:]:
            inner = inner * product(tensor)
        return self.outer(inner)


def _linear(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Linear(inputs, outputs, bias=False)


def real_stage(model: ScaledModel, index: int) -> torch.nn.Module:
    """Return the modules of a stage; its weights depend on ``index`` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(index)
        items = model.stages[index]
        modules = [torch.nn.Embedding(model.vocabulary, model.hidden)] if items.embedding else []
        modules += [_Layer(model, width) for width in items.mlp_widths]
        if items.head:
            modules += [torch.nn.RMSNorm(model.hidden), _linear(model.hidden, model.vocabulary)]
        return torch.nn.Sequential(*modules)


def tokens(model: ScaledModel, microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random tokens and the tokens after them, each of shape (sequences of the step, sequence)."""
    generator = torch.Generator().manual_seed(microbatches)
    shape = (microbatches * model.sequences, model.sequence + 1)
    drawn = torch.randint(model.vocabulary, shape, generator=generator)
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def token_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of predicted tokens."""
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


def rows_of(size_bytes: int) -> int:
    """Return the rows of a tensor of shape (rows, WIDTH) with about this size, at least 1."""
    return max(1, -(-size_bytes // (_BYTES * WIDTH)))


def occupy(duration_ns: int, device: torch.device) -> None:
    """Occupy a stage's device: the process sleeps, and a GPU counts its clock.

    ``time.sleep`` overshoots by less than 0.1 ms.
    """
    if device.type == "cuda":
        torch.cuda._sleep(round(max(duration_ns, 0) * cycles_per_ns(device)))  # noqa: SLF001 - no public name
    else:
        time.sleep(max(duration_ns, 0) / 1e9)


_MEASURED_CYCLES = 100_000_000
"""Cycles whose time is measured: some 50 ms."""


@cache
def cycles_per_ns(device: torch.device) -> float:
    """Return the measured rate of the clock that ``torch.cuda._sleep`` counts."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_MEASURED_CYCLES // 10)  # noqa: SLF001 - the clock rises to its rate
    begin.record()
    torch.cuda._sleep(_MEASURED_CYCLES)  # noqa: SLF001 - no public name
    end.record()
    torch.cuda.synchronize(device)
    elapsed_ms: float = begin.elapsed_time(end)
    return _MEASURED_CYCLES / (elapsed_ms * 1e6)


_DIE_WITH_PARENT = 1
"""``PR_SET_PDEATHSIG`` of prctl(2)."""


class Job(Struct, frozen=True, kw_only=True):
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
    return _SleepingStage(manifest, index, stages, device)


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
