"""Random steps are measured as a slow second implementation says, which knows definitions and no kernel."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle_metrics import BUSY, MetricsOracle
from simulated_steps import SimulatedStep, simulated_steps

from pptrace.timeline.counters import memory_counters
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import measure


def assert_agreement(oracle: MetricsOracle) -> None:
    metrics = measure(oracle.timeline, oracle.workload)
    assert (metrics.start_ns, metrics.end_ns) == oracle.window()
    idle = 0
    for rank in range(metrics.ranks):
        expected = oracle.spent(rank)
        idle += metrics.step_ns - expected[BUSY]
        found = {cause: int(metrics.idle_ns[rank, cause]) for cause in IdleCause if metrics.idle_ns[rank, cause]}
        assert found == {cause: time for cause, time in expected.items() if cause != BUSY}
        assert int(metrics.busy_ns[rank]) == expected[BUSY]
        assert int(metrics.collective_ns[rank]) == oracle.collective(rank)
        assert int(metrics.reduction_ns[rank]) == oracle.reduction(rank)
        assert int(metrics.exposed_ns[rank]) == oracle.exposed(rank)
    assert metrics.bubble * metrics.ranks * metrics.step_ns == idle


@given(simulated_steps(min_ns=0))
def test_every_instant_of_a_step_has_the_cause_that_its_definition_gives(step: SimulatedStep) -> None:
    assert_agreement(MetricsOracle(step.timeline, step.workload))


@given(simulated_steps(), st.data())
def test_time_beyond_the_uncontended_is_contention_wherever_it_is_waited_for(
    step: SimulatedStep, data: st.DataObject
) -> None:
    # Nothing is shared yet, so what a message would have taken alone is made shorter here.
    took = step.timeline.uncontended_ns
    tenths = data.draw(st.lists(st.integers(0, 10), min_size=took.size, max_size=took.size))
    timeline = replace(step.timeline, uncontended_ns=took * np.array(tenths, dtype=np.int64) // 10)

    assert_agreement(MetricsOracle(timeline, step.workload))


@settings(max_examples=settings().max_examples // 3)
@given(simulated_steps())
def test_memory_peaks_where_most_activations_are_held(step: SimulatedStep) -> None:
    oracle = MetricsOracle(step.timeline, step.workload)
    memory = measure(step.timeline, step.workload).memory

    for rank, counter in enumerate(memory_counters(step.timeline, step.workload)):
        most, when = oracle.peak(rank)
        assert (int(memory.peak_activation_bytes[rank]), int(memory.peak_at_ns[rank])) == (most, when)
        static = int(memory.static_bytes[rank])
        for now, value in zip(counter.at_ns.tolist(), counter.value.tolist(), strict=True):
            assert value - static == oracle.activation_bytes(rank, now)


@given(simulated_steps(min_ns=0))
def test_the_critical_path_sums_to_the_step(step: SimulatedStep) -> None:
    oracle = MetricsOracle(step.timeline, step.workload)
    metrics = measure(step.timeline, step.workload)

    by_kind, by_stage = oracle.path()

    assert metrics.path.by_kind_ns == by_kind
    assert metrics.path.by_stage_ns == by_stage
    assert sum(by_kind.values()) == metrics.step_ns


@given(simulated_steps())
def test_tokens_per_second_are_the_jobs_tokens_over_the_step(step: SimulatedStep) -> None:
    metrics = measure(step.timeline, step.workload)

    expected = step.workload.tokens / (metrics.step_ns / 1e9)

    assert (metrics.tokens_per_s or 0) == expected or abs(metrics.tokens_per_s / expected - 1) < 1e-12
