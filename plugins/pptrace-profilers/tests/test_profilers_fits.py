"""What is measured replays, is explained, and calibrates: one schedule's fit carries over to the others."""

from __future__ import annotations

import json
import os
import shutil
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from click.testing import CliRunner

from pptrace.api import simulate
from pptrace.cli.main import cli
from pptrace.measured.calibration import (
    Calibration,
    CalibrationCheck,
    calibrate,
    check_calibration,
    extend_to_pipeline,
)
from pptrace.measured.calibration_document import calibrated_yaml
from pptrace.measured.computations import Computations, extract_computations
from pptrace.measured.explanation import what_if
from pptrace.measured.matching import matching_schedules
from pptrace.measured.replay import replay
from pptrace.plugin import hookimpl
from pptrace.plugins.offers import ScheduleOffer
from pptrace.plugins.registry import Registry
from pptrace.run.trace_files import read_measurement
from pptrace.steps.kinds import Kind
from pptrace.steps.text_forms import table_text

if TYPE_CHECKING:
    from pptrace.plugins.requests import ScheduleRequest
    from pptrace.timeline.measurement import Measurement

ALONE = {"1f1b": (4, 0.06), "zbv": (8, 0.06), "looped_bfs": (8, 0.12), "interleaved1f1b": (8, 0.06)}
"""How many stages a run has, and how near a fit of one rank's file comes to it; in looped BFS that saw no host."""
FIXTURES = Path(__file__).parent / "fixtures"
RUNS = (
    "gpipe", "1f1b", "1f1b_csv", "zb_h1_csv", "interleaved1f1b", "looped_bfs", "interleaved_zb", "zbv", "dualpipev"
)  # fmt: skip


@cache
def registry() -> Registry:
    return Registry.load()


@cache
def recorded(name: str) -> Measurement:
    measurement, measured = read_measurement([FIXTURES / f"sleep-{name}"], registry())
    assert measured
    return measurement


@cache
def run(name: str) -> Computations:
    (step,) = recorded(name).steps
    return extract_computations(step.timeline, host_ns=step.host_ns)


@cache
def fit(name: str) -> Calibration:
    return calibrate([run(name)], empty_input_gradient=recorded(name).empty_input_gradient)


@cache
def check(name: str) -> CalibrationCheck:
    return check_calibration(fit(name), [run(name)], registry())


@cache
def carried(source: str, target: str, folder: Path) -> float:
    """Return by which share a target's step, simulated with the source's fit, is longer than it was."""
    costs = folder / f"{source}.yaml"
    if not costs.exists():
        costs.write_text(calibrated_yaml(fit(source), source, (), check(source)), encoding="utf-8")
    table = folder / f"{target}.csv"
    table.write_text(table_text(run(target).order), encoding="utf-8")
    sets = ["parallel.pp=null", "batch.microbatches=null"]
    step = simulate(costs, schedule=str(table), sets=sets, registry=registry())
    return extract_computations(step.timeline).span_ns / run(target).span_ns - 1


@pytest.mark.parametrize("name", RUNS)
def test_a_replay_is_near_what_was_measured(name: str) -> None:
    step = FIXTURES / f"sleep-{name}"
    measurement, _ = read_measurement([step], registry())

    found = replay(measurement.steps[0].timeline)

    assert found.explained == pytest.approx(1, abs=0.02)
    assert found.explained <= 1.01


@pytest.mark.parametrize(("name", "missing"), [("gpipe", 1), ("interleaved1f1b", 1), ("zbv", 1), ("zbv", 2)])
def test_a_replay_without_a_rank_in_the_middle_is_near_what_was_measured(
    name: str, missing: int, tmp_path: Path
) -> None:
    files = [path for path in (FIXTURES / f"sleep-{name}").glob("rank*") if f"rank{missing}" not in path.name]
    for path in files:
        (tmp_path / path.name).symlink_to(path)
    measurement, _ = read_measurement([tmp_path], registry())

    found = replay(measurement.steps[0].timeline, lacks_ranks=True)

    assert found.explained == pytest.approx(1, abs=0.005)
    stages = set(found.step.stage.tolist())
    assert stages == set(run(name).stage[run(name).rank != missing].tolist())
    first, again = (
        [step.end_ns[step.rank == rank][0] for rank in range(3)]
        for step in (found.step, extract_computations(found.timeline, lacks_ranks=True))
    )
    assert again == pytest.approx(first, abs=3_000_000)


def test_a_fit_on_one_schedule_carries_over_to_the_others(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("fits")
    pairs = {(source, target): abs(carried(source, target, folder)) for source in RUNS for target in RUNS}

    assert median(one for (source, target), one in pairs.items() if source != target) < 0.03
    assert max(pairs.values()) < 0.10, max(pairs, key=pairs.__getitem__)
    within = [one <= (check(source).interval or 0) for (source, target), one in pairs.items() if source != target]
    assert sum(within) >= 0.9 * len(within)
    assert median(check(name).interval or 0 for name in RUNS) < 0.13


def test_a_fit_says_what_one_message_size_cannot_tell() -> None:
    link = fit("gpipe").link

    assert link is not None
    assert (link.sizes, link.latency_ns, link.bytes_per_s) == ((8192,), None, None)
    text = calibrated_yaml(fit("gpipe"), "gpipe")
    assert "cannot be distinguished from one size" in text
    assert "bandwidth: unlimited" in text


@pytest.mark.parametrize("searches", [False, True])
@pytest.mark.needs_plugins
def test_no_search_is_begun_to_name_a_schedule(*, searches: bool) -> None:
    begun: list[str] = []

    def build(request: ScheduleRequest) -> list[list[str]]:
        begun.append("x")
        return [[f"{rank}F0"] for rank in range(request.ranks)]

    class Searching:
        @hookimpl
        def pptrace_schedules(self) -> list[ScheduleOffer]:
            return [ScheduleOffer(name="x", summary="x", build=build, searches=searches)]

    assert matching_schedules(run("1f1b"), Registry.load(plugins={"x": Searching()})) == ("1f1b",)
    assert begun == ([] if searches else ["x"])


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("gpipe", "gpipe"), ("1f1b", "1f1b"), ("interleaved1f1b", "interleaved-1f1b"), ("looped_bfs", "looped-bfs")],
)
@pytest.mark.needs_plugins
def test_a_fit_names_the_schedule_that_was_measured(name: str, schedule: str, tmp_path: Path) -> None:
    costs = tmp_path / "costs.yaml"
    assert schedule in matching_schedules(run(name), Registry.load())

    costs.write_text(calibrated_yaml(fit(name), name, [schedule], check(name)), encoding="utf-8")

    assert simulate(costs).metrics.step_ns == pytest.approx(run(name).span_ns, rel=0.06)


def test_an_order_that_no_schedule_has_is_written_beside_its_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "pptrace-schedules")
    costs = tmp_path / "costs.yaml"

    CliRunner().invoke(cli, ["calibrate", str(FIXTURES / "sleep-zbv"), "-o", str(costs)], catch_exceptions=False)

    step = simulate(costs).prepared
    assert step.resolved.experiment.schedule.name == str(tmp_path / "costs.order.csv")
    assert step.schedule.rows() == run("zbv").order.rows()
    assert step.schedule.placement == run("zbv").placement


def test_an_order_that_no_schedule_has_can_be_simulated_as_a_table(tmp_path: Path) -> None:
    costs, order = tmp_path / "costs.yaml", tmp_path / "order.csv"
    assert matching_schedules(run("zbv"), Registry.load(disable=["pptrace-schedules"])) == ()
    assert matching_schedules(run("zbv"), Registry.load()) == ("zb-v",)

    text = calibrated_yaml(fit("zbv"), "zbv")
    costs.write_text(text, encoding="utf-8")
    CliRunner().invoke(cli, ["convert", str(FIXTURES / "sleep-zbv"), str(order)], catch_exceptions=False)

    assert "convert zbv order.csv" in text
    table = simulate(costs, schedule=str(order))
    assert table.metrics.step_ns == pytest.approx(run("zbv").span_ns, rel=0.1)


@pytest.mark.parametrize("name", ["zb_h1_csv", "zbv"])
@pytest.mark.needs_plugins
def test_an_empty_input_gradient_takes_no_time_in_a_fit(name: str, tmp_path: Path) -> None:
    costs = tmp_path / "costs.yaml"
    CliRunner().invoke(
        cli, ["calibrate", str(FIXTURES / f"sleep-{name}"), "-o", str(costs)], catch_exceptions=False
    )

    step = simulate(costs).prepared
    first, second = ((int(step.workload.i_ns[stage]), int(step.workload.w_ns[stage])) for stage in (0, 1))

    assert first == (0, int(step.workload.b_ns[0]))
    assert second[0] == pytest.approx(second[1], rel=0.3)
    assert simulate(costs, schedule="1f1b").prepared.workload.i_ns[0] == 0


def test_whole_backwards_of_pytorch_have_no_input_gradient_on_the_first_stage_either(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(FIXTURES / "sleep-1f1b", run)
    (run / "run.manifest.json").write_text(json.dumps({"empty_input_gradient": False}), encoding="utf-8")

    assert read_measurement([run], registry())[0].empty_input_gradient
    assert not read_measurement([FIXTURES / "sleep-1f1b"], registry())[0].empty_input_gradient


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_manifest_says_whether_input_gradients_are_empty(*, is_empty: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(FIXTURES / "sleep-zb_h1_csv", run)
    (run / "run.manifest.json").write_text(json.dumps({"empty_input_gradient": is_empty}), encoding="utf-8")

    result = CliRunner().invoke(cli, ["calibrate", str(run), "--json"], catch_exceptions=False)

    values = json.loads(result.stdout)
    assert values["empty_input_gradient"] is is_empty
    assert ("I", 0) not in {(one["kind"], one["stage"]) for one in values["fitted"]} or not is_empty
    assert ("I", 0) in {(one["kind"], one["stage"]) for one in values["fitted"]} or is_empty
    assert "manifest" not in result.stderr


@pytest.mark.parametrize(("slices", "expected"), [(2, 2), (1, 1), (3, 1), (0, 1), (True, 1), ("2", 1), (None, 1)])
@pytest.mark.needs_plugins
def test_a_manifest_says_into_how_many_slices_sequences_are_cut(
    slices: object, expected: int, tmp_path: Path
) -> None:
    folder, costs = tmp_path / "run", tmp_path / "costs.yaml"
    shutil.copytree(FIXTURES / "sleep-1f1b", folder)
    (folder / "run.manifest.json").write_text(json.dumps({"slices": slices}), encoding="utf-8")

    words = ["calibrate", str(folder), "--json", "-o", str(costs)]
    result = CliRunner().invoke(cli, words, catch_exceptions=False)

    values = json.loads(result.stdout)
    assert (values["microbatches"], values["slices"]) == (8 // expected, expected)
    assert ("4 microbatches ran in 2 slices each" in result.stderr) == (expected == 2)
    step = simulate(costs)
    assert step.prepared.slices == expected
    assert step.metrics.step_ns == pytest.approx(values["check"]["simulated_ns"], rel=0.02)


@pytest.mark.parametrize(
    ("name", "schedule"), [("1f1b", "zb-h1"), ("gpipe", "zb-h1"), ("looped_bfs", "interleaved-zb")]
)
def test_whole_backwards_widen_the_interval_of_split_ones_and_say_what_settles_it(
    name: str, schedule: str
) -> None:
    found = check(name)

    assert found.split_interval is not None
    assert found.interval is not None
    assert found.interval < found.split_interval < found.interval + 0.25
    assert f"pptrace torch run {schedule} --costs run" in found.split_advice
    assert f"split_uncertainty: {found.split_interval:.3f}" in calibrated_yaml(fit(name), name, (), found)
    assert (check("zb_h1_csv").split_interval, check("zb_h1_csv").split_advice) == (None, "")


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize("input_ms", [7, 13])
@pytest.mark.needs_plugins
def test_a_split_between_one_third_and_two_thirds_lies_in_that_interval(
    ranks: int, microbatches: int, input_ms: int
) -> None:
    costs = {"name": "table", "forward": "10 ms", "backward": "20 ms"}
    size = {"pp": ranks, "microbatches": microbatches}
    whole = extract_computations(simulate(schedule="1f1b", costs=costs, **size).timeline)
    found = check_calibration(calibrate([whole]), [whole], registry())
    assumed, true = (
        simulate(schedule="zb-h1", costs=split, **size).metrics.step_ns
        for split in (costs, {**costs, "input_gradient": f"{input_ms} ms"})
    )

    assert found.interval is not None
    assert found.split_interval is not None
    assert abs(assumed / true - 1) <= found.split_interval
    assert abs(assumed / true - 1) > found.interval or input_ms == 7


def two_runs(folder: Path, first: str, second: str) -> None:
    """Copy two recordings as runs with manifests, the second one newer."""
    for age, name in enumerate((first, second)):
        shutil.copytree(FIXTURES / name, folder / name)
        manifest = folder / name / "run.manifest.json"
        manifest.write_text("{}", encoding="utf-8")
        os.utime(manifest, (1000 + age, 1000 + age))


def test_of_several_runs_one_gives_the_other_its_split(tmp_path: Path) -> None:
    two_runs(tmp_path / "runs", "sleep-zb_h1_csv", "sleep-1f1b")
    costs = tmp_path / "costs.yaml"
    words = ["calibrate", str(tmp_path / "runs"), "--json", "-o", str(costs)]

    values = json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).stdout)

    assert (values["check"]["split_interval"], values["check"]["split_advice"]) == (None, "")
    assert values["split_run"] == str(tmp_path / "runs" / "sleep-zb_h1_csv")
    assert values["run_shares"] == pytest.approx([0.5] * 4, abs=0.02)
    assert values["check"]["step_ns"] == run("1f1b").span_ns
    assert values["empty_input_gradient"]
    assert "measured in" in costs.read_text(encoding="utf-8")


@pytest.mark.parametrize(("older", "newer", "fitted"), [
    ("sleep-1f1b", "sleep-zb_h1_csv", "sleep-zb_h1_csv"), ("five-steps", "sleep-zb_h1_csv", "five-steps"),
])  # fmt: skip
def test_the_newest_run_of_several_steps_is_fitted(tmp_path: Path, older: str, newer: str, fitted: str) -> None:
    two_runs(tmp_path / "runs", older, newer)

    result = CliRunner().invoke(cli, ["calibrate", str(tmp_path / "runs")], catch_exceptions=False)

    assert f"note: {tmp_path / 'runs' / fitted} is fitted, of 2 runs" in result.stderr


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.needs_plugins
def test_a_fit_is_simulated_and_says_what_it_is_worth(name: str) -> None:
    found = check(name)

    assert found.step_ns == run(name).span_ns
    assert abs(found.error) < 0.08
    assert found.interval is not None
    assert abs(found.error) <= found.interval
    assert found.policy == "torch"
    assert not any("few host gaps" in warning for warning in found.warnings)


def test_a_message_of_a_pair_that_ran_as_one_is_under_way_from_the_pair_s_end() -> None:
    step = run("dualpipev")
    moves = step.transfers
    forward = (step.pair >= 0) & (step.kind == Kind.F)
    members = set(zip(step.stage[forward].tolist(), step.microbatch[forward].tolist(), strict=True))
    sent = zip(moves.stage.tolist(), moves.microbatch.tolist(), strict=True)
    ahead = moves.kind == Kind.SEND_F
    paired = ahead & np.array([one in members for one in sent])

    # A backward of 20 ms lies between the forward's share of its pair and the message; none took as long.
    assert moves.duration_ns[moves.observed].max() < 6_000_000
    assert (moves.blocked_ns[~paired & ahead] == 0).all()
    held = moves.blocked_ns[paired]
    assert 0.9 * held.size <= (held > 19_000_000).sum()


@pytest.mark.parametrize("name", ["1f1b", "zb_h1_csv", "zbv"])
def test_what_if_only_ever_shortens_a_step(name: str) -> None:
    found = what_if(run(name))

    for length in (found.free_communication_ns, found.no_host_gaps_ns, found.repaired_ns):
        assert found.no_bubble_ns.value * 0.98 < length.value <= found.replayed_ns.value
    assert found.no_bubble_ns.value < found.replayed_ns.value


def test_the_commands_say_the_same(tmp_path: Path) -> None:
    folder = str(FIXTURES / "sleep-zb_h1_csv")

    def printed(*words: str) -> Any:
        result = CliRunner().invoke(cli, words, catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    (replayed,) = json.loads(printed("replay", folder, "--json"))
    explained = json.loads(printed("explain", folder, "--json"))
    printed("calibrate", folder, "-o", str(tmp_path / "costs.yaml"))
    summary = printed("simulate", str(tmp_path / "costs.yaml"), "--schedule", "1f1b")
    compared = printed("compare", str(tmp_path / "costs.yaml"), "--schedules", "gpipe,1f1b")

    assert replayed["explained"] == pytest.approx(1, abs=0.05)
    assert sum(explained["parts_ns"].values()) == explained["step_ns"]
    assert explained["what_if"]["replayed_ns"] == replayed["replayed_ns"]
    assert "1f1b, 8 microbatches" in summary
    assert f"±{check('zb_h1_csv').interval:.1%} (costs.uncertainty); ties within that: " in compared


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("rank", [1, 3])
def test_one_rank_s_file_gives_costs_of_the_whole_pipeline(name: str, rank: int, tmp_path: Path) -> None:
    costs = tmp_path / "costs.yaml"
    recorded = FIXTURES / f"sleep-{name}" / f"rank{rank}.json.gz"
    answer = CliRunner().invoke(cli, ["calibrate", str(recorded), "-o", str(costs)], catch_exceptions=False)
    table = tmp_path / "order.csv"
    table.write_text(table_text(run(name).order), encoding="utf-8")

    assert f"the fit assumes {ALONE[name][0]} stages on 4 ranks" in answer.output
    step = simulate(costs, schedule=str(table), sets=["parallel.pp=null", "batch.microbatches=null"])
    assert step.metrics.step_ns == pytest.approx(run(name).span_ns, rel=ALONE[name][1])


def test_stages_that_lie_elsewhere_say_nothing_of_the_pipeline() -> None:
    step, own = run("interleaved1f1b"), fit("interleaved1f1b")

    assert extend_to_pipeline(own, step, (0, 1, 2, 3), 4) == own
    assert extend_to_pipeline(own, step, (1, 2, 3, 4), 8) == own
