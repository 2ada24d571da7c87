"""Recipes of Megatron-Bridge with the settings of Megatron-LM's launch arguments.

Source: Megatron-Bridge 0.7 as of 22 August 2026: ``src/megatron/bridge/recipes``, ``training/comm_overlap.py``,
``training/mixed_precision.py`` and ``training/flex_dispatcher_backend.py`` beside them, and
``scripts/training/recipe_runner.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.config.schema import Preset
from pptrace.errors import ConfigError
from pptrace.search.launch_arguments import values_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.config.schema import Experiment
    from pptrace.search.launch_arguments import Arguments
    from pptrace.steps.schedule import Schedule

_RECIPES = {
    "llama2-7b": "llama2_7b", "llama3-8b": "llama3_8b", "llama3-70b": "llama3_70b", "llama3-405b": "llama31_405b",
    "deepseek-v2": "deepseek_v2", "deepseek-v3": "deepseek_v3", "kimi-k2": "kimi_k2", "gpt3-175b": "gpt3_175b",
    "qwen3-30b-a3b": "qwen3_30b_a3b", "qwen3-235b-a22b": "qwen3_235b_a22b", "gpt-oss-120b": "gpt_oss_120b",
}  # fmt: skip
"""First words of the library's pretraining recipes by model preset."""
_UNSET = {
    "model.virtual_pipeline_model_parallel_size": None, "model.expert_tensor_parallel_size": None,
    "model.pipeline_model_parallel_layout": None, "model.account_for_embedding_in_pipeline_split": False,
    "model.account_for_loss_in_pipeline_split": False, "model.num_layers_in_first_pipeline_stage": None,
    "model.num_layers_in_last_pipeline_stage": None, "model.microbatch_group_size_per_vp_stage": None,
    "model.sequence_parallel": False, "model.recompute_granularity": None, "model.recompute_method": None,
    "model.recompute_num_layers": None, "model.recompute_modules": None, "ddp.use_distributed_optimizer": False,
    "ddp.use_megatron_fsdp": False, "optimizer.use_precision_aware_optimizer": False,
    "optimizer.main_params_dtype": "fp32", "optimizer.exp_avg_dtype": "fp32", "optimizer.exp_avg_sq_dtype": "fp32",
    "comm_overlap.tp_comm_overlap": False, "comm_overlap.overlap_grad_reduce": False,
    "comm_overlap.overlap_moe_expert_parallel_comm": False, "comm_overlap.delay_wgrad_compute": False,
    "mixed_precision.grad_reduce_in_fp32": True,
}  # fmt: skip
"""Settings without their argument, since the library's recipe may have them."""
_SECTIONS = {
    "micro-batch-size": "train", "global-batch-size": "train", "use-megatron-fsdp": "ddp",
    "data-parallel-sharding-strategy": "ddp", "ckpt-format": "checkpoint", "tp-comm-overlap": "comm_overlap",
    "overlap-grad-reduce": "comm_overlap", "overlap-moe-expert-parallel-comm": "comm_overlap",
    "delay-wgrad-compute": "comm_overlap", "use-distributed-optimizer": "ddp",
    "use-precision-aware-optimizer": "optimizer", "main-params-dtype": "optimizer", "exp-avg-dtype": "optimizer",
    "exp-avg-sq-dtype": "optimizer", "num-distributed-optimizer-instances": "ddp",
    "outer-dp-sharding-strategy": "ddp",
}  # fmt: skip
"""Sections of the settings that have their argument's name; by default the model."""
_SETTINGS = {
    "num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "microbatch-group-size-per-virtual-pipeline-stage": "model.microbatch_group_size_per_vp_stage",
    "overlap-p2p-communication-warmup-flush": "model.overlap_p2p_comm_warmup_flush",
    "no-overlap-p2p-communication": "comm_overlap.overlap_p2p_comm",
    "grad-reduce-in-bf16": "mixed_precision.grad_reduce_in_fp32",
}
"""Settings that have another name than their argument."""
_OPPOSITES = {"no-overlap-p2p-communication", "grad-reduce-in-bf16"}
"""Arguments that make their setting false."""
_SAME_SETTINGS = {
    "model.seq_length": "dataset.seq_length",
    "ddp.use_distributed_optimizer": "optimizer.use_distributed_optimizer",
    "comm_overlap.overlap_grad_reduce": "ddp.overlap_grad_reduce",
}
"""Settings that the library keeps twice."""
_TYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}
_FP8_RECIPES = {
    "tensorwise": ("fp8cs", "fp8_current_scaling"), "delayed": ("fp8ds", "fp8_delayed_scaling"),
    "blockwise": ("fp8sc", "fp8_subchannel_scaling"),
}  # fmt: skip
_PRECISIONS = {
    "bf16": ("bf16", "bf16_mixed"), "fp16": ("fp16", "fp16_mixed"),
    "mxfp8": ("fp8mx", "bf16_with_mxfp8_mixed"), "nvfp4": ("nvfp4", "bf16_with_nvfp4_mixed"),
}  # fmt: skip
"""Words of recipes' names, and names of mixed precision."""
_HYBRID_EP_DEVICES = ("gb200", "gb300", "vr200")
"""Devices of NVLink domains of many nodes, for which the library takes HybridEP in place of DeepEP."""


def check_recipe(model: str | None) -> str:
    """Return the first words of the library's recipes of a model preset.

    Raises:
        ConfigError: the library has no recipe of the model.
    """
    if model not in _RECIPES:
        raise ConfigError(
            f"Megatron-Bridge has recipes of {', '.join(_RECIPES)}; -o run.sh writes Megatron-LM's arguments",
            key="model.preset",
        )
    return _RECIPES[model]


def bridge_recipe(experiment: Experiment, arguments: Arguments, table: Schedule, name: str) -> str:
    """Return a Python file with a recipe: the library's recipe of the model, with the settings of a plan.

    Args:
        experiment: the configuration with all options of its cost model.
        arguments: Megatron-LM's arguments of a step that it runs.
        table: the schedule's table.
        name: the name of the configuration.

    Raises:
        ConfigError: the library has no recipe of the model, or no mixed precision of its products.
    """
    parallel, model, device = experiment.parallel, experiment.model, experiment.device
    stem = check_recipe(model.preset if isinstance(model, Preset) else model)
    accelerator = (
        ((device.preset if isinstance(device, Preset) else device) or "gpu").removesuffix("-sxm").replace("-", "_")
    )
    tag, mixed_precision = _precision(experiment)
    gpus, chunks = parallel.tp * parallel.cp * parallel.dp * table.ranks, table.stages // table.ranks
    function, base = f"{stem}_pretrain_{gpus}gpu_{accelerator}_{tag}_config", f"{stem}_pretrain_config"
    settings = dict(_settings(arguments.words))
    settings["model.virtual_pipeline_model_parallel_size"] = chunks if chunks > 1 else None
    if settings.get("model.moe_token_dispatcher_type") == "flex":
        backend = "hybridep" if accelerator in _HYBRID_EP_DEVICES else "deepep"
        settings |= {"model.moe_flex_dispatcher_backend": backend, "model.moe_shared_expert_overlap": False}
    lines = [
        f'"""pptrace plan: {name}', "",
        f"Megatron-Bridge runs this file: torchrun --nproc-per-node N --nnodes N recipe.py, on {gpus} GPUs.",
        "Data and checkpoints are those of the library's recipe.",
        *arguments.notes, '"""', "",
        "import torch", f"from megatron.bridge.recipes import {base}",
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
        "from megatron.bridge.training.gpt_step import forward_step",
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
        "from megatron.bridge.training.pretrain import pretrain", "", "",
        f"def {function}():", f"    cfg = {base}()",
        f'    cfg.mixed_precision = get_mixed_precision_config("{mixed_precision}")',
        "    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)",
        *(f"    cfg.{key} = {_literal(key, value)}" for key, value in settings.items()),
        "    return cfg", "", "",
        'if __name__ == "__main__":', f"    pretrain({function}(), forward_step)", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _precision(experiment: Experiment) -> tuple[str, str]:
    """Return the word of a recipe's name for the precision, and the name of the library's mixed precision."""
    precision = values_of(experiment.model).get("precision") or "bf16"
    if precision in _PRECISIONS:
        return _PRECISIONS[precision]
    if precision != "fp8":
        known = ", ".join([*_PRECISIONS, "fp8"])
        raise ConfigError(f"Megatron-Bridge has mixed precision of {known}", key="model.precision")
    tag, scaling = _FP8_RECIPES[values_of(experiment.costs).get("fp8_recipe") or "tensorwise"]
    return tag, f"bf16_with_{scaling}_mixed"


def _settings(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of Megatron-LM's arguments, then those of absent arguments."""
    written = {}
    for argument, value in _arguments(words):
        setting = f"{_SECTIONS.get(argument, 'model')}.{argument.replace('-', '_')}"
        written[_SETTINGS.get(argument, setting)] = False if argument in _OPPOSITES else value
    for key, value in {**written, **{key: value for key, value in _UNSET.items() if key not in written}}.items():
        yield key, value
        if key in _SAME_SETTINGS:
            yield _SAME_SETTINGS[key], value


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Yield arguments by name: true without a value, a list for --recompute-modules."""
    names = [index for index, word in enumerate(words) if word.startswith("--")]
    for index, end in zip(names, [*names[1:], len(words)], strict=True):
        name, values = words[index].removeprefix("--"), words[index + 1 : end]
        numbers = [int(value) if value.isdecimal() else value for value in values]
        yield name, numbers if name == "recompute-modules" else numbers[0] if numbers else True


def _literal(key: str, value: Any) -> str:
    return _TYPES[value] if key.endswith("_dtype") else repr(value).replace("'", '"')
