"""A simulated step, recorded as its GPUs would record it, reads back: times, causes of waiting, no difference."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from compared_steps import side_of_step
from gpu_run import NAMES, SAID, GpuRun
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import valid_schedules

import pptrace
from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.errors import DeadlockError
from pptrace.measured.diff import diff
from pptrace.measured.replay import replay
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import COMMUNICATION
from pptrace.steps.message_calls import Policy, with_messages
from pptrace.steps.workload import Workload
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.measurement import ImportRequest, Measurement
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

    from pptrace.network.contract import Paths
    from pptrace.steps.columns import Int32s
    from pptrace.steps.message_calls import IssueOrder
    from pptrace.steps.schedule import Schedule
    from pptrace.timeline.timeline import Timeline

ORDERED = [Policy(name=PolicyName.ORDERED, stream=stream) for stream in StreamPer]
BATCHED = Policy(name=PolicyName.BATCHED, receive=Receive.ASAP)
POLICIES = [*ORDERED, BATCHED]
NETWORK = Flat(rate_kbps=2_000_000, overhead_ns=3_000)
US = 1_000


def read_back(run: GpuRun) -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        return measure_kineto(run.write(Path(folder)), ImportRequest())


def truth(run: GpuRun) -> list[tuple[Any, ...]]:
    """Return who computed what from when to when, by the ranks' own clocks."""
    return computed(run.timeline, [run.zero_ns(rank) for rank in range(run.timeline.ranks)])


def found(measured: Measurement) -> list[tuple[Any, ...]]:
    """Return the same of a measurement of one step."""
    (step,) = measured.steps
    return computed(step.timeline, [step.begins_ns - clock.offset_ns for clock in measured.clocks])


def computed(timeline: Timeline, zero_ns: Sequence[int]) -> list[tuple[Any, ...]]:
    rows = [timeline[row] for row in range(len(timeline))]
    times = [(item, zero_ns[item.rank]) for item in rows if item.action.kind not in COMMUNICATION]
    return sorted((one.rank, str(one.action), one.start_ns + zero, one.end_ns + zero) for one, zero in times)


def moved(timeline: Timeline) -> dict[tuple[int, str], tuple[int, int]]:
    """Return from when until when each end of a message moved, counted from the first action on."""
    rows = [timeline[row] for row in range(len(timeline))]
    zero = min(item.start_ns for item in rows if item.action.kind not in COMMUNICATION)
    messages = [item for item in rows if item.action.kind in COMMUNICATION]
    ends = {
        (message.rank, str(message.action)): (message.start_ns - zero, message.end_ns - zero)
        for message in messages
    }
    return dict(sorted(ends.items()))


def sizes(timeline: Timeline) -> dict[tuple[int, str], int]:
    rows = [timeline[row] for row in range(len(timeline))]
    return {(item.rank, str(item.action)): item.size_bytes for item in rows if item.action.kind in COMMUNICATION}


@st.composite
def schedules(draw: DrawFn) -> Schedule:
    """Draw a schedule of two ranks or more, split backwards and V shapes among them."""
    drawn = valid_schedules(max_microbatches=4, max_chunks=2, spans=False, pairs=False)
    return draw(drawn.filter(lambda one: one.ranks > 1))


@st.composite
def workloads(draw: DrawFn, stages: int, edges: int) -> Workload:
    """Draw costs of stages that differ; the smallest are longer than a launch."""
    times = st.integers(100, 900).map(lambda number: number * US + 7)
    per_stage = {
        name: np.array(draw(st.lists(times, min_size=stages, max_size=stages)), dtype=np.int64)
        for name in ("f_ns", "b_ns", "i_ns", "w_ns")
    }
    sent = draw(st.sampled_from([2_000, 200_000, 1_000_000]))
    return Workload.uniform(stages, edges=edges, boundary_bytes=sent, **per_stage)


def ran(schedule: Schedule, costs: Workload, policy: Policy) -> tuple[Timeline, IssueOrder | None]:
    """Simulate under a policy, or one under which nothing can deadlock; return what goes in batches too."""
    try:
        timeline = simulate(schedule, costs, NETWORK, policy)
    except DeadlockError:
        policy = ORDERED[-1]
        timeline = simulate(schedule, costs, NETWORK, policy)
    return timeline, with_messages(schedule) if policy == BATCHED else None


@given(data=st.data())
def test_who_waited_for_what_reads_back_from_kernels(data: st.DataObject) -> None:
    schedule = data.draw(schedules())
    costs = data.draw(workloads(schedule.placement.stages, len(schedule.placement.edges)))
    timeline, batches = ran(schedule, costs, data.draw(st.sampled_from(POLICIES)))
    run = GpuRun(
        timeline=timeline, batches=batches, said=data.draw(st.sampled_from(SAID[: 2 if batches else 3])),
        kernel=data.draw(st.sampled_from(NAMES)), ahead=data.draw(st.booleans()),
        shift_ns=tuple(data.draw(st.sampled_from([0, 0, 50_000_000, -7_001])) for _ in range(timeline.ranks)),
    )  # fmt: skip

    measured = read_back(run)

    (step,) = measured.steps
    assert measured.unattributed == ()
    assert not step.gap_ns.any()
    assert run.said == "action" or sizes(step.timeline) == sizes(timeline)
    assert found(measured) == truth(run)
    off = [clock.offset_ns - (run.zero_ns(0) - run.zero_ns(clock.rank)) for clock in measured.clocks]
    assert all(abs(by) <= clock.bound_ns for by, clock in zip(off, measured.clocks, strict=True) if clock.pairs)
    if any(off):
        return  # what two ranks' times have to do with each other is known to the bound only
    waits, read = (side_of_step(item).analysis.metrics.idle_ns for item in (timeline, step.timeline))
    if batches is None:
        assert moved(step.timeline) == moved(timeline)
        assert np.array_equal(read, waits)
        return
    assert moved(step.timeline).keys() == moved(timeline).keys()
    assert run.crowded() or all(
        (item[0], True) == (other[0], item[1] >= other[1])
        for item, other in zip(moved(step.timeline).values(), moved(timeline).values(), strict=True)
    )
    in_batch = [IdleCause.TRANSFER, IdleCause.HEAD_OF_LINE]
    others = [cause for cause in IdleCause if cause not in in_batch]
    assert np.array_equal(read[:, others], waits[:, others])
    assert np.array_equal(read[:, in_batch].sum(axis=1), waits[:, in_batch].sum(axis=1))
    assert (read[:, IdleCause.HEAD_OF_LINE] <= waits[:, IdleCause.HEAD_OF_LINE]).all()


@pytest.mark.needs_plugins
@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: f"{one.name.value} {one.stream.value}")
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "hanayo", "zbv"])
def test_a_simulated_step_does_not_differ_from_its_kernels(name: str, policy: Policy) -> None:
    schedule = scheduled(name)
    stages = np.arange(schedule.placement.stages)
    costs = Workload.uniform(
        stages.size, edges=len(schedule.placement.edges), f_ns=(900 + 30 * stages) * US,
        i_ns=(1000 - 20 * stages) * US, w_ns=800 * US, boundary_bytes=400_000,
    )  # fmt: skip
    timeline, batches = ran(schedule, costs, policy)

    measured = read_back(GpuRun(timeline=timeline, batches=batches, said="posts"))

    assert [clock.offset_ns for clock in measured.clocks] == [0] * timeline.ranks
    step = measured.steps[0].timeline
    result = diff(side_of_step(timeline), side_of_step(step, measured=True))

    assert (result.change, result.changes, result.orders, result.causes) == (0, (), (), ())
    assert result.divergence is None
    ladder = {rung.name: rung.change_ns.value for rung in result.ladder}
    # A kernel of several messages ends with the last of them, so what held the others seems to be their transfer.
    ladder["message delays"] += ladder.pop("transfers") if batches else 0
    assert set(ladder.values()) == {0}
    assert batches or all(way.median_ns.first == way.median_ns.second for way in result.links.values())
    again = replay(step)
    assert again.replayed_ns == again.step.span_ns


class OneSlowWay(Flat, frozen=True):
    """A network with a quarter of its rate from rank 1 to rank 2."""

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        paths = super().paths(src, dst)
        slow = (src == 1) & (dst == 2)
        return replace(paths, rate_kbps=np.where(slow, paths.rate_kbps // 4, paths.rate_kbps))


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_a_slow_way_is_that_link_and_waits_for_peers_are_none(name: str) -> None:
    schedule = pptrace.simulate(schedule=name, pp=4, microbatches=8).prepared.schedule
    costs = Workload.uniform(4, f_ns=10_000 * US, b_ns=20_000 * US, boundary_bytes=20_000_000)
    rates = {"rate_kbps": 20_000_000, "overhead_ns": 5_000}
    plan = simulate(schedule, costs, Flat(**rates), Policy(name=PolicyName.ASYNC))
    blamed = {}
    for network in (Flat(**rates), OneSlowWay(**rates)):
        timeline = simulate(schedule, costs, network, ORDERED[-1])
        shift = (0, 50_000_000, -3_000_000, 7)
        step = read_back(GpuRun(timeline=timeline, said="posts", shift_ns=shift)).steps[0].timeline
        difference = diff(side_of_step(plan), side_of_step(step, measured=True))
        blamed[type(network)] = [(cause.kind, cause.what) for cause in difference.causes]
        ladder = {rung.name: rung.change_ns.value for rung in difference.ladder}
        assert ladder["message delays"] > 0
        assert (ladder["transfers"] > 0) == (type(network) is OneSlowWay)

    assert blamed == {Flat: [], OneSlowWay: [("slow link", "rank 1 to rank 2")]}


def scheduled(name: str) -> Schedule:
    if name == "zbv":
        table = Path(__file__).parent / "fixtures" / "sleep-zbv" / "compute_only.csv"
        return pptrace.simulate(schedule=str(table)).prepared.schedule
    chunks = {"vp": 2} if name in {"interleaved-1f1b", "looped-bfs"} else {}
    ranks = 2 if name == "hanayo" else 3
    return pptrace.simulate(schedule=name, pp=ranks, microbatches=6, **chunks).prepared.schedule
