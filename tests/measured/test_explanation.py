"""An explained step: its parts sum to it, and with several steps every figure says by how much it varies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from compared_steps import MS, one_step, side_of_step, without_row
from msgspec.structs import replace

from pptrace.measured.computations import extract_computations
from pptrace.measured.explanation import Explanation, explain, explanation_document
from pptrace.measured.sides import measured_side, notes_of
from pptrace.report.document import plain, text_of
from pptrace.report.numbers import with_deviations
from pptrace.steps.kinds import Kind
from pptrace.timeline.measurement import Measurement, Step, Unattributed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.report.document import Document
    from pptrace.timeline.timeline import Timeline

FACTORS = (1.0, 1.1, 1.3)


@pytest.fixture
def measurement() -> Measurement:
    timelines = [one_step(slow=dict.fromkeys(range(3), factor)) for factor in FACTORS]
    steps = [
        Step(label=f"step {at}", timeline=item, gap_ns=np.zeros(len(item), dtype=np.int64))
        for at, item in enumerate(timelines)
    ]
    lost = Unattributed(rank=1, what="memset", count=3, total_ns=2 * MS)
    return Measurement(steps=tuple(steps), unattributed=(lost,))


@pytest.fixture
def steps(measurement: Measurement) -> list[Explanation]:
    return [explain(measured_side(measurement, "run", str(at))) for at in range(3)]


def test_parts_and_the_critical_path_are_the_step(steps: list[Explanation]) -> None:
    for item in steps:
        assert sum(time.value for time in item.parts_ns.values()) == item.step_ns.value
        assert sum(time.value for time in item.critical_path_ns.values()) == item.step_ns.value
        for rank, idle in zip(item.ranks, item.idle_ns, strict=True):
            assert rank.busy_ns.value + idle.value == item.step_ns.value


def document_of(one: Explanation, steps: Sequence[Explanation], measurement: Measurement) -> Document:
    lengths = [int(each.step_ns.value) for each in steps]
    return explanation_document("run", with_deviations(one, steps if len(steps) > 1 else []), lengths, measurement)


def test_every_figure_varies_as_the_steps_do(steps: list[Explanation], measurement: Measurement) -> None:
    values = plain(document_of(steps[1], steps, measurement))

    assert values["step_ns_deviation"] == round(float(np.std([item.step_ns.value for item in steps], ddof=1)))
    computing = round(float(np.std([120 * MS * item for item in FACTORS], ddof=1)))
    assert values["parts_ns_deviation"]["compute"] == computing
    figures = {
        "step_ns",
        "bubble",
        "parts_ns",
        "idle_by_cause_ns",
        "exposed_communication_ns",
        "critical_path_ns",
        "idle_ns",
        "unrecorded_ns",
    }
    assert figures | {f"{name}_deviation" for name in figures} == values.keys() - {
        "step", "ranks", "what_if", "no_what_if", "lengths_ns", "unattributed", "notes", "partial", "groups_ns",
            "hidden_ns",
    }  # fmt: skip
    assert len(values["ranks"]) == len(values["idle_ns_deviation"]) == 3
    for inner in (*values["ranks"], values["what_if"]):
        assert {f"{name}_deviation" for name in inner if name.endswith("_ns")} < inner.keys()


def test_the_text_has_the_deviations_and_says_what_they_are(
    steps: list[Explanation], measurement: Measurement
) -> None:
    text = text_of(document_of(steps[1], steps, measurement))

    assert "3 steps, " in text
    assert "± is one standard deviation from step to step" in text
    assert "compute       132.000 ±18.330 ms" in text
    assert text.endswith("rank 1: 3 memset belong to no action, 2.000 ms")


def test_one_step_varies_by_nothing_that_is_known(steps: list[Explanation], measurement: Measurement) -> None:
    document = document_of(steps[0], steps[:1], measurement)

    assert [name for name in plain(document) if name.endswith("_deviation")] == []
    assert "±" not in text_of(document)


def test_a_wait_for_an_action_that_is_not_there_stays_as_long_as_it_was(measurement: Measurement) -> None:
    item = explain(side_of_step(lacking_1f3(measurement.steps[0].timeline)))
    document = document_of(item, [item], measurement)

    assert item.what_if is not None
    assert item.what_if.replayed_ns == item.step_ns
    assert item.unrecorded_ns.value > 0
    assert "waits for unrecorded computations are not shortened: " in text_of(document)


def test_what_cannot_be_replayed_is_explained_but_for_what_would_shorten_it(measurement: Measurement) -> None:
    timeline = measurement.steps[0].timeline
    kind = timeline.kind.copy()
    rows = [int(np.flatnonzero((kind == entry) & (timeline.stage == 0) & (timeline.microbatch == 0))[0])
            for entry in (Kind.F, Kind.B)]  # fmt: skip
    kind[rows] = kind[rows[::-1]]
    item = explain(side_of_step(replace(timeline, kind=kind)))
    document = document_of(item, [item], measurement)

    assert item.what_if is None
    assert "comes before" in item.no_what_if
    assert "unknown, because the step cannot be replayed: " in text_of(document)
    assert plain(document)["what_if"] is None


def test_a_step_that_lacks_actions_is_left_out_unless_it_is_asked_for(measurement: Measurement) -> None:
    whole = measurement.steps[0]
    short = Step(
        label="cut", timeline=lacking_1f3(whole.timeline), gap_ns=np.zeros(len(whole.gap_ns) - 1, np.int64)
    )
    run = Measurement(steps=(short, *measurement.steps))

    median, asked = (measured_side(run, "run", step) for step in ("median", "0"))

    assert [step.label for step in median.steps] == ["step 0", "step 1", "step 2"]
    assert median.steps[median.chosen].label == "step 1"
    assert median.incomplete == ("cut has 23 of 24 actions: skipped",)
    assert [step.label for step in asked.steps] == ["cut"]
    assert asked.incomplete == ("cut has 23 of 24 actions",)
    assert measured_side(run, "run", "2").chosen == 1
    assert measured_side(run, "run", "all").pools
    assert "run: cut has 23 of 24 actions: skipped" in notes_of(median)


def lacking_1f3(timeline: Timeline) -> Timeline:
    own = extract_computations(timeline)
    (at,) = np.flatnonzero((own.stage == 1) & (own.microbatch == 3) & (own.kind == Kind.F))
    return without_row(timeline, int(own.row[at]))
