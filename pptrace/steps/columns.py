"""Columns are one-dimensional, read-only arrays whose dtype the class states.

A column is contiguous, or all its elements are in one place (:func:`uniform`).
"""

from __future__ import annotations

from collections import ChainMap
from functools import cache
from inspect import get_annotations
from itertools import cycle
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import finalize

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, force_setattr
from numpy.typing import NDArray

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Int8s: TypeAlias = NDArray[np.int8]
Int32s: TypeAlias = NDArray[np.int32]
Int64s: TypeAlias = NDArray[np.int64]

_LINE = 64
"""Bytes of a line of the processor's caches, at which each column begins."""

_PAGE = 4096
"""Bytes of a page of memory."""

_first_line = cycle(5 * number % (_PAGE // _LINE) for number in range(_PAGE // _LINE))
"""Lines of a page at which large columns begin, in turn, so that their equal rows use different sets of caches."""


def none() -> Int64s:
    """Return an empty column."""
    return np.zeros(0, dtype=np.int64)


def column(values: ArrayLike, dtype: type[np.integer[Any]]) -> NDArray[Any]:
    """Return ``values`` as a contiguous read-only array, copied only where it must be.

    Raises:
        ValueError: a value does not fit ``dtype`` or is no integer.
    """
    array = np.asarray(values)
    if array.dtype != dtype:
        if array.size and not np.issubdtype(array.dtype, np.integer):
            msg = f"a column of {np.dtype(dtype)} cannot hold {array.dtype} values"
            raise ValueError(msg)
        bounds = np.iinfo(dtype)
        if array.size and (array.min() < bounds.min or array.max() > bounds.max):
            msg = f"a value is out of the range of {np.dtype(dtype)}"
            raise ValueError(msg)
        array = array.astype(dtype)
    if not array.ndim:
        msg = "a column is an array, not a single value"
        raise ValueError(msg)
    if not is_uniform(array):
        array = np.ascontiguousarray(array)
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


_DTYPES: dict[Any, type[np.integer[Any]]] = {"Int8s": np.int8, "Int32s": np.int32, "Int64s": np.int64}


class Columns(Struct, frozen=True, kw_only=True, eq=False):
    """Base of records with columns, whose annotations (``Int8s``, ``Int32s``, ``Int64s``) are their dtypes."""

    def __post_init__(self) -> None:
        record: Any = type(self)
        for name, dtype in _columns_of(record):
            force_setattr(self, name, column(getattr(self, name), dtype))

    __ne__ = object.__ne__  # that of structs ignores the ``__eq__`` of subclasses

    def lock(self) -> None:
        """Make the columns read-only; other records then take the same arrays, which identify shared results."""
        record: Any = type(self)
        for name, _ in _columns_of(record):
            getattr(self, name).flags.writeable = False


class ComparedColumns(Columns, frozen=True, kw_only=True, eq=False):
    """Base of records with columns that are equal if all their values are."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(np.array_equal(*pair) for pair in zip(astuple(self), astuple(other), strict=True))

    __hash__ = None  # type: ignore[assignment] # arrays inside: equal by value, not hashable


@cache
def _columns_of(record: type[Any]) -> list[tuple[str, type[np.integer[Any]]]]:
    annotations = ChainMap(*(get_annotations(base) for base in record.__mro__))
    columns = ((name, annotations[name]) for name in record.__struct_fields__)
    return [(name, _DTYPES[annotation]) for name, annotation in columns if annotation in _DTYPES]


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Return the distinct values in ascending order.

    Without counts, ``np.unique`` imports masked arrays, which takes 2 % of a small simulation.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered: NDArray[Any] = np.unique(values, return_counts=True)[0]
    return ordered


def empty_columns(rows: int, *dtypes: type[np.integer[Any]]) -> list[NDArray[Any]]:
    """Return uninitialized columns in one piece of memory, each at the start of a cache line.

    >>> [column.dtype.name for column in empty_columns(3, np.int8, np.int32)]
    ['int8', 'int32']
    """
    widths = [rows * np.dtype(dtype).itemsize for dtype in dtypes]
    starts, end = [], 0
    for width in widths:
        is_large = width >= _REUSED_BYTES
        starts.append(end + is_large * next(_first_line) * _LINE)
        end += -(-width // _LINE) * _LINE + is_large * _PAGE
    memory = _memory(end)
    return [
        memory[start : start + width].view(dtype)
        for start, width, dtype in zip(starts, widths, dtypes, strict=True)
    ]


def uniform(value: int, rows: int, dtype: type[np.integer[Any]] = np.int32) -> NDArray[Any]:
    """Return a read-only column of one value, which takes the memory of one element.

    >>> uniform(-1, 3).tolist()
    [-1, -1, -1]
    """
    return np.ndarray((rows,), dtype=dtype, buffer=dtype(value).tobytes(), strides=(0,))


def is_uniform(array: NDArray[Any]) -> bool:
    """Return whether all elements of a column are in one place."""
    return array.strides == (0,)


def count_set(array: NDArray[Any]) -> int:
    """Return how many values of a column are not negative, without a pass over a column of one value.

    >>> count_set(uniform(-1, 3)), count_set(np.array([4, -1, 0]))
    (0, 2)
    """
    if is_uniform(array):
        return array.size if array[0] >= 0 else 0
    return int(np.count_nonzero(array >= 0))


def unset(rows: int) -> Int32s:
    """Return a column of -1."""
    (values,) = empty_columns(rows, np.int32)
    values[:] = -1
    return values


_REUSED_BYTES = 2**20
"""Size from which memory is reused; the allocator keeps smaller pieces itself."""

_KEPT_BYTES = 2**29
"""The most unused memory that is kept."""

_unused: dict[int, NDArray[np.uint8]] = {}
"""Pieces of memory that no column refers to, the oldest first."""


def _memory(size: int) -> NDArray[np.uint8]:
    """Return uninitialized bytes; large ones are reused when the last view of them is gone.

    The system clears each new page, which takes as long as filling it.
    """
    if size < _REUSED_BYTES:
        return np.empty(size, dtype=np.uint8)
    sizes = {key: piece.size for key, piece in _unused.copy().items()}
    fitting = [key for key in sizes if size + _LINE <= sizes[key] <= 4 * size]
    piece = _unused.pop(min(fitting, key=sizes.__getitem__, default=-1), None)
    if piece is None:
        piece = np.empty(size + _LINE, dtype=np.uint8)
    first = -piece.__array_interface__["data"][0] % _LINE
    memory = np.frombuffer(piece.data[first : first + size], dtype=np.uint8)
    finalize(memory, _keep, piece).atexit = False
    return memory


def _keep(piece: NDArray[np.uint8]) -> None:
    """Keep a piece of memory that no column refers to, in place of the oldest ones."""
    _unused[id(piece)] = piece
    excess = sum(kept.size for kept in _unused.copy().values()) - _KEPT_BYTES
    for key, kept in _unused.copy().items():
        if excess > 0 and _unused.pop(key, None) is not None:
            excess -= kept.size


def ranges(first: Int64s | Int32s, length: Int64s | Int32s) -> Int64s:
    """Return the concatenated ranges ``first[i], …, first[i] + length[i] - 1``.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    starts = np.cumsum(length, dtype=np.int64) - length
    indices: Int64s = np.arange(int(length.sum())) - np.repeat(starts, length) + np.repeat(first, length)
    return indices


def distinct_rows(table: Int32s) -> tuple[NDArray[np.intp], Int32s]:
    """Return where each distinct row of a table first occurs, ascending, and each row's index among those.

    Rows are compared as bytes: numpy's own comparison makes a field of every column.

    >>> distinct_rows(np.array([[5, 1], [2, 3], [5, 1]], dtype=np.int32))
    (array([0, 1]), array([0, 1, 0], dtype=int32))
    """
    whole = np.ascontiguousarray(table).view(f"V{table.shape[1] * table.itemsize}")[:, 0]
    _, first, number = np.unique(whole, return_index=True, return_inverse=True)
    order = np.argsort(first)
    index = np.empty(order.size, dtype=np.int32)
    index[order] = np.arange(order.size)
    return first[order], index[number]


def find(keys: Int64s, wanted: Int64s) -> Int64s:
    """Return the index of each wanted value among ascending keys, -1 where it is none of them.

    Of equal keys the last counts.

    >>> find(np.array([2, 5, 5, 9]), np.array([5, 3, 9, 0])).tolist()
    [2, -1, 3, -1]
    """
    index = np.searchsorted(keys, wanted, side="right") - 1
    return np.where(np.append(keys, -1)[index] == wanted, index, -1) if keys.size else np.full_like(wanted, -1)


def difference(first: object, second: object, names: tuple[str, ...]) -> str:
    """Say where two column tables first differ: the column, the row and both values; else ``""``."""
    for name in names:
        values, other_values = np.asarray(getattr(first, name)), np.asarray(getattr(second, name))
        if values.shape != other_values.shape:
            return f"column {name}: {values.shape} values against {other_values.shape}"
        rows = np.flatnonzero((values != other_values).ravel())
        if rows.size:
            row = int(rows[0])
            text = f"{values.ravel()[row]} against {other_values.ravel()[row]}"
            return f"column {name}, row {row}: {text} ({rows.size} rows differ)"
    return ""
