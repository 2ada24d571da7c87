"""Folders of torchtitan, which have one folder of traces per profiled iteration."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pptrace.cli.explain import command
from pptrace.errors import ConfigError
from pptrace.plugins.registry import Registry
from pptrace.run.trace_files import read_measurement
from pptrace.timeline.measurement import ImportRequest

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a folder of three iterations: GPipe, 1F1B, and half of the traces of a third, with other files."""
    for number, (name, ranks) in {5: ("sleep-gpipe", 4), 10: ("sleep-1f1b", 4), 15: ("sleep-gpipe", 2)}.items():
        folder = tmp_path / f"iteration_{number}"
        folder.mkdir()
        for rank in range(ranks):
            content = (FIXTURES / name / f"rank{rank}.json.gz").read_bytes()
            (folder / f"rank{rank}_trace.json.gz").write_bytes(content)
    for number in range(3):
        (tmp_path / "iteration_15" / f"notes{number}.txt").write_text("")
    return tmp_path


@pytest.mark.parametrize(("iteration", "name", "number"), [(None, "sleep-1f1b", 10), (5, "sleep-gpipe", 5)])
def test_one_iteration_is_read_by_default_the_last_complete_one(
    iteration: int | None, name: str, number: int, run: Path
) -> None:
    expected, _ = read_measurement([FIXTURES / name], Registry.load())

    found, _ = read_measurement([run], Registry.load(), ImportRequest(iteration=iteration))

    note = f"reading iteration {number} of 5, 10, 15; --iteration selects another"
    assert (note in found.notes) == (iteration is None)
    assert [len(step.timeline) for step in found.steps] == [len(step.timeline) for step in expected.steps]
    assert found.steps[0].timeline.end_ns.tolist() == expected.steps[0].timeline.end_ns.tolist()


@pytest.mark.parametrize("folder", ["", "iteration_5"])
def test_an_iteration_that_is_not_there_is_refused(folder: str, run: Path) -> None:
    known = "no folders iteration_N" if folder else "5, 10, 15"

    result = CliRunner().invoke(command, [str(run / folder), "--iteration", "7"])

    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"--iteration 7: no such iteration in {run / folder}: there are {known}"
