"""One replica of a job of StragglerAnalysis as recordings, one per stage, its steps one after another."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import COMMUNICATION, COMPUTE, SENDS, ConfigError, Unattributed
from pptrace_profilers.recording.recording import Execution, MessageEnd, Recording

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.plugin import Action, Int64s, Job
    from pptrace_profilers.formats.straggler_table import StragglerTable

__all__ = ["recordings_of", "replica_of"]

_BETWEEN_NS = 1_000_000
"""Time between two steps, of which the file says none."""
_ROUNDED_NS = 10_000
"""By how much seconds since a step's start are off where they have 24 bits, for steps of up to a minute."""


def replica_of(job: Job, asked: str) -> int:
    """Return which replica is asked for: ``dp=3``, ``slowest`` or ``median``; the first unless one is.

    Raises:
        ConfigError: no such replica.
    """
    if asked in {"slowest", "median"}:
        # Replicas end together, so their computations are compared.
        computes = [at for at, one in enumerate(job.operations) if one.action and one.action.kind in COMPUTE]
        lengths = (job.end_ns[computes].max(axis=0) - job.start_ns[computes].min(axis=0)).mean(axis=1)
        order = np.argsort(lengths, kind="stable")
        return int(order[-1 if asked == "slowest" else (order.size - 1) // 2])
    if not asked:
        return 0
    if asked not in job.replicas:
        known = f"{job.replicas[0]} to {job.replicas[-1]}" if len(job.replicas) > 1 else job.replicas[0]
        raise ConfigError(f"no such replica; there are {known}, slowest and median", file=f"--replica {asked}")
    return job.replicas.index(asked)


def recordings_of(table: StragglerTable, job: Job, replica: int) -> list[Recording]:
    """Return a replica's recordings; what none of its actions stands for is unattributed."""
    start, end = job.start_ns[:, replica], job.end_ns[:, replica]
    length = end.max(axis=0) - start.min(axis=0) + _BETWEEN_NS
    begins = np.concatenate([[0], np.cumsum(length)[:-1]]) - start.min(axis=0)
    return [_recording(table, job, rank, start + begins, end + begins) for rank in range(job.ranks)]


def _recording(
    table: StragglerTable, job: Job, rank: int, start: NDArray[np.int64], end: NDArray[np.int64]
) -> Recording:
    executions: list[Execution] = []
    ends: list[MessageEnd] = []
    others: dict[str, list[Int64s]] = {}
    for at, one in enumerate(job.operations):
        if one.rank != rank:
            continue
        if one.action is None:
            if one.account == "":
                others.setdefault(one.sort, []).append(end[at] - start[at])
            continue
        times = zip(start[at].tolist(), end[at].tolist(), strict=True)
        if one.action.kind in COMMUNICATION:
            ends += [_end(one.action, rank, job.ranks, begin, until) for begin, until in times]
        else:
            executions += [Execution(action=one.action, start_ns=begin, end_ns=until) for begin, until in times]
    first, last = start.min(axis=0).tolist(), end.max(axis=0).tolist()
    return Recording(
        path=table.path, rank=rank, world=job.ranks,
        windows=tuple(zip(job.steps, first, last, strict=True)),
        executions=tuple(_apart(sorted(executions, key=lambda one: (one.start_ns, one.end_ns)))),
        ends=tuple(sorted(ends, key=lambda one: (one.start_ns, one.end_ns))),
        unattributed=tuple(
            Unattributed(rank=rank, what=sort, count=sum(map(len, took)), total_ns=int(np.sum(took)))
            for sort, took in others.items()
        ),
    )  # fmt: skip


def _apart(executions: list[Execution]) -> list[Execution]:
    """Return computations without the overlaps that rounded seconds make of what follows at once."""
    computing = [at for at, one in enumerate(executions) if one.action.kind in COMPUTE]
    for at, later in pairwise(computing):
        begins = executions[later].start_ns
        if 0 < executions[at].end_ns - begins <= _ROUNDED_NS:
            executions[at] = replace(executions[at], end_ns=begins)
    return executions


def _end(action: Action, rank: int, ranks: int, start: int, end: int) -> MessageEnd:
    """Return an end of a message; its peer is the neighbour that its way leads to."""
    sends = action.kind in SENDS
    ahead = sends == (action.kind.name.endswith("_F"))
    return MessageEnd(
        sends=sends, peer=(rank + (1 if ahead else -1)) % ranks, start_ns=start, end_ns=end, size_bytes=0,
        action=action,
    )  # fmt: skip
