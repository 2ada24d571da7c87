"""Run a kernel: interpreted on lists where little is to do, compiled on arrays where much is.

A kernel is a plain function over integer columns: inputs first, then the columns that it fills. Columns
that belong together come as a record, a ``NamedTuple`` of columns and integers. A kernel loops explicitly over
integers, calls nothing but ``len``, ``range``, ``min``, ``max``, ``abs`` and functions of its own kind, allocates
nothing, and so gives the same bits on both roads.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Argument: TypeAlias = NDArray[Any] | int | tuple[NDArray[Any] | int, ...]
    """A column, an integer, or a record of those."""

__all__ = ["COMPILE_FROM", "always_compiled", "compiles", "run", "run_kernel"]

COMPILE_FROM = 60_000
"""Rows of work from which loading compiled code is quicker than interpreting."""

_wanted = ContextVar("wanted", default=False)
_loaded: set[Callable[..., Any]] = set()
"""Kernels whose compiled code is in this process: from then on it is quicker than interpreting, at any size."""


@contextmanager
def always_compiled() -> Iterator[None]:
    """Run every kernel compiled in this block, however small its work: loading pays off over many runs."""
    before = _wanted.set(True)
    try:
        yield
    finally:
        _wanted.reset(before)


def compiles(work: int, *, loaded: bool = False) -> bool:
    """Whether ``work`` rows are run compiled; ``NUMBA_DISABLE_JIT=1`` interprets everything."""
    pays = loaded or work >= COMPILE_FROM or _wanted.get()
    return pays and os.environ.get("NUMBA_DISABLE_JIT", "0") in {"", "0"}


def run(kernel: Callable[..., Any], inputs: Sequence[Argument], outputs: Sequence[Argument], *, work: int) -> int:
    """Run ``kernel(*inputs, *outputs)`` and return its result, 0 where it returns none.

    Inputs and outputs are one-dimensional arrays, integers, and records (named tuples) of those. The kernel
    fills the outputs' arrays, each initialised by the caller. ``work`` is the number of rows, which decides
    the road.
    """
    if compiles(work, loaded=kernel in _loaded):
        from pptrace.kernel.compiled import call

        _loaded.add(kernel)
        return call(kernel, [*(_each(np.ascontiguousarray, value) for value in inputs), *outputs])
    filled = [_each(np.ndarray.tolist, value) for value in outputs]
    result = kernel(*(_each(np.ndarray.tolist, value) for value in inputs), *filled)
    for output, values in zip(outputs, filled, strict=True):
        _each(_write_back, output, values)
    return int(result or 0)


run_kernel = run
"""What plugins call it."""


def _each(function: Callable[..., Any], value: Argument, *others: Any) -> Any:
    """Apply a function to an array or to each of a record; leave integers alone."""
    if isinstance(value, tuple):
        return value._make(_each(function, *columns) for columns in zip(value, *others, strict=True))  # type: ignore[attr-defined] # a named tuple
    return function(value, *others) if isinstance(value, np.ndarray) else value


def _write_back(array: NDArray[Any], values: list[int]) -> None:
    array[:] = values
