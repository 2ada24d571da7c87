"""Hand-computed idle time: each case states its timeline and every nanosecond's cause."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pptrace.config.choices import PolicyName
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.message_calls import Policy
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import Metrics, measure
from pptrace.timeline.timeline import Slice, Timeline

ONE_MICROBATCH = [["0F0", "0B0"], ["1F0", "1B0"]]


def idle(metrics: Metrics, rank: int) -> dict[str, int]:
    return {c.name: int(metrics.idle_ns[rank, c]) for c in IdleCause if metrics.idle_ns[rank, c]}


def compute(rank: int, kind: Kind, microbatch: int, start: int, end: int, stage: int | None = None) -> Slice:
    action = Action(kind=kind, stage=rank if stage is None else stage, microbatch=microbatch)
    return Slice(rank=rank, stream=Stream.COMPUTE, action=action, start_ns=start, end_ns=end)


def message(kind: Kind, stage: int, start: int, end: int, *, uncontended: int = -1) -> Slice:
    action = Action(kind=kind, stage=stage, microbatch=0)
    peer = 0 if stage else 1
    return Slice(
        rank=stage, stream=Stream.SEND, peer=peer, action=action, start_ns=start, end_ns=end,
        uncontended_ns=uncontended,
    )  # fmt: skip


def backward_gap(*messages: Slice) -> Timeline:
    """Rank 0 idles from 20 to 60 for a gradient that rank 1 computed from 22 to 42."""
    slices = [
        compute(0, Kind.F, 0, 0, 10), compute(0, Kind.F, 1, 10, 20), compute(0, Kind.B, 0, 60, 80),
        compute(1, Kind.F, 0, 12, 22), compute(1, Kind.B, 0, 22, 42), *messages,
    ]  # fmt: skip
    return Timeline.from_slices(slices, Placement.looped(ranks=2, microbatches=2))


NOTHING = Workload.uniform(2, f_ns=0, b_ns=0)


def test_waiting_for_a_neighbour_on_an_ideal_network_is_fill_drain_and_peer_compute() -> None:
    workload = Workload.uniform(2, f_ns=10, b_ns=20)

    metrics = measure(simulate(Schedule.from_rows(ONE_MICROBATCH), workload), workload)

    assert metrics.step_ns == 60
    assert idle(metrics, 0) == {"PEER_COMPUTE": 30}
    assert idle(metrics, 1) == {"FILL": 10, "DRAIN": 20}
    assert metrics.bubble == Fraction(60, 120)


def test_a_message_under_way_is_transfer_with_its_wire_latency() -> None:
    workload = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=3)
    network = Flat(rate_kbps=1_000_000, latency_ns=2)

    metrics = measure(simulate(Schedule.from_rows(ONE_MICROBATCH), workload, network), workload)

    assert metrics.step_ns == 70
    assert idle(metrics, 0) == {"TRANSFER": 5, "PEER_COMPUTE": 35}
    assert idle(metrics, 1) == {"FILL": 15, "DRAIN": 25}
    assert metrics.exposed_ns.tolist() == [5, 0]


def test_a_ready_message_whose_stream_is_held_is_head_of_line() -> None:
    timeline = backward_gap(message(Kind.SEND_B, 1, 50, 60))

    assert idle(measure(timeline, NOTHING), 0) == {"TRANSFER": 10, "HEAD_OF_LINE": 8, "PEER_COMPUTE": 22}


def test_what_a_message_takes_beyond_its_uncontended_time_is_contention() -> None:
    timeline = backward_gap(message(Kind.SEND_B, 1, 45, 60, uncontended=10))

    assert idle(measure(timeline, NOTHING), 0) == {
        "TRANSFER": 10, "CONTENTION": 5, "HEAD_OF_LINE": 3, "PEER_COMPUTE": 22,
    }  # fmt: skip


def test_a_message_that_arrived_while_the_rank_computed_causes_nothing() -> None:
    slices = [
        compute(0, Kind.F, 0, 0, 10), compute(0, Kind.F, 1, 10, 70), compute(0, Kind.B, 0, 70, 90),
        compute(1, Kind.F, 0, 12, 22), compute(1, Kind.B, 0, 22, 42), message(Kind.SEND_B, 1, 42, 60),
    ]  # fmt: skip

    metrics = measure(Timeline.from_slices(slices, Placement.looped(ranks=2, microbatches=2)), NOTHING)

    assert idle(metrics, 0) == {}


def test_a_blocking_send_on_the_compute_stream_is_transfer_and_never_busy() -> None:
    workload = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=5)
    policy = Policy(name=PolicyName.SENDER_BLOCKING)

    metrics = measure(
        simulate(Schedule.from_rows(ONE_MICROBATCH), workload, Flat(rate_kbps=1_000_000), policy), workload
    )

    assert metrics.busy_ns.tolist() == [30, 30]
    assert idle(metrics, 0) == {"TRANSFER": 10, "PEER_COMPUTE": 30}
    assert idle(metrics, 1) == {"FILL": 15, "DRAIN": 25}


def test_a_late_peer_of_a_blocking_receive_is_its_compute() -> None:
    workload = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=5)
    policy = Policy(name=PolicyName.BLOCKING)

    metrics = measure(
        simulate(Schedule.from_rows(ONE_MICROBATCH), workload, Flat(rate_kbps=1_000_000), policy), workload
    )

    # Rank 0: F 0-10, SEND 10-15, waits, RECV 45-50, B 50-70. Rank 1: RECV 10-15, F, B to 45, SEND to 50.
    assert metrics.step_ns == 70
    assert idle(metrics, 0) == {"TRANSFER": 10, "PEER_COMPUTE": 30}
    assert idle(metrics, 1) == {"FILL": 15, "DRAIN": 25}


@pytest.mark.parametrize(
    ("overlap", "rank_one"),
    [(True, {"FILL": 10, "REDUCTION": 7}), (False, {"FILL": 10, "DRAIN": 20, "REDUCTION": 7})],
)
def test_reductions_count_where_they_hold_the_optimizer_back(overlap: object, rank_one: dict[str, int]) -> None:
    workload = Workload.uniform(2, f_ns=10, b_ns=20, reduce_ns=7, optimizer_ns=3)

    metrics = measure(
        simulate(Schedule.from_rows(ONE_MICROBATCH), workload, overlap_reduction=bool(overlap)), workload
    )

    # Both ways the step ends with rank 0's reduction and update: 60 + 7 + 3.
    assert metrics.step_ns == 70
    assert metrics.reduction_ns.tolist() == [7, 7]
    assert idle(metrics, 0) == {"PEER_COMPUTE": 30, "REDUCTION": 7}
    trailing = {"DRAIN": 20} if overlap else {}
    assert idle(metrics, 1) == {**rank_one, **trailing}
    assert metrics.bubble == Fraction(70 - 33, 70)


def test_three_ranks_on_a_chain_wait_for_the_far_end() -> None:
    rows = [[f"{s}F0", f"{s}B0"] for s in range(3)]
    workload = Workload.uniform(3, f_ns=10, b_ns=20, boundary_bytes=4)

    metrics = measure(simulate(Schedule.from_rows(rows), workload, Flat(rate_kbps=1_000_000)), workload)

    # F at 0, 14, 28; B at 38, 62, 86; every hop takes 4.
    assert metrics.step_ns == 106
    assert idle(metrics, 0) == {"TRANSFER": 4, "PEER_COMPUTE": 72}
    assert idle(metrics, 1) == {"FILL": 14, "TRANSFER": 4, "PEER_COMPUTE": 34, "DRAIN": 24}
    assert idle(metrics, 2) == {"FILL": 28, "DRAIN": 48}


def test_halving_the_bandwidth_moves_only_transfer_fill_and_drain() -> None:
    workload = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=8)
    fast, slow = (
        measure(simulate(Schedule.from_rows(ONE_MICROBATCH), workload, Flat(rate_kbps=rate)), workload)
        for rate in (2_000_000, 1_000_000)
    )

    assert slow.step_ns - fast.step_ns == 8
    assert idle(fast, 0) == {"TRANSFER": 4, "PEER_COMPUTE": 34}
    assert idle(slow, 0) == {"TRANSFER": 8, "PEER_COMPUTE": 38}
    for metrics in (fast, slow):
        assert (metrics.busy_ns + metrics.idle_ns.sum(axis=1) == metrics.step_ns).all()


def test_an_empty_timeline_measures_as_nothing() -> None:
    metrics = measure(Timeline.from_slices([], Placement.looped(ranks=2, microbatches=1)), NOTHING)

    assert metrics.step_ns == 0
    assert metrics.bubble == 0
    assert metrics.path.rows.size == 0
