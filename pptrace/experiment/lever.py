"""The largest lever: what takes most of the step beside the model's own computation, and what moves it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.timeline.metrics import IdleCause

if TYPE_CHECKING:
    from pptrace.experiment.run import Run

__all__ = ["largest_lever"]

_ADVICE = {
    "bubble": "more microbatches",
    "transfer": "a faster network",
    "contention": "less shared links",
    "head-of-line": "another p2p policy",
    "reduction": "overlap the reduction",
    "collectives": "less tp",
}

_EVEN = 1.05
"""The busiest rank over the mean from which a bubble is laid to uneven stages."""

_SMALL = 0.005
"""Below this part of the step nothing is worth a change."""


def largest_lever(run: Run) -> str:
    """Return the largest overhead with its part of the step, and what to try.

    >>> sorted(_ADVICE)[0]
    'collectives'
    """
    metrics = run.metrics
    whole = metrics.ranks * metrics.step_ns
    if not whole:
        return "none"
    idle = metrics.idle_ns.sum(axis=0)
    parts = {
        "bubble": int(idle[IdleCause.FILL] + idle[IdleCause.DRAIN] + idle[IdleCause.PEER_COMPUTE]),
        "transfer": int(idle[IdleCause.TRANSFER]),
        "contention": int(idle[IdleCause.CONTENTION]),
        "head-of-line": int(idle[IdleCause.HEAD_OF_LINE]),
        "reduction": int(idle[IdleCause.REDUCTION]),
        "collectives": int(metrics.collective_ns.sum()),
    }
    name = max(parts, key=lambda key: parts[key])
    share = parts[name] / whole
    if share < _SMALL:
        return "compute alone"
    uneven = int(metrics.busy_ns.max()) * metrics.ranks > _EVEN * int(metrics.busy_ns.sum())
    advice = "even stages" if name == "bubble" and uneven else _ADVICE[name]
    return f"{name} {share:.1%}, try {advice}"
