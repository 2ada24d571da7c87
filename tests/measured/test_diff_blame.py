"""Who is blamed for a change, what held up the first action that is late, what the critical path waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from compared_steps import MS, ROWS, one_step, side_of_step, slower_way, stretched
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.measured.computations import extract_computations
from pptrace.measured.dependencies import BETWEEN, MESSAGES, find_releases, follow_chain
from pptrace.measured.diff import diff
from pptrace.measured.diff_document import blame, describe_divergence, diff_document, kinds, link_sizes, verdict
from pptrace.measured.findings import Release, first_divergence
from pptrace.measured.matching import match
from pptrace.measured.replay import Resimulation
from pptrace.network.contract import Flat
from pptrace.report.document import page_of, text_of
from pptrace.sim.simulation import simulate
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from pptrace.measured.causes import Cause
    from pptrace.measured.diff import StepDiff
    from pptrace.timeline.timeline import Timeline

TWO_CHUNKS = [
    ["0F0", "0F1", "2F0", "2F1", "2B0", "2B1", "0B0", "0B1"],
    ["1F0", "1F1", "3F0", "3F1", "3B0", "3B1", "1B0", "1B1"],
]


def shown(difference: StepDiff) -> list[str]:
    return text_of(diff_document(difference)).splitlines()


def compared(second: Timeline, first: Timeline | None = None) -> tuple[Cause, ...]:
    return diff(side_of_step(first or one_step()), side_of_step(second)).causes


def test_one_stage_of_a_rank_s_two_is_that_stage_and_both_are_the_rank() -> None:
    base = one_step(TWO_CHUNKS)

    (stage,) = compared(one_step(TWO_CHUNKS, slow={3: 1.5}), base)
    (rank,) = compared(one_step(TWO_CHUNKS, slow={1: 1.5, 3: 1.5}), base)

    assert (stage.kind, stage.what, round(stage.share.value, 3)) == ("slow stage", "stage 3 on rank 1", 0.5)
    assert (rank.kind, rank.what, round(rank.share.value, 3)) == ("slow rank", "rank 1", 0.5)
    assert rank.total_ns == 2 * stage.total_ns


@pytest.mark.parametrize("measured", [False, True])
def test_a_change_within_the_uncertainty_of_recordings_has_no_first_cause(*, measured: bool) -> None:
    """Single recorded steps differ by more than 0.2 % anyway; simulations are exact."""
    base = one_step()
    small, large = (
        diff(side_of_step(base, measured=measured), side_of_step(one_step(slow={1: factor}), measured=measured))
        for factor in (1.001, 1.5)
    )

    assert 0 < small.change < 0.002
    assert "equal within" not in blame(large)
    assert blame(large).startswith("Largest slowdown, a slow rank: rank 1")
    assert ("equal within" in blame(small)) == measured
    assert small.uncertainty_ns == (round(0.002 * small.step_ns.second.value) if measured else 0)


def test_what_is_faster_is_not_called_slow() -> None:
    (rank,) = compared(one_step(slow={1: 0.5}))
    (link,) = compared(slower_way(one_step(), 1, 2, 0.25))

    assert (rank.kind, link.kind) == ("fast rank", "fast link")
    assert rank.total_ns == -4 * 30 * MS // 2
    assert link.share.value == pytest.approx(-0.75, abs=1e-4)


def test_drift_is_taken_off_before_a_rank_is_blamed() -> None:
    difference = compared(one_step(slow={0: 1.1, 1: 1.1, 2: 1.32}))

    assert [(item.kind, round(item.share.value, 3)) for item in difference] == [("slow rank", 0.2), ("drift", 0.1)]


@pytest.mark.parametrize(
    ("factors", "common"),
    [
        ((1.5, 1.0), 1.0),
        ((0.5, 1.0), 1.0),
        ((1.25, 1.5), 1.25),
        ((0.5, 0.75), 0.75),
        ((0.75, 1.1), 1.1),
        ((1.5, 1.0, 1.25), 1.25),
        ((0.5, 1.0, 0.75), 0.75),
        ((1.0, 2.0, 2.0), 2.0),
        ((1.75, 1.0, 1.5, 1.25), 1.25),
        ((0.25, 1.0, 0.5, 0.75), 0.75),
        ((1.75, 0.25, 1.0, 1.5, 1.25), 1.25),
    ],
)
def test_what_ranks_have_in_common_is_the_middle_one_s_and_of_two_the_one_nearer_to_none(
    factors: tuple[float, ...], common: float
) -> None:
    rows = [
        [f"{rank}{kind}{microbatch}" for kind in "FB" for microbatch in range(4)] for rank in range(len(factors))
    ]

    difference = diff(side_of_step(one_step(rows)), side_of_step(one_step(rows, slow=dict(enumerate(factors)))))

    assert difference.blame.common.value == pytest.approx(common - 1, abs=1e-6)
    beyond = [factor / common - 1 for factor in factors]
    assert [share.value for share in difference.blame.ranks.values()] == pytest.approx(beyond, abs=1e-6)


def test_one_long_action_is_a_spike_and_nothing_else() -> None:
    difference = diff(side_of_step(one_step()), side_of_step(stretched(one_step(), "1B2", 8 * MS)))
    (spike,) = difference.remarks

    assert difference.step_ns.change.value == 0
    assert difference.causes == ()
    assert (spike.kind, spike.what, spike.total_ns) == ("spikes", "1 action of rank 1", 8 * MS)


def test_a_spike_within_the_tolerance_of_its_action_is_none() -> None:
    difference = diff(side_of_step(one_step()), side_of_step(stretched(one_step(), "1B2", 20 * MS * 2 // 100)))

    assert difference.causes == difference.remarks == ()


def test_where_all_ways_are_slower_it_is_the_network_and_one_that_is_slower_still_is_a_link() -> None:
    base = one_step()
    slow = one_step(rate_kbps=250_000)

    (network,) = compared(slow, base)
    difference = diff(side_of_step(base), side_of_step(slower_way(slow, 1, 2, 2)))
    both = difference.causes + difference.remarks

    assert (network.kind, network.what) == ("slow network", "all 4 links between ranks")
    assert network.share.value == pytest.approx(3 / 1.05, rel=1e-3)
    assert [(item.kind, item.what) for item in both] == [
        ("slow network", "all 4 links between ranks"),
        ("slow link", "rank 1 to rank 2"),
    ]
    assert both[1].share.value == pytest.approx(1, rel=1e-3)


def test_a_late_message_is_distinguished_from_a_long_action_and_from_what_came_late_already() -> None:
    base = one_step()
    late = diff(side_of_step(base), side_of_step(slower_way(base, 1, 2, 5))).divergence
    divergence = diff(side_of_step(base), side_of_step(stretched(base, "1F0", 4 * MS))).divergence

    assert late is not None
    assert divergence is not None
    assert (str(late.action), late.source, late.message_ns, late.local_ns) == ("2F0", 1, late.late_ns.value, 0)
    assert late.chain[0] == Release(rank=1, action=Action(kind=Kind.F, stage=1, microbatch=0), late_ns=0)
    assert (str(divergence.action), divergence.local_ns, divergence.message_ns, divergence.idle_ns) == (
        "1F0",
        4 * MS,
        0,
        0,
    )


def test_a_host_that_hesitates_is_until_it_was_begun() -> None:
    computations = extract_computations(one_step())
    at = int(np.flatnonzero(computations.rank == 0)[1])
    later = np.where(computations.start_ns >= computations.start_ns[at], 3 * MS, 0)
    gap = computations.gap_ns.copy()
    gap[at] += 3 * MS
    slow = replace(
        computations, start_ns=computations.start_ns + later, end_ns=computations.end_ns + later, gap_ns=gap
    )

    result = first_divergence(
        computations,
        slow,
        match(computations, slow),
        find_releases(slow),
        0.02,
        np.zeros(len(computations), dtype=np.int64),
    )

    assert result is not None
    assert (str(result.action), result.late_ns.value, result.idle_ns) == ("0F1", 3 * MS, 3 * MS)
    assert describe_divergence(result) == (
        "at 13.000 ms: rank 0, 0F1 ends 3.000 ms late: +3.000 ms from the host gap before it"
    )


@settings(settings.get_profile("few"))
@given(
    st.dictionaries(st.integers(0, 2), st.floats(0.5, 2)), st.integers(50_000, 2_000_000), st.integers(0, 20 * MS)
)
def test_the_parts_of_a_lateness_sum_to_it(slow: dict[int, float], rate: int, by: int) -> None:
    found = diff(
        side_of_step(one_step()), side_of_step(stretched(one_step(ROWS, slow, rate), "1F1", by))
    ).divergence

    if found is not None:
        assert found.local_ns + found.message_ns + found.idle_ns + found.released_ns == found.late_ns.value


@pytest.mark.parametrize("rate", [1_000_000, 100_000])
def test_a_simulated_critical_path_is_computations_and_messages_without_a_rest(rate: int) -> None:
    chain = follow_chain(extract_computations(one_step(rate_kbps=rate)))

    assert chain.by_kind_ns[BETWEEN] == 0
    assert chain.by_kind_ns[MESSAGES] > 0
    assert sum(chain.by_kind_ns.values()) == one_step(rate_kbps=rate).end_ns.max()


def test_a_send_after_an_overlapped_pair_depends_on_the_member_that_ends_last() -> None:
    forwards, backwards = [[f"0{kind}{mb}" for mb in range(4)] for kind in "FB"]
    pairs = [f"(1F{mb};1B{mb - 1})OVERLAP_F_B" for mb in range(1, 4)]
    last = [f"2{kind}{mb}" for mb in range(4) for kind in "FB"]
    schedule = Schedule.from_rows([forwards + backwards, ["1F0", *pairs, "1B3"], last])
    costs = Workload.uniform(3, f_ns=10 * MS, b_ns=20 * MS, boundary_bytes=1_000_000)
    network = Flat(rate_kbps=1_000_000, latency_ns=50_000)

    step = simulate(schedule, costs, network, Policy(name=PolicyName.ORDERED))

    times_ns = {"F": 60 * MS, "B": 180 * MS, MESSAGES: 10 * 1_050_000, BETWEEN: 0}
    assert follow_chain(extract_computations(step)).by_kind_ns == times_ns
    assert sum(times_ns.values()) == step.end_ns.max()


def test_what_released_an_action_is_what_came_last_and_not_what_ended_last() -> None:
    computations = extract_computations(one_step(rate_kbps=50_000))
    releases = find_releases(computations)
    second = int(np.flatnonzero(computations.rank == 1)[1])

    assert str(computations.order.rows()[1][1]) == "1F1"
    assert computations.rank[releases.position[second]] == 0


def test_where_the_order_is_why_it_is_said() -> None:
    other = [ROWS[0], ROWS[1], ["2F0", "2F1", "2B0", "2B1", "2F2", "2B2", "2F3", "2B3"]]

    difference = diff(side_of_step(one_step()), side_of_step(one_step(other)))

    assert difference.divergence is not None
    assert difference.divergence.predecessors == ("2B0", "2F0")
    assert describe_divergence(difference.divergence).endswith(
        "; it follows 2B0 in the first step, 2F0 in the second"
    )
    assert ["rank", "2", "2B0", "2F1", "1"] in [line.split() for line in shown(difference)]


def test_a_verdict_says_what_differs_where_lengths_do_not() -> None:
    base, tight = one_step(), one_step([*ROWS[:2], ["2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "2F3", "2B3"]])
    swapped = diff(side_of_step(base), side_of_step(tight))
    shorter = extract_computations(base)
    first = np.flatnonzero((shorter.rank == 0) & (shorter.kind == 0))
    longer = shorter.duration_ns.copy()
    longer[first[1:]] += MS
    slower = diff(
        side_of_step(base),
        side_of_step(Resimulation.of_order(shorter.order).run(replace(shorter, duration_ns=longer).times())),
        0.05,
    )

    assert verdict(swapped) == "equal within 2.0%"
    assert verdict(slower) == "different: times of 0F"


def test_counts_medians_and_spreads_are_listed_by_kind_and_stage_what_changed_most_first() -> None:
    difference = diff(side_of_step(one_step()), side_of_step(stretched(one_step(slow={1: 1.25}), "1F2", 4 * MS)))

    (table,) = kinds(difference)
    rows = table.rows

    assert rows[0] == ("1B", "4, 4", "20.000 ms", "25.000 ms", "0.000 ms", "0.000 ms")
    assert rows[1] == ("1F", "4, 4", "10.000 ms", "12.500 ms", "0.000 ms", "1.000 ms")
    assert "  1B   4, 4      20.000 ms  25.000 ms       0.000 ms  0.000 ms" in shown(difference)
    assert "25.000 ms" in page_of(diff_document(difference))


@pytest.mark.parametrize(
    ("sizes", "text"),
    [((4096, 4096), "1 KiB"), ((4096, 8192), "1 KiB, 2 KiB"), ((0, 8192), "?, 2 KiB"), ((0, 0), "")],
)
def test_sizes_of_messages_are_reported_once_where_they_are_the_same(sizes: tuple[int, int], text: str) -> None:
    way = replace(diff(side_of_step(one_step()), side_of_step(one_step())).links[0, 1], size_bytes=sizes)

    assert link_sizes(way) == text
