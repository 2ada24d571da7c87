"""Pairs on stages between others, whose members both send, run as those at the ends of the pipeline do."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace
from oracle_segments import Part, SegmentOracle
from segment_costs import BLOCK_A, costs, mixed, segments_of, spans, steady

from pptrace.config.choices import PolicyName
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload
from pptrace.timeline.actions import actions_in_parts
from pptrace.timeline.metrics import measure

REDUCE = Segment(name="all-reduce", stream=Stream.TENSOR_PARALLEL)


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


@pytest.mark.parametrize("seed", range(80))
def test_random_pairs_between_actions_alone_run_as_the_second_implementation_says(seed: int) -> None:
    random = Random(seed)  # noqa: S311 - nothing secret
    stages, turns = random.randint(2, 3), random.choice([(0, 1), (1, 0), (1,), (1, 1, 0), (0, 0, 1)])
    kinds = {kind: [segments_of(random, kind) for _ in range(stages)] for kind in (Kind.F, Kind.B)}
    network = Flat(overhead_ns=random.randint(0, 3), latency_ns=random.randint(0, 5))
    workload = Workload.uniform(stages, boundary_bytes=0).segmented(kinds)
    table = replace(Schedule.from_rows(mixed(random, stages, 8)), interleave={(Kind.F, Kind.B): turns})

    timeline = simulate(table, workload, network)
    rows = [table[rank] for rank in range(stages)]

    assert spans(timeline) == SegmentOracle(rows, kinds, turns, network.overhead_ns, network.latency_ns).run()


@pytest.mark.parametrize("turns", [(0, 1), (1, 0)])
def test_the_trailing_collective_of_an_action_alone_holds_up_both_members(turns: tuple[int, ...]) -> None:
    forward = (Segment(name="mlp", duration_ns=5), replace(REDUCE, duration_ns=4))
    backward = (Segment(name="mlp", duration_ns=6), replace(REDUCE, duration_ns=2))
    workload = Workload.uniform(1).segmented({Kind.F: [forward], Kind.B: [backward]})
    table = Schedule.from_rows([["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"]])

    taken = spans(simulate(replace(table, interleave={(Kind.F, Kind.B): turns}), workload))

    pair = [Part(Kind.F, 0, 2, 0), Part(Kind.B, 0, 0, 0)]
    assert min(taken[part][0] for part in pair) == taken[Part(Kind.F, 0, 1, 1)][1] == 18


def test_a_pair_that_begins_with_a_collective_starts_behind_the_block_before_it() -> None:
    gather = Segment(name="gather", duration_ns=3, stream=Stream.EXPERT_PARALLEL)
    forward = (gather, Segment(name="mlp", duration_ns=5), replace(REDUCE, duration_ns=4))
    backward = (Segment(name="mlp", duration_ns=6),)
    workload = Workload.uniform(1).segmented({Kind.F: [forward], Kind.B: [backward]})
    table = Schedule.from_rows([["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"]])

    taken = spans(simulate(table, workload))

    assert taken[Part(Kind.F, 0, 1, 2)][1] == 24
    assert (taken[Part(Kind.F, 0, 2, 0)][0], taken[Part(Kind.B, 0, 0, 0)][0]) == (24, 24)


def test_pairs_on_all_stages_hide_what_they_hide_on_one() -> None:
    ranks, microbatches = 4, 40
    table = replace(Schedule.from_rows(steady(ranks, microbatches)), interleave=BLOCK_A)

    timeline = simulate(table, costs(ranks, 2, 2), Flat(latency_ns=1))
    members = actions_in_parts(timeline)

    # Only in the first pairs, whose backwards have to wait, is anything not hidden.
    assert members.exposed_ns[members.pair >= 0].sum() <= 2 * ranks
    assert int(timeline.end_ns.max()) < microbatches * 48 + 2 * ranks * 64


@pytest.mark.parametrize("policy", list(PolicyName))
def test_pairs_run_under_every_policy(policy: PolicyName) -> None:
    table = replace(Schedule.from_rows(steady(3, 8)), interleave=BLOCK_A)

    timeline = simulate(table, costs(3), Flat(latency_ns=1), Policy(name=policy))

    assert measure(timeline, costs(3)).memory.peak_activations.tolist() == [6, 4, 2]
