"""Run a kernel: interpreted on lists where little is to do, compiled on arrays where much is.

A kernel is a plain function over integer columns: inputs first, then the columns that it fills. Columns
that belong together come as a record, a ``NamedTuple`` of columns and integers. A kernel loops explicitly over
integers, calls nothing but ``len``, ``range``, ``min``, ``max``, ``abs`` and functions of its own kind, allocates
nothing, and so gives the same bits on both roads.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    Argument: TypeAlias = NDArray[Any] | int | tuple[NDArray[Any] | int, ...]
    """A column, an integer, or a record of those."""

__all__ = ["COMPILE_FROM", "always_compiled", "compiles", "run"]

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
        _loaded.add(kernel)
        arguments = [*(_each(_read_only, value) for value in inputs), *outputs]
        records = tuple(type(value) for value in arguments if isinstance(value, tuple))
        try:
            return int(_compiled(kernel, records)(*arguments) or 0)
        except OSError:  # compiling succeeded, keeping the code did not; nothing has run yet
            warnings.warn(_NO_CACHE, RuntimeWarning, stacklevel=2)
            return int(_uncached(kernel, records)(*arguments) or 0)
    filled = [_each(np.ndarray.tolist, value) for value in outputs]
    result = kernel(*(_each(np.ndarray.tolist, value) for value in inputs), *filled)
    for output, values in zip(outputs, filled, strict=True):
        _each(_write_back, output, values)
    return int(result or 0)


def _each(function: Callable[..., Any], value: Argument, *others: Any) -> Any:
    """Apply a function to an array or to each of a record; leave integers alone."""
    if isinstance(value, tuple):
        return value._make(_each(function, *columns) for columns in zip(value, *others, strict=True))  # type: ignore[attr-defined]
    return function(value, *others) if isinstance(value, np.ndarray) else value


def _write_back(array: NDArray[Any], values: list[int]) -> None:
    array[:] = values


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # One mutability per parameter keeps one compiled signature per kernel.
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


@cache
def _compiled(kernel: Callable[..., Any], records: tuple[type, ...]) -> Callable[..., Any]:
    import numba

    twin = _twin(kernel, records)
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, **_settings())(twin)
    except RuntimeError:
        warnings.warn(_NO_CACHE, RuntimeWarning, stacklevel=3)
        return _uncached(kernel, records)
    return compiled


@cache
def _uncached(kernel: Callable[..., Any], records: tuple[type, ...]) -> Callable[..., Any]:
    import numba

    compiled: Callable[..., Any] = numba.njit(cache=False, **_settings())(_twin(kernel, records))
    return compiled


def _twin(kernel: Callable[..., Any], records: tuple[type, ...]) -> Callable[..., Any]:
    """Return a twin of a kernel that calls compiled parts.

    Code is kept by file and name, and what it is made of may change in another file, so the twin's name tells
    its parts, constants and records.
    """
    twin = _with_compiled_parts(kernel)
    made_of = f"{_spelt(kernel)} {[(record.__name__, record._fields) for record in records]} {_settings()}"  # type: ignore[attr-defined]
    twin.__qualname__ = f"{kernel.__name__}_{sha256(made_of.encode()).hexdigest()[:12]}"
    return twin


def _with_compiled_parts(kernel: Callable[..., Any]) -> FunctionType:
    within = {name: _part(value) for name, value in _named(kernel).items() if isinstance(value, FunctionType)}
    return FunctionType(kernel.__code__, {**kernel.__globals__, **within}, kernel.__name__)


@cache
def _part(function: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    settings = {**_settings(), "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    part: Callable[..., Any] = numba.njit(**settings)(_with_compiled_parts(function))
    return part


def _named(kernel: Callable[..., Any]) -> dict[str, Any]:
    """Return the functions and constants of modules that a kernel names."""
    return {name: kernel.__globals__[name] for name in kernel.__code__.co_names if name in kernel.__globals__}


def _spelt(kernel: Callable[..., Any]) -> str:
    code, named = kernel.__code__, _named(kernel).items()
    parts = (f"{name} {_spelt(value) if isinstance(value, FunctionType) else value}" for name, value in named)
    return " ".join([code.co_code.hex(), f"{code.co_consts} {code.co_names}", *parts])


@cache
def _settings() -> dict[str, Any]:
    """Return how kernels are compiled: without the interpreter's lock, and unchecked where they cannot fail.

    No check for zero before each division: kernels never divide by it. No counting of references: kernels
    allocate nothing, and passing a record of many columns would count each. That option is numba's own affair; a
    version that lacks it runs the same kernels slower.
    """
    from numba.core import cpu

    settings = {"nogil": True, "error_model": "numpy"}
    options = getattr(cpu, "CPUTargetOptions", None)
    return {**settings, "_nrt": False} if hasattr(options, "_nrt") else settings


_NO_CACHE = (
    "compiled code cannot be kept, so every run compiles again: "
    "make the folder in NUMBA_CACHE_DIR (or ~/.cache) writable"
)
