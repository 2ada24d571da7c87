"""Pairs on stages between others, whose members both send, run as those at the ends of the pipeline do."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from oracle_segments import SegmentOracle
from segment_costs import BLOCK_A, costs, segments_of, spans, steady

from pptrace.model.kinds import Kind
from pptrace.model.workload import Workload
from pptrace.network.flat import Flat
from pptrace.schedule.policy import Policy, PolicyName
from pptrace.schedule.table import Schedule
from pptrace.sim.simulate import simulate
from pptrace.timeline.actions import actions_in_parts
from pptrace.timeline.metrics import measure


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
