"""Steps of which one side lacks a rank or the end of a rank's file: common ranks are compared, with a mark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from compared_steps import ROWS, one_step, side_of_step, without_row
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pptrace.errors import ConfigError, ScheduleError
from pptrace.measured.diff import diff
from pptrace.measured.diff_document import diff_document
from pptrace.measured.explanation import explain, explanation_document
from pptrace.measured.replay import replay
from pptrace.measured.sides import on_common_ranks, partial_data
from pptrace.report.document import page_of, plain, text_of
from pptrace.timeline.messages import compute_rows
from pptrace.timeline.trim import select_ranks

if TYPE_CHECKING:
    from pptrace.measured.diff import StepDiff
    from pptrace.measured.sides import Side


def recorded(*ranks: int, name: str = "run", slow: float = 1.0) -> Side:
    """Return a side of a pipeline of three ranks with recordings of some of them; stage 1 is slow."""
    timeline = one_step(slow={1: slow})
    side = side_of_step(select_ranks(timeline, ranks)[0], name, measured=True)
    missing = tuple(rank for rank in range(3) if rank not in ranks)
    return replace(side, numbers=ranks if missing else (), ranks=3, missing_ranks=missing)


def compared(a: Side, b: Side) -> StepDiff:
    return diff(*on_common_ranks(a, b))


@pytest.mark.parametrize("kept", [(0, 1), (0, 2), (1, 2), (1,), (2,)])
def test_a_missing_rank_leaves_the_times_of_other_ranks_as_they_are(kept: tuple[int, ...]) -> None:
    whole = compared(recorded(0, 1, 2), recorded(0, 1, 2, slow=1.25))
    found = compared(recorded(0, 1, 2), recorded(*kept, slow=1.25))

    assert found.ladder == ()
    assert "partial" in found.no_ladder
    assert found.orders == ()
    assert not found.matched.only_first
    assert {row.stage for row in found.kinds.values()} == set(kept)
    assert all(found.kinds[key].ratio == whole.kinds[key].ratio for key in found.kinds)
    assert {change.rank for change in found.changes} == ({1} & set(kept))
    assert not found.same


@given(ranks=st.sets(st.integers(0, 2), min_size=1, max_size=2))
def test_a_step_with_fewer_ranks_does_not_differ_from_itself(ranks: set[int]) -> None:
    kept = tuple(sorted(ranks))
    found = compared(recorded(*kept), recorded(*kept))

    assert found.step_ns.change.value == 0
    assert found.changes == found.causes == ()
    assert all(pair.change.value == 0 for pair in found.parts_ns.values())
    assert found.same


def test_text_json_and_page_have_a_mark_and_its_footnote() -> None:
    document = diff_document(compared(recorded(0, 1, 2, name="before"), recorded(0, 2, slow=1.25)))
    sentence = "run has no data of rank 1; figures are those of ranks 0 and 2"
    text, page = text_of(document), page_of(document)

    assert f"partial data: {sentence}" in text.splitlines()
    assert f"* partial data: {sentence}" in text.splitlines()
    titles = [line for line in text.split("\n\n")[1:] if line]
    assert all(title.splitlines()[0].endswith(" *") for title in titles)
    assert page.count("*</h2>") == page.count("<h2") == page.count("<section>")
    assert f"* partial data: {sentence}" in page
    assert plain(document)["partial"] == sentence


def test_whole_steps_have_no_mark() -> None:
    document = diff_document(compared(recorded(0, 1, 2), recorded(0, 1, 2, slow=1.25)))

    assert "partial" not in text_of(document)
    assert " *" not in text_of(document)
    assert plain(document)["partial"] is None


def test_a_rank_whose_file_ends_early_is_named_with_the_number_of_its_actions() -> None:
    whole = one_step()
    cut = whole
    for row in compute_rows(whole)[1][:4:-1].tolist():
        cut = without_row(cut, row)
    found = compared(side_of_step(whole, "before"), side_of_step(cut, "cut", measured=True))

    assert found.partial == "cut has 5 of 8 actions of rank 1"
    assert found.ladder == ()
    assert not found.same


def test_ranks_without_actions_for_weight_gradients_lack_none() -> None:
    split = [[each for action in row for each in split_backward(action)] for row in ROWS]
    whole = side_of_step(one_step(), "before", measured=True)
    step = select_ranks(one_step(split), (0, 2))[0]
    cut = replace(side_of_step(step, measured=True), numbers=(0, 2), ranks=3, missing_ranks=(1,))

    assert compared(whole, cut).partial == "step has no data of rank 1; figures are those of ranks 0 and 2"


def split_backward(action: str) -> list[str]:
    """Return the actions of input and weight gradient of a backward; other actions as they are."""
    return [action.replace("B", "I"), action.replace("B", "W")] if "B" in action else [action]


def test_sides_of_one_name_lack_a_rank_once() -> None:
    found = compared(recorded(0, 2), recorded(0, 2))

    assert found.partial == "run has no data of rank 1; figures are those of ranks 0 and 2"


def test_an_explanation_keeps_the_numbers_of_ranks() -> None:
    side = recorded(0, 2)
    explained = explain(side)
    text = text_of(explanation_document("run", explained, [1], None, partial_data([side])))

    assert [load.rank for load in explained.ranks] == [0, 2]
    assert "rank 2 " in text
    assert "rank 1 " not in text
    assert "run has no data of rank 1; figures are those of ranks 0 and 2" in text


def test_sides_without_a_common_rank_are_an_error_in_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^run: has files of rank 1, before of rank 0: no rank is on both sides$"
    ):
        on_common_ranks(recorded(0, name="before"), recorded(1))


def test_a_step_without_actions_is_not_replayed() -> None:
    timeline = one_step()
    for row in sorted(np.concatenate(compute_rows(timeline)), reverse=True):
        timeline = without_row(timeline, int(row))

    with pytest.raises(ScheduleError, match="the step has no actions"):
        replay(timeline)
