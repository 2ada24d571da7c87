"""Computation and communication that run beside each other slow each other, as measured."""

from __future__ import annotations

import numpy as np
import pytest

from pptrace.config.choices import PolicyName
from pptrace.network.contract import Flat
from pptrace.sim.engines import Contention
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload

OVERLAP = Schedule.from_rows([["0F0", "1F0", "1B0", "0B0"]])
"""While stage 0 computes its backward, stage 1's gradients are reduced."""


@pytest.mark.parametrize(
    ("compute_ns", "communication_ns", "together_ns"),
    [(8_605_000, 3_364_000, 9_251_000), (334_000, 1_643_000, 1_685_000)],
)
def test_computation_beside_communication_is_as_slow_as_measured(
    compute_ns: int, communication_ns: int, together_ns: int
) -> None:
    # Qi et al., Synergistic Tensor and Pipeline Parallelism (2025), the overlap benchmark of section 3.5.
    workload = Workload.uniform(2, f_ns=0, b_ns=[compute_ns, 0], reduce_ns=[0, communication_ns])
    contention = Contention(compute_permille=828, communication_permille=896)

    timeline = simulate(OVERLAP, workload, contention=contention)

    assert float(timeline.end_ns.max()) == pytest.approx(together_ns, rel=0.001)


def test_slowing_without_any_overlap_changes_nothing() -> None:
    rows = [["0F0", "0B0"], ["1F0", "1B0"]]
    workload = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=1000)
    network = Flat(rate_kbps=100_000_000)
    policy = Policy(name=PolicyName.BLOCKING)

    slowed = simulate(
        Schedule.from_rows(rows), workload, network, policy, contention=Contention(compute_permille=500)
    )

    assert slowed.difference(simulate(Schedule.from_rows(rows), workload, network, policy)) == ""


def test_a_slowed_message_is_slowed_by_either_rank() -> None:
    # Rank 1 computes 1F1 while 0F2's activations come in; 100 ns at 8/10 of the speed.
    rows = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]
    workload = Workload.uniform(2, f_ns=[10, 1000], b_ns=10, boundary_bytes=1000)
    network = Flat(rate_kbps=10_000_000)

    timeline = simulate(
        Schedule.from_rows(rows), workload, network, contention=Contention(communication_permille=800)
    )

    rows = np.flatnonzero(timeline.kind == Kind.SEND_F)
    spans = zip(timeline.start_ns[rows].tolist(), timeline.end_ns[rows].tolist(), strict=True)
    first, second = sorted(spans)
    # Rank 0 computes 0F1 beside the first 10 ns of the first message: 10 ns at 0.8 leave 92 ns.
    assert first == (10, 10 + 10 + 92)
    assert second == (112, 112 + 125)
