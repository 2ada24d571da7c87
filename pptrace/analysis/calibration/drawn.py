"""How much a step varies by itself: its own actions, gaps and messages drawn anew, and its order run again.

One step says how long it took, and not how long the next one will. But it holds many actions of each sort, whose
times say what a next one might take: the bootstrap (B. Efron, 1979).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.times import performed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from numpy.typing import NDArray

    from pptrace.analysis.steps.times import Performed
    from pptrace.model.columns import Int64s
    from pptrace.schedule.policy import Policy

__all__ = ["drawn_spans_ns"]

_DRAWS = 20
"""Steps that are drawn; two lie beyond what nine in ten are within."""


def drawn_spans_ns(steps: Sequence[Performed], policy: Policy) -> Int64s:
    """Return how long steps take whose times are drawn from those recorded, shape (draws,).

    A computation takes what one of its kind on its stage took, alone or in an overlapped pair as it is itself; a
    gap is one of those that the host was seen to leave, a message takes what one of its size was seen to take.

    Args:
        steps: what was recorded, whole steps of one order, at least one.
        policy: how messages are issued.
    """
    random = np.random.default_rng(0)
    first = steps[0]
    sorts = _sorts([np.stack([one.kind, one.stage, one.pair >= 0]) for one in steps])
    durations = np.concatenate([one.duration_ns for one in steps])
    gaps = np.concatenate([one.host_gaps_ns for one in steps])
    sizes = _sorts([one.transfers.size_bytes[None] for one in steps])
    took = np.concatenate([one.transfers.took_ns for one in steps])
    seen = np.concatenate([one.transfers.observed for one in steps]) & (took >= 0)
    spans = []
    for _ in range(_DRAWS):
        step = replace(
            first,
            duration_ns=_drawn(durations, sorts, np.ones(durations.size, dtype=np.bool_), random)[: len(first)],
            gap_ns=random.choice(gaps, len(first)) if gaps.size else np.zeros(len(first), dtype=np.int64),
            transfers=replace(first.transfers, took_ns=_drawn(took, sizes, seen, random)[: len(first.transfers)]),
        )
        spans.append(performed(run_order(step.order, step.times(held=False), policy)).span_ns)
    return np.array(spans, dtype=np.int64)


def _sorts(columns: Sequence[NDArray[Any]]) -> Int64s:
    """Return the number of each one's sort, over all steps."""
    sorts: Int64s = np.unique(np.concatenate(columns, axis=1), axis=1, return_inverse=True)[1].reshape(-1)
    return sorts


def _drawn(values: Int64s, sorts: Int64s, known: NDArray[np.bool_], random: np.random.Generator) -> Int64s:
    """Return for each value one that is known of its sort; itself where none is."""
    drawn = values.copy()
    for sort in np.unique(sorts):
        pool = values[(sorts == sort) & known]
        if pool.size:
            drawn[sorts == sort] = random.choice(pool, int((sorts == sort).sum()))
    return drawn
