"""Recipes become configurations: by content, without running their code, and back from what pptrace prints."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pptrace.api import simulate
from pptrace.plugin import ConfigError, Registry, load, prepare
from pptrace.search.launch_arguments import megatron_arguments
from pptrace_frameworks.recipe_files import Recipe, read_recipe, recipe_names, recipe_of_text
from pptrace_frameworks.recipe_programs import evaluate_expression
from pptrace_frameworks.recipes import RecipeOptions, command, configuration

if TYPE_CHECKING:
    from pathlib import Path

WORKLOADS = {
    "src/megatron/bridge/package_info.py": "MAJOR = 0\nMINOR = 5\nPATCH = 0\n",
    "scripts/performance/utils/utils.py": """\
        from dataclasses import dataclass

        @dataclass
        class WorkloadBaseConfig:
            num_gpus: int = 1
            tensor_model_parallel_size: int = 1
            pipeline_model_parallel_size: int = 1
            virtual_pipeline_model_parallel_size: int | None = None
            expert_model_parallel_size: int = 1
            global_batch_size: int = 1
            micro_batch_size: int = 1
            cuda_graph_impl: str | None = None
            recompute_modules: list | None = None
            moe_flex_dispatcher_backend: str | None = None
            moe_a2a_overlap: bool = False
        """,
    "scripts/performance/configs/small.py": """\
        from dataclasses import replace
        from utils.utils import WorkloadBaseConfig

        BASE_QWEN3_30B_A3B_CONFIG = WorkloadBaseConfig(num_gpus=16, global_batch_size=512)
        QWEN3_30B_A3B_PRETRAIN_CONFIG_H100_V1 = replace(
            BASE_QWEN3_30B_A3B_CONFIG, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=4,
            expert_model_parallel_size=8, moe_a2a_overlap=True, recompute_modules=["moe_act", "layernorm"],
        )
        QWEN3_30B_A3B_PRETRAIN_CONFIG_H100_FP8_CS_V1 = QWEN3_30B_A3B_PRETRAIN_CONFIG_H100_V1
        QWEN3_30B_A3B_PRETRAIN_CONFIG_H100_FP8_CS_V2 = replace(
            QWEN3_30B_A3B_PRETRAIN_CONFIG_H100_V1, moe_a2a_overlap=False, moe_flex_dispatcher_backend="hybridep",
            cuda_graph_impl="full_iteration", global_batch_size=4 * 256, nccl_ub=True,
        )
        """,
}
FUNCTIONS = {
    "src/megatron/bridge/package_info.py": "MAJOR = 0\nMINOR = 6\n",
    "src/megatron/bridge/training/precision.py": """\
        class MixedPrecision:
            fp8: str | None = None
            fp8_recipe: str = "tensorwise"
            grad_reduce_in_fp32: bool = True

        def narrow():
            made = MixedPrecision()
            made.fp8 = "e4m3"
            made.fp8_recipe = "mxfp8"
            return made
        """,
    "src/megatron/bridge/perf_recipes/common.py": """\
        from megatron.bridge.training.precision import narrow

        def benchmark(cfg, graphs=False):
            cfg.mixed_precision.grad_reduce_in_fp32 = False
            if graphs and hasattr(cfg.model, "pipeline_model_parallel_size"):
                cfg.model.cuda_graph_impl = "transformer_engine"
                cfg.model.cuda_graph_scope = ["attn", "moe_router"]
            if not isinstance(cfg.mixed_precision, str):
                cfg.optimizer.use_precision_aware_optimizer = True
                cfg.optimizer.exp_avg_dtype = torch.bfloat16

        def place(model, mtp=1):
            stages = (model.pipeline_model_parallel_size, model.virtual_pipeline_model_parallel_size or 1)
            known = {
                (2, 2): [["embedding"] + ["decoder"] * 16] + [["decoder"] * 16] * 2
                + [["decoder"] * 13 + ["mtp"] * mtp + ["loss"]],
            }
            if stages in known:
                model.pipeline_model_parallel_layout = known[stages]
        """,
    "src/megatron/bridge/perf_recipes/deepseek.py": """\
        from megatron.bridge.perf_recipes.common import benchmark, narrow, place
        from megatron.bridge.somewhere import unseen

        def deepseek_v3_pretrain_256gpu_gb200_fp8mx_config():
            cfg = base()
            cfg.mixed_precision = narrow()
            cfg.model.pipeline_model_parallel_size = 2
            cfg.model.virtual_pipeline_model_parallel_size = 2
            cfg.model.expert_model_parallel_size = 64
            cfg.train.global_batch_size = 2048
            cfg.train.micro_batch_size = 1
            cfg.model.seq_length = 4096
            cfg.logger.log_interval = 1
            cfg.model.moe_flex_dispatcher_backend = "deepep"
            cfg.ddp.overlap_grad_reduce = True
            place(cfg.model)
            benchmark(cfg, graphs=True)
            unseen(cfg)
            return cfg

        def deepseek_v3_pretrain_256gpu_gb200_fp8mx_overlapped_config():
            cfg = deepseek_v3_pretrain_256gpu_gb200_fp8mx_config()
            cfg.comm_overlap.overlap_moe_expert_parallel_comm = True
            cfg.comm_overlap.delay_wgrad_compute = True
            return cfg

        def _helper_config():
            return None
        """,
}
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=4
GPUS_PER_NODE=8
NODES=${2:-4}
TP=2
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes 4
)
MODEL_ARGS=(
    --num-layers 32  # of Llama 3 8B
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --swiglu --untie-embeddings-and-output-weights --disable-bias-linear
    --attention-dropout 0.0 --hidden-dropout 0.0
    --position-embedding-type rope
    --vocab-size 128256
    "--seq-length 8192"
)
TRAINING="--micro-batch-size 1 --global-batch-size 128 --bf16 --lr 3e-4 \\
    --data-path $DATA"
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} $TRAINING \\
    --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size 4 \\
    --use-distributed-optimizer --sequence-parallel --fancy-kernel $KERNEL
"""
LLAMA = {
    "layers": 32, "hidden": 4096, "heads": 32, "ffn": 14336, "gated": True, "vocabulary": 128256,
    "tied_embeddings": False, "bias": False, "dropout": False, "kv_heads": 8, "precision": "bf16",
}  # fmt: skip


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text), encoding="utf-8")
    return folder / list(files)[-1]


def converted(file: Path, name: str = "", **values: Any) -> tuple[dict[str, Any], list[str]]:
    return configuration(read_recipe(file, name), RecipeOptions(**values), Registry.load())


def of_line(text: str, **values: Any) -> tuple[dict[str, Any], list[str]]:
    return configuration(recipe_of_text(text, "line.txt"), RecipeOptions(**values), Registry.load())


def without_network(notes: list[str]) -> list[str]:
    return [note for note in notes if "has no network" not in note]


def test_a_workload_is_read_with_what_it_inherits(tmp_path: Path) -> None:
    file = write(tmp_path, WORKLOADS)

    found, notes = converted(file, "QWEN3_30B_A3B_PRETRAIN_CONFIG_H100_V1")

    assert found == {
        "stack": "megatron-bridge-26.06",
        "model": {
            "preset": "qwen3-30b-a3b", "recompute": "selective", "recompute_modules": ["moe_act", "layernorm"],
        },
        "device": "h100-sxm",
        "parallel": {"pp": 2, "dp": 8, "ep": 8, "vp": 4},
        "batch": {"global": 512, "micro": 1, "sequence": 4096},
        "schedule": {"name": "combined-1f1b"},
        "costs": {"dispatcher": "all-to-all"},
    }  # fmt: skip
    assert without_network(notes) == []


def test_a_replaced_workload_names_the_keys_without_effect(tmp_path: Path) -> None:
    file = write(tmp_path, WORKLOADS)

    found, notes = converted(file, "QWEN3_30B_A3B_PRETRAIN_CONFIG_H100_FP8_CS_V2")

    assert found["model"]["precision"] == "fp8"
    assert found["schedule"] == {"name": "interleaved-1f1b"}
    assert found["costs"] == {"dispatcher": "deduplicated", "cuda_graphs": True, "fp8_recipe": "tensorwise"}
    assert found["batch"]["global"] == 1024
    assert without_network(notes) == ["without effect: nccl_ub"]


def test_a_function_is_followed_into_the_files_of_its_repository(tmp_path: Path) -> None:
    file = write(tmp_path, FUNCTIONS)

    found, notes = converted(file, "deepseek_v3_pretrain_256gpu_gb200_fp8mx_config")

    assert found == {
        "stack": "megatron-bridge-26.08",
        "model": {"preset": "deepseek-v3", "layout": "Et*16|(t*16|)*2t*13mL", "precision": "mxfp8"},
        "device": "gb200",
        "parallel": {"pp": 2, "dp": 128, "ep": 64, "vp": 2},
        "batch": {"global": 2048, "micro": 1, "sequence": 4096},
        "schedule": {"name": "interleaved-1f1b"},
        "data_parallel": {"overlap": True},
        "costs": {
            "gradients": "bf16",
            "exp_avg": "bf16",
            "dispatcher": "deduplicated",
            "aligned_dispatch": False,
            "cuda_graphs": ["attn", "moe_router"],
        },
    }
    assert without_network(notes) == ["not evaluated: unseen (deepseek.py:18)"]


def test_a_function_is_followed_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, FUNCTIONS)
    monkeypatch.chdir(file.parent)

    name = "deepseek_v3_pretrain_256gpu_gb200_fp8mx_config"

    assert converted(file.relative_to(file.parent), name) == converted(file, name)


def test_a_recipe_whose_base_is_missing_has_a_note(tmp_path: Path) -> None:
    text = """\
        from megatron.bridge.recipes.llama import llama3_8b_pretrain_config

        def llama3_8b_pretrain_8gpu_h100_bf16_config():
            cfg = llama3_8b_pretrain_config()
            cfg.train.global_batch_size = 128
            return cfg
        """
    _, notes = converted(write(tmp_path, {"recipes.py": text}))

    assert without_network(notes) == ["not evaluated: llama3_8b_pretrain_config (recipes.py:4)"]


def test_adapters_of_a_function_are_refused(tmp_path: Path) -> None:
    text = """\
        def llama3_8b_peft_8gpu_h100_bf16_config():
            cfg = base()
            cfg.peft.dim = 16
            return cfg
        """
    with pytest.raises(ConfigError, match="peft: fine-tuning of adapters is not modelled"):
        converted(write(tmp_path, {"recipes.py": text}))


def test_a_function_that_calls_another_recipe_overlaps_its_exchanges(tmp_path: Path) -> None:
    file = write(tmp_path, FUNCTIONS)

    found, _ = converted(file, "deepseek_v3_pretrain_256gpu_gb200_fp8mx_overlapped_config")

    assert found["schedule"] == {"name": "combined-1f1b"}
    assert found["costs"]["delay_wgrad"] is True


def test_graphs_and_fused_experts_of_a_hybrid_model_are_read(tmp_path: Path) -> None:
    """Sizes of a hybrid model are its preset's; a function sets graphs, a variable fused experts."""
    text = """\
        from megatron.bridge.utils.cuda_graph import set_cuda_graph_modules

        def nemotron_3_nano_pretrain_8gpu_gb200_fp8mx_config():
            cfg = base()
            cfg.model.hybrid_layer_pattern = "ME*E"
            cfg.model.num_layers, cfg.model.hidden_size, cfg.model.num_attention_heads = 4, 64, 4
            cfg.model.cuda_graph_impl = "transformer_engine"
            set_cuda_graph_modules(cfg.model, ["mamba", "moe_router"])
            cfg.model.use_transformer_engine_op_fuser = True
            cfg.env_vars = {"NVTE_CUTEDSL_FUSED_GROUPED_MLP": 1}
            cfg.train.global_batch_size = 8
            return cfg
        """
    found, _ = converted(write(tmp_path, {"recipes.py": text}), stack="megatron-bridge")

    assert found["model"]["preset"] == "nemotron-3-nano"
    assert found["model"]["fused_experts"] is True
    assert found["costs"]["cuda_graphs"] == ["mamba", "moe_router"]


def test_a_graph_of_the_whole_iteration_replaces_graphs_of_modules(tmp_path: Path) -> None:
    text = """\
        from megatron.bridge.utils.cuda_graph import set_cuda_graph_modules, set_full_iteration_cuda_graph

        def deepseek_v3_pretrain_256gpu_gb200_fp8mx_config():
            cfg = base()
            cfg.model.cuda_graph_impl = "transformer_engine"
            set_cuda_graph_modules(cfg.model, ["attn"])
            set_full_iteration_cuda_graph(cfg.model)
            cfg.train.global_batch_size = 8
            return cfg
        """
    found, _ = converted(write(tmp_path, {"recipes.py": text}), stack="megatron-bridge")

    assert found["costs"]["cuda_graphs"] is True


def test_recipes_of_a_file_are_listed(tmp_path: Path) -> None:
    text = 'SIZES = {"a": 1}\nPATH = "b"\nJOB = WorkloadBaseConfig(num_gpus=8)\nSAME = JOB\n'

    assert recipe_names(write(tmp_path, {"workloads.py": text})) == ["JOB", "SAME"]
    assert recipe_names(write(tmp_path, FUNCTIONS)) == [
        "deepseek_v3_pretrain_256gpu_gb200_fp8mx_config",
        "deepseek_v3_pretrain_256gpu_gb200_fp8mx_overlapped_config",
    ]


def test_a_matrix_has_a_recipe_for_each_device_size_and_precision(tmp_path: Path) -> None:
    file = tmp_path / "llama3_70b_llm_pretrain.yaml"
    common = {"seq_length": 8192, "mbs": 1, "gbs": 128, "tp": 4, "pp": 8, "vp": 5, "cuda_graphs": False}
    precisions = {"common": common, "bf16": {"pp": 4, "cp": 2}, "fp8_cs": None}
    document = {
        "ConfigContainer": {"model": {"seq_length": 1}, "mixed_precision": {"grad_reduce_in_fp32": False}},
        "perf_matrix": {"h100": {"num_gpus_64": precisions}},
    }
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

    assert recipe_names(file) == ["h100_64gpu_bf16", "h100_64gpu_fp8_cs"]
    found, _ = converted(file, "h100_64gpu_bf16")

    assert found["model"] == {"preset": "llama3-70b", "precision": "bf16"}
    assert found["parallel"] == {"pp": 4, "tp": 4, "cp": 2, "dp": 2, "vp": 5}
    assert found["batch"] == {"global": 128, "micro": 1, "sequence": 8192}
    assert found["costs"] == {"gradients": "bf16", "cuda_graphs": False}


def test_a_configuration_of_nemo_has_its_own_words(tmp_path: Path) -> None:
    file = tmp_path / "llama3_70b.yaml"
    model = {
        "micro_batch_size": 1, "global_batch_size": 128, "tensor_model_parallel_size": 4,
        "pipeline_model_parallel_size": 4, "virtual_pipeline_model_parallel_size": 5, "encoder_seq_length": 8192,
        "sequence_parallel": True, "activations_checkpoint_granularity": "selective", "fp8": True,
        "fp8_params": True,
        "ub_tp_comm_overlap": True, "optim": {"name": "distributed_fused_adam", "lr": 0.1},
    }  # fmt: skip
    document = {"trainer": {"num_nodes": 8, "devices": 8, "precision": "bf16"}, "model": model}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

    found, _ = converted(file, device="h100-sxm", stack="nemo-24.07")

    assert found == {
        "stack": "nemo-24.07",
        "model": {"preset": "llama3-70b", "recompute": "selective", "precision": "fp8"},
        "device": "h100-sxm",
        "parallel": {"pp": 4, "tp": 4, "dp": 4, "vp": 5, "sequence_parallel": True},
        "batch": {"global": 128, "micro": 1, "sequence": 8192},
        "schedule": {"name": "interleaved-1f1b"},
        "costs": {"zero": 1, "fp8_param_gather": True},
    }


def test_a_configuration_of_nemo_with_sizes_needs_no_preset(tmp_path: Path) -> None:
    file = tmp_path / "mixtral-8x7b-256gpus.yaml"
    model = {
        "global_batch_size": 512, "encoder_seq_length": 4096, "num_layers": 16, "hidden_size": 2048,
        "ffn_hidden_size": "${multiply:4, ${.hidden_size}}", "num_attention_heads": 16, "bias": False,
        "share_embeddings_and_output_weights": False, "hidden_dropout": 0.0, "attention_dropout": 0.0,
        "position_embedding_type": "rope", "activation": "fast-swiglu", "num_moe_experts": 4,
        "fp8": False, "fp8_hybrid": True, "max_position_embeddings": "${.encoder_seq_length}",
        "optim": {"name": "distributed_fused_adam", "grad_sync_dtype": "float32", "overlap_grad_sync": False},
        "tokenizer": {"type": "GPT2BPETokenizer"},
    }  # fmt: skip
    document = {"trainer": {"precision": "bf16"}, "model": model}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")

    found, notes = converted(file, device="h100-sxm", gpus=256)

    assert found["stack"] == "nemo-24.12"
    assert found["model"] == {
        "layers": 16, "hidden": 2048, "heads": 16, "ffn": 8192, "gated": True, "vocabulary": 50257,
        "tied_embeddings": False, "bias": False, "dropout": False, "num_experts": 4, "top_k": 2,
        "precision": "bf16",
    }  # fmt: skip
    assert found["data_parallel"] == {"overlap": False}
    assert found["costs"]["gradients"] == "fp32"
    assert without_network(notes) == []


def test_the_vocabulary_is_that_of_the_named_tokenizer() -> None:
    sizes = "--num-layers 8 --hidden-size 64 --num-attention-heads 4"
    line = f"{JOB} {sizes} --tokenizer-model meta-llama/Llama-3.1-8B --virtual-pipeline-model-parallel-size None"

    found, notes = of_line(f"{line} --micro-batch-size 1", gpus=8, device="h100-sxm")

    assert found["model"]["vocabulary"] == 128256
    assert found["parallel"] == {"pp": 2, "dp": 4}
    assert without_network(notes) == ["vocab_size is that of llama3-8b, 128256"]


def test_a_program_of_nemo_is_read_by_the_sizes_that_it_passes(tmp_path: Path) -> None:
    file = tmp_path / "llama3_70b_fp8.py"
    file.write_text(
        """
def recipe(profile: bool = False):
    pretrain = llama31_70b.pretrain_recipe(performance_mode=True)
    num_nodes, tp_size, vp_size = 8, 4, 5
    return set_primary_perf_configs(
        pretrain, "pre_train", num_nodes=num_nodes, num_gpus_per_node=8, mbs=1, gbs=128, tp_size=tp_size,
        pp_size=4, cp_size=2, vp_size=vp_size, ep_size=1, compute_dtype="fp8", fp8_recipe="cs",
        enable_cuda_graphs=False,
    )
""", encoding="utf-8",
    )  # fmt: skip

    found, notes = converted(file, device="h100-sxm")

    assert found == {
        "stack": "nemo", "model": {"preset": "llama3-70b", "precision": "fp8"}, "device": "h100-sxm",
        "parallel": {"pp": 4, "tp": 4, "cp": 2, "dp": 2, "vp": 5},
        "batch": {"global": 128, "micro": 1, "sequence": 8192}, "schedule": {"name": "interleaved-1f1b"},
        "costs": {"fp8_recipe": "tensorwise", "cuda_graphs": False},
    }  # fmt: skip
    assert without_network(notes) == []


@pytest.mark.parametrize(
    ("arguments", "costs"),
    [
        ("--fp8-format hybrid", {}),
        ("--fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather", {
            "fp8_recipe": "tensorwise", "fp8_param_gather": True,
        }),
        ("--fp8-format hybrid --fp8-recipe blockwise", {"fp8_recipe": "blockwise"}),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", {}),
        ("--bf16", {}),
    ],
)  # fmt: skip
def test_recipes_of_fp8_are_read_by_what_they_say(arguments: str, costs: dict[str, Any]) -> None:
    line = f"pretrain_gpt.py {JOB} {arguments}"

    found, _ = of_line(line, model="llama3-8b", device="b200", gpus=8)

    read = {key: value for key, value in found["costs"].items() if key.startswith("fp8")}
    assert read == costs


def test_a_script_has_variables_arrays_and_defaults_of_megatron(tmp_path: Path) -> None:
    file = tmp_path / "train_h100.sh"
    file.write_text(SCRIPT, encoding="utf-8")

    found, notes = converted(file)

    assert found == {
        "model": LLAMA,
        "device": "h100-sxm",
        "parallel": {"pp": 4, "tp": 2, "dp": 4, "sequence_parallel": True},
        "batch": {"global": 128, "micro": 1, "sequence": 8192},
        "schedule": {"name": "1f1b"},
        "data_parallel": {"overlap": False},
        "costs": {"zero": 1, "overlap_tp": False},
    }
    assert without_network(notes) == [
        "variables without a value: fancy_kernel $KERNEL", "without effect: fancy_kernel",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "script",
    [
        'CMD=" `pwd`/pretrain.py $ARGS"\nsrun bash -c "$LAUNCHER --node_rank \\$PROCID $CMD" 2>&1 | tee log\n',
        '#    --disabled 3 \\\nexport CMD="pretrain_gpt.py $ARGS"\neval $CMD\n',
        'OPTIONS=\'pretrain_gpt.py\'\nOPTIONS+=" $ARGS"\nOPTIONS+=" --save x"\ntorchrun $OPTIONS\n',
    ],
)
def test_a_command_in_a_string_is_read(script: str) -> None:
    text = (
        "NLAYERS=8; NHIDDEN=$((64 * 4))\nHEADS=$(( NHIDDEN / ${HEAD_DIM:-${WIDTH:-64}} ))\n"
        'ARGS=" \\\n --num-layers $NLAYERS \\\n --hidden-size $NHIDDEN --num-attention-heads $HEADS '
        '--checkpoint-activations --pad-vocab-size-to 512"\n'
    )

    found, _ = of_line(text + script, gpus=8, device="h100-sxm")

    sizes = {"layers": 8, "hidden": 256, "heads": 4, "vocabulary": 512, "recompute": "full"}
    assert {key: found["model"][key] for key in sizes} == sizes


COMMAND = "pretrain_gpt.py --num-layers $LAYERS --hidden-size 256 --num-attention-heads 4 --vocab-size 512\n"


def test_commands_of_other_sizes_in_a_script_have_a_note() -> None:
    script = (
        "PP=2 bash run.sh --seq-length 4096 --save a --pipeline-model-parallel-layout 'Ett|ttL'\n"
        "PP=4 bash run.sh --seq-length 4096 --save b --pipeline-model-parallel-layout \"'Et|t|t|tL'\"\n"
    )
    script += script.splitlines()[-1]

    found, notes = of_line(script, gpus=8, model="llama3-8b", device="h100-sxm")

    assert found["model"]["layout"] == "Et|t|t|tL"
    assert without_network(notes) == [
        "micro_batch_size is not given, and assumed to be 1",
        "several values, of which the last one is used: pipeline_model_parallel_layout",
    ]


def test_one_expert_is_a_dense_model_in_deepspeed() -> None:
    line = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --vocab-size 512 --num-experts 1"

    found, _ = of_line(line, gpus=8, device="h100-sxm")

    assert "num_experts" not in found["model"]


@pytest.mark.parametrize(
    ("size", "is_noted", "layers"),
    [
        ("$1", True, 16), ("4", False, 4), ("8", False, 9), ("${1:-2}", False, 16),
        ("8; if [ -f small ]; then SIZE=4; fi", True, 16),
    ],
)  # fmt: skip
def test_branches_that_do_not_run_are_skipped(*, size: str, is_noted: bool, layers: int) -> None:
    branches = (
        f'SIZE={size}\nif [[ "$SIZE" == "4" ]]; then LAYERS=4\nelif [ $SIZE -eq 8 ]\nthen\nLAYERS=8\n'
        "if [ $SIZE != 8 ]; then LAYERS=5; else LAYERS=9; fi\nelse\nLAYERS=16\nfi\n"
    )

    found, notes = of_line(branches + COMMAND, gpus=8, device="h100-sxm")

    assert found["model"]["layers"] == layers
    assert ("several branches of if or case are read: a variable has its last value" in notes) == is_noted


def test_the_output_of_a_command_is_named() -> None:
    line = f"LAYERS=$(( $(nproc --all) * 2 ))\n{COMMAND}"

    with pytest.raises(
        ConfigError, match=r"not '\$\{output_of_nproc_all\}\*2': set the variable in the environment"
    ):
        of_line(line, gpus=8, device="h100-sxm")


def test_a_test_case_of_megatron_has_latent_attention_and_experts(tmp_path: Path) -> None:
    file = tmp_path / "model_config.yaml"
    arguments = {
        "--num-layers": 8, "--hidden-size": 512, "--num-attention-heads": 8, "--ffn-hidden-size": 2048,
        "--vocab-size": 1024, "--seq-length": 1024, "--multi-latent-attention": True, "--kv-lora-rank": 64,
        "--num-experts": 16, "--moe-router-topk": 4, "--moe-ffn-hidden-size": 256, "--swiglu": True,
        "--moe-layer-freq": "'([0]*3+[1]*5)'", "--expert-model-parallel-size": 2, "--micro-batch-size": 2,
        "--moe-token-dispatcher-type": "flex", "--fp8-format": "e4m3", "--fp8-recipe": "mxfp8",
        "--use-megatron-fsdp": True, "--data-parallel-sharding-strategy": "optim_grads", "--no-rope-fusion": False,
        "--position-embedding-type": "rope", "--moe-router-num-groups": 4, "--moe-router-group-topk": 2,
    }  # fmt: skip
    file.write_text(yaml.safe_dump({"ENV_VARS": {"A": 1}, "MODEL_ARGS": arguments}), encoding="utf-8")

    found, _ = converted(file, device="b200", gpus=4)

    assert found["model"] == {
        "layers": 8, "hidden": 512, "heads": 8, "ffn": 2048, "gated": True, "vocabulary": 1024,
        "tied_embeddings": True, "bias": True, "dropout": True, "query_rank": 0, "kv_rank": 64, "head_dim": 128,
        "rope_dim": 64, "value_dim": 128, "num_experts": 16, "top_k": 4, "expert_ffn": 256, "expert_groups": 4,
        "top_groups": 2, "dense_layers": 3, "precision": "mxfp8",
    }  # fmt: skip
    assert found["parallel"] == {"pp": 1, "dp": 4, "ep": 2}
    assert found["batch"] == {"global": 8, "micro": 2, "sequence": 1024}
    assert found["costs"] == {
        "zero": 2, "gradients": "fp32", "dispatcher": "deduplicated", "fused_routing": False,
    }  # fmt: skip


@pytest.mark.parametrize(("arguments", "costs"), [
    ("--optimizer dist_muon --muon-tp-mode blockwise --muon-num-ns-steps 3",
     {"zero": 1, "optimizer": "muon", "muon_steps": 3, "muon_tp": "blockwise"}),
    ("--optimizer muon", {"zero": 0, "optimizer": "muon", "muon_steps": 5}),
    ("--optimizer adam --no-gradient-accumulation-fusion", {"zero": 0, "accumulation": "separate"}),
])  # fmt: skip
def test_optimizers_and_accumulation_are_costs(arguments: str, costs: dict[str, Any]) -> None:
    found, notes = of_line(f"--bf16 {arguments}", gpus=8, model="llama3-8b", device="h100-sxm")

    assert found["costs"] == costs
    assert not [note for note in notes if note.startswith("without effect")]


def test_precisions_of_layers_and_of_the_head_are_those_of_the_recipe() -> None:
    line = "--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-output-proj --first-last-layers-bf16"

    found, _ = of_line(f"{line} --num-layers-at-end-in-bf16 14", gpus=8, model="llama3-8b", device="b200")

    assert found["model"] == {
        "preset": "llama3-8b", "precision": "mxfp8", "first_bf16_layers": 1, "last_bf16_layers": 14,
        "product_precisions": {"head": "mxfp8"},
    }  # fmt: skip


@pytest.mark.parametrize(("arguments", "model", "costs"), [
    ("--attention-backend unfused", {"flash_attention": False}, {}),
    ("--transformer-impl local", {"flash_attention": False}, {}),
    ("--transformer-impl local --use-flash-attn", {}, {}),
    ("--attention-backend flash", {}, {"attention": "flash-2"}),
    ("--attention-backend fused --transformer-impl transformer_engine", {}, {}),
])  # fmt: skip
def test_attention_without_a_fused_kernel_keeps_its_scores(
    arguments: str, model: dict[str, Any], costs: dict[str, Any]
) -> None:
    found, _ = of_line(f"{JOB} {arguments}", gpus=8, model="llama3-8b", device="h100-sxm")

    assert found["model"] == {"preset": "llama3-8b", "precision": "bf16"} | model
    assert found["costs"].get("attention") == costs.get("attention")


def test_variables_of_the_environment_have_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIZE", "4")
    script = 'if [ "$SIZE" = 1 ]; then ARGS="--micro-batch-size 9"; fi\n'

    found, notes = of_line(
        f"{script}{JOB} --tensor-model-parallel-size ${{SIZE}} $ARGS",
        gpus=16,
        model="llama3-8b",
        device="h100-sxm",
    )

    assert (found["parallel"]["tp"], found["batch"]["micro"]) == (4, 1)
    assert "branches" not in " ".join(notes)


def test_words_after_a_script_are_its_arguments(tmp_path: Path) -> None:
    text = f"TP=$2\n{JOB} --tensor-model-parallel-size $TP --pipeline-model-parallel-size ${{3}}\n"
    file = write(tmp_path, {"run_llama3_8b.sh": text})

    recipe = read_recipe(file, "name", "4", "2")

    found, _ = configuration(recipe, RecipeOptions(gpus=16, device="h100-sxm"), Registry.load())
    assert found["parallel"] == {"pp": 2, "tp": 4, "dp": 2, "sequence_parallel": False}
    with pytest.raises(ConfigError, match="has recipes with one name each, not 'b' too"):
        read_recipe(write(tmp_path, {"recipes.py": "A_CONFIG = Workload(num_gpus=8)\n"}), "A_CONFIG", "b")


def test_variables_of_a_configuration_have_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIMUS_PP", "4")
    text = """\
        exp_name: ${PRIMUS_NAME:llama3-70b}
        modules:
          pre_trainer:
            overrides:
              {tensor_model_parallel_size: "${PRIMUS_TP:8}", pipeline_model_parallel_size: "${PRIMUS_PP:1}",
              global_batch_size: 128, seq_length: 8192}
        """
    found, _ = converted(write(tmp_path, {"llama3_70b.yaml": text}), gpus=64, device="mi300x")

    assert found["parallel"] == {"pp": 4, "tp": 8, "dp": 2}


def test_a_configuration_of_nemo_has_the_values_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "TP": "4",
        "NODES": "16",
        "SAMPLES": "32",
        "FP8": "True",
        "FOLDER": "a${FOLDER:1}",
    }.items():
        monkeypatch.setenv(name, value)
    text = """\
        defaults: ["optional tp_overlap: ${oc.env:GPU,h}100"]
        trainer: {num_nodes: "${oc.decode:${oc.env:NODES,1}}", devices: "${oc.decode:${oc.env:GPUS,8}}"}
        exp_manager: {explicit_log_dir: "${oc.env:FOLDER}"}
        model:
          tensor_model_parallel_size: ${oc.decode:${oc.env:TP}}
          pipeline_model_parallel_size: ${oc.decode:${oc.env:PP,2}}
          size: ${multiply:${model.tensor_model_parallel_size},${.pipeline_model_parallel_size}}
          replicas: ${floor_div:${multiply:${trainer.devices},${trainer.num_nodes}},${.size}}
          global_batch_size: ${multiply:${oc.decode:${oc.env:SAMPLES}},${.replicas}}
          encoder_seq_length: 2048
          activations_checkpoint_granularity: ${oc.decode:${oc.env:RECOMPUTE,null}}
          sequence_parallel: ${oc.decode:${oc.env:SEQUENCE_PARALLEL,False}}
          hidden_dropout: 0.0
          attention_dropout: 0.0
          fp8: ${oc.decode:${oc.env:FP8,False}}
          external_cuda_graph: ${oc.decode:${oc.env:LAYER_CUDA_GRAPH,False}}
          full_cuda_graph: ${oc.decode:${oc.env:FULL_CUDA_GRAPH,True}}
        """
    found, notes = converted(write(tmp_path, {"custom.yaml": text}), model="gpt3-175b", device="h100-sxm")

    assert found["model"] == {"preset": "gpt3-175b", "dropout": False, "precision": "fp8"}
    assert found["parallel"] == {"pp": 2, "tp": 4, "dp": 16, "sequence_parallel": False}
    assert found["batch"] == {"global": 512, "micro": 1, "sequence": 2048}
    assert found["costs"] == {"cuda_graphs": True}
    assert without_network(notes) == ["without effect: replicas, size"]


@pytest.mark.parametrize(
    "text", ["${.b}", "${oc.env:NONE}", "${floor_div:8,0}", "${if:1,2,3}", "${oc.decode:${.b}}"]
)
def test_an_interpolation_without_a_value_is_not_a_size(tmp_path: Path, text: str) -> None:
    document = f'a: {{b: "${{.c}}", c: "${{.b}}", tensor_model_parallel_size: "{text}"}}'

    with pytest.raises(ConfigError, match=r"must be a whole number, not .*: set the variable in the environment"):
        converted(write(tmp_path, {"llama3_70b.yaml": document}), gpus=64, device="h100-sxm")


def test_values_without_effect_have_a_note() -> None:
    line = f"{JOB} --optimizer sgd --recompute-granularity Selectiv --cuda-graph-impl none"

    _, notes = of_line(line, gpus=16, model="llama3-8b", device="h100-sxm")

    assert "unknown values without effect: optimizer sgd, recompute_granularity Selectiv" in notes


@pytest.mark.parametrize(
    ("arguments", "groups"),
    [
        ("--group-query-attention", 1),
        ("--group-query-attention --num-query-groups 8", 8),
        ("--num-query-groups 8", None),
    ],
)
def test_query_groups_need_their_argument(arguments: str, groups: int | None) -> None:
    sizes = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000"

    found, notes = of_line(f"{JOB} {sizes} {arguments}", gpus=16, device="h100-sxm")

    assert found["model"].get("kv_heads") == groups
    assert ("without effect: num_query_groups" in notes) == (groups is None)


@pytest.mark.parametrize(
    ("arguments", "etp"),
    [("--expert-model-parallel-size 2", 2), ("", 2), ("--expert-tensor-parallel-size 1", 1)],
)
def test_experts_of_arguments_are_split_as_megatron_does(arguments: str, etp: int) -> None:
    line = f"{JOB} --tensor-model-parallel-size 2 --num-experts 8 {arguments}"

    found, _ = of_line(line, gpus=16, model="mixtral-8x7b", device="h100-sxm")

    assert found["parallel"]["etp"] == etp


ENDS = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"


@pytest.mark.parametrize(("arguments", "model"), [("10", "llama3-70b"), (f"16 {ENDS}", "llama3-405b")])
def test_chunks_follow_from_the_layers_of_the_model(arguments: str, model: str) -> None:
    line = f"{JOB} --num-layers-per-virtual-pipeline-stage {arguments}"

    found, _ = of_line(line, gpus=16, model=model, device="h100-sxm")

    assert found["parallel"]["vp"] == 4


def test_chunks_follow_from_a_layout_in_a_list(tmp_path: Path) -> None:
    layout = [["embedding", "decoder"], ["decoder"], ["decoder"], ["decoder", "loss"]]
    document = f"pipeline_model_parallel_size: 2\npipeline_model_parallel_layout: {layout}"

    found, _ = converted(write(tmp_path, {"llama3_70b.yaml": document}), gpus=64, device="h100-sxm")

    assert found["parallel"]["vp"] == 2


@pytest.mark.parametrize(
    ("arguments", "stages"),
    [
        ("--decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 28", [2, 14, 2, 14]),
        ("--decoder-last-pipeline-num-layers 12", [10, 6, 10, 6]),
        ("--account-for-loss-in-pipeline-split --num-layers 31", [8, 8, 8, 7]),
    ],
)
def test_layers_of_ends_are_those_of_ranks(arguments: str, stages: list[int]) -> None:
    sizes = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --vocab-size 32000"

    line = f"{JOB} {sizes} --num-virtual-stages-per-pipeline-rank 2 {arguments}"
    found, _ = of_line(line, gpus=16, device="h100-sxm")

    assert found["model"]["layers_per_stage"] == stages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--decoder-first-pipeline-num-layers 40", "40 does not divide 32 layers into 1 equal chunks on 2"),
        ("--account-for-loss-in-pipeline-split", "32 layers and one end do not fill 2 stages"),
    ],
)
def test_ends_that_leave_no_equal_stages_are_an_error(arguments: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        of_line(f"{JOB} {arguments}", gpus=16, model="llama3-8b", device="h100-sxm")


def test_layers_that_do_not_fill_chunks_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"80 layers do not fill stages of 7 on 2 ranks"):
        of_line(f"{JOB} --num-layers-per-virtual-pipeline-stage 7", gpus=16, model="llama3-70b", device="h100-sxm")


@pytest.mark.parametrize("modules", ["core_attn attn_proj", "'[core_attn attn_proj]'"])
def test_modules_are_copied_to_the_host(modules: str) -> None:
    arguments = f"--fine-grained-activation-offloading --offload-modules {modules}"

    found, notes = of_line(f"{JOB} {arguments}", gpus=8, model="llama3-8b", device="h100-sxm")

    assert found["model"]["offload_modules"] == ["core_attn", "attn_proj"]
    assert not [note for note in notes if "offload" in note]


@pytest.mark.parametrize(("arguments", "noted"), [
    ("--num-layers 32 --hidden-size 4096 --manual-gc --attention-backend auto", ""),
    ("--num-layers 30 --moe-grouped-gemm false", "moe_grouped_gemm, num_layers"),
    ("--no-bias-dropout-fusion --overlap-grad-reduce --optimizer-cpu-offload",
     "bias_dropout_fusion, optimizer_cpu_offload"),
])  # fmt: skip
def test_a_note_has_the_settings_that_costs_ignore(arguments: str, noted: str) -> None:
    _, notes = of_line(f"--bf16 {arguments}", gpus=8, model="llama3-8b", device="h100-sxm")

    assert [note for note in notes if note.startswith("without effect")] == [f"without effect: {noted}"] * bool(
        noted
    )


@pytest.mark.parametrize(("arguments", "shard", "costs"), [
    ("--num-distributed-optimizer-instances 4 --outer-dp-sharding-strategy optim", 2, {"outer_sharding": True}),
    ("--num-distributed-optimizer-instances 4", 2, {}),
    ("--outer-dp-sharding-strategy optim", None, {}),
])  # fmt: skip
def test_outer_sharding_needs_groups(arguments: str, shard: int | None, costs: dict[str, Any]) -> None:
    found, _ = of_line(f"--bf16 --use-megatron-fsdp {arguments}", gpus=8, model="llama3-8b", device="h100-sxm")

    assert found["data_parallel"].get("shard") == shard
    assert found["costs"] == {"zero": 3, **costs}


SHARDS = "--tensor-parallel-num-weight-shards 8"
EXPERT_SHARDS = "--expert-tensor-parallel-num-weight-shards 2 --expert-tensor-parallel-size 1"


@pytest.mark.parametrize(("arguments", "reduction", "costs"), [
    (f"{SHARDS} --use-distributed-optimizer", {"shard": 4, "units": "weights"},
     {"zero": 3, "outer_sharding": True}),
    (SHARDS, {"shard": 4, "units": "weights"}, {"zero": 3}),
    ("--tensor-parallel-num-weight-shards 2 --use-distributed-optimizer", {}, {"zero": 1}),
    ("--gtp-weight-remat-size 8", {"shard": 8, "units": "weights"}, {"zero": 3}),
    (f"{SHARDS} {EXPERT_SHARDS} --expert-model-parallel-size 4",
     {"shard": 4, "expert_shard": 2, "units": "weights"}, {"zero": 3}),
    (f"{SHARDS} --pipeline-model-parallel-size 2",
     {"shard": 4, "reduce_each": True, "reshard": "always"}, {"zero": 3}),
])  # fmt: skip
def test_shards_of_weights_are_shard_groups(
    arguments: str, reduction: dict[str, Any], costs: dict[str, Any]
) -> None:
    line = f"--bf16 --tensor-model-parallel-size 2 {arguments}"

    found, notes = of_line(line, gpus=16, model="mixtral-8x7b", device="h100-sxm")

    assert found["data_parallel"] == {"overlap": bool(reduction), **reduction}
    assert {key: found["costs"].get(key) for key in ("zero", "outer_sharding")} == {
        "outer_sharding": None,
        **costs,
    }
    assert ("gathers whole stages" in " ".join(notes)) == ("reshard" in reduction)


def test_printed_arguments_of_weight_shards_are_read_back() -> None:
    config = {
        "model": "mixtral-8x7b", "device": "h100-sxm", "stack": "ideal",
        "parallel": {"pp": 1, "tp": 2, "dp": 8, "ep": 4, "etp": 1, "sequence_parallel": True},
        "batch": {"global": 16, "micro": 1, "sequence": 4096}, "schedule": "1f1b",
        "data_parallel": {"overlap": True, "shard": 4, "expert_shard": 2, "units": "weights"},
        "costs": {"zero": 3, "outer_sharding": True},
    }  # fmt: skip
    prepared = prepare(load(config), Registry.load())

    arguments = megatron_arguments(prepared.resolved.experiment, prepared.schedule)
    found, _ = of_line(f"pretrain_gpt.py {arguments.text}", model="mixtral-8x7b", device="h100-sxm", gpus=16)

    assert found["data_parallel"] == config["data_parallel"]
    assert found["parallel"] == {**config["parallel"], "pp": 1}
    assert {key: found["costs"][key] for key in config["costs"]} == config["costs"]


JOB = "--pipeline-model-parallel-size 2 --seq-length 4096 --bf16"
EXPERTS = f"{JOB} --num-layers 8 --hidden-size 64 --num-attention-heads 4 --vocab-size 512 --num-experts 8"


@pytest.mark.parametrize(
    ("line", "given_values", "message"),
    [
        (JOB, {"device": "h100-sxm"}, "num_gpus: the number of GPUs is unknown: add --gpus"),
        (JOB, {"device": "h100-sxm", "gpus": 3}, r"num_gpus: 3 GPUs are not a multiple of tp x pp x cp, 2"),
        (JOB, {"gpus": 8, "device": "h100-sxm"}, "model: no model preset is in the name line: add --model"),
        (JOB, {"gpus": 8, "model": "llama3-8b"}, "device: no device preset is in the name line: add --device"),
        (f"{JOB} --num-layers 8 --hidden-size 64 --num-attention-heads 4", {"gpus": 8, "device": "h100-sxm"},
         "vocab_size: the number of tokens is unknown"),
        (f"{JOB} --micro-batch-size $SIZE", {"gpus": 8, "model": "llama3-8b", "device": "h100-sxm"},
         r"micro_batch_size: must be a whole number, not '.SIZE': set the variable in the environment, or"),
        (f"{JOB} --micro-batch-size two", {"gpus": 8, "model": "llama3-8b", "device": "h100-sxm"},
         "micro_batch_size: must be a whole number, not 'two'"),
        (f"{JOB} --micro-batch-size {'9' * 5000}", {"gpus": 8, "model": "llama3-8b", "device": "h100-sxm"},
         "micro_batch_size: must be a whole number, not '9{59}$"),
        (f"{JOB} --seq-length $(({'1+' * 900}1))", {"gpus": 8, "model": "llama3-8b", "device": "h100-sxm"},
         "seq_length: must be a whole number, not '1.1"),
        (f"{JOB} --pipeline-model-parallel-size 0", {"gpus": 8, "model": "llama3-8b", "device": "h100-sxm"},
         "pipeline_model_parallel_size: must be 1 or more, not 0"),
        (f"{JOB} --micro-batch-size 1e400", {"gpus": 8, "model": "llama3-8b", "device": "h100-sxm"},
         "micro_batch_size: must be a whole number, not inf"),
        *(
            (f"{EXPERTS} --moe-layer-freq {pattern}", {"gpus": 8, "device": "h100-sxm"},
             "moe_layer_freq: must be an interval, or 8 numbers: 0 for layers without experts, then 1")
            for pattern in ("0", "'([0]*1+[1]*4)'", "'([1]*4+[0]*4)'")
        ),
        (f"{JOB} --peft lora", {"gpus": 8, "model": "llama3-8b", "device": "h100-sxm"},
         "peft: fine-tuning of adapters is not modelled"),
        (f"{JOB} --tensor-model-parallel-size 2 --tensor-parallel-num-weight-shards 3",
         {"gpus": 8, "model": "llama3-8b", "device": "h100-sxm"},
         "tensor_parallel_num_weight_shards: 3 is not a multiple of the tensor-parallel size, 2"),
        (f"{JOB} --use-megatron-fsdp --data-parallel-sharding-strategy half",
         {"gpus": 8, "model": "llama3-8b", "device": "h100-sxm"},
         "data_parallel_sharding_strategy: must be one of no_shard, optim"),
    ],
)  # fmt: skip
def test_what_a_line_lacks_is_an_error_that_says_what_to_add(
    line: str, given_values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"^line.txt: {message}"):
        of_line(line, **given_values)


def test_files_of_gpt_2_have_its_tokens() -> None:
    sizes = "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 4096"

    found, _ = of_line(f"{JOB} {sizes} --vocab-file a.json --merge-file $B", gpus=8, device="h100-sxm")

    assert found["model"] == {
        "layers": 8, "hidden": 64, "heads": 4, "ffn": 256, "gated": False, "vocabulary": 50257, "bias": True,
        "tied_embeddings": True, "dropout": True, "learned_positions": 4096, "precision": "bf16",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("A_CONFIG = job()\nB_CONFIG = job()\n", "", "has 2 recipes: name one of them, such as B_CONFIG"),
        ("A_CONFIG = job()\n", "B_CONFIG", "has no recipe 'B_CONFIG' .did you mean 'A_CONFIG'. known: A_CONFIG"),
        ("A_CONFIG = job()\n", "A_CONFIG", "A_CONFIG is not a recipe: it has no fields"),
        ("x = (\n", "", "is not Python"),
        ("x = 1if 2 else (\n", "", r"is not Python: '\(' was never closed"),
        ("import os\n", "", "has no recipe: no name in upper case"),
        ("def f():\n    return f()\ndef a_config():\n    return f()\n", "a_config", "f is nested too deeply"),
        (
            "class Job:\n    size: int = 1\ndef a_config():\n    job = Job()\n    job.own = job\n    return job\n",
            "a_config", "a_config is nested too deeply",
        ),
    ],
)  # fmt: skip
def test_a_file_without_the_recipe_is_an_error(tmp_path: Path, text: str, name: str, message: str) -> None:
    file = tmp_path / "recipe.py"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=message):
        read_recipe(file, name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("perf_matrix: [1]\n", r"perf_matrix: must be a mapping of settings, not \[1\]"),
        ("perf_matrix: {H100: 1}\n", "perf_matrix.H100: must be a mapping of settings, not 1"),
        ("perf_matrix: {H100: {gpus_8: 1}}\n", "perf_matrix.H100.gpus_8: must be a mapping of settings, not 1"),
        ("perf_matrix: {H100: {gpus_8: {bf16: 1}}}\n", "perf_matrix.H100.gpus_8.bf16: must be a mapping"),
        ("ConfigContainer: 1\nperf_matrix: {H100: {gpus_8: {bf16: {}}}}\n", "ConfigContainer: must be a mapping"),
    ],
)
def test_a_matrix_of_another_form_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(ConfigError, match=rf"recipe\.yaml: {message}"):
        read_recipe(file)


@pytest.mark.parametrize("stage", ["3", "[[decoder]]", "[head]"])
def test_a_layout_of_unknown_items_is_an_error(tmp_path: Path, stage: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"num_gpus: 8\npipeline_model_parallel_layout: [{stage}]\n", encoding="utf-8")
    given = RecipeOptions(model="llama3-8b", device="h100-sxm")

    with pytest.raises(ConfigError, match=r"job\.yaml: pipeline_model_parallel_layout: has unknown items in"):
        configuration(read_recipe(file), given, Registry.load())


def test_a_module_and_a_scope_can_be_single_words() -> None:
    arguments = "--recompute-granularity selective --recompute-modules moe --cuda-graph-impl local"
    settings, notes = of_line(
        f"{JOB} {arguments} --cuda-graph-scope attn", gpus=8, model="llama3-8b", device="h100-sxm"
    )
    _, other_notes = of_line(
        f"{JOB} --recompute-granularity selective --recompute-modules shared", gpus=8, model="llama3-8b",
        device="h100-sxm",
    )  # fmt: skip

    assert settings["model"]["recompute_modules"] == ["moe"]
    assert settings["costs"]["cuda_graphs"] == ["attn"]
    assert not [note for note in notes if note.startswith("recompute_modules")]
    assert "recompute_modules without effect: shared" in other_notes


def test_no_code_of_a_recipe_runs(tmp_path: Path) -> None:
    file = tmp_path / "recipe.py"
    trap = tmp_path / "trap"
    file.write_text(
        dedent(f"""\
            import pathlib
            open({str(trap)!r}, "w").write("ran")
            pathlib.Path({str(trap)!r}).write_text("ran")
            A_CONFIG = replace(WorkloadBaseConfig(num_gpus=8, x=open({str(trap)!r}, "w")), big=[0] * 10**9 * 10**9)
            """),
        encoding="utf-8",
    )

    recipe = read_recipe(file, "A_CONFIG")

    assert recipe.settings["num_gpus"] == 8
    assert not trap.exists()


PROGRAM = """\
    import copy
    import torch
    from dataclasses import replace
    from .beside import STAGES, Shape as Sizes

    PAIRS = {(2, 1): "two", "four": 4}

    def stages(count, *, last=1, **more):
        if count > 3 and not last:
            return [count] * 2
        elif 1 < count <= 3:
            return PAIRS.get((count, last))
        raise ValueError(count)

    def of_record(record):
        record.named = f"{record.size}-{PAIRS['four']}"
        setattr(record, "set", getattr(record, "missing", 3) - -1)
        if hasattr(record, "missing") or isinstance(record.size, str):
            record.never = 1
        with torch.no_grad():
            record.inside, record.outside = (1, 2)
        try:
            record.tried = "A".lower()
        except KeyError:
            record.never = 2
        else:
            record.untroubled = True
        finally:
            record.ended = True
        shallow, deep = copy.copy([record]), copy.deepcopy([record])
        shallow[0].shared, deep[0].never = 1, 3
        for each in STAGES:
            record.never = each
        record.size += 1
        return record

    A_CONFIG = of_record(replace(
        Sizes(3, depth=max(STAGES)), kind=torch.bfloat16, two=stages(2), four=stages(4, last=0)
    ))
    B_CONFIG = Sizes(
        size=stages(9).unknown or (5 if STAGES is None else 6), chosen=[*STAGES, 4], **{"depth": -2}
    )
    """


def test_programs_are_evaluated_as_far_as_constants_go(tmp_path: Path) -> None:
    beside = """\
        STAGES = [1, 2]

        class Shape:
            size: int = 1
            depth: int = field(default=7)
            width: int = 8
        """
    file = write(tmp_path, {"beside.py": beside, "recipe.py": PROGRAM})

    first, second = (read_recipe(file, f"{name}_CONFIG") for name in "AB")

    none = {"moe_flex_dispatcher_backend": "none"}
    assert first.settings == {
        "size": 3, "depth": 2, "width": 8, "kind": "bfloat16", "two": "two", "four": [4, 4], "named": "3-4",
        "set": 4, "inside": 1, "outside": 2, "tried": "a", "untroubled": True, "ended": True, "shared": 1, **none,
    }  # fmt: skip
    assert first.notes == ("not evaluated: For (recipe.py:32), AugAssign (recipe.py:34)",)
    assert second.settings == {"size": 6, "depth": -2, "width": 8, "chosen": [1, 2, 4], **none}


@pytest.mark.parametrize(
    ("text", "value"),
    [("([0]*3+[1]*5)", [0] * 3 + [1] * 5), ("2", 2), ("[0]*10**9", None), ("open('x')", None), ("(", None)],
)
def test_an_expression_of_constants_has_a_value(text: str, value: Any) -> None:
    assert evaluate_expression(text) == value


def test_the_command_lists_prints_and_writes_recipes_that_run(tmp_path: Path) -> None:
    file = write(tmp_path, WORKLOADS)
    name = "QWEN3_30B_A3B_PRETRAIN_CONFIG_H100_FP8_CS_V1"

    listed = CliRunner().invoke(command, [str(file)], catch_exceptions=False)
    printed = CliRunner().invoke(command, [str(file), name], catch_exceptions=False)
    CliRunner().invoke(command, [str(file), name, "-o", str(tmp_path / "job.yaml")], catch_exceptions=False)

    assert name in listed.stdout.splitlines()
    assert (tmp_path / "job.yaml").read_text(encoding="utf-8") == printed.stdout
    assert "note: a recipe has no network" in printed.stderr
    run = simulate(tmp_path / "job.yaml", sets=["batch.global=128"])
    assert run.metrics.step_ns > 0


def test_the_command_reads_a_line_from_standard_input() -> None:
    arguments = ["-", "--model", "llama3-8b", "--device", "h100-sxm", "--gpus", "8"]

    answer = CliRunner().invoke(command, arguments, input=f"pretrain_gpt.py {JOB}\n", catch_exceptions=False)

    assert yaml.safe_load(answer.stdout)["parallel"] == {"pp": 2, "dp": 4}


SIZES = st.sampled_from([1, 2, 4])
JOBS = st.fixed_dictionaries({
    "pp": st.sampled_from([2, 4]), "tp": SIZES, "cp": SIZES, "dp": SIZES, "ep": SIZES, "vp": SIZES,
    "micro": SIZES, "rounds": st.integers(1, 4),
    "sequence_parallel": st.booleans(), "overlap": st.booleans(), "zero": st.sampled_from([0, 1, 2, 3]),
    "recompute": st.sampled_from([
        {"recompute": "full"}, {"recompute": "full", "recompute_method": "block", "recompute_num_layers": 2},
        {"recompute": "selective"}, {"recompute": "selective", "recompute_modules": ["moe_act", "core_attn"]},
    ]),
    "states": st.sampled_from([{}, {"exp_avg": "bf16", "exp_avg_sq": "fp8"}, {"main_params": "fp16"}]),
    "dispatcher": st.sampled_from(["all-to-all", "deduplicated"]),
    "p2p": st.sampled_from([{}, {"overlap_p2p_comm": False}, {"overlap_p2p_comm_warmup_flush": True}]),
    "layout": st.booleans(), "overlap_tp": st.booleans(),
    "fused_routing": st.sampled_from([True, False, ["router"], ["permutation"]]),
    "fused_loss": st.booleans(),
})  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(job=JOBS)
def test_printed_arguments_are_read_back_as_the_configuration(job: dict[str, Any]) -> None:
    sizes = {axis: job[axis] for axis in ("pp", "tp", "cp", "dp", "ep", "vp")}
    if job["dp"] * job["cp"] % job["ep"]:
        sizes["ep"] = 1
    stages = sizes["pp"] * sizes["vp"]
    model = {"preset": "mixtral-8x7b", "layers": 2 * stages, **job["recompute"]}
    if job["layout"]:
        model["layout"] = f"Ett|{'tt|' * (stages - 2)}ttL"
    states = job["states"] if job["zero"] else {}
    options = job["p2p"] if sizes["vp"] > 1 and sizes["pp"] > 2 else {}
    sharding = {"reduce_each": True} if job["zero"] >= 2 and job["overlap"] else {}
    sharding |= {"reshard": "always"} if job["zero"] == 3 else {}
    config = {
        "model": model, "device": "h100-sxm", "stack": "ideal",
        "parallel": {**sizes, "sequence_parallel": job["sequence_parallel"] and sizes["tp"] > 1},
        "batch": {
            "global": job["rounds"] * sizes["pp"] * sizes["dp"] * job["micro"], "micro": job["micro"],
            "sequence": 4096,
        },
        "schedule": {"name": "interleaved-1f1b" if sizes["vp"] > 1 else "1f1b"},
        "p2p": {"policy": "megatron", "options": options},
        "data_parallel": {"overlap": job["overlap"], **sharding},
        "costs": {
            "zero": job["zero"], "dispatcher": job["dispatcher"], "overlap_tp": job["overlap_tp"],
            "fused_routing": job["fused_routing"], "fused_loss": job["fused_loss"], **states,
        },
    }  # fmt: skip
    prepared = prepare(load(config), Registry.load())

    arguments = megatron_arguments(prepared.resolved.experiment, prepared.schedule)
    gpus = sizes["pp"] * sizes["tp"] * sizes["cp"] * sizes["dp"]
    found, _ = of_line(f"pretrain_gpt.py {arguments.text}", model="mixtral-8x7b", device="h100-sxm", gpus=gpus)

    expected = {axis: size for axis, size in sizes.items() if size > 1 or axis in {"pp", "dp"}}
    if sizes["tp"] > 1:
        expected |= {"sequence_parallel": job["sequence_parallel"], "etp": sizes["tp"]}
    assert found["parallel"] == expected
    assert found["batch"] == config["batch"]
    assert found["schedule"] == config["schedule"]
    assert found["data_parallel"] == config["data_parallel"]
    assert found.get("p2p", {}).get("options", {}) == options
    assert found["model"] == {
        **{key: value for key, value in model.items() if key != "layers"},
    }  # fmt: skip
    costs = dict(config["costs"])
    if sizes["ep"] == 1:
        del costs["dispatcher"], costs["fused_routing"]
    if sizes["tp"] == 1:
        costs.pop("overlap_tp")
    if not costs["fused_loss"]:
        del costs["fused_loss"]
    assert found["costs"] == costs


MIXTURE = (
    f"{JOB} --num-experts 8 --expert-model-parallel-size 2 --pipeline-model-parallel-size 2 --fp8-format hybrid "
    "--recompute-granularity selective --multi-latent-attention --mtp-num-layers 1 "
    "--moe-token-dispatcher-type flex"
)
TITAN = "--module llama3 --config llama3_8b --training.seq_len 4096 --parallelism.pipeline_parallel_degree 2"


def refusal(recipe: Recipe, values: dict[str, Any], registry: Registry) -> str:
    """Return the error of a recipe; empty if it is converted."""
    try:
        configuration(recipe, RecipeOptions(**values), registry)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("line", [JOB, MIXTURE, TITAN])
@pytest.mark.parametrize("value", [[1, 2], {"a": 1}, "x", -1])
def test_a_setting_with_any_value_is_converted_or_refused_in_one_line(line: str, value: Any) -> None:
    recipe = recipe_of_text(line, "line.txt")
    values = {"model": "mixtral-8x7b", "device": "h100-sxm", "gpus": 16}
    read, registry = set[str](), Registry.load()

    class Recorded(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            read.add(name)
            return super().get(name, default)

    configuration(replace(recipe, settings=Recorded(recipe.settings)), RecipeOptions(**values), registry)
    assert len(read) > 20
    refusals = {
        name: refusal(replace(recipe, settings={**recipe.settings, name: value}), values, registry)
        for name in read
    }
    assert [name for name, message in refusals.items() if "\n" in message] == []
