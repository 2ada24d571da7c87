"""Schedules under every policy: steps are those of simulations, slowdowns those over a schedule's shortest."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from small_schedules import small_registry

from pptrace.api import compare, simulate
from pptrace.cli.main import cli
from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.errors import ConfigError
from pptrace.search.compare import settings_by_policy

if TYPE_CHECKING:
    from pathlib import Path

NETWORK = {"name": "hockney", "bandwidth": "1 GB/s"}
COSTS = {"name": "table", "forward": "1 ms", "backward": "2 ms", "boundary": "1 MB"}
STEP: dict[str, Any] = {"pp": 3, "microbatches": 6, "network": NETWORK, "costs": COSTS}


def compared(schedules: str, **values: Any) -> Any:
    return compare(schedules=schedules, registry=small_registry(), policies=True, **(STEP | values))


def test_every_policy_is_there_with_the_words_that_make_it_another() -> None:
    settings = settings_by_policy([*reversed(PolicyName.words()), "framework"])
    ordered = {item["p2p.stream"] for item in settings.values() if item["p2p.policy"] == "ordered"}
    batched = {item["p2p.receive"] for item in settings.values() if item["p2p.policy"] == "batched"}

    assert list(dict.fromkeys(item["p2p.policy"] for item in settings.values())) == [
        *PolicyName.words(),
        "framework",
    ]
    assert ordered == set(StreamPer.words())
    assert batched == set(Receive.words())


def test_steps_are_what_simulate_says_and_slowdowns_are_over_the_shortest() -> None:
    table = compared("eager,lumped").policies
    policies = table.by_policy()

    assert list(policies) == list(settings_by_policy(PolicyName.words()))
    for at, schedule in enumerate(("eager", "lumped")):
        rows = [rows[at] for rows in policies.values()]
        least = min(row.step_ns for row in rows if row.step_ns is not None)
        for row in rows:
            assert row.schedule == schedule
            sets = [f"{key}={word}" for key, word in row.settings.items()]
            if row.deadlocks:
                continue
            alone = simulate(schedule=schedule, sets=sets, registry=small_registry(), **STEP)
            assert row.step_ns == alone.metrics.step_ns
            assert row.slowdown == pytest.approx(row.step_ns / least - 1)
    assert any(row.slowdown for row in table.rows)


def test_what_no_policy_lets_run_is_said_once() -> None:
    comparison = compared("eager,even", pp=3, microbatches=5)
    lines = comparison.summary().splitlines()
    refused = [row for row in comparison.policies.rows if row.schedule == "even"]

    assert all(row.step_ns is None and row.reason and not row.deadlocks for row in refused)
    assert len([line for line in lines if line.startswith("even cannot run: ")]) == 1


def test_a_policy_of_a_schedules_own_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="every policy is run: leave p2p out"):
        compared("eager:p2p=batched")


def test_without_the_flag_there_are_no_policies() -> None:
    comparison = compare(schedules="eager", registry=small_registry(), **STEP)

    assert comparison.policies is None
    assert "policies" not in comparison.to_dict()


@pytest.mark.needs_plugins
def test_text_json_and_csv_say_the_same(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    arguments = [
        "compare", "--schedules", "1f1b,interleaved-1f1b:vp=2", "--pp", "4", "--microbatches", "8", "--policies",
        "--costs", json.dumps(COSTS), "--network", json.dumps(NETWORK),
    ]  # fmt: skip
    text, as_json = (
        CliRunner().invoke(cli, [*arguments, *more], catch_exceptions=False).stdout
        for more in (["-o", str(file)], ["--json"])
    )
    rows, cells = json.loads(as_json)["policies"], list(csv.DictReader(io.StringIO(file.read_text())))

    assert [row["policy"] for row in rows] == [row["policy"] for row in cells]
    assert [str(row["step_ns"] or "") for row in rows] == [row["step_ns"] for row in cells]
    assert {row["schedule"] for row in rows} == {"1f1b", "interleaved-1f1b:vp=2"}
    assert any(row["refused"] and "deadlocks" in row["refused"] for row in rows)
    for policy in settings_by_policy(PolicyName.words()):
        line = next(line for line in text.splitlines() if line.startswith(f"{policy}  "))
        message = [row for row in rows if row["policy"] == policy]
        assert line.count("deadlocks") == sum(row["step_ns"] is None for row in message)


def test_a_tie_has_no_fastest_one_alone() -> None:
    costs = COSTS | {"uncertainty": 10}
    _, table = compared("eager,lumped", costs=costs).summary().split("\npolicy ")
    rows = table.splitlines()[1:]

    assert all(row.endswith("eager and lumped") for row in rows if "deadlocks" not in row)
    assert any(row.endswith("eager") for row in compared("eager,lumped").summary().splitlines())
