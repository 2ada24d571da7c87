"""How a step runs again with other durations: its messages wait for whatever holds them up then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.steps.nearest_policy import nearest_policy
from pptrace.analysis.steps.replay import run_order
from pptrace.analysis.steps.times import performed
from pptrace.experiment.measured import prepared_behind
from pptrace.sim.simulate import simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.analysis.steps.sides import Side
    from pptrace.analysis.steps.times import Performed
    from pptrace.experiment.prepare import Prepared
    from pptrace.hooks.registry import Registry
    from pptrace.sim.action_times import ActionTimes
    from pptrace.timeline.timeline import Timeline

__all__ = ["runs_again"]

_GIVES_BACK = 0.01
"""By which share of a step its actions may be off under a policy that is said to have held its messages."""


def runs_again(side: Side, registry: Registry) -> Callable[[Performed], int] | None:
    """Return what runs a side's step with other durations and gaps, and says how long that takes.

    What was simulated is simulated again, its own policy, network and contention included, if need be from the
    configuration that its trace holds. Another trace runs under the policy that is nearest to it. None where
    messages were held and no policy gives them back: they then stay held for as long as they were.
    """
    step = side.performed
    if side.run is not None:
        prepared = side.run.prepared
        return (lambda changed: _simulated(prepared, changed)) if side.timeline.parts is None else None
    if step.partial:
        return None
    behind = None if side.measured else prepared_behind(side.timeline, registry)
    if behind is not None and performed(_again(behind)).equals(step):
        return lambda changed: _simulated(behind, changed)
    found = nearest_policy(step, registry, measured=side.measured, any_order=False)
    if step.transfers.held_ns.any() and found.off_ns > _GIVES_BACK * step.span_ns:
        return None
    return lambda changed: performed(run_order(changed.order, changed.times(held=False), found.policy)).span_ns


def _simulated(prepared: Prepared, changed: Performed) -> int:
    times = changed.times()
    # Its network and its policy say what lies between computations, as they did.
    unsaid = np.full_like(times.transfer_ns, -1)
    times = replace(times, transfer_ns=unsaid, gap_ns=np.zeros_like(times.gap_ns))
    return performed(_again(prepared, times)).span_ns


def _again(prepared: Prepared, times: ActionTimes | None = None) -> Timeline:
    return simulate(
        prepared.schedule, prepared.workload, prepared.network, prepared.policy,
        contention=prepared.contention, times=times,
    )  # fmt: skip
