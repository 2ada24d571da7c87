"""Operations of a PyTorch profile.

A launch and its kernel share their ``correlation``, never their names (Kineto's output_json.cpp).

Sources: PyTorch's ``record_param_comms`` arguments as Kineto copies them onto kernels (appendCollectiveArgs), and
the annotations ``nccl:send 0->1`` and ``nccl:recv 1<-0`` of ProcessGroupNCCL, whose ranks are those of the group.
A batch of sends and receives is launched as one kernel without arguments, behind its annotations.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from pptrace.plugin import kinds
from pptrace_profilers.recording import MessageEnd, Operations, Payload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.plugin import Int64s
    from pptrace_profilers.events import Arguments, Events
    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Annotations, Execution

    _Timed = TypeVar("_Timed", MessageEnd, Execution)

GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
"""Categories of what runs on a GPU, the older ones capitalised."""
MIRRORS = frozenset({"gpu_user_annotation"})
"""Categories of what repeats the host's annotations on a GPU's stream, from their first to their last kernel."""
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime"})
"""Categories of what the host calls to launch it."""
IDLE_CALLS = frozenset({
    "cudaEventCreate", "cudaEventCreateWithFlags", "cudaEventDestroy", "cudaEventElapsedTime", "cudaEventQuery",
    "cudaEventRecord", "cudaEventRecordWithFlags", "cudaEventSynchronize", "cudaStreamIsCapturing",
    "cudaStreamGetCaptureInfo", "cudaStreamGetCaptureInfo_v2", "cudaStreamSynchronize", "cudaStreamWaitEvent",
    "cudaDeviceGetAttribute", "cudaDeviceSynchronize", "cudaFuncGetAttributes", "cudaFuncSetAttribute",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessor", "cudaPeekAtLastError", "cudaGetLastError", "cudaMalloc",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", "cudaPointerGetAttributes", "cudaFree",
    "cudaGetDevice", "cudaSetDevice", "cudaHostAlloc", "cudaThreadExchangeStreamCaptureMode",
})  # fmt: skip
"""Calls of the CUDA runtime that launch nothing, and are most of them."""
_SEND_RECV = re.compile(r"SendRecv|Generic", re.IGNORECASE)
"""Kernels that may carry a batch of messages: RCCL's all have one name (ROCm/roctracer, issue 101)."""


def gpu_operations(
    events: Events, rules: Rules, executions: Sequence[Execution], annotations: Annotations, members: Sequence[int]
) -> Operations | None:
    """Return GPU operations by time; None where there are none."""
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
        communicates=rules.communicate(events.names)[events.name[rows]], action=action,
        thread=np.where(known, events.thread[launch], -1).astype(np.int32),
    )  # fmt: skip
    return replace(operations, payloads=_payloads(events, rows, operations, executions, members))


def _launches(events: Events, rows: Int64s) -> Int64s:
    """Return the event that launched each operation, -1 where none did; the last one that has its correlation."""
    launches = np.flatnonzero(events.of(LAUNCHES) & (events.correlation >= 0))
    wanted = events.correlation[rows]
    if not launches.size:
        return np.full(rows.size, -1, dtype=np.int64)
    launches = launches[np.argsort(events.correlation[launches], kind="stable")]
    launch_index = np.searchsorted(events.correlation[launches], wanted, side="right") - 1
    same = (launch_index >= 0) & (events.correlation[launches[launch_index]] == wanted) & (wanted >= 0)
    launch: Int64s = np.where(same, launches[launch_index], -1)
    return launch


def _payloads(
    events: Events, rows: Int64s, operations: Operations, executions: Sequence[Execution], members: Sequence[int]
) -> dict[int, tuple[Payload, ...]]:
    """Return what each operation that communicates carries, where the trace says so."""
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


def _posts(events: Events, members: Sequence[int]) -> list[MessageEnd]:
    """Return the host's annotations of sends and receives by time, without their mirrors on a GPU's stream."""
    rows = events.by_start(events.named(lambda name: post_of(name, 0, ())) & ~events.of(MIRRORS))
    posts = (
        post_of(events.name_of(row), int(events.start_ns[row]), members, input_bytes(events.arguments.get(row)))
        for row in rows.tolist()
    )
    return [post for post in posts if post is not None]


ITEM_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "long int": 8, "int": 4, "short": 2,
    "short int": 2, "char": 1, "signed char": 1, "byte": 1, "unsigned char": 1, "bool": 1, "c10::half": 2,
    "c10::bfloat16": 2, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Bytes of an element by its type, lower-case, as kernels and as operations of the host write it."""
_POST = re.compile(r"(?:nccl|gloo|ucc|mpi|xccl):(send|recv)(?: (\d+)(?:->|<-)(\d+))?")


def post_of(name: str, at_ns: int, members: Sequence[int], size_bytes: int = 0) -> MessageEnd | None:
    """Return what an annotation such as ``nccl:send 0->1`` posts; None for another name.

    Args:
        name: the annotation's.
        at_ns: its start.
        members: global ranks of the pipeline's group, empty where they are unknown.
        size_bytes: the message's size, where that is known.
    """
    match = _POST.fullmatch(name)
    if match is None:
        return None
    peer = global_rank(int(match[3]), members) if match[3] is not None else -1
    return MessageEnd(sends=match[1] == "send", peer=peer, start_ns=at_ns, end_ns=at_ns, size_bytes=size_bytes)


def global_rank(rank: int, members: Sequence[int]) -> int:
    """Return the global rank of a group's rank; the same where the group's members are unknown."""
    return members[rank] if 0 <= rank < len(members) else rank


def payload_of(arguments: Arguments) -> Payload | None:
    """Return what a kernel's own arguments say; None where they say nothing."""
    if not isinstance(arguments.collective, str):
        return None
    sends = arguments.collective == "send"
    elements = arguments.in_elements if sends else arguments.out_elements
    item = ITEM_BYTES.get(str(arguments.dtype).lower(), 0)
    peer = arguments.target if sends else arguments.source
    return Payload(
        operation=arguments.collective,
        peer=peer if isinstance(peer, int) else -1,
        size_bytes=elements * item if isinstance(elements, int) else 0,
        group=str(arguments.group_description or arguments.group or ""),
    )


def input_bytes(arguments: Arguments | None) -> int:
    """Return the bytes of an annotation's inputs: their elements times the size of their type; 0 where unknown."""
    try:
        dims = json.loads(bytes(arguments.input_dims)) if arguments is not None else []
        types = json.loads(bytes(arguments.input_type)) if arguments is not None else []
        return sum(math.prod(d) * ITEM_BYTES.get(t.lower(), 0) for d, t in zip(dims, types, strict=True) if d)
    except (ValueError, TypeError, AttributeError):
        return 0


def batch_payloads(
    launches: Mapping[int, int], posts: Sequence[MessageEnd], executions: Sequence[Execution]
) -> dict[int, tuple[Payload, ...]]:
    """Return what kernels without arguments carry: all that was posted since the launch before.

    Args:
        launches: launch times of the kernels, by kernel.
        posts: annotations of sends and receives, by time.
        executions: actions by time; those that send or receive say which message, and stand for posts if there
            are none.
    """
    moves = [execution for execution in executions if execution.action.kind in kinds.COMMUNICATION]
    payloads: dict[int, tuple[Payload, ...]] = {}
    since = -1
    for kernel, at in sorted(launches.items(), key=lambda launch: launch[1]):
        batch, annotated = _between(posts, since, at), _between(moves, since, at)
        since = at
        actions = {
            sends: [move.action for move in annotated if (move.action.kind in kinds.SENDS) == sends]
            for sends in (True, False)
        }
        if batch:
            payloads[kernel] = tuple(
                Payload(
                    operation=_operation(sends=post.sends), peer=post.peer, size_bytes=post.size_bytes,
                    # The k-th send is the k-th action that sends, likewise receives.
                    action=actions[post.sends].pop(0) if actions[post.sends] else None,
                )
                for post in batch
            )  # fmt: skip
        elif annotated:
            payloads[kernel] = tuple(
                Payload(operation=_operation(sends=move.action.kind in kinds.SENDS), action=move.action)
                for move in annotated
            )
    return payloads


def _operation(*, sends: bool) -> str:
    return "send" if sends else "recv"


def _between(timed: Sequence[_Timed], since: int, until: int) -> Sequence[_Timed]:
    """Return what starts after one launch, up to another."""
    first, last = (bisect_right(timed, time_ns, key=lambda item: item.start_ns) for time_ns in (since, until))
    return timed[first:last]
