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
    of: int
    """Which forward it is, or goes back through: counted over the recording."""
    shape: tuple[str, ...] = ()
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
    operations = _operations(read_events(path, _KEEP))
    runs: list[Run] = []
    of_sequence: dict[int, int] = {}
    forwards, last_post = -1, -1
    posts = np.sort(np.array(posts_ns, dtype=np.int64))
    for one in operations:
        post = int(np.searchsorted(posts, one.start_ns))
        current = runs[-1] if runs and post == last_post else None
        last_post = post
        if one.forward:
            if current is not None and current.forward:
                runs[-1] = replace(current, end_ns=one.end_ns, shape=(*current.shape, one.name))
            else:
                forwards += 1
                runs.append(_begun(one, forwards))
            of_sequence[one.sequence] = forwards
            continue
        of = of_sequence.get(one.sequence, -1)
        if current is not None and not current.forward and of in {-1, current.of}:
            runs[-1] = replace(current, end_ns=max(current.end_ns, one.end_ns))
        elif of >= 0:
            runs.append(_begun(one, of))
    return runs


def _begun(one: _Operation, of: int) -> Run:
    shape = (one.name,) if one.forward else ()
    return Run(forward=one.forward, start_ns=one.start_ns, end_ns=one.end_ns, of=of, shape=shape)


def _operations(events: Events) -> list[_Operation]:
    """Return operations that autograd goes back through, the outer ones alone, and what goes back, by time."""
    rows = np.argsort(events.start_ns, kind="stable").tolist()
    sequences = {row: _sequence(events, row) for row in rows}
    back = {row for row in rows if events.named(row).startswith(_BACKWARD)}
    returning = {sequences[row] for row in back} - {-1}
    found: list[_Operation] = []
    busy_until = -1
    for row in rows:
        start, end, name = int(events.start_ns[row]), int(events.end_ns[row]), events.named(row)
        forward = row not in back
        if forward and (sequences[row] not in returning or name.startswith(_NEVER) or _goes_back(events, row)):
            continue
        if start < busy_until:  # inside of another: recomputed, or a part of it
            continue
        busy_until = end
        found.append(_Operation(forward=forward, start_ns=start, end_ns=end, sequence=sequences[row], name=name))
    # What autograd does not go back through has the number of the next operation that it does.
    last = {one.sequence: number for number, one in enumerate(found) if one.forward}
    return [one for number, one in enumerate(found) if not one.forward or last[one.sequence] == number]


def _sequence(events: Events, row: int) -> int:
    given = events.arguments.get(row)
    return given.sequence_number if given is not None and isinstance(given.sequence_number, int) else -1


def _goes_back(events: Events, row: int) -> bool:
    """Whether an operation runs backward: the forward's thread is written on those alone."""
    given = events.arguments.get(row)
    return given is not None and given.forward_thread not in {None, 0}
