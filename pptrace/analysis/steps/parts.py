"""The parts of a step: computing, communication that nothing hid, waiting by cause; they sum to it."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Stream

if TYPE_CHECKING:
    from pptrace.analysis.steps.sides import Side

__all__ = ["parts_of"]


def parts_of(side: Side) -> dict[str, int]:
    """Return nanoseconds by part, each the mean over ranks; together they are the step.

    ``launch`` is time inside an action in which the device waited for the host.
    """
    metrics, step = side.metrics, side.steps[side.chosen]
    ranks = metrics.ranks
    compute = np.isin(step.timeline.lane_of_row(), np.flatnonzero(step.timeline.lane_stream == Stream.COMPUTE))
    launch = int(step.gap_ns[compute].sum())
    collective = int(metrics.collective_ns.sum())
    whole = {
        "compute": int(metrics.busy_ns.sum()) - collective - launch,
        "launch": launch, "own collectives": collective,
        **metrics.idle_by_cause_ns,
    }  # fmt: skip
    totals = list(accumulate(whole.values(), initial=0))
    return {
        name: after // ranks - before // ranks
        for name, (before, after) in zip(whole, pairwise(totals), strict=True)
    }
