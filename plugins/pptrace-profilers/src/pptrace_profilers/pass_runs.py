"""Forward and backward passes of a rank.

PyTorch gives a sequence number to each operation with a backward. The backward function has the same number
(``autograd::engine::evaluate_function: MulBackward0``). So the forward of each backward is known. A forward ends
at a posted message, at a backward, or between operations without a common backward pass. The last case separates
stages on the same rank, which exchange no messages.

PyTorch launches forward kernels from the model's thread and backward kernels from autograd's thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from pptrace_profilers.events import parse_integer
from pptrace_profilers.gpu_spans import compute_stream
from pptrace_profilers.json_events import Keep, read_events
from pptrace_profilers.torch_perfetto import read_slices

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Int64s
    from pptrace_profilers.events import Events
    from pptrace_profilers.recording import Operations

_KEEP = Keep(categories=frozenset({"cpu_op"}), details=("",))
_NUMBERED = frozenset({"Sequence number", "Fwd thread id"})
_BACKWARD = "autograd::engine::evaluate_function"
_EXCLUDED = ("autograd::", "torch::autograd::", "c10d::", "record_param_comms")
_MOST_BYTES = 512 << 20
"""Files beyond this size are not read a second time."""


class Run(Struct, frozen=True, kw_only=True):
    """Consecutive operations of one direction."""

    forward: bool
    """Whether it is a forward."""
    start_ns: int
    """Start on the host."""
    end_ns: int
    """End on the host."""
    forward_number: int
    """Number of the forward in the recording; for a backward, the number of its forward."""
    operations: tuple[str, ...] = ()
    """Names of the operations of a forward, in order; empty for a backward."""


class _Passes(Struct, frozen=True, kw_only=True):
    """Outer operations with a backward, and backward operations, by time."""

    events: Events
    row: Int64s
    """Event of each operation."""
    forward: list[bool]
    """Whether each operation is of a forward."""
    sequence: list[int]
    """Sequence number of each operation; -1 for none."""


def autograd_runs(path: Path, posts_ns: Int64s, *, is_perfetto: bool = False) -> list[Run]:
    """Return the runs of a file by time; none if the file has no operations of autograd, or is too large.

    Args:
        path: a file of PyTorch's profiler.
        posts_ns: post times of messages.
        is_perfetto: whether the file is a Perfetto trace, and not Chrome JSON.

    Raises:
        TraceError: the file cannot be read.
    """
    if path.stat().st_size > _MOST_BYTES:
        return []
    operations = _passes(read_slices(path, _NUMBERED) if is_perfetto else read_events(path, _KEEP))
    posts = np.searchsorted(np.sort(posts_ns), operations.events.start_ns[operations.row]).tolist()
    runs, of_run = _runs(operations, posts, frozenset())
    begins = _separate_forwards(operations, of_run)
    return _runs(operations, posts, begins)[0] if begins else runs


def _runs(operations: _Passes, posts: Sequence[int], begins: frozenset[int]) -> tuple[list[Run], list[int]]:
    """Return the runs, and the run of each operation.

    Args:
        operations: operations of autograd.
        posts: number of messages posted before each operation.
        begins: indices of operations that start a forward without a post or a backward before them.
    """
    groups: list[tuple[bool, int, list[int]]] = []
    of_run: list[int] = []
    forward_of: dict[int, int] = {}
    visited: set[int] = set()
    forwards, last_post = -1, -1
    columns = zip(operations.forward, operations.sequence, posts, strict=True)
    for number, (of_forward, sequence, post) in enumerate(columns):
        is_forward, current, members = groups[-1] if groups and post == last_post else (None, -1, [])
        joins = is_forward == of_forward
        last_post = post
        if of_forward:
            joins = joins and number not in begins
            forwards += not joins
            forward = forward_of[sequence] = forwards
        else:
            forward = forward_of.get(sequence, -1)
            # A pass of autograd runs each function once, so a repeated function starts the next pass.
            joins = joins and forward in {-1, current} and sequence not in visited
        if joins:
            members.append(number)
        elif forward >= 0:
            groups.append((of_forward, forward, [number]))
            visited = set()
        if not of_forward:
            visited |= {sequence} - {-1}
        of_run.append(len(groups) - 1 if joins or forward >= 0 else -1)
    return [_run(operations, *group) for group in groups], of_run


def _run(operations: _Passes, is_forward: bool, forward: int, members: list[int]) -> Run:  # noqa: FBT001 - a field
    events, rows = operations.events, operations.row[members]
    return Run(
        forward=is_forward, start_ns=int(events.start_ns[rows[0]]), end_ns=int(events.end_ns[rows].max()),
        forward_number=forward, operations=tuple(map(events.name_of, rows)) if is_forward else (),
    )  # fmt: skip


def _separate_forwards(operations: _Passes, of_run: Sequence[int]) -> frozenset[int]:
    """Return operations inside a forward that share no backward pass with the operations before them."""
    passes: dict[int, set[int]] = {}
    for is_forward, sequence, run in zip(operations.forward, operations.sequence, of_run, strict=True):
        if not is_forward and sequence >= 0:
            passes.setdefault(sequence, set()).add(run)
    rows = [number for number, is_forward in enumerate(operations.forward) if is_forward]
    last_of: dict[int, int] = {}
    for number in rows:
        for run in passes[operations.sequence[number]]:
            last_of[run] = number
    begins, reaches = set(), -1
    for previous, number in zip([-1, *rows], rows, strict=False):
        if previous >= 0 and of_run[previous] == of_run[number] and reaches < number:
            begins.add(number)
        reaches = max(reaches, *(last_of[run] for run in passes[operations.sequence[number]]))
    return frozenset(begins)


def _passes(events: Events) -> _Passes:
    """Return the outer operations with a backward, and the backward operations, by time."""
    sequence = np.full(len(events), -1, dtype=np.int64)
    is_backward = np.zeros(len(events), dtype=bool)
    for row, arguments in events.arguments.items():
        sequence[row] = parse_integer(arguments.sequence_number, -1)
        is_backward[row] = arguments.forward_thread not in {None, 0}  # only backwards have this argument
    runs_backward = events.named(lambda name: name.startswith(_BACKWARD))
    returns = np.isin(sequence, sequence[runs_backward & (sequence >= 0)]) & ~is_backward
    returns &= ~events.named(lambda name: name.startswith(_EXCLUDED))
    outer = _outer_operations(events, runs_backward | returns)
    # An operation without a backward has the number of the next operation with a backward.
    last = {int(sequence[row]): row for row in outer if not runs_backward[row]}
    gone_back = {int(sequence[row]) for row in outer if runs_backward[row]}
    forward_rows = {row for number, row in last.items() if number in gone_back}
    rows = np.array([row for row in outer if runs_backward[row] or row in forward_rows], dtype=np.int64)
    return _Passes(
        events=events, row=rows, forward=(~runs_backward[rows]).tolist(), sequence=sequence[rows].tolist()
    )


def _outer_operations(events: Events, chosen: NDArray[np.bool_]) -> list[int]:
    """Return the chosen operations by time, without those inside another on the same thread.

    An operation inside another is a part of it, or a recomputation.
    """
    outer: list[int] = []
    busy_until_ns: dict[int, int] = {}
    for row in events.by_start(chosen).tolist():
        thread = int(events.thread[row])
        if events.start_ns[row] >= busy_until_ns.get(thread, -1):
            outer.append(row)
            busy_until_ns[thread] = int(events.end_ns[row])
    return outer


_SHORT = 2
"""Divisor of the median number of kernels; shorter runs set gradients to zero or sum losses, and are dropped."""


def launch_runs(operations: Operations | None, posts_ns: Int64s) -> list[Run]:
    """Return the runs by launch; none if fewer than two threads launched computations.

    The k-th backward is assigned to the k-th forward.

    Args:
        operations: operations of a GPU.
        posts_ns: launch times of messages.
    """
    if operations is None or operations.thread is None:
        return []
    rows = np.flatnonzero(~operations.communicates & (operations.launch_ns >= 0))
    rows = rows[np.argsort(operations.launch_ns[rows], kind="stable")]
    threads, launches = np.unique(operations.thread[rows], return_counts=True)
    if threads.size <= 1:
        return []
    # The two threads with the most launches run forwards and backwards.
    rows = rows[np.isin(operations.thread[rows], threads[np.argsort(-launches, kind="stable")[:2]])]
    post = np.searchsorted(np.sort(posts_ns), operations.launch_ns[rows])
    forward = operations.thread[rows] == operations.thread[rows[0]]  # a step begins with a forward
    cuts = np.flatnonzero((np.diff(forward) != 0) | (np.diff(post) != 0)) + 1
    parts = np.split(np.arange(rows.size), cuts)
    least = {
        direction: np.median([len(p) for p in parts if forward[p[0]] == direction]) / _SHORT
        for direction in (True, False)
    }
    runs, count = [], {True: 0, False: 0}
    for part in parts:
        direction = bool(forward[part[0]])
        if len(part) < least[direction]:
            continue
        launched = operations.launch_ns[rows[part]]
        names = tuple(operations.names[name] for name in operations.name[rows[part]].tolist()) if direction else ()
        runs.append(Run(
            forward=direction, start_ns=int(launched[0]), end_ns=int(launched[-1]),
            forward_number=count[direction], operations=names,
        ))  # fmt: skip
        count[direction] += 1
    return runs


def work_starts_ns(operations: Operations | None, runs: Sequence[Run]) -> list[int]:
    """Return the start of each run's first kernel on the compute stream, by default the start on the host.

    Args:
        operations: operations of a GPU; None if not recorded.
        runs: runs launched by the host.
    """
    if operations is None:
        return [run.start_ns for run in runs]
    rows = np.flatnonzero(~operations.communicates & (operations.stream == compute_stream(operations)))
    rows = rows[np.argsort(operations.launch_ns[rows], kind="stable")]
    launched = operations.launch_ns[rows]
    first = np.searchsorted(launched, [run.start_ns for run in runs], side="left")
    after = np.searchsorted(launched, [run.end_ns for run in runs], side="right")
    return [
        int(operations.start_ns[rows[a]]) if a < b else run.start_ns
        for a, b, run in zip(first.tolist(), after.tolist(), runs, strict=True)
    ]
