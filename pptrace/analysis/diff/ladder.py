"""A ladder from one step to another: what each sort of time changes; together they are the whole difference.

The first step's replay gets the second's durations, then its order, its transfers, what held its messages up,
its host gaps. What replays do not give of either step is a step of the ladder too, and so is what lies before and
behind the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING

from pptrace.analysis.figure import Figure
from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.times import performed

if TYPE_CHECKING:
    from pptrace.analysis.steps.times import Performed

__all__ = ["LadderStep", "ladder_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
    """One step of the ladder."""

    name: str
    """What is taken over."""
    change_ns: Figure
    """By how much it lengthens the training step."""
    reached_ns: int
    """How long that is then."""


def ladder_steps(a: Performed, b: Performed, a_ns: int, b_ns: int) -> tuple[LadderStep, ...]:
    """Return the ladder from a step of ``a_ns`` to one of ``b_ns``.

    Raises:
        ScheduleError: an order cannot be replayed.
    """
    lengths = [
        performed(run_order(order, times, partial=a.partial or b.partial)).span_ns
        for order, times in (
            (a.order, a.times()),
            (a.order, a.times(durations=b)),
            (b.order, b.times(transfers=a, holds=a, gaps=a)),
            (b.order, b.times(holds=a, gaps=a)),
            (b.order, b.times(gaps=a)),
            (b.order, b.times()),
        )
    ]
    names = ("durations", "order", "transfers", "messages held up", "host gaps")
    changes = [(name, after - before) for name, (before, after) in zip(names, pairwise(lengths), strict=True)]
    changes.append(("not explained by replays", (b.span_ns - lengths[-1]) - (a.span_ns - lengths[0])))
    changes.append(("before and behind the pipeline", (b_ns - b.span_ns) - (a_ns - a.span_ns)))
    reached = accumulate((change for _, change in changes), initial=a_ns)
    return tuple(
        LadderStep(name=name, change_ns=Figure(change), reached_ns=length)
        for (name, change), length in zip(changes, islice(reached, 1, None), strict=True)
    )
