"""Kernels, copies and fills of a GPU, each with the host's launch and the action around that.

A launch and its kernel share their ``correlation``, never their names (Kineto's output_json.cpp).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.pytorch.payloads import batch_payloads, input_bytes, payload_of, post_of
from pptrace_profilers.recording.recording import Operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Int64s
    from pptrace_profilers.events.table import Events
    from pptrace_profilers.recording.annotations import Annotations
    from pptrace_profilers.recording.recording import Execution, MessageEnd, Payload
    from pptrace_profilers.rules.actions import Rules

__all__ = ["GPU", "IDLE_CALLS", "LAUNCHES", "MIRRORS", "gpu_operations"]

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
    at = np.searchsorted(events.correlation[launches], wanted, side="right") - 1
    same = (at >= 0) & (events.correlation[launches[at]] == wanted) & (wanted >= 0)
    launch: Int64s = np.where(same, launches[at], -1)
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
