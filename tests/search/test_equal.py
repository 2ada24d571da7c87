"""Schedules on equal memory: what is printed can be followed, fits, and is never worse than the configuration."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pptrace.api import compare, simulate
from pptrace.cli.main import cli
from pptrace.config.quantities import parse_size
from pptrace.errors import PptraceError
from pptrace.run import advice
from pptrace.run.neighbourhood import Advice
from pptrace.sanitize import csv_text
from pptrace.search import settings_search
from pptrace.search.settings_search import VARIED

LLAMA = str(Path(__file__).with_name("llama3-70b-ideal.yaml"))
SMALL = [
    "--model",
    "llama3-8b",
    "--device",
    "h100-sxm",
    "--stack",
    "ideal",
    "--sequence",
    "4096",
    "--p2p",
    "ordered",
]
NETWORK = ["--network", "{name: hockney, bandwidth: 50 GB/s}"]
CASES = {
    "tight": (
        [*SMALL, *NETWORK, "--pp", "4", "--tp", "2", "--dp", "2", "--microbatches", "8"],
        "1f1b,interleaved-1f1b,zb-h1", "24 GiB",
    ),
    "wide": (
        [*SMALL, "--pp", "2", "--tp", "4", "--global", "16", "--micro", "2", "--set", "model.recompute=full"],
        "zb-v,hanayo:waves=1,interleaved-1f1b:vp=4", "76GiB",
    ),
    "cluster": (
        ["--model", "llama3-8b", "--sequence", "4096", "--pp", "2", "--tp", "8", "--global", "8", "--cluster",
         "dgx-h100x2", "--vp", "2", "--schedules", "looped-bfs"],
        "1f1b,zb-v:shorten=step", "20 GiB",
    ),
    "units": (
        [*SMALL, *NETWORK, "--pp", "1", "--vp", "2", "--dp", "4", "--global", "4", "--set", "costs.zero=3"],
        "1f1b", "120 GiB",
    ),
    "costs": (
        ["--pp", "4", "--microbatches", "8", "--costs", json.dumps({
            "name": "table", "forward": "1 ms", "backward": "2 ms", "activation": "1 GiB", "weights": "2 GiB",
            "weight_activation": "512 MiB", "slices": 8,
        })],
        "gpipe,1f1b,interleaved-1f1b,zb-h1,v-min", "13 GiB",
    ),
}  # fmt: skip

TRIED: dict[str, Any] = {
    "model": "llama3-8b", "device": "h100-sxm", "sequence": 4096, "pp": 4, "tp": 2, "dp": 2, "p2p": "ordered",
    "global": 16,
}  # fmt: skip


def printed(*arguments: str) -> Any:
    return json.loads(CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False).stdout)


@cache
def printed_answer(name: str) -> tuple[list[str], Any]:
    step, schedules, limit = CASES[name]
    step = [word for word in step if word not in {"--schedules", "looped-bfs"}]
    return step, printed("compare", *step, "--schedules", schedules, "--memory", limit)


def job(answer: Any) -> list[int]:
    configuration = answer["provenance"]["configuration"]
    return [*(configuration["parallel"][key] for key in ("pp", "tp", "dp")), configuration["batch"]["global"]]


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", CASES)
def test_who_follows_the_printed_arguments_gets_the_printed_step_of_the_same_job(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, answer = printed_answer(name)
    monkeypatch.setattr(advice, "advise", lambda _: Advice(best=None, tried=(), estimated=0))
    fitting = [row for row in answer["rows"] if row["refused"] is None]

    assert fitting
    jobs = set()
    for row in fitting:
        followed = printed("simulate", *step, *shlex.split(row["arguments"]))
        assert followed["step_ns"] == row["step_ns"]
        assert followed["peak_memory_bytes"] == row["peak_memory_bytes"] <= answer["memory_limit_bytes"]
        assert followed["over_memory"] is None
        jobs.add(tuple(job(followed)))
    assert len(jobs) == 1


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", CASES)
def test_no_schedule_is_worse_than_the_configuration_runs_it(name: str) -> None:
    _, answer = printed_answer(name)

    for row in answer["rows"]:
        own, tried = row["as_configured"], row["tried"]
        assert tried[0] == own
        fitting = [candidate["step_ns"] for candidate in tried if candidate["fits"]]
        assert (row["refused"] is None) == bool(fitting)
        if own["fits"]:
            assert row["step_ns"] <= own["step_ns"]
        if fitting:
            assert row["step_ns"] == min(fitting)


@pytest.mark.needs_plugins
def test_the_own_form_is_what_simulate_says_of_the_configuration() -> None:
    step, answer = printed_answer("tight")

    refused = []
    for row in answer["rows"]:
        own = row["as_configured"]
        arguments = ["simulate", *step, "--schedule", row["schedule"], "--set", "device.memory=24 GiB", "--json"]
        result = CliRunner().invoke(cli, arguments)
        if own["refused"]:
            refused.append(row["schedule"])
            assert isinstance(result.exception, PptraceError)
            continue
        simulated = json.loads(result.stdout)
        assert simulated["step_ns"] == own["step_ns"]
        assert (simulated["over_memory"] is None) == own["fits"]
    assert refused == ["interleaved-1f1b", "zb-h1"]


@cache
def all_variants(schedule: str, chunks: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return step and peak memory of every combination that can run."""
    outcome = []
    for vp, micro, recompute in product(chunks, (1, 2, 4), ("none", "selective", "full")):
        try:
            run = simulate(schedule=schedule, vp=vp, micro=micro, sets=[f"model.recompute={recompute}"], **TRIED)
        except PptraceError:
            continue
        outcome.append((run.metrics.step_ns, int(run.metrics.memory.peak_bytes.max())))
    return outcome


@pytest.mark.needs_plugins
@pytest.mark.parametrize("limit", ["20 GiB", "30 GiB"])
@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", (1,)), ("interleaved-1f1b", (2, 4, 8))])
def test_the_best_form_is_the_best_of_all(limit: str, schedule: str, chunks: tuple[int, ...]) -> None:
    """Estimates only put variants in order: what all combinations simulated one by one give is not better."""
    steps = [step for step, peak in all_variants(schedule, chunks) if peak <= parse_size(limit)]

    if not steps:
        with pytest.raises(PptraceError, match="no schedule fits"):
            compare(schedules=schedule, memory=limit, vary="vp,micro,recompute", **TRIED)
        return
    (row,) = compare(schedules=schedule, memory=limit, vary="vp,micro,recompute", **TRIED).table()
    assert row["step_ns"] == min(steps)


@pytest.mark.needs_plugins
def test_text_json_and_csv_say_the_same_each_time(tmp_path: Path) -> None:
    """Of two schedules, one fits and one is refused."""
    file = tmp_path / "rows.csv"
    step, _, limit = CASES["tight"]
    schedules = "1f1b,gpipe"
    arguments = ["compare", *step, "--schedules", schedules, "--memory", limit, "--vary", "recompute"]
    text = CliRunner().invoke(cli, [*arguments, "-o", str(file)], catch_exceptions=False).stdout
    rows, cells = printed(*arguments)["rows"], list(csv.DictReader(io.StringIO(file.read_text())))

    assert [row["schedule"] for row in rows] == schedules.split(",")
    assert [bool(row["refused"]) for row in rows] == [False, True]
    for row, cell in zip(rows, cells, strict=True):
        assert {key: "" if row[key] is None else str(row[key]) for key in cell} == {
            key: csv_text(text) for key, text in cell.items()
        }
        if row["refused"]:
            continue
        (command,) = re.findall(r"^  (pptrace simulate .*)$", text.replace(" \\\n   ", ""), re.MULTILINE)
        assert printed(*shlex.split(command)[1:])["step_ns"] == row["step_ns"]
        assert row["left_bytes"] == parse_size(limit) - row["peak_memory_bytes"]
        parts = ("weights", "gradients", "optimizer", "buffer", "reserved", "activation")
        assert sum(row[f"{part}_bytes"] for part in parts) == row["peak_memory_bytes"]


@pytest.mark.needs_plugins
def test_what_a_schedule_sets_itself_is_kept_and_only_what_was_named_differs() -> None:
    step, _, limit = CASES["tight"]
    kept = "interleaved-1f1b:vp=2,zb-h1:order=fixed,1f1b:model.recompute=full"
    for row in printed("compare", *step, "--schedules", kept, "--memory", limit)["rows"]:
        for candidate in row["tried"]:
            settings = candidate["settings"]
            assert "schedule.options.order" not in settings
            assert row["schedule"] != "interleaved-1f1b:vp=2" or settings.get("parallel.vp", 2) == 2
            assert not row["schedule"].startswith("1f1b") or "model.recompute" not in settings

    both = "zb-h1,zb-h1:merge=true"
    merged = printed("compare", *step, "--schedules", both, "--memory", "60 GiB", "--vary", "options")
    values = [{item["settings"].get("schedule.options.merge") for item in row["tried"]} for row in merged["rows"]]
    assert values == [{None, True}, {None}]
    named = printed("compare", *step, "--schedules", "1f1b", "--memory", limit, "--vary", "zero,recompute")
    keys = {key for entry in named["rows"][0]["tried"] for key in entry["settings"]}
    assert keys == {"parallel.vp", "costs.zero", "model.recompute"}
    assert list(named["varied"]) == ["recompute", "zero"]


@pytest.mark.needs_plugins
def test_no_more_is_simulated_than_the_effort_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_search, "_BY_ESTIMATE", 2)
    monkeypatch.setattr(settings_search, "_LEAST_MEMORY", 1)
    monkeypatch.setattr(settings_search, "_NEAR_BEST", 1)

    comparison = compare(LLAMA, schedules="zb-h1,interleaved-1f1b", memory="60GiB", microbatches=16, p2p="ordered")

    assert [len(row.variants.tried) <= 1 + 2 + 1 for row in comparison.rows if row.variants] == [True, True]


@pytest.mark.needs_plugins
def test_each_simulated_variant_is_counted_once_in_the_sum_of_actions() -> None:
    comparison = compare(LLAMA, schedules="zb-h1,1f1b", memory="40 GiB", microbatches=16, p2p="ordered")

    for row in comparison.rows:
        search = row.variants
        assert search is not None
        counted = settings_search._ACTIONS - search.actions_left
        sizes = [search._sizes(variant.change) for variant in search.tried[1:]]
        assert counted == sum(2 * stages * microbatches for stages, microbatches in sizes)


@pytest.mark.needs_plugins
def test_options_are_found_that_let_a_schedule_run_at_all() -> None:
    vary = "vp,micro,recompute,options"
    (row,) = compare(LLAMA, schedules="stp", memory="48 GiB", vary=vary, microbatches=16, p2p="ordered").rows
    arguments = ["simulate", LLAMA, "--microbatches", "16", "--p2p", "ordered", *shlex.split(row.arguments)]

    assert "stp's warm-up on 8 ranks takes 23 microbatches or more, not 16" in row.reason
    assert row.settings["schedule.options.warm_up"] == "lean"
    assert row.settings["model.recompute"] == "full"
    assert printed(*arguments)["step_ns"] == row.variants.best.step_ns


def test_page_and_help_name_every_setting_that_may_differ(root: Path) -> None:
    page = (root / "docs" / "compare.md").read_text(encoding="utf-8")
    (vary,) = (param for param in cli.get_command(None, "compare").params if param.name == "vary")
    usual, more = ([one.name for one in VARIED if one.on_request == asked] for asked in (False, True))

    assert f"settings that vary; by default {', '.join(usual)}; also {', '.join(more)}." in vary.help
    for item in VARIED:
        rows = [line for line in page.splitlines() if line.startswith(f"| `{item.name}` |")]
        assert [row.endswith("| no |") for row in rows] == [item.on_request]


@pytest.mark.needs_plugins
@pytest.mark.parametrize(("schedule", "memory"), [("zb-h1", "3900MiB"), ("v-min", "3800MiB")])
def test_a_schedule_is_no_slower_than_with_one_of_its_options_fixed(schedule: str, memory: str) -> None:
    """The fixed order fits if forwards are computed again; the other is slow in little room, or cannot be made."""
    costs = {
        "name": "table", "forward": "10 ms", "input_gradient": "9 ms", "weight_gradient": "8 ms",
        "activation": "1 GiB", "weight_activation": "512 MiB", "checkpoint": "64 MiB", "offload": "3 ms",
        "reload": "3 ms", "weights": "1 GiB",
    }  # fmt: skip
    rows = compare(
        {"parallel": {"pp": 4}, "batch": {"microbatches": 12}, "costs": costs},
        schedules=f"{schedule},{schedule}:order=fixed", memory=memory,
    ).rows  # fmt: skip

    free, fixed = (row.variants.best for row in rows)
    assert fixed is not None
    assert fixed.fits
    assert free is not None
    assert free.fits
    assert free.step_ns <= fixed.step_ns


COPYING = ["--schedules", "1f1b,gpipe", "--pp", "4", "--microbatches", "8", "--memory", "3GiB"]
FIGURES = {"name": "table", "forward": "10 ms", "backward": "20 ms", "activation": "1 GiB", "recompute": "10 ms"}


@pytest.mark.needs_plugins
@pytest.mark.parametrize(
    "more",
    [{}, {"offload": "1 ms"}, {"reload": "1 ms"}, {"offload": "1 ms", "reload": ["1 ms", "1 ms", "1 ms", "0 ms"]}],
)
def test_activations_are_not_copied_to_the_host_in_no_time(more: dict[str, Any]) -> None:
    arguments = ["compare", *COPYING, "--costs", json.dumps({**FIGURES, **more})]

    outcome = printed(*arguments)
    text = CliRunner().invoke(cli, arguments, catch_exceptions=False).stdout

    assert not any("offload" in candidate["arguments"] for row in outcome["rows"] for candidate in row["tried"])
    assert outcome["without_copy_times"] == ["1f1b", "gpipe"]
    assert "offload is not varied: the costs have no time for copies: give device.host_bandwidth" in text


@pytest.mark.needs_plugins
def test_activations_are_copied_to_the_host_where_costs_have_times() -> None:
    costs = json.dumps({**FIGURES, "offload": "9 ms", "reload": "9 ms"})

    outcome = printed("compare", *COPYING, "--costs", costs)
    kept = printed("compare", *COPYING, "--costs", costs, "--vary", "recompute-actions")
    text = CliRunner().invoke(cli, ["compare", *COPYING, "--costs", costs], catch_exceptions=False).stdout

    assert any("offload" in candidate["arguments"] for row in outcome["rows"] for candidate in row["tried"])
    assert outcome["without_copy_times"] == kept["without_copy_times"] == []
    assert "left out" not in text
