"""What no simulated step may break, whatever the table, the costs, the network and the policy."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from simulated_steps import SimulatedStep, simulated_steps

from pptrace.config.choices import PolicyName
from pptrace.steps.kinds import COMMUNICATION, Kind
from pptrace.timeline.counters import memory_counters
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.timeline.timeline import Slice, Timeline


ENDS = {Kind.REDUCE_GRAD, Kind.OPTIMIZER}


class Cell(NamedTuple):
    """One microbatch of an action, or an action of a stage."""

    rank: int
    kind: Kind
    stage: int
    microbatch: int


class Hop(NamedTuple):
    """A microbatch's way from one rank to the next."""

    send: Cell
    recv: Cell
    producer: Cell
    consumer: Cell


def slices(timeline: Timeline) -> list[Slice]:
    return [timeline[row] for row in range(len(timeline))]


def cells(one: Slice, kind: Kind | None = None) -> list[Cell]:
    action = one.action
    microbatches = range(action.microbatch, action.microbatch + action.span) if action.microbatch >= 0 else [-1]
    return [Cell(one.rank, kind or action.kind, action.stage, microbatch) for microbatch in microbatches]


def by_cell(timeline: Timeline) -> dict[Cell, Slice]:
    """Index slices; a full backward is found as its two halves as well."""
    result = {cell: entry for entry in slices(timeline) for cell in cells(entry)}
    for item in slices(timeline):
        if item.action.kind is Kind.B:
            result |= {cell: item for kind in (Kind.I, Kind.W) for cell in cells(item, kind)}
    return result


def hops(step: SimulatedStep) -> Iterator[Hop]:
    placement = step.schedule.placement
    for low, high in placement.edges.tolist():
        for microbatch in range(placement.microbatches):
            down, up = placement.rank_of(low, microbatch), placement.rank_of(high, microbatch)
            if down == up:
                continue
            yield Hop(
                Cell(down, Kind.SEND_F, low, microbatch), Cell(up, Kind.RECV_F, high, microbatch),
                Cell(down, Kind.F, low, microbatch), Cell(up, Kind.F, high, microbatch),
            )  # fmt: skip
            yield Hop(
                Cell(up, Kind.SEND_B, high, microbatch), Cell(down, Kind.RECV_B, low, microbatch),
                Cell(up, Kind.I, high, microbatch), Cell(down, Kind.I, low, microbatch),
            )  # fmt: skip


@given(simulated_steps(min_ns=0))
def test_every_action_of_the_table_runs_once_and_nothing_else_does(step: SimulatedStep) -> None:
    table = Counter(
        (rank, str(member))
        for rank in range(step.schedule.ranks)
        for action in step.schedule[rank]
        for member in (action.sub_actions or (action,))
        if member.kind not in COMMUNICATION
    )
    ran = Counter(
        (item.rank, str(item.action)) for item in slices(step.timeline) if item.action.kind not in COMMUNICATION
    )

    assert not table - ran
    takes = {Kind.REDUCE_GRAD: step.workload.reduce_ns, Kind.OPTIMIZER: step.workload.optimizer_ns}
    added = {
        (rank, f"{stage}{kind.name}")
        for rank in range(step.schedule.ranks)
        for stage in step.schedule.placement.stages_of(rank)
        for kind in ENDS
        if takes[kind][stage] and (rank, f"{stage}{kind.name}") not in table
    }
    assert ran - table == Counter(added)


@given(simulated_steps(min_ns=0))
def test_every_hop_is_one_message_and_what_is_sent_is_received(step: SimulatedStep) -> None:
    sizes = {
        edge: int(size) for edge, size in zip(map(tuple, step.schedule.placement.edges.tolist()),
                                              step.workload.boundary_bytes, strict=True)
    }  # fmt: skip
    sent, received, wanted = dict[Cell, int](), dict[Cell, int](), dict[Cell, int]()
    for item in slices(step.timeline):
        if item.action.kind in COMMUNICATION:
            side = sent if item.action.kind in {Kind.SEND_F, Kind.SEND_B} else received
            for cell in cells(item):
                assert cell not in side
                side[cell] = item.size_bytes // item.action.span
    for hop in hops(step):
        low, high = sorted((hop.send.stage, hop.recv.stage))
        wanted[hop.send] = wanted[hop.recv] = sizes[low, high]

    both = step.policy.has_receives
    assert sent | received == {cell: size for cell, size in wanted.items() if both or cell in sent}
    assert len(sent) == len(wanted) // 2
    assert sum(received.values()) == (sum(sent.values()) if both else 0)


@given(simulated_steps(min_ns=0))
def test_slices_of_a_lane_never_overlap_and_lanes_stand_in_order(step: SimulatedStep) -> None:
    timeline = step.timeline
    lanes = list(
        zip(*(getattr(timeline, f"lane_{name}").tolist() for name in ("rank", "stream", "peer")), strict=True)
    )
    assert lanes == sorted(set(lanes))
    for low, high in pairwise(timeline.lane_ptr.tolist()):
        assert (timeline.start_ns[low + 1 : high] >= timeline.end_ns[low : high - 1]).all()
    assert (timeline.end_ns - timeline.start_ns == timeline.uncontended_ns).all()
    assert ((timeline.enter_ns <= timeline.start_ns) & (timeline.enter_ns >= 0)).all()


@given(simulated_steps(min_ns=0))
def test_nothing_runs_before_what_it_needs(step: SimulatedStep) -> None:
    ran, placement = by_cell(step.timeline), step.schedule.placement
    for hop in hops(step):
        send = ran[hop.send]
        there = send.end_ns + send.lag_ns
        assert send.start_ns >= ran[hop.producer].end_ns
        assert ran[hop.consumer].start_ns >= there
        if hop.recv in ran:
            assert ran[hop.recv].start_ns >= send.start_ns
            assert ran[hop.consumer].start_ns >= ran[hop.recv].end_ns + ran[hop.recv].lag_ns
    for stage in range(placement.stages):
        for microbatch in range(placement.microbatches):
            rank = placement.rank_of(stage, microbatch)
            order = [
                (Kind.F, Kind.I),
                (Kind.OFFLOAD, Kind.RELOAD),
                (Kind.RELOAD, Kind.I),
                (Kind.RECOMPUTE, Kind.I),
            ]
            for before, after in (*order, (Kind.F, Kind.OFFLOAD)):
                first, second = (ran.get(Cell(rank, kind, stage, microbatch)) for kind in (before, after))
                assert first is None or second is None or second.start_ns >= first.end_ns
            assert (
                ran[Cell(rank, Kind.W, stage, microbatch)].end_ns
                >= ran[Cell(rank, Kind.I, stage, microbatch)].end_ns
            )
            if stage and placement.rank_of(stage - 1, microbatch) == rank:
                assert (
                    ran[Cell(rank, Kind.F, stage, microbatch)].start_ns
                    >= ran[Cell(rank, Kind.F, stage - 1, microbatch)].end_ns
                )
                assert (
                    ran[Cell(rank, Kind.I, stage - 1, microbatch)].start_ns
                    >= ran[Cell(rank, Kind.I, stage, microbatch)].end_ns
                )


@given(simulated_steps(min_ns=0))
def test_a_stage_is_reduced_behind_its_backwards_and_updated_behind_its_reduction(step: SimulatedStep) -> None:
    ran = by_cell(step.timeline)
    pipeline = [cell for cell in ran if cell.kind in {Kind.F, Kind.I, Kind.W}]
    for cell, one in ran.items():
        if cell.kind not in ENDS:
            continue
        weights = [ran[w] for w in pipeline if w.kind is Kind.W and (w.rank, w.stage) == (cell.rank, cell.stage)]
        assert one.start_ns >= max((w.end_ns for w in weights), default=0)
        reduced = ran.get(cell._replace(kind=Kind.REDUCE_GRAD))
        if cell.kind is Kind.OPTIMIZER and reduced is not None:
            assert one.start_ns >= reduced.end_ns
        if cell.kind is Kind.REDUCE_GRAD and not step.overlap:
            assert one.start_ns >= max(ran[other].end_ns for other in pipeline)


@given(simulated_steps(min_ns=0))
def test_every_slice_starts_the_moment_its_cause_lets_it(step: SimulatedStep) -> None:
    timeline = step.timeline
    started = timeline.cause < 0
    assert (timeline.start_ns[started] == 0).all()
    cause = timeline.cause[~started]
    start, end, lag = timeline.start_ns[cause], timeline.end_ns[cause], timeline.lag_ns[cause]
    now = timeline.start_ns[~started]
    assert ((now == start) | (now == end) | (now == end + lag)).all()


@given(simulated_steps(min_ns=0))
def test_busy_and_idle_time_fill_the_window_of_every_rank(step: SimulatedStep) -> None:
    metrics = measure(step.timeline, step.workload)

    assert (metrics.idle_ns >= 0).all()
    assert (metrics.busy_ns + metrics.idle_ns.sum(axis=1) == metrics.step_ns).all()
    assert metrics.start_ns == 0
    assert sum(metrics.path.by_kind_ns.values()) == metrics.step_ns
    assert min(metrics.path.by_kind_ns.values(), default=0) >= 0


@given(simulated_steps(min_ns=0))
def test_memory_never_falls_below_its_static_level_and_ends_there(step: SimulatedStep) -> None:
    static = measure(step.timeline, step.workload).memory.static_bytes
    for counter in memory_counters(step.timeline, step.workload):
        assert int(counter.value.min()) == int(counter.value[-1]) == int(static[counter.rank])


@given(simulated_steps(min_ns=0))
def test_the_same_step_comes_out_twice(step: SimulatedStep) -> None:
    assert step.again().difference(step.timeline) == ""


@given(simulated_steps(min_ns=0), st.data())
def test_longer_tasks_and_slower_networks_start_nothing_earlier(step: SimulatedStep, data: st.DataObject) -> None:
    # Nothing is shared and the order is fixed, so every start is a maximum of sums of durations.
    more = data.draw(st.integers(1, 30))
    name = data.draw(st.sampled_from(["f_ns", "b_ns", "i_ns", "w_ns", "reduce_ns", "optimizer_ns", "reload_ns"]))
    costs = getattr(step.workload, name)
    longer = costs + more * (costs > 0)
    network = step.network
    slower = data.draw(
        st.sampled_from(
            [
                network,
                replace(network, rate_kbps=-(-network.rate_kbps // 2)),
                replace(network, latency_ns=network.latency_ns + more),
                replace(network, overhead_ns=network.overhead_ns + more),
            ]
        )
    )

    timeline = step.again(workload=replace(step.workload, **{name: longer}), network=slower)

    before, after = by_cell(step.timeline), by_cell(timeline)
    assert before.keys() == after.keys()
    assert all(after[cell].start_ns >= one.start_ns for cell, one in before.items())
    assert int(timeline.end_ns.max()) >= int(step.timeline.end_ns.max())


@given(simulated_steps(min_ns=0))
def test_policies_that_occupy_nothing_else_never_lengthen_a_step(step: SimulatedStep) -> None:
    if step.schedule.has_communication:
        return
    freest = step.again(policy=replace(step.policy, name=PolicyName.ASYNC))

    assert int(freest.end_ns.max()) <= int(step.timeline.end_ns.max())
