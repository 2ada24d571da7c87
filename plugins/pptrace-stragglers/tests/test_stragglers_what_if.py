"""What a job's stragglers cost: closed forms, laws, and causes that were put in are the ones that are found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from compared_steps import MS, ROWS, one_step
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import pptrace
from pptrace.errors import ScheduleError
from pptrace.measured.computations import extract_computations
from pptrace.measured.replay import Resimulation
from pptrace.timeline.measurement import Replica, Step
from pptrace_stragglers.simulation import Job, JobOperation, JobSimulation, build_job
from pptrace_stragglers.what_if import find_stragglers, ideal_durations, ideal_timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.timeline.timeline import Timeline


def chain(took: Sequence[Sequence[int]], *, meets: bool = True) -> Job:
    """Return a job whose only rank computes and then meets the other replicas; ``took`` is by replica and step."""
    computed = np.array([took], dtype=np.int64)
    end = np.concatenate([computed, np.broadcast_to(computed.max(axis=1, keepdims=True) + 1, computed.shape)])
    operations = JobOperation(type="compute", rank=0), JobOperation(type="reduce", rank=0, dependencies=(0,))
    return Job(
        operations=operations, rendezvous=((1,),) if meets else (),
        across_replicas=frozenset({1} if meets else ()),
        workers=np.arange(len(took))[:, None], replicas=tuple(map(str, range(len(took)))),
        steps=tuple(map(str, range(len(took[0])))), start_ns=np.concatenate([computed * 0, computed]), end_ns=end,
    )  # fmt: skip


def step(timeline: Timeline, label: str = "step 0", begins_ns: int = 0) -> Step:
    return Step(
        label=label, timeline=timeline, gap_ns=np.zeros(len(timeline), dtype=np.int64), begins_ns=begins_ns
    )


def job(*replicas: Sequence[Timeline]) -> Job:
    """Return a job of simulated replicas, each of as many steps; replica k's ranks are 10 k and up."""
    return build_job([
        Replica(
            name=f"dp={at}", ranks=tuple(range(10 * at, 10 * at + 3)),
            steps=tuple(step(item, f"step {number}") for number, item in enumerate(steps)),
        )
        for at, steps in enumerate(replicas)
    ])  # fmt: skip


def of_lengths(lengths: Sequence[float]) -> Timeline:
    """Return a step whose microbatches take times in proportion to their lengths."""
    done = extract_computations(one_step())
    scaled = (done.duration_ns * np.array(lengths)[done.microbatch]).astype(np.int64)
    return Resimulation.of_order(done.order).run(replace(done, duration_ns=scaled).times())


def test_replicas_that_meet_wait_for_the_slowest() -> None:
    report = find_stragglers(chain([[10, 10], [10, 10], [10, 22]]))

    # The mean of computations is 12, so the ideal step takes 13; the longest of each step is 10 and 22.
    assert report.ideal_ns == 13
    assert report.by_step == (11 / 13, 23 / 13)
    assert report.by_type["compute"].by_step == report.by_step
    assert [item.slowdown for item in report.by_replica.values()] == [1.0, 1.0, (13 + 23) / 2 / 13]
    assert [straggler.worker for straggler in report.slowest] == [2]


def test_of_workers_that_are_as_slow_the_one_with_the_lowest_global_rank_is_the_slowest() -> None:
    alike = replace(chain([[22], [10], [22], [22]]), workers=np.array([[7], [2], [5], [6]]))

    (slowest,) = find_stragglers(alike).slowest

    assert (slowest.replica, slowest.worker) == ("2", 5)


def test_replicas_that_do_not_meet_are_as_slow_each() -> None:
    meets, alone = (find_stragglers(chain([[10], [40]], meets=each)) for each in (True, False))

    assert meets.replayed_ns == alone.replayed_ns + 0 == 41
    assert alone.by_type["reduce"].slowdown > meets.by_type["reduce"].slowdown == 1.0


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_a_job_that_was_simulated_takes_what_it_was_given(took: list[list[int]]) -> None:
    model = JobSimulation(chain(took))

    start, end = model.run(model.measured_ns())

    assert (start == model.job.start_ns).all()
    assert (end == model.job.end_ns).all()


@given(st.lists(st.lists(st.integers(1, 10**9), min_size=2, max_size=2), min_size=1, max_size=5))
def test_ideal_durations_keep_the_sum_of_computations_and_lose_all_differences(took: list[list[int]]) -> None:
    model = JobSimulation(chain(took))

    measured = model.measured_ns()
    ideal = ideal_durations(model.job, measured)

    assert ideal[0].sum() == pytest.approx(measured[0].sum())
    assert ideal[0].std() == pytest.approx(0, abs=1e-6 * ideal[0].max())


def test_operations_that_wait_in_a_circle_are_refused() -> None:
    operations = (
        JobOperation(type="a", rank=0, dependencies=(1,)),
        JobOperation(type="b", rank=0, dependencies=(0,)),
    )
    with pytest.raises(ScheduleError, match="in a circle"):
        JobSimulation(replace(chain([[1]]), operations=operations))


def test_a_job_without_a_straggler_loses_nothing() -> None:
    report = find_stragglers(job([one_step()], [one_step()]))

    assert report.slowdown == pytest.approx(1)
    assert report.cause == "none"
    assert report.heat == pytest.approx(np.ones((2, 3)))


def test_a_slow_worker_is_found_and_is_the_cause() -> None:
    slow = one_step(slow={1: 1.6})
    report = find_stragglers(job(*[[one_step()]] * 3, [slow], *[[one_step()]] * 4))

    assert report.cause == "workers"
    assert [(straggler.replica, straggler.rank, straggler.worker) for straggler in report.slowest] == [
        ("dp=3", 1, 31)
    ]
    assert report.slowest_workers.removed > 0.9
    assert report.last_stage.removed < 0.2
    assert np.unravel_index(int(report.heat.argmax()), report.heat.shape) == (3, 1)


def test_a_long_last_stage_is_found_and_is_the_cause() -> None:
    report = find_stragglers(job(*[[one_step(slow={2: 1.8})] * 2] * 4))

    assert report.cause == "last-stage"
    assert report.last_stage.removed > 0.9
    assert report.by_rank[2].slowdown > report.by_rank[0].slowdown


def test_lengths_of_sequences_are_found_and_distinguished_from_other_jitter() -> None:
    draw = np.random.default_rng(5)
    by_length = find_stragglers(job(*[[of_lengths(draw.uniform(0.5, 2, 4))] for _ in range(6)]))
    jitter = find_stragglers(job(*[[jittering(draw)] for _ in range(6)]))

    assert (by_length.cause, jitter.cause) == ("lengths", "mixed")
    assert by_length.correlation == pytest.approx(1, abs=1e-6)
    assert abs(jitter.correlation) < 0.6


def jittering(draw: np.random.Generator) -> Timeline:
    done = extract_computations(one_step())
    scaled: NDArray[np.int64] = (done.duration_ns * draw.uniform(0.5, 2, len(done))).astype(np.int64)
    return Resimulation.of_order(done.order).run(replace(done, duration_ns=scaled).times())


def test_what_replicas_of_a_simulation_take_is_what_was_simulated() -> None:
    timelines = [one_step(slow={0: 1.3}), one_step(slow={2: 2.0})]
    whole = job(*([item] for item in timelines))

    report = find_stragglers(whole)

    assert report.replayed_ns == max(extract_computations(item).span_ns for item in timelines)


def test_the_ideal_step_is_a_timeline_of_one_replica() -> None:
    timelines = [one_step(slow={1: 1.5}), one_step()]
    whole = job(*([item] for item in timelines))

    ideal = ideal_timeline(whole, timelines[0].placement)

    assert extract_computations(ideal).span_ns == pytest.approx(find_stragglers(whole).ideal_ns, abs=10)
    forwards = extract_computations(ideal).duration_ns[extract_computations(ideal).kind == 0]
    assert forwards == pytest.approx(10 * MS * (1 + 1.5 + 4) / 6, abs=1)


def test_steps_that_replicas_ran_otherwise_are_left_out() -> None:
    other = one_step([row[::-1] if at == 9 else row for at, row in enumerate(ROWS)])
    gpipe = one_step([[f"{stage}{kind}{m}" for kind in "FB" for m in range(4)] for stage in range(3)])

    assert job([one_step(), one_step()], [other, gpipe]).steps == ("step 0",)
    with pytest.raises(ScheduleError, match="no step in which all replicas ran the same actions"):
        job([one_step()], [gpipe])


def test_replicas_whose_clocks_differ_are_as_long_as_each() -> None:
    timelines = one_step(), one_step(slow={0: 1.2})
    late = [
        Replica(name=str(at), ranks=(0, 1, 2), steps=(step(item, begins_ns=at * 10**9),))
        for at, item in enumerate(timelines)
    ]

    report = find_stragglers(build_job(late))

    assert report.step_ns == max(int(item.end_ns.max()) for item in timelines)


@pytest.mark.needs_plugins
def test_reductions_of_gradients_set_the_clocks_of_replicas() -> None:
    sets = ["costs.name=table", "costs.forward=1 ms", "costs.backward=2 ms", "costs.reduction=3 ms"]
    timeline = pptrace.simulate(schedule="1f1b", pp=3, microbatches=4, dp=2, sets=sets).timeline

    result = build_job([
        Replica(name=f"dp={at}", ranks=(at,) * 3, steps=(step(timeline, begins_ns=at * 7 * MS),))
        for at in range(2)
    ])  # fmt: skip

    reductions = [index for index, item in enumerate(result.operations) if item.type == "reduce grad"]
    assert [result.operations[index].rank for index in reductions] == [0, 1, 2]
    assert result.across_replicas == set(reductions)
    assert (result.end_ns[:, 0] == result.end_ns[:, 1]).all()
    assert find_stragglers(result).step_ns == timeline.end_ns.max()
