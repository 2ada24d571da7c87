"""Replay a step: its order and its actions' own times, never when they started."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.analysis.steps.times import Performed, performed
from pptrace.config.choices import PolicyName
from pptrace.errors import DeadlockError, ScheduleError
from pptrace.model.workload import Workload
from pptrace.schedule.policy import Policy
from pptrace.sim.simulate import simulate
from pptrace.timeline.window import window

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.schedule.table import Schedule
    from pptrace.sim.action_times import ActionTimes
    from pptrace.timeline.timeline import Timeline

__all__ = ["Replayed", "replay", "run_order"]


_MOST_NAMED = 4
"""Actions of a circle that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A step and its replay."""

    step: Performed
    """The step, taken apart."""
    timeline: Timeline
    """The replay."""
    replayed_ns: int
    """From its first computation to its last."""
    step_ns: int
    """Length of the whole step, with the messages before the first computation and behind the last."""

    @property
    def has_more(self) -> bool:
        """Whether the step has more than what lies between its first computation and its last."""
        return self.step_ns != self.step.span_ns

    @property
    def explained(self) -> float:
        """The replay's length as a share of the step's."""
        return self.replayed_ns / self.step.span_ns if self.step.span_ns else 1.0


def replay(
    timeline: Timeline, policy: Callable[[Schedule], Policy] | None = None, *, lacks_ranks: bool = False
) -> Replayed:
    """Replay a step with its own order, durations, transfers and host gaps.

    Where computations are missing, waits for them are kept as long as they were.

    Args:
        timeline: the step.
        policy: how the messages of an order are issued. Unless given none waits for another, and each is held for
            as long as it was; a policy says itself what holds them.
        lacks_ranks: whether ranks are missing whose recordings nobody has.

    Raises:
        ScheduleError: its order is no pipeline's, for an action comes before what it needs.
        ConstraintError: the policy cannot place the messages of its order.
    """
    step = performed(timeline, lacks_ranks=lacks_ranks)
    chosen = None if policy is None else policy(step.order)
    again = run_order(step.order, step.times(held=chosen is None), chosen, partial=step.partial)
    opened, closed = window(timeline)
    return Replayed(step=step, timeline=again, replayed_ns=performed(again).span_ns, step_ns=int(closed - opened))


def run_order(
    order: Schedule, times: ActionTimes, policy: Policy | None = None, *, partial: bool = False
) -> Timeline:
    """Simulate an order with every time given, its messages as a policy issues them; ``async`` by default.

    Where actions are missing (``partial``), nothing waits for them.

    Raises:
        ScheduleError: its actions wait for each other, whatever holds messages: they did not happen together.
        DeadlockError: they do so under this policy.
    """
    costs = Workload.uniform(order.stages, edges=len(order.placement.edges), f_ns=0, b_ns=0)
    policy = policy or Policy()
    try:
        return simulate(order, costs, policy=policy, times=times, partial=partial)
    except DeadlockError as error:
        if policy.name is not PolicyName.ASYNC:
            raise
        circle = ", ".join(error.cycle[:_MOST_NAMED])
        message = "a step's actions cannot have happened together, for some wait for each other"
        raise ScheduleError(f"{message} ({circle} and others): are all files of one run?") from error
