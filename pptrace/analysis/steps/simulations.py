"""Steps that were simulated, run again with other times: their policy, network and contention say what waits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.steps.times import performed
from pptrace.errors import PptraceError
from pptrace.experiment.measured import prepared_behind
from pptrace.sim.simulate import simulate

if TYPE_CHECKING:
    from pptrace.analysis.steps.sides import Side
    from pptrace.experiment.prepare import Prepared
    from pptrace.hooks.registry import Registry
    from pptrace.sim.action_times import ActionTimes

__all__ = ["again_ns", "simulation_of"]


def simulation_of(side: Side, registry: Registry) -> Prepared | None:
    """Return what a side was simulated on, if need be from the configuration that its trace holds.

    None where it was recorded, its actions are in segments, or that with its own times does not give it back.
    """
    if side.measured or side.timeline.parts is not None:
        return None
    prepared = side.run.prepared if side.run is not None else prepared_behind(side.timeline, registry)
    if prepared is None:
        return None
    step = side.performed
    try:
        return prepared if again_ns(prepared, step.times()) == step.span_ns else None
    except PptraceError:
        return None


def again_ns(prepared: Prepared, times: ActionTimes) -> int:
    """Return how long a step takes from its first computation to its last, with these durations.

    What messages take and what lies between computations is for its network and policy to say.

    Raises:
        PptraceError: the policy cannot place the messages of its order, or costs are not for it.
    """
    unsaid = np.full_like(times.transfer_ns, -1)
    timeline = simulate(
        prepared.schedule, prepared.workload, prepared.network, prepared.policy, contention=prepared.contention,
        times=replace(times, transfer_ns=unsaid, gap_ns=np.zeros_like(times.gap_ns)),
    )  # fmt: skip
    return performed(timeline).span_ns
