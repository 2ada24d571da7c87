"""The window, the waits and the messages of steps that are not one plain chain of compute."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import asdict, replace

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
from pptrace.timeline.messages import messages
from pptrace.timeline.metrics import Metrics, measure
from pptrace.timeline.timeline import Slice, Timeline, window

NETWORK = Flat(rate_kbps=1_000_000)


def idle(metrics: Metrics, rank: int) -> dict[str, int]:
    return {c.name: int(metrics.idle_ns[rank, c]) for c in IdleCause if metrics.idle_ns[rank, c]}


def test_gathering_weights_before_the_first_forward_belongs_to_the_step() -> None:
    workload = Workload.uniform(1, f_ns=10, b_ns=20)
    workload = Workload(**asdict(workload) | {"unshard_ns": np.array([4])})

    metrics = measure(simulate(Schedule.from_rows([["0UNSHARD", "0F0", "0B0"]]), workload), workload)

    assert metrics.step_ns == 34
    assert idle(metrics, 0) == {"REDUCTION": 4}
    assert metrics.path.by_kind_ns == {"B": 20, "F": 10, "UNSHARD": 4}
    assert metrics.path.by_stage_ns == {0: 30}


def test_a_message_that_waits_for_its_peer_opens_no_window() -> None:
    recv = Slice(
        rank=0, stream=Stream.COMM, action=Action(kind=Kind.RECV_F, stage=0, microbatch=0), start_ns=5, end_ns=20
    )
    forward = Slice(
        rank=0,
        stream=Stream.COMPUTE,
        action=Action(kind=Kind.F, stage=0, microbatch=0),
        start_ns=20,
        end_ns=30,
        cause=1,
    )
    timeline = Timeline.from_slices([recv, forward], Placement.looped(ranks=1, microbatches=1))

    metrics = measure(timeline, Workload.uniform(1, f_ns=0, b_ns=0))

    assert window(timeline) == (20, 30)
    assert metrics.path.by_kind_ns == {"F": 10}


def test_a_rank_without_compute_only_fills() -> None:
    forward = Slice(
        rank=0, stream=Stream.COMPUTE, action=Action(kind=Kind.F, stage=0, microbatch=0), start_ns=0, end_ns=10
    )
    metrics = measure(
        Timeline.from_slices([forward], Placement.looped(ranks=2, microbatches=1)),
        Workload.uniform(2, f_ns=0, b_ns=0),
    )

    assert idle(metrics, 1) == {"FILL": 10}


def test_a_reload_waits_for_its_stream_then_for_its_bytes() -> None:
    rows = [["0F0", "0F1", "0OFFLOAD0", "0OFFLOAD1", "0RELOAD0", "0RELOAD1", "0B1", "0B0"]]
    workload = replace(Workload.uniform(1, f_ns=10, b_ns=20), offload_ns=np.array([5]), reload_ns=np.array([6]))

    metrics = measure(simulate(Schedule.from_rows(rows), workload), workload)

    # Copied out 20-25 and 25-30, back 25-31 and 31-37; B1 starts at 37, its own copy having begun at 31.
    assert idle(metrics, 0) == {"TRANSFER": 6, "HEAD_OF_LINE": 11}


@pytest.mark.parametrize("name", PolicyName)
def test_a_message_past_a_skipped_stage_finds_its_producer_and_consumer(name: PolicyName) -> None:
    placement = Placement(
        ranks=3,
        stage_rank=np.array([[0, 1, 2], [0, -1, 2]], dtype=np.int32),
        microbatch_route=np.array([0, 1], dtype=np.int32),
        edges=np.array([[0, 1], [0, 2], [1, 2]], dtype=np.int32),
    )
    rows = [["0F0", "0F1", "0B1", "0B0"], ["1F0", "1B0"], ["2F0", "2F1", "2B1", "2B0"]]
    workload = Workload.uniform(3, edges=3, f_ns=10, b_ns=20, boundary_bytes=5)

    timeline = simulate(Schedule.from_rows(rows, placement), workload, NETWORK, Policy(name=name))

    found = messages(timeline)
    ends = [
        tuple(str(timeline[int(row)].action) for row in (producer, consumer))
        for send, producer, consumer in zip(found.send, found.producer, found.consumer, strict=True)
        if timeline[int(send)].action.microbatch == 1
    ]
    assert sorted(ends) == [("0F1", "2F1"), ("2B1", "0B1")]
    metrics = measure(timeline, workload)
    assert (metrics.busy_ns + metrics.idle_ns.sum(axis=1) == metrics.step_ns).all()


def test_a_blocking_receive_of_several_microbatches_waits_for_the_last_ones_producer() -> None:
    rows = [
        ["0F0", "0F1", "0SEND_F0+2", "0RECV_B0+2", "0B0", "0B1"],
        ["1RECV_F0+2", "1F0", "1F1", "1B0", "1B1", "1SEND_B0+2"],
    ]
    workload = Workload.uniform(2, f_ns=10, b_ns=20, boundary_bytes=1)

    metrics = measure(
        simulate(Schedule.from_rows(rows), workload, NETWORK, Policy(name=PolicyName.BLOCKING)), workload
    )

    # Rank 0: F to 20, SEND to 22, RECV 82-84, B to 124. Rank 1 has computed both gradients at 82.
    assert idle(metrics, 0) == {"TRANSFER": 4, "PEER_COMPUTE": 60}
    assert idle(metrics, 1) == {"FILL": 22, "DRAIN": 42}
