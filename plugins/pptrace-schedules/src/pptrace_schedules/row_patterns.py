"""Patterns of rows that schedules share."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct

from pptrace.plugin import Kind, Placement, Schedule
from pptrace.steps.columns import empty_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.plugin import Int32s, ScheduleRequest


class Passes(NamedTuple):
    """Forwards and backwards of rank 0, each in order; those of rank ``r`` have the stage ``r`` after it."""

    forward: Int32s
    """Shape (2, passes): microbatch and stage."""
    backward: Int32s
    """Shape (2, passes)."""


def in_rounds(request: ScheduleRequest, size: int) -> Passes:
    """Return passes in rounds of ``size`` microbatches, which run through a chunk before the next.

    Rounds of backwards run through the chunks in reverse. The last round may have fewer microbatches.
    """
    microbatch = np.tile(np.arange(request.microbatches, dtype=np.int32), request.chunks)
    chunk = np.repeat(np.arange(request.chunks, dtype=np.int32), request.microbatches)
    microbatch, chunk = np.stack([microbatch, chunk])[:, np.lexsort((chunk, microbatch // size))]
    stages = chunk * request.ranks, (request.chunks - 1 - chunk) * request.ranks
    return Passes(*(np.stack([microbatch, stage]) for stage in stages))


def one_forward_one_backward(
    request: ScheduleRequest, warm_up: Sequence[int], passes: Passes, *, overlapped: bool = False
) -> Schedule:
    """Return the table of rows ``F…F  F B F B …  B…B`` with ``warm_up[r]`` forwards before the turns.

    Args:
        request: the sizes.
        warm_up: forwards of each rank before its first turn.
        passes: the forwards and as many backwards.
        overlapped: whether each turn's forward and backward are an overlapped pair.
    """
    forwards, backwards = passes
    ranks, steps = request.ranks, forwards.shape[1]
    length = 2 * steps
    kind = np.full((ranks, length), Kind.F, dtype=np.int8)
    cells = empty_columns(2 * ranks * length, np.int32)[0].reshape(2, ranks, length)
    pair = np.full((ranks, length), -1, dtype=np.int32) if overlapped else None
    for rank, ahead in enumerate(warm_up):
        turns = steps - ahead
        early, late = slice(ahead), slice(length - ahead, None)
        forth, back = slice(ahead, length - ahead, 2), slice(ahead + 1, length - ahead, 2)
        kind[rank, back] = kind[rank, late] = Kind.B
        if pair is not None:
            pair[rank, forth] = pair[rank, back] = rank * steps + np.arange(turns, dtype=np.int32)
        row = cells[:, rank]
        row[:, early], row[:, forth] = forwards[:, :ahead], forwards[:, ahead:]
        row[:, back], row[:, late] = backwards[:, :turns], backwards[:, turns:]
    microbatches, stage = cells
    stage += np.arange(ranks, dtype=np.int32)[:, None]
    return Schedule.from_columns(
        Placement.looped(ranks, request.microbatches, request.chunks),
        np.arange(ranks + 1) * length,
        kind.ravel(),
        stage.ravel(),
        microbatches.ravel(),
        pair=None if pair is None else pair.ravel(),
    )


class Step(Struct, frozen=True):
    """Blocks that a rank repeats."""

    times: NDArray[np.integer]
    """Shape (rows,): how often each row does."""
    blocks: str
    """Kind and chunk, with ``&`` between the members of an overlapped pair; ``W`` is the earliest that is due."""


class Rows(NamedTuple):
    """Actions row by row, in order; all columns but the first have one value per action."""

    row_ptr: Int32s
    """Shape (rows + 1,): where each row begins."""
    kind: NDArray[np.int8]
    chunk: Int32s
    microbatch: Int32s
    """Counted for each row and chunk from 0, forwards and backwards each in order."""
    pair: Int32s
    """Number of the overlapped pair, -1 outside."""

    @property
    def row(self) -> Int32s:
        """Each action's row."""
        return np.repeat(np.arange(self.row_ptr.size - 1, dtype=np.int32), np.diff(self.row_ptr))


class _Pattern(Struct, frozen=True):
    """The actions of all steps' blocks, one after another."""

    kind: NDArray[np.int8]
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
    pattern_index = np.repeat(origin[step], count) + turn % np.repeat(pattern.length[step], count)
    pair = np.where(
        pattern.member[pattern_index], np.cumsum(pattern.first[pattern_index], dtype=np.int32) - 1, -1
    ).astype(np.int32)
    kind, chunk = pattern.kind[pattern_index], pattern.chunk[pattern_index]
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


def _numbered(kind: NDArray[np.int8], chunk: Int32s, microbatches: int) -> Int32s:
    """Return each action's microbatch; weight gradients get it, and their chunk (in place), as they fell due."""
    number = np.empty(kind.size, dtype=np.int32)
    forward, weight = kind == Kind.F, kind == Kind.W
    each = np.arange(microbatches, dtype=np.int32)
    for chunk_number in range(int(chunk.max(initial=0)) + 1):
        for passes in (forward, ~(forward | weight)):
            rows = np.flatnonzero(passes & (chunk == chunk_number))
            number[rows] = np.tile(each, rows.size // microbatches)
    due = kind == Kind.I
    chunk[weight], number[weight] = chunk[due], number[due]
    return number
