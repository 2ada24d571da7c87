"""Text as byte matrices: a row per line, so that a million lines need no object each.

Numbers are aligned to the right and words to the left of their cells; the blanks between are JSON
whitespace, and the widths follow the values at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Block: TypeAlias = NDArray[np.uint8]
"""Shape (lines, width)."""
Part: TypeAlias = "bytes | Block | Some"
"""What a line is made of: the same bytes on each line, or a cell per line or per some of the lines."""

_BLANK, _MINUS, _ZERO = b" -0"
_AT_ONCE = 1 << 22
"""Bytes of a piece: few enough for the processor's caches, enough that handing it on costs next to nothing."""
_GROUP = 10_000
_SHORT = 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class Some:
    """Cells that some lines have; the others are blank there."""

    cells: Block
    """In the order of the lines."""
    lines: NDArray[np.integer]
    """Which lines have them, ascending."""

    @property
    def shape(self) -> tuple[int, ...]:
        """That of :attr:`cells`."""
        return self.cells.shape


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Which of several texts each line has."""

    codes: NDArray[np.integer]
    """Shape (lines,)."""
    used: list[int]
    """The codes that occur, ascending."""

    @classmethod
    def of(cls, codes: NDArray[np.integer]) -> Self:
        """Find the codes that occur."""
        if codes.size and alike(codes):
            return cls(codes, [int(codes[0])])
        return cls(codes, np.flatnonzero(np.bincount(codes)).tolist())

    def among(self, texts: Sequence[bytes] | Mapping[int, bytes]) -> Part:
        """Return ``texts[code]`` per line; the text itself where all lines have the same."""
        if len(self.used) == 1:
            return texts[self.used[0]]
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
    rest = values.astype(np.int64, copy=False)
    negative = rest < 0 if rest.min(initial=0) < 0 else None
    # The magnitude of the lowest integer only fits unsigned.
    return _spelt(rest if negative is None else np.abs(rest).view(np.uint64), negative)


def microseconds(times_ns: NDArray[np.int64], *, whole: bool) -> Block:
    """Return exact microseconds: integers where all times are ``whole``, else three decimals.

    >>> bytes(microseconds(np.array([1234005]), whole=False)[0])
    b'1234.005'
    """
    negative = times_ns < 0 if times_ns.min(initial=0) < 0 else None
    magnitude = times_ns if negative is None else np.abs(times_ns)
    units = magnitude // 1000
    return _spelt(units, negative, None if whole else magnitude - units * 1000)


def alike(values: NDArray[np.integer]) -> bool:
    """Return whether all of some values, of which there is one at least, are the same."""
    return bool((values == values[0]).all())


def words(codes: NDArray[np.integer], texts: Sequence[bytes]) -> Part:
    """Return ``texts[code]`` per line; one text for all lines where only one occurs.

    >>> [bytes(row) for row in words(np.array([1, 0]), [b"ab", b"c"])]
    [b'c ', b'ab']
    """
    return Choice.of(codes).among(texts)


def stacked(lines: int, parts: Iterable[Part]) -> Block:
    """Return ``lines`` lines, each made of the parts in order."""
    layout = _Layout.of(parts)
    return layout.filled(0, lines)


def pieces(lines: int, parts: Iterable[Part]) -> Iterator[Block]:
    """Yield what :func:`stacked` returns, some lines at a time."""
    layout = _Layout.of(parts)
    step = max(1, _AT_ONCE // max(1, layout.template.size))
    for start in range(0, lines, step):
        yield layout.filled(start, min(start + step, lines))


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """The template of a line, and the positions of its cells."""

    template: NDArray[np.uint8]
    """A line without its cells."""
    cells: list[tuple[int, NDArray[np.void]]]
    """Where on a line a cell begins, and the cell of each line."""
    some: list[tuple[int, NDArray[np.void], NDArray[np.integer]]]
    """The same of cells that some lines have, with those lines."""

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Self:
        """Put parts side by side."""
        cells, some, template = [], [], bytearray()
        for part in parts:
            at = len(template)
            if isinstance(part, bytes):
                template += part
                continue
            template += b" " * part.shape[1]
            if isinstance(part, Some):
                some.append((at, _items(part.cells), part.lines))
            else:
                cells.append((at, _items(part)))
        return cls(np.frombuffer(template, dtype=np.uint8), cells, some)

    def filled(self, start: int, stop: int) -> Block:
        """Return some of the lines."""
        block = np.empty((stop - start, self.template.size), dtype=np.uint8)
        if start == stop:
            return block
        block[:] = self.template
        count, step = block.shape
        for at, items in self.cells:
            np.ndarray((count,), items.dtype, block, at, (step,))[:] = items[start:stop]
        for at, items, lines in self.some:
            first, last = np.searchsorted(lines, (start, stop))
            np.ndarray((count,), items.dtype, block, at, (step,))[lines[first:last] - start] = items[first:last]
        return block


def _items(block: Block) -> NDArray[np.void]:
    """View each line of a block as one item, which numpy copies many times faster than its bytes."""
    items: NDArray[np.void] = block.view(f"V{block.shape[1]}")[:, 0]
    return items


def _spelt(
    values: NDArray[np.integer], negative: NDArray[np.bool_] | None, thousandths: NDArray[np.integer] | None = None
) -> Block:
    """Return decimal digits of magnitudes, with ``thousandths`` a point and three more."""
    most = int(values.max(initial=0))
    rest = values.astype(np.uint32 if most <= _SHORT else values.dtype)
    digits = len(str(most))
    groups = -(-digits // 4)
    ten_thousand = rest.dtype.type(_GROUP)
    cells = np.empty((rest.size, groups + (thousandths is not None)), dtype=np.uint32)
    if thousandths is not None:
        cells[:, groups] = _decimals().take(thousandths)
    for group in range(groups - 1, 0, -1):
        higher = rest // ten_thousand
        rest -= (higher - (higher > 0)) * ten_thousand
        cells[:, group] = _digits(last=group == groups - 1).take(rest)
        rest = higher
    cells[:, 0] = _digits(last=groups == 1).take(rest)
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
