"""PyTorch's profiler: one Chrome JSON file per process, as libkineto writes it.

Source: libkineto/src/output_json.cpp and PyTorch's record_function ranges. A host's file (gloo, CPU) has
annotations and ``c10d::`` operations; a GPU's has kernels too, each with the ``correlation`` of its launch.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import TraceError
from pptrace.model.action import COMPUTE
from pptrace_profilers.assembly.pipelines import MOST_RANKS, pipeline_group
from pptrace_profilers.events.records import MEMORY
from pptrace_profilers.events.table import Keep, read_events
from pptrace_profilers.pytorch.operations import GPU, IDLE_CALLS, LAUNCHES, operations_of
from pptrace_profilers.pytorch.phases import phases_of
from pptrace_profilers.pytorch.posts import posts_of
from pptrace_profilers.recording.annotations import Annotations
from pptrace_profilers.recording.device import on_device
from pptrace_profilers.recording.recording import Ran, Recording
from pptrace_profilers.rules.names import NO_STAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.model.action import Action
    from pptrace_profilers.events.table import Events
    from pptrace_profilers.rules.names import Rules

__all__ = ["check_kineto", "read_kineto", "recording_of"]

_KEEP = Keep(
    categories=frozenset({*GPU, *LAUNCHES, "user_annotation"}),
    prefixes=("c10d::", "nccl:", MEMORY),
    without=IDLE_CALLS,
    details=("c10d::", "gloo:", "nccl"),
)
_STEP = re.compile(r"ProfilerStep#\d+")
_FAMILIAR = re.compile(r"ProfilerStep#|gloo:|nccl:|Optimizer\.")
"""How annotations begin that PyTorch writes by itself."""
_NUMBER = re.compile(r"\d+")
_LONGEST, _TOLD = 60, 3
"""Characters of a name that are told, and how many names."""
_HOST = 0
"""Type of device of the host's memory (c10/core/DeviceType.h)."""
_IN_NAME = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)


def read_kineto(path: Path, rules: Rules) -> Recording:
    """Read one process's file.

    Raises:
        TraceError: it cannot be read, or is no such file.
    """
    return recording_of(read_events(path, _KEEP), rules)


def recording_of(events: Events, rules: Rules) -> Recording:
    """Return what one process's events say, of whatever file they were."""
    path = events.path
    about = events.top.get("distributedInfo")
    info: Mapping[str, Any] = about if isinstance(about, dict) else {}
    rank = _rank(info, path)
    groups = _groups(info, rank)
    members = pipeline_group(groups, rank)
    ran, annotations = _annotated(events, rules)
    return on_device(Recording(
        path=path, rank=rank, world=_whole(info.get("world_size"), MOST_RANKS), groups=groups,
        windows=_windows(events),
        ran=tuple(ran), ends=tuple(posts_of(events, ran, members)),
        operations=operations_of(events, rules, ran, annotations, members), notes=tuple(_notes(events, ran)),
        origin_ns=_whole(events.top.get("baseTimeNanoseconds")),
        allocated_bytes=max((size for device, size in events.allocated.items() if device != _HOST), default=0),
    ))  # fmt: skip


def _notes(events: Events, ran: Sequence[Ran]) -> Iterable[str]:
    if events.cut:
        yield f"{events.path.name} ends in the middle: {len(events):,} events before that were read"
    if events.bad:
        yield f"{events.path.name}: {events.bad:,} events have no time, a negative or an endless one: left out"
    strangers = "" if ran else _strangers(events)
    if strangers:
        yield (
            f"annotations such as {strangers} name no action that is known (# is a number): where they are "
            "actions, say so in a file: --rules FILE"
        )


def _strangers(events: Events) -> str:
    """Return the commonest forms of names of annotations that PyTorch does not write by itself."""
    foreign = [number for number, name in enumerate(events.names) if not _FAMILIAR.match(name)]
    rows = np.flatnonzero(np.isin(events.name, foreign) & events.of({"user_annotation"}))
    forms = Counter(_NUMBER.sub("#", events.named(row))[:_LONGEST] for row in rows.tolist())
    return ", ".join(sorted(forms, key=lambda form: (-forms[form], form))[:_TOLD])


def _rank(info: Mapping[str, Any], path: Path) -> int:
    said = info.get("rank")
    if isinstance(said, int) and 0 <= said < MOST_RANKS:
        return said
    named = _IN_NAME.search(path.name)
    return int(named[1][:9]) if named else -1


def _whole(value: Any, most: int = 2**62) -> int:
    return value if isinstance(value, int) and 0 < value < most else 0


def _groups(info: Mapping[str, Any], rank: int) -> dict[str, tuple[int, ...]]:
    """Return the process groups that have a description and ranks; old traces write ranks as text.

    Of several that are described alike, such as those of all pipelines, the one that holds ``rank`` counts.
    """
    found: dict[str, tuple[int, ...]] = {}
    listed = info.get("pg_config")
    for group in listed if isinstance(listed, list) else ():
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks")
        if isinstance(ranks, str):
            try:
                ranks = json.loads(ranks)
            except (ValueError, RecursionError):
                ranks = None
        name = str(group.get("pg_desc") or group.get("pg_name") or "")
        if isinstance(ranks, list) and all(isinstance(one, int) for one in ranks) and _differ(ranks):
            found[name] = tuple(ranks) if rank in ranks else found.get(name, tuple(ranks))
    return found


def _differ(ranks: list[int]) -> bool:
    return len(set(ranks)) == len(ranks)


def _windows(events: Events) -> tuple[tuple[str, int, int], ...]:
    wanted = [number for number, name in enumerate(events.names) if _STEP.fullmatch(name)]
    rows = np.flatnonzero(np.isin(events.name, wanted) & events.of({"user_annotation"}))
    found = {(events.named(row), int(events.start_ns[row]), int(events.end_ns[row])) for row in rows.tolist()}
    return tuple(sorted(found, key=lambda window: window[1]))


def _annotated(events: Events, rules: Rules) -> tuple[list[Ran], Annotations]:
    """Return actions by time, and where their annotations are; of one annotated twice the inner one counts."""
    actions = {number: action for number, name in enumerate(events.names) if (action := rules.action(name))}
    phases = phases_of(events)
    rows = np.flatnonzero(np.isin(events.name, list(actions)) & events.of({"user_annotation"}))
    rows = np.union1d(rows, list(phases)).astype(np.int64)
    rows = rows[np.lexsort((rows, -events.end_ns[rows], events.start_ns[rows]))]
    columns = zip(
        rows.tolist(), events.name[rows].tolist(), events.start_ns[rows].tolist(), events.end_ns[rows].tolist(),
        events.thread[rows].tolist(), strict=True,
    )  # fmt: skip
    ran, threads = [], []
    for row, name, start, end, thread in columns:
        ran.append(phases.get(row) or Ran(action=actions[name], start_ns=start, end_ns=end))
        threads.append(thread)
    kept = _innermost_of_each(ran, threads)
    rows = rows[kept]
    return [ran[number] for number in kept], Annotations(
        start_ns=events.start_ns[rows], end_ns=events.end_ns[rows], thread=events.thread[rows], row=rows
    )


def _innermost_of_each(ran: list[Ran], threads: list[int]) -> list[int]:
    """Return which annotations count: not one that holds another of the same action, nor one in its own braid.

    PyTorch's GPipe says ``Forward 3`` around receive, computation and send; an annotation of the computation
    alone, inside, says more.
    """
    dropped = set()
    open_on: dict[int, list[int]] = {}
    for number, one in enumerate(ran):
        if one.action.kind not in COMPUTE:
            continue
        around = open_on.setdefault(threads[number], [])
        while around and ran[around[-1]].end_ns <= one.start_ns:
            around.pop()
        for outer in around:
            if _same(ran[outer].action, one.action):
                dropped.add(outer)
            elif any(_same(member, one.action) for member in ran[outer].action.sub_actions):
                dropped.add(number)
        around.append(number)
    return [number for number in range(len(ran)) if number not in dropped]


def _same(outer: Action, inner: Action) -> bool:
    return (
        not outer.sub_actions
        and not inner.sub_actions
        and (outer.kind, outer.unit, outer.span) == (inner.kind, inner.unit, inner.span)
        and outer.stage in {inner.stage, NO_STAGE}
    )


def check_kineto(path: Path, recording: Recording) -> None:
    """Refuse a file in which nothing is a profiler's."""
    if not recording.ran and recording.operations is None and not recording.ends and not recording.windows:
        raise TraceError("holds no annotation, kernel or message of PyTorch's profiler", file=path)
