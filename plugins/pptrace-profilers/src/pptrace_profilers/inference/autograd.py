"""Runs of forward and backward work in a host's recording, as autograd's operations tell them.

PyTorch gives an operation that autograd will go back through a sequence number, and the function that goes back
through it the same one (``autograd::engine::evaluate_function: MulBackward0``). So which backward belongs to which
forward is known; where one forward ends and the next begins is where a message was posted, or work went back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.events.table import Keep, read_events

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace_profilers.events.table import Events

__all__ = ["Run", "autograd_runs"]

_KEEP = Keep(categories=frozenset({"cpu_op"}), details=("",))
_BACKWARD = "autograd::engine::evaluate_function"
_NEVER = ("autograd::", "torch::autograd::", "c10d::", "record_param_comms")
_MOST_BYTES = 512 << 20
"""Files beyond this size are not read a second time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Work of one direction that nothing else came between."""

    forward: bool
    """Whether it goes forward."""
    start_ns: int
    """When it starts, on the host."""
    end_ns: int
    """When it ends."""
    forward_number: int
    """Which forward it is, or goes back through: counted over the recording."""
    operations: tuple[str, ...] = ()
    """Names of what ran in it, in order, for a forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    forward: bool
    start_ns: int
    end_ns: int
    sequence: int
    name: str


def autograd_runs(path: Path, posts_ns: Sequence[int]) -> list[Run]:
    """Return the runs of a file by time; none where it holds no operations of autograd, or is too large.

    Args:
        path: a file of PyTorch's profiler.
        posts_ns: when messages were posted.

    Raises:
        TraceError: the file cannot be read.
    """
    if path.stat().st_size > _MOST_BYTES:
        return []
    runs: list[Run] = []
    forward_of: dict[int, int] = {}
    forwards, last_post = -1, -1
    posts = np.sort(np.array(posts_ns, dtype=np.int64))
    for operation in _operations(read_events(path, _KEEP)):
        post = int(np.searchsorted(posts, operation.start_ns))
        current = runs[-1] if runs and post == last_post else None
        last_post = post
        if operation.forward:
            if current is not None and current.forward:
                names = (*current.operations, operation.name)
                runs[-1] = replace(current, end_ns=operation.end_ns, operations=names)
            else:
                forwards += 1
                runs.append(_begun(operation, forwards))
            forward_of[operation.sequence] = forwards
            continue
        forward = forward_of.get(operation.sequence, -1)
        if current is not None and not current.forward and forward in {-1, current.forward_number}:
            runs[-1] = replace(current, end_ns=max(current.end_ns, operation.end_ns))
        elif forward >= 0:
            runs.append(_begun(operation, forward))
    return runs


def _begun(operation: _Operation, forward_number: int) -> Run:
    return Run(
        forward=operation.forward, start_ns=operation.start_ns, end_ns=operation.end_ns,
        forward_number=forward_number, operations=(operation.name,) if operation.forward else (),
    )  # fmt: skip


def _operations(events: Events) -> list[_Operation]:
    """Return operations that autograd goes back through, the outer ones alone, and what goes back, by time."""
    rows = np.argsort(events.start_ns, kind="stable").tolist()
    sequences = {row: _sequence(events, row) for row in rows}
    back = {row for row in rows if events.name_of(row).startswith(_BACKWARD)}
    returning = {sequences[row] for row in back} - {-1}
    operations: list[_Operation] = []
    busy_until = -1
    for row in rows:
        start, end, name = int(events.start_ns[row]), int(events.end_ns[row]), events.name_of(row)
        forward = row not in back
        if forward and (sequences[row] not in returning or name.startswith(_NEVER) or _goes_back(events, row)):
            continue
        if start < busy_until:  # inside of another: recomputed, or a part of it
            continue
        busy_until = end
        operations.append(
            _Operation(forward=forward, start_ns=start, end_ns=end, sequence=sequences[row], name=name)
        )
    # What autograd does not go back through has the number of the next operation that it does.
    last = {operation.sequence: number for number, operation in enumerate(operations) if operation.forward}
    return [
        operation
        for number, operation in enumerate(operations)
        if not operation.forward or last[operation.sequence] == number
    ]


def _sequence(events: Events, row: int) -> int:
    arguments = events.arguments.get(row)
    number = arguments.sequence_number if arguments is not None else None
    return number if isinstance(number, int) else -1


def _goes_back(events: Events, row: int) -> bool:
    """Whether an operation runs backward: the forward's thread is written on those alone."""
    arguments = events.arguments.get(row)
    return arguments is not None and arguments.forward_thread not in {None, 0}
