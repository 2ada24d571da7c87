"""Ends of messages as the host posted them: PyTorch's ``c10d::send`` and ``c10d::recv_``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import COMMUNICATION, SENDS
from pptrace_profilers.pytorch.operations import MIRRORS
from pptrace_profilers.pytorch.payloads import global_rank, input_bytes
from pptrace_profilers.recording.recording import MessageEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Action
    from pptrace_profilers.events.table import Arguments, Events
    from pptrace_profilers.recording.recording import Execution

__all__ = ["posted_ends"]

_POSTS = {"c10d::send": True, "c10d::recv_": False}
_WORK = re.compile(r"(gloo|nccl|mpi|ucc|xccl):(send|recv)(?: .*)?")
_MOST_AROUND = 16
"""Annotations of messages that may have begun and not ended at one instant."""


def posted_ends(events: Events, executions: Sequence[Execution], members: Sequence[int]) -> list[MessageEnd]:
    """Return the ends of messages that the host posted, by time.

    The backend's own annotation (``gloo:send``) lies in the operation that posted it and lasts until it was
    waited for.

    Args:
        events: a file's events.
        executions: its actions by time; one that sends or receives, around a post, says which message it is.
        members: global ranks of the pipeline's group, by which posts count; empty where it is the whole job.
    """
    on_host = ~events.of(MIRRORS)
    posts = events.by_start(events.named(_POSTS.__contains__) & on_host)
    work = events.by_start(events.named(_WORK.fullmatch) & on_host)
    moves = [execution for execution in executions if execution.action.kind in COMMUNICATION]
    starts = np.array([move.start_ns for move in moves], dtype=np.int64)
    inside = np.searchsorted(events.start_ns[work], events.start_ns[posts]).tolist()
    begun = np.searchsorted(starts, events.start_ns[posts], side="right").tolist()
    ends = []
    for row, at, first in zip(posts.tolist(), inside, begun, strict=True):
        start, sends = int(events.start_ns[row]), _POSTS[events.name_of(row)]
        annotated = at < work.size and events.start_ns[work[at]] <= events.end_ns[row]
        backend = int(work[at]) if annotated else row
        sizes = (input_bytes(events.arguments.get(event)) for event in (backend, row))
        ends.append(MessageEnd(
            sends=sends, peer=global_rank(_peer(events.arguments.get(row)), members),
            start_ns=start, end_ns=int(events.end_ns[backend]), size_bytes=next(filter(None, sizes), 0),
            action=_around(moves[max(first - _MOST_AROUND, 0) : first], start, sends=sends),
        ))  # fmt: skip
    return ends


def _around(moves: Sequence[Execution], at_ns: int, *, sends: bool) -> Action | None:
    """Return the innermost action of the same direction around an instant."""
    fitting = (
        move.action for move in reversed(moves) if move.end_ns >= at_ns and (move.action.kind in SENDS) == sends
    )
    return next(fitting, None)


def _peer(arguments: Arguments | None) -> int:
    """Return the other end's rank, the last but one of ``c10d::send``'s inputs."""
    try:
        return int(json.loads(bytes(arguments.inputs))[-2]) if arguments is not None else -1
    except (ValueError, IndexError, TypeError, KeyError):
        return -1
