"""Several recorded steps: figures say by how much they vary, noise is left out, medians may be compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from compared_steps import MS, ROWS, slower_way, stretched
from compared_steps import one_step as step
from compared_steps import side_of_step as side
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pptrace.measured.computations import extract_computations
from pptrace.measured.diff import diff
from pptrace.measured.diff_document import diff_document
from pptrace.measured.sides import Side, measured_side, median_deviation_factor, median_step, values_over_steps
from pptrace.report.document import page_of, plain, text_of
from pptrace.report.numbers import Figure, Sides
from pptrace.steps.workload import Workload
from pptrace.timeline.measurement import Measurement, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.measured.diff import StepDiff
    from pptrace.timeline.timeline import Timeline


def shown(found: StepDiff) -> str:
    return text_of(diff_document(found))


def deviations(sides: Sides) -> tuple[float | None, float | None]:
    return sides.first.deviation, sides.second.deviation


def recorded(timelines: Sequence[Timeline], choice: str = "median", name: str = "run") -> Side:
    steps = tuple(
        Step(label=str(at), timeline=item, gap_ns=np.zeros(len(item), dtype=np.int64))
        for at, item in enumerate(timelines)
    )
    return measured_side(Measurement(steps=steps), name, choice)


def test_all_steps_pooled_compare_the_median_of_every_action() -> None:
    base = step()
    times = (50, 30, 31, 32, 29)

    difference = diff(side(base), recorded([stretched(base, "2F3", by * MS) for by in times], "all"))

    (change,) = difference.changes
    assert (str(change.action), change.change_ns.value) == ("2F3", 31 * MS)


@settings(settings.get_profile("few"))
@given(st.lists(st.integers(0, 9), min_size=1, max_size=7))
def test_a_pooled_duration_is_the_median(by_ms: list[int]) -> None:
    base = step()
    first, *others = (extract_computations(stretched(base, "1B2", by * MS)) for by in by_ms)

    result = median_step(first, others)

    usual = extract_computations(base).duration_ns
    (at,) = np.flatnonzero(first.duration_ns - usual) if by_ms[0] else (None,)
    expected = np.median([item.duration_ns for item in (first, *others)], axis=0).astype(np.int64)
    assert result.duration_ns.tolist() == expected.tolist()
    if at is not None:
        assert result.duration_ns[at] - usual[at] == int(np.median(by_ms) * MS)
    assert result.start_ns.tolist() == first.start_ns.tolist()


def test_a_pooled_message_takes_the_median_of_what_was_seen() -> None:
    base = step()
    own = [extract_computations(slower_way(base, 1, 2, factor)) for factor in (1, 2, 8)]

    found = median_step(own[0], own[1:]).transfers

    way = (found.source == 1) & (found.target == 2)
    assert found.duration_ns[way].tolist() == own[1].transfers.duration_ns[way].tolist()
    assert found.duration_ns[~way].tolist() == own[0].transfers.duration_ns[~way].tolist()


def test_steps_of_other_sizes_are_not_pooled() -> None:
    base = extract_computations(step())

    assert (
        len(values_over_steps(base, [extract_computations(step([["0F0", "0B0"], ["1F0", "1B0"]]))], "duration_ns"))
        == 1
    )


def test_steps_that_are_all_alike_vary_by_nothing() -> None:
    difference = diff(recorded([step()] * 3), recorded([step()] * 3))

    assert difference.same
    assert difference.step_ns.first.deviation == difference.step_ns.second.deviation == 0
    assert {rung.change_ns.deviation for rung in difference.ladder} == {0}
    assert {row.ratio.deviation for row in difference.kinds.values() if row.ratio} == {0.0}
    assert {member.deviation for pair in difference.parts_ns.values() for member in pair} == {0}


def test_one_step_on_each_side_has_no_spread() -> None:
    difference = diff(side(step()), side(step(slow={1: 1.25})))

    assert not difference.varies
    assert difference.step_ns.first.deviation is difference.step_ns.second.deviation is None
    assert {rung.change_ns.deviation for rung in difference.ladder} == {None}
    assert "±" not in shown(difference)
    assert "±" not in page_of(diff_document(difference))


def test_lengths_and_parts_vary_as_their_steps_do() -> None:
    factors = (1.0, 1.1, 1.3)
    run = recorded([step(slow=dict.fromkeys(range(3), factor)) for factor in factors])

    difference = diff(side(step()), run)

    lengths = [item.timeline.end_ns.max() for item in run.steps]
    assert deviations(difference.step_ns) == (None, round(float(np.std(lengths, ddof=1))))
    computing = [120 * MS * factor for factor in factors]
    assert deviations(difference.parts_ns["compute"]) == (None, round(float(np.std(computing, ddof=1))))
    ratios = {row.ratio.deviation for row in difference.kinds.values() if row.ratio}
    assert all(item == pytest.approx(np.std(factors, ddof=1)) for item in ratios)


def test_both_sides_spreads_are_added_as_variances() -> None:
    slow = [step(slow=dict.fromkeys(range(3), factor)) for factor in (1.0, 1.1, 1.3)]
    once = diff(side(step()), recorded(slow)).ladder[0].change_ns.deviation
    both = diff(recorded([step(), step(), step()]), recorded(slow)).ladder[0].change_ns.deviation
    difference = diff(recorded(slow), recorded(slow))

    assert once == both
    assert difference.step_ns.change.deviation == pytest.approx(
        math.sqrt(2) * (difference.step_ns.first.deviation or 0)
    )
    assert (Figure(2, 3.0) - Figure(1, 4.0)).deviation == 5
    assert (Figure(2, 3.0) - Figure(1)).deviation == 3
    assert (Figure(2) - Figure(1)).deviation is None


def test_a_link_that_is_slow_in_some_steps_is_noise_and_one_that_is_in_all_is_not() -> None:
    base = step()
    now_and_then = recorded([slower_way(base, 1, 2, factor) for factor in (1, 2.5, 6)], "1")
    always = recorded([slower_way(base, 1, 2, factor) for factor in (2.4, 2.5, 2.6)], "1")

    assert diff(side(base), now_and_then).causes == ()
    (cause,) = diff(side(base), always).causes
    assert (cause.kind, cause.what) == ("slow link", "rank 1 to rank 2")
    assert cause.share.deviation == pytest.approx(0.1, rel=0.05)


def test_where_a_step_is_late_within_its_noise_it_does_not_part() -> None:
    base = step()
    run = recorded([stretched(base, "0F1", by * MS) for by in (0, 4, 8)])

    difference = diff(side(base), run)

    assert difference.divergence is None
    assert difference.changes == ()
    assert difference.within_noise == 1


def test_medians_over_steps_vary_less_than_a_step() -> None:
    timelines = [step(slow=dict.fromkeys(range(3), factor)) for factor in (1.02, 1.1, 1.2, 1.3)]
    one, all_of_them = (diff(side(step()), recorded(timelines, choice)) for choice in ("1", "all"))

    assert median_deviation_factor(1) == 1
    assert median_deviation_factor(4) == pytest.approx(1.2533 / 2, rel=1e-4)
    assert all_of_them.step_ns.second.deviation == pytest.approx(
        (one.step_ns.second.deviation or 0) * median_deviation_factor(4), abs=1
    )
    assert all_of_them.parts_ns["compute"] == one.parts_ns["compute"]
    assert all_of_them.pools == (False, True)


def test_the_ladder_and_parts_of_pooled_steps_sum_to_the_difference() -> None:
    timelines = [stretched(slower_way(step(), 1, 2, 1 + at), "2F3", at * MS) for at in range(4)]
    difference = diff(side(step()), recorded(timelines, "all"))
    first, second = (item.value for item in difference.step_ns)

    assert sum(rung.change_ns.value for rung in difference.ladder) == second - first
    assert [sum(pair[at].value for pair in difference.parts_ns.values()) for at in (0, 1)] == [first, second]


def test_text_json_and_page_say_how_much_every_figure_varies() -> None:
    timelines = [step(slow=dict.fromkeys(range(3), factor)) for factor in (1.0, 1.1, 1.3)]
    slower = [slower_way(item, 1, 2, 2) for item in timelines]
    difference = diff(recorded(timelines, "all"), recorded(slower, "all"))

    document = diff_document(difference)
    text, page, values = text_of(document), page_of(document), plain(document)

    for each in (text, page):
        assert "± is one standard deviation from step to step, of medians over the steps" in each
        assert "run: 3 steps" in each
        assert "1.000 ±0.1" in each
    assert values["medians_over_steps"] == [True, True]
    assert all(rung["change_ns_deviation"] is not None for rung in values["ladder"])
    assert all(None not in row["median_ns_deviation"] for row in values["kinds"])
    assert all(None not in way["median_ns_deviation"] for way in values["messages"])
    assert all(None not in pair for pair in values["parts_ns_deviation"].values())
    assert all(None not in pair for pair in values["critical_path_ns_deviation"].values())


def test_a_difference_that_steps_of_one_side_have_too_is_said_to_be_one() -> None:
    timelines = [step(slow=dict.fromkeys(range(3), factor)) for factor in (1.0, 1.1, 1.3)]

    lines = shown(diff(recorded(timelines, "0"), recorded(timelines, "1"))).splitlines()

    assert lines[2] == "different, but no more than steps of one side do"
    assert lines[1].count("~") == 1


def test_no_noise_is_known_of_what_does_not_vary() -> None:
    assert not Figure(0).is_noise
    assert Figure(3, 1).is_noise
    assert not Figure(3.1, 1).is_noise


def test_a_side_without_costs_has_no_memory_but_counts_what_it_holds() -> None:
    eager = [["0F0", "0F1", "0F2", "0F3", "0B0", "0B1", "0B2", "0B3"], *ROWS[1:]]
    difference = diff(side(step()), side(step(eager)))

    assert next((item.rank, item.peak_bytes, item.activations) for item in difference.memory) == (0, None, (3, 4))
    assert "microbatches whose activations are held, at most, by rank" in shown(difference)
    assert "microbatches whose activations are held, at most, by rank" in page_of(diff_document(difference))


def test_bytes_of_both_sides_are_listed_by_rank() -> None:
    costs = Workload.uniform(3, f_ns=0, b_ns=0, activation_bytes=1 << 30)
    known = replace(side(step()), workload=costs)
    difference = diff(known, replace(side(step(slow={1: 1.5})), workload=replace(costs, reserved_bytes=1 << 20)))

    assert [item.peak_bytes for item in difference.memory] == [
        (held << 30, (held << 30) + (1 << 20)) for held in (3, 2, 1)
    ]
    assert "  rank 0  3 GiB   3 GiB  +1 MiB" in shown(difference).splitlines()
