"""What does not fit, or cannot be compared on equal memory, says what, where and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from small_schedules import small_registry

from pptrace.api import compare
from pptrace.cli.main import cli
from pptrace.errors import ConfigError, PptraceError

LLAMA = str(Path(__file__).with_name("llama3-70b-ideal.yaml"))
STEP = [
    "--model", "llama3-8b", "--device", "h100-sxm", "--sequence", "4096", "--pp", "4", "--tp", "2", "--dp", "2",
    "--microbatches", "8", "--p2p", "ordered",
]  # fmt: skip


@pytest.mark.needs_plugins
def test_a_schedule_that_does_not_fit_says_which_rank_lacks_how_much_and_what_would_fit() -> None:
    comparison = compare(
        LLAMA, schedules="gpipe,1f1b,zb-v", memory="24 GiB", vary="vp,micro,recompute,options,memory",
        microbatches=16, p2p="ordered",
    )  # fmt: skip
    gpipe, one, zero_bubble = comparison.rows
    text = comparison.summary()

    assert gpipe.remedy is not None
    assert gpipe.remedy.fits
    assert "gpipe     does not fit: rank 7 needs 33.5 GiB, 9.48 GiB more than 24 GiB, with " in text
    assert ": fits with zero 1 at " in text
    assert one.fits
    assert "1f1b as configured: rank 0 needs 43.1 GiB, 19.1 GiB more than 24 GiB: fits with " in text
    assert "rank 0 has none beside 22.6 GiB of state for activations" in zero_bubble.reason
    assert "zb-v      does not fit: " in text or "zb-v as configured: does not fit: " in text
    assert "cannot run" not in text
    assert comparison.table()[0]["refused"].startswith("does not fit: rank 7 needs")


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--memory", "76"], "--memory: 76 has no unit"),
        (["--memory", "much"], "--memory: 'much' is not a size"),
        (["--memory", "0 B"], "--memory: nothing fits into 0 bytes"),
        (["--memory", "15GiB"], "--memory: no schedule fits 15 GiB; 1f1b needs the least: rank "),
        (["--memory", "5GiB"], " of it without activations"),
        (["--memory", "40GiB", "--policies"], "a comparison at equal memory has one policy"),
        (["--memory", "40GiB", "--vary", "vpp"], "--vary: 'vpp' is not a variable setting (did you mean 'vp'? "),
        (["--memory", "40GiB", "--set", "costs.zero=7"], "--set costs.zero=7: must be one of"),
        (["--vary", "vp"], "--vary: needs --memory: it varies settings of a comparison at equal memory"),
    ],
)
def test_wrong_input_is_one_line(arguments: list[str], line: str) -> None:
    answer = CliRunner().invoke(cli, ["compare", *STEP, "--schedules", "1f1b,gpipe", *arguments])

    assert isinstance(answer.exception, PptraceError)
    assert line in str(answer.exception)
    assert "\n" not in str(answer.exception)


def small(schedules: str, memory: str, **values: Any) -> Any:
    costs = {"name": "table", "forward": "1 ms", "backward": "2 ms", "activation": "1 GiB"}
    given: dict[str, Any] = {"pp": 2, "microbatches": 4, "costs": costs, "registry": small_registry()} | values
    return compare(schedules=schedules, memory=memory, **given)


def test_costs_that_know_no_memory_are_reported_in_one_line() -> None:
    with pytest.raises(ConfigError, match="memory: costs unit have no memory: give a model"):
        small("eager", "4 GiB", costs="unit")
    with pytest.raises(ConfigError, match="memory: the costs have no bytes"):
        small("eager", "4 GiB", costs={"name": "table", "forward": "1 ms", "backward": "2 ms"})


def test_where_none_runs_each_says_why() -> None:
    with pytest.raises(PptraceError, match=r"no schedule runs in 4 GiB: even: batch.microbatches: 3 is odd"):
        small("even", "4 GiB", microbatches=3)


def test_costs_that_one_cannot_have_cost_the_others_nothing() -> None:
    eager, even = small("eager,even:costs.forward=[1 ms]", "4 GiB").rows

    assert eager.fits
    assert not even.fits
    assert even.reason


def test_schedules_are_compared_on_one_job_and_one_limit() -> None:
    with pytest.raises(ConfigError, match="has global 2, and eager has 4: write the same job for all"):
        small("eager,lumped:microbatches=2", "4 GiB")
    with pytest.raises(ConfigError, match=r"the same limit: leave costs.capacity out"):
        small("eager,lumped:costs.capacity=8 GiB", "4 GiB")


def test_costs_of_stages_are_kept_to_their_number_of_stages() -> None:
    (row,) = small("chunky", "64 GiB").rows

    assert {one.change.settings["parallel.vp"] for one in row.variants.tried} == {2}


def test_a_table_takes_part_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")

    table, eager = small("table.csv,eager", "4 GiB", microbatches=2).rows

    assert table.variant == ""
    assert table.arguments == "--schedule table.csv --set 'costs.capacity=4 GiB'"
    assert table.variants.run.metrics.step_ns == eager.variants.run.metrics.step_ns
