"""Jobs of torchtitan become configurations: from TOML, from its registry of configurations, and from arguments."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pptrace.api import simulate
from pptrace.plugin import ConfigError, Registry
from pptrace_frameworks.recipe_files import read_recipe, recipe_names, recipe_of_text
from pptrace_frameworks.recipes import RecipeOptions, command, configuration

if TYPE_CHECKING:
    from pathlib import Path

TOML = """\
    [job]
    description = "a pipeline"
    [model]
    name = "llama3"
    flavor = "70B"
    converters = ["quantize.linear.float8"]
    [training]
    local_batch_size = 16
    seq_len = 4096
    max_norm = 1.0
    enable_cpu_offload = true
    [parallelism]
    data_parallel_replicate_degree = 2
    data_parallel_shard_degree = 4
    fsdp_reshard_after_forward = "always"
    tensor_parallel_degree = 4
    enable_async_tensor_parallel = true
    pipeline_parallel_degree = 4
    pipeline_parallel_schedule = "Interleaved1F1B"
    pipeline_parallel_microbatch_size = 2
    [activation_checkpoint]
    mode = "selective"
    selective_ac_option = "op"
    [compile]
    enable = true
    components = ["model"]
    [quantize.linear.float8]
    enable_fsdp_float8_all_gather = true
    """
OLD_TOML = """\
    [model]
    name = "llama3"
    flavor = "8B"
    [training]
    batch_size = 4
    seq_len = 8192
    data_parallel_shard_degree = 1
    data_parallel_replicate_degree = 8
    tensor_parallel_degree = 1
    compile = true
    [experimental]
    pipeline_parallel_degree = 2
    pipeline_parallel_microbatches = 2
    pipeline_parallel_schedule = "gpipe"
    pipeline_parallel_split_points = ["layers.20"]
    [float8]
    enable_float8_linear = true
    [activation_checkpoint]
    mode = "selective"
    selective_ac_option = "4"
    """
REGISTRY = """\
    from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
    from torchtitan.components.quantization import MXFP8LinearConverter
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    from torchtitan.trainer import Trainer

    from . import model_registry

    def llama3_8b() -> Trainer.Config:
        model_spec = model_registry("8B", attn_backend="flex")
        return Trainer.Config(
            loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config()),
            hf_assets_path="./assets",
            model_spec=model_spec,
            training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=10),
            parallelism=ParallelismConfig(tensor_parallel_degree=2),
            activation_checkpoint=SelectiveAC.Config(),
        )

    def llama3_8b_mxfp8() -> Trainer.Config:
        config = llama3_8b()
        config.compile = CompileConfig(enable=True, enable_async_tensor_parallel=True, components=["model"])
        config.model_spec = model_registry("8B", converters=[MXFP8LinearConverter.Config(fqns=["layers"])])
        config.activation_checkpoint = FullAC.Config()
        config.loss = CrossEntropyLoss.Config()
        return config

    def other() -> int:
        return 1
    """
SCRIPT = """\
    NGPU=${NGPU:-"16"}
    CONFIG=${CONFIG:-"llama3_8b"}
    torchrun --nproc_per_node=${NGPU} --role rank --tee 3 \\
    -m torchtitan.train --module llama3 --config ${CONFIG} "$@"
    """


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text), encoding="utf-8")
    return file


def converted(file: Path, *words: str, **values: Any) -> tuple[dict[str, Any], list[str]]:
    given_values = RecipeOptions(**{"device": "h100-sxm", **values})
    sections, notes = configuration(read_recipe(file, *words), given_values, Registry.load())
    return sections, [note for note in notes if "has no network" not in note]


def of_line(text: str, **values: Any) -> tuple[dict[str, Any], list[str]]:
    given_values = RecipeOptions(**{"model": "llama3-8b", "device": "h100-sxm", **values})
    return configuration(recipe_of_text(f"torchtitan.train {text}", "line.txt"), given_values, Registry.load())


def test_settings_in_toml_become_keys(tmp_path: Path) -> None:
    sections, notes = converted(written(tmp_path / "job.toml", TOML))

    assert sections == {
        "stack": "torchtitan-0.2", "device": "h100-sxm",
        # 80 layers, embedding and LM head are 82 items in 8 stages.
        "model": {
            "preset": "llama3-70b", "precision": "fp8", "recompute": "selective", "fused_activation": True,
            "fused_norms": True, "layers_per_stage": [10, 11, 10, 10, 10, 10, 10, 9],
        },
        "parallel": {"pp": 4, "tp": 4, "dp": 8, "vp": 2},
        "batch": {"global": 128, "micro": 2, "sequence": 4096}, "schedule": {"name": "interleaved-1f1b"},
        "data_parallel": {"shard": 4, "reshard": "always"},
        "costs": {"overlap_tp": True, "fp8_param_gather": True},
    }  # fmt: skip
    assert notes == ["without effect: enable_cpu_offload"]


def test_settings_of_the_first_releases_become_keys(tmp_path: Path) -> None:
    sections, notes = converted(written(tmp_path / "job.toml", OLD_TOML))

    assert sections == {
        "stack": "torchtitan-0.1", "device": "h100-sxm",
        "model": {
            "preset": "llama3-8b", "precision": "fp8", "recompute": "full", "recompute_method": "block",
            "recompute_num_layers": 4, "layers_per_stage": [20, 12], "fused_activation": True, "fused_norms": True,
        },
        "parallel": {"pp": 2, "dp": 8}, "batch": {"global": 32, "micro": 2, "sequence": 8192},
        "schedule": {"name": "gpipe"}, "costs": {"zero": 0, "fused_loss": "compiled"},
    }  # fmt: skip
    assert notes == []


def test_functions_of_a_registry_are_recipes(tmp_path: Path) -> None:
    file = written(tmp_path / "torchtitan/models/llama3/config_registry.py", REGISTRY)

    first, _ = converted(file, "llama3_8b", gpus=16)
    second, notes = converted(file, "llama3_8b_mxfp8", gpus=16)

    assert recipe_names(file) == ["llama3_8b", "llama3_8b_mxfp8"]
    common = {
        "stack": "torchtitan-0.3", "device": "h100-sxm", "parallel": {"pp": 1, "tp": 2, "dp": 8},
        "batch": {"global": 16, "micro": 2, "sequence": 8192}, "schedule": {"name": "1f1b"},
    }  # fmt: skip
    assert first == common | {"model": {"preset": "llama3-8b", "recompute": "selective"}}
    model = {"precision": "mxfp8", "recompute": "full", "fused_activation": True, "fused_norms": True}
    assert second == common | {
        "model": {"preset": "llama3-8b", **model}, "costs": {"loss_chunks": 1, "overlap_tp": True},
    }  # fmt: skip
    assert notes == []


def test_a_configuration_that_other_code_returns_is_read(tmp_path: Path) -> None:
    text = """\
        from torchtitan.trainer import Trainer
        from . import made, model_registry

        def llama3_8b() -> Trainer.Config:
            config = made()
            config.model_spec = model_registry("8B")
            config.training.local_batch_size = 4
            config.loss = ChunkedLossWrapper.Config(num_chunks=4)
            return config
        """
    file = written(tmp_path / "torchtitan/models/llama3/config_registry.py", text)

    sections, _ = converted(file, "llama3_8b", gpus=8)

    assert sections["stack"] == "torchtitan-0.3"
    assert sections["batch"] == {"global": 32, "micro": 4, "sequence": 2048}
    assert sections["costs"] == {"loss_chunks": 4}


def test_a_script_names_a_registry_and_has_further_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "torchtitan/models/llama3/config_registry.py", REGISTRY)
    script = written(tmp_path / "run_train.sh", SCRIPT)
    monkeypatch.setenv("NGPU", "8")

    plain, notes = converted(script)
    _, sized = converted(script, "--parallelism.data_parallel_shard_degree", "4")
    changed, _ = converted(
        script, "--parallelism.pipeline_parallel_degree", "2", "--parallelism.no-enable_sequence_parallel",
        "activation-checkpoint:none", "--training.local-batch-size=4",
    )  # fmt: skip

    assert plain["parallel"] == {"pp": 1, "tp": 2, "dp": 4}
    assert notes == sized == []
    assert changed["parallel"] == {"pp": 2, "tp": 2, "dp": 2, "sequence_parallel": False}
    assert changed["batch"] == {"global": 8, "micro": 1, "sequence": 8192}
    assert changed["model"] == {"preset": "llama3-8b", "recompute": "none"}


def test_a_script_names_a_file_in_toml(tmp_path: Path) -> None:
    written(tmp_path / "train_configs/llama3_70b.toml", TOML)
    script = written(
        tmp_path / "scripts/run.sh",
        'CONFIG_FILE=${CONFIG_FILE:-"./train_configs/llama3_70b.toml"}\n'
        "torchrun -m torchtitan.train --job.config_file ${CONFIG_FILE} --training.seq_len 8192 $@\n",
    )

    sections, _ = converted(script)

    assert sections["model"]["preset"] == "llama3-70b"
    assert sections["batch"]["sequence"] == 8192


def test_batches_of_the_main_branch_are_in_tokens() -> None:
    sections, _ = of_line(
        "--training.num_tokens_per_microbatch_per_dp_rank 16384 --training.max_context_length 8192 "
        "--parallelism.num_pp_microbatches 8 --parallelism.pipeline_parallel_degree 2 "
        "--parallelism.module_fqns_per_model_part [['tok_embeddings','layers.0'],['layers.1','layers.2','norm']]",
        gpus=8,
    )

    assert sections["stack"] == "torchtitan-main"
    assert sections["batch"] == {"global": 64, "micro": 2, "sequence": 8192}
    assert sections["parallel"] == {"pp": 2, "dp": 4}
    assert sections["model"]["layers_per_stage"] == [1, 2]


def test_modules_of_stages_in_toml_are_layers(tmp_path: Path) -> None:
    text = """\
        [parallelism]
        pipeline_parallel_degree = 2
        module_fqns_per_model_part = [["tok_embeddings", "layers.0", "layers.1"], ["layers.2", "norm", "output"]]
        """

    sections, _ = converted(written(tmp_path / "job.toml", text), gpus=4, model="llama3-8b")

    assert sections["model"]["layers_per_stage"] == [2, 1]


@pytest.mark.parametrize(
    ("model", "flavor", "preset"),
    [
        ("deepseek_v3", "671B", "deepseek-v3"), ("deepseek_v3", "16B", "deepseek-v2-lite"),
        ("qwen3", "30B-A3B", "qwen3-30b-a3b"), ("gpt_oss", "120b", "gpt-oss-120b"),
        ("llama4", "17bx128e", "llama4-maverick"),
    ],
)  # fmt: skip
def test_a_flavor_selects_the_preset(tmp_path: Path, model: str, flavor: str, preset: str) -> None:
    text = f'[model]\nname = "{model}"\nflavor = "{flavor}"\n'

    assert converted(written(tmp_path / "job.toml", text), gpus=8)[0]["model"]["preset"] == preset


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[model]\nname = "deepseek_v3"\nflavor = "debugmodel"\n',
            "no model preset is in the name deepseek_v3debug",
        ),
        ("[training]\nseq_len = 1\n", "no model preset is in the name job: add --model"),
        (
            '[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "zigzag"\n',
            "must be 1F1B, GP",
        ),
        (
            "[parallelism]\npipeline_parallel_degree = 2\npipeline_parallel_microbatch_size = 3\n",
            "8 is not a mult",
        ),
        ("[parallelism]\ndata_parallel_replicate_degree = 3\n", "3 groups of equal shards are not 8 replicas"),
        (
            "[parallelism]\ndata_parallel_replicate_degree = 8\ndata_parallel_shard_degree = 4\n",
            "8 groups of 4 shards are not 8 replicas",
        ),
        ("[parallelism]\npipeline_parallel_degree = 8\npipeline_parallel_layers_per_stage = 3\n", "12 stages are"),
        ('[model]\nconverters = ["lora"]\n', "fine-tuning of adapters is not modelled"),
        ("[training\n", "is not TOML"),
        ("training = 5\n", "training: must be a section"),
        ("[training]\nseq_len = 0\n", "seq_length: must be 1 or more, not 0"),
        ("[training]\nlocal_batch_size = 0\n", "local_batch_size: must be 1 or more, not 0"),
        ("[parallelism]\ndata_parallel_shard_degree = 0\n", "1 groups of 0 shards are not 8 replicas"),
        ("[parallelism]\npipeline_parallel_microbatches = 9\n", "9 are more than 8 sequences"),
        ("[parallelism]\npipeline_parallel_layers_per_stage = -1\n", "must be 1 or more, not -1"),
        ("[parallelism]\nmodule_fqns_per_model_part = 5\n", "must be a list of modules for each stage, not 5"),
    ],
)
def test_what_cannot_be_converted_is_an_error_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = written(tmp_path / "job.toml", text)
    model = "" if "model preset" in message else "llama3-8b"

    with pytest.raises(ConfigError, match=rf"job\.toml: .*{message}") as caught:
        converted(file, gpus=8, model=model)

    assert "\n" not in str(caught.value)


def test_a_configuration_that_is_not_there_is_an_error_or_a_note() -> None:
    with pytest.raises(ConfigError, match=r"names missing\.toml, which is not there: give its path"):
        of_line("--job.config_file missing.toml --training.seq_len 8192", gpus=8)

    _, notes = of_line("--module llama3 --config llama3_8b --training.seq_len 8192", gpus=8)

    assert any(note.startswith("without the settings of llama3_8b: torchtitan/models/llama3/") for note in notes)


def test_the_command_prints_a_configuration_that_runs(tmp_path: Path) -> None:
    file = written(tmp_path / "llama3.toml", TOML)
    arguments = [str(file), "--device", "h100-sxm", "-o", str(tmp_path / "job.yaml")]
    words = ["--", "--parallelism.pipeline_parallel_schedule=1F1B"]

    CliRunner().invoke(command, [*arguments, *words], catch_exceptions=False)
    run = simulate(tmp_path / "job.yaml", sets=["network=nvlink"])

    assert (tmp_path / "job.yaml").read_text(encoding="utf-8").startswith(f"# pptrace recipe {file}\nstack:")
    assert run.metrics.step_ns > 0
