"""The bias of simulated steps: known factors are found, ranks follow expected steps, and bounds stay bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pptrace
from pptrace.errors import ConfigError
from pptrace.plugins.registry import Registry
from pptrace.search.bias import PARTS, Bias, MeasuredRun, fit_bias, read_runs

if TYPE_CHECKING:
    from pathlib import Path

MODEL = {"layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096, "vocabulary": 32000}
CONFIG = {
    "model": MODEL, "device": "a100-sxm", "batch": {"global": 16, "sequence": 1024},
    "network": {"name": "hockney", "bandwidth": "10 GB/s"},
}  # fmt: skip
VARY = {
    "schedule": ["1f1b", "interleaved-1f1b"],
    "recompute": ["none"],
    "zero": [1],
    "micro": [1],
    "layers": ["even"],
}


def row(*parts: int) -> dict[str, Any]:
    return {**dict(zip(PARTS, parts, strict=True)), "step_ns": sum(parts)}


def run(measured_ns: int) -> MeasuredRun:
    return MeasuredRun(line=2, settings=(), measured_ns=measured_ns)


def planned(registry: Registry, **changed: Any) -> Any:
    given = {
        "config": CONFIG,
        "gpus": 8,
        "vary": VARY,
        "executor": "serial",
        "robust": False,
        "registry": registry,
    }
    return pptrace.plan(**{**given, **changed})


def test_one_run_shifts_parts_in_proportion_to_their_time() -> None:
    bias = fit_bias([run(1200)], [row(750, 250, 0, 0, 0)])

    compute, collectives = bias.factors["compute"] - 1, bias.factors["collectives"] - 1
    assert compute == pytest.approx(3 * collectives, rel=1e-3)
    assert bias.step_ns(row(750, 250, 0, 0, 0)) == pytest.approx(1200, rel=0.01)
    assert bias.factors["messages"] == 1


@given(st.lists(st.floats(0.7, 1.5), min_size=5, max_size=5))
def test_runs_that_tell_parts_apart_give_their_factors(factors: list[float]) -> None:
    rows = [row(*(8_000_000 if part == most else 500_000 for part in range(5))) for most in range(5)]
    columns = list(PARTS)
    runs = [run(round(sum(f * one[column] for f, column in zip(factors, columns, strict=True)))) for one in rows]

    bias = fit_bias(runs, rows)

    assert list(bias.factors.values()) == pytest.approx(factors, abs=0.01)
    assert max(map(abs, bias.differences)) < 0.01


def test_a_step_as_simulated_changes_nothing() -> None:
    bias = fit_bias([run(1000)], [row(600, 100, 100, 100, 100)])

    assert set(bias.factors.values()) == {1.0}
    assert bias.bound_ns(7) == 7
    assert Bias().bound_ns(7) == 7


@given(
    st.lists(st.floats(0.5, 1.5), min_size=5, max_size=5), st.lists(st.integers(0, 10**9), min_size=5, max_size=5)
)
def test_a_bound_of_the_step_is_one_of_the_expected_step(factors: list[float], parts: list[int]) -> None:
    bias = Bias(factors=dict(zip(PARTS.values(), factors, strict=True)), runs=(run(1),))

    assert bias.bound_ns(sum(parts)) <= bias.step_ns(row(*parts)) + 1


@pytest.mark.needs_plugins
def test_places_are_ranked_by_measured_and_expected_steps(tmp_path: Path) -> None:
    registry, points = Registry.load(), tmp_path / "points.csv"
    first = planned(registry, outputs=[points])
    best, second = first.ranking[:2]
    lines = [f"pptrace simulate job.yaml {place.arguments}" for place in (best, second)]
    slow, as_simulated = 1.5 * int(best.row["step_ns"]) / 1e9, int(second.row["step_ns"]) / 1e9
    points.write_text(f'command,measured_s\n"{lines[0]}",{slow}\n"{lines[1]}",{as_simulated}\n', encoding="utf-8")

    again = planned(registry, measured=points)
    every = planned(registry, measured=points, exhaustive=True, top=1000)

    assert again.best.name != best.name
    expected = {place.arguments: again.bias.expected_ns(place.row, place.arguments) for place in every.ranking}
    assert expected[best.arguments] == round(slow * 1e9)
    assert expected[second.arguments] == int(second.row["step_ns"])
    assert [place.arguments for place in again.ranked] == [place.arguments for place in every.ranking[:10]]
    assert [expected[place.arguments] for place in every.ranking] == sorted(expected.values())
    assert "fitted" in str(again)
    place = again.best
    share = int(place.row["step_ns"]) / expected[place.arguments]
    assert f"{float(place.row['mfu']) * share:.1%}" in str(again)
    assert again.to_dict()["places"][0]["expected_ns"] == expected[again.best.arguments]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("command\nx\n", "points.csv: has no column measured_s: add it"),
        ("command,measured_s\npptrace simulate,\n", "points.csv: has no measured step: write seconds"),
        ("command,measured_s\npptrace simulate --pp 2,fast\n", "points.csv:2: measured_s: 'fast' is not a step"),
        ("command,measured_s\npptrace simulate --pp 2,nan\n", "measured_s: 'nan' is not a step"),
        ("command,measured_s\npptrace simulate --pp 2,1e300\n", "measured_s: '1e300' is not a step"),
        ("command,measured_s\npptrace simulate --model llama3-8b,3\n",
         r"points.csv:2: command: model.preset is 'llama3-8b', and 'gpt2' in the plan"),
        ("command,measured_s\npptrace simulate --speed 2,3\n", "points.csv:2: command: .*unknown flag"),
        ('command,measured_s\n"pptrace \'simulate",3\n', "points.csv:2: command: .*No closing quotation"),
    ],
)  # fmt: skip
def test_a_table_without_measured_runs_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "points.csv").write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=message):
        read_runs(tmp_path / "points.csv", {"model.preset": "gpt2"})


def test_commands_have_values_as_click_takes_them(tmp_path: Path) -> None:
    line = "pptrace simulate --model gpt2 --pp=2 --tp 4 --set=costs.zero=1"
    (tmp_path / "points.csv").write_text(f"command,measured_s\n{line},3\n", encoding="utf-8")

    (run,) = read_runs(tmp_path / "points.csv", {"model.preset": "gpt2"})

    assert {key: str(value) for key, value in run.values.items()} == {
        "parallel.pp": "2", "parallel.tp": "4", "costs.zero": "1",
    }  # fmt: skip


@given(
    st.lists(st.floats(0.5, 2), min_size=2, max_size=4),
    st.lists(st.integers(1, 10**9), min_size=5, max_size=5),
)
def test_a_bound_of_a_measured_run_is_one_of_its_measured_step(ratios: list[float], parts: list[int]) -> None:
    rows = [row(*parts) for _ in ratios]
    runs = [run(max(round(sum(parts) * ratio), 1)) for ratio in ratios]

    bias = fit_bias(runs, rows)

    assert bias.bound_ns(sum(parts)) <= min(measured.measured_ns for measured in runs) + 1


@pytest.mark.needs_plugins
def test_a_measured_run_that_cannot_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(
        "command,measured_s\npptrace simulate --tp 3 --global 16,4\n", encoding="utf-8"
    )

    with pytest.raises(ConfigError, match=r"m.csv:2: cannot run: "):
        planned(Registry.load(), measured=tmp_path / "m.csv")
