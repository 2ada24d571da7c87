from __future__ import annotations

import numpy as np
import pytest

from pptrace.sim.simulation import simulate
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.counters import memory_counters
from pptrace.timeline.memory import measure_memory
from pptrace.timeline.metrics import measure

ROWS = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
SPLIT = [["0F0", "0I0", "0F1", "0W0", "0I1", "0W1"]]


def workload(stages: int = 2, **values: object) -> Workload:
    return Workload.uniform(
        stages, f_ns=10, b_ns=20, activation_bytes=100, weights_bytes=1000, gradients_bytes=200, **values
    )


def test_activations_are_held_from_forward_to_backward() -> None:
    costs = workload()

    memory = measure_memory(simulate(Schedule.from_rows(ROWS), costs), costs)

    assert memory.peak_activation_bytes.tolist() == [200, 100]
    assert memory.peak_activations.tolist() == [2, 1]
    assert memory.peak_at_ns.tolist() == [10, 10]
    assert memory.peak_bytes.tolist() == [1400, 1300]


def test_the_allocators_share_is_that_of_all_that_is_allocated() -> None:
    costs = workload(reserved_bytes=50, reserved_permille=101)

    memory = measure_memory(simulate(Schedule.from_rows(ROWS), costs), costs)

    assert memory.reserved_bytes.tolist() == [50 + 142, 50 + 132]  # of 1400 and 1300, rounded up
    assert memory.peak_bytes.tolist() == [1400 + 192, 1300 + 182]


def test_the_allocators_share_shrinks_to_the_memory_that_is_left() -> None:
    costs = workload(reserved_bytes=50, reserved_permille=101, capacity_bytes=1400)

    memory = measure_memory(simulate(Schedule.from_rows(ROWS), costs), costs)

    assert memory.reserved_bytes.tolist() == [50, 50 + 50]  # the device has 1350 for tensors and share
    assert memory.over_capacity == (0, 10, 50)


def test_an_input_gradient_keeps_what_the_weight_gradient_needs() -> None:
    costs = workload(1, weight_activation_bytes=40)

    memory = measure_memory(simulate(Schedule.from_rows(SPLIT), costs), costs)

    # F0 100, I0 40, F1 140, W0 100, I1 40, W1 0.
    assert memory.peak_activation_bytes.tolist() == [140]
    assert memory.peak_activations.tolist() == [2]


def test_a_replicated_stage_weighs_on_each_rank_that_holds_it() -> None:
    rows = [["0F0", "1F1", "0B0", "1B1"], ["1F0", "0F1", "1B0", "0B1"]]
    rows = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    costs = workload()

    memory = measure_memory(simulate(Schedule.from_rows(rows), costs), costs)

    assert memory.weights_bytes.tolist() == [2000, 2000]


def test_each_shared_boundary_has_buffers_on_both_sides() -> None:
    costs = workload(3, boundary_bytes=7)
    rows = [[f"{s}F0", f"{s}B0"] for s in range(3)]

    memory = measure_memory(simulate(Schedule.from_rows(rows), costs), costs)

    assert memory.buffer_bytes.tolist() == [14, 28, 14]


def test_an_offload_frees_memory_at_its_end_and_a_reload_holds_it_from_its_start() -> None:
    rows = [["0F0", "0OFFLOAD0", "0F1", "0RELOAD0", "0B1", "0B0"]]
    costs = workload(1, offload_ns=5, reload_ns=5)

    memory = measure_memory(simulate(Schedule.from_rows(rows), costs), costs)

    assert memory.peak_activation_bytes.tolist() == [200]
    curve = memory_counters(simulate(Schedule.from_rows(rows), costs), costs)[0]
    # F0 0-10, copied out 10-15 beside F1 10-20, copied back from 20 on, B1 20-40, B0 40-60.
    assert curve.at_ns.tolist() == [0, 10, 15, 20, 40, 60]
    assert (curve.value - 1200).tolist() == [100, 200, 100, 200, 100, 0]


def test_counters_start_at_the_static_level_and_return_to_it() -> None:
    costs = workload()

    for counter in memory_counters(simulate(Schedule.from_rows(ROWS), costs), costs):
        assert counter.value[-1] == 1200
        assert (np.diff(counter.at_ns) > 0).all()


def test_the_peak_of_the_curve_is_the_measured_peak() -> None:
    costs = workload(1, weight_activation_bytes=40)
    timeline = simulate(Schedule.from_rows(SPLIT), costs)

    (curve,) = memory_counters(timeline, costs)

    assert int(curve.value.max()) == int(measure_memory(timeline, costs).peak_bytes[0])


@pytest.mark.parametrize(("capacity", "over"), [(1399, (0, 10, 1)), (1400, None), (0, None)])
def test_the_rank_furthest_over_its_memory_is_named(capacity: int, over: object) -> None:
    costs = workload(capacity_bytes=capacity)

    assert measure(simulate(Schedule.from_rows(ROWS), costs), costs).memory.over_capacity == over
