"""Beside a job that runs: a measured step gives a better table, once, and again when another one comes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from toy_pipelines import table

from pptrace.api import simulate
from pptrace.plugin import Placement
from pptrace.steps.text_forms import write_table
from pptrace_optpipe.command import command, files_of
from pptrace_optpipe.listing import serial_rows
from pptrace_optpipe.setting import table_of

if TYPE_CHECKING:
    from pathlib import Path

STEP: dict[str, Any] = {
    "parallel": {"pp": 2}, "batch": {"microbatches": 4}, "schedule": "serial.csv",
    "costs": {"name": "table", "forward": "10 ms", "input_gradient": "10 ms", "weight_gradient": "10 ms"},
}  # fmt: skip


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a step of one microbatch after another, as if it had been measured."""
    monkeypatch.setenv("PPTRACE_OPTPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "schedules,stp")
    monkeypatch.chdir(tmp_path)
    write_table(
        table_of(serial_rows(table(2, 4, 1, copies=False), copied=False), Placement.looped(2, 4, 1)), "serial.csv"
    )
    (tmp_path / "run").mkdir()
    simulate(STEP).save(tmp_path / "run" / "step.json")
    return tmp_path / "run"


def watch(*arguments: str) -> Any:
    words = ["run", "--watch", "-o", "better.csv", "--work", "0.3", "--rounds", "1", *arguments]
    return CliRunner().invoke(command, words, catch_exceptions=False)


def test_a_better_table_is_written_and_only_once() -> None:
    first, again = watch(), watch()

    assert first.stdout == (
        "130.000 ms in place of 200.000 ms (the measured order): 35.0% shorter, more than the noise of 0.0%\n"
    )
    step = simulate({**STEP, "schedule": "better.csv"}).metrics.step_ns
    assert step == 130_000_000
    assert again.stdout.startswith(
        "130.000 ms in place of 130.000 ms (better.csv): 0.0% is not more than the noise"
    )


def test_only_what_changes_is_new(run: Path) -> None:
    before = files_of(run)

    assert files_of(run) == before != []
    shutil.copy(run / "step.json", run / "next.json")
    assert files_of(run) != before


def test_a_measurement_that_cannot_be_used_is_one_line(run: Path, tmp_path: Path) -> None:
    (run / "step.json").write_text("{}", encoding="utf-8")

    result = watch()

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "run: " in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "better.csv").exists()


@pytest.mark.parametrize("arguments", [["run", "--watch"], ["run", "--watch", "-o", "x.csv", "--rounds", "0"]])
def test_wrong_use_is_said(arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2
