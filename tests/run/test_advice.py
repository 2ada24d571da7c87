"""Advice is what was simulated: its arguments give its step, with as many GPUs and the same batch."""

from __future__ import annotations

import json
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from small_schedules import small_registry

from pptrace.api import simulate
from pptrace.cli.main import cli
from pptrace.config.choices import PolicyName
from pptrace.errors import ConfigError
from pptrace.plugins.hookspecs import hookimpl
from pptrace.plugins.registry import Registry
from pptrace.run import advice as advising
from pptrace.run.neighbourhood import Advice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugins.offers import ScheduleOffer

LLAMA = Path(__file__).parents[2] / "examples" / "llama3-70b.yaml"
SMALL = ["--model", "llama3-8b", "--device", "h100-sxm", "--sequence", "4096"]
CASES = {
    "units": ["--schedule", "1f1b", "--pp", "4", "--microbatches", "8"],
    "collectives": [*SMALL, "--schedule", "1f1b", "--pp", "2", "--tp", "8", "--dp", "2", "--global", "32"],
    "microbatches": [
        *SMALL, "--schedule", "1f1b", "--pp", "4", "--tp", "4", "--dp", "2", "--microbatches", "16",
        "--p2p", "ordered",
        "--network", "{name: hockney, bandwidth: 50 GB/s}",
    ],
    "over memory": [*SMALL, "--schedule", "gpipe", "--pp", "2", "--tp", "2", "--micro", "4", "--global", "64"],
    "cluster": [
        "--model", "llama3-8b", "--sequence", "4096", "--schedule", "1f1b", "--pp", "2", "--tp", "8",
        "--global", "16",
        "--cluster", "dgx-h100x2",
    ],
    "options": ["--schedule", "hanayo", "--pp", "4", "--microbatches", "8", "--set", "schedule.options.waves=2",
                "--p2p", "ordered", "--set", "p2p.stream=rank"],
    "recomputing": [
        *SMALL, "--schedule", "1f1b", "--pp", "2", "--tp", "4", "--global", "32", "--set", "model.recompute=full",
    ],
}  # fmt: skip
NOBODYS = ("network", "cluster", "contention", "device", "data_parallel.bandwidth", "data_parallel.latency")
"""What no one can switch on."""


def printed(arguments: list[str]) -> Any:
    result = CliRunner().invoke(cli, ["simulate", *arguments, "--json"], catch_exceptions=False)
    return json.loads(result.stdout)


@cache
def printed_case(name: str) -> Any:
    return printed(CASES[name])


def job(message: Any) -> tuple[int, int]:
    configuration = message["provenance"]["configuration"]
    parallel = configuration["parallel"]
    return parallel["pp"] * parallel["tp"] * parallel["dp"] * parallel["cp"], configuration["batch"]["global"]


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", CASES)
def test_who_follows_advice_gets_the_printed_step_of_the_same_job(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = printed_case(name)
    monkeypatch.setattr(advising, "advise", lambda _: Advice(best=None, tried=(), estimated=0))

    assert document["advice"]["tried"]
    for tried in document["advice"]["tried"]:
        followed = printed([*CASES[name], *shlex.split(tried["arguments"])])
        assert followed["step_ns"] == tried["step_ns"]
        assert followed["peak_memory_bytes"] == tried["peak_memory_bytes"]
        assert (followed["over_memory"] is None) == tried["fits"]
        assert job(followed) == job(document)


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", CASES)
def test_advice_is_never_worse_and_names_nothing_that_nobody_can_switch_on(name: str) -> None:
    document = printed_case(name)
    best, fits = document["advice"]["best"], document["over_memory"] is None

    for tried in document["advice"]["tried"]:
        assert not [key for key in tried["settings"] if key.startswith(NOBODYS)]
        assert tried["settings"].get("p2p.policy") != PolicyName.ASYNC.value
    if best is not None:
        assert best["fits"]
        assert best in document["advice"]["tried"]
        assert not fits or best["step_ns"] < document["step_ns"]
    better = [
        candidate for candidate in document["advice"]["tried"]
        if candidate["fits"] and (not fits or candidate["step_ns"] <= document["step_ns"] * 0.995)
    ]  # fmt: skip
    assert (best is None) == (not better)
    assert best is None or best["step_ns"] == min(item["step_ns"] for item in better)


@pytest.mark.needs_plugins
def test_the_same_step_gets_the_same_advice() -> None:
    first, second = (simulate(LLAMA, microbatches=32) for _ in range(2))

    assert json.dumps(first.advice.to_dict()) == json.dumps(second.advice.to_dict())


@pytest.mark.needs_plugins
def test_the_example_gets_a_shorter_step_that_fits() -> None:
    run = simulate(LLAMA)
    best = run.advice.best

    assert best is not None
    assert best.fits
    assert best.step_ns is not None
    assert best.step_ns < 0.9 * run.metrics.step_ns
    assert {"parallel.tp": 4, "parallel.dp": 16}.items() <= best.change.settings.items()
    assert "--pp 4 --tp 4 --dp 16 --vp 5" in run.summary()
    assert run.metrics.step_ns == simulate(LLAMA).metrics.step_ns


@pytest.mark.needs_plugins
def test_whoever_follows_it_arrives_at_a_step_without_advice() -> None:
    arguments, steps = CASES["collectives"], []
    for _ in range(6):
        document = printed(arguments)
        steps.append(document["step_ns"])
        if document["advice"]["best"] is None:
            break
        arguments = [*arguments, *shlex.split(document["advice"]["best"]["arguments"])]

    assert document["advice"]["best"] is None
    assert len(steps) > 1
    assert all(after < before for before, after in pairwise(steps))


@pytest.mark.needs_plugins
def test_a_deep_search_is_at_least_as_good_and_prints_all_that_it_tried() -> None:
    arguments = ["simulate", *CASES["collectives"]]
    quick = printed_case("collectives")["advice"]
    deep = json.loads(CliRunner().invoke(cli, [*arguments, "--advise", "--json"]).output)["advice"]
    text = CliRunner().invoke(cli, [*arguments, "--advise"]).output

    assert len(deep["tried"]) > len(quick["tried"])
    assert deep["best"]["step_ns"] <= quick["best"]["step_ns"]
    assert all(candidate["arguments"] in text for candidate in deep["tried"])


@pytest.mark.needs_plugins
def test_a_step_that_does_not_fit_gets_a_message_with_what_does() -> None:
    document = printed_case("over memory")

    assert document["over_memory"] is not None
    assert document["advice"]["best"]["fits"]


def test_a_table_of_ones_own_runs_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", encoding="utf-8")

    assert simulate(schedule=str(path)).advice.tried == ()


@pytest.mark.needs_plugins
def test_costs_of_stages_say_nothing_of_other_numbers_of_stages() -> None:
    costs = {"name": "table", "forward": "1 ms", "backward": "2 ms"}
    whole = simulate(schedule="1f1b", pp=4, microbatches=8, costs=costs)
    cut = simulate(schedule="1f1b", pp=4, microbatches=8, costs=costs | {"slices": 4})

    assert all("parallel.vp" not in candidate.change.settings or candidate.change.settings["parallel.vp"] == 1
               for candidate in whole.advice.tried)  # fmt: skip
    assert cut.advice.best is not None
    assert cut.advice.best.change.settings["parallel.vp"] > 1


@pytest.mark.needs_plugins
def test_no_more_is_simulated_than_the_effort_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    little = advising._Effort(workloads=24, simulated=3, actions=0, step_ratio=0.0)
    monkeypatch.setattr(advising, "_QUICK", little)

    assert simulate(schedule="1f1b", pp=4, microbatches=8).advice.tried == ()


@pytest.mark.needs_plugins
def test_a_step_above_the_limit_of_actions_is_estimated_itself() -> None:
    """Otherwise a worse candidate with the configured schedule precedes better ones with other schedules."""
    run = simulate(schedule="1f1b", pp=4, microbatches=8)
    estimates = advising._Search(run, replace(advising._QUICK, actions=1), deep=False)._estimates()

    assert [dict(change.settings) for change, _ in estimates] == [{}]


@pytest.mark.needs_plugins
def test_a_candidate_that_cannot_run_is_not_tried_and_takes_the_place_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = simulate(schedule="1f1b", pp=4, microbatches=8)
    expected, under = run.advice.tried, type(run).under
    refused = []

    def refuse_some(own: Any, resolved: Any) -> Any:
        if resolved.experiment.schedule.name == expected[0].change.settings.get("schedule.name"):
            refused.append(resolved)
            raise ConfigError("no")
        return under(own, resolved)

    again = simulate(schedule="1f1b", pp=4, microbatches=8)
    monkeypatch.setattr(type(run), "under", refuse_some)

    assert refused == []
    assert expected[0] not in again.advice.tried
    assert refused
    assert len(again.advice.tried) == len(expected)
    assert "cannot run" not in str(advising.advice_document(again, again.advice))
    assert all(candidate.step_ns is not None for candidate in again.advice.tried)


def test_a_schedule_that_fails_when_it_is_asked_costs_no_one_their_advice() -> None:
    def broken(_: object) -> Any:
        raise RuntimeError("broken")

    class Failing:
        @hookimpl
        def pptrace_schedules(self) -> Iterable[ScheduleOffer]:
            offers = small_registry().schedules
            yield offers["eager"].offer
            yield replace(offers["lumped"].offer, name="failing", bubble=broken)
            yield replace(offers["lumped"].offer, options=broken)

    registry = Registry.load(entry_points=False, plugins={"failing": Failing()})

    assert simulate(schedule="eager", pp=2, microbatches=4, registry=registry).advice.best is None
