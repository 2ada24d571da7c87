"""Arguments of frameworks have the names that their parsers know, and say what the frameworks refuse."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.config.places import Document
from pptrace.config.resolution import load
from pptrace.plugins.registry import Registry
from pptrace.run.preparation import build_costs, prepare
from pptrace.search.launch_arguments import megatron_arguments, titan_split, torchtitan_arguments
from pptrace.search.pricing import default_split

if TYPE_CHECKING:
    from pptrace.run.costs import Costs
    from pptrace.search.launch_arguments import Arguments

pytestmark = pytest.mark.needs_plugins

MEGATRON = {
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size",
    "--expert-model-parallel-size", "--expert-tensor-parallel-size", "--micro-batch-size", "--global-batch-size",
    "--seq-length", "--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank",
    "--sequence-parallel", "--use-distributed-optimizer", "--use-precision-aware-optimizer", "--main-params-dtype",
    "--exp-avg-dtype", "--exp-avg-sq-dtype", "--use-megatron-fsdp", "--data-parallel-sharding-strategy",
    "--ckpt-format", "--overlap-grad-reduce", "--no-overlap-p2p-communication",
    "--overlap-p2p-communication-warmup-flush", "--recompute-granularity", "--recompute-method",
    "--recompute-num-layers", "--recompute-modules", "--overlap-moe-expert-parallel-comm", "--delay-wgrad-compute",
    "--microbatch-group-size-per-virtual-pipeline-stage", "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
}  # fmt: skip
"""Arguments that Megatron-LM's parser had on 22 August 2026."""
TITAN = {
    f"--parallelism.{name}" for name in (
        "tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree", "expert_parallel_degree",
        "data_parallel_replicate_degree", "data_parallel_shard_degree", "fsdp_reshard_after_forward",
        "pipeline_parallel_schedule", "num_pp_microbatches", "pipeline_parallel_first_stage_less_layers",
        "pipeline_parallel_last_stage_less_layers", "pipeline_parallel_layers_per_stage",
        "no-enable_sequence_parallel",
    )
} | {
    f"--training.{name}" for name in (
        "num_tokens_per_microbatch_per_dp_rank", "num_tokens_per_train_step", "max_context_length"
    )
}  # fmt: skip
"""Arguments that torchtitan's parser had on 21 August 2026."""


def flag_words(**changed: Any) -> tuple[Arguments, Arguments]:
    """Return the arguments for a small model, with settings by section laid over one another."""
    tree: dict[str, Any] = {
        "model": {"layers": 16, "hidden": 512, "heads": 8, "ffn": 1024, "vocabulary": 1000},
        "parallel": {"pp": 4, "dp": 2}, "batch": {"sequence": 1024, "micro": 1, "global": 32},
        "schedule": {"name": "1f1b"}, "device": {"preset": "h100-sxm"}, "costs": {"name": "roofline", "zero": 1},
    }  # fmt: skip
    for section, values in changed.items():
        own = tree.setdefault(section, {})
        tree[section] = {**own, **values} if isinstance(own, dict) else values
    resolved = load(Document(value=tree, places={}, source="step.yaml"), (), {}, [])
    prepared = prepare(resolved, Registry.load())
    chunks = prepared.schedule.stages // prepared.schedule.ranks
    experiment = prepared.resolved.experiment
    return megatron_arguments(experiment, chunks), torchtitan_arguments(experiment, chunks)


def value(arguments: Arguments, name: str) -> str:
    return arguments.words[arguments.words.index(name) + 1]


ENDS = ("first", "last")
MOE = {"num_experts": 8, "top_k": 2, "expert_ffn": 512}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "sharded": {"costs": {"zero": 3}, "data_parallel": {"overlap": True, "reshard": "always"}},
    "optimizer": {"costs": {"exp_avg": "bf16", "main_params": "fp16"}},
    "tensor": {"parallel": {"tp": 2, "sequence_parallel": True}},
    "whole": {"parallel": {"tp": 2, "cp": 2}, "model": {"recompute": "full", "recompute_method": "block"}},
    "modules": {"model": {"recompute": "selective", "recompute_modules": ["mlp", "mlp_act"]}},
    "uneven": {"model": {"layers_per_stage": [3, 5, 5, 3]}},
    "looped": {
        "schedule": {"name": "interleaved-1f1b"}, "parallel": {"vp": 2}, "batch": {"global": 20},
        "p2p": {"policy": "megatron", "options": {"overlap_p2p_comm_warmup_flush": True}},
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
    assert {word for word in titan.words if word.startswith("--")} <= TITAN
    assert titan.words[-1] in {f"activation-checkpoint:{name}" for name in ("none", "selective", "full")}


def test_a_layout_says_layers_prediction_and_loss_of_each_stage() -> None:
    model = {"layers_per_stage": [3, 5, 5, 3], "mtp": 1}

    megatron, titan = flag_words(model=model)

    assert value(megatron, "--pipeline-model-parallel-layout") == "Et*3|t*5|t*5|t*3mL"
    ends = [value(titan, f"--parallelism.pipeline_parallel_{end}_stage_less_layers") for end in ENDS]
    assert titan_split(16, 4, *map(int, ends)) == [3, 5, 5, 3]


def test_rounds_that_are_longer_than_the_pipeline_are_told() -> None:
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
    assert titan.without[0].startswith("layers per stage")


@pytest.mark.parametrize(
    ("changed", "megatron", "titan"),
    [
        ({"schedule": {"name": "zb-h1"}}, "schedule zb-h1", "schedule zb-h1"),
        ({"schedule": {"name": "zb-v"}}, "schedule zb-v", "zero 1: FSDP shards gradients and weights, too"),
        (CASES["sharded"], "CUDA_DEVICE_MAX_CONNECTIONS: unset it, or above 1", None),
        (CASES["modules"], "recompute_modules: mlp_act", "zero 1: FSDP shards gradients and weights, too"),
        (
            {"model": MOE, "parallel": {"ep": 2}, "costs": {"zero": 0}}, None,
            "expert parallelism of weights that are not sharded: ep 2 does not divide tp x cp",
        ),
        (
            CASES["experts"] | {"model": MOE | {"recompute": "full"}},
            "schedule combined-1f1b: it needs another recompute than full", "schedule combined-1f1b",
        ),
    ],
)  # fmt: skip
def test_what_a_framework_refuses_is_said(
    changed: dict[str, Any], megatron: str | None, titan: str | None
) -> None:
    for arguments, said in zip(flag_words(**changed), (megatron, titan), strict=True):
        assert (arguments.without[:1] or (None,)) == (said,)


def test_sharding_and_recomputation_are_told() -> None:
    megatron, titan = flag_words(**CASES["sharded"])

    assert value(megatron, "--data-parallel-sharding-strategy") == "optim_grads_params"
    assert value(megatron, "--ckpt-format") == "fsdp_dtensor"
    assert value(titan, "--parallelism.fsdp_reshard_after_forward") == "always"
    whole, again = flag_words(**CASES["whole"])
    assert value(whole, "--recompute-method") == "block"
    assert "--parallelism.no-enable_sequence_parallel" in again.words
    assert again.words[-1] == "activation-checkpoint:full"


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
def test_ends_of_torchtitan_pipelines_are_lighter_by_what_is_told(
    layers: int, stages: int, ends: tuple[int, int], split: list[int] | None
) -> None:
    assert titan_split(layers, stages, *ends) == split


@pytest.mark.parametrize(
    ("layers", "words", "without"),
    [
        (14, ["--account-for-loss-in-pipeline-split", "--account-for-embedding-in-pipeline-split"], ()),
        (15, ["--account-for-loss-in-pipeline-split"], ()),
        (18, [], ("an even split of 18 layers on 16 stages: write --pipeline-model-parallel-layout",)),
    ],
)
def test_embedding_and_head_take_the_place_of_layers(
    layers: int, words: list[str], without: tuple[str, ...]
) -> None:
    megatron, _ = flag_words(
        model={"layers": layers},
        schedule={"name": "interleaved-1f1b"},
        parallel={"vp": 4},
        p2p={"policy": "megatron"},
    )

    assert [word for word in megatron.words if word.startswith("--account-for")] == words
    assert megatron.without == without


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
def test_a_split_is_told_from_costs(layers: int, split: list[int], beside: dict[str, Any]) -> None:
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


def arguments_of(layers: int, **vary: Any) -> dict[str, Any]:
    """Return what frameworks are told of a plan on 8 ranks."""
    config = {
        "model": {"layers": layers, "hidden": 512, "heads": 8, "ffn": 1024, "vocabulary": 1000},
        "device": "h100-sxm", "batch": {"global": 8, "sequence": 256, "micro": 1},
    }  # fmt: skip
    fixed = {"pp": [8], "schedule": ["1f1b"], "layers": ["even"], "zero": [0], "recompute": ["none"]}
    found = pptrace.plan(
        config, gpus=8, vary={**fixed, **vary}, robust=False, executor="serial", registry=Registry.load()
    )
    arguments: dict[str, Any] = found.to_dict()["arguments"]
    assert arguments["torchtitan"]["arguments"].split()[0] in str(found)
    return arguments


def test_the_layers_of_an_uneven_split_are_told_to_frameworks() -> None:
    found = arguments_of(30)

    words = shlex.split(found["megatron-lm"]["arguments"])
    layout = words[words.index("--pipeline-model-parallel-layout") + 1]
    assert layout == "Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*3L"
    assert found["megatron-lm"]["without"] == []
    words = shlex.split(found["torchtitan"]["arguments"])
    ends = [words[words.index(f"--parallelism.pipeline_parallel_{end}_stage_less_layers") + 1] for end in ENDS]
    assert titan_split(30, 8, *map(int, ends)) == [3, 4, 4, 4, 4, 4, 4, 3]


def test_ends_without_layers_are_told_to_frameworks() -> None:
    """As Llama 3 405B on 128 stages: embedding and head have a stage each in place of a layer."""
    found = arguments_of(14, schedule=["interleaved-1f1b"], vp=[2])

    assert "--account-for-embedding-in-pipeline-split" in found["megatron-lm"]["arguments"]
    assert found["torchtitan"]["without"] == []
    words = shlex.split(found["torchtitan"]["arguments"])
    ends = [words[words.index(f"--parallelism.pipeline_parallel_{end}_stage_less_layers") + 1] for end in ENDS]
    assert titan_split(14, 16, *map(int, ends)) == [0, *[1] * 14, 0]
    assert words[words.index("--parallelism.pipeline_parallel_layers_per_stage") + 1] == "1"
