"""Kernels, copies and fills of a GPU, each with the host's launch and the action around that.

A launch and its kernel share their ``correlation``, never their names (Kineto's output_json.cpp).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.pytorch.payloads import batched, posted, said_by, size_of
from pptrace_profilers.recording.recording import Operations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.columns import Int64s
    from pptrace_profilers.events.table import Events
    from pptrace_profilers.pytorch.payloads import Post
    from pptrace_profilers.recording.annotations import Annotations
    from pptrace_profilers.recording.recording import Ran, Said
    from pptrace_profilers.rules.names import Rules

__all__ = ["GPU", "IDLE_CALLS", "LAUNCHES", "MIRRORS", "operations_of"]

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


def operations_of(
    events: Events, rules: Rules, ran: Sequence[Ran], annotations: Annotations, members: Sequence[int]
) -> Operations | None:
    """Return GPU operations by time; None where there are none."""
    rows = np.flatnonzero(events.of(GPU))
    if not rows.size:
        return None
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    launch = _launches(events, rows)
    known = launch >= 0
    launched = np.where(known, events.start_ns[launch], -1)
    action = np.full(rows.size, -1, dtype=np.int32)
    action[known] = annotations.around(launched[known], events.thread[launch[known]], launch[known])
    communicates = np.array([bool(rules.communication.search(name)) for name in events.names], dtype=bool)
    found = Operations(
        name=events.name[rows], names=tuple(events.names), stream=events.stream[rows],
        start_ns=events.start_ns[rows], end_ns=events.end_ns[rows], launch_ns=launched,
        communicates=communicates[events.name[rows]], action=action,
        thread=np.where(known, events.thread[launch], -1).astype(np.int32),
    )  # fmt: skip
    return replace(found, said=_said(events, rows, found, ran, members))


def _launches(events: Events, rows: Int64s) -> Int64s:
    """Return the event that launched each operation, -1 where none did; the last one that has its correlation."""
    launches = np.flatnonzero(events.of(LAUNCHES) & (events.correlation >= 0))
    wanted = events.correlation[rows]
    if not launches.size:
        return np.full(rows.size, -1, dtype=np.int64)
    launches = launches[np.argsort(events.correlation[launches], kind="stable")]
    at = np.searchsorted(events.correlation[launches], wanted, side="right") - 1
    found: Int64s = np.where(
        (at >= 0) & (events.correlation[launches[at]] == wanted) & (wanted >= 0), launches[at], -1
    )
    return found


def _said(
    events: Events, rows: Int64s, operations: Operations, ran: Sequence[Ran], members: Sequence[int]
) -> dict[int, tuple[Said, ...]]:
    """Return what each operation that communicates carries, where the trace says so."""
    found: dict[int, tuple[Said, ...]] = {}
    messages: dict[int, int] = {}
    for at in np.flatnonzero(operations.communicates).tolist():
        arguments = events.arguments.get(int(rows[at]))
        said = said_by(arguments) if arguments is not None else None
        if said is not None:
            found[at] = (said,)
        if operations.launch_ns[at] >= 0 and (
            said.what in {"send", "recv"} if said else _SEND_RECV.search(operations.names[operations.name[at]])
        ):
            messages[at] = int(operations.launch_ns[at])
    if messages.keys() - found.keys():
        for at, carried in batched(messages, _posts(events, members), ran).items():
            found.setdefault(at, carried)
    return found


def _posts(events: Events, members: Sequence[int]) -> list[Post]:
    """Return the host's annotations of sends and receives by time, without their mirrors on a GPU's stream."""
    numbers = [number for number, name in enumerate(events.names) if posted(name, 0, ())]
    rows = np.flatnonzero(np.isin(events.name, numbers) & ~events.of(MIRRORS))
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    found = []
    for row in rows.tolist():
        one = posted(events.named(row), int(events.start_ns[row]), members)
        if one is not None:
            found.append(replace(one, size_bytes=size_of(events.arguments.get(row))))
    return found
