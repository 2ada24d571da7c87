"""Messages back over an edge have bytes of their own where the costs say so."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from pptrace.errors import ScheduleError
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload

NETWORK = Flat(latency_ns=5, rate_kbps=10**6)
"""A byte takes a nanosecond."""
COSTS = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=1000)


def with_back(*sizes: int) -> Workload:
    return replace(COSTS, boundary_gradient_bytes=np.array(sizes, dtype=np.int64))


@pytest.mark.parametrize(("sizes", "back"), [((), 1000), ((0,), 0), ((3000,), 3000)])
def test_a_gradient_takes_its_own_bytes_and_a_latency(sizes: tuple[int, ...], back: int) -> None:
    timeline = simulate(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]), with_back(*sizes), NETWORK)
    sent = {Kind(kind): int(size) for kind, size in zip(timeline.kind, timeline.size_bytes, strict=True)}

    assert timeline.end_ns.max() == 2 * (10 + 20) + 1000 + back + 2 * 5
    assert (sent[Kind.SEND_F], sent[Kind.SEND_B]) == (1000, back)


def test_each_class_of_microbatches_has_gradients_of_its_own() -> None:
    costs = replace(COSTS, classes=(with_back(70), with_back(0)), microbatch_class=[1, 2, 0])
    rows = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]]
    timeline = simulate(Schedule.from_rows(rows), costs, NETWORK)
    back = timeline.kind == Kind.SEND_B

    assert dict(zip(timeline.microbatch[back].tolist(), timeline.size_bytes[back].tolist(), strict=True)) == {
        0: 70, 1: 0, 2: 1000,
    }  # fmt: skip


def test_gradients_of_another_number_of_edges_or_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="boundary_gradient_bytes has 2 values for 1 edges: one each"):
        with_back(1, 2)
    with pytest.raises(ScheduleError, match="boundary_gradient_bytes of boundary 0 is below zero"):
        simulate(Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"]]), with_back(-1), NETWORK)
