"""Options of the schedule, its rows and their copies."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from pptrace.plugin import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.plugin import Int32s, Int64s

__all__ = ["TURNS", "Rows", "StpOptions", "copied", "rows_of"]

_Share = Annotated[float, Field(ge=0, le=1)]


class StpOptions(BaseModel):
    """Options of the warm-up and of offloading."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    warm_up: Literal["full", "lean"] = Field(
        default="full",
        description="full: as many forwards ahead as keep every rank busy, 3p chunks of activations. lean: as "
        "many as the steady state needs, 2p + 1 chunks, with longer gaps at the end.",
    )
    offload_warm_up: _Share = Field(
        default=0,
        description="Share of chunk 0's microbatches in the warm-up whose activations are copied to host memory; "
        "their copies should take less than a forward each, on average.",
    )
    offload_steady: _Share = Field(
        default=0, description="The same share from the first backward of chunk 0 on; it may be larger."
    )


_Block: TypeAlias = "tuple[tuple[Kind, int], ...]"
"""Kind and chunk of an action, or of two overlapping actions."""

_F0, _F1, _B0, _B1 = (((kind, chunk),) for kind in (Kind.F, Kind.B) for chunk in (0, 1))
_W: _Block = ((Kind.W, -1),)
"""The earliest pending weight gradient, of any chunk and microbatch."""
_FF, _FW = _F0 + _F0, _F0 + _W
_FB0, _FB1, _FI0, _FI1 = (((Kind.F, chunk), (kind, chunk)) for kind in (Kind.B, Kind.I) for chunk in (0, 1))
_BLOCKS = (_F0, _F1, _B0, _B1, _W, _FF, _FW, _FB0, _FB1, _FI0, _FI1)

TURNS: Mapping[tuple[Kind, ...], tuple[int, ...]] = MappingProxyType({
    (Kind.F, Kind.B): (0, 1, 1, 0, 1, 1), (Kind.F, Kind.I): (0, 1), (Kind.F, Kind.W): (0, 1),
    (Kind.F, Kind.F): (0, 1),
})  # fmt: skip
"""By kinds of a pair, the order in which its actions compute units: 0 for the first action, 1 for the second. The
all-reduce of each unit overlaps with the next unit."""


class _Step(NamedTuple):
    """Blocks that ranks repeat."""

    times: Int64s
    """Shape (ranks,): repetitions on each rank."""
    blocks: tuple[_Block, ...]


class Rows(NamedTuple):
    """Actions rank by rank, in order; all columns have one value per action."""

    rank: Int32s
    kind: NDArray[np.int8]
    chunk: Int32s
    """0 on the way down, 1 on the way up."""
    microbatch: Int32s
    block: Int32s
    """Number of the action's block, counted over all ranks."""


def rows_of(ranks: int, microbatches: int, *, lean: bool) -> Rows:
    """Return the rows of all ranks."""
    steps = _steps(ranks, microbatches, lean=lean)
    length = np.array([len(step.blocks) for step in steps])
    count = (np.stack([step.times for step in steps], axis=1) * length).ravel()
    step = np.repeat(np.arange(count.size), count)
    index_in_step = np.arange(step.size) - np.repeat(np.cumsum(count) - count, count)
    step %= len(steps)
    patterns = np.zeros((len(steps), int(length.max())), dtype=np.int64)
    for index, pattern_step in enumerate(steps):
        patterns[index, : len(pattern_step.blocks)] = [_BLOCKS.index(block) for block in pattern_step.blocks]
    block_kind = patterns[step, index_in_step % length[step]]
    rank = np.repeat(np.arange(ranks, dtype=np.int32), count.reshape(ranks, -1).sum(axis=1))
    return _with_microbatches(rank, block_kind, microbatches)


def _steps(ranks: int, microbatches: int, *, lean: bool) -> list[_Step]:
    """Return the steps of all ranks, in order."""
    rank = np.arange(ranks)
    later_ranks, weights = ranks - 1 - rank, 1 if lean else 2
    warm_up_forwards = 2 * ranks - rank if lean else 3 * ranks - 1 - rank
    steady_blocks = 2 * (microbatches - warm_up_forwards) + 1 - rank
    odd = steady_blocks % 2
    return [
        _Step(2 * later_ranks, (_F0,)),
        _Step(rank + 1, (_F0, _F1)),
        _Step(np.ones_like(rank) if lean else odd, (_F0,)),
        _Step(0 * rank if lean else (rank + 1) // 2, (_FF,)),
        _Step(later_ranks, (_FI1, _W if lean else _FW)),
        _Step(steady_blocks // 2, (_FB1, _FB0)),
        _Step(odd, (_FB1,)),
        _Step(odd * (rank // 2), (_FI0, _FI1)),
        _Step((1 - odd) * (rank // 2), (_FI1, _FI0)),
        _Step(rank % 2, (_FI1,)),
        _Step(later_ranks if lean else 2 * later_ranks + rank, (_B0, _FI1)),
        _Step(rank + 1, (_B0, _B1)),
        _Step(later_ranks, (_B0, *(_W,) * weights)),
        _Step(np.ones_like(rank), (_B0,)),
        _Step(weights * rank, (_W,)),
    ]


def _with_microbatches(rank: Int32s, block_kind: NDArray[np.int64], microbatches: int) -> Rows:
    """Assign microbatches: forwards and backwards in order, weight gradients in the order of input gradients."""
    sizes = np.array([len(block) for block in _BLOCKS])[block_kind]
    block = np.repeat(np.arange(block_kind.size, dtype=np.int32), sizes)
    is_second = np.zeros(block.size, dtype=np.int64)
    is_second[1:] = block[1:] == block[:-1]
    members = [(*block, *block)[:2] for block in _BLOCKS]
    kinds = np.array([[kind for kind, _ in block] for block in members], dtype=np.int8)
    chunks = np.array([[chunk for _, chunk in block] for block in members], dtype=np.int32)
    block_kind = np.repeat(block_kind, sizes)
    kind, chunk = kinds[block_kind, is_second], chunks[block_kind, is_second]
    microbatch = np.empty(kind.size, dtype=np.int32)
    forward, weight = kind == Kind.F, kind == Kind.W
    microbatch_numbers = np.arange(microbatches, dtype=np.int32)
    for chunk_number in (0, 1):
        for selected in (forward, ~forward & ~weight):
            rows = np.flatnonzero(selected & (chunk == chunk_number))
            microbatch[rows] = np.tile(microbatch_numbers, rows.size // microbatches)
    input_gradient = kind == Kind.I
    chunk[weight], microbatch[weight] = chunk[input_gradient], microbatch[input_gradient]
    return Rows(np.repeat(rank, sizes), kind, chunk, microbatch, block)


_ROUNDING = 1e-9
"""Tolerance for multiples of shares such as 0.1, which are not exact in floating point."""


def copied(rows: Rows, microbatches: int, warm_up: float, steady: float) -> NDArray[np.bool_]:
    """Return which activations are on the host between forward and backward, shape (stages, microbatches).

    Args:
        rows: the rows of all ranks.
        microbatches: number of microbatches.
        warm_up: share of microbatches with a forward before the rank's first backward of chunk 0.
        steady: share of all later microbatches.
    """
    is_first_chunk = rows.chunk == 0
    forward = np.flatnonzero(is_first_chunk & (rows.kind == Kind.F)).reshape(-1, microbatches)
    is_backward = (rows.kind == Kind.B) | (rows.kind == Kind.I)
    backward = np.flatnonzero(is_first_chunk & is_backward).reshape(forward.shape)
    is_warm_up = rows.block[forward] < rows.block[backward[:, :1]]
    chosen = _spread(is_warm_up, warm_up) | _spread(~is_warm_up, steady)
    return np.concatenate([chosen, np.zeros_like(chosen)])


def _spread(candidates: NDArray[np.bool_], share: float) -> NDArray[np.bool_]:
    """Return an evenly distributed share of the true entries of each row."""
    count = np.floor(np.cumsum(candidates, axis=1) * share + _ROUNDING)
    chosen: NDArray[np.bool_] = candidates & (np.diff(count, axis=1, prepend=0) > 0)
    return chosen
