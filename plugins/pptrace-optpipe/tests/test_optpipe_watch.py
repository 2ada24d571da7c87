"""Beside a job that runs: a measured step gives a better table, once, and again when another one comes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from toy_pipelines import toy

from pptrace.api import simulate
from pptrace.cli.main import cli
from pptrace.plugin import Placement, PptraceError
from pptrace.steps.text_forms import load_table, write_table
from pptrace_optpipe.command import command, files_of
from pptrace_optpipe.listing import serial_rows
from pptrace_optpipe.setting import table_of

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
        table_of(serial_rows(toy(2, 4, 1, copies=False), copied=False), Placement.looped(2, 4, 1)), "serial.csv"
    )
    (tmp_path / "run").mkdir()
    simulate(STEP).save(tmp_path / "run" / "step.json")
    return tmp_path / "run"


def watch(*arguments: str) -> Any:
    words = ["run", "--watch", "-o", "better.csv", "--work", "0.1", "--rounds", "1", *arguments]
    return CliRunner().invoke(command, words, catch_exceptions=False)


def optimize(*arguments: str) -> Any:
    words = ["run", "--work", "0.1", *arguments]
    return CliRunner().invoke(command, words, catch_exceptions=False)


def with_all_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search from all schedules with their default options; commands run in this process."""
    pytest.importorskip("pptrace_schedules")
    monkeypatch.delenv("PPTRACE_DISABLE_PLUGINS")
    monkeypatch.setattr("pptrace_optpipe.start_schedules._options", lambda *_: iter(()))
    monkeypatch.setattr("pptrace_optpipe.command._pptrace", lambda *words: CliRunner().invoke(cli, words).stdout)


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


@pytest.mark.parametrize("words", [[], ["--watch", "--rounds", "1"]])
def test_a_measurement_that_cannot_be_used_is_one_line(run: Path, tmp_path: Path, words: list[str]) -> None:
    (run / "step.json").write_text("{}", encoding="utf-8")

    with pytest.raises(PptraceError) as caught:
        optimize("-o", "better.csv", *words)

    assert caught.value.exit_code == 2
    assert "no importer recognises the file" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "better.csv").exists()


def test_a_run_is_searched_from_without_watching() -> None:
    result = optimize("-o", "better.csv")

    assert result.stdout.startswith("130.000 ms in place of 200.000 ms (the measured order): 35.0% shorter")
    assert simulate({**STEP, "schedule": "better.csv"}).metrics.step_ns == 130_000_000
    values = json.loads(optimize("--json").stdout)
    assert (values["stages"], values["is_placement_kept"]) == (2, True)
    assert values["run"] == {
        "schedule": "the measured order", "step_ns": 200_000_000, "noise": 0.0, "uncertainty": None,
    }  # fmt: skip


def test_the_stages_of_a_run_are_kept_unless_they_may_vary(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks with 1F1B; V tables of eight stages are shorter."""
    with_all_schedules(monkeypatch)
    simulate({**STEP, "schedule": "1f1b", "parallel": {"pp": 4}}).save(run / "step.json")

    kept = json.loads(optimize("--json", "-o", "kept.csv").stdout)
    line, *report = optimize("--vary-stages").stdout.splitlines()

    assert (kept["stages"], kept["is_placement_kept"]) == (4, True)
    assert kept["bound_ns"] <= kept["step_ns"] < kept["run"]["step_ns"]
    assert {cell for cell in Path("kept.csv").read_text(encoding="utf-8") if cell in "4567"} == set()
    assert float(line.split()[0]) * 1e6 < kept["step_ns"]
    assert " with stages 8 in place of 4: " in line
    assert "stages    8 in place of 4" in report


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "zb-v", "dualpipe-v"])
def test_a_run_keeps_its_placement(run: Path, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_all_schedules(monkeypatch)
    step = simulate({**STEP, "schedule": schedule, "parallel": {"pp": 2, "vp": 2}})
    step.save(run / "step.json")

    result = optimize("-o", "better.csv")

    assert load_table("better.csv").schedule.placement == step.prepared.schedule.placement
    assert f"({schedule})" in result.stdout.splitlines()[0]


def test_a_run_of_slices_is_compared_with_tables_of_whole_microbatches(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_all_schedules(monkeypatch)
    step = simulate({**STEP, "schedule": {"name": "seq-1f1b", "options": {"slices": 2}}})
    step.save(run / "step.json")

    best = json.loads(optimize("--json", "-o", "better.csv").stdout)

    assert best["run"]["schedule"] == "seq-1f1b"
    assert best["run"]["step_ns"] == step.metrics.step_ns
    assert best["is_placement_kept"]
    assert best["step_ns"] < step.metrics.step_ns
    assert load_table("better.csv").schedule.microbatches == 4


def test_the_chunks_of_a_schedule_of_slices_keep_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    with_all_schedules(monkeypatch)
    Path("step.yaml").write_text(json.dumps({**STEP, "schedule": {"name": "seq-1f1b"}}), encoding="utf-8")
    words = ["step.yaml", "--work", "0.1", "--set", "parallel.vp=1", "-o", "best.csv"]

    CliRunner().invoke(command, words, catch_exceptions=False)

    assert simulate({**STEP, "schedule": "best.csv"}).prepared.slices == 1


def test_of_several_runs_in_a_folder_the_newest_is_searched_from(run: Path) -> None:
    (run / "step.json").unlink()
    for age, (name, forward) in enumerate((("old", "50 ms"), ("new", "10 ms"))):
        (run / name).mkdir()
        simulate({**STEP, "costs": {**STEP["costs"], "forward": forward}}).save(run / name / "step.json")
        manifest = run / name / "run.manifest.json"
        manifest.write_text("{}", encoding="utf-8")
        os.utime(manifest, (1000 + age, 1000 + age))

    assert watch().stdout.startswith("130.000 ms in place of 200.000 ms (the measured order): 35.0% shorter")


@pytest.mark.parametrize("words", [["--from", "serial.csv"], ["--placement", "v"], ["--pareto"]])
def test_a_run_has_its_own_table(words: list[str]) -> None:
    assert optimize(*words).exit_code == 2


@pytest.mark.parametrize("arguments", [["run", "--watch"], ["run", "--watch", "-o", "x.csv", "--rounds", "0"]])
def test_wrong_use_is_said(arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2
