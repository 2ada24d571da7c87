"""Actions in segments: pairs run as the definitions say, alone they are as one block, and nothing else changes."""

from __future__ import annotations

from functools import partial
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from msgspec.structs import replace
from oracle_segments import Part, SegmentOracle
from segment_costs import BLOCK_A, costs, mixed, random_kinds, spans
from small_networks import Wires

from pptrace.config.choices import PolicyName, Receive, Sharing, StreamPer
from pptrace.errors import ScheduleError
from pptrace.network.contract import Flat
from pptrace.sim import simulation as module
from pptrace.sim.engines import Contention, shared_links
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.message_calls import Policy
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload
from pptrace.timeline.actions import actions_in_parts, folded
from pptrace.timeline.metrics import measure

PAIRS = [
    ["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"],
    ["1F0", "(1F1;1B0)OVERLAP_F_B", "(1F2;1B1)OVERLAP_F_B", "1B2"],
]


@pytest.mark.parametrize(("count", "all_reduce", "computed", "leaves", "apart"), [
    (1, 2, 24, 24, 32), (2, 2, 48, 48, 64), (1, 4, 24, 26, 40), (2, 4, 48, 50, 80),
])  # fmt: skip
def test_a_pair_of_layers_takes_what_it_takes_by_hand(
    count: int, all_reduce: int, computed: int, leaves: int, apart: int
) -> None:
    workload = costs(2, count, all_reduce)
    table = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]])
    timeline = simulate(replace(table, interleave=BLOCK_A), workload)
    pair = [item for item in map(timeline.__getitem__, range(len(timeline))) if item.pair >= 0]
    begin = min(member.start_ns for member in pair)
    send = next(item for item in spans(timeline).items() if item[0].kind is Kind.SEND_B)

    assert max(member.end_ns for member in pair if member.stream is Stream.COMPUTE) - begin == computed
    assert send[1][0] - begin == leaves
    assert int(workload.f_ns[0] + workload.b_ns[0]) == apart
    if all_reduce == 2:
        members = actions_in_parts(timeline)
        assert members.exposed_ns[members.pair >= 0].tolist() == [0, 0]


def test_the_collective_part_of_a_computation_is_exposed_in_a_pair() -> None:
    forward = (Segment(name="attention", duration_ns=5, collective_ns=2), Segment(name="mlp", duration_ns=4))
    backward = (Segment(name="mlp-input", duration_ns=4), Segment(name="attention-input", duration_ns=6))
    workload = Workload.uniform(2, boundary_bytes=0).segmented({Kind.F: [forward] * 2, Kind.B: [backward] * 2})

    timeline = simulate(Schedule.from_rows(PAIRS), workload)

    assert workload.f_collective_ns.tolist() == [2, 2]
    assert measure(timeline, workload).collective_ns.tolist() == [3 * 2, 3 * 2]


@pytest.mark.parametrize("seed", range(120))
def test_random_pairs_run_as_a_slow_second_implementation_says(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - nothing secret
    kinds, turns = random_kinds(random), random.choice([(0, 1), (0, 1, 1), (1, 0), (0, 0, 1, 1, 1), (1,)])
    network = Flat(overhead_ns=random.randint(0, 3), latency_ns=random.randint(0, 5))
    workload = Workload.uniform(2, boundary_bytes=0).segmented(kinds)
    table = replace(Schedule.from_rows(PAIRS), interleave={(Kind.F, Kind.B): turns})

    timeline = simulate(table, workload, network)
    oracle = SegmentOracle([table[0], table[1]], kinds, turns, network.overhead_ns, network.latency_ns)

    assert spans(timeline) == oracle.run()


@pytest.mark.parametrize("seed", range(40))
def test_segments_and_plain_durations_are_the_same_step_where_nothing_overlaps(seed: int) -> None:
    kinds = random_kinds(Random(seed))  # noqa: S311 - nothing secret
    workload = Workload.uniform(2, boundary_bytes=3, activation_bytes=7).segmented(kinds)
    rows = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "1F1", "1B0", "1F2", "1B1", "1B2"]]
    apart = [*rows, ["2F0", "(2F1;2B0)OVERLAP_F_B", "2F2", "2B1", "2B2"]]
    network = Flat(overhead_ns=2, latency_ns=3, rate_kbps=10**6)

    whole, same = (
        simulate(Schedule.from_rows(rows), item, network) for item in (workload, replace(workload, segments={}))
    )
    assert whole.difference(same) == ""
    # A pair elsewhere takes all actions apart; the ranks without one still are as they were.
    three = Workload.uniform(3, boundary_bytes=3, activation_bytes=7)
    parts = three.segmented({kind: [*kinds[kind], (Segment(name="loss", duration_ns=1),)] for kind in kinds})
    taken = measure(simulate(Schedule.from_rows(apart), parts, network), parts)
    block = measure(simulate(Schedule.from_rows(apart), replace(parts, segments={}), network), parts)
    for name in ("busy_ns", "idle_ns", "collective_ns"):
        assert getattr(taken, name).tolist() == getattr(block, name).tolist(), name
    assert taken.memory.peak_bytes.tolist() == block.memory.peak_bytes.tolist()
    assert taken.memory.peak_activations.tolist() == block.memory.peak_activations.tolist()


@pytest.mark.parametrize("seed", range(40))
def test_both_kernels_run_segments_alike(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - nothing secret
    workload = Workload.uniform(2, boundary_bytes=random.randint(1, 9)).segmented(random_kinds(random))
    table, figures = Schedule.from_rows(PAIRS), {"rate_kbps": 10**6, "latency_ns": 3, "overhead_ns": 1}

    swept = simulate(table, workload, Flat(**figures))
    with patch.object(module, "shared_links", partial(shared_links, prune=False)):
        clocked = simulate(table, workload, Wires(endpoints=2, **figures))

    assert swept.difference(clocked) == ""


TAIL = Segment(name="all-reduce", stream=Stream.TENSOR_PARALLEL)

POLICIES = [
    *(Policy(name=name, receive=receive) for name in PolicyName for receive in Receive),
    Policy(name=PolicyName.ORDERED, stream=StreamPer.DIRECTION),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_laws_hold_under_every_policy(policy: Policy) -> None:
    for seed in range(12):
        random = Random(seed)  # noqa: S311 - nothing secret
        workload = Workload.uniform(2, boundary_bytes=random.randint(0, 5)).segmented(random_kinds(random))
        table = replace(Schedule.from_rows(PAIRS), interleave={(Kind.F, Kind.B): (0, 1, 1)})

        timeline = simulate(table, workload, Flat(rate_kbps=10**6, latency_ns=2), policy)
        metrics = measure(timeline, workload)

        assert (metrics.busy_ns + metrics.idle_ns.sum(axis=1)).tolist() == [metrics.step_ns] * 2
        assert min(metrics.idle_ns.min(), metrics.busy_ns.min()) >= 0
        for item in (timeline, folded(timeline)):
            lane = item.lane_of_row()
            follows = lane[1:] == lane[:-1]
            assert (item.start_ns[1:] >= item.end_ns[:-1])[follows].all()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_no_segment_starts_before_an_earlier_action_alone_of_its_rank_ends(policy: Policy) -> None:
    for seed in range(12):
        random = Random(seed)  # noqa: S311 - nothing secret
        kinds, turns = random_kinds(random), random.choice([(0, 1), (1, 0), (1, 1, 0)])
        workload = Workload.uniform(2, boundary_bytes=random.randint(0, 5))
        workload = workload.segmented(kinds, overlapped=seed % 2 == 1)
        table = replace(Schedule.from_rows(mixed(random, 2, 6)), interleave={(Kind.F, Kind.B): turns})

        taken = spans(simulate(table, workload, Flat(rate_kbps=10**6, latency_ns=2), policy))

        for rank in range(2):
            block_end = 0
            for action in table[rank]:
                members = action.sub_actions or (action,)
                parts = [
                    taken[Part(member.kind, rank, member.microbatch, number)]
                    for member in members
                    for number in range(len(kinds[member.kind][rank]))
                ]
                assert min(start for start, _ in parts) >= block_end
                if len(members) == 1:
                    block_end = max(end for _, end in parts)


def test_what_follows_an_action_alone_on_other_streams_waits_for_all_of_it() -> None:
    tail = (Segment(name="mlp", duration_ns=5), replace(TAIL, duration_ns=4))
    costs = Workload.uniform(1, reduce_ns=7, offload_ns=[2], reload_ns=[2]).segmented(
        {Kind.F: [tail], Kind.B: [tail]}
    )
    table = Schedule.from_rows([["0F0", "0OFFLOAD0", "0F2", "(0F1;0B2)OVERLAP_F_B", "0B1", "0RELOAD0", "0B0"]])

    taken = spans(simulate(table, costs))

    assert taken[Part(Kind.OFFLOAD, 0, 0, -1)] == (9, 11)
    reduced = next(one for part, one in taken.items() if part.kind is Kind.REDUCE_GRAD)
    assert reduced[0] == taken[Part(Kind.B, 0, 0, 1)][1]


def test_bytes_of_segments_share_a_link_of_the_network() -> None:
    gather = Segment(name="gather", stream=Stream.TENSOR_PARALLEL, size_bytes=1000, link="link1")
    computed = Segment(name="gemm", duration_ns=4000)
    workload = Workload.uniform(2).segmented({kind: [(gather, computed)] * 2 for kind in (Kind.F, Kind.B)})
    rows = [[f"{rank}F0", f"({rank}F1;{rank}B0)OVERLAP_F_B", f"{rank}B1"] for rank in range(2)]
    table = Schedule.from_rows(rows, Placement.of_stages([[0, 1]], 2))
    apart = replace(table, placement=replace(table.placement, edges=np.empty((0, 2), dtype=np.int32)))
    costs = replace(workload, boundary_bytes=np.zeros(0, dtype=np.int64))
    network = Wires(endpoints=2, rate_kbps=10**6, latency_ns=7, overhead_ns=0)

    shared = spans(simulate(apart, costs, network))
    alone = spans(simulate(apart, costs, network, contention=Contention(links=Sharing.NONE)))

    assert [alone[Part(Kind.F, stage, 0, 0)] for stage in range(2)] == [(0, 1000), (0, 1000)]
    assert [shared[Part(Kind.F, stage, 0, 0)] for stage in range(2)] == [(0, 2000), (0, 2000)]
    assert shared[Part(Kind.F, 0, 0, 1)] == (2007, 6007)
    with pytest.raises(ScheduleError, match=r"segment gather goes over link 'link1', which the network lacks"):
        simulate(apart, costs, Flat())


def test_computation_beside_its_groups_communication_is_slowed() -> None:
    matmul = Segment(name="gemm", duration_ns=8605)
    reduce = Segment(name="all-reduce", duration_ns=3364, stream=Stream.TENSOR_PARALLEL)
    forward = (Segment(name="start"), reduce)
    workload = Workload.uniform(1).segmented({Kind.F: [forward], Kind.B: [(matmul,)]})
    table = replace(
        Schedule.from_rows([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]]), interleave={(Kind.F, Kind.B): (0, 1)}
    )
    slowed = Contention(compute_permille=828, communication_permille=896)

    timeline = simulate(table, workload, contention=slowed)
    pair = [item for item in map(timeline.__getitem__, range(len(timeline))) if item.pair >= 0]
    took = max(member.end_ns for member in pair) - min(member.start_ns for member in pair)

    assert took == pytest.approx(9251, rel=0.002)


def test_memory_changes_at_the_ends_of_segments() -> None:
    frees = [
        Segment(name="mlp", duration_ns=5, activation_bytes=-6),
        Segment(name="attention", duration_ns=3, activation_bytes=-4),
    ]
    takes = [
        Segment(name="attention", duration_ns=3, activation_bytes=4),
        Segment(name="mlp", duration_ns=5, activation_bytes=6),
    ]
    whole = Workload.uniform(1, activation_bytes=10)
    workload = whole.segmented({Kind.F: [tuple(takes)], Kind.B: [tuple(frees)]})
    table = Schedule.from_rows([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]])
    late = replace(table, interleave={(Kind.F, Kind.B): (0, 1, 1, 0)})
    early = replace(table, interleave={(Kind.F, Kind.B): (1, 0, 0, 1)})

    peaks = [
        measure(simulate(item, workload), workload).memory.peak_activation_bytes.tolist() for item in (late, early)
    ]

    assert peaks == [[14], [14]]
    first = replace(table, interleave={(Kind.F, Kind.B): (1, 1, 0)})
    assert measure(simulate(first, workload), workload).memory.peak_activation_bytes.tolist() == [10]


def test_an_order_that_names_a_member_which_a_pair_lacks_is_refused() -> None:
    table = replace(Schedule.from_rows(PAIRS), interleave={(Kind.F, Kind.B): (0, 2)})

    with pytest.raises(ScheduleError, match=r"F with B names member 2: they are 0 to 1"):
        simulate(table, costs(2), Flat())


def test_folded_pairs_share_their_time_one_after_the_other() -> None:
    table = replace(Schedule.from_rows(PAIRS), interleave=BLOCK_A)
    timeline = simulate(table, costs(2, 1, 4))
    whole = folded(timeline)

    assert whole.parts is None
    assert len({str(item.action) + item.stream.name for item in map(whole.__getitem__, range(len(whole)))}) == len(
        whole
    )
    members = [item for item in map(whole.__getitem__, range(len(whole))) if item.pair >= 0]
    assert [member.end_ns - member.start_ns for member in members] == [8, 16, 8, 16]
    assert members[0].end_ns == members[1].start_ns


def test_costs_may_differ_from_microbatch_to_microbatch() -> None:
    short = Workload.uniform(2, boundary_bytes=1, f_ns=10, b_ns=20, activation_bytes=5)
    long = Workload.uniform(2, boundary_bytes=3, f_ns=30, b_ns=60, activation_bytes=15)
    workload = replace(short, classes=(long,), microbatch_class=[0, 1])
    rows = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]

    timeline = simulate(Schedule.from_rows(rows), workload, Flat(rate_kbps=10**6))
    took = {
        str(item.action): (item.end_ns - item.start_ns, item.size_bytes)
        for item in map(timeline.__getitem__, range(len(timeline)))
    }

    assert took["0F0"] == (10, 0)
    assert took["1B1"] == (60, 0)
    assert took["0SEND_F1"] == (3, 3)
    assert took["1SEND_B0"] == (1, 1)
    assert measure(timeline, workload).memory.peak_activation_bytes.tolist() == [20, 15]
