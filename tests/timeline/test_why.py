"""Waits, critical path and counters of communication are the metrics' figures, taken apart over time."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace
from segment_costs import random_kinds, steady
from simulated_steps import SimulatedStep, simulated_steps

from pptrace.measured.dependencies import explain_waits
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import COMPUTE, Stream
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.actions import group_times
from pptrace.timeline.counters import communication_counters
from pptrace.timeline.critical_path import PATH_PARTS, on_path, why
from pptrace.timeline.idle import COMMUNICATION, IdleCause, waits
from pptrace.timeline.metrics import hidden_ns, measure
from pptrace.timeline.trim import trim

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Counter, Timeline

SLOWLY = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def summed(counters: tuple[Counter, ...], name: str, ranks: int) -> list[int]:
    """Return each rank's counter, summed over time; each ends at zero."""
    total = [0] * ranks
    for counter in counters:
        if counter.name == name:
            assert counter.value[-1] == 0
            assert counter.value.min() == 0
            total[counter.rank] = int((np.diff(counter.at_ns) * counter.value[:-1]).sum())
    return total


@SLOWLY
@given(simulated_steps(min_ns=0))
def test_waits_and_computations_fill_each_rank_s_window_and_sum_to_its_idle_time(step: SimulatedStep) -> None:
    timeline = step.timeline
    metrics, idle_waits = measure(timeline, step.workload), waits(timeline)

    idle = np.zeros((timeline.ranks, len(IdleCause)), dtype=np.int64)
    np.add.at(idle, (idle_waits.rank, idle_waits.cause), idle_waits.end_ns - idle_waits.start_ns)
    assert idle.tolist() == metrics.idle_ns.tolist()
    for rank in range(timeline.ranks):
        spans = [
            (s, e)
            for r, s, e in zip(idle_waits.rank, idle_waits.start_ns, idle_waits.end_ns, strict=True)
            if r == rank
        ]
        assert spans == sorted(spans)
        rows = [timeline[row] for row in range(len(timeline))]
        spans += [
            (item.start_ns, item.end_ns) for item in rows
            if item.rank == rank and item.stream == Stream.COMPUTE and item.action.kind in COMPUTE
        ]  # fmt: skip
        spans = sorted((start, end) for start, end in spans if end > start)
        ends = [metrics.start_ns, *(end for _, end in spans)]
        assert [start for start, _ in spans] == ends[:-1]
        assert ends[-1] == metrics.end_ns


@SLOWLY
@given(simulated_steps(min_ns=0))
def test_a_wait_names_what_ended_it_and_another_rank(step: SimulatedStep) -> None:
    result = waits(step.timeline)

    assert (result.row < len(step.timeline)).all()
    assert (result.peer != result.rank).all()
    between = ~np.isin(result.cause, [IdleCause.FILL, IdleCause.DRAIN])
    assert (result.row[between & (result.cause != IdleCause.PEER_COMPUTE)] >= 0).all()


@SLOWLY
@given(simulated_steps(min_ns=0))
def test_parts_of_the_path_follow_one_another_through_the_window(step: SimulatedStep) -> None:
    metrics, parts = measure(step.timeline, step.workload), on_path(step.timeline)

    assert parts.start_ns.tolist() == [metrics.start_ns, *parts.end_ns.tolist()][: len(parts)]
    assert parts.end_ns[-1:].tolist() in ([], [metrics.end_ns])
    assert np.isin(parts.row, metrics.path.rows).all()
    took = parts.end_ns - parts.start_ns
    for part, name in enumerate(PATH_PARTS[1:], 1):
        assert int(took[parts.part == part].sum()) == metrics.path.by_kind_ns.get(name, 0)


@SLOWLY
@given(simulated_steps())
def test_counters_of_communication_sum_to_the_figures(step: SimulatedStep) -> None:
    timeline = step.timeline
    metrics = measure(timeline, step.workload)

    counters = communication_counters(timeline, waits(timeline))

    assert summed(counters, "hidden communication", timeline.ranks) == hidden_ns(timeline).tolist()
    exposed = metrics.idle_ns[:, list(COMMUNICATION)].sum(axis=1)
    assert summed(counters, "exposed communication", timeline.ranks) == exposed.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_of_pairs_the_segments_that_nothing_hides_are_exposed(seed: int) -> None:
    costs = Workload.uniform(2, boundary_bytes=3).segmented(random_kinds(Random(seed)))  # noqa: S311 - nothing secret
    timeline = simulate(Schedule.from_rows(steady(2, 6)), costs, Flat(rate_kbps=1_000_000))
    counters = communication_counters(timeline, waits(timeline))

    groups = [group for group in group_times(timeline) if group.stream is not Stream.DATA_PARALLEL]
    assert sum(int(group.hidden_ns.sum()) for group in groups) > 0
    assert summed(counters, "hidden communication", timeline.ranks) == hidden_ns(timeline).tolist()
    bare = sum((group.total_ns - group.hidden_ns for group in groups), np.zeros(timeline.ranks, dtype=np.int64))
    assert (np.array(summed(counters, "exposed communication", timeline.ranks)) >= bare).all()


@SLOWLY
@given(simulated_steps())
def test_a_step_whose_causes_nobody_recorded_has_a_path_all_the_same(step: SimulatedStep) -> None:
    unknown = explain_waits(replace(step.timeline, cause=np.full(len(step.timeline), -1, dtype=np.int32)))

    assert unknown.why is not None
    path, metrics = unknown.why.path, measure(step.timeline, step.workload)
    assert path.start_ns.tolist() == [metrics.start_ns, *path.end_ns.tolist()][: len(path)]
    computing = step.timeline.kind[path.row[path.part == 0]]
    assert np.isin(computing, list(COMPUTE)).all()
    assert explain_waits(step.timeline).why is not None


@SLOWLY
@given(simulated_steps())
def test_a_trimmed_step_says_why_as_the_whole_does(step: SimulatedStep) -> None:
    whole = replace(step.timeline, why=why(step.timeline))
    kept = trim(whole, [step.timeline.ranks - 1], None)

    assert whole.why is not None
    assert kept.why is not None
    is_kept = whole.why.waits.rank == step.timeline.ranks - 1
    assert kept.why.waits.start_ns.tolist() == whole.why.waits.start_ns[is_kept].tolist()
    there = kept.why.waits.row >= 0
    for row, number in zip(whole.why.waits.row[is_kept][there], kept.why.waits.row[there], strict=True):
        assert described(kept, int(number)) == described(whole, int(row))
    for row in kept.why.path.row.tolist():
        assert kept[row].rank == step.timeline.ranks - 1


def described(timeline: Timeline, row: int) -> object:
    return replace(timeline[row], cause=-1)
