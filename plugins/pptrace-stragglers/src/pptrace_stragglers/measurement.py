"""Measurement of one replica of a job."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import ConfigError, ImportRequest, Kind, TraceError, Unattributed, kinds
from pptrace_profilers.measurement import measure_recordings
from pptrace_profilers.recording import Execution, MessageEnd, Recording
from pptrace_stragglers.dependencies import job_of_table
from pptrace_stragglers.table import read_job_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Action, Int64s, Measurement
    from pptrace_stragglers.simulation import Job
    from pptrace_stragglers.table import JobTable

__all__ = ["measure_job"]

_GAP_NS = 1_000_000
"""Time between two steps, which the file does not have."""
_ROUNDING_NS = 10_000
"""Error of float32 seconds since a step's start, for steps of up to a minute."""


def measure_job(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Return the steps of one replica, and all replicas as a job.

    Raises:
        TraceError: the file cannot be read, several are given, or its operations are not a pipeline's.
        ConfigError: the job does not have the replica.
        PptraceError: pyarrow is not installed.
    """
    if len(paths) > 1:
        raise TraceError("holds a whole job, as other files here do: name one of them", file=paths[0])
    table = read_job_table(paths[0])
    job = job_of_table(table)
    replica = _replica_index(job, request.replica)
    start, end = _consecutive(job, replica)
    recordings = [_recording(table, job, rank, start, end) for rank in range(job.ranks)]
    chosen = [f"replica {job.replicas[replica]} of {len(job.replicas)}"] if len(job.replicas) > 1 else []
    measurement = measure_recordings(recordings, ImportRequest(), [*table.notes, *chosen])
    return replace(measurement, job=job)


def _replica_index(job: Job, name: str) -> int:
    """Return the index of ``dp=3``, ``slowest`` or ``median``; of the first replica for an empty name.

    Raises:
        ConfigError: no such replica.
    """
    if name in {"slowest", "median"}:
        # Replicas end together, so their computations are compared.
        computations = [
            index for index, operation in enumerate(job.operations)
            if operation.action and operation.action.kind in kinds.COMPUTE
        ]  # fmt: skip
        spans = job.end_ns[computations].max(axis=0) - job.start_ns[computations].min(axis=0)
        order = np.argsort(spans.mean(axis=1), kind="stable")
        return int(order[-1 if name == "slowest" else (order.size - 1) // 2])
    if not name:
        return 0
    if name not in job.replicas:
        known = f"{job.replicas[0]} to {job.replicas[-1]}" if len(job.replicas) > 1 else job.replicas[0]
        raise ConfigError(f"no such replica; there are {known}, slowest and median", file=f"--replica {name}")
    return job.replicas.index(name)


def _consecutive(job: Job, replica: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return starts and ends of a replica's operations, shape (operations, steps), with one step after another."""
    start, end = job.start_ns[:, replica], job.end_ns[:, replica]
    lengths = end.max(axis=0) - start.min(axis=0) + _GAP_NS
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]) - start.min(axis=0)
    return start + offsets, end + offsets


def _recording(
    table: JobTable, job: Job, rank: int, start: NDArray[np.int64], end: NDArray[np.int64]
) -> Recording:
    """Return a rank's recording; operations without an action are unattributed."""
    executions: list[Execution] = []
    ends: list[MessageEnd] = []
    unattributed_ns: dict[str, list[Int64s]] = {}
    for index, operation in enumerate(job.operations):
        if operation.rank != rank:
            continue
        action = operation.action
        if action is None:
            if not operation.category:
                unattributed_ns.setdefault(operation.type, []).append(end[index] - start[index])
            continue
        times = zip(start[index].tolist(), end[index].tolist(), strict=True)
        if action.kind in kinds.COMMUNICATION:
            ends += [_message_end(action, rank, job.ranks, *span) for span in times]
        else:
            executions += [
                Execution(action=action, start_ns=start_ns, end_ns=end_ns) for start_ns, end_ns in times
            ]  # fmt: skip
    first, last = start.min(axis=0).tolist(), end.max(axis=0).tolist()
    return Recording(
        path=table.path, rank=rank, world=job.ranks,
        windows=tuple(zip(job.steps, first, last, strict=True)),
        executions=tuple(
            _without_overlaps(sorted(executions, key=lambda execution: (execution.start_ns, execution.end_ns)))
        ),
        ends=tuple(sorted(ends, key=lambda message_end: (message_end.start_ns, message_end.end_ns))),
        unattributed=tuple(
            Unattributed(rank=rank, what=type_, count=sum(map(len, times_ns)), total_ns=int(np.sum(times_ns)))
            for type_, times_ns in unattributed_ns.items()
        ),
    )  # fmt: skip


def _without_overlaps(executions: list[Execution]) -> list[Execution]:
    """Return executions in which consecutive computations do not overlap by rounding."""
    computations = [index for index, execution in enumerate(executions) if execution.action.kind in kinds.COMPUTE]
    for index, successor in pairwise(computations):
        start_ns = executions[successor].start_ns
        if 0 < executions[index].end_ns - start_ns <= _ROUNDING_NS:
            executions[index] = replace(executions[index], end_ns=start_ns)
    return executions


def _message_end(action: Action, rank: int, ranks: int, start_ns: int, end_ns: int) -> MessageEnd:
    """Return an end of a message; its peer is the neighbour in the message's direction."""
    sends = action.kind in kinds.SENDS
    to_next = sends == (action.kind in {Kind.SEND_F, Kind.RECV_F})
    return MessageEnd(
        sends=sends, peer=(rank + (1 if to_next else -1)) % ranks, start_ns=start_ns, end_ns=end_ns, size_bytes=0,
        action=action,
    )  # fmt: skip
