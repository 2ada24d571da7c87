"""Stages of a run: sleeps of configured times, or real layers of a scaled model."""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.pipelining import PipelineStage
from torch.nn import functional

if TYPE_CHECKING:
    from pptrace_torch.manifest import Manifest, StageTimes
    from pptrace_torch.scaled_model import ScaledModel

__all__ = ["WIDTH", "cycles_per_ns", "occupy", "real_stage", "rows_of", "sleeping_stage", "token_loss", "tokens"]

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


def sleeping_stage(manifest: Manifest, index: int, stages: int, device: torch.device) -> PipelineStage:
    """Return a stage that takes the times of a manifest."""
    return _SleepingStage(manifest, index, stages, device)


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
