"""Tables whose microbatches are slices of sequences."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pptrace.api import simulate
from pptrace.cli.main import cli
from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SLICED = "0F0,0F1,0B1,0B0,0F2,0F3,0B3,0B2\n1F0,1F1,1B1,1B0,1F2,1F3,1B3,1B2\n"
COSTS = {"name": "table", "forward": "10 ms", "backward": "20 ms", "boundary": "4 MB"}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "sliced.csv"
    file.write_text(SLICED, encoding="utf-8")
    return file


def configuration(table: Path, **more: Any) -> dict[str, Any]:
    return {"schedule": {"name": str(table), "options": {"slices": 2}}, "costs": COSTS, **more}


def test_a_slice_takes_its_part_of_a_microbatch(table: Path) -> None:
    step = simulate(configuration(table))
    whole = simulate({"schedule": str(table), "costs": {**COSTS, "forward": "5 ms", "backward": "10 ms"}})

    assert step.prepared.request.microbatches == 2
    assert step.prepared.batch_text == "2 microbatches in 2 slices each"
    assert step.prepared.workload.boundary_bytes.tolist() == [2_000_000]
    assert step.metrics.step_ns == whole.metrics.step_ns == 90_000_000


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"schedule": {"options": {"slices": 3}}}, "has 4 slices, no multiple of 3"),
        ({"schedule": {"options": {"slice": 2}}}, "schedule.options.slice: "),
        ({"schedule": {"options": {"slices": 0}}}, "must be at least 1, not 0"),
        ({"batch": {"microbatches": 4}}, "has 2 microbatches, not 4: remove the key"),
    ],
)
def test_slices_that_do_not_fit_are_refused(table: Path, more: dict[str, Any], said: str) -> None:
    values = configuration(table, **{key: value for key, value in more.items() if key != "schedule"})
    values["schedule"] |= more.get("schedule", {})

    with pytest.raises(ConfigError) as caught:
        simulate(values)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_fit_of_a_simulated_step_of_slices_has_whole_microbatches(table: Path, tmp_path: Path) -> None:
    simulate(configuration(table)).save(tmp_path / "step.json")
    costs = tmp_path / "costs.yaml"
    words = ["calibrate", str(tmp_path / "step.json"), "--json", "-o", str(costs)]

    values = json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).stdout)

    assert (values["microbatches"], values["slices"]) == (2, 2)
    fitted = simulate(costs)
    assert fitted.prepared.batch_text == "2 microbatches in 2 slices each"
    assert fitted.metrics.step_ns == 90_000_000
    assert fitted.prepared.workload.boundary_bytes.tolist() == [2_000_000]
