"""A ladder from one step to another: what each sort of time changes; together they are the whole difference.

The first step's replay gets the second's durations, then its order, its transfers, what held its messages up,
its host gaps. What replays do not give of either step is a step of the ladder too, and so is what lies before and
behind the pipeline.

Two simulations are simulated again instead, so that what waits does so for as long as it would then: the first
with the second's durations, then its order, its network and sizes, and its policy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING

from pptrace.analysis.figure import Figure
from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.simulations import again_ns
from pptrace.analysis.steps.times import performed
from pptrace.errors import PptraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.analysis.steps.times import Performed
    from pptrace.experiment.prepare import Prepared

__all__ = ["LadderStep", "ladder_steps", "simulated_ladder"]


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
    return _rungs(lengths, (a, b), a_ns, b_ns)


def simulated_ladder(
    steps: tuple[Performed, Performed], on: tuple[Prepared, Prepared], a_ns: int, b_ns: int
) -> tuple[LadderStep, ...]:
    """Return the ladder between two simulations; empty where they do not run on each other's parts.

    Args:
        steps: both, taken apart.
        on: what they were simulated on.
        a_ns: length of the first training step.
        b_ns: length of the second.
    """
    (a, b), (first, second) = steps, on
    ordered = replace(first, schedule=second.schedule)
    moved = replace(ordered, workload=second.workload, network=second.network)
    try:
        lengths = [
            again_ns(first, a.times()), again_ns(first, a.times(durations=b)), again_ns(ordered, b.times()),
            again_ns(moved, b.times()), again_ns(second, b.times()),
        ]  # fmt: skip
    except PptraceError:
        return ()
    own = lengths[0] == a.span_ns and lengths[-1] == b.span_ns
    return _rungs([*lengths, lengths[-1]], steps, a_ns, b_ns) if own else ()


def _rungs(
    lengths: Sequence[int], steps: tuple[Performed, Performed], a_ns: int, b_ns: int
) -> tuple[LadderStep, ...]:
    a, b = steps
    names = ("durations", "order", "transfers", "messages held up", "host gaps")
    changes = [(name, after - before) for name, (before, after) in zip(names, pairwise(lengths), strict=True)]
    changes.append(("not explained by replays", (b.span_ns - lengths[-1]) - (a.span_ns - lengths[0])))
    changes.append(("before and behind the pipeline", (b_ns - b.span_ns) - (a_ns - a.span_ns)))
    reached = accumulate((change for _, change in changes), initial=a_ns)
    return tuple(
        LadderStep(name=name, change_ns=Figure(change), reached_ns=length)
        for (name, change), length in zip(changes, islice(reached, 1, None), strict=True)
    )
