"""Schedules of other plugins: none is shorter than what is found, under any limit and any framework's messages."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from pptrace.api import simulate
from pptrace.cli.calibrate import command as calibrate
from pptrace.plugin import Placement, PptraceError, write_table
from pptrace.steps.text_forms import load_table
from pptrace_optpipe.command import command

GIB = 2**30
STEP: dict[str, Any] = {
    "parallel": {"pp": 4}, "batch": {"microbatches": 4},
    "network": {"name": "hockney", "bandwidth": "5 GB/s", "latency": "5 us"},
    "costs": {
        "name": "table", "forward": [9, 10, 11, 12], "input_gradient": [10, 11, 12, 13],
        "weight_gradient": [8, 9, 10, 11], "offload": "5 ms", "reload": "5 ms", "boundary": "20 MiB",
        "activation": "2 GiB", "weight_activation": "1 GiB", "weights": "3 GiB", "optimizer": "7 GiB",
    },
}  # fmt: skip
pytest.importorskip("pptrace_schedules")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {
        name: [f"{item} ms" for item in value] if isinstance(value, list) else value
        for name, value in STEP["costs"].items()
    }
    (tmp_path / "step.yaml").write_text(yaml.safe_dump({**STEP, "costs": costs}), encoding="utf-8")
    monkeypatch.setenv("PPTRACE_OPTPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("pptrace_optpipe.bounds._MOST_COUNTS", 0)  # no counts, as no bound has to be tight
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _default_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search from all schedules with their default options only."""
    monkeypatch.setattr("pptrace_optpipe.start_schedules._options", lambda *_: iter(()))


def optimized(*arguments: str) -> Any:
    result = CliRunner().invoke(command, ["step.yaml", *arguments, "--json"], catch_exceptions=False)
    return json.loads(result.stdout)


@pytest.mark.parametrize(("policy", "memory"), [("megatron", 16), ("torch", 30)])
def test_no_schedule_made_by_hand_is_shorter(policy: str, memory: int) -> None:
    pytest.importorskip("pptrace_frameworks")

    values = optimized(
        "--memory", f"{memory}GiB", "--work", "0.1", "--set", f"p2p.policy={policy}", "-o", "best.csv"
    )

    made = [item for item in values["hand_made"] if item["fits"]]
    assert made
    assert values["step_ns"] <= min(item["step_ns"] for item in made)
    assert max(values["peak_bytes"]) <= memory * GIB
    assert all(item["peak_bytes"] <= memory * GIB for item in made)
    assert (
        simulate("step.yaml", sets=[f"p2p.policy={policy}"], schedule="best.csv").metrics.step_ns
        == values["step_ns"]
    )


@pytest.mark.usefixtures("_default_options")
def test_tables_with_copies_that_take_no_time_are_rivals() -> None:
    settings = ["schedule={name: 1f1b, offload: {gap: 0, behind: 1}}", "costs.offload=0 ms", "costs.reload=0 ms"]
    values = optimized("--work", "0.1", *(word for setting in settings for word in ("--set", setting)))

    assert values["step_ns"] <= min(item["step_ns"] for item in values["hand_made"])


@pytest.mark.parametrize("written", [{}, {"vp": 1}])
def test_in_place_only_those_with_the_chunks_that_are_written_are_rivals(written: dict[str, int]) -> None:
    """Hanayo says itself how many chunks it has: more than one."""
    pytest.importorskip("pptrace_models")
    job = {
        "model": "llama3-8b", "device": "h100-sxm", "sequence": 2048, "microbatches": 4, "pp": 2, "tp": 2, "dp": 2,
        "network": STEP["network"] | {"bandwidth": "50 GB/s"}, "data_parallel": {"overlap": True}, **written,
    }  # fmt: skip
    ours, plain = (
        simulate(schedule={"name": name, "options": options}, **job).metrics.step_ns
        for name, options in (("optpipe", {"work": 0.1}), ("1f1b", {}))
    )

    assert ours <= plain


@pytest.mark.usefixtures("_default_options")
def test_one_that_cannot_be_beaten_is_what_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pptrace_optpipe.search.cached_search", lambda *_, **__: None)

    values = optimized("--memory", "16GiB", "--work", "0.1")

    best = min((item for item in values["hand_made"] if item["fits"]), key=lambda item: item["step_ns"])
    assert (values["schedule"], values["step_ns"]) == (best["schedule"], best["step_ns"])
    assert values["bound_ns"] is None


PROGRESS = re.compile(r"step (?P<step>[0-9.]+) ms  bound (?P<bound>[0-9.]+|not known)")


@pytest.mark.usefixtures("_default_options")
@pytest.mark.parametrize(
    "more", [[], ["--from", "looped.csv", "--vary-stages"], ["--set", "parallel.vp=1", "--vary-stages"]]
)
def test_a_bound_is_one_for_the_placement_of_the_step_beside_it(more: list[str]) -> None:
    """ZB-V's step of 162 ms is below what stages that loop over the ranks need at least."""
    costs = {
        "name": "table",
        "forward": "12 ms",
        "input_gradient": "12 ms",
        "weight_gradient": "12 ms",
        "slices": 4,
    }
    step = {"parallel": {"pp": 4}, "batch": {"microbatches": 4}, "costs": costs}
    Path("step.yaml").write_text(yaml.safe_dump(step), encoding="utf-8")
    write_table(simulate("step.yaml", schedule="1f1b").prepared.schedule, Path("looped.csv"))

    result = CliRunner().invoke(command, ["step.yaml", *more, "--work", "0.1"], catch_exceptions=False)

    matches = [PROGRESS.search(line) for line in result.stderr.splitlines()]
    assert matches
    assert all(item is not None and item["step"] == "162.000" for item in matches)
    assert {item["bound"] for item in matches if item is not None} <= {"not known", "162.000"}


KEPT = [
    ["--from", "looped.csv"], ["--placement", "looped"], ["--set", "parallel.vp=1"],
    ["--set", "schedule=looped.csv"], ["--set", "schedule=1f1b", "--set", "parallel.vp=1"],
]  # fmt: skip


@pytest.mark.usefixtures("_default_options")
@pytest.mark.parametrize("more", KEPT)
def test_a_placement_that_is_asked_for_is_kept_and_has_a_bound(more: list[str]) -> None:
    """ZB-V, and Chimera with its two copies of the model, are shorter."""
    costs = {"name": "table", "slices": 4}
    costs |= dict.fromkeys(("forward", "input_gradient", "weight_gradient"), "12 ms")
    step = {"parallel": {"pp": 4}, "batch": {"microbatches": 4}, "costs": costs}
    Path("step.yaml").write_text(yaml.safe_dump(step), encoding="utf-8")
    table = simulate("step.yaml", schedule="1f1b").prepared.schedule
    write_table(table, Path("looped.csv"))

    values = optimized(*more, "--work", "0.1", "-o", "best.csv")

    assert load_table("best.csv").schedule.placement == table.placement
    assert (values["stages"], values["is_placement_kept"]) == (4, True)
    assert 0 < values["bound_ns"] <= values["step_ns"]
    assert {item["schedule"] for item in values["hand_made"]} >= {"1f1b", "gpipe"}
    assert {item["schedule"] for item in values["hand_made"]}.isdisjoint({"zb-v", "chimera"})


V_SHORTER: dict[str, Any] = {
    "parallel": {"pp": 4}, "batch": {"microbatches": 4},
    "costs": {"name": "table", "forward": "12 ms", "input_gradient": "12 ms", "weight_gradient": "12 ms"},
}  # fmt: skip
"""A step for which ZB-V and Chimera are shorter than all schedules with looped stages."""


@pytest.mark.parametrize(("chunks", "shorter"), [(1, "chimera"), (2, "zb-v")])
def test_a_schedule_in_place_keeps_looped_stages_if_chunks_are_written(chunks: int, shorter: str) -> None:
    costs = {**V_SHORTER["costs"], "weight_gradient": "1 ms", "slices": 4 * chunks}
    step = {**V_SHORTER, "parallel": {"pp": 4, "vp": chunks}, "costs": costs}

    kept = simulate(step, schedule={"name": "optpipe", "options": {"work": 0.1}})

    assert kept.prepared.schedule.placement == Placement.looped(4, 4, chunks)
    assert simulate(step, schedule=shorter).metrics.step_ns < kept.metrics.step_ns


def fit_of(schedule: str) -> int:
    """Fit ``step.yaml`` to a simulated step of a schedule, and return the step's time in ns."""
    Path("run").mkdir()
    step = simulate({**V_SHORTER, "schedule": schedule})
    step.save("run/step.json")
    CliRunner().invoke(calibrate, ["run", "-o", "step.yaml"], catch_exceptions=False)
    assert f"schedule: {schedule}" in Path("step.yaml").read_text(encoding="utf-8")
    return step.metrics.step_ns


@pytest.mark.usefixtures("_default_options")
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_fit_keeps_its_placement_and_is_never_slower_than_the_measured_order(schedule: str) -> None:
    measured_ns = fit_of(schedule)

    kept, varied = optimized("--work", "0.1"), optimized("--work", "0.1", "--vary-stages")

    assert kept["is_placement_kept"]
    assert varied["step_ns"] < kept["step_ns"] <= measured_ns
    assert {dot["schedule"] for dot in kept["hand_made"]}.isdisjoint({"zb-v", "chimera"})


@pytest.mark.usefixtures("_default_options")
def test_a_fit_of_two_routes_is_refused_unless_stages_may_vary() -> None:
    measured_ns = fit_of("chimera")

    with pytest.raises(PptraceError, match="microbatches take several routes"):
        optimized("--work", "0.1")
    assert optimized("--work", "0.1", "--vary-stages")["step_ns"] <= measured_ns


def test_none_is_shorter_in_place_either(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = ["p2p.policy=sender-blocking", "costs.capacity=26 GiB"]
    made = [
        simulate("step.yaml", schedule=name, sets=sets).metrics for name in ("gpipe", "1f1b", "zb-h1", "zb-h2")
    ]
    fit = [item.step_ns for item in made if max(item.memory.peak_bytes) <= 26 * GIB]
    monkeypatch.setattr("pptrace_optpipe.search.cached_search", lambda *_, **__: None)

    metrics = simulate("step.yaml", schedule="optpipe", sets=sets).metrics

    assert len(fit) > 1
    assert metrics.step_ns <= min(fit)
    assert max(metrics.memory.peak_bytes) <= 26 * GIB


@pytest.mark.usefixtures("_default_options")
def test_a_sweep_draws_them_beside_what_is_found() -> None:
    values = optimized("--memory", "16GiB,30GiB", "--work", "0.1", "--pareto", "--plot", "pareto.svg")

    assert [point["memory_limit_bytes"] for point in values["points"]] == [16 * GIB, 30 * GIB]
    names = {item["schedule"] for item in values["hand_made"]}
    assert {"1f1b", "1f1b+offload", "gpipe"} <= names
    drawn = Path("pareto.svg").read_text(encoding="utf-8")
    assert all(text in drawn for text in ("gpipe", "optimized within a limit", "GiB"))
