"""Run a kernel: interpreted on lists where little is to do, compiled on arrays where much is.

A kernel is a plain function over integer columns: inputs first, then the columns that it fills. It
loops explicitly over integers, calls nothing but ``len``, ``range``, ``min``, ``max``, ``abs`` and functions
of its own kind, and so gives the same bits on both roads.
"""

from __future__ import annotations

import os
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

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


def run(
    kernel: Callable[..., Any],
    inputs: Sequence[NDArray[Any] | int],
    outputs: Sequence[NDArray[Any]],
    *,
    work: int,
) -> int:
    """Run ``kernel(*inputs, *outputs)`` and return its result, 0 where it returns none.

    Inputs are one-dimensional arrays or integers; outputs are arrays that the kernel fills, each
    initialised by the caller. ``work`` is the number of rows, which decides the road.
    """
    if compiles(work, loaded=kernel in _loaded):
        _loaded.add(kernel)
        frozen = [_read_only(value) if isinstance(value, np.ndarray) else value for value in inputs]
        try:
            return int(_compiled(kernel)(*frozen, *outputs) or 0)
        except OSError:  # compiling succeeded, keeping the code did not; nothing has run yet
            warnings.warn(_NO_CACHE, RuntimeWarning, stacklevel=2)
            return int(_uncached(kernel)(*frozen, *outputs) or 0)
    lists = [value.tolist() if isinstance(value, np.ndarray) else value for value in inputs]
    filled = [array.tolist() for array in outputs]
    result = kernel(*lists, *filled)
    for array, values in zip(outputs, filled, strict=True):
        array[:] = values
    return int(result or 0)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # One mutability per parameter keeps one compiled signature per kernel.
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


@cache
def _compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    try:
        compiled: Callable[..., Any] = numba.njit(cache=True, **_SETTINGS)(_with_compiled_parts(kernel))
    except RuntimeError:
        warnings.warn(_NO_CACHE, RuntimeWarning, stacklevel=3)
        return _uncached(kernel)
    return compiled


@cache
def _uncached(kernel: Callable[..., Any]) -> Callable[..., Any]:
    import numba

    compiled: Callable[..., Any] = numba.njit(cache=False, **_SETTINGS)(_with_compiled_parts(kernel))
    return compiled


def _with_compiled_parts(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a twin of a kernel that takes in the functions that it calls, for passing many columns is slow.

    Code is kept by file and name, and a part may change in another file, so the twin's name tells its parts.
    """
    import numba

    parts = _parts(kernel)
    if not parts:
        return kernel
    settings = {**_SETTINGS, "inline": "always"}
    within = {name: numba.njit(**settings)(_with_compiled_parts(part)) for name, part in parts.items()}
    twin = FunctionType(kernel.__code__, {**kernel.__globals__, **within}, kernel.__name__)
    twin.__qualname__ = f"{kernel.__name__}_{sha256(_spelt(kernel).encode()).hexdigest()[:12]}"
    return twin


def _parts(kernel: Callable[..., Any]) -> dict[str, FunctionType]:
    called = ((name, kernel.__globals__.get(name)) for name in kernel.__code__.co_names)
    return {name: value for name, value in called if isinstance(value, FunctionType)}


def _spelt(kernel: Callable[..., Any]) -> str:
    code = kernel.__code__
    own = f"{code.co_code.hex()} {code.co_consts} {code.co_names}"
    return " ".join([own, *(_spelt(part) for part in _parts(kernel).values())])


_SETTINGS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
"""No lock while a kernel runs, and no check for zero before each division: kernels never divide by it."""

_NO_CACHE = (
    "compiled code cannot be kept, so every run compiles again: "
    "make the folder in NUMBA_CACHE_DIR (or ~/.cache) writable"
)
