"""A process that torch.profiler recorded: metadata, phases and events.

A host's file (gloo, CPU) has annotations and ``c10d::`` operations; a GPU's has kernels too, each with the
``correlation`` of its launch.

DeepSeek's published profile (github.com/deepseek-ai/profile-data) marks a forward and a backward that run
together as ``1F1B``, and in it, layer by layer::

    combine(B) attn(F) mlp(B) dispatch(F) dispatch(B) mlp(W) mlp(F) attn(B) attn(W) combine(F)

Here a half of a layer is a stage: its attention 2l, its experts 2l + 1. What goes forward is a later microbatch
than what goes back, from the last layer to the first. ``dispatch`` and ``combine`` carry an activation or a
gradient to the next half, within the rank's own group. ``combine(B)`` is named by the half that takes what it
brings, for the last layer's gradient comes from a stage that the profile does not hold.

Source: libkineto/src/output_json.cpp and PyTorch's record_function ranges.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.plugin import Action, Kind, kinds
from pptrace_profilers.events import MEMORY, Keep, read_events
from pptrace_profilers.gpu_spans import uncovered_ns, with_gpu_spans
from pptrace_profilers.naming_rules import FILE_NAME
from pptrace_profilers.pytorch_operations import (
    GPU,
    IDLE_CALLS,
    LAUNCHES,
    MIRRORS,
    global_rank,
    gpu_operations,
    input_bytes,
)
from pptrace_profilers.recording import (
    MOST_RANKS,
    NO_STAGE,
    Annotations,
    Execution,
    MessageEnd,
    Recording,
    pipeline_group,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace_profilers.events import Arguments, Events
    from pptrace_profilers.naming_rules import Rules

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
        if execution.action.kind not in kinds.COMPUTE:
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


def positive(value: Any, most: int = 2**62) -> int:
    """Return a positive number, 0 for anything else."""
    return value if isinstance(value, int) and 0 < value < most else 0


def rank_of(metadata: Mapping[str, Any], path: Path) -> int:
    """Return the global rank that metadata say, else the file's name; -1 for none."""
    rank = metadata.get("rank")
    return rank if isinstance(rank, int) and 0 <= rank < MOST_RANKS else FILE_NAME.read(path.name)


def groups_of(metadata: Mapping[str, Any], rank: int) -> dict[str, tuple[int, ...]]:
    """Return the process groups that have a description and ranks; old traces write ranks as text.

    Of several that are described alike, such as those of all pipelines, the one that holds ``rank`` counts.
    """
    groups: dict[str, tuple[int, ...]] = {}
    listed = metadata.get("pg_config")
    for group in listed if isinstance(listed, list) else ():
        if not isinstance(group, dict):
            continue
        name = str(group.get("pg_desc") or group.get("pg_name") or "")
        ranks = _ranks(group.get("ranks"))
        if ranks is not None and (rank in ranks or name not in groups):
            groups[name] = ranks
    return groups


def _ranks(value: Any) -> tuple[int, ...] | None:
    """Return a group's ranks, None where they are none or not all different."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, list) or not all(isinstance(rank, int) for rank in value):
        return None
    return tuple(value) if len(set(value)) == len(value) else None


_PAIR = "1F1B"
_PHASES = {
    "attn(F)": (Kind.F, 0), "attn(B)": (Kind.I, 0), "attn(W)": (Kind.W, 0),
    "mlp(F)": (Kind.F, 1), "mlp(B)": (Kind.I, 1), "mlp(W)": (Kind.W, 1),
    "dispatch(F)": (Kind.SEND_F, 0), "combine(F)": (Kind.SEND_F, 1),
    "dispatch(B)": (Kind.SEND_B, 1), "combine(B)": (Kind.RECV_B, 1),
}  # fmt: skip
"""By name, the kind, and the half that works, is carried from, or receives, counted from its layer's attention."""


def phase_executions(events: Events) -> dict[int, Execution]:
    """Return the phases by event; empty where a file has none."""
    annotated = events.of({"user_annotation"})
    rows = events.by_start(events.named(_PHASES.__contains__) & annotated)
    pairs = np.sort(events.start_ns[annotated & events.named(_PAIR.__eq__)])
    begun = np.searchsorted(pairs, events.start_ns[rows], side="right")
    layers: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, number in zip(rows.tolist(), begun.tolist(), strict=True):
        layers[number, events.name_of(row)].append(row)
    return {
        row: Execution(
            action=_action(name, layer, len(repeated), max(number - 1, 0)), pair=max(number - 1, 0),
            start_ns=int(events.start_ns[row]), end_ns=int(events.end_ns[row]),
        )
        for (number, name), repeated in layers.items()
        for layer, row in enumerate(repeated)
    }  # fmt: skip


def hidden_phases(executions: Sequence[Execution]) -> str:
    """Return how much of each way between halves was hidden by computation; empty where there is no GPU's pair."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    computing: list[tuple[int, int]] = []
    for execution in executions:
        if execution.pair < 0 or execution.gpu is None:
            continue
        kind, half = execution.action.kind, execution.action.stage % 2
        span = (execution.gpu.start_ns, execution.gpu.end_ns)
        carried = next((name for name, phase in _PHASES.items() if phase == (kind, half)), "")
        (computing if kind not in kinds.COMMUNICATION else spans[carried]).append(span)
    descriptions = []
    for name, phase_spans in sorted(spans.items()):
        whole = sum(end - start for start, end in phase_spans)
        alone = sum(uncovered_ns(span_ns, computing) for span_ns in phase_spans)
        descriptions.append(
            f"{name} {(whole - alone) / 1e6:.3f} of {whole / 1e6:.3f} ms ({1 - alone / max(whole, 1):.1%})"
        )
    return f"hidden by computation of the same pair: {', '.join(descriptions)}" if descriptions else ""


def _action(name: str, index: int, layers: int, pair: int) -> Action:
    """Return the action of a phase that comes for the ``index``-th time in its pair."""
    kind, half = _PHASES[name]
    forward = kind.traits.direction is kinds.Pass.FORWARD
    layer = index if forward else layers - 1 - index
    return Action(kind=kind, stage=2 * layer + half, microbatch=2 * pair + forward)


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
    moves = [execution for execution in executions if execution.action.kind in kinds.COMMUNICATION]
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
        move.action
        for move in reversed(moves)
        if move.end_ns >= at_ns and (move.action.kind in kinds.SENDS) == sends
    )
    return next(fitting, None)


def _peer(arguments: Arguments | None) -> int:
    """Return the other end's rank, the last but one of ``c10d::send``'s inputs."""
    try:
        return int(json.loads(bytes(arguments.inputs))[-2]) if arguments is not None else -1
    except (ValueError, IndexError, TypeError, KeyError):
        return -1


_KEEP = Keep(
    categories=frozenset({*GPU, *LAUNCHES, "user_annotation"}),
    prefixes=("c10d::", "nccl:", MEMORY),
    without=IDLE_CALLS,
    details=("c10d::", "gloo:", "nccl"),
)


def read_kineto(path: Path, rules: Rules) -> Recording:
    """Read one process's file.

    Raises:
        TraceError: it cannot be read, or is no such file.
    """
    return recording_of(read_events(path, _KEEP), rules)
