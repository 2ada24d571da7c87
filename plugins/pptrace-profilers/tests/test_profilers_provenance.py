"""Converted steps keep their origin: a recorded step is recorded in every format, its replay is simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pptrace.cli.convert import command as convert
from pptrace.cli.replay import command as replay
from pptrace.plugins.registry import Registry
from pptrace.run.trace_files import read_measurement

FIXTURES = Path(__file__).parent / "fixtures"


def run(command: Any, *arguments: object) -> None:
    result = CliRunner().invoke(command, list(map(str, arguments)))
    assert result.exception is None, result.output


@pytest.mark.parametrize("names", [["step.pftrace"], ["step.json"], ["step.json.gz", "step.pftrace.gz"]])
def test_a_recorded_step_stays_recorded(names: list[str], tmp_path: Path) -> None:
    source: Path = FIXTURES / "sleep-zb_h1_csv"
    original, _ = read_measurement([source], Registry.load())
    for name in names:
        run(convert, source, tmp_path / name)
        source = tmp_path / name

    found, recorded = read_measurement([source], Registry.load())

    assert recorded
    assert [step.label for step in found.steps] == [original.steps[0].label]
    assert (found.slices, found.empty_input_gradient) == (original.slices, original.empty_input_gradient)


def test_ranks_in_files_of_their_own_stay_recorded(tmp_path: Path) -> None:
    run(convert, FIXTURES / "sleep-1f1b", tmp_path / "rank{rank}.json")

    _, recorded = read_measurement([tmp_path], Registry.load())

    assert recorded


def test_a_replay_is_simulated(tmp_path: Path) -> None:
    run(replay, FIXTURES / "sleep-1f1b", "-o", tmp_path / "replay.pftrace")

    found, recorded = read_measurement([tmp_path / "replay.pftrace"], Registry.load())

    assert not recorded
    assert [step.label for step in found.steps] == ["simulated"]


@pytest.mark.parametrize("value", ['{"step":{"a":1},"slices":-3}', '{"step":"x","slices":"y"}', "{}", "[1]", "3"])
def test_a_changed_provenance_does_no_harm(value: str, tmp_path: Path) -> None:
    run(convert, FIXTURES / "sleep-1f1b", tmp_path / "step.json")
    text = (tmp_path / "step.json").read_text(encoding="utf-8")
    begin = text.index('"recorded":') + len('"recorded":')
    end = text.index("}", begin) + 1
    (tmp_path / "step.json").write_text(text[:begin] + value + text[end:], encoding="utf-8")

    result = CliRunner().invoke(replay, [str(tmp_path / "step.json")])

    assert result.exception is None or "its provenance is not a mapping" in str(result.exception)
