"""Rows from what a rank repeats, so many times each: ``F0``, ``I1``, ``W``, and pairs such as ``F0&B1``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.plugin import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.plugin import Int8s, Int32s

__all__ = ["Rows", "Step", "rows_of"]


class Step(NamedTuple):
    """Blocks that a rank repeats."""

    times: NDArray[np.integer]
    """Shape (rows,): how often each row does."""
    blocks: str
    """Kind and chunk, with ``&`` between the members of an overlapped pair; ``W`` is the earliest that is due."""


class Rows(NamedTuple):
    """Actions row by row, in order; all columns but the first have one value per action."""

    row_ptr: Int32s
    """Shape (rows + 1,): where each row begins."""
    kind: Int8s
    chunk: Int32s
    microbatch: Int32s
    """Counted for each row and chunk from 0, forwards and backwards each in order."""
    pair: Int32s
    """Number of the overlapped pair, -1 outside."""

    @property
    def row(self) -> Int32s:
        """Each action's row."""
        return np.repeat(np.arange(self.row_ptr.size - 1, dtype=np.int32), np.diff(self.row_ptr))


class _Pattern(NamedTuple):
    """The actions of all steps' blocks, one after another."""

    kind: Int8s
    chunk: Int32s
    first: Int32s
    """1 where a pair begins."""
    member: NDArray[np.bool_]
    """Whether the action is in a pair."""
    length: NDArray[np.int64]
    """Shape (steps,): actions of each step."""


def rows_of(steps: Sequence[Step], microbatches: int) -> Rows:
    """Return the rows; every chunk of a row runs each of ``microbatches`` forward and backward once."""
    pattern = _pattern([step.blocks for step in steps])
    times = np.stack([step.times for step in steps], axis=1).astype(np.int64)
    count = times * pattern.length
    row_ptr = np.concatenate([[0], np.cumsum(count.sum(axis=1))]).astype(np.int32)
    count = count.ravel()
    begin = np.cumsum(count) - count
    turn = np.arange(row_ptr[-1]) - np.repeat(begin, count)
    step = np.tile(np.arange(len(steps)), row_ptr.size - 1)
    origin = np.cumsum(pattern.length) - pattern.length
    at = np.repeat(origin[step], count) + turn % np.repeat(pattern.length[step], count)
    pair = np.where(pattern.member[at], np.cumsum(pattern.first[at], dtype=np.int32) - 1, -1).astype(np.int32)
    kind, chunk = pattern.kind[at], pattern.chunk[at]
    return Rows(row_ptr, kind, chunk, _numbered(kind, chunk, microbatches), pair)


def _pattern(steps: Sequence[str]) -> _Pattern:
    parts = [
        (name[0], int(name[1:] or 0), int(len(members) > 1 and not place), len(members) > 1)
        for blocks in steps
        for members in (block.split("&") for block in blocks.split())
        for place, name in enumerate(members)
    ]
    kind, chunk, first, member = zip(*parts, strict=True)
    return _Pattern(
        np.array([Kind[name] for name in kind], dtype=np.int8),
        np.array(chunk, dtype=np.int32),
        np.array(first, dtype=np.int32),
        np.array(member, dtype=np.bool_),
        np.array([len(blocks.replace("&", " ").split()) for blocks in steps], dtype=np.int64),
    )


def _numbered(kind: Int8s, chunk: Int32s, microbatches: int) -> Int32s:
    """Return each action's microbatch; weight gradients get it, and their chunk (in place), as they fell due."""
    number = np.empty(kind.size, dtype=np.int32)
    forward, weight = kind == Kind.F, kind == Kind.W
    each = np.arange(microbatches, dtype=np.int32)
    for own in range(int(chunk.max(initial=0)) + 1):
        for passes in (forward, ~(forward | weight)):
            rows = np.flatnonzero(passes & (chunk == own))
            number[rows] = np.tile(each, rows.size // microbatches)
    due = kind == Kind.I
    chunk[weight], number[weight] = chunk[due], number[due]
    return number
