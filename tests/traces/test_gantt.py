"""Pictures of a step in time: bars are the step's own times, also where they are too many to have one each."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from msgspec.structs import replace
from shown_steps import MICROBATCHES, RANKS, step
from simulated_steps import SimulatedStep, simulated_steps

from pptrace.network.contract import Flat
from pptrace.report import step_drawing
from pptrace.report.step_drawing import Level, chart_of, write
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.critical_path import why
from pptrace.timeline.metrics import measure
from pptrace.timeline.trim import trim

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.report.step_drawing import Chart

SVG = "{http://www.w3.org/2000/svg}"


def taken(drawn: Chart, level: int, ranks: int) -> list[int]:
    total = [0] * ranks
    for bar in drawn.bars:
        assert drawn.start_ns <= bar.start_ns < bar.end_ns <= drawn.end_ns
        if bar.level == level:
            total[bar.rank] += bar.end_ns - bar.start_ns
    return total


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(simulated_steps(min_ns=0))
def test_bars_of_work_and_of_waits_are_the_metrics(drawn: SimulatedStep) -> None:
    metrics, picture = measure(drawn.timeline, drawn.workload), chart_of(drawn.timeline)

    assert taken(picture, Level.WORK, metrics.ranks) == metrics.busy_ns.tolist()
    assert taken(picture, Level.WAIT, metrics.ranks) == metrics.idle_ns.sum(axis=1).tolist()
    assert sum(taken(picture, Level.PATH, metrics.ranks)) == sum(
        took for kind, took in metrics.path.by_kind_ns.items() if kind not in {"wire", "wait"}
    )
    assert not picture.sampled


def test_too_many_bars_are_sampled_within_a_column_s_width(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = step("async")
    exact = chart_of(timeline)
    monkeypatch.setattr(step_drawing, "_MOST_BARS", 100)

    sampled = chart_of(timeline)

    assert sampled.sampled
    assert not any(bar.label or bar.title for bar in sampled.bars)
    column = (sampled.end_ns - sampled.start_ns) / 1600
    for level in (Level.WORK, Level.WAIT):
        differences = np.subtract(taken(sampled, level, RANKS), taken(exact, level, RANKS))
        assert np.abs(differences).max() <= column * 2 * MICROBATCHES


def test_a_long_step_is_drawn_as_warm_up_a_steady_part_and_drain(tmp_path: Path) -> None:
    count = 200
    rows = [
        [*(f"{rank}F{each}" for each in range(4 - rank)),
         *(name for each in range(count - 4 + rank) for name in (f"{rank}B{each}", f"{rank}F{each + 4 - rank}")),
         *(f"{rank}B{each}" for each in range(count - 4 + rank, count))]
        for rank in range(4)
    ]  # fmt: skip
    costs = Workload.uniform(4, f_ns=1_000_000, b_ns=2_000_000)
    timeline = simulate(Schedule.from_rows(rows), costs, Flat(), Policy())

    drawn = chart_of(timeline)

    (first, warm), (steady, _), (drain, last) = drawn.windows
    assert (first, last) == (0, (count + 3) * 3_000_000)
    assert warm > 10_000_000  # rank 0 starts its first backward after four forwards and three backwards
    assert warm < steady < drain < last - 10_000_000
    assert not drawn.sampled
    for start, end in drawn.windows:
        for rank in range(4):
            bars = sorted(
                (bar.start_ns, bar.end_ns) for bar in drawn.bars
                if bar.rank == rank and bar.level in {Level.WORK, Level.WAIT} and start <= bar.start_ns < end
            )  # fmt: skip
            assert [start, *(stop for _, stop in bars)] == [*(begin for begin, _ in bars), end]
    write(timeline, tmp_path / "step.svg", {}, ".svg")
    assert (tmp_path / "step.svg").read_text().count(">+ ") == 2


def test_a_picture_of_some_ranks_has_their_lanes_and_the_whole_s_causes() -> None:
    whole = replace(step("async"), why=why(step("async")))

    part = chart_of(trim(whole, [3, 7], None))

    assert part.ranks == (3, 7)
    assert taken(part, Level.WAIT, RANKS)[3] == taken(chart_of(whole), Level.WAIT, RANKS)[3]


def test_an_svg_has_a_lane_per_rank_a_tooltip_per_bar_and_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        write(step("async"), tmp_path / name, {"title": "a <step>"}, ".svg")

    text = (tmp_path / "one.svg").read_text()
    root = ET.fromstring(text)  # noqa: S314 - our own
    titles = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert text == (tmp_path / "two.svg").read_text()
    assert next(t.text for t in root.iter(f"{SVG}text")) == "a <step>"
    assert sum(title.startswith("0B") for title in titles) == MICROBATCHES
    assert "0F3: 1 ms from 3 ms" in titles
    assert any(title.startswith("waits: peer-compute, for rank 1") for title in titles)


@pytest.mark.parametrize(("suffix", "head"), [(".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_pictures_are_of_their_format(suffix: str, head: bytes, tmp_path: Path) -> None:
    write(step("blocking"), tmp_path / "one.tmp", {}, suffix)

    assert (tmp_path / "one.tmp").read_bytes().startswith(head)


@pytest.mark.parametrize(("microbatches", "labelled"), [(24, True), (400, False)])
def test_either_all_microbatches_of_a_sort_are_labelled_or_none(
    tmp_path: Path, microbatches: int, *, labelled: bool
) -> None:
    rows = [
        [*(f"{r}F{m}" for m in range(microbatches)), *(f"{r}B{m}" for m in range(microbatches))] for r in (0, 1)
    ]
    costs = Workload.uniform(2, f_ns=1_000_000, b_ns=1_000_000)
    timeline = simulate(Schedule.from_rows(rows), costs, Flat(), Policy())
    write(timeline, tmp_path / "a.svg", {}, ".svg")

    labels = Counter(re.findall(r'class="on">(\d+)<', (tmp_path / "a.svg").read_text()))
    assert labels == (Counter({str(m): 4 for m in range(microbatches)}) if labelled else Counter())
