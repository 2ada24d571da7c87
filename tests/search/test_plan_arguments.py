"""Arguments of frameworks have the names that their parsers know, and say what the frameworks refuse."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import pptrace
from pptrace.cli.main import cli
from pptrace.cli.simulate import command as simulate
from pptrace.config.places import Document
from pptrace.config.resolution import load
from pptrace.plugins.hookspecs import hookimpl
from pptrace.plugins.offers import ScheduleOffer
from pptrace.plugins.registry import Registry
from pptrace.run.figures import figures_of
from pptrace.run.preparation import build_costs, prepare
from pptrace.search.launch_arguments import (
    megatron_arguments,
    titan_split,
    torchtitan_arguments,
)
from pptrace.search.space_bounds import default_split
from pptrace.steps.schedule import Schedule
from pptrace.steps.text_forms import Dialect, in_dialect, load_table, parse_table

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.plugins.requests import ScheduleRequest
    from pptrace.run.costs import Costs
    from pptrace.run.inputs import StepInputs
    from pptrace.search.launch_arguments import Arguments
    from pptrace.search.plan import Plan

pytestmark = pytest.mark.needs_plugins

MEGATRON = {
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size",
    "--expert-model-parallel-size", "--expert-tensor-parallel-size", "--micro-batch-size", "--global-batch-size",
    "--seq-length", "--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank",
    "--sequence-parallel", "--use-distributed-optimizer", "--use-precision-aware-optimizer", "--main-params-dtype",
    "--exp-avg-dtype", "--exp-avg-sq-dtype", "--use-megatron-fsdp", "--data-parallel-sharding-strategy",
    "--ckpt-format", "--overlap-grad-reduce", "--overlap-param-gather", "--no-overlap-p2p-communication",
    "--overlap-p2p-communication-warmup-flush", "--recompute-granularity", "--recompute-method",
    "--recompute-num-layers", "--recompute-modules", "--fine-grained-activation-offloading",
    "--offload-modules", "--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute",
    "--microbatch-group-size-per-virtual-pipeline-stage", "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split", "--moe-token-dispatcher-type", "--moe-router-fusion",
    "--moe-permute-fusion",
}  # fmt: skip
"""Arguments that Megatron-LM's parser had on 22 August 2026."""
COUNT = r"[1-9]\d*"
TITAN = {
    "parallelism": {
        "data_parallel_replicate_degree": COUNT, "data_parallel_shard_degree": rf"-1|{COUNT}",
        "fsdp_reshard_after_forward": "default|always|never", "tensor_parallel_degree": COUNT,
        "pipeline_parallel_degree": COUNT, "pipeline_parallel_first_stage_less_layers": r"\d+",
        "pipeline_parallel_last_stage_less_layers": r"\d+", "pipeline_parallel_layers_per_stage": COUNT,
        "pipeline_parallel_schedule": "1F1B|GPipe|LoopedBFS|DualPipeV|Interleaved1F1B|(Interleaved|ZBV)ZeroBubble",
        "pipeline_parallel_schedule_csv": ".*", "pipeline_parallel_microbatch_size": COUNT,
        "context_parallel_degree": COUNT, "expert_parallel_degree": COUNT,
    },
    "training": {"local_batch_size": COUNT, "global_batch_size": rf"-1|{COUNT}", "seq_len": COUNT},
}  # fmt: skip
"""Arguments of torchtitan 0.3.0 with a value, and the pattern of the value.

Source: ``ParallelismConfig`` and ``TrainingConfig`` in ``torchtitan/config/configs.py`` of the release; names of
schedules as in ``get_schedule_class`` of ``torch.distributed.pipelining.schedules``.
"""
TITAN_SWITCHES = {"--training.disable_cuda_graphs", "--parallelism.no-enable_sequence_parallel"}
"""Arguments of torchtitan 0.3.0 without a value that are printed."""
TITAN_COMMANDS = {f"activation-checkpoint:{name}" for name in ("none", "selective", "full")}
"""Words that select a configuration, from ``torchtitan/distributed/activation_checkpoint.py``."""


def parsed(words: Sequence[str]) -> dict[str, str]:
    """Return the values of torchtitan's arguments by name, checked as its parser and its trainer do.

    The checks are those of ``Trainer.Config``, of ``_get_pipeline_metadata`` and of ``_build_pipeline_schedule``.
    """
    remaining, values = list(words), {}
    while remaining:
        word = remaining.pop(0)
        if word in TITAN_COMMANDS:
            assert not remaining
        elif word not in TITAN_SWITCHES:
            section, _, name = word.removeprefix("--").partition(".")
            assert name not in values
            values[name] = remaining.pop(0)
            assert re.fullmatch(TITAN[section][name], values[name])
    ranks = int(values.get("pipeline_parallel_degree", 1))
    if ranks > 1:
        assert int(values["local_batch_size"]) % int(values["pipeline_parallel_microbatch_size"]) == 0
        assert "--training.disable_cuda_graphs" in words
    return values


def flag_words(**changed: Any) -> tuple[Arguments, Arguments]:
    """Return the arguments for a small model, with settings by section laid over one another."""
    prepared = small_step(**changed)
    experiment, table = prepared.resolved.experiment, prepared.schedule
    return megatron_arguments(experiment, table), torchtitan_arguments(experiment, table)


def small_step(**changed: Any) -> StepInputs:
    """Return a step of a small model, with settings by section laid over one another."""
    tree: dict[str, Any] = {
        "model": {"layers": 16, "hidden": 512, "heads": 8, "ffn": 1024, "vocabulary": 1000},
        "parallel": {"pp": 4, "dp": 2}, "batch": {"sequence": 1024, "micro": 1, "global": 32},
        "schedule": {"name": "1f1b"}, "device": {"preset": "h100-sxm"}, "costs": {"name": "roofline", "zero": 1},
        "stack": "ideal",
    }  # fmt: skip
    for section, values in changed.items():
        own = tree.setdefault(section, {})
        tree[section] = {**own, **values} if isinstance(own, dict) else values
    return prepare(load(Document(value=tree, places={}, source="step.yaml"), (), {}, []), Registry.load())


def value(arguments: Arguments, name: str) -> str:
    return arguments.words[arguments.words.index(name) + 1]


FILE = "best.csv"
ENDS = ("first", "last")
MOE = {"num_experts": 8, "top_k": 2, "expert_ffn": 512}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sharded": {"costs": {"zero": 3}, "data_parallel": {"overlap": True, "reshard": "always"}},
    "optimizer": {"costs": {"exp_avg": "bf16", "main_params": "fp16"}},
    "tensor": {"parallel": {"tp": 2, "sequence_parallel": True}},
    "whole": {"parallel": {"tp": 2, "cp": 2}, "model": {"recompute": "full", "recompute_method": "block"}},
    "modules": {"model": {"recompute": "selective", "recompute_modules": ["mlp", "mlp_act", "full_attn"]}},
    "copied": {"model": {"offload_modules": ["core_attn", "attn_proj"]}},
    "uneven": {"model": {"layers_per_stage": [3, 5, 5, 3]}},
    "looped": {
        "schedule": {"name": "interleaved-1f1b"}, "parallel": {"vp": 2}, "batch": {"global": 20},
        "p2p": {
            "policy": "megatron",
            "options": {"overlap_p2p_comm_warmup_flush": True, "deallocate_pipeline_outputs": True},
        },
    },
    "apart": {
        "schedule": {"name": "interleaved-1f1b"}, "parallel": {"vp": 2},
        "p2p": {"policy": "megatron", "options": {"overlap_p2p_comm": False}},
    },
    "v": {"schedule": {"name": "dualpipe-v"}, "batch": {"global": 64}},
    "experts": {
        "model": MOE, "parallel": {"ep": 2, "etp": 1, "vp": 2}, "schedule": {"name": "combined-1f1b"},
        "costs": {"segments": True},
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_arguments_have_names_that_the_parsers_know(case: str) -> None:
    megatron, titan = flag_words(**CASES[case])

    assert {word for word in megatron.words if word.startswith("--")} <= MEGATRON
    assert parsed(titan.words)["seq_len"] == "1024"
    assert titan.words[-1] in TITAN_COMMANDS


def test_layers_that_are_copied_to_the_host_have_no_argument_in_a_pipeline() -> None:
    copied = {"model": {"offloaded_layers": 2}, "device": {"host_bandwidth": "50 GB/s"}}

    megatron, titan = flag_words(**copied)
    alone, _ = flag_words(parallel={"pp": 1}, **copied)

    assert megatron.without == ("model.offloaded_layers in a pipeline: it copies model.offload_modules there",)
    assert "model.offloaded_layers" in titan.without
    assert value(alone, "--cpu-offloading-num-layers") == "2"
    assert not alone.without


def test_a_layout_says_layers_prediction_and_loss_of_each_stage() -> None:
    model = {"layers_per_stage": [3, 5, 5, 3], "mtp": 1}

    megatron, titan = flag_words(model=model)

    assert value(megatron, "--pipeline-model-parallel-layout") == "Et*3|t*5|t*5|t*3mL"
    ends = [value(titan, f"--parallelism.pipeline_parallel_{end}_stage_less_layers") for end in ENDS]
    assert titan_split(16, 4, *map(int, ends)) == [3, 5, 5, 3]


def test_rounds_that_are_longer_than_the_pipeline_are_reported() -> None:
    megatron, titan = flag_words(**CASES["looped"])

    assert value(megatron, "--microbatch-group-size-per-virtual-pipeline-stage") == "5"  # 10 in two rounds
    assert value(megatron, "--num-virtual-stages-per-pipeline-rank") == "2"
    assert megatron.without == ()
    assert value(titan, "--parallelism.pipeline_parallel_schedule") == "Interleaved1F1B"
    assert value(titan, "--parallelism.pipeline_parallel_layers_per_stage") == "2"


def test_ends_are_lighter_only_where_torchtitan_counts_as_many_stages() -> None:
    split = [3, *[4] * 6, 5]

    _, titan = flag_words(
        schedule={"name": "interleaved-1f1b"}, parallel={"vp": 2}, model={"layers": 32, "layers_per_stage": split}
    )

    assert "--parallelism.pipeline_parallel_layers_per_stage" not in titan.words
    assert titan.notes[0].startswith("layers per stage")


@pytest.mark.parametrize(
    ("changed", "megatron", "titan"),
    [
        (
            {"schedule": {"name": "chimera"}},
            "schedule chimera: the placement of stages: it has stage s on rank s mod pp",
            "the placement of stages: it has one stage on a rank, loops, or a V of two stages on a rank",
        ),
        (
            {"schedule": {"name": "zb-h1"}},
            "schedule zb-h1: split backwards such as 0I0: its backwards compute both gradients",
            "zero 1: FSDP shards gradients and weights, too",
        ),
        (
            {"schedule": {"name": "gpipe"}},
            "schedule gpipe: the order of actions: it runs 1f1b, interleaved-1f1b and combined-1f1b",
            "zero 1: FSDP shards gradients and weights, too",
        ),
        (
            {"schedule": {"name": "interleaved-1f1b"}, "parallel": {"vp": 2}, "batch": {"global": 6}},
            "schedule interleaved-1f1b: a group of 3 microbatches: it needs 4 or more",
            "zero 1: FSDP shards gradients and weights, too",
        ),
        ({"schedule": {"name": "seq-1f1b"}}, "schedule seq-1f1b: slices of sequences", "slices of sequences"),
        ({}, None, "zero 1: FSDP shards gradients and weights, too"),
        (
            {"costs": {"zero": 1, "exp_avg": "mxfp8"}},
            "moments in mxfp8: write fp8 or bf16 in costs.exp_avg and costs.exp_avg_sq",
            "zero 1: FSDP shards gradients and weights, too",
        ),
        (CASES["sharded"], None, None),
        (CASES["modules"], "recompute_modules: mlp_act", "zero 1: FSDP shards gradients and weights, too"),
        (CASES["modules"], "recompute_modules: full_attn", "zero 1: FSDP shards gradients and weights, too"),
        (
            {"model": MOE, "parallel": {"ep": 2}, "costs": {"zero": 0}}, None,
            "expert parallelism of weights that are not sharded: ep 2 does not divide tp x cp",
        ),
        (
            CASES["experts"] | {"model": MOE | {"recompute": "full"}},
            "schedule combined-1f1b: it needs another recompute than full",
            "overlapped pairs: it runs their actions one after the other",
        ),
        (
            CASES["experts"] | {"costs": {"segments": True, "zero": 2}},
            "schedule combined-1f1b: it needs zero of 1 or less in a pipeline",
            "overlapped pairs: it runs their actions one after the other",
        ),
    ],
)  # fmt: skip
def test_what_a_framework_refuses_is_said(
    changed: dict[str, Any], megatron: str | None, titan: str | None
) -> None:
    for arguments, said in zip(flag_words(**changed), (megatron, titan), strict=True):
        assert said in arguments.without if said else not arguments.without


@pytest.mark.parametrize("name", ["chimera", "zb-v", "zb-h1", "gpipe", "looped-bfs"])
def test_a_schedule_that_megatron_does_not_run_has_no_arguments_of_the_pipeline(name: str) -> None:
    megatron, _ = flag_words(schedule={"name": name}, model={"layers_per_stage": None}, p2p={"policy": "async"})

    assert megatron.without[0].startswith(f"schedule {name}: ")
    assert not {word for word in megatron.words if "virtual" in word or "layout" in word or "overlap" in word}
    assert value(megatron, "--pipeline-model-parallel-size") == "4"
    assert "--use-distributed-optimizer" in megatron.words


def test_the_group_of_combined_pairs_is_that_of_the_table() -> None:
    schedule = {"name": "combined-1f1b", "options": {"round": 5}}

    megatron, _ = flag_words(**CASES["experts"] | {"schedule": schedule, "batch": {"global": 18}})

    assert value(megatron, "--microbatch-group-size-per-virtual-pipeline-stage") == "5"
    assert "--overlap-moe-expert-parallel-comm" in megatron.words
    assert value(megatron, "--moe-token-dispatcher-type") == "alltoall"


@pytest.mark.parametrize(
    ("options", "words", "notes"),
    [
        (
            {"deallocate_pipeline_outputs": False}, set(),
            ("p2p.options.deallocate_pipeline_outputs: it is true",),
        ),
        ({"overlap_p2p_comm": False}, {"--no-overlap-p2p-communication"}, ()),
        ({"overlap_p2p_comm": False, "batch_p2p_comm": True}, {"--no-overlap-p2p-communication"}, ()),
        (
            {"overlap_p2p_comm": False, "batch_p2p_comm": False}, {"--no-overlap-p2p-communication"},
            ("p2p.options.batch_p2p_comm: it is true unless messages overlap",),
        ),
    ],
)  # fmt: skip
def test_messages_are_those_of_megatron_or_a_difference(
    options: dict[str, Any], words: set[str], notes: tuple[str, ...]
) -> None:
    megatron, _ = flag_words(**CASES["looped"] | {"p2p": {"policy": "megatron", "options": options}})

    assert {word for word in megatron.words if "p2p" in word} == words
    assert (megatron.without, megatron.notes) == ((), notes)


def test_a_table_in_the_order_of_megatron_has_its_arguments(tmp_path: Path) -> None:
    file = tmp_path / "order.csv"
    file.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    prepared = prepare(load(None, flags={"schedule": str(file), "p2p": "megatron"}), Registry.load())

    arguments = megatron_arguments(prepared.resolved.experiment, prepared.schedule)

    assert arguments.lines == [
        "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --context-parallel-size 1 \\",
        "  --expert-model-parallel-size 1 --micro-batch-size 1 --global-batch-size 2",
    ]
    pasted = subprocess.run(
        ["bash", "-c", "printf '%s\n' " + "\n".join(arguments.lines)], capture_output=True, text=True, check=True
    )
    assert tuple(pasted.stdout.split()) == arguments.words


def test_cuda_graphs_are_off_where_torchtitan_refuses_them() -> None:
    """As ``Trainer.Config`` of 0.3.0 refuses them for pipelines, and for most dispatchers of experts."""
    one_rank = {"pp": 1, "dp": 2}

    assert "--training.disable_cuda_graphs" in flag_words()[1].words
    assert "--training.disable_cuda_graphs" in flag_words(model=MOE, parallel={**one_rank, "ep": 2})[1].words
    assert "--training.disable_cuda_graphs" not in flag_words(parallel=one_rank)[1].words


def test_sharding_and_recomputation_are_reported() -> None:
    megatron, titan = flag_words(**CASES["sharded"])

    assert value(megatron, "--data-parallel-sharding-strategy") == "optim_grads_params"
    assert value(megatron, "--ckpt-format") == "fsdp_dtensor"
    assert value(titan, "--parallelism.fsdp_reshard_after_forward") == "always"
    alone = {"pp": 1, "dp": 8, "vp": 1}
    groups, shards = flag_words(
        costs={"zero": 3, "outer_sharding": True}, parallel=alone, data_parallel={"shard": 4},
        batch={"global": 32},
    )  # fmt: skip
    assert value(groups, "--num-distributed-optimizer-instances") == "2"
    assert value(groups, "--outer-dp-sharding-strategy") == "optim"
    assert "--use-megatron-fsdp" in groups.words
    weights, layers = flag_words(
        costs={"zero": 3, "outer_sharding": True}, parallel={**alone, "tp": 2},
        data_parallel={"shard": 4, "units": "weights"}, batch={"global": 32},
    )  # fmt: skip
    assert value(weights, "--tensor-parallel-num-weight-shards") == "8"
    assert "--use-megatron-fsdp" not in weights.words
    assert "--num-distributed-optimizer-instances" not in weights.words
    assert not [part for part in weights.without if part.startswith("costs")]
    assert "data_parallel.units weights: it gathers layers" in layers.without
    _, parts = flag_words(
        costs={"zero": 3}, parallel=alone, data_parallel={"reshard": 4}, batch={"global": 32}
    )  # fmt: skip
    assert "data_parallel.reshard 4: it gathers weights in the whole group" in parts.without
    assert value(shards, "--parallelism.data_parallel_replicate_degree") == "2"
    assert value(shards, "--parallelism.data_parallel_shard_degree") == "4"
    assert value(shards, "--parallelism.fsdp_reshard_after_forward") == "default"
    whole, again = flag_words(**CASES["whole"])
    assert value(whole, "--recompute-method") == "block"
    assert "--parallelism.no-enable_sequence_parallel" in again.words
    assert again.words[-1] == "activation-checkpoint:full"


RUNNABLE = {
    "1f1b": (1, "1F1B"), "gpipe": (1, "GPipe"), "interleaved-1f1b": (2, "Interleaved1F1B"),
    "looped-bfs": (4, "LoopedBFS"), "dualpipe-v": (2, "DualPipeV"),
}  # fmt: skip
"""Chunks per rank, and the schedule of torchtitan."""
FROM_FILE = {
    "zb-h1": (1, "1F1B"), "zb-h2": (1, "1F1B"), "eager-1f1b": (1, "1F1B"), "zb-v": (2, "ZBVZeroBubble"),
    "v-half": (2, "ZBVZeroBubble"), "v-min": (2, "ZBVZeroBubble"), "interleaved-zb": (2, "Interleaved1F1B"),
    "combined-1f1b": (2, "Interleaved1F1B"),
}  # fmt: skip


def scheduled(name: str, chunks: int) -> StepInputs:
    return small_step(schedule={"name": name}, parallel={"vp": chunks}, batch={"micro": 2, "global": 64})


def stages_in_torchtitan(values: dict[str, str], rank: int) -> list[int]:
    """Return the stages that torchtitan builds on a rank for a model of 16 layers.

    The number of stages follows ``_get_pipeline_metadata`` of torchtitan 0.3.0, the stages of a rank
    ``_get_pp_rank_to_stage_indices_mapping``.
    """
    ranks, schedule = int(values["pipeline_parallel_degree"]), values["pipeline_parallel_schedule"]
    stages = ranks * (1 if schedule in {"1F1B", "GPipe"} else 2)
    if "pipeline_parallel_layers_per_stage" in values:
        ends = sum(int(values[f"pipeline_parallel_{end}_stage_less_layers"]) for end in ENDS)
        stages = -(-(16 + ends) // int(values["pipeline_parallel_layers_per_stage"]))
    if schedule in {"ZBVZeroBubble", "DualPipeV"}:
        assert stages == 2 * ranks
        return [rank, stages - 1 - rank]
    return list(range(rank, stages, ranks))


@pytest.mark.parametrize("name", [*RUNNABLE, *FROM_FILE])
def test_torchtitan_builds_the_stages_and_microbatches_of_the_table(name: str) -> None:
    chunks, schedule = (RUNNABLE | FROM_FILE)[name]
    prepared = scheduled(name, chunks)
    table = prepared.schedule

    values = parsed(torchtitan_arguments(prepared.resolved.experiment, table).words)

    assert values["pipeline_parallel_schedule"] == schedule
    assert values.get("pipeline_parallel_schedule_csv") == (None if name in RUNNABLE else FILE)
    for rank in range(table.ranks):
        assert stages_in_torchtitan(values, rank) == table.placement.stages_of(rank)
    assert int(values["local_batch_size"]) == 2 * table.microbatches
    assert values["pipeline_parallel_microbatch_size"] == "2"
    assert int(values["global_batch_size"]) == 2 * int(values["local_batch_size"])


def test_the_batch_has_the_arguments_of_the_release_of_torchtitan() -> None:
    def words(stack: str) -> tuple[str, ...]:
        changed = {"batch": {"micro": 2}, "model": {"recompute": "full"}, "stack": stack}
        prepared = small_step(**changed)
        return torchtitan_arguments(prepared.resolved.experiment, prepared.schedule).words

    named, main, old = words("torchtitan-0.3"), words("torchtitan-main"), words("torchtitan-0.2")
    pairs = [dict(pairwise(each)) for each in (named, main)]
    microbatches, dp, sequence = 8, 2, 1024

    assert pairs[0]["--training.local_batch_size"] == str(2 * microbatches)
    # As the main branch computes: tokens of a microbatch x microbatches x replicas = tokens of a step.
    assert {name: value for name, value in pairs[1].items() if "num_" in name or "context_length" in name} == {
        "--parallelism.num_pp_microbatches": str(microbatches),
        "--training.num_tokens_per_microbatch_per_dp_rank": str(2 * sequence),
        "--training.num_tokens_per_train_step": str(2 * sequence * microbatches * dp),
        "--training.max_context_length": str(sequence),
    }
    assert not any("batch_size" in word or "seq_len" in word for word in main)
    assert len(main) == len(named)
    assert {*old} - {*named} == {"--activation_checkpoint.mode", "full"}
    assert {*named} - {*old} == {"activation-checkpoint:full", "--training.disable_cuda_graphs"}


@pytest.mark.parametrize("stack", ["torchtitan-0.1", "torchtitan-0.3"])
def test_torchtitan_recomputes_every_other_product_by_operation(stack: str) -> None:
    prepared = small_step(model={"recompute": "selective"}, stack=stack)
    core = small_step(model={"recompute": "selective", "recompute_modules": ["core_attn"]}, stack=stack)
    words, without = (
        torchtitan_arguments(prepared.resolved.experiment, prepared.schedule),
        torchtitan_arguments(core.resolved.experiment, core.schedule).without,
    )

    old = ("--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", "op")
    assert (
        words.words[-4:] == old if stack == "torchtitan-0.1" else "activation-checkpoint:selective" in words.words
    )
    assert [word for word in without if word not in words.without] == [
        "recompute selective: it keeps the attention core and every other matrix product"
    ]


def test_any_schedule_can_be_run_from_a_file() -> None:
    prepared = scheduled("dualpipe-v", 2)

    values = parsed(torchtitan_arguments(prepared.resolved.experiment, prepared.schedule, FILE).words)

    assert values["pipeline_parallel_schedule"] == "ZBVZeroBubble"
    assert values["pipeline_parallel_schedule_csv"] == FILE


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"schedule": {"name": "hanayo"}}, "the placement of stages"),
        ({"schedule": {"name": "dualpipe"}}, "the placement of stages"),
        ({"schedule": {"name": "seq-1f1b"}}, "slices of sequences"),
        ({"schedule": {"name": "zb-h1", "offload": {}}}, "actions such as 0OFFLOAD0"),
    ],
)
def test_what_torchtitan_cannot_run_has_no_file(changed: dict[str, Any], reason: str) -> None:
    prepared = small_step(**changed)

    arguments = torchtitan_arguments(prepared.resolved.experiment, prepared.schedule, FILE)

    assert arguments.without[0].startswith(reason)
    assert not {"pipeline_parallel_schedule", "pipeline_parallel_schedule_csv"} & {*parsed(arguments.words)}


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            "0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n",
            "forward 1 of the last stage before forward 0: PyTorch takes",
        ),
        ("0F0,0F1@0B0,0B0,0B1\n1F0,1F1,1B0,1B1\n", "actions that wait for others (@)"),
        ("0F0+2,0B0+2\n1F0+2,1B0+2\n", "actions of several microbatches, such as 0F0+2"),
    ],
)
def test_a_table_that_pytorch_would_misread_has_no_file(rows: str, reason: str) -> None:
    table = parse_table(rows).schedule
    experiment = scheduled("1f1b", 1).resolved.experiment.model_copy(update={"model": None})

    arguments = torchtitan_arguments(experiment, table, FILE)

    assert any(part.startswith(reason) for part in arguments.without)
    assert FILE not in arguments.words


def test_a_table_without_a_model_has_the_arguments_of_the_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "order.csv"
    file.write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    prepared = prepare(load(None, flags={"schedule": str(file)}), Registry.load())

    arguments = torchtitan_arguments(prepared.resolved.experiment, prepared.schedule, "order.csv")

    assert arguments.lines == [
        "# layers per stage: write module_fqns_per_model_part in the configuration",
        "--parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_schedule 1F1B \\",
        "  --parallelism.pipeline_parallel_schedule_csv order.csv \\",
        "  --parallelism.pipeline_parallel_microbatch_size 1 --training.local_batch_size 2 \\",
        "  --training.disable_cuda_graphs",
    ]


@pytest.mark.parametrize(
    ("layers", "stages", "ends", "split"),
    [
        (32, 8, (0, 0), [4] * 8),
        (32, 4, (1, 1), [8, 9, 8, 7]),  # 34 on four: two have 9, the first of them an embedding for one
        (126, 16, (1, 1), [7, *[8] * 14, 7]),
        (8, 4, (2, 2), [1, 3, 3, 1]),
        (8, 4, (4, 0), None),  # the embedding counts for more than a stage holds
        (3, 8, (0, 0), None),
    ],
)
def test_ends_of_torchtitan_pipelines_are_lighter_by_what_is_reported(
    layers: int, stages: int, ends: tuple[int, int], split: list[int] | None
) -> None:
    assert titan_split(layers, stages, *ends) == split


@pytest.mark.parametrize(
    ("layers", "words", "notes"),
    [
        (14, ["--account-for-loss-in-pipeline-split", "--account-for-embedding-in-pipeline-split"], ()),
        (15, ["--account-for-loss-in-pipeline-split"], ()),
        (18, [], ("18 layers on 16 stages: write --pipeline-model-parallel-layout",)),
    ],
)
def test_embedding_and_head_take_the_place_of_layers(
    layers: int, words: list[str], notes: tuple[str, ...]
) -> None:
    megatron, _ = flag_words(
        model={"layers": layers},
        schedule={"name": "interleaved-1f1b"},
        parallel={"vp": 4},
        p2p={"policy": "megatron", "options": {"deallocate_pipeline_outputs": True}},
    )

    assert [word for word in megatron.words if word.startswith("--account-for")] == words
    assert (megatron.without, megatron.notes) == ((), notes)


@pytest.mark.parametrize(
    ("layers", "split", "beside"),
    [
        (13, [3, 3, 4, 3], {}),
        (15, [4, 4, 4, 3], {}),  # all but the last have one more
        (14, [3, 4, 4, 3], {"mtp": 1}),
        (7, [4, 3], {}),
        (126, [1, *[2] * 62, 1], {"full_attention_every": 3, "window": 128}),
        (29, [3, 3, *[4] * 5, 3], MOE),
        (3, [1, 1, 1, 0], {}),
        (14, [3, 4, 4, 3], MOE | {"moe_every": 2}),
    ],
)
def test_a_split_is_derived_from_costs(layers: int, split: list[int], beside: dict[str, Any]) -> None:
    assert default_split(costs_of(layers, beside), len(split), layers) == split


@pytest.mark.parametrize("beside", [MOE | {"moe_every": 2}, {"balance": "products"}])
def test_a_split_that_costs_do_not_tell_is_none(beside: dict[str, Any]) -> None:
    assert default_split(costs_of(13, beside), 4, 13) is None


def costs_of(layers: int, beside: dict[str, Any]) -> Costs:
    """Return what a small model costs, with settings of its own."""
    model = {"layers": layers, "hidden": 512, "heads": 8, "ffn": 1024, "vocabulary": 1000, **beside}
    tree = {
        "model": model, "parallel": {"pp": 1}, "batch": {"sequence": 256, "micro": 1, "global": 4},
        "schedule": {"name": "1f1b"}, "device": {"preset": "h100-sxm"}, "costs": {"name": "roofline"},
    }  # fmt: skip
    return build_costs(load(Document(value=tree, places={}, source="step.yaml"), (), {}, []), Registry.load())


CONFIG: dict[str, Any] = {
    "model": {"layers": 16, "hidden": 512, "heads": 8, "ffn": 1024, "vocabulary": 1000},
    "device": "h100-sxm", "network": "ideal", "batch": {"global": 8, "sequence": 256, "micro": 1},
}  # fmt: skip


def planned(layers: int, **vary: Any) -> Plan:
    """Return a plan on 8 GPUs."""
    config = {**CONFIG, "model": {**CONFIG["model"], "layers": layers}}
    fixed: dict[str, Any] = {
        "pp": [8],
        "schedule": ["1f1b"],
        "layers": ["even"],
        "zero": [0],
        "recompute": ["none"],
    }
    return pptrace.plan(
        config, gpus=8, vary={**fixed, **vary}, framework="any", robust=False, executor="serial",
        registry=Registry.load(),
    )  # fmt: skip


def arguments_of(layers: int, **vary: Any) -> dict[str, Any]:
    """Return what frameworks are told of a plan on 8 GPUs."""
    found = planned(layers, **vary)
    arguments: dict[str, Any] = found.to_dict()["arguments"]
    assert arguments["torchtitan"]["arguments"].split()[0] in str(found)
    return arguments


def test_settings_without_an_argument_are_named() -> None:
    found = arguments_of(16, **{"costs.dispatcher": ["deduplicated"], "costs.host_kernel": ["9 us"]})
    noted = {name: [note.partition(":")[0] for note in found[name]["notes"]] for name in found}

    assert "costs.host_kernel 9 us" in noted["megatron"]
    assert "costs.host_kernel 9 us" in noted["torchtitan"]
    assert noted["pytorch"] == ["_PipelineScheduleRuntime loads best.csv"]
    assert not [note for note in noted["megatron"] if note.startswith(("schedule", "model.", "costs.zero"))]


def test_the_layers_of_an_uneven_split_are_reported_to_frameworks() -> None:
    found = arguments_of(30)

    words = shlex.split(found["megatron"]["arguments"])
    layout = words[words.index("--pipeline-model-parallel-layout") + 1]
    assert layout == "Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*3L"
    assert found["megatron"]["without"] == []
    words = shlex.split(found["torchtitan"]["arguments"])
    ends = [words[words.index(f"--parallelism.pipeline_parallel_{end}_stage_less_layers") + 1] for end in ENDS]
    assert titan_split(30, 8, *map(int, ends)) == [3, 4, 4, 4, 4, 4, 4, 3]


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v"])
def test_a_plan_has_the_command_that_writes_the_table_of_its_arguments(schedule: str, tmp_path: Path) -> None:
    made = planned(16, schedule=[schedule], pp=[4], zero=[3])
    (tmp_path / "job.yaml").write_text(json.dumps(CONFIG))

    arguments = made.to_dict()["arguments"]
    words = shlex.split(arguments["torchtitan"]["arguments"])
    command = shlex.split(arguments["torchtitan"]["table"])
    assert command[:3] == ["pptrace", "simulate", "CONFIG"]
    answer = CliRunner().invoke(simulate, [str(tmp_path / "job.yaml"), *command[3:-1], str(tmp_path / "best.csv")])

    assert answer.exit_code == 0, answer.output
    assert load_table(tmp_path / "best.csv").schedule.rows() == in_dialect(made.schedule, Dialect.COMPUTE).rows()
    assert words[words.index("--parallelism.pipeline_parallel_schedule_csv") + 1] == command[-1] == "best.csv"
    assert "# best.csv comes from pptrace simulate" in " ".join(str(made).split())
    assert arguments["megatron"]["table"] is None


class Searching:
    """A schedule whose every search finds another table: 1F1B with one more forward in flight."""

    count = 0

    def build(self, request: ScheduleRequest) -> Schedule:
        self.count += 1
        microbatches, rows = range(request.microbatches), []
        for stage in range(request.ranks):
            in_flight = min(request.ranks - stage + self.count % request.microbatches, request.microbatches)
            row = [f"{stage}F{microbatch}" for microbatch in microbatches[:in_flight]]
            for microbatch in microbatches:
                row.append(f"{stage}B{microbatch}")
                row += [f"{stage}F{later}" for later in microbatches[in_flight + microbatch :][:1]]
            rows.append(row)
        return Schedule.from_rows(rows)

    @hookimpl
    def pptrace_schedules(self) -> list[ScheduleOffer]:
        return [ScheduleOffer(name="searching", summary="Searches.", build=self.build, searches=True)]


def test_a_plan_writes_the_table_that_a_search_found_for_the_ranked_step(tmp_path: Path) -> None:
    registry = Registry.load(plugins={"searching": Searching()})
    vary = {"pp": [4], "schedule": ["searching"], "layers": ["even"], "zero": [0], "recompute": ["none"]}

    made = pptrace.plan(CONFIG, gpus=4, vary=vary, robust=False, executor="serial", registry=registry)
    written = made.save(tmp_path / "best.yaml")
    run = pptrace.simulate(str(written[0]))

    assert [path.name for path in written] == ["best.yaml", "best.table.csv"]
    assert load_table(written[1]).schedule.rows() == made.schedule.rows()
    figures = ("step_ns", "peak_activations", "peak_memory_bytes")
    assert [figures_of(run)[name] for name in figures] == [made.best.row[name] for name in figures]
    assert made.to_dict()["arguments"]["torchtitan"]["table"] == "pptrace simulate best.yaml -o best.csv"
    assert not {"searched_table"} & {*made.table()[0], *made.to_dict()["places"][0]}


def test_a_plan_with_a_schedule_of_torchtitan_needs_no_table() -> None:
    assert arguments_of(16)["torchtitan"]["table"] is None


def test_ends_without_layers_are_reported_to_frameworks() -> None:
    """As Llama 3 405B on 128 stages: embedding and head have a stage each in place of a layer."""
    found = arguments_of(14, schedule=["interleaved-1f1b"], vp=[2], micro=[1])

    assert "--account-for-embedding-in-pipeline-split" in found["megatron"]["arguments"]
    assert found["torchtitan"]["without"] == []
    words = shlex.split(found["torchtitan"]["arguments"])
    ends = [words[words.index(f"--parallelism.pipeline_parallel_{end}_stage_less_layers") + 1] for end in ENDS]
    assert titan_split(14, 16, *map(int, ends)) == [0, *[1] * 14, 0]
    assert words[words.index("--parallelism.pipeline_parallel_layers_per_stage") + 1] == "1"


TITAN_JOBS = st.fixed_dictionaries({
    "stack": st.sampled_from(["torchtitan-0.1", "torchtitan-0.2", "torchtitan-0.3", "torchtitan-main"]),
    "schedule": st.sampled_from([*RUNNABLE]), "pp": st.sampled_from([1, 2, 4]), "tp": st.sampled_from([1, 2]),
    "dp": st.sampled_from([1, 4]), "shard": st.sampled_from([1, 2, 4]), "micro": st.sampled_from([1, 2]),
    "recompute": st.sampled_from(["none", "selective", "full"]), "sequence_parallel": st.booleans(),
    "reshard": st.sampled_from(["always", "never"]), "lighter": st.booleans(),
})  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(job=TITAN_JOBS)
def test_arguments_of_torchtitan_are_read_back_as_the_same_step(job: dict[str, Any]) -> None:
    chunks = RUNNABLE[job["schedule"]][0] if job["pp"] > 1 else 1
    split = titan_split(32, job["pp"] * chunks, 1, 1) if job["lighter"] and job["pp"] > 1 else None
    config: dict[str, Any] = {
        "stack": job["stack"], "device": "h100-sxm", "network": "nvlink",
        "model": {
            "preset": "llama3-8b", "recompute": job["recompute"], **({"layers_per_stage": split} if split else {}),
        },
        "parallel": {axis: job[axis] for axis in ("pp", "tp", "dp")} | {"vp": chunks},
        "batch": {"micro": job["micro"], "global": 8 * job["micro"] * job["dp"], "sequence": 2048},
        "schedule": {"name": job["schedule"] if job["pp"] > 1 else "1f1b"},
    }  # fmt: skip
    if job["dp"] > 1:
        config["costs"] = {"zero": 0 if job["shard"] == 1 else 3}
        config["data_parallel"] = {"reshard": job["reshard"]} if job["shard"] > 1 else {}
        config["data_parallel"] |= {"shard": 2} if job["shard"] == 2 else {}
    prepared = prepare(load(config), Registry.load())
    arguments = torchtitan_arguments(prepared.resolved.experiment, prepared.schedule)
    assume(not arguments.notes)  # a split of layers that arguments cannot express
    gpus = str(job["pp"] * job["tp"] * job["dp"])
    options = ["--model", "llama3-8b", "--device", "h100-sxm", "--gpus", gpus, "--stack", job["stack"]]

    answer = CliRunner().invoke(cli, ["recipe", "-", *options], input=arguments.text, catch_exceptions=False)

    assert "without effect" not in answer.stderr
    read = yaml.safe_load(answer.stdout) | {"network": "nvlink"}
    first, second = (pptrace.simulate(each).metrics for each in (config, read))
    assert second.step_ns == first.step_ns
    assert second.memory.fullest_bytes == first.memory.fullest_bytes
