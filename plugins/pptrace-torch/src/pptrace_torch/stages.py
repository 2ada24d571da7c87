"""Modules of stages: sleeps of configured times, or real layers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.pipelining import PipelineStage

if TYPE_CHECKING:
    from pptrace_torch.manifest import StageTimes

__all__ = ["BLOCKS", "WIDTH", "blocks", "rows_of", "sleeping_stage"]

WIDTH = 256
"""Width of real layers."""
BLOCKS = 2
"""Residual blocks of a real stage."""
_BYTES = 4
"""Bytes of a float32."""


class _SleepOnActivation(torch.autograd.Function):  # type: ignore[misc]  # PyTorch's types are not read
    """Sleeps in the forward, and in the backward that makes the input gradient."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, sleeps: _Sleeps) -> torch.Tensor:
        context.sleeps = sleeps
        _sleep(sleeps.times.forward_ns)
        return tensor.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        times = context.sleeps.times
        _sleep(times.backward_ns - times.weight_gradient_ns if context.sleeps.whole else times.input_gradient_ns)
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
        _sleep(
            min(times.weight_gradient_ns, times.backward_ns) if context.sleeps.whole else times.weight_gradient_ns
        )
        return gradients[0], None


class _Sleeps(torch.nn.Module):  # type: ignore[misc]  # PyTorch's types are not read
    """A module that only sleeps."""

    def __init__(self, times: StageTimes) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.times = times
        self.whole = False
        """Whether the backward that runs is whole."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        weight = _SleepOnWeight.apply(self.weight, self)
        return _SleepOnActivation.apply(tensor * weight, self)


class _SleepingStage(PipelineStage):  # type: ignore[misc]  # PyTorch's types are not read
    """A stage whose module knows whether a backward is whole."""

    def backward_one_chunk(self, *args: Any, full_backward: bool = True, **options: Any) -> Any:
        self.submod.whole = full_backward
        return super().backward_one_chunk(*args, full_backward=full_backward, **options)


def sleeping_stage(times: StageTimes, index: int, stages: int, device: torch.device) -> PipelineStage:
    """Return a stage that sleeps for its configured times."""
    return _SleepingStage(_Sleeps(times), index, stages, device)


class _Block(torch.nn.Module):  # type: ignore[misc]  # PyTorch's types are not read
    """Two linear layers with a residual connection, as in the MLP of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(tensor)))
        return tensor + hidden


def blocks(count: int, width: int) -> torch.nn.Module:
    """Return a module of residual blocks."""
    return torch.nn.Sequential(*(_Block(width) for _ in range(count)))


def rows_of(size_bytes: int) -> int:
    """Return the rows of a tensor of shape (rows, WIDTH) with about this size, at least 1."""
    return max(1, -(-size_bytes // (_BYTES * WIDTH)))


def _sleep(duration_ns: int) -> None:
    """Sleep until the duration is over, which ``time.sleep`` overshoots by less than 0.1 ms."""
    time.sleep(max(duration_ns, 0) / 1e9)
