"""A ladder from one step to another: what each sort of time changes, in rungs that sum to the whole difference.

The first step's replay gets the second's durations, then its order, its transfers, its gaps of the host. What
replays do not give of either step is a rung of its own, and so is what lies before and behind the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.times import performed

if TYPE_CHECKING:
    from pptrace.analysis.steps.times import Performed

__all__ = ["Rung", "climb"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One step of the ladder."""

    name: str
    """What is taken over."""
    change_ns: int
    """By how much it lengthens the step."""
    reached_ns: int
    """How long the step is then."""
    spread_ns: int | None = None
    """By how much the change varies from step to step; None where each side has one."""


def climb(a: Performed, b: Performed, a_ns: int, b_ns: int) -> tuple[Rung, ...]:
    """Return the rungs from a step of ``a_ns`` to one of ``b_ns``.

    Raises:
        ScheduleError: an order cannot be replayed.
    """
    lengths = [
        performed(run_order(order, times)).span_ns
        for order, times in (
            (a.order, a.times()),
            (a.order, a.times(durations=b)),
            (b.order, b.times(transfers=a, gaps=a)),
            (b.order, b.times(gaps=a)),
            (b.order, b.times()),
        )
    ]
    names = ("durations", "order", "transfers", "gaps of the host")
    changes = [(name, after - before) for name, (before, after) in zip(names, pairwise(lengths), strict=True)]
    changes.append(("not explained by replays", (b.span_ns - lengths[-1]) - (a.span_ns - lengths[0])))
    changes.append(("before and behind the pipeline", (b_ns - b.span_ns) - (a_ns - a.span_ns)))
    rungs, reached = [], a_ns
    for name, change in changes:
        reached += change
        rungs.append(Rung(name=name, change_ns=change, reached_ns=reached))
    return tuple(rungs)
