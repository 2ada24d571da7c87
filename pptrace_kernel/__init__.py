"""Run a kernel: interpreted on lists where little is to do, compiled on arrays where much is.

A kernel is a plain function over integer columns: inputs first, then the columns that it fills. Columns
that belong together come as a record, a ``NamedTuple`` of columns and integers. A kernel loops explicitly over
integers, calls nothing but ``len``, ``range``, ``min``, ``max``, ``abs`` and functions of its own kind, allocates
nothing, and so gives the same bits on both roads.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pptrace_kernel.threshold import AS_LOADING, Account

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    Argument: TypeAlias = NDArray[Any] | int | tuple["Argument", ...]
    """A column, an integer, or a record of those."""

__all__ = ["COMPILE_FROM", "always_compiled", "compiles", "many_runs", "run", "run_kernel"]

COMPILE_FROM = AS_LOADING
"""Rows of work from which loading compiled code is quicker than interpreting; see :mod:`worth` for making it."""

_VALUES_PER_ROW = 64
"""Values of columns that take at least as long to become a list, and a column again, as a row to interpret."""

_ahead = ContextVar("ahead", default=0)
_loaded: set[Callable[..., Any]] = set()
"""Kernels whose compiled code is in this process: from then on it is quicker than interpreting, at any size."""

_account = Account()


@contextmanager
def many_runs(rows: int) -> Iterator[None]:
    """Load compiled code in this block, however small the work: ``rows`` of each kernel are to come."""
    before = _ahead.set(rows)
    try:
        yield
    finally:
        _ahead.reset(before)


def always_compiled() -> AbstractContextManager[None]:
    """Run every kernel compiled in this block, however small its work."""
    return many_runs(sys.maxsize)


def compiles(work: int, *, loaded: bool = False) -> bool:
    """Whether ``work`` rows are run compiled where code is at hand; ``NUMBA_DISABLE_JIT=1`` interprets all."""
    pays = loaded or max(work, _ahead.get()) >= COMPILE_FROM
    return pays and os.environ.get("NUMBA_DISABLE_JIT", "0") in {"", "0"}


def run(kernel: Callable[..., Any], inputs: Sequence[Argument], outputs: Sequence[Argument], *, work: int) -> int:
    """Run ``kernel(*inputs, *outputs)`` and return its result, 0 where it returns none.

    Inputs and outputs are one-dimensional arrays, integers, and records (named tuples) of those. The kernel
    fills the outputs' arrays, each initialised by the caller. ``work`` is the number of rows, which decides
    the road, with those that this process interpreted before. Columns that are far longer count as rows too.

    Raises:
        TypeError: the kernel is compiled, and does what kernels may not.
    """
    work = max(work, _values((*inputs, *outputs)) // _VALUES_PER_ROW)
    rows = _account.rows(kernel, work, ahead=_ahead.get())
    if compiles(rows, loaded=kernel in _loaded):
        from pptrace_kernel import compiled

        arguments = [*(_each(np.ascontiguousarray, value) for value in inputs), *outputs]
        if compiled.is_ready(kernel, arguments) or _pays(kernel, rows):
            _loaded.add(kernel)
            return compiled.call(kernel, arguments)
    _account.interpreted[kernel] += work
    filled = [_each(np.ndarray.tolist, value) for value in outputs]
    result = kernel(*(_each(np.ndarray.tolist, value) for value in inputs), *filled)
    for output, values in zip(outputs, filled, strict=True):
        _each(_write_back, output, values)
    return int(result or 0)


run_kernel = run
"""What plugins call it."""


def _pays(kernel: Callable[..., Any], rows: int) -> bool:
    from pptrace_kernel import compiled

    return compiles(rows) and compiled.can_be(kernel) and _account.compiles(rows, compiled.size(kernel))


def _values(arguments: Sequence[Argument]) -> int:
    """Return how many values columns have."""
    return sum(
        value.size if isinstance(value, np.ndarray) else _values(value) if isinstance(value, tuple) else 0
        for value in arguments
    )


def _each(function: Callable[..., Any], value: Argument, *others: Any) -> Any:
    """Apply a function to an array or to each of a record; leave integers alone."""
    if isinstance(value, tuple):
        return value._make(_each(function, *columns) for columns in zip(value, *others, strict=True))  # type: ignore[attr-defined] # a named tuple
    return function(value, *others) if isinstance(value, np.ndarray) else value


def _write_back(array: NDArray[Any], values: list[int]) -> None:
    array[:] = values
