"""What cannot be planned is one line that says what to do; what can be asked has the answer's form."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import re
import shlex
import subprocess
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

import pptrace
from pptrace.cli.plan import command
from pptrace.cli.simulate import command as simulate
from pptrace.config.quantities import format_size
from pptrace.config.resolution import document_of, load
from pptrace.errors import PptraceError
from pptrace.plugins.registry import Registry
from pptrace.report.numbers import unique_names
from pptrace.search import candidates, plan_search
from pptrace.search.plan import _SHORT
from pptrace.search.plan_axes import ALIASES

DOCS = Path(__file__).parents[2] / "docs" / "plan.md"
NAME = re.compile(r"`([a-z0-9_-]+)`")
pytestmark = pytest.mark.needs_plugins

MODEL = {"layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096, "vocabulary": 32000}
STEP = {
    "model": MODEL, "device": "a100-sxm", "network": "ideal", "batch": {"global": 8, "sequence": 1024}
}  # fmt: skip
FEW = {
    "schedule": ["1f1b", "interleaved-1f1b"],
    "recompute": ["none"],
    "zero": [1],
    "micro": [1],
    "layers": ["even"],
}


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load()


def planned(registry: Registry, **changed: Any) -> Any:
    given = {
        "config": STEP, "gpus": 4, "vary": FEW, "framework": "any", "executor": "serial", "robust": False,
        "registry": registry,
    }  # fmt: skip
    return pptrace.plan(**{**given, **changed})


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"gpus": 0}, "^gpus: 0 is not a number of GPUs: write 1 or more"),
        ({"gpus": None}, "^gpus: missing: the configuration does not have the number of GPUs"),
        ({"top": 0}, "^top: 0 is not a number of places"),
        ({"objective": "tokns"}, r"^objective: 'tokns' is not an objective \(did you mean 'tokens'"),
        ({"objective": "fast"}, r"^objective: 'fast' is not an objective \(.*known: gpus, mfu, step, tokens\)"),
        ({"gpus": 1, "vary": {"pp": [2]}}, "a replica of the given sizes needs 2 GPUs, and the job has 1"),
        ({"executor": "dusk"}, "no installed plugin offers an executor named 'dusk'"),
        ({"memory": "2.2GiB"}, r"^memory: none of \d+ configurations fits: .* GiB is enough \(.*\); give"),
        ({"gpus": 2, "vary": {"pp": [2], "tp": [2]}}, "^gpus: .* needs 4 GPUs, and the job has 2"),
        ({"gpus": 7, "vary": {"pp": [2]}}, "^vary: no pp x tp x cp x dp of the given sizes is 7 GPUs"),
        ({"vary": {"pp": ["two"]}}, "^vary parallel.pp: 'two' is not a size"),
        ({"config": {**STEP, "plan": {"foo": [1]}}}, r"^plan foo: no such key"),
        ({"config": {**STEP, "plan": {"pp": []}}}, r"^plan pp: has no value"),
        ({"config": {**STEP, "plan": {"pp": 3}}}, r"^plan pp: write a list of values, not 3"),
        ({"vary": {"layers": ["odd"]}}, "^vary layers: 'odd' is not a split: write even, balanced or a list"),
        ({"vary": {"layout": [{"pp": 2, "tp": 2}]}}, "parallel.pp is a separate axis of a plan"),
        ({"vary": {"pp": [1, 2]}, "pp": 2}, "parallel.pp: it is also varied: leave one of them out"),
        ({"schedule": "gpipe,1f1b", "vary": {"pp": [2]}}, r'are several .*vary=\["schedule=gpipe,1f1b"\]'),
        ({"vary": {"schedule": ["gpipe,1f1b"]}}, "gpipe,1f1b are several schedules, and a value is one"),
        ({"config": {"device": "a100-sxm"}}, "model: missing: a plan divides a model over GPUs"),
        ({"config": {**STEP, "batch": {"sequence": 1024}}}, "batch.global: missing"),
        ({"global": "64,128"}, r'64,128 is not a whole number from 1; .*vary=\["global=64,128"\]'),
        ({"config": {**STEP, "batch": {"global": 0}}}, "batch.global: 0 is not a whole number from 1"),
        ({"microbatches": 4}, "batch.microbatches: they follow from the global batch and each layout"),
        ({"config": {**STEP, "cluster": "dgx-a100x2"}, "gpus": 8}, "cluster.preset: .*2 nodes of 8 GPUs are 16"),
        ({"outputs": ["best.txt"]}, "best.txt: no such format; write .yaml"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_one_line(registry: Registry, changed: dict[str, Any], line: str) -> None:
    with pytest.raises(pptrace.PptraceError, match=line) as raised:
        planned(registry, **changed)

    assert "\n" not in str(raised.value)


def test_tables_that_do_not_fit_into_memory_are_not_made(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", "1000")

    with pytest.raises(PptraceError, match=r"configurations can run: .* actions on 2 ranks would take about"):
        planned(registry, vary={**FEW, "pp": [2]})


def test_steps_too_long_to_be_one_of_many_are_refused_and_progress_names_large_ones(registry: Registry) -> None:
    said: list[str] = []
    asked = {"vary": {**FEW, "schedule": ["1f1b"], "pp": [2], "tp": [2], "micro": [1]}, "progress": said.append}

    with pytest.raises(PptraceError, match=r"36,000,000 actions in a step, and the most in a plan is 16,777,216"):
        planned(registry, **asked, **{"global": 9_000_000})

    plan_result = planned(registry, **asked, **{"global": 300_000})
    assert any("now 1f1b, pp 2 tp 2 micro 1 of 300,000 microbatches" in text for text in said)
    assert plan_result.best.layout.microbatches == 300_000


def test_a_configuration_says_what_varies_and_the_command_line_what_is_fixed(registry: Registry) -> None:
    config = {**STEP, "plan": {**FEW, "tp": [1], "schedule": ["1f1b"]}}

    plan_result = planned(registry, config=config, vary=["micro=1,2"], pp=2)

    assert {candidate.schedule for candidate in plan_result.candidates} == {"1f1b"}
    assert {(candidate.layout.pp, candidate.layout.tp) for candidate in plan_result.candidates} == {(2, 1)}
    assert {candidate.layout.micro for candidate in plan_result.candidates} == {1, 2}
    assert "plan" not in plan_result.configuration


@pytest.mark.parametrize("split", [{"layout": "Ettt|tttt|ttt|ttL"}, {"layers_per_stage": [3, 4, 3, 2]}])
def test_a_configured_job_is_divided_anew_with_its_gpus(tmp_path: Path, split: dict[str, Any]) -> None:
    job = {**STEP, "model": {**MODEL, "layers": 12, **split}, "schedule": "1f1b", "parallel": {"pp": 4, "dp": 2}}
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job), encoding="utf-8")

    plan = pptrace.plan(file, vary={**FEW, "layers": ["balanced", "even"]}, framework="any", executor="serial")
    words = shlex.split(" ".join(plan.command))[2:]
    step = CliRunner().invoke(simulate, [*words, "--json"], catch_exceptions=False)

    assert plan.request.gpus == 8
    assert json.loads(step.stdout)["step_ns"] == plan.best.row["step_ns"]
    assert f"model.{next(iter(split))}=null" in plan.command or "layers_per_stage" in split


@pytest.mark.parametrize(
    ("job", "vary", "refused"),
    [
        # Settings that fit only some of the varied values: the others cannot run.
        ({"costs": {"zero": 1, "exp_avg": "bf16"}}, {"zero": [0, 1]}, {"costs.exp_avg"}),
        ({"model": {**MODEL, "offload_modules": ["moe_act"]}}, {"recompute": ["none", "full"]}, set()),
        ({"model": {**MODEL, "offloaded_layers": 1}}, {"recompute": ["none", "full"]}, set()),
        (
            {"data_parallel": {"shard": 2, "units": 1}, "costs": {"zero": 3, "outer_sharding": True}},
            {"zero": [1, 3]}, set(),
        ),
    ],
)  # fmt: skip
def test_settings_of_the_configured_job_do_not_end_the_plan(
    registry: Registry, job: dict[str, Any], vary: dict[str, Any], refused: set[str]
) -> None:
    config = {**STEP, "schedule": "1f1b", "parallel": {"pp": 1, "dp": 4}, **job}
    plan = planned(registry, config=config, gpus=None, vary={**FEW, **vary, "schedule": ["1f1b"]})

    assert plan.refusals().keys() & {"costs.exp_avg", "data_parallel.shard", "costs.outer_sharding"} == refused
    values = {setting for place in plan.ranking for setting in place.settings.items() if "recompute" in setting[0]}
    assert {value for _, value in values} == {*vary.get("recompute", ["none"])}


def test_the_command_prints_what_it_found_and_keeps_finished_rows(tmp_path: Path) -> None:
    vary = {**FEW, "schedule": ["1f1b"], "pp": [2], "tp": [1], "micro": [1, 2]}
    step = {**STEP, "costs": {"host_kernel": "0 ms"}, "plan": vary}
    (tmp_path / "step.yaml").write_text(json.dumps(step))
    told = ["--gpus", "4", "--top", "2", "--executor", "serial"]

    result = CliRunner().invoke(
        command, [str(tmp_path / "step.yaml"), *told, "--json", "-o", str(tmp_path / "p.svg")]
    )

    answer = json.loads(result.stdout)
    assert [(place["place"], place["schedule"]) for place in answer["places"]] == [(1, "1f1b"), (2, "1f1b")]
    assert answer["framework"] == "megatron"
    assert sum(answer["counts"].values()) == 2 * answer["counts"]["considered"]
    assert {trial["machine"].split(" ")[0] for trial in answer["robustness"]["trials"]} == {
        "bandwidth", "efficiency", "jitter",
    }  # fmt: skip
    assert {path.name for path in tmp_path.iterdir()} == {"step.yaml", "p.svg"}


def test_a_plan_has_only_what_the_framework_of_the_stack_runs(registry: Registry) -> None:
    vary = {**FEW, "pp": [4], "tp": [1], "schedule": ["1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v"]}

    every = planned(registry, vary=vary, exhaustive=True)
    megatron = planned(registry, vary=vary, framework="")

    assert megatron.problem.framework == "megatron"
    runs = [place for place in every.ranking if place.schedule in {"1f1b", "interleaved-1f1b"}]
    assert [place.name for place in megatron.ranking] == [place.name for place in runs]
    assert megatron.foreign is not None
    assert (megatron.foreign.name, megatron.foreign.score) == (every.best.name, every.best.score)
    assert "--for any" in str(megatron)
    assert "does not run it: schedule zb" in " ".join(str(megatron).split())
    assert "torchtitan" not in str(megatron)


@pytest.mark.parametrize(
    ("config", "flags", "stack"),
    [
        ({}, {}, "torchtitan"),
        ({"stack": "megatron-core-0.18"}, {}, "torchtitan"),
        ({"stack": "torchtitan-0.2"}, {}, "torchtitan-0.2"),
        ({}, {"stack": "ideal"}, "ideal"),
    ],
)
def test_a_plan_for_another_framework_has_its_stack(
    registry: Registry, config: dict[str, Any], flags: dict[str, Any], stack: str
) -> None:
    vary = {**FEW, "zero": [3], "pp": [4], "tp": [1]}

    plan = planned(registry, config={**STEP, **config}, vary=vary, framework="torchtitan", **flags)

    assert plan.experiment.stack.startswith(stack)
    words = plan.command
    assert ("--stack" in words) == (plan.problem.document.value.get("stack") != config.get("stack"))


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_the_files_of_a_plan_are_read_back_as_its_configuration(
    registry: Registry, precision: str, tmp_path: Path
) -> None:
    pytest.importorskip("pptrace_frameworks")
    script, recipe = tmp_path / "run.sh", tmp_path / "recipe.py"
    device = {"bf16": "a100-sxm", "fp8": "h100-sxm"}[precision]
    model = {"preset": "llama3-8b", "precision": precision, "offload_modules": ["core_attn"]}
    job = {"model": model, "device": device, "batch": {"global": 8, "sequence": 8192}}
    vary = {**FEW, "pp": [4], "tp": [2], "cp": [1], "schedule": ["interleaved-1f1b"], "vp": [2], "zero": [1]}
    plan = planned(registry, config=job, gpus=8, vary=vary, framework="megatron", outputs=[script, recipe])
    assert "exec torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py" in script.read_text()
    sizes = ["--model", "llama3-8b", "--device", device]

    for words in ([str(script), *sizes], [str(recipe)]):
        run = CliRunner().invoke(registry.commands["recipe"].offer.load(), words)

        assert run.exit_code == 0, run.output
        read = load(document_of(yaml.safe_load(run.stdout))).experiment
        assert read.parallel == plan.experiment.parallel
        assert read.batch == plan.experiment.batch
        assert read.schedule == plan.experiment.schedule
        assert read.costs.values["zero"] == 1
        assert read.model.values["offload_modules"] == ["core_attn"]
    assert read.model.values["precision"] == precision
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


def test_a_recipe_switches_the_copies_of_layers_on(registry: Registry, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.py"
    model = {"preset": "llama3-8b", "offloaded_layers": 4}
    job = {"model": model, "device": "h100-sxm", "batch": {"global": 8, "sequence": 8192}}
    vary = {**FEW, "pp": [1], "tp": [8], "cp": [1], "schedule": ["1f1b"], "zero": [1]}

    planned(registry, config=job, gpus=8, vary=vary, framework="megatron", outputs=[recipe])

    assert "cfg.model.cpu_offloading_num_layers = 4\n    cfg" in recipe.read_text()
    assert "cfg.model.cpu_offloading = True\n" in recipe.read_text()


@pytest.mark.parametrize(
    ("framework", "model", "message"),
    [
        ("torchtitan", "llama3-8b", r"recipe\.py: a recipe is of Megatron-Bridge: plan --for megatron"),
        (
            "megatron",
            "bloom-176b",
            r"model\.preset: Megatron-Bridge has recipes of llama2-7b, .*-o run\.sh writes",
        ),
    ],
)
def test_a_recipe_that_no_library_has_is_refused_before_anything_runs(
    registry: Registry, framework: str, model: str, message: str, tmp_path: Path
) -> None:
    watched: list[str] = []

    with pytest.raises(PptraceError, match=message):
        planned(
            registry, config={**STEP, "model": model}, framework=framework, outputs=[tmp_path / "recipe.py"],
            progress=watched.append,
        )  # fmt: skip

    assert not watched


def test_a_recipe_in_a_precision_that_the_library_lacks_is_one_line(registry: Registry, tmp_path: Path) -> None:
    pytest.importorskip("pptrace_frameworks")
    job = {**STEP, "model": {"preset": "llama3-8b", "precision": "fp32"}, "batch": {"global": 8, "sequence": 8192}}
    vary = {**FEW, "pp": [4], "tp": [2], "cp": [1], "schedule": ["1f1b"]}

    with pytest.raises(PptraceError, match=r"model\.precision: Megatron-Bridge has mixed precision of bf16, fp16"):
        planned(registry, config=job, gpus=8, vary=vary, framework="megatron", outputs=[tmp_path / "recipe.py"])

    assert not (tmp_path / "recipe.py").exists()


@pytest.mark.parametrize("framework", ["pytorch", "any"])
def test_a_script_without_a_program_is_refused_before_anything_runs(
    registry: Registry, framework: str, tmp_path: Path
) -> None:
    watched: list[str] = []
    message = r"run\.sh: a script runs a framework with a program: plan --for megatron or torchtitan"

    with pytest.raises(PptraceError, match=message):
        planned(registry, framework=framework, outputs=[tmp_path / "run.sh"], progress=watched.append)

    assert not watched
    assert not (tmp_path / "run.sh").exists()


def test_a_plan_that_no_framework_restricts_says_which_run_it(registry: Registry) -> None:
    plan = planned(registry, vary={**FEW, "pp": [4], "tp": [1], "schedule": ["zb-h1"]})

    assert plan.foreign is None
    assert "# Megatron-LM does not run this step: schedule zb-h1" in str(plan)
    assert "# PyTorch\n# _PipelineScheduleRuntime loads best.csv" in str(plan)


@pytest.mark.parametrize(
    ("framework", "line"),
    [
        ("megatron", "plan: Megatron-LM runs none of the configurations that fit: schedule zb-v: .*; --for any"),
        ("nemo", "--for: 'nemo' is not a framework: write megatron, torchtitan, pytorch or any"),
    ],
)
def test_a_framework_that_runs_nothing_is_an_error(registry: Registry, framework: str, line: str) -> None:
    with pytest.raises(PptraceError, match=line):
        planned(registry, vary={**FEW, "pp": [4], "tp": [1], "schedule": ["zb-v"]}, framework=framework)


def test_a_plan_goes_on_where_it_was(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    simulate = candidates.run_candidate

    def counted(item: Any, **named: Any) -> Any:
        ran.append(item)
        if len(ran) == 4:
            raise KeyboardInterrupt
        return simulate(item, **named)

    monkeypatch.setattr(candidates, "run_candidate", counted)
    interrupted = planned(registry, outputs=[tmp_path / "best.yaml"])
    assert interrupted.search.ended == "interrupt"
    assert {path.name for path in tmp_path.iterdir()} == {"best.yaml", "best.yaml.journal"}
    whole = planned(registry)
    alone = len(ran) - 4
    resumed = planned(registry, outputs=[tmp_path / "best.yaml"])

    assert resumed.to_dict() == whole.to_dict()
    assert len(ran) - 4 - alone == alone - 3
    assert [path.name for path in tmp_path.iterdir()] == ["best.yaml"]


def test_places_that_a_simulation_does_not_tell_apart_are_named(registry: Registry) -> None:
    plan_result = planned(registry, vary={**FEW, "schedule": ["gpipe", "1f1b"], "pp": [2, 4], "tp": [1]})

    first, ranked = plan_result.best, plan_result.ranked
    margins = [4 if candidate.layout.sizes == first.layout.sizes else 7 for candidate in ranked]
    is_tied = [
        100 * candidate.score[-1] <= (100 + margin) * first.score[-1]
        for candidate, margin in zip(ranked, margins, strict=True)
    ]
    near = sum(is_tied)
    assert set(margins) == {4, 7}
    assert 1 < near < len(ranked)
    assert plan_result.tied == tuple(compress(ranked, is_tied))
    # gpipe is as fast, and 1f1b keeps less.
    assert [candidate.schedule for candidate in plan_result.tied[:2]] == ["1f1b", "gpipe"]
    document = plan_result.to_dict()
    assert document["tied"] == {"margin": 0.08, "margin_equal_sizes": 0.04, "places": near}
    assert [entry["tied"] for entry in document["places"]] == is_tied
    line = f"#{near} are within the error of a simulated lead (8 %, or 4 % with equal sizes): measure them"
    assert line in str(plan_result)


def test_a_schedule_that_needs_more_memory_counts_as_such(registry: Registry) -> None:
    vary = {**FEW, "schedule": ["1f1b", "v-half"], "schedule.options.memory": ["1 KiB"], "pp": [2], "tp": [1]}
    plan_result = planned(registry, vary=vary)

    (refused,) = [each for each in plan_result.candidates if each.schedule.startswith("v-half")]
    assert refused.outcome == "memory"
    assert "has 1 KiB beside 1.55 GiB of state for activations and one microbatch takes" in refused.reason
    assert plan_result.refusals() == {}
    assert plan_result.best.schedule == "1f1b"


@pytest.mark.parametrize(
    ("changed", "network"),
    [
        ({}, ", cluster dgx-a100 by default, stack"),
        ({"network": "ideal"}, ", a free network, stack"),
        ({"device": "r100"}, ", a free network, stack"),
        ({"cluster": "dgx-a100"}, " reserved, stack"),
        ({"sets": ["device.scale_up_size=4"]}, ", a free network, stack"),
        ({"sets": ["data_parallel.bandwidth=25 GB/s"]}, ", a free network, stack"),
    ],
)
def test_a_plan_without_a_network_is_on_the_usual_cluster_of_its_device(
    registry: Registry, changed: dict[str, Any], network: str
) -> None:
    config = {name: value for name, value in STEP.items() if name != "network"}
    vary = {**FEW, "schedule": ["1f1b"], "tp": [1]}
    plan_result = planned(registry, config=config, gpus=2, vary=vary, top=1, **changed)

    assert network in str(plan_result).splitlines()[1]
    assert ("dgx-a100" in plan_result.command) == ("cluster" in network or "cluster" in changed)


def test_the_heading_says_a_free_network_and_one_gpu_and_tables_need_no_guard(
    registry: Registry, tmp_path: Path
) -> None:
    plan_result = planned(registry, gpus=1, outputs=[tmp_path / "points.csv"])
    network = {"name": "hockney", "bandwidth": "25 GB/s"}
    two = planned(registry, gpus=2, config={**STEP, "network": network})

    assert str(plan_result).startswith(
        "a custom model on 1 GPU: most tokens per second\n"
        "a100-sxm, 80 GiB per rank, 2 GiB of it reserved, a free network, stack"
    )
    assert str(two).startswith(
        "a custom model on 2 GPUs: most tokens per second\n"
        "a100-sxm, 80 GiB per rank, 2 GiB of it reserved, stack megatron-core-0."
    )
    with (tmp_path / "points.csv").open(encoding="utf-8", newline="") as file:
        commands = [row["command"] for row in csv.DictReader(file)]
    assert {command.split(" --")[0] for command in commands} == {"pptrace simulate CONFIG"}
    assert commands[plan_result.best.number].endswith(f" CONFIG {plan_result.best.arguments}")


def test_the_page_on_plans_names_every_key_of_the_json(registry: Registry) -> None:
    page = DOCS.read_text(encoding="utf-8").partition("## What `--json` has")[2].partition("\n## ")[0]
    whole, place = (
        [name for row in table.splitlines() if row.startswith("| `") for name in NAME.findall(row.split("|")[1])]
        for table in page.split("| key of a place | |")
    )

    vary = {**FEW, "schedule": ["gpipe", "1f1b"], "pp": [2, 4], "tp": [1]}
    told = planned(registry, vary=vary, robust=True).to_dict()

    assert sorted(whole) == sorted(told)
    assert [sorted(entry) for entry in told["places"]] == [sorted(place)] * len(told["places"])
    within = {name for key in ("counts", "tied", "robustness") for name in told[key]}
    within |= {*told["robustness"]["trials"][0], *told["arguments"], *told["arguments"]["torchtitan"]}
    within |= {*told["places"][0]["differences_ns"]}
    assert within <= set(NAME.findall(page))


def test_fewer_gpus_are_no_tie(registry: Registry) -> None:
    plan_result = planned(
        registry, objective="gpus", vary={**FEW, "schedule": ["1f1b"], "tp": [1, 2]}, exhaustive=True
    )

    assert {candidate.layout.gpus for candidate in plan_result.tied} == {plan_result.best.layout.gpus}
    assert len({candidate.layout.gpus for candidate in plan_result.ranked}) > 1


def test_names_are_cut_only_where_they_stay_apart() -> None:
    names = ["interleaved-1f1b:vp=2", "interleaved-1f1b:vp=4", "1f1b", "a" * 30 + "x" + "a" * 30]

    shown = unique_names(names, 12)

    assert len(set(shown.values())) == len(names)
    assert shown["1f1b"] == "1f1b"
    assert unique_names(["aaaaabaaaaa", "aaaaacaaaaa"], 6) == {"aaaaabaaaaa": "aaa…#1", "aaaaacaaaaa": "aaa…#2"}


def test_no_copies_are_a_share_of_nothing(registry: Registry) -> None:
    config = {**STEP, "device": {"preset": "a100-sxm", "host_bandwidth": "25 GB/s"}}
    vary = {**FEW, "offload": [0, 0.5], "schedule": ["1f1b"], "tp": [1]}

    plan_result = planned(registry, config=config, vary=vary, pp=2, exhaustive=True)

    ratios = [
        (plan_result.problem.resolved(candidate.varied).experiment.schedule.offload)
        for candidate in plan_result.candidates
    ]
    assert [ratio and ratio.ratio for ratio in ratios] == [None, 0.5]


@pytest.mark.parametrize(("name", "key"), ALIASES.items())
def test_settings_have_the_names_that_vary_them(name: str, key: str) -> None:
    assert _SHORT[key] == name


def test_machines_on_which_the_first_place_fails_are_counted(registry: Registry) -> None:
    plan_result = planned(
        registry, vary={**FEW, "schedule": ["gpipe", "1f1b"], "pp": [2, 4], "tp": [1]}, robust=True
    )
    without = dataclasses.replace(
        plan_result, robustness=replace(plan_result.robustness, verdicts=plan_result.robustness.verdicts[1:])
    )

    assert "it fails" not in str(plan_result)
    assert "of 7 other machines" in str(without)
    assert "it fails or does not fit on 1" in " ".join(str(without).split())


def test_the_smallest_memory_that_would_do_is_the_smallest(registry: Registry) -> None:
    """What computes again what others keep needs the least, and is neither the first nor the fastest."""
    vary = {**FEW, "recompute": ["none", "selective", "full"], "micro": [1, 2]}
    every = planned(registry, vary=vary, exhaustive=True, memory="80GiB").candidates
    least = min(entry.row["peak_memory_bytes"] for entry in every if entry.fits)

    with pytest.raises(PptraceError, match=r"is enough") as raised:
        planned(registry, vary=vary, memory="100MiB")
    assert format_size(least) in str(raised.value)


def test_the_memory_that_would_do_is_not_said_to_be_the_least_where_not_all_is_bounded(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_search, "_NEEDS", 1)

    vary = {**FEW, "pp": [1, 2], "micro": [1, 2]}

    with pytest.raises(PptraceError, match=r"GiB is enough, and less may be \("):
        planned(registry, vary=vary, memory="100MiB")


def test_time_that_ends_while_the_least_memory_is_sought_ends_the_plan_in_one_line(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    explain = plan_search.Search._no_result_error

    def late(search: plan_search.Search) -> PptraceError:
        search._deadline_ns = 0
        return explain(search)

    monkeypatch.setattr(plan_search.Search, "_no_result_error", late)

    with pytest.raises(PptraceError, match=r"fits: give more GPUs, or more memory$"):
        planned(registry, vary={**FEW, "pp": [1, 2], "micro": [1, 2]}, memory="100MiB", time="60s")


def test_printed_arguments_leave_out_the_cost_model_that_is_the_default(registry: Registry) -> None:
    assert "--costs" not in shlex.split(planned(registry).best.arguments)
    assert "roofline" not in planned(registry, config={**STEP, "costs": "roofline"}).best.arguments


def test_the_flags_with_the_printed_arguments_simulate_to_the_figures_of_the_plan() -> None:
    model = "{layers: 8, hidden: 512, heads: 8, ffn: 1024, vocabulary: 1000}"
    flags = ["--set", f"model={model}", "--device", "a100-sxm", "--sequence", "1024"]
    vary = ["--vary", "schedule=1f1b,interleaved-1f1b", "--vary", "micro=1", "--vary", "recompute=full,none"]
    asked = ["--gpus", "4", "--global", "8", "--no-robustness", "--executor", "serial", "--top", "2", "--json"]

    places = json.loads(CliRunner().invoke(command, [*flags, *vary, *asked]).stdout)["places"]

    assert len(places) == 2
    for place in places:
        run = CliRunner().invoke(simulate, [*flags, *shlex.split(place["arguments"]), "--json"])
        document = json.loads(run.stdout)
        assert document["step_ns"] == place["step_ns"]
        assert document["peak_memory_bytes"] == place["peak_memory_bytes"]


def test_layers_that_ranks_do_not_divide_get_chunks_in_powers_of_two(registry: Registry) -> None:
    model = {**MODEL, "layers": 13}
    plan_result = planned(registry, config={**STEP, "model": model}, vary={**FEW, "pp": [2], "layers": ["even"]})

    assert {
        candidate.chunks for candidate in plan_result.candidates if candidate.schedule == "interleaved-1f1b"
    } >= {
        2,
        4,
    }


def by_schedule(plan: Any) -> dict[str, list[tuple[int, int, str]]]:
    found: dict[str, list[tuple[int, int, str]]] = {}
    for row in plan.table():
        found.setdefault(row["schedule"], []).append((row["pp"], row["vp"], row["fate"]))
    return found


def test_chunks_that_are_named_are_for_the_schedules_that_take_them(registry: Registry) -> None:
    schedules = ["1f1b", "gpipe", "interleaved-1f1b", "zb-v"]
    vary = {**FEW, "pp": [1, 4], "tp": [1], "vp": [2, 4], "schedule": schedules}

    plan = planned(registry, vary=vary)

    assert by_schedule(plan) == {
        "1f1b": [(1, 1, "simulated"), (4, 1, "simulated")],
        "gpipe": [(1, 1, "covered"), (4, 1, "simulated")],
        "interleaved-1f1b": [(1, 1, "covered"), (4, 2, "simulated"), (4, 4, "refused")],
        "zb-v": [(1, 1, "covered"), (4, 2, "simulated")],
    }
    assert plan.counts()["equal"] == 0
    assert plan.counts()["covered"] == 3
    assert "vp          2, 4 where a schedule accepts it; 1f1b and gpipe with default chunks" in str(plan)


def test_a_schedule_without_the_only_chunks_that_are_named_makes_its_own(registry: Registry) -> None:
    vary = {**FEW, "pp": [2], "tp": [1], "vp": [4], "schedule": ["interleaved-1f1b", "zb-v"]}

    plan = planned(registry, vary=vary)

    assert by_schedule(plan) == {"interleaved-1f1b": [(2, 4, "simulated")], "zb-v": [(2, 2, "simulated")]}
    assert "vp          4 where a schedule accepts it; zb-v with default chunks" in str(plan)


def test_options_that_are_named_are_for_the_schedules_that_have_them(registry: Registry) -> None:
    vary = {**FEW, "pp": [4], "tp": [1], "schedule": ["1f1b", "zb-h1", "zb-h1:order=fixed"]}
    shorten = {"schedule.options.shorten": ["rank", "step"]}

    plan = planned(registry, vary=vary | shorten)

    assert by_schedule(plan).keys() == {
        "1f1b", "zb-h1:shorten=rank", "zb-h1:shorten=step",
        "zb-h1:order=fixed:shorten=rank", "zb-h1:order=fixed:shorten=step",
    }  # fmt: skip
    assert plan.counts()["refused"] == 0
    assert by_schedule(plan)["1f1b"] == [(4, 1, "simulated")]
    assert "shorten     rank, step where a schedule has this option; 1f1b without it" in str(plan)
    with pytest.raises(pptrace.PptraceError, match="no schedule of the plan has this option: 1f1b"):
        planned(registry, vary=vary | shorten | {"schedule": ["1f1b"]})


@pytest.mark.parametrize("other", ["1f1b:p2p=batched", "1f1b:schedule.recompute.early=true"])
def test_a_schedule_with_settings_of_its_own_is_not_equal_to_the_one_without(
    registry: Registry, other: str
) -> None:
    own = {**STEP, "p2p": "async", "network": {"name": "hockney", "bandwidth": "5 GB/s"}}
    vary = {**FEW, "pp": [4], "tp": [1], "schedule": ["1f1b", other]}

    plan = planned(registry, config=own, vary=vary)

    assert [(row["schedule"], row["fate"]) for row in plan.table()] == [
        ("1f1b", "simulated"),
        (other, "simulated"),
    ]
    assert len({row["step_ns"] for row in plan.table()}) == 2


def test_a_plan_copies_activations_to_the_host_only_where_that_takes_time(registry: Registry) -> None:
    vary = {**FEW, "pp": [4], "tp": [1], "schedule": ["1f1b"], "offload": [0, 1]}

    free = planned(registry, vary=vary)
    timed = planned(
        registry, config={**STEP, "device": {"preset": "a100-sxm", "host_bandwidth": "64 GB/s"}}, vary=vary
    )

    assert [row["fate"] for row in free.table()] == ["simulated", "refused"]
    assert "the costs have no time for copies: give device.host_bandwidth" in free.table()[1]["reason"]
    assert [row["fate"] for row in timed.table()] == ["simulated", "simulated"]


@pytest.mark.parametrize(("experts", "outcome"), [(8, "simulated"), (0, "covered")])
def test_a_schedule_with_pairs_is_tried_on_one_rank_where_it_hides_communication(
    registry: Registry, experts: int, outcome: str
) -> None:
    """On one rank, combined-1f1b is 1F1B but for the exchanges that it hides."""
    mixture = {"num_experts": experts, "top_k": 2, "expert_ffn": 1024} if experts else {}
    sizes = {"pp": [1], "tp": [1], "cp": [1], "ep": [8 if experts else 1], "micro": [1], "zero": [0]}

    plan = planned(
        registry, config={**STEP, "model": {**MODEL, **mixture}, "stack": "ideal"}, gpus=8, top=2, exhaustive=True,
        vary={**FEW, **sizes, "schedule": ["1f1b", "combined-1f1b"]}, **{"global": 64},
    )  # fmt: skip

    assert {candidate.schedule: candidate.outcome.value for candidate in plan.candidates} == {
        "1f1b": "simulated", "combined-1f1b": outcome
    }  # fmt: skip
    assert plan.ranked[0].schedule == ("combined-1f1b" if experts else "1f1b")
