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

    from pptrace.plugin import Int8s, Int32s, Int64s

__all__ = ["TURNS", "Rows", "StpOptions", "copied", "rows_of"]

_Share = Annotated[float, Field(ge=0, le=1)]


class StpOptions(BaseModel):
    """How far the warm-up runs ahead, and what is copied to host memory."""

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
"""Kind and chunk of an action, or of both that overlap."""

_F0, _F1, _B0, _B1 = (((kind, chunk),) for kind in (Kind.F, Kind.B) for chunk in (0, 1))
_W: _Block = ((Kind.W, -1),)
"""A weight gradient of the chunk and microbatch whose turn it is."""
_FF, _FW = _F0 + _F0, _F0 + _W
_FB0, _FB1, _FI0, _FI1 = (((Kind.F, chunk), (kind, chunk)) for kind in (Kind.B, Kind.I) for chunk in (0, 1))
_BLOCKS = (_F0, _F1, _B0, _B1, _W, _FF, _FW, _FB0, _FB1, _FI0, _FI1)

TURNS: Mapping[tuple[Kind, ...], tuple[int, ...]] = MappingProxyType({
    (Kind.F, Kind.B): (0, 1, 1, 0, 1, 1), (Kind.F, Kind.I): (0, 1), (Kind.F, Kind.W): (0, 1),
    (Kind.F, Kind.F): (0, 1),
})  # fmt: skip
"""Whose next unit a pair computes: attention or MLP of the forward, then of the backward for the input, then for
the weights, so that each all-reduce has the next unit beside it."""


class _Step(NamedTuple):
    """Blocks that a rank repeats."""

    times: Int64s
    """Shape (ranks,)."""
    blocks: tuple[_Block, ...]


class Rows(NamedTuple):
    """Actions rank by rank, in order; all columns have one value per action."""

    rank: Int32s
    kind: Int8s
    chunk: Int32s
    """0 on the way down, 1 on the way up."""
    microbatch: Int32s
    block: Int32s
    """Number of the block that it is in, counted over all ranks."""


def rows_of(ranks: int, microbatches: int, *, lean: bool) -> Rows:
    """Return the rows of all ranks."""
    steps = _steps(ranks, microbatches, lean=lean)
    length = np.array([len(step.blocks) for step in steps])
    count = (np.stack([step.times for step in steps], axis=1) * length).ravel()
    step = np.repeat(np.arange(count.size), count)
    within = np.arange(step.size) - np.repeat(np.cumsum(count) - count, count)
    step %= len(steps)
    patterns = np.zeros((len(steps), int(length.max())), dtype=np.int64)
    for index, pattern_step in enumerate(steps):
        patterns[index, : len(pattern_step.blocks)] = [_BLOCKS.index(block) for block in pattern_step.blocks]
    sort = patterns[step, within % length[step]]
    rank = np.repeat(np.arange(ranks, dtype=np.int32), count.reshape(ranks, -1).sum(axis=1))
    return _numbered(rank, sort, microbatches)


def _steps(ranks: int, microbatches: int, *, lean: bool) -> list[_Step]:
    """Return what each rank does, in order."""
    rank = np.arange(ranks)
    behind, weights = ranks - 1 - rank, 1 if lean else 2
    ahead = 2 * ranks - rank if lean else 3 * ranks - 1 - rank
    whole = 2 * (microbatches - ahead) + 1 - rank
    odd = whole % 2
    return [
        _Step(2 * behind, (_F0,)),
        _Step(rank + 1, (_F0, _F1)),
        _Step(np.ones_like(rank) if lean else odd, (_F0,)),
        _Step(0 * rank if lean else (rank + 1) // 2, (_FF,)),
        _Step(behind, (_FI1, _W if lean else _FW)),
        _Step(whole // 2, (_FB1, _FB0)),
        _Step(odd, (_FB1,)),
        _Step(odd * (rank // 2), (_FI0, _FI1)),
        _Step((1 - odd) * (rank // 2), (_FI1, _FI0)),
        _Step(rank % 2, (_FI1,)),
        _Step(behind if lean else 2 * behind + rank, (_B0, _FI1)),
        _Step(rank + 1, (_B0, _B1)),
        _Step(behind, (_B0, *(_W,) * weights)),
        _Step(np.ones_like(rank), (_B0,)),
        _Step(weights * rank, (_W,)),
    ]


def _numbered(rank: Int32s, sort: NDArray[np.int64], microbatches: int) -> Rows:
    """Give every action its microbatch: forwards and backwards in order, weight gradients as they fell due."""
    sizes = np.array([len(block) for block in _BLOCKS])[sort]
    block = np.repeat(np.arange(sort.size, dtype=np.int32), sizes)
    second = np.zeros(block.size, dtype=np.int64)
    second[1:] = block[1:] == block[:-1]
    members = [(*block, *block)[:2] for block in _BLOCKS]
    kinds = np.array([[kind for kind, _ in block] for block in members], dtype=np.int8)
    chunks = np.array([[chunk for _, chunk in block] for block in members], dtype=np.int32)
    sort = np.repeat(sort, sizes)
    kind, chunk = kinds[sort, second], chunks[sort, second]
    microbatch = np.empty(kind.size, dtype=np.int32)
    forward, weight = kind == Kind.F, kind == Kind.W
    each = np.arange(microbatches, dtype=np.int32)
    for own in (0, 1):
        for passes in (forward, ~forward & ~weight):
            rows = np.flatnonzero(passes & (chunk == own))
            microbatch[rows] = np.tile(each, rows.size // microbatches)
    due = kind == Kind.I
    chunk[weight], microbatch[weight] = chunk[due], microbatch[due]
    return Rows(np.repeat(rank, sizes), kind, chunk, microbatch, block)


_ROUNDING = 1e-9
"""Of shares such as 0.1, whose multiples are whole but for this."""


def copied(rows: Rows, microbatches: int, warm_up: float, steady: float) -> NDArray[np.bool_]:
    """Return which activations are on the host between forward and backward, shape (stages, microbatches).

    Args:
        rows: the rows of all ranks.
        microbatches: how many there are.
        warm_up: the share of those whose forwards come before a rank's first backward of chunk 0.
        steady: the share of the others.
    """
    below = rows.chunk == 0
    forward = np.flatnonzero(below & (rows.kind == Kind.F)).reshape(-1, microbatches)
    backward = np.flatnonzero(below & ((rows.kind == Kind.B) | (rows.kind == Kind.I))).reshape(forward.shape)
    early = rows.block[forward] < rows.block[backward[:, :1]]
    chosen = _spread(early, warm_up) | _spread(~early, steady)
    return np.concatenate([chosen, np.zeros_like(chosen)])


def _spread(among: NDArray[np.bool_], share: float) -> NDArray[np.bool_]:
    """Return which of some entries of each row are a share of them, spread evenly."""
    due = np.floor(np.cumsum(among, axis=1) * share + _ROUNDING)
    chosen: NDArray[np.bool_] = among & (np.diff(due, axis=1, prepend=0) > 0)
    return chosen
