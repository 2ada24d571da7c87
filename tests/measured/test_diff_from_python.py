"""``pptrace.diff`` compares what ``pptrace.simulate`` and importers give, and paths."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from compared_steps import one_step, side_of_step

import pptrace
from pptrace.api import diff
from pptrace.timeline.measurement import Measurement

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", encoding="utf-8")
    return path


def test_a_path_and_its_run_are_the_same_step(table: Path) -> None:
    run = pptrace.simulate(schedule=str(table))

    difference = diff(table, run)

    assert difference.same
    assert difference.change == 0
    assert difference.summary() == str(difference) == repr(difference)
    assert "a simulation" in difference.summary()
    assert difference.to_dict()["step_ns"] == [run.metrics.step_ns] * 2


def test_a_measurement_is_a_side_with_its_notes(table: Path) -> None:
    steps = side_of_step(one_step([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]])).steps
    measurement = Measurement(steps=steps, notes=("rank 1 was late to the party",))

    difference = diff(str(table), measurement, tolerance=0.5, step=0)

    assert not difference.same
    assert "note: rank 1 was late to the party" in difference.summary(top=1)
    assert difference.notes[1].startswith(f"{table} has unit costs")
    assert difference.sides[1].measured


def test_it_is_saved_in_every_format(table: Path, tmp_path: Path) -> None:
    difference = diff(table, table)

    written = difference.save(tmp_path / "r.html", tmp_path / "b.pftrace", tmp_path / "b.tar")

    assert [path.name for path in written] == ["r.html", "b.pftrace", "b.tar"]
    assert all(path.stat().st_size for path in written)


@pytest.mark.parametrize("tolerance", ["2%", "0.02", 0.02])
def test_a_tolerance_is_a_share_as_the_command_line_takes_it(table: Path, tolerance: float | str) -> None:
    assert diff(table, table, tolerance=tolerance).findings.tolerance == 0.02


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), float("inf"), "two", "", "-2%", None, True])
def test_a_tolerance_that_is_none_is_refused(table: Path, tolerance: Any) -> None:
    with pytest.raises(pptrace.PptraceError, match=r"^tolerance: '.*' is not a share, such as 2% or 0.02$"):
        diff(table, table, tolerance=tolerance)


def test_an_output_without_a_format_is_refused(table: Path) -> None:
    with pytest.raises(pptrace.PptraceError, match=r"report\.doc: no such format"):
        diff(table, table).save("report.doc")


def test_it_can_be_called_again_where_nothing_of_the_package_was_imported_before(table: Path) -> None:
    program = f"import pptrace\nfor _ in range(2): print(pptrace.diff({str(table)!r}, {str(table)!r}).same)"

    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert printed.stdout == "True\nTrue\n"
