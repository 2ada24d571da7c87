"""Text as byte matrices with a row per line, so that lines need no Python objects.

Numbers are right-aligned and words left-aligned in their cells. The blanks between are JSON whitespace. The widths
depend on the values.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Block: TypeAlias = NDArray[np.uint8]
"""Shape (lines, width)."""
Part: TypeAlias = "bytes | Block | Some"
"""A part of lines: constant bytes, a cell per line, or a cell for some of the lines."""

_BLANK, _MINUS, _ZERO = b" -0"
_PIECE_BYTES = 1 << 22
"""Size of a piece: small enough for the processor's caches, large enough for a low overhead per piece."""
_GROUP = 10_000
_SHORT = 2**32 - 1


class Some(Struct, frozen=True, eq=False):
    """Cells of some lines; other lines have blanks."""

    cells: Block
    """Cells in the order of the lines."""
    lines: NDArray[np.integer]
    """Indices of the lines with cells, ascending."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of :attr:`cells`."""
        return self.cells.shape


class Choice(Struct, frozen=True, eq=False):
    """The text of each line, as a code."""

    codes: NDArray[np.integer]
    """Shape (lines,): codes of texts."""
    used: list[int]
    """The distinct codes, ascending."""

    @classmethod
    def of(cls, codes: NDArray[np.integer]) -> Self:
        """Find the distinct codes."""
        if codes.size and all_equal(codes):
            return cls(codes, [int(codes[0])])
        return cls(codes, np.flatnonzero(np.bincount(codes)).tolist())

    def among(self, texts: Sequence[bytes] | Mapping[int, bytes]) -> Part:
        """Return ``texts[code]`` per line; a single text where all lines have the same."""
        words = {code: texts[code] for code in self.used}
        if len(set(words.values())) == 1:
            return next(iter(words.values()))
        width = max(map(len, words.values()), default=1)
        table = np.zeros(max(self.used, default=0) + 1, dtype=f"V{width}")
        for code, word in words.items():
            table[code] = word.ljust(width)
        return table.take(self.codes).view(np.uint8).reshape(-1, width)


def number(values: NDArray[np.integer]) -> Block:
    """Return decimal digits, with a minus sign in front where a value is negative.

    >>> [bytes(row) for row in number(np.array([7, 12345, 0]))]
    [b'    7', b'12345', b'    0']
    """
    signed = values.astype(np.int64, copy=False)
    negative = signed < 0 if signed.min(initial=0) < 0 else None
    # The magnitude of the lowest integer requires an unsigned type.
    return _decimal(signed if negative is None else np.abs(signed).view(np.uint64), negative)


def microseconds(times_ns: NDArray[np.int64], *, integers: bool) -> Block:
    """Return exact microseconds: integers if ``integers``, else with three decimals.

    >>> bytes(microseconds(np.array([1234005]), integers=False)[0])
    b'1234.005'
    """
    negative = times_ns < 0 if times_ns.min(initial=0) < 0 else None
    magnitude = times_ns if negative is None else np.abs(times_ns)
    units = magnitude // 1000
    return _decimal(units, negative, None if integers else magnitude - units * 1000)


def all_equal(values: NDArray[np.integer]) -> bool:
    """Whether all values of a non-empty array are equal."""
    return bool((values == values[0]).all())


def words(codes: NDArray[np.integer], texts: Sequence[bytes]) -> Part:
    """Return ``texts[code]`` per line; a single text where all lines have the same.

    >>> [bytes(row) for row in words(np.array([1, 0]), [b"ab", b"c"])]
    [b'c ', b'ab']
    """
    return Choice.of(codes).among(texts)


def stacked(lines: int, parts: Iterable[Part]) -> Block:
    """Return ``lines`` lines that concatenate the parts in order."""
    return _Layout.of(parts).fill(0, lines)


def pieces(lines: int, parts: Iterable[Part]) -> Iterator[memoryview]:
    """Yield the lines of :func:`stacked` in pieces."""
    layout = _Layout.of(parts)
    step = max(1, _PIECE_BYTES // max(1, layout.template.size))
    for start in range(0, lines, step):
        yield layout.fill(start, min(start + step, lines)).data


class _Layout(Struct, frozen=True, eq=False):
    """The template of a line, and the positions of its cells."""

    template: NDArray[np.uint8]
    """A line with blank cells."""
    cells: list[tuple[int, NDArray[np.void]]]
    """Offset on a line, and the cell of each line."""
    some: list[tuple[int, NDArray[np.void], NDArray[np.integer]]]
    """Offset on a line, cells, and their lines, for cells of some lines."""

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Self:
        """Concatenate parts."""
        cells, some, template = [], [], bytearray()
        for part in parts:
            offset = len(template)
            if isinstance(part, bytes):
                template += part
                continue
            template += b" " * part.shape[1]
            if isinstance(part, Some):
                some.append((offset, _items(part.cells), part.lines))
            else:
                cells.append((offset, _items(part)))
        return cls(np.frombuffer(template, dtype=np.uint8), cells, some)

    def fill(self, start: int, stop: int) -> Block:
        """Return the lines from ``start`` to ``stop``."""
        block = np.empty((stop - start, self.template.size), dtype=np.uint8)
        if start == stop:
            return block
        block[:] = self.template
        count, step = block.shape
        for offset, items in self.cells:
            np.ndarray((count,), items.dtype, block, offset, (step,))[:] = items[start:stop]
        for offset, items, lines in self.some:
            first, last = np.searchsorted(lines, (start, stop))
            view = np.ndarray((count,), items.dtype, block, offset, (step,))
            view[lines[first:last] - start] = items[first:last]
        return block


def _items(block: Block) -> NDArray[np.void]:
    """View each line of a block as an item; numpy copies items much faster than bytes."""
    items: NDArray[np.void] = block.view(f"V{block.shape[1]}")[:, 0]
    return items


def _decimal(
    values: NDArray[np.integer], negative: NDArray[np.bool_] | None, thousandths: NDArray[np.integer] | None = None
) -> Block:
    """Return decimal digits of magnitudes, followed by a point and three digits for ``thousandths``."""
    largest = int(values.max(initial=0))
    remainder = values.astype(np.uint32 if largest <= _SHORT else values.dtype)
    digits = len(str(largest))
    groups = -(-digits // 4)
    ten_thousand = remainder.dtype.type(_GROUP)
    cells = np.empty((remainder.size, groups + (thousandths is not None)), dtype=np.uint32)
    if thousandths is not None:
        cells[:, groups] = _decimals().take(thousandths)
    for group in range(groups - 1, 0, -1):
        higher = remainder // ten_thousand
        remainder -= (higher - (higher > 0)) * ten_thousand
        cells[:, group] = _digits(last=group == groups - 1).take(remainder)
        remainder = higher
    cells[:, 0] = _digits(last=groups == 1).take(remainder)
    block = cells.view(np.uint8)
    return block[:, 4 * groups - digits :] if negative is None else _with_sign(block, negative)


def _with_sign(block: Block, minus: NDArray[np.bool_]) -> Block:
    signed = np.full((block.shape[0], block.shape[1] + 1), _BLANK, dtype=np.uint8)
    signed[:, 1:] = block
    rows = np.flatnonzero(minus)
    first = np.argmax(signed[rows] != _BLANK, axis=1)
    signed[rows, first - 1] = _MINUS
    return signed


@cache
def _digits(*, last: bool) -> NDArray[np.uint32]:
    """Return four digits per number below 10,000, first with leading blanks, then with leading zeros."""
    count = np.arange(_GROUP)[:, None] // np.array([1000, 100, 10, 1])
    zeros = (count % 10 + _ZERO).astype(np.uint8)
    blanks = np.where(count > 0, zeros, _BLANK).astype(np.uint8)
    if last:
        blanks[0, 3] = _ZERO
    return np.concatenate([blanks, zeros]).view(np.uint32).ravel()


@cache
def _decimals() -> NDArray[np.uint32]:
    return np.frombuffer(b"".join(b".%03d" % i for i in range(1000)), dtype=np.uint32)
