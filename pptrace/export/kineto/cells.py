"""Text as byte matrices: a row per line, so that a million lines need no object each.

Numbers are aligned to the right and words to the left of their cells; the blanks between are JSON
whitespace, and the widths follow the values at hand.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Block", "Part", "fraction", "microseconds", "number", "scattered", "stacked", "words"]

Block: TypeAlias = NDArray[np.uint8]
"""Shape (lines, width)."""
Part: TypeAlias = "bytes | Block"
"""What a line is made of: the same bytes on each line, or a cell per line."""

_BLANK, _MINUS, _ZERO = b" -0"
_GROUP = 10_000
_SHORT = 2**32 - 1


def number(values: NDArray[np.integer], negative: NDArray[np.bool_] | None = None) -> Block:
    """Return decimal digits; ``negative`` says which get a minus sign where the sign is not theirs.

    >>> [bytes(row) for row in number(np.array([7, 12345, 0]))]
    [b'    7', b'12345', b'    0']
    """
    rest = values.astype(np.int64, copy=False)
    minus = rest < 0 if negative is None else negative
    signed = bool(minus.any())
    # The magnitude of the lowest integer only fits unsigned.
    rest = np.abs(rest).view(np.uint64) if signed else rest
    most = int(rest.max(initial=0))
    rest = rest.astype(np.uint32) if most <= _SHORT else rest
    digits = len(str(most))
    groups = -(-digits // 4)
    ten_thousand = rest.dtype.type(_GROUP)
    cells = np.empty((rest.size, groups), dtype=np.uint32)
    for group in range(groups - 1, -1, -1):
        digits_of = _digits(last=group == groups - 1)
        if group == 0:
            cells[:, 0] = digits_of[rest]
            break
        higher = rest // ten_thousand
        index = rest - higher * ten_thousand
        index[higher > 0] += ten_thousand
        cells[:, group] = digits_of[index]
        rest = higher
    block = cells.view(np.uint8)
    return _with_sign(block, minus) if signed else block[:, 4 * groups - digits :]


def fraction(thousandths: NDArray[np.integer]) -> Block:
    """Return a point and three decimals.

    >>> bytes(fraction(np.array([7]))[0])
    b'.007'
    """
    return np.ascontiguousarray(_decimals()[thousandths]).reshape(-1, 1).view(np.uint8)


def microseconds(times_ns: NDArray[np.int64], *, whole: bool) -> list[Part]:
    """Return exact microseconds: integers where all times are ``whole``, else three decimals.

    >>> [bytes(part[0]) for part in microseconds(np.array([1234005]), whole=False)]
    [b'1234', b'.005']
    """
    negative = times_ns < 0
    magnitude = np.abs(times_ns)
    units = magnitude // 1000
    if whole:
        return [number(units, negative)]
    return [number(units, negative), fraction(magnitude - units * 1000)]


def words(codes: NDArray[np.integer], texts: Sequence[bytes]) -> Part:
    """Return ``texts[code]`` per line; one text for all lines where only one occurs.

    >>> [bytes(row) for row in words(np.array([1, 0]), [b"ab", b"c"])]
    [b'c ', b'ab']
    """
    used = np.flatnonzero(np.bincount(codes, minlength=len(texts)))
    if used.size == 1:
        return texts[int(used[0])]
    width = max((len(texts[int(code)]) for code in used), default=0)
    table = np.zeros(len(texts), dtype=f"S{max(width, 1)}")
    for code in used:
        table[code] = texts[int(code)].ljust(width)
    block: Block = table[codes].view(np.uint8).reshape(codes.size, -1)
    return block


def stacked(lines: int, parts: Iterable[Part]) -> Block:
    """Return ``lines`` lines, each made of the parts in order."""
    parts = list(parts)
    widths = [len(part) if isinstance(part, bytes) else part.shape[1] for part in parts]
    blank = b"".join(p if isinstance(p, bytes) else bytes(w) for p, w in zip(parts, widths, strict=True))
    block = np.empty((lines, len(blank)), dtype=np.uint8)
    block[:] = np.frombuffer(blank, dtype=np.uint8)
    offset = 0
    for part, width in zip(parts, widths, strict=True):
        if not isinstance(part, bytes) and part.size:
            _cells(block[:, offset : offset + width])[...] = _cells(part)
        offset += width
    return block


def scattered(block: Block, rows: NDArray[np.integer], lines: int) -> Block:
    """Return ``lines`` lines, blank but for ``rows``, which hold the lines of ``block`` in order."""
    if rows.size == lines:
        return block
    spread = np.full((lines, block.shape[1]), _BLANK, dtype=np.uint8)
    spread[rows] = block
    return spread


def _cells(block: Block) -> NDArray[np.void]:
    """View each line of a block as one item, which numpy copies many times faster than its bytes."""
    return block.view(f"V{block.shape[1]}")


def _with_sign(block: Block, minus: NDArray[np.bool_]) -> Block:
    signed = np.full((block.shape[0], block.shape[1] + 1), _BLANK, dtype=np.uint8)
    signed[:, 1:] = block
    rows = np.flatnonzero(minus)
    first = np.argmax(signed[rows] != _BLANK, axis=1)
    signed[rows, first - 1] = _MINUS
    return signed


@cache
def _digits(*, last: bool) -> NDArray[np.uint32]:
    """Return four digits per number below 10,000, first with leading blanks, then with zeros."""
    count = np.arange(_GROUP)[:, None] // np.array([1000, 100, 10, 1])
    zeros = (count % 10 + _ZERO).astype(np.uint8)
    blanks = np.where(count > 0, zeros, _BLANK).astype(np.uint8)
    if last:
        blanks[0, 3] = _ZERO
    return np.concatenate([blanks, zeros]).view(np.uint32).ravel()


@cache
def _decimals() -> NDArray[np.uint32]:
    return np.frombuffer(b"".join(b".%03d" % i for i in range(1000)), dtype=np.uint32)
