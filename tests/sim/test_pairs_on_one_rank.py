"""Pairs on ranks that hold neighbouring stages, with backwards that begin with communication."""

from __future__ import annotations

import pytest

from pptrace.config.choices import PolicyName
from pptrace.errors import DeadlockError
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload

AWAY = Stream.EXPERT_PARALLEL
FORWARD = (
    Segment(name="attention", duration_ns=10), Segment(name="dispatch", duration_ns=6, stream=AWAY),
    Segment(name="experts", duration_ns=10), Segment(name="combine", duration_ns=6, stream=AWAY),
)  # fmt: skip
BACKWARD = (
    Segment(name="combine", duration_ns=6, stream=AWAY), Segment(name="input", duration_ns=26),
    Segment(name="weight", duration_ns=6),
)  # fmt: skip


def workload(stages: int) -> Workload:
    return Workload.uniform(stages).segmented({Kind.F: [FORWARD] * stages, Kind.B: [BACKWARD] * stages})


@pytest.mark.parametrize("policy", [PolicyName.ASYNC, PolicyName.ORDERED, PolicyName.BATCHED])
@pytest.mark.parametrize(
    ("row", "took"),
    [
        ("0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1", 4 * 32 + 4 * 38),
        # The pair computes 10, 10, 26, 6: the exchange of either member is beside the other's computation.
        ("0F0 1F0 (0F1;1B0)OVERLAP_F_B 1F1 0B0 1B1 0B1", 3 * 32 + 3 * 38 + 52),
        ("0F0 1F0 0F1 1B0 (1F1;0B0)OVERLAP_F_B 1B1 0B1", 3 * 32 + 3 * 38 + 52),
    ],
)
def test_a_step_takes_what_it_takes_by_hand(row: str, took: int, policy: PolicyName) -> None:
    timeline = simulate(Schedule.from_rows([row.split()]), workload(2), policy=Policy(name=policy))

    assert int(timeline.end_ns.max()) == took


def test_a_row_that_needs_what_it_computes_later_is_refused() -> None:
    row = "0F0 0F1 1F0 (1F1;0B0)OVERLAP_F_B 1B0 1B1 0B1"

    with pytest.raises(DeadlockError, match="0B0"):
        simulate(Schedule.from_rows([row.split()]), workload(2))
