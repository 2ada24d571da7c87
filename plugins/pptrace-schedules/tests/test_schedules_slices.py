"""Eager 1F1B leaves messages more time; Seq1F1B runs slices of sequences, of which later ones cost more."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import pptrace
from pptrace.errors import ConfigError
from pptrace.plugins.requests import ScheduleRequest
from pptrace.steps.kinds import Kind
from pptrace.testing import assert_schedule_family, grid
from pptrace_schedules import seq_1f1b
from pptrace_schedules.seq_1f1b import OFFER


def run(name: str, *, pp: int, microbatches: int, **options: Any) -> pptrace.Run:
    costs = {"name": "unit", "unit": "4800 ns", "activation": "48 B", "boundary": "96 B"}
    schedule = {"name": name, "options": options}
    return pptrace.simulate(
        {"schedule": schedule, "parallel": {"pp": pp}, "batch": {"microbatches": microbatches}, "costs": costs}
    )


def units(one: pptrace.Run) -> Fraction:
    return Fraction(one.metrics.step_ns, 4800)


@pytest.mark.parametrize("slices", [1, 2, 3, 4, 7])
def test_closed_forms_hold_for_every_size(slices: int) -> None:
    sizes = grid(ranks=range(1, 7), microbatches=(1, 2, 3, 8), options={"slices": slices})

    assert_schedule_family(OFFER, sizes=sizes, growth=False)


@pytest.mark.parametrize(("slices", "parts_of_a_unit"), [(1, 69), (2, 117), (4, 213)])
def test_the_step_of_8_ranks_and_16_microbatches(slices: int, parts_of_a_unit: int) -> None:
    item = run("seq-1f1b", pp=8, microbatches=16, slices=slices)

    assert units(item) * slices == parts_of_a_unit
    assert item.metrics.busy_ns.tolist() == [16 * 3 * 4800] * 8
    assert int(item.metrics.memory.peak_activation_bytes[0]) * slices == 48 * (7 + slices)


def test_slices_are_not_reported_as_microbatches() -> None:
    assert run("seq-1f1b", pp=2, microbatches=3, slices=4).prepared.batch_text == "3 microbatches in 4 slices each"
    assert run("seq-1f1b", pp=2, microbatches=3, slices=1).prepared.batch_text == "3 microbatches"
    assert run("eager-1f1b", pp=2, microbatches=3).prepared.batch_text == "3 microbatches"


def test_slices_go_forward_in_order_and_backward_from_the_last() -> None:
    row = run("seq-1f1b", pp=2, microbatches=3, slices=3).prepared.schedule[0]

    forward, backward = ([item.microbatch for item in row if item.kind is kind] for kind in (Kind.F, Kind.B))
    assert forward == list(range(9))
    assert backward == [2, 1, 0, 5, 4, 3, 8, 7, 6]


@pytest.mark.parametrize("attention", [0, 0.25, 1])
@pytest.mark.parametrize("slices", [1, 2, 4])
def test_later_slices_take_more_of_attention_and_all_together_what_the_whole_takes(
    slices: int, attention: float
) -> None:
    item = run("seq-1f1b", pp=4, microbatches=4, slices=slices, attention=attention)

    assert item.metrics.busy_ns.tolist() == [4 * 3 * 4800] * 4
    timeline = item.timeline
    for row in range(len(timeline)):
        action, took = timeline[row].action, timeline[row].end_ns - timeline[row].start_ns
        if action.kind is Kind.F:
            place = action.microbatch % slices
            core = Fraction(attention) * (2 * place + 1) / slices**2
            assert took == 4800 * ((1 - Fraction(attention)) / slices + core)
    # Tokens are alike, and with them activations and messages.
    assert {int(each) for cost in (item.prepared.workload, *item.prepared.workload.classes)
            for each in cost.activation_bytes} == {48 // slices}  # fmt: skip


def test_unlike_slices_of_unlike_microbatches() -> None:
    item = pptrace.simulate(
        schedule={"name": "seq-1f1b", "options": {"slices": 2, "attention": 0.5}}, parallel={"pp": 1},
        batch={"microbatches": 2},
        costs={"name": "table", "forward": "80 ns", "backward": "160 ns", "lengths": [1, 2]},
    )  # fmt: skip

    took = [item.timeline[row].end_ns - item.timeline[row].start_ns for row in range(len(item.timeline))]
    # Of a half's time, a quarter less in the first slice and as much more in the second.
    assert sorted(took) == [30, 50, 60, 60, 100, 100, 120, 200]


def test_eager_1f1b_hides_messages_that_1f1b_waits_for() -> None:
    def step(name: str) -> int:
        return pptrace.simulate(
            schedule=name, parallel={"pp": 8}, batch={"microbatches": 64},
            costs={"name": "table", "forward": "10 ms", "backward": "20 ms", "boundary": "100 MB"},
            network={"name": "hockney", "bandwidth": "10 GB/s"},
        ).metrics.step_ns  # fmt: skip

    # A message takes as long as a forward. There and back, 1F1B waits for it with every microbatch.
    assert step("eager-1f1b") < 1.12 * 71 * 30_000_000
    assert step("1f1b") > 1.4 * 71 * 30_000_000


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"slices": 0}, "schedule.options.slices: must be at least 1, not 0"),
        ({"attention": 1.5}, "schedule.options.attention: must be at most 1, not 1.5"),
    ],
)
def test_what_cannot_be_is_one_line(options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        run("seq-1f1b", pp=2, microbatches=2, **options)


def test_shares_of_slices_sum_to_one() -> None:
    for slices in (1, 3, 8):
        request = ScheduleRequest(ranks=1, microbatches=1, options={"slices": slices, "attention": 0.3})
        assert sum(seq_1f1b.part_times(request)) == 1
