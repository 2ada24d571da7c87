"""Runs of forward and backward work on a GPU, by the threads that launched it.

PyTorch launches forward kernels from the thread that runs the model and backward kernels from autograd's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.inference.autograd import Run
from pptrace_profilers.recording.gpu_spans import compute_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Int64s
    from pptrace_profilers.recording.recording import Operations

__all__ = ["launch_runs", "work_starts_ns"]

_SHORT = 2
"""A run of fewer kernels than this part of the median is none: gradients set to zero, losses summed."""


def launch_runs(operations: Operations | None, posts_ns: Sequence[int]) -> list[Run]:
    """Return the runs by launch; none where fewer than two threads launched what computes.

    The k-th backward is taken for the k-th forward's.

    Args:
        operations: a GPU's.
        posts_ns: when messages were launched.
    """
    rows = _of_two_threads(operations) if operations is not None else None
    if operations is None or operations.thread is None or rows is None:
        return []
    post = np.searchsorted(np.sort(np.array(posts_ns, dtype=np.int64)), operations.launch_ns[rows])
    forward = operations.thread[rows] == operations.thread[rows[0]]  # a step begins with a forward
    cuts = np.flatnonzero((np.diff(forward) != 0) | (np.diff(post) != 0)) + 1
    parts = np.split(np.arange(rows.size), cuts)
    least = {way: np.median([len(p) for p in parts if forward[p[0]] == way]) / _SHORT for way in (True, False)}
    runs, count = [], {True: 0, False: 0}
    for part in parts:
        way = bool(forward[part[0]])
        if len(part) < least[way]:
            continue
        launched = operations.launch_ns[rows[part]]
        names = tuple(operations.names[name] for name in operations.name[rows[part]].tolist()) if way else ()
        runs.append(Run(
            forward=way, start_ns=int(launched[0]), end_ns=int(launched[-1]), forward_number=count[way],
            operations=names,
        ))  # fmt: skip
        count[way] += 1
    return runs


def work_starts_ns(operations: Operations | None, runs: Sequence[Run]) -> list[int]:
    """Return when each run's first kernel on the compute stream began; where it has none, when the host began.

    Args:
        operations: a GPU's; None where none were recorded.
        runs: what its host launched.
    """
    if operations is None:
        return [run.start_ns for run in runs]
    rows = np.flatnonzero(~operations.communicates & (operations.stream == compute_stream(operations)))
    rows = rows[np.argsort(operations.launch_ns[rows], kind="stable")]
    launched = operations.launch_ns[rows]
    first = np.searchsorted(launched, [run.start_ns for run in runs], side="left")
    behind = np.searchsorted(launched, [run.end_ns for run in runs], side="right")
    return [
        int(operations.start_ns[rows[a]]) if a < b else run.start_ns
        for a, b, run in zip(first.tolist(), behind.tolist(), runs, strict=True)
    ]


def _of_two_threads(operations: Operations) -> Int64s | None:
    """Return what computes and was launched by the two threads that launch the most, by launch."""
    if operations.thread is None:
        return None
    rows = np.flatnonzero(~operations.communicates & (operations.launch_ns >= 0))
    rows = rows[np.argsort(operations.launch_ns[rows], kind="stable")]
    threads, count = np.unique(operations.thread[rows], return_counts=True)
    if threads.size <= 1:
        return None
    most = threads[np.argsort(-count, kind="stable")[:2]]
    return rows[np.isin(operations.thread[rows], most)]
