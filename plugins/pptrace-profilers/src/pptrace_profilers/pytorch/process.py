"""One process's annotations, launches and GPU work in the names of PyTorch's profiler, whatever file they are of.

A host's file (gloo, CPU) has annotations and ``c10d::`` operations; a GPU's has kernels too, each with the
``correlation`` of its launch.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.plugin import COMPUTE
from pptrace_profilers.pytorch.metadata import groups_of, positive, rank_of
from pptrace_profilers.pytorch.operations import gpu_operations
from pptrace_profilers.pytorch.phases import hidden_phases, phase_executions
from pptrace_profilers.pytorch.posts import posted_ends
from pptrace_profilers.recording.annotations import Annotations
from pptrace_profilers.recording.gpu_spans import with_gpu_spans
from pptrace_profilers.recording.recording import MOST_RANKS, NO_STAGE, Execution, Recording, pipeline_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pptrace.plugin import Action
    from pptrace_profilers.events.table import Events
    from pptrace_profilers.rules.actions import Rules

__all__ = ["recording_of"]

_STEP = re.compile(r"ProfilerStep#\d+")
_FAMILIAR = re.compile(r"ProfilerStep#|gloo:|nccl:|Optimizer\.")
"""How annotations begin that PyTorch writes by itself."""
_NUMBER = re.compile(r"\d+")
_LONGEST, _MOST_NAMED = 60, 3
"""Characters of a name that are told, and how many names."""
_HOST = 0
"""Type of device of the host's memory (c10/core/DeviceType.h)."""


def recording_of(events: Events, rules: Rules) -> Recording:
    """Return what one process's events say."""
    about = events.top.get("distributedInfo")
    metadata: Mapping[str, Any] = about if isinstance(about, dict) else {}
    rank = rank_of(metadata, events.path)
    groups = groups_of(metadata, rank)
    members = pipeline_group(groups, rank)
    executions, annotations = _annotated(events, rules)
    recording = with_gpu_spans(Recording(
        path=events.path, rank=rank, world=positive(metadata.get("world_size"), MOST_RANKS), groups=groups,
        windows=_windows(events),
        executions=tuple(executions), ends=tuple(posted_ends(events, executions, members)),
        operations=gpu_operations(events, rules, executions, annotations, members),
        notes=tuple(_notes(events, executions)),
        origin_ns=positive(events.top.get("baseTimeNanoseconds")),
        allocated_bytes=max((size for device, size in events.allocated.items() if device != _HOST), default=0),
    ))  # fmt: skip
    hidden = hidden_phases(recording.executions)
    return replace(recording, notes=(*recording.notes, f"{events.path.name}: {hidden}")) if hidden else recording


def _notes(events: Events, executions: Sequence[Execution]) -> Iterable[str]:
    if events.cut:
        yield f"{events.path.name} ends in the middle: {len(events):,} events before that were read"
    if events.bad:
        yield f"{events.path.name}: {events.bad:,} events have no time, a negative or an endless one: left out"
    names = "" if executions else _unknown_names(events)
    if names:
        yield (
            f"annotations such as {names} name no action that is known (# is a number): where they are "
            "actions, say so in a file: --rules FILE"
        )


def _unknown_names(events: Events) -> str:
    """Return the commonest forms of names of annotations that PyTorch does not write by itself."""
    unknown = events.named(lambda name: not _FAMILIAR.match(name)) & events.of({"user_annotation"})
    forms = Counter(_NUMBER.sub("#", events.name_of(row))[:_LONGEST] for row in np.flatnonzero(unknown).tolist())
    return ", ".join(sorted(forms, key=lambda form: (-forms[form], form))[:_MOST_NAMED])


def _windows(events: Events) -> tuple[tuple[str, int, int], ...]:
    """Return label, start and end of the steps that the profiler marked."""
    rows = events.by_start(events.named(_STEP.fullmatch) & events.of({"user_annotation"})).tolist()
    return tuple(
        dict.fromkeys((events.name_of(row), int(events.start_ns[row]), int(events.end_ns[row])) for row in rows)
    )


def _annotated(events: Events, rules: Rules) -> tuple[list[Execution], Annotations]:
    """Return actions by time, and where their annotations are; of one annotated twice the inner one counts."""
    actions = {number: action for number, name in enumerate(events.names) if (action := rules.action(name))}
    phases = phase_executions(events)
    rows = np.flatnonzero(np.isin(events.name, list(actions)) & events.of({"user_annotation"}))
    rows = np.union1d(rows, list(phases)).astype(np.int64)
    rows = rows[np.lexsort((rows, -events.end_ns[rows], events.start_ns[rows]))]
    columns = (rows, events.name[rows], events.start_ns[rows], events.end_ns[rows])
    executions = [
        phases.get(row) or Execution(action=actions[name], start_ns=start, end_ns=end)
        for row, name, start, end in zip(*(column.tolist() for column in columns), strict=True)
    ]
    kept = _innermost_of_each(executions, events.thread[rows].tolist())
    rows = rows[kept]
    return [executions[number] for number in kept], Annotations(
        start_ns=events.start_ns[rows], end_ns=events.end_ns[rows], thread=events.thread[rows], row=rows
    )


def _innermost_of_each(executions: list[Execution], threads: list[int]) -> list[int]:
    """Return which annotations count: none that holds another of its action, or is in its own overlapped pair.

    PyTorch's GPipe says ``Forward 3`` around receive, computation and send; an annotation of the computation
    alone, inside, says more.
    """
    dropped = set()
    open_on: dict[int, list[int]] = {}
    for number, execution in enumerate(executions):
        if execution.action.kind not in COMPUTE:
            continue
        around = open_on.setdefault(threads[number], [])
        while around and executions[around[-1]].end_ns <= execution.start_ns:
            around.pop()
        for outer in around:
            if _is_same(executions[outer].action, execution.action):
                dropped.add(outer)
            elif any(_is_same(member, execution.action) for member in executions[outer].action.sub_actions):
                dropped.add(number)
        around.append(number)
    return [number for number in range(len(executions)) if number not in dropped]


def _is_same(outer: Action, inner: Action) -> bool:
    return (
        not outer.sub_actions
        and not inner.sub_actions
        and (outer.kind, outer.microbatch, outer.span) == (inner.kind, inner.microbatch, inner.span)
        and outer.stage in {inner.stage, NO_STAGE}
    )
