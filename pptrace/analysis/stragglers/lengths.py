"""How far microbatches differ, and whether forwards and backwards do so together, as sequences' lengths do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import BACKWARD, COMPUTE

if TYPE_CHECKING:
    from pptrace.analysis.stragglers.simulation import Times
    from pptrace.timeline.job import Job

__all__ = ["correlation", "evened"]


def evened(job: Job, took: Times) -> Times:
    """Return times with every microbatch as much work as the mean one.

    What a microbatch takes in sum, forward and backward on all ranks, is taken for its length: a sequence is as
    long on every rank, while a slow worker is one of them.
    """
    rows: dict[int, list[int]] = {}
    for at, one in enumerate(job.operations):
        if one.action is not None and one.action.kind in COMPUTE and one.action.microbatch >= 0:
            rows.setdefault(one.action.microbatch, []).append(at)
    even = took.copy()
    if rows:
        work = np.stack([took[positions].sum(axis=0) for positions in rows.values()])
        length = np.maximum(work, 1) / max(float(work.mean()), 1)
        for positions, own in zip(rows.values(), length, strict=True):
            even[positions] = took[positions] / own
    return even


def correlation(job: Job, took: Times) -> float:
    """Return the correlation of microbatches' forwards with their backwards; NaN where nothing varies.

    Both take longer for a long sequence, so it is near 1 where lengths differ; a slow machine makes no difference
    between a worker's own microbatches, and jitter none that forward and backward share.
    """
    sums: dict[tuple[bool, int, int], Times] = {}
    for at, one in enumerate(job.operations):
        if one.action is not None and one.action.kind in COMPUTE and one.action.microbatch >= 0:
            key = one.action.kind in BACKWARD, one.action.stage, one.action.microbatch
            sums[key] = sums.get(key, np.zeros(took.shape[1:])) + took[at]
    forward, backward = [], []
    for stage in dict.fromkeys(stage for _, stage, _ in sums):
        both = [[sums.get((late, at, which)) for late in (False, True)]
                for goes, at, which in sums if at == stage and not goes]  # fmt: skip
        pairs = [pair for pair in both if pair[1] is not None]
        if pairs:
            # Against each worker's own mean in the step: slow workers and slow steps are no long sequences.
            times = np.array(pairs)
            times = times / np.maximum(times.mean(axis=0, keepdims=True), 1)
            forward.append(times[:, 0].ravel())
            backward.append(times[:, 1].ravel())
    if not forward:
        return float("nan")
    values = np.concatenate(forward), np.concatenate(backward)
    if min(float(value.std()) for value in values) == 0:
        return float("nan")
    return float(np.corrcoef(*values)[0, 1])
