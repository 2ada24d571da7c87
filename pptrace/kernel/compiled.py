"""Compile a kernel once for each layout of its arguments, keep the code, and call it."""

from __future__ import annotations

import gc
import sys
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import numba
import numpy as np
from numba import types
from numba.core import event

from pptrace.kernel.column import Column, Record, unpacker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Layout: TypeAlias = tuple[Any, ...]
    """Of each argument: a column's dtype, None for an integer, a record's class and the layout of its fields."""

__all__ = ["call", "is_ready", "size"]


def call(kernel: Callable[..., Any], arguments: Sequence[Any]) -> int:
    """Call a kernel's compiled code with contiguous arrays, integers and records of those."""
    layout = tuple(_layout(value) for value in arguments)
    words = np.array([word for value in arguments for word in _words(value)], dtype=np.int64)
    try:
        compiled = _entry(kernel, layout, kept=True)
    except (OSError, RuntimeError):  # the code cannot be kept
        warnings.warn(_NO_CACHE, RuntimeWarning, stacklevel=3)
        compiled = _entry(kernel, layout, kept=False)
        _unkept.add((kernel, layout))
    return int(compiled(words) or 0)


def is_ready(kernel: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Whether a kernel's code for such arguments is in this process; code on the disk is loaded."""
    layout = tuple(_layout(value) for value in arguments)
    if (kernel, layout) in _unkept:
        return True
    before = _Compiling.refused.set(True)
    try:
        _entry(kernel, layout, kept=True)
    except (_NotMadeYet, OSError, RuntimeError):
        return False
    finally:
        _Compiling.refused.reset(before)
    return True


@cache
def size(kernel: Callable[..., Any]) -> int:
    """Return the bytes of bytecode that compiling a kernel compiles, its parts among them."""
    parts = (value for value in _named(kernel).values() if isinstance(value, FunctionType))
    return len(kernel.__code__.co_code) + sum(map(size, parts))


def _layout(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype
    return (type(value), *(_layout(field) for field in value)) if isinstance(value, tuple) else None


def _words(value: Any) -> Iterator[int]:
    if isinstance(value, np.ndarray):
        yield value.ctypes.data
        yield value.size
    elif isinstance(value, tuple):
        for field in value:
            yield from _words(field)
    else:
        yield value


@cache
def _entry(kernel: Callable[..., Any], layout: Layout, *, kept: bool) -> Callable[..., Any]:
    """Return the function that takes a kernel's arguments as words, loaded or compiled."""
    compiled = _dispatcher(kernel, layout, kept=kept)
    with _uncollected():
        compiled.compile((numba.typeof(np.empty(0, dtype=np.int64)),))
    entered: Callable[..., Any] = compiled
    return entered


@cache
def _dispatcher(kernel: Callable[..., Any], layout: Layout, *, kept: bool) -> Any:
    """Return what numba compiles or loads.

    Code is kept by file and name, and what it is made of may change in other files, so the name tells the
    kernel's parts, their constants, and its arguments.
    """
    made_of = f"{_spelt(kernel)} {_described(layout)}"
    name = f"{kernel.__name__}_{sha256(made_of.encode()).hexdigest()[:16]}"
    values = ", ".join(f"value{number}" for number in range(len(layout)))
    source = f"def {name}(words):\n    {values}, = unpacked(words)\n    return kernel({values})\n"
    made: dict[str, Any] = {
        "__name__": __name__, "kernel": _part(kernel, "always"),
        "unpacked": unpacker([_type(value) for value in layout]),
    }  # fmt: skip
    exec(compile(source, __file__, "exec"), made)  # noqa: S102 - numbers and names of our own
    entry = made[name]
    entry.__qualname__ = name
    _Compiling.listen()
    return numba.njit(cache=kept, **_SETTINGS)(entry)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage: the compiler makes objects by the million, and to look through them takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def _part(function: Callable[..., Any], inline: str = "never") -> Callable[..., Any]:
    """Return a compiled twin of a kernel or a function that it calls, which calls compiled twins in turn."""
    called = {name: _part(value) for name, value in _named(function).items() if isinstance(value, FunctionType)}
    twin = FunctionType(function.__code__, {**function.__globals__, **called}, function.__name__)
    part = numba.njit(inline=inline, **_PART, **_SETTINGS)(twin)
    typed = part.get_call_template
    # A constant is an integer like any other: a part is compiled once, and not for each constant anew.
    part.get_call_template = lambda args, named: typed(tuple(map(types.unliteral, args)), named)
    twin_part: Callable[..., Any] = part
    return twin_part


def _named(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the functions and constants of modules that a function names."""
    named = function.__globals__
    return {name: named[name] for name in function.__code__.co_names if name in named}


def _spelt(function: Callable[..., Any]) -> str:
    code, named = function.__code__, _named(function).items()
    parts = (f"{name} {_spelt(value) if isinstance(value, FunctionType) else value}" for name, value in named)
    return " ".join([code.co_code.hex(), f"{code.co_consts} {code.co_names} {code.co_varnames}", *parts])


def _described(layout: Any) -> str:
    if isinstance(layout, tuple):
        return f"({' '.join(_described(value) for value in layout)})"
    return f"{layout.__name__} {getattr(layout, '_fields', '')}" if isinstance(layout, type) else str(layout)


def _type(layout: Any) -> Any:
    if layout is None:
        return numba.intp
    if isinstance(layout, tuple):
        fields = zip(layout[0]._fields, map(_type, layout[1:]), strict=True)
        return Record(layout[0].__name__, dict(fields))
    return Column(numba.from_dtype(layout))


class _NotMadeYet(Exception):  # noqa: N818 - an answer, no error
    """A kernel's code is not on the disk."""


class _Compiling(event.Listener):  # type: ignore[misc]  # numba has no types
    """Says once in a process that code is compiled, for that takes seconds; stops it where it is refused."""

    said = False
    refused = ContextVar("refused", default=False)

    @classmethod
    @cache
    def listen(cls) -> None:
        event.register("numba:compile", cls())

    def on_start(self, _event: Any) -> None:
        if self.refused.get():
            raise _NotMadeYet
        if not self.said:
            self.said = True
            sys.stderr.write("compiling the simulator for this machine: later runs are quicker\n")
            sys.stderr.flush()

    def on_end(self, _event: Any) -> None:
        pass


_unkept: set[tuple[Callable[..., Any], Layout]] = set()
"""What this process compiled for itself alone."""

_SETTINGS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
"""No lock while a kernel runs, and no check for zero before each division: kernels never divide by it."""

_PART: dict[str, Any] = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Kernels alone call their parts, which are small and in loops."""

_NO_CACHE = (
    "compiled code cannot be kept, so every run compiles again: "
    "make the folder in NUMBA_CACHE_DIR (or ~/.cache) writable"
)
