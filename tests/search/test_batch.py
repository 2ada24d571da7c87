"""Many configurations are simulated in any executor; finished rows are kept, failures cost no other row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.search.runner import simulate_many

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.run.figures import Row
    from pptrace.run.run import Run


def figures(run: Run) -> Row:
    return {"step_ns": run.step_ns}


@pytest.fixture
def configurations(tmp_path: Path) -> list[dict[str, Any]]:
    table = tmp_path / "table.csv"
    table.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    costs = [{"name": "table", "forward": f"{forward} ms", "backward": "2 ms"} for forward in (1, 3)]
    return [{"schedule": str(table), "costs": each} for each in costs]


def test_rows_are_those_of_single_simulations_in_order(configurations: list[dict[str, Any]]) -> None:
    rows = simulate_many(configurations, figures, executor="serial")

    assert rows == [{"step_ns": pptrace.simulate(each).step_ns} for each in configurations]
    assert rows == simulate_many(configurations, figures, workers=2)


def test_a_configuration_that_cannot_be_simulated_costs_no_other(configurations: list[dict[str, Any]]) -> None:
    broken = {"schedule": "nobody-s", "parallel": {"pp": 2}, "batch": {"microbatches": 2}}

    rows = simulate_many([broken, configurations[0]], figures, executor="serial")

    assert "nobody-s" in str(rows[0]["error"])
    assert rows[1]["step_ns"]


def test_figures_that_fail_are_reported_as_a_bug(configurations: list[dict[str, Any]]) -> None:
    (row,) = simulate_many(configurations[:1], lambda _: {"never": 1 // 0}, executor="serial")

    assert str(row["error"]).endswith("(a bug: pptrace simulate shows where)")


def test_finished_rows_are_taken_from_the_journal_unless_they_are_not_wanted(
    configurations: list[dict[str, Any]], tmp_path: Path
) -> None:
    journal = tmp_path / "rows.csv.journal"
    simulate_many(configurations[:1], lambda _: {"step_ns": 7}, executor="serial", journal=journal)

    counts: list[tuple[int, int]] = []
    resumed = simulate_many(
        configurations, figures, executor="serial", journal=journal, progress=lambda *count: counts.append(count)
    )
    fresh = simulate_many(configurations, figures, executor="serial", journal=journal, fresh=True)

    assert counts == [(1, 2), (2, 2)]
    assert resumed[0]["step_ns"] == 7
    assert resumed[1] == fresh[1]
    assert fresh[0]["step_ns"] == pptrace.simulate(configurations[0]).step_ns
