"""Ends of messages as the host posted them: PyTorch's ``c10d::send`` and ``c10d::recv_``."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.action import COMMUNICATION, Kind
from pptrace_profilers.pytorch.operations import MIRRORS
from pptrace_profilers.pytorch.payloads import size_of
from pptrace_profilers.recording.recording import End

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.action import Action
    from pptrace_profilers.events.table import Arguments, Events
    from pptrace_profilers.recording.recording import Ran

__all__ = ["posts_of"]

_POSTS = {"c10d::send": True, "c10d::recv_": False}
_WORK = re.compile(r"(gloo|nccl|mpi|ucc|xccl):(send|recv)(?: .*)?")
_SENDS = frozenset({Kind.SEND_F, Kind.SEND_B})
_MOST_AROUND = 16
"""Annotations of messages that may have begun and not ended at one instant."""


def posts_of(events: Events, ran: Sequence[Ran], members: Sequence[int]) -> list[End]:
    """Return the ends of messages that the host posted, by time.

    The backend's own annotation (``gloo:send``) lies in the operation that posted it and lasts until it was
    waited for.

    Args:
        events: a file's events.
        ran: its actions by time; one that sends or receives, around a post, says which message it is.
        members: global ranks of the pipeline's group, by which posts count; empty where it is the whole job.
    """
    posts = _by_start(events, [number for number, name in enumerate(events.names) if name in _POSTS])
    work = _by_start(events, [number for number, name in enumerate(events.names) if _WORK.fullmatch(name)])
    moves = [one for one in ran if one.action.kind in COMMUNICATION]
    starts = np.array([one.start_ns for one in moves], dtype=np.int64)
    inside = np.searchsorted(events.start_ns[work], events.start_ns[posts]).tolist()
    begun = np.searchsorted(starts, events.start_ns[posts], side="right").tolist()
    found = []
    for row, at, first in zip(posts.tolist(), inside, begun, strict=True):
        start, sends = int(events.start_ns[row]), _POSTS[events.named(row)]
        own = int(work[at]) if at < work.size and events.start_ns[work[at]] <= events.end_ns[row] else -1
        peer, tag = _peer(events.arguments.get(row))
        found.append(End(
            sends=sends, peer=members[peer] if 0 <= peer < len(members) else peer, tag=tag,
            start_ns=start, end_ns=int(events.end_ns[own if own >= 0 else row]),
            size_bytes=size_of(events.arguments.get(own)) or size_of(events.arguments.get(row)),
            action=_around(moves[max(first - _MOST_AROUND, 0) : first], start, sends=sends),
        ))  # fmt: skip
    return found


def _by_start(events: Events, names: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    rows = np.flatnonzero(np.isin(events.name, names) & ~events.of(MIRRORS))
    return rows[np.argsort(events.start_ns[rows], kind="stable")]


def _around(moves: Sequence[Ran], at_ns: int, *, sends: bool) -> Action | None:
    """Return the innermost action of the same direction around an instant."""
    for one in reversed(moves):
        if one.end_ns >= at_ns and (one.action.kind in _SENDS) == sends:
            return one.action
    return None


def _peer(arguments: Arguments | None) -> tuple[int, int]:
    """Return the other end's rank and the tag, the last two of ``c10d::send``'s inputs."""
    try:
        values = json.loads(bytes(arguments.inputs)) if arguments is not None else []
        return int(values[-2]), int(values[-1])
    except (ValueError, IndexError, TypeError):
        return -1, 0
