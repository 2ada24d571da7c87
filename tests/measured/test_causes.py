"""Causes are ranked by what the step gains without them; the first is in the direction of the change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from compared_steps import MS, one_step, side_of_step, slower_way, stretched
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pptrace.measured.causes import Blame, candidates, rank_causes
from pptrace.measured.computations import extract_computations
from pptrace.measured.diff import diff
from pptrace.measured.diff_document import blame, diff_document
from pptrace.measured.replay import Resimulation
from pptrace.report.document import plain, text_of
from pptrace.report.numbers import Figure, Sides
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from pptrace.measured.diff import StepDiff
    from pptrace.timeline.timeline import Timeline


def compared(first: Timeline, second: Timeline) -> StepDiff:
    return diff(side_of_step(first), side_of_step(second))


def scaled(timeline: Timeline, factor: float, kind: Kind | None = None) -> Timeline:
    """Return a step in which all actions, or those of a kind, take longer by a factor."""
    step = extract_computations(timeline)
    chosen = np.full(len(step), fill_value=True) if kind is None else step.kind == kind
    longer = replace(
        step, duration_ns=np.where(chosen, (step.duration_ns * factor).astype(np.int64), step.duration_ns)
    )
    return Resimulation.of_order(longer.order).run(longer.times())


@settings(max_examples=10)
@given(stage=st.integers(0, 2), factor=st.floats(1.06, 3))
def test_the_effect_of_the_only_fault_is_the_change_of_the_step(stage: int, factor: float) -> None:
    found = compared(one_step(), one_step(slow={stage: factor}))

    (cause,) = found.causes
    assert cause.kind == "slow rank"
    assert cause.what.startswith(f"rank {stage}")
    assert cause.effect_ns.value == pytest.approx(found.step_ns.change.value, abs=100)


@pytest.mark.parametrize(("kind", "word"), [(Kind.F, "forward"), (Kind.B, "backward")])
def test_a_kind_that_is_slower_on_all_ranks_is_named_and_no_rank(kind: Kind, word: str) -> None:
    (cause,) = compared(one_step(), scaled(one_step(), 1.15, kind)).causes

    assert (cause.kind, cause.what) == ("slow kind", f"{word} on all ranks")
    assert cause.share.value == pytest.approx(0.15, abs=1e-6)


def test_a_kind_of_one_stage_is_named_with_its_stage() -> None:
    first = one_step()
    step = extract_computations(first)
    chosen = (step.kind == Kind.B) & (step.stage == 2)
    slow = replace(step, duration_ns=np.where(chosen, step.duration_ns * 3 // 2, step.duration_ns))
    (cause,) = compared(first, Resimulation.of_order(slow.order).run(slow.times())).causes

    assert (cause.kind, cause.what) == ("slow stage", "backward of stage 2 on rank 2")


def test_the_first_cause_is_in_the_direction_of_the_change() -> None:
    faster = slower_way(scaled(one_step(), 0.95), 1, 2, 1.2)
    found = compared(one_step(), faster)
    document = diff_document(found)

    assert found.step_ns.change.value < 0
    assert (found.causes[0].kind, found.causes[0].what) == ("drift", "all ranks")
    assert blame(found).startswith("Largest speed-up, a drift: all ranks; durations -5.0%")
    assert [(remark.kind, remark.what) for remark in found.remarks] == [("slow link", "rank 1 to rank 2")]
    assert "little effect on the step: slow link rank 1 to rank 2" in text_of(document)
    assert [row["kind"] for row in plain(document)["remarks"]] == ["slow link"]


def test_what_works_against_the_change_comes_after_what_makes_it() -> None:
    slower = stretched(scaled(one_step(), 0.9, Kind.F), "2B3", 60 * MS)
    found = compared(one_step(), slower)

    assert found.step_ns.change.value > 0
    assert [cause.kind for cause in found.causes] == ["spikes", "fast kind"]
    assert found.causes[0].effect_ns.value > 0 > found.causes[1].effect_ns.value


def test_causes_that_only_repeat_another_are_remarks() -> None:
    """Without the first candidate the second one has no effect left."""
    names = candidates(
        Blame(
            common=Figure(0.1), kinds={Kind.F: Figure(0.2)}, ranks={}, stages={}, cells={}, links={},
            network=Figure(0.0), before_ns={(0, 0, Kind.F): 100.0},
        ),
        {}, {}, 0.02,
    )  # fmt: skip
    drift, kind = names
    effects = {drift.cause.what: 10.0, kind.cause.what: 9.0}
    causes, remarks = rank_causes(
        names,
        Sides(Figure(100), Figure(110)),
        lambda found, taken: [0.0 if taken else effects[candidate.cause.what] for candidate in found],
    )

    assert [cause.what for cause in causes] == [drift.cause.what]
    assert [(remark.what, remark.effect_ns.value) for remark in remarks] == [(kind.cause.what, 0.0)]


def test_without_replays_total_changes_are_ranked() -> None:
    names = candidates(
        Blame(
            common=Figure(-0.1), kinds={Kind.F: Figure(0.9)}, ranks={}, stages={}, cells={}, links={},
            network=Figure(0.0), before_ns={(0, 0, Kind.F): 100.0, (0, 0, Kind.B): 1000.0},
        ),
        {}, {}, 0.02,
    )  # fmt: skip
    causes, remarks = rank_causes(names, Sides(Figure(100), Figure(105)), None)

    assert [(cause.kind, cause.total_ns) for cause in causes] == [("slow kind", 90), ("drift", -110)]
    assert remarks == ()
    assert not causes[0].effect_ns.known
