"""Five recorded steps: what differs between two of them is noise, and every figure says by how much it varies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pptrace.cli.main import cli

RUN = Path(__file__).parent / "fixtures" / "five-steps"
PLAN = """
parallel: {pp: 4}
batch: {microbatches: 8}
schedule: 1f1b
costs: {name: table, forward: 20 ms, backward: 40 ms}
"""


def invoked(*arguments: object) -> str:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], catch_exceptions=False).stdout


def diffed(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(invoked("diff", *arguments, "--json"))
    return found


@pytest.mark.parametrize("steps", ["0,3", "1,2", "4,0"])
def test_two_steps_of_one_run_differ_by_hardly_more_than_noise(steps: str) -> None:
    difference = diffed(RUN, RUN, "--step", steps)

    assert len(difference["spans_ns"][0]) == len(difference["spans_ns"][1]) == 5
    assert difference["actions_changed"] <= 6
    assert difference["actions_within_noise"] + difference["actions_changed"] == 64
    assert [cause for cause in difference["causes"] if cause["kind"] in {"drift", "slow rank", "slow stage"}] == []


def test_all_steps_against_themselves_are_the_same() -> None:
    difference = diffed(RUN, RUN, "--step", "all")

    assert difference["same"]
    assert difference["medians_over_steps"] == [True, True]
    assert difference["actions_changed"] == difference["actions_within_noise"] == 0


@pytest.mark.parametrize("step", ["median", "all"])
def test_every_figure_of_a_recording_has_its_spread_beside_a_plan(step: str, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN, encoding="utf-8")

    difference = diffed(plan, RUN, "--step", step)

    assert difference["step_ns_deviation"][0] is None
    assert difference["step_ns_deviation"][1] > 0
    assert all(pair[0] is None and pair[1] is not None for pair in difference["parts_ns_deviation"].values())
    assert all(rung["change_ns_deviation"] is not None for rung in difference["ladder"])
    assert all(row["ratio_deviation"] > 0 for row in difference["kinds"])
    assert all(action["change_ns_deviation"] > 0 for action in difference["actions"])
    assert (
        sum(rung["change_ns"] for rung in difference["ladder"])
        == difference["step_ns"][1] - difference["step_ns"][0]
    )


def test_medians_over_five_steps_tell_more_actions_from_noise_than_one_step_does(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(PLAN, encoding="utf-8")

    one, every = (diffed(plan, RUN, "--step", step)["actions_changed"] for step in ("median", "all"))

    assert every > one


def test_an_explanation_says_by_how_much_its_figures_vary() -> None:
    document = json.loads(invoked("explain", RUN, "--json"))

    assert len(document["lengths_ns"]) == 5
    assert document["step_ns_deviation"] > 0
    assert all(rank["busy_ns_deviation"] > 0 for rank in document["ranks"])
    assert "±" in invoked("explain", RUN)
    assert "5 steps: " in invoked("replay", RUN)
