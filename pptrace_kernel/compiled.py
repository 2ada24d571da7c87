"""Compile a kernel once for each layout of its arguments, keep the code, and call it."""

from __future__ import annotations

import sys
import warnings
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pptrace_kernel import expressions, llvm_text, machine, translation
from pptrace_kernel.threshold import SPREAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Layout: TypeAlias = tuple[Any, ...]
    """Of each argument: a column's dtype, None for an integer, a record's class and the layout of its fields."""

__all__ = ["call", "can_be", "is_ready", "size"]


def call(kernel: Callable[..., Any], arguments: Sequence[Any]) -> int:
    """Call a kernel's compiled code with contiguous arrays, integers and records of those.

    Raises:
        TypeError: the kernel is not in the language of kernels.
    """
    words = np.array([word for value in arguments for word in _words(value)], dtype=np.int64)
    return _entry(kernel, tuple(map(_layout, arguments)))(words.ctypes.data)


def is_ready(kernel: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Whether a kernel's code for such arguments is in this process; code on the disk is loaded."""
    layout = tuple(map(_layout, arguments))
    return (kernel, layout) in _entries or _load(kernel, layout, machine.kept(_name(kernel, layout)))


def can_be(kernel: Callable[..., Any]) -> bool:
    """Whether a kernel's source is at hand, which is what is compiled."""
    return translation.source_of(kernel) is not None


@cache
def size(kernel: Callable[..., Any]) -> int:
    """Return the bytes of bytecode that compiling a kernel compiles, its parts among them."""
    return sum(len(function.__code__.co_code) for function in _reached(kernel))


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


def _entry(kernel: Callable[..., Any], layout: Layout) -> Callable[[int], int]:
    """Return the function that takes a kernel's arguments as words, loaded or compiled."""
    found = _entries.get((kernel, layout))
    if found is not None:
        return found
    name = _name(kernel, layout)
    code = machine.kept(name)
    if code is None:
        _made.append(size(kernel))
        if sum(_made) > SPREAD:
            _say_so()
        code = machine.built(translation.translated(kernel, list(map(_kind, layout))))
        try:
            machine.keep(name, code)
        except OSError:
            _warn_of_no_cache()
    _load(kernel, layout, code)
    return _entries[kernel, layout]


def _load(kernel: Callable[..., Any], layout: Layout, code: machine.Code | None) -> bool:
    if code is not None:
        _entries[kernel, layout] = machine.loaded(code, translation.ENTRY)
    return code is not None


@cache
def _name(kernel: Callable[..., Any], layout: Layout) -> str:
    """Return under which name a kernel's code is kept: it tells all that the code is made of."""
    made_of = f"{_spelt(kernel)} {_described(layout)} {_made_by()}"
    return f"{kernel.__name__}_{sha256(made_of.encode()).hexdigest()[:32]}.o"


@cache
def _made_by() -> str:
    texts = (Path(str(module.__file__)).read_bytes() for module in (expressions, machine, translation, llvm_text))
    return f"{machine.HERE} {sha256(b''.join(texts)).hexdigest()}"


def _named(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the functions and constants of modules that a function names."""
    named = function.__globals__
    return {name: named[name] for name in function.__code__.co_names if name in named}


def _spelt(kernel: Callable[..., Any]) -> str:
    told = []
    for function in _reached(kernel):
        code, named = function.__code__, _named(function).items()
        constants = (f"{name} {value}" for name, value in named if not isinstance(value, FunctionType))
        told += [code.co_code.hex(), f"{code.co_consts} {code.co_names} {code.co_varnames}", *constants]
    return " ".join(told)


def _reached(kernel: Callable[..., Any]) -> list[Callable[..., Any]]:
    """Return a kernel and all functions that it is made of, each once."""
    reached = [kernel]
    for function in reached:
        parts = (value for value in _named(function).values() if isinstance(value, FunctionType))
        reached += [part for part in parts if part not in reached]
    return reached


def _described(layout: Any) -> str:
    if isinstance(layout, tuple):
        return f"({' '.join(_described(value) for value in layout)})"
    return f"{layout.__name__} {getattr(layout, '_fields', '')}" if isinstance(layout, type) else str(layout)


def _kind(layout: Any) -> llvm_text.Kind:
    if layout is None:
        return llvm_text.Integer()
    if isinstance(layout, tuple):
        fields = zip(layout[0]._fields, map(_kind, layout[1:]), strict=True)
        return llvm_text.Record(layout[0].__name__, tuple(fields))
    if layout.kind not in "iub" or not layout.isnative:
        message = f"a kernel's columns hold integers, not {layout}"
        raise TypeError(message)
    return llvm_text.Column(layout.name)


@cache
def _say_so() -> None:
    sys.stderr.write("compiling the simulator for this machine: later runs are quicker\n")
    sys.stderr.flush()


@cache
def _warn_of_no_cache() -> None:
    """Warn once in a process; its workers leave that to it."""
    from multiprocessing import parent_process

    if parent_process() is None:
        warnings.warn(_NO_CACHE, RuntimeWarning, stacklevel=5)


_entries: dict[tuple[Callable[..., Any], Layout], Callable[[int], int]] = {}
"""What is in this process."""

_made: list[int] = []
"""Bytes of bytecode of what this process compiled; what takes a moment is not mentioned."""

_NO_CACHE = (
    "compiled code cannot be kept, so every run compiles again: "
    "make the folder in NUMBA_CACHE_DIR (or ~/.cache) writable"
)
