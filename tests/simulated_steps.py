"""Random simulated steps: a schedule with whatever a table may hold, its costs, a network and a policy."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import networks, policies, valid_schedules, workloads

from pptrace.errors import DeadlockError
from pptrace.sim.simulation import simulate
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

    from pptrace.network.contract import Flat
    from pptrace.steps.workload import Workload
    from pptrace.timeline.timeline import Timeline

__all__ = ["SimulatedStep", "simulated_steps"]

BACKWARD = {Kind.B, Kind.I, Kind.W}


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """What was simulated, and the timeline that came of it."""

    schedule: Schedule
    workload: Workload
    network: Flat
    policy: Policy
    overlap: bool
    timeline: Timeline

    def again(self, **changes: Any) -> Timeline:
        """Simulate with some inputs changed."""
        given = {name: getattr(self, name) for name in ("schedule", "workload", "network", "policy")} | changes
        return simulate(
            given["schedule"],
            given["workload"],
            given["network"],
            given["policy"],
            overlap_reduction=self.overlap,
        )


@st.composite
def simulated_steps(draw: DrawFn, *, min_ns: int = 1) -> SimulatedStep:
    """Draw a step under any policy; where that deadlocks, the same under ``async``."""
    own = draw(st.booleans(), label="messages of its own")
    schedule = draw(valid_schedules(copies=not own, messages=own))
    if draw(st.booleans(), label="stages gathered and reduced by the table"):
        schedule = _with_stage_actions(schedule, Random(draw(st.integers(0, 999))))  # noqa: S311 - tests, not secrets
    workload = _with_collectives(draw, draw(workloads(schedule, min_ns=min_ns)))
    network, policy, overlap = draw(networks()), draw(policies()), draw(st.booleans())
    try:
        timeline = simulate(schedule, workload, network, policy, overlap_reduction=overlap)
    except DeadlockError:
        policy = Policy()
        timeline = simulate(schedule, workload, network, policy, overlap_reduction=overlap)
    return SimulatedStep(
        schedule=schedule,
        workload=workload,
        network=network,
        policy=policy,
        overlap=overlap,
        timeline=timeline,
    )


def _with_collectives(draw: DrawFn, workload: Workload) -> Workload:
    parts = {
        f"{name}_collective_ns": getattr(workload, f"{name}_ns") // draw(st.integers(1, 4)) for name in "fbiw"
    }
    gather = np.full(workload.stages, draw(st.sampled_from([0, 3, 40])), dtype=np.int64)
    return replace(workload, unshard_ns=gather, tokens=draw(st.integers(0, 9)), **parts)


def _with_stage_actions(schedule: Schedule, random: Random) -> Schedule:
    """Gather some stages before their first action, and reduce and update some behind their last backward."""
    rows = []
    for rank in range(schedule.ranks):
        row: list[Action | str | None] = [*schedule[rank]]
        for stage in schedule.placement.stages_of(rank):
            if random.random() < 0.5:
                first = _positions(row, stage, set(Kind))[0]
                row.insert(random.randint(0, first), Action(kind=Kind.UNSHARD, stage=stage))
            low = _positions(row, stage, BACKWARD)[-1] + 1
            for kind in (Kind.REDUCE_GRAD, Kind.RESHARD, Kind.OPTIMIZER):
                if random.random() < 0.5:
                    low = random.randint(low, len(row)) + 1
                    row.insert(low - 1, Action(kind=kind, stage=stage))
        rows.append(row)
    return Schedule.from_rows(rows, schedule.placement)


def _positions(row: Sequence[Action | str | None], stage: int, kinds: set[Kind]) -> list[int]:
    return [
        at
        for at, action in enumerate(row)
        if isinstance(action, Action)
        and any(item.stage == stage and item.kind in kinds for item in (action.sub_actions or (action,)))
    ]
