"""Runs of forward and backward work on a GPU, by the threads that launched it.

PyTorch launches forward kernels from the thread that runs the model and backward kernels from autograd's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.inference.autograd import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace_profilers.recording.recording import Operations

__all__ = ["kernel_runs"]

_SHORT = 2
"""A run of fewer kernels than this part of the median is none: gradients set to zero, losses summed."""


def kernel_runs(operations: Operations | None, posts_ns: Sequence[int]) -> list[Run]:
    """Return the runs by launch; none where fewer than two threads launched what computes.

    The k-th backward is taken for the k-th forward's.

    Args:
        operations: a GPU's.
        posts_ns: when messages were launched.
    """
    if operations is None or operations.thread is None:
        return []
    rows = np.flatnonzero(~operations.communicates & (operations.launch_ns >= 0))
    rows = rows[np.argsort(operations.launch_ns[rows], kind="stable")]
    threads, count = np.unique(operations.thread[rows], return_counts=True)
    if threads.size <= 1:
        return []
    two = threads[np.argsort(-count, kind="stable")[:2]]
    rows = rows[np.isin(operations.thread[rows], two)]
    main = operations.thread[rows[0]]  # a step begins with a forward
    post = np.searchsorted(np.sort(np.array(posts_ns, dtype=np.int64)), operations.launch_ns[rows])
    forward = operations.thread[rows] == main
    cuts = np.flatnonzero((np.diff(forward) != 0) | (np.diff(post) != 0)) + 1
    parts = np.split(np.arange(rows.size), cuts)
    least = {way: np.median([len(p) for p in parts if forward[p[0]] == way]) / _SHORT for way in (True, False)}
    runs, seen = [], {True: 0, False: 0}
    for part in parts:
        way = bool(forward[part[0]])
        if len(part) < least[way]:
            continue
        launched = operations.launch_ns[rows[part]]
        shape = tuple(operations.names[name] for name in operations.name[rows[part]].tolist()) if way else ()
        runs.append(Run(
            forward=way, start_ns=int(launched[0]), end_ns=int(launched[-1]), of=seen[way], shape=shape
        ))  # fmt: skip
        seen[way] += 1
    return runs
