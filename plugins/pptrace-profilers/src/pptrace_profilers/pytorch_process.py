"""A process that torch.profiler recorded: metadata, phases and events.

The file of a host (gloo, CPU) has annotations and ``c10d::`` operations. The file of a GPU also has kernels, each
with the ``correlation`` of its launch.

DeepSeek's published profile (github.com/deepseek-ai/profile-data) marks an overlapped forward and backward as
``1F1B``. Each layer has these annotations::

    combine(B) attn(F) mlp(B) dispatch(F) dispatch(B) mlp(W) mlp(F) attn(B) attn(W) combine(F)

Here a half of layer l is a stage: attention is stage 2l, experts are stage 2l + 1. The forward is of a later
microbatch than the backward, which runs from the last layer to the first. ``dispatch`` and ``combine`` transfer an
activation or a gradient to the next half, within the rank's group. ``combine(B)`` is an action of its receiving
half, because the profile does not contain the stage that sends the gradient of the last layer.

A launch and its kernel have the same ``correlation`` but different names. A batch of sends and receives is one
kernel without arguments, launched after the annotations of the batch.

Sources: libkineto/src/output_json.cpp, PyTorch's record_function ranges and ``record_param_comms`` arguments as
Kineto copies them onto kernels (appendCollectiveArgs), and the annotations ``nccl:send 0->1`` and
``nccl:recv 1<-0`` of ProcessGroupNCCL, with ranks within the group.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from pptrace.plugin import Action, Kind, kinds
from pptrace_profilers.events import parse_integer
from pptrace_profilers.gpu_spans import add_gpu_spans, union_ns
from pptrace_profilers.json_events import MEMORY, Keep, read_events
from pptrace_profilers.naming_rules import FILE_NAME
from pptrace_profilers.recording import (
    MOST_RANKS,
    NO_STAGE,
    Annotations,
    Executions,
    MessageEnds,
    Operations,
    Payload,
    Recording,
    pipeline_group,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.plugin import Int32s, Int64s
    from pptrace_profilers.events import Arguments, Events
    from pptrace_profilers.naming_rules import Rules

_STEP = re.compile(r"ProfilerStep#\d+")
_FAMILIAR = re.compile(r"ProfilerStep#|gloo:|nccl:|Optimizer\.")
"""Prefixes of annotations that PyTorch itself writes."""
_NUMBER = re.compile(r"\d+")
_LONGEST, _MOST_NAMED = 60, 3
"""Maximum number of characters of a name, and of names, in a note."""
_HOST = 0
"""Device type of host memory (c10/core/DeviceType.h)."""


def recording_of(events: Events, rules: Rules) -> Recording:
    """Return the recording of a process from its events."""
    distributed = events.top.get("distributedInfo")
    metadata: Mapping[str, Any] = distributed if isinstance(distributed, dict) else {}
    rank = rank_of(metadata, events.path)
    groups = groups_of(metadata, rank)
    members = pipeline_group(groups, rank)
    executions, annotations = _annotated_actions(events, rules)
    operators_start_ns, operators_end_ns = _operator_spans(events, annotations)
    executions = executions.with_columns(operators_start_ns=operators_start_ns, operators_end_ns=operators_end_ns)
    recording = Recording(
        path=events.path, rank=rank, world=positive(metadata.get("world_size"), MOST_RANKS), groups=groups,
        host=str(events.top.get("host_name") or ""), windows=_windows(events),
        executions=executions, ends=posted_ends(events, executions, members),
        operations=gpu_operations(events, rules, executions, annotations, members),
        notes=tuple(_notes(events, executions)),
        origin_ns=positive(events.top.get("baseTimeNanoseconds")),
        allocated_bytes=max((size for device, size in events.allocated.items() if device != _HOST), default=0),
    )  # fmt: skip
    del events  # their memory is needed for the spans
    recording = add_gpu_spans(recording)
    hidden = hidden_phases(recording.executions)
    notes = (f"{recording.path.name}: {hidden}",) if hidden else ()
    return replace(recording, notes=(*recording.notes, *notes))


def _notes(events: Events, executions: Executions) -> Iterable[str]:
    if events.cut:
        yield f"{events.path.name} ends in the middle: {len(events):,} events before that were read"
    if events.bad:
        yield f"{events.path.name}: {events.bad:,} events have no time, or a negative or infinite one: skipped"
    names = "" if len(executions) else _unknown_names(events)
    if names:
        yield (
            f"annotations such as {names} match no known action (# is a number): if they are actions, "
            "name them in a file of rules: --rules FILE"
        )


def _unknown_names(events: Events) -> str:
    """Return the most frequent names of annotations from other sources than PyTorch, with # for numbers."""
    unknown = events.named(lambda name: not _FAMILIAR.match(name)) & events.of({"user_annotation"})
    forms = Counter(_NUMBER.sub("#", events.name_of(row))[:_LONGEST] for row in np.flatnonzero(unknown).tolist())
    return ", ".join(sorted(forms, key=lambda form: (-forms[form], form))[:_MOST_NAMED])


def _windows(events: Events) -> tuple[tuple[str, int, int], ...]:
    rows = events.by_start(events.named(_STEP.fullmatch) & events.of({"user_annotation"})).tolist()
    return tuple(
        dict.fromkeys((events.name_of(row), int(events.start_ns[row]), int(events.end_ns[row])) for row in rows)
    )


def _annotated_actions(events: Events, rules: Rules) -> tuple[Executions, Annotations]:
    """Return actions by time, and their annotations; of nested annotations of an action, the innermost counts."""
    actions = {number: action for number, name in enumerate(events.names) if (action := rules.action(name))}
    phases = phase_actions(events)
    rows = np.flatnonzero(np.isin(events.name, list(actions)) & events.of({"user_annotation"}))
    rows = np.union1d(rows, list(phases)).astype(np.int64)
    rows = rows[np.lexsort((rows, -events.end_ns[rows], events.start_ns[rows]))]
    named = [
        phases.get(row) or (actions[name], -1)
        for row, name in zip(rows.tolist(), events.name[rows].tolist(), strict=True)
    ]
    executions = Executions(
        action=[action for action, _ in named], pair=[pair for _, pair in named],
        start_ns=events.start_ns[rows], end_ns=events.end_ns[rows],
    )  # fmt: skip
    kept = _innermost_of_each(executions, events.thread[rows].tolist())
    rows = rows[kept]
    return executions.of_rows(kept), Annotations(
        start_ns=events.start_ns[rows], end_ns=events.end_ns[rows], thread=events.thread[rows], row=rows
    )


def _innermost_of_each(executions: Executions, threads: list[int]) -> Int64s:
    """Return the annotations to keep, without enclosing duplicates and without members of overlapped pairs.

    PyTorch's GPipe annotates receive, computation and send together as ``Forward 3``. An inner annotation of the
    computation is more precise.
    """
    kept = np.ones(len(executions), dtype=bool)
    open_on: dict[int, list[int]] = {}
    actions, end_ns = executions.action, executions.end_ns.tolist()
    for number, start_ns in enumerate(executions.start_ns.tolist()):
        action = actions[number]
        if action.kind not in kinds.COMPUTE:
            continue
        enclosing = open_on.setdefault(threads[number], [])
        while enclosing and end_ns[enclosing[-1]] <= start_ns:
            enclosing.pop()
        for outer in enclosing:
            if _is_same(actions[outer], action):
                kept[outer] = False
            elif any(_is_same(member, action) for member in actions[outer].sub_actions):
                kept[number] = False
        enclosing.append(number)
    return np.flatnonzero(kept)


def _is_same(outer: Action, inner: Action) -> bool:
    return (
        not outer.sub_actions
        and not inner.sub_actions
        and (outer.kind, outer.microbatch, outer.span) == (inner.kind, inner.microbatch, inner.span)
        and outer.stage in {inner.stage, NO_STAGE}
    )


def positive(value: Any, most: int = 2**62) -> int:
    """Return a positive integer below ``most``, 0 for any other value."""
    return value if isinstance(value, int) and 0 < value < most else 0


def rank_of(metadata: Mapping[str, Any], path: Path) -> int:
    """Return the global rank from metadata, by default from the file name; -1 for none."""
    rank = metadata.get("rank")
    return rank if isinstance(rank, int) and 0 <= rank < MOST_RANKS else FILE_NAME.read(path.name)


def groups_of(metadata: Mapping[str, Any], rank: int) -> dict[str, tuple[int, ...]]:
    """Return the ranks of process groups by description; old traces write ranks as text.

    Of several groups with the same description, such as those of all pipelines, the group of ``rank`` counts.
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
    """Return the ranks of a group, None if they are invalid or not distinct."""
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
"""Kind by name, and half of the layer: 0 for attention, 1 for experts; of the sender or receiver in messages."""


def phase_actions(events: Events) -> dict[int, tuple[Action, int]]:
    """Return the action and the pair of each phase, by event; empty for a file without phases."""
    annotated = events.of({"user_annotation"})
    rows = events.by_start(events.named(_PHASES.__contains__) & annotated)
    pairs = np.sort(events.start_ns[annotated & events.named(_PAIR.__eq__)])
    begun = np.searchsorted(pairs, events.start_ns[rows], side="right")
    layers: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, number in zip(rows.tolist(), begun.tolist(), strict=True):
        layers[number, events.name_of(row)].append(row)
    return {
        row: (_action(name, layer, len(repeated), max(number - 1, 0)), max(number - 1, 0))
        for (number, name), repeated in layers.items()
        for layer, row in enumerate(repeated)
    }


def hidden_phases(executions: Executions) -> str:
    """Return a note on the overlapped time of each transfer between halves; empty without pairs on a GPU."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    computing: list[tuple[int, int]] = []
    paired = executions.of_rows((executions.pair >= 0) & executions.on_gpu)
    spans_ns = zip(paired.gpu_start_ns.tolist(), paired.gpu_end_ns.tolist(), strict=True)
    for action, span in zip(paired.action, spans_ns, strict=True):
        kind, half = action.kind, action.stage % 2
        phase_name = next((name for name, phase in _PHASES.items() if phase == (kind, half)), "")
        (computing if kind not in kinds.COMMUNICATION else spans[phase_name]).append(span)
    descriptions = []
    for name, phase_spans in sorted(spans.items()):
        total_ns = sum(end - start for start, end in phase_spans)
        exposed_ns = _union_ns([*phase_spans, *computing]) - _union_ns(computing)
        descriptions.append(
            f"{name} {(total_ns - exposed_ns) / 1e6:.3f} of {total_ns / 1e6:.3f} ms "
            f"({1 - exposed_ns / max(total_ns, 1):.1%})"
        )
    return f"overlapped with computation of the same pair: {', '.join(descriptions)}" if descriptions else ""


def _union_ns(spans: Sequence[tuple[int, int]]) -> int:
    return union_ns(*np.array(spans, dtype=np.int64).reshape(-1, 2).T)


def _action(name: str, index: int, layers: int, pair: int) -> Action:
    """Return the action of the ``index``-th occurrence of a phase in its pair."""
    kind, half = _PHASES[name]
    forward = kind.traits.direction is kinds.Pass.FORWARD
    layer = index if forward else layers - 1 - index
    return Action(kind=kind, stage=2 * layer + half, microbatch=2 * pair + forward)


_POSTS = {"c10d::send": True, "c10d::recv_": False}
_WORK = re.compile(r"(gloo|nccl|mpi|ucc|xccl):(send|recv)(?: .*)?")
_MOST_ENCLOSING = 16
"""Maximum number of open annotations of messages at one instant."""


def posted_ends(events: Events, executions: Executions, members: Sequence[int]) -> MessageEnds:
    """Return the ends of messages that the host posted, by time.

    The annotation of the backend (``gloo:send``) starts inside the posting operation and ends with the wait.

    Args:
        events: events of a file.
        executions: actions by time; an action that sends or receives names the posts inside it.
        members: global ranks of the pipeline's group, to which posts refer; empty if it has all ranks of the job.
    """
    on_host = ~events.of(MIRRORS)
    posts = events.by_start(events.named(_POSTS.__contains__) & on_host)
    work = events.by_start(events.named(_WORK.fullmatch) & on_host)
    moves = _moves(executions)
    enclosing = list(zip(moves.action, moves.end_ns.tolist(), strict=True))
    start_ns = events.start_ns[posts]
    first_inside = np.append(work, -1)[np.searchsorted(events.start_ns[work], start_ns)]
    annotated = (first_inside >= 0) & (events.start_ns[first_inside] <= events.end_ns[posts])
    backend = np.where(annotated, first_inside, posts)
    begun = np.searchsorted(moves.start_ns, start_ns, side="right").tolist()
    sends = [_POSTS[events.name_of(row)] for row in posts.tolist()]
    arguments = [[events.arguments.get(row) for row in rows.tolist()] for rows in (backend, posts)]
    return MessageEnds(
        sends=sends, peer=[global_rank(_peer(post), members) for post in arguments[1]],
        start_ns=start_ns, end_ns=events.end_ns[backend],
        size_bytes=[input_bytes(work) or input_bytes(post) for work, post in zip(*arguments, strict=True)],
        action=[
            _enclosing_action(enclosing[max(first - _MOST_ENCLOSING, 0) : first], time_ns, sends=sends)
            for first, time_ns, sends in zip(begun, start_ns.tolist(), sends, strict=True)
        ],
    )  # fmt: skip


def _moves(executions: Executions) -> Executions:
    """Return the actions that send or receive."""
    return executions.of_rows(kinds.COMMUNICATION.mask(executions.kind))


def _enclosing_action(moves: Sequence[tuple[Action, int]], time_ns: int, *, sends: bool) -> Action | None:
    """Return the innermost action of the same direction that is open at an instant, of actions with their ends."""
    fitting = (
        action for action, end_ns in reversed(moves) if end_ns >= time_ns and (action.kind in kinds.SENDS) == sends
    )
    return next(fitting, None)


def _peer(arguments: Arguments | None) -> int:
    """Return the peer, the second to last input of ``c10d::send``."""
    try:
        return parse_integer(json.loads(bytes(arguments.inputs))[-2], -1) if arguments is not None else -1
    except (ValueError, IndexError, TypeError, KeyError):
        return -1


COPIES = frozenset({"gpu_memcpy", "gpu_memset", "Memcpy", "Memset"})
"""Categories of copies and fills of memory; old traces capitalise them."""
GPU = COPIES | {"kernel", "Kernel"}
"""Categories of GPU operations."""
MIRRORS = frozenset({"gpu_user_annotation"})
"""Categories of host annotations repeated on a GPU stream, from the first to the last kernel."""
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime"})
"""Categories of launches on the host."""
IDLE_CALLS = frozenset({
    "cudaEventCreate", "cudaEventCreateWithFlags", "cudaEventDestroy", "cudaEventElapsedTime", "cudaEventQuery",
    "cudaEventRecord", "cudaEventRecordWithFlags", "cudaEventSynchronize", "cudaStreamIsCapturing",
    "cudaStreamGetCaptureInfo", "cudaStreamGetCaptureInfo_v2", "cudaStreamSynchronize", "cudaStreamWaitEvent",
    "cudaDeviceGetAttribute", "cudaDeviceSynchronize", "cudaFuncGetAttributes", "cudaFuncSetAttribute",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor", "cudaPeekAtLastError", "cudaGetLastError", "cudaMalloc",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "cudaPointerGetAttributes", "cudaFree",
    "cudaGetDevice", "cudaSetDevice", "cudaHostAlloc", "cudaThreadExchangeStreamCaptureMode",
})  # fmt: skip
"""Calls of the CUDA runtime without a launch, which are most calls."""
_SEND_RECV = re.compile(r"SendRecv|Generic", re.IGNORECASE)
"""Kernels that may carry a batch of messages; all kernels of RCCL have one name (ROCm/roctracer, issue 101)."""


def gpu_operations(
    events: Events, rules: Rules, executions: Executions, annotations: Annotations, members: Sequence[int]
) -> Operations | None:
    """Return GPU operations by time; None without operations."""
    rows = events.by_start(events.of(GPU))
    if not rows.size:
        return None
    launch = _launches(events, rows)
    known = launch >= 0
    launched = np.where(known, events.start_ns[launch], -1)
    action = np.full(rows.size, -1, dtype=np.int32)
    action[known] = annotations.around(launched[known], events.thread[launch[known]], launch[known])
    operations = Operations(
        name=events.name[rows], names=tuple(events.names), stream=events.stream[rows],
        start_ns=events.start_ns[rows], end_ns=events.end_ns[rows], launch_ns=launched,
        communicates=rules.communicate(events.names)[events.name[rows]], copies=events.of(COPIES)[rows],
        action=action,
        thread=np.where(known, events.thread[launch], -1).astype(np.int32),
        operator=None if len(executions) else _launching_operators(events, np.where(known, launch, -1)),
    )  # fmt: skip
    return replace(operations, payloads=_payloads(events, rows, operations, executions, members))


def _launching_operators(events: Events, launch: Int64s) -> Int32s:
    """Return the name of the innermost host operator around each launch; -1 for none, or an unknown launch."""
    rows = np.flatnonzero(events.of(OPERATORS))
    rows = rows[np.lexsort((rows, -events.end_ns[rows], events.start_ns[rows]))]
    operators = Annotations(
        start_ns=events.start_ns[rows], end_ns=events.end_ns[rows], thread=events.thread[rows], row=rows
    )
    known = launch >= 0
    around = np.full(launch.size, -1, dtype=np.int64)
    around[known] = operators.around(events.start_ns[launch[known]], events.thread[launch[known]], launch[known])
    return np.where(around >= 0, events.name[rows[around]] if rows.size else -1, -1).astype(np.int32)


def _launches(events: Events, rows: Int64s) -> Int64s:
    """Return the launch of each operation, the last event with its correlation; -1 for none."""
    launches = np.flatnonzero(events.of(LAUNCHES) & (events.correlation >= 0))
    launches = launches[np.argsort(events.correlation[launches], kind="stable")]
    wanted = events.correlation[rows]
    launch = np.append(-1, launches)[np.searchsorted(events.correlation[launches], wanted, side="right")]
    return np.where((launch >= 0) & (events.correlation[launch] == wanted), launch, -1)


def _payloads(
    events: Events, rows: Int64s, operations: Operations, executions: Executions, members: Sequence[int]
) -> dict[int, tuple[Payload, ...]]:
    """Return the payloads of communication operations that the trace describes."""
    payloads: dict[int, tuple[Payload, ...]] = {}
    launches: dict[int, int] = {}
    for position in np.flatnonzero(operations.communicates).tolist():
        arguments = events.arguments.get(int(rows[position]))
        payload = payload_of(arguments) if arguments is not None else None
        if payload is not None:
            payloads[position] = (payload,)
        name = operations.names[operations.name[position]]
        if operations.launch_ns[position] >= 0 and (payload.is_message if payload else _SEND_RECV.search(name)):
            launches[position] = int(operations.launch_ns[position])
    if launches.keys() - payloads.keys():
        payloads = batch_payloads(launches, _posts(events, members), executions) | payloads
    return payloads


ITEM_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "long int": 8, "int": 4, "short": 2,
    "short int": 2, "char": 1, "signed char": 1, "byte": 1, "unsigned char": 1, "bool": 1, "c10::half": 2,
    "c10::bfloat16": 2, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Bytes of an element by its lower-case type, in the spellings of kernels and of host operations."""
_POST = re.compile(r"(?:nccl|gloo|ucc|mpi|xccl):(send|recv)(?: (\d+)(?:->|<-)(\d+))?")


def _posts(events: Events, members: Sequence[int]) -> MessageEnds:
    """Return the host's annotations of sends and receives, such as ``nccl:send 0->1``, by time.

    Their copies on GPU streams are left out.
    """
    rows = events.by_start(events.named(_POST.fullmatch) & ~events.of(MIRRORS))
    matches = [_POST.findall(events.name_of(row))[0] for row in rows.tolist()]
    return MessageEnds(
        sends=[operation == "send" for operation, _, _ in matches],
        peer=[global_rank(parse_integer(peer, -1), members) for _, _, peer in matches],
        start_ns=events.start_ns[rows], end_ns=events.start_ns[rows],
        size_bytes=[input_bytes(events.arguments.get(row)) for row in rows.tolist()],
    )  # fmt: skip


def global_rank(rank: int, members: Sequence[int]) -> int:
    """Return the global rank of a rank within a group; unchanged if the members are unknown."""
    return members[rank] if 0 <= rank < len(members) else rank


def payload_of(arguments: Arguments) -> Payload | None:
    """Return the payload from the arguments of a kernel; None if the arguments have none."""
    if not isinstance(arguments.collective, str):
        return None
    sends = arguments.collective == "send"
    elements = arguments.in_elements if sends else arguments.out_elements
    item = ITEM_BYTES.get(str(arguments.dtype).lower(), 0)
    peer = arguments.target if sends else arguments.source
    return Payload(
        operation=arguments.collective,
        peer=parse_integer(peer, -1),
        size_bytes=parse_integer(parse_integer(elements, 0) * item, 0),
        group=str(arguments.group_description or arguments.group or ""),
    )


def input_bytes(arguments: Arguments | None) -> int:
    """Return the bytes of an annotation's inputs: number of elements times size of the type; 0 if unknown."""
    try:
        dims = json.loads(bytes(arguments.input_dims)) if arguments is not None else []
        types = json.loads(bytes(arguments.input_type)) if arguments is not None else []
        sizes = (math.prod(d) * ITEM_BYTES.get(t.lower(), 0) for d, t in zip(dims, types, strict=True) if d)
        return parse_integer(sum(sizes), 0)
    except (ValueError, TypeError, AttributeError):
        return 0


def batch_payloads(
    launches: Mapping[int, int], posts: MessageEnds, executions: Executions
) -> dict[int, tuple[Payload, ...]]:
    """Return the payloads of kernels without arguments: all posts since the previous launch.

    Args:
        launches: launch times of the kernels, by kernel.
        posts: annotations of sends and receives, by time.
        executions: actions by time; actions that send or receive name the messages, and replace missing posts.
    """
    moves = _moves(executions)
    posted = list(zip(posts.sends.tolist(), posts.peer.tolist(), posts.size_bytes.tolist(), strict=True))
    kernels = sorted(launches, key=launches.__getitem__)
    launch_ns = [-1, *(launches[kernel] for kernel in kernels)]
    first_post, first_move = (
        np.searchsorted(t.start_ns, launch_ns, side="right").tolist() for t in (posts, moves)
    )
    payloads: dict[int, tuple[Payload, ...]] = {}
    for number, kernel in enumerate(kernels):
        annotated = moves.action[first_move[number] : first_move[number + 1]]
        batch = posted[first_post[number] : first_post[number + 1]]
        batch = batch or [(action.kind in kinds.SENDS, -1, 0) for action in annotated]
        actions = {
            sends: [action for action in annotated if (action.kind in kinds.SENDS) == sends]
            for sends in (True, False)
        }
        if batch:
            payloads[kernel] = tuple(
                Payload(
                    operation="send" if sends else "recv", peer=peer, size_bytes=size_bytes,
                    # The k-th send is the k-th action that sends, likewise receives.
                    action=actions[sends].pop(0) if actions[sends] else None,
                )
                for sends, peer, size_bytes in batch
            )  # fmt: skip
    return payloads


def _operator_spans(events: Events, annotations: Annotations) -> tuple[Int64s, Int64s]:
    """Return the start of the first and the end of the last operator of each annotation's thread inside it.

    Both are -1 without an operator. Posts of messages do not count.
    """
    start_ns, end_ns = (np.full(annotations.start_ns.size, -1, dtype=np.int64) for _ in range(2))
    computes = events.of(OPERATORS) & ~events.named(lambda name: name.startswith("c10d::"))
    for thread in np.unique(annotations.thread).tolist():
        rows = events.by_start(computes & (events.thread == thread))
        inside = np.flatnonzero(annotations.thread == thread)
        first, beyond = (
            np.searchsorted(events.start_ns[rows], times_ns[inside])
            for times_ns in (annotations.start_ns, annotations.end_ns)
        )
        inside, first, last = inside[beyond > first], first[beyond > first], beyond[beyond > first] - 1
        start_ns[inside] = events.start_ns[rows][first]
        latest_ns = np.maximum.accumulate(events.end_ns[rows])
        end_ns[inside] = np.minimum(latest_ns[last], annotations.end_ns[inside])
    return start_ns, end_ns


_KEEP = Keep(
    categories=frozenset({*GPU, *LAUNCHES, "user_annotation"}),
    prefixes=("c10d::", "nccl:", MEMORY),
    without=IDLE_CALLS,
    details=("c10d::", "gloo:", "nccl"),
)


OPERATORS = frozenset({"cpu_op", "Operator"})
"""Categories of operators on the host."""


def read_kineto(path: Path, rules: Rules, *, operators: bool = False) -> list[Recording]:
    """Read one process's file; ``operators`` also reads the operators that launched operations of GPUs.

    Operators of a file without GPU operations are read if it has actions, in a second pass.

    Raises:
        TraceError: the file cannot be read, or has another format.
    """
    with_operators = replace(_KEEP, categories=_KEEP.categories | OPERATORS)
    recording = recording_of(read_events(path, with_operators if operators else _KEEP), rules)
    if not operators and recording.operations is None and len(recording.executions):
        recording = recording_of(read_events(path, with_operators), rules)
    return [recording]
