"""Kernels: functions over integer columns that run interpreted on lists or compiled on arrays.

``README.md`` describes the language of kernels, how a kernel runs, and the cache.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock, start_new_thread
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    Argument: TypeAlias = NDArray[Any] | int | tuple["Argument", ...]
    """A column, an integer, or a record of those."""

Record = TypeVar("Record", bound=tuple[Any, ...])

__all__ = [
    "COMPILE_FROM",
    "always_compiled",
    "compiles",
    "fetch",
    "fixed",
    "halves",
    "many_runs",
    "observe",
    "publish",
    "run",
    "run_parts",
]

COMPILE_FROM = 4_000
"""Rows from which interpreting about a dozen kernels takes longer than loading LLVM and compiled code.

A kernel that is not in the cache is also compiled from there, because the third or fourth run saves the time.
"""

_VALUES_PER_ROW = 64
"""Values of columns whose conversion to a list and back takes as long as interpreting one row."""

TWO_THREADS_FROM = 250_000
"""Rows of work from which a second thread saves several times the 0.1 ms that it takes to start."""

_expected_rows = ContextVar("expected_rows", default=0)
_loaded: dict[Callable[..., Any], Callable[[Callable[..., Any], Sequence[Any]], int | None]] = {}
"""Kernels whose compiled code is in this process, and the function that calls it.

Compiled code is faster than interpreting for any number of rows.
"""
_interpreted_rows: Counter[Callable[..., Any]] = Counter()
"""Rows that this process interpreted, by kernel."""


@contextmanager
def many_runs(rows: int) -> Iterator[None]:
    """Decide in this block as if each run of a kernel had at least ``rows`` rows of work."""
    token = _expected_rows.set(rows)
    try:
        yield
    finally:
        _expected_rows.reset(token)


def always_compiled() -> AbstractContextManager[None]:
    """Run every kernel compiled in this block."""
    return many_runs(sys.maxsize)


def compiles(work: int, *, loaded: bool = False) -> bool:
    """Return whether ``work`` rows run compiled if the code is in the cache.

    ``PPTRACE_INTERPRET=1`` interprets all kernels.
    """
    is_faster = loaded or max(work, _expected_rows.get()) >= COMPILE_FROM
    return is_faster and os.environ.get("PPTRACE_INTERPRET", "0") in {"", "0"}


def run(kernel: Callable[..., Any], inputs: Sequence[Argument], outputs: Sequence[Argument], *, work: int) -> int:
    """Run ``kernel(*inputs, *outputs)`` and return its result, or 0 if it returns none.

    Args:
        kernel: a function in the language of kernels.
        inputs: one-dimensional arrays, integers, and records (named tuples) of those.
        outputs: the same; the caller initialises the arrays, and the kernel fills them. To a read-only array it
            writes only values that are there already.
        work: the number of rows. It decides, with the rows that this process interpreted before, whether the
            kernel is compiled. Much longer columns count as rows too.

    Raises:
        TypeError: the kernel is compiled, and is not in the language of kernels.
    """
    call_loaded = _loaded.get(kernel)
    if call_loaded is not None and compiles(work, loaded=True):
        result = call_loaded(kernel, (*inputs, *outputs))
        if result is not None:
            return result
    work = max(work, _count_values((*inputs, *outputs)) // _VALUES_PER_ROW)
    rows = _interpreted_rows[kernel] + work
    if compiles(rows, loaded=call_loaded is not None):
        from pptrace_kernel import compiled

        arguments = [*_map_arrays(compiled.as_column, inputs), *outputs]
        if compiled.is_ready(kernel, arguments) or (compiles(rows) and compiled.has_source(kernel)):
            _loaded[kernel] = compiled.call_loaded
            return compiled.call(kernel, arguments)
    _interpreted_rows[kernel] += work
    filled = _map_arrays(np.ndarray.tolist, outputs)
    result = kernel(*_map_arrays(np.ndarray.tolist, inputs), *filled)
    _write_back(outputs, filled)
    return int(result or 0)


def run_parts(
    kernel: Callable[..., Any],
    parts: Sequence[tuple[Argument, ...]],
    inputs: Sequence[Argument],
    outputs: Sequence[Argument],
    *,
    work: int,
) -> list[int]:
    """Run ``kernel(*part, *inputs, *outputs)`` for each part, and return the results.

    Loaded code of two parts runs in two threads, else one part runs after the other. No part reads what another
    part writes, except with :func:`publish` and :func:`observe`. ``parts`` are one or two, such as those of
    :func:`halves`. ``work`` is the number of rows of all parts; other arguments are as for :func:`run`.
    """
    results: list[int | None] = [None] * len(parts)
    call_loaded = _loaded.get(kernel)
    if len(parts) > 1 and call_loaded is not None and compiles(work, loaded=True):

        def call_part(number: int) -> None:
            results[number] = call_loaded(kernel, (*parts[number], *inputs, *outputs))

        _in_two_threads(call_part)
    return [
        run(kernel, (*part, *inputs), outputs, work=work) if result is None else result
        for part, result in zip(parts, results, strict=True)
    ]


def _in_two_threads(call: Callable[[int], None]) -> None:
    """Call a function with 0, and in another thread with 1; return when both calls have ended.

    A thread of :mod:`threading` takes 0.1 ms longer, because it waits until the other thread has started.
    """
    running = allocate_lock()
    running.acquire()

    def call_second() -> None:
        try:
            call(1)
        finally:
            running.release()

    start_new_thread(call_second, ())
    try:
        call(0)
    finally:
        running.acquire()


def halves(count: int, *, work: int) -> list[tuple[int, int]]:
    """Return the ranges of ``count`` ranks that :func:`run_parts` runs: both halves of much work, else one range.

    Processes that :mod:`multiprocessing` starts have one range, because other processes use the other cores.
    """
    if work < TWO_THREADS_FROM or count <= 1 or not has_second_core():
        return [(0, count)]
    return [(0, count // 2), (count // 2, count)]


def has_second_core() -> bool:
    """Return whether this process may use two processors, and no other process was started to do so."""
    from multiprocessing import parent_process

    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    return processors > 1 and parent_process() is None


def fixed(record: Record) -> Record:
    """Return a record of many calls, whose columns compiled calls collect once."""
    fixed_record: Record = _fixed_type(type(record))(*record)
    return fixed_record


@cache
def _fixed_type(record: type[Any]) -> type[Any]:
    return type(record.__name__, (record,), {"record": record, "collected": None})


def fetch(index: int, *columns: Any) -> None:
    """Prefetch an element of columns. The index can be outside of them.

    A compiled kernel executes prefetch instructions, which do not wait for memory. They pay off where the next
    access is one of several that the kernel can compute in advance. An interpreted kernel does nothing.
    """


def publish(column: Any, index: int, value: int) -> None:
    """Store an element of a column after all stores before it, for a kernel in another thread.

    A thread that reads the value with :func:`observe` also reads those stores.
    """
    column[index] = value


def observe(column: Any, index: int) -> int:
    """Return an element of a column that a kernel in another thread stores with :func:`publish`."""
    value: int = column[index]
    return value


def _count_values(arguments: Sequence[Argument]) -> int:
    """Return the number of values in all columns."""
    count = 0
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            count += argument.size
        elif isinstance(argument, tuple):
            count += _count_values(argument)
    return count


def _map_arrays(function: Callable[[NDArray[Any]], Any], arguments: Sequence[Argument]) -> list[Any]:
    """Apply a function to each array, also inside records. Keep integers unchanged."""
    mapped: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            mapped.append(function(argument))
        elif isinstance(argument, tuple):
            mapped.append(type(argument)(*_map_arrays(function, argument)))
        else:
            mapped.append(argument)
    return mapped


def _write_back(outputs: Sequence[Argument], filled: Sequence[Any]) -> None:
    """Copy lists into arrays, also inside records."""
    for output, values in zip(outputs, filled, strict=True):
        if isinstance(output, np.ndarray) and output.flags.writeable:
            output[:] = values
        elif isinstance(output, np.ndarray) and output.tolist() != values:
            message = "a kernel wrote another value to a read-only column"
            raise ValueError(message)
        elif isinstance(output, tuple):
            _write_back(output, values)
