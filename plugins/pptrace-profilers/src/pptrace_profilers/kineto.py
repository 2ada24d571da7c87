"""PyTorch's profiler: one Chrome JSON file per process, as libkineto writes it.

Source: libkineto/src/output_json.cpp and PyTorch's record_function ranges. A host's file (gloo, CPU) has
annotations and ``c10d::`` operations; a GPU's has kernels too, each with the ``correlation`` of its launch.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import TraceError
from pptrace.model.action import COMMUNICATION
from pptrace_profilers.chrome.events import Keep, read_events
from pptrace_profilers.recording import End, Operations, Ran, Recording

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.model.columns import Int64s
    from pptrace_profilers.chrome.events import Arguments, Events
    from pptrace_profilers.rules import Rules

__all__ = ["read_kineto"]

_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime"})
_POSTS = {"c10d::send": True, "c10d::recv_": False}
_KEEP = Keep(
    categories=frozenset({*_GPU, *_LAUNCHES, "user_annotation"}),
    prefixes=("c10d::", "record_param_comms"),
    details=("c10d::", "gloo:", "nccl"),
)
_STEP = re.compile(r"ProfilerStep#\d+")
_IN_NAME = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)
_BYTES = {"float": 4, "double": 8, "c10::half": 2, "c10::bfloat16": 2, "long int": 8, "int": 4, "unsigned char": 1}


def read_kineto(path: Path, rules: Rules) -> Recording:
    """Read one process's file.

    Raises:
        TraceError: it cannot be read, or is no such file.
    """
    events = read_events(path, _KEEP)
    about = events.top.get("distributedInfo")
    info: Mapping[str, Any] = about if isinstance(about, dict) else {}
    ran = _annotated(events, rules)
    operations = _operations(events, rules, ran)
    notes = []
    if events.cut:
        notes.append(f"{path.name} ends in the middle: {len(events):,} events before that were read")
    if events.bad:
        notes.append(f"{path.name}: {events.bad:,} events have no time, a negative or an endless one: left out")
    return Recording(
        path=path, rank=_rank(info, path), world=int(info.get("world_size") or 0), groups=_groups(info),
        windows=_windows(events), ran=tuple(ran), ends=tuple(_posted(events, ran)), operations=operations,
        notes=tuple(notes),
    )  # fmt: skip


def _rank(info: Mapping[str, Any], path: Path) -> int:
    if isinstance(info.get("rank"), int):
        return int(info["rank"])
    named = _IN_NAME.search(path.name)
    return int(named[1]) if named else -1


def _groups(info: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the process groups that have a description and ranks; old traces write ranks as text."""
    found: dict[str, tuple[int, ...]] = {}
    for group in info.get("pg_config") or ():
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks")
        if isinstance(ranks, str):
            try:
                ranks = json.loads(ranks)
            except ValueError:
                ranks = None
        name = str(group.get("pg_desc") or group.get("pg_name") or "")
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            found[name] = tuple(ranks)
    return found


def _windows(events: Events) -> tuple[tuple[str, int, int], ...]:
    wanted = [number for number, name in enumerate(events.names) if _STEP.fullmatch(name)]
    rows = np.flatnonzero(np.isin(events.name, wanted) & _in(events, frozenset({"user_annotation"})))
    found = {(events.named(row), int(events.start_ns[row]), int(events.end_ns[row])) for row in rows.tolist()}
    return tuple(sorted(found, key=lambda window: window[1]))


def _in(events: Events, categories: frozenset[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    numbers = [number for number, name in enumerate(events.categories) if name in categories]
    return np.isin(events.category, numbers)


def _annotated(events: Events, rules: Rules) -> list[Ran]:
    """Return actions by time; of one that is annotated twice (on two threads) the longer counts."""
    actions = {number: action for number, name in enumerate(events.names) if (action := rules.action(name))}
    rows = np.flatnonzero(np.isin(events.name, list(actions)) & _in(events, frozenset({"user_annotation"})))
    order = rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]
    return [
        Ran(
            action=actions[int(events.name[row])],
            start_ns=int(events.start_ns[row]),
            end_ns=int(events.end_ns[row]),
        )
        for row in order.tolist()
    ]


def _posted(events: Events, ran: Sequence[Ran]) -> list[End]:
    """Return the ends of messages that ``c10d::send`` and ``c10d::recv_`` posted on the host.

    The backend's own annotation (``gloo:send``) lies in the operation that posted it and lasts until it was
    waited for.
    """
    names = {number: name for number, name in enumerate(events.names) if name in _POSTS}
    posts = np.flatnonzero(np.isin(events.name, list(names)))
    posts = posts[np.argsort(events.start_ns[posts], kind="stable")]
    works = [
        number
        for number, name in enumerate(events.names)
        if re.fullmatch(r"(gloo|nccl|mpi|ucc):(send|recv)", name)
    ]
    work = np.flatnonzero(np.isin(events.name, works))
    work = work[np.argsort(events.start_ns[work], kind="stable")]
    messages = [one for one in ran if one.action.kind in COMMUNICATION]
    around = _enclosing(messages, events.start_ns[posts])
    inside = np.searchsorted(events.start_ns[work], events.start_ns[posts])
    found = []
    for index, row in enumerate(posts.tolist()):
        peer, tag = _peer(events.arguments.get(row))
        at = int(inside[index])
        own = int(work[at]) if at < work.size and events.start_ns[work[at]] <= events.end_ns[row] else -1
        found.append(End(
            sends=_POSTS[names[int(events.name[row])]], peer=peer, tag=tag,
            start_ns=int(events.start_ns[row]), end_ns=int(events.end_ns[own if own >= 0 else row]),
            size_bytes=_size(events.arguments.get(own)),
            action=messages[around[index]].action if around[index] >= 0 else None,
        ))  # fmt: skip
    return found


def _enclosing(ran: Sequence[Ran], at_ns: Int64s) -> list[int]:
    """Return the innermost of some actions around each instant, -1 for none."""
    starts = np.array([one.start_ns for one in ran], dtype=np.int64)
    found = []
    for instant, first in zip(at_ns.tolist(), np.searchsorted(starts, at_ns, side="right").tolist(), strict=True):
        within = [k for k in range(max(first - _DEEPEST, 0), first) if ran[k].end_ns >= instant]
        found.append(within[-1] if within else -1)
    return found


_DEEPEST = 16
"""Annotations of actions that may have begun and not ended at one instant."""


def _peer(arguments: Arguments | None) -> tuple[int, int]:
    """Return the other end's rank and the tag, the last two of ``c10d::send``'s inputs."""
    try:
        values = json.loads(bytes(arguments.inputs)) if arguments is not None else []
        return int(values[-2]), int(values[-1])
    except (ValueError, IndexError, TypeError):
        return -1, 0


def _size(arguments: Arguments | None) -> int:
    """Return the bytes of a backend's annotation: its inputs' elements times the size of their type."""
    try:
        dims = json.loads(bytes(arguments.input_dims)) if arguments is not None else []
        types = json.loads(bytes(arguments.input_type)) if arguments is not None else []
        return sum(int(np.prod(d)) * _BYTES.get(t, 0) for d, t in zip(dims, types, strict=True) if d)
    except (ValueError, TypeError):
        return 0


def _operations(events: Events, rules: Rules, ran: Sequence[Ran]) -> Operations | None:
    """Return GPU operations with the actions around their launches; None where there are none."""
    rows = np.flatnonzero(_in(events, _GPU))
    if not rows.size:
        return None
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    launches = np.flatnonzero(_in(events, _LAUNCHES) & (events.correlation >= 0))
    launches = launches[np.argsort(events.correlation[launches], kind="stable")]
    at = np.searchsorted(events.correlation[launches], events.correlation[rows])
    at = np.minimum(at, max(launches.size - 1, 0))
    known = (events.correlation[rows] >= 0) & (launches.size > 0)
    if launches.size:
        known &= events.correlation[launches[at]] == events.correlation[rows]
    launched = np.where(known, events.start_ns[launches[at]] if launches.size else -1, -1)
    communicates = np.array([bool(rules.communication.search(name)) for name in events.names], dtype=bool)
    return Operations(
        name=events.name[rows], names=tuple(events.names), stream=events.stream[rows],
        start_ns=events.start_ns[rows], end_ns=events.end_ns[rows], launch_ns=launched,
        communicates=communicates[events.name[rows]],
        action=np.array(_enclosing(ran, launched), dtype=np.int32),
    )  # fmt: skip


def check_kineto(path: Path, recording: Recording) -> None:
    """Refuse a file in which nothing is a profiler's."""
    if not recording.ran and recording.operations is None and not recording.ends and not recording.windows:
        raise TraceError("holds no annotation, kernel or message of PyTorch's profiler", file=path)
