"""Actions in segments: pairs run as the definitions say, alone they are as one block, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

import numpy as np
import pytest
from oracle_segments import Part, SegmentOracle
from small_networks import Wires

from pptrace.errors import ScheduleError
from pptrace.model.kinds import SENDS, Kind, Stream
from pptrace.model.placement import Placement
from pptrace.model.segments import Segment
from pptrace.model.workload import Workload
from pptrace.network.flat import Flat, ideal
from pptrace.schedule.issue_order import Receive
from pptrace.schedule.table import Schedule
from pptrace.sim import simulate as module
from pptrace.sim.contention import Contention, Sharing
from pptrace.sim.policy import Policy, PolicyName, StreamPer
from pptrace.sim.shared import shared_links
from pptrace.sim.simulate import simulate
from pptrace.timeline.actions import actions_in_parts
from pptrace.timeline.folded import folded
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

BLOCK_A = {(Kind.F, Kind.B): (0, 1, 1, 0, 1, 1)}
"""Attn(F), MLP-Act(B), MLP-W(B), MLP(F), Attn-Act(B), Attn-W(B)."""

PAIRS = [
    ["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"],
    ["1F0", "(1F1;1B0)OVERLAP_F_B", "(1F2;1B1)OVERLAP_F_B", "1B2"],
]


def layers(count: int, all_reduce: int) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Return a forward and a backward of layers whose all-reduces take so long."""
    reduce = Segment(name="all-reduce", duration_ns=all_reduce, stream=Stream.TENSOR_PARALLEL)
    forward = [Segment(name="attention", duration_ns=3), reduce, Segment(name="mlp", duration_ns=5), reduce]
    backward: list[Segment] = []
    for first in range(0, 6 * count, 6):
        backward += [
            Segment(name="mlp-input", duration_ns=5, needs=(first - 2,) if first else ()),
            replace(reduce, needs=(first,)),
            Segment(name="mlp-weight", duration_ns=5, needs=(first,)),
            Segment(name="attention-input", duration_ns=3, needs=(first + 1,)),
            replace(reduce, needs=(first + 3,)),
            Segment(name="attention-weight", duration_ns=3, needs=(first + 3,)),
        ]
    return tuple(forward * count), tuple(backward)


def costs(stages: int, count: int = 1, all_reduce: int = 2) -> Workload:
    forward, backward = layers(count, all_reduce)
    whole = Workload.uniform(stages, boundary_bytes=1, activation_bytes=10, weight_activation_bytes=4)
    return whole.segmented({Kind.F: [forward] * stages, Kind.B: [backward] * stages})


def spans(timeline: Timeline) -> dict[Part, tuple[int, int]]:
    found = {}
    for row in range(len(timeline)):
        one = timeline[row]
        number = -1 if one.action.kind in SENDS or timeline.parts is None else int(timeline.parts.number[row])
        part = Part(one.action.kind, one.action.stage, one.action.unit, number)
        found[part] = (one.start_ns, one.end_ns)
    return found


@pytest.mark.parametrize(("count", "all_reduce", "computed", "leaves", "apart"), [
    (1, 2, 24, 24, 32), (2, 2, 48, 48, 64), (1, 4, 24, 26, 40), (2, 4, 48, 50, 80),
])  # fmt: skip
def test_a_pair_of_layers_takes_what_it_takes_by_hand(
    count: int, all_reduce: int, computed: int, leaves: int, apart: int
) -> None:
    workload = costs(2, count, all_reduce)
    table = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]])
    timeline = simulate(replace(table, interleave=BLOCK_A), workload)
    pair = [one for one in map(timeline.__getitem__, range(len(timeline))) if one.braid >= 0]
    begin = min(one.start_ns for one in pair)
    send = next(one for one in spans(timeline).items() if one[0].kind is Kind.SEND_B)

    assert max(one.end_ns for one in pair if one.stream is Stream.COMPUTE) - begin == computed
    assert send[1][0] - begin == leaves
    assert int(workload.f_ns[0] + workload.b_ns[0]) == apart
    if all_reduce == 2:
        members = actions_in_parts(timeline)
        assert members.exposed_ns[members.braid >= 0].tolist() == [0, 0]


def segments_of(random: Random, kind: Kind) -> tuple[Segment, ...]:
    streams = [Stream.COMPUTE, Stream.TENSOR_PARALLEL, Stream.EXPERT_PARALLEL]
    count, computes = random.randint(1, 6), random.randrange(6)
    return tuple(
        Segment(
            name=f"{kind.name}{place}",
            duration_ns=random.randint(0, 9),
            stream=streams[0] if place == computes % count else random.choice(streams),
            needs=None if not place or random.random() < 0.5 else tuple(
                sorted(random.sample(range(place), random.randint(1, place)))
            ),
            result=random.random() < 0.2,
        )
        for place in range(count)
    )  # fmt: skip


def random_kinds(random: Random) -> dict[Kind, list[tuple[Segment, ...]]]:
    return {kind: [segments_of(random, kind) for _ in range(2)] for kind in (Kind.F, Kind.B)}


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
def test_random_pairs_on_stages_between_others_run_so_too(seed: int) -> None:
    random, stages = Random(seed), 4  # noqa: S311 - nothing secret
    kinds = {kind: [segments_of(random, kind) for _ in range(stages)] for kind in (Kind.F, Kind.B)}
    network = Flat(overhead_ns=random.randint(0, 3), latency_ns=random.randint(0, 5))
    workload = Workload.uniform(stages, boundary_bytes=0).segmented(kinds)
    table = replace(Schedule.from_rows(steady(stages, 10)), interleave={(Kind.F, Kind.B): (0, 1, 1)})

    timeline = simulate(table, workload, network)
    rows = [table[rank] for rank in range(stages)]

    assert spans(timeline) == SegmentOracle(rows, kinds, (0, 1, 1), network.overhead_ns, network.latency_ns).run()


def steady(ranks: int, units: int) -> list[list[str]]:
    """Return 1F1B's rows with each forward beside a backward, and as many more in flight as that takes."""
    rows = []
    for rank in range(ranks):
        warm = min(2 * (ranks - rank) - 1, units)
        pairs = [f"({rank}F{warm + unit};{rank}B{unit})OVERLAP_F_B" for unit in range(units - warm)]
        rows.append([f"{rank}F{unit}" for unit in range(warm)])
        rows[-1] += pairs + [f"{rank}B{unit}" for unit in range(units - warm, units)]
    return rows


def test_pairs_on_all_stages_hide_what_they_hide_on_one() -> None:
    ranks, units = 4, 40
    table = replace(Schedule.from_rows(steady(ranks, units)), interleave=BLOCK_A)

    timeline = simulate(table, costs(ranks, 2, 2), Flat(latency_ns=1))
    members = actions_in_parts(timeline)

    # Only in the first pairs, whose backwards have to wait, is anything not hidden.
    assert members.exposed_ns[members.braid >= 0].sum() <= 2 * ranks
    assert int(timeline.end_ns.max()) < units * 48 + 2 * ranks * 64


@pytest.mark.parametrize("policy", list(PolicyName))
def test_pairs_run_under_every_policy(policy: PolicyName) -> None:
    table = replace(Schedule.from_rows(steady(3, 8)), interleave=BLOCK_A)

    timeline = simulate(table, costs(3), Flat(latency_ns=1), Policy(name=policy))

    assert measure(timeline, costs(3)).memory.peak_activations.tolist() == [6, 4, 2]


@pytest.mark.parametrize("seed", range(40))
def test_segments_and_plain_durations_are_the_same_step_where_nothing_overlaps(seed: int) -> None:
    kinds = random_kinds(Random(seed))  # noqa: S311 - nothing secret
    workload = Workload.uniform(2, boundary_bytes=3, activation_bytes=7).segmented(kinds)
    rows = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "1F1", "1B0", "1F2", "1B1", "1B2"]]
    apart = [*rows, ["2F0", "(2F1;2B0)OVERLAP_F_B", "2F2", "2B1", "2B2"]]
    network = Flat(overhead_ns=2, latency_ns=3, rate_kbps=10**6)

    whole, same = (
        simulate(Schedule.from_rows(rows), one, network) for one in (workload, replace(workload, segments={}))
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
        for one in (timeline, folded(timeline)):
            lane = one.lane_of_row()
            follows = lane[1:] == lane[:-1]
            assert (one.start_ns[1:] >= one.end_ns[:-1])[follows].all()


def test_what_follows_an_action_alone_on_other_streams_waits_for_all_of_it() -> None:
    tail = (Segment(name="mlp", duration_ns=5), replace(TAIL, duration_ns=4))
    costs = Workload.uniform(1, reduce_ns=7, offload_ns=[2], reload_ns=[2]).segmented(
        {Kind.F: [tail], Kind.B: [tail]}
    )
    table = Schedule.from_rows([["0F0", "0OFFLOAD0", "(0F1;0B1)OVERLAP_F_B", "0RELOAD0", "0B0"]])

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
        simulate(apart, costs, ideal())


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
    pair = [one for one in map(timeline.__getitem__, range(len(timeline))) if one.braid >= 0]
    took = max(one.end_ns for one in pair) - min(one.start_ns for one in pair)

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
        measure(simulate(one, workload), workload).memory.peak_activation_bytes.tolist() for one in (late, early)
    ]

    assert peaks == [[14], [14]]
    first = replace(table, interleave={(Kind.F, Kind.B): (1, 1, 0)})
    assert measure(simulate(first, workload), workload).memory.peak_activation_bytes.tolist() == [10]


def test_an_order_that_names_a_member_which_a_pair_lacks_is_refused() -> None:
    table = replace(Schedule.from_rows(PAIRS), interleave={(Kind.F, Kind.B): (0, 2)})

    with pytest.raises(ScheduleError, match=r"F with B names member 2: they are 0 to 1"):
        simulate(table, costs(2), ideal())


def test_folded_pairs_share_their_time_one_after_the_other() -> None:
    table = replace(Schedule.from_rows(PAIRS), interleave=BLOCK_A)
    timeline = simulate(table, costs(2, 1, 4))
    whole = folded(timeline)

    assert whole.parts is None
    assert len({str(one.action) + one.stream.name for one in map(whole.__getitem__, range(len(whole)))}) == len(
        whole
    )
    members = [one for one in map(whole.__getitem__, range(len(whole))) if one.braid >= 0]
    assert [one.end_ns - one.start_ns for one in members] == [8, 16, 8, 16]
    assert members[0].end_ns == members[1].start_ns


def test_costs_may_differ_from_microbatch_to_microbatch() -> None:
    short = Workload.uniform(2, boundary_bytes=1, f_ns=10, b_ns=20, activation_bytes=5)
    long = Workload.uniform(2, boundary_bytes=3, f_ns=30, b_ns=60, activation_bytes=15)
    workload = replace(short, classes=(long,), microbatch_class=[0, 1])
    rows = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]

    timeline = simulate(Schedule.from_rows(rows), workload, Flat(rate_kbps=10**6))
    took = {
        str(one.action): (one.end_ns - one.start_ns, one.size_bytes)
        for one in map(timeline.__getitem__, range(len(timeline)))
    }

    assert took["0F0"] == (10, 0)
    assert took["1B1"] == (60, 0)
    assert took["0SEND_F1"] == (3, 3)
    assert took["1SEND_B0"] == (1, 1)
    assert measure(timeline, workload).memory.peak_activation_bytes.tolist() == [20, 15]
