"""Configurations of pptrace from the settings of a recipe, and the command ``pptrace recipe``.

Sources: Megatron-LM core 0.19, ``megatron/training/arguments.py``, ``megatron/core/model_parallel_config.py`` and
``megatron/core/transformer/transformer_config.py``; Megatron-Bridge 0.1 to 0.6,
``scripts/performance/utils/overrides.py`` (0.1 and 0.2: ``helpers.py``) and
``src/megatron/bridge/perf_recipes/_common.py``.
"""

from __future__ import annotations

import re
import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from pptrace.config.yaml_document import yaml_text
from pptrace.plugin import ConfigError, Registry, print_or_write
from pptrace_frameworks.recipe_files import Settings, read_recipe, recipe_names, recipe_of_text
from pptrace_frameworks.recipe_programs import evaluate_expression
from pptrace_frameworks.torchtitan import titan_notes, titan_sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pptrace_frameworks.recipe_files import Recipe

_ARGUMENT_DEFAULTS: Mapping[str, Any] = {
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
    "expert_model_parallel_size": 1, "sequence_parallel": False, "use_distributed_optimizer": False,
    "overlap_grad_reduce": False, "tp_comm_overlap": False, "moe_token_dispatcher_type": "allgather",
    "micro_batch_size": 1, "moe_router_fusion": False, "moe_permute_fusion": False, "num_query_groups": 1,
}  # fmt: skip
"""Defaults of Megatron-LM's arguments, where a software stack has another value."""
_MODULES = ("core_attn", "mla_up_proj", "layernorm", "mlp", "moe", "moe_act", "shared_experts", "mhc")
"""Modules of --recompute-modules with an effect here."""
_VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "nemotron_2_256k": 256000}
"""Tokens of tokenizers whose size follows from the name of their kind or file."""
_PRECISIONS = (
    (r"nvfp4|fp4", "nvfp4"), (r"mxfp8|fp8[-_]?mx", "mxfp8"), (r"fp8", "fp8"), (r"bf16", "bf16"), (r"fp16", "fp16"),
)  # fmt: skip
"""Precisions by the words for them in names, the most special first."""
_SCALINGS = (
    (r"fp8[-_]?(cs|current)|tensorwise|\bcs\b", "tensorwise"),
    (r"fp8[-_]?(sc|ss|subchannel)|blockwise", "blockwise"), (r"fp8[-_]?(ds|delayed)|delayed|\bds\b", "delayed"),
)  # fmt: skip
"""Recipes of FP8 by the words for them in names and in ``fp8_recipe``."""
_SHARDS = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO's stages by their names in Megatron-FSDP."""
_PLACES = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Letters of --pipeline-model-parallel-layout."""
_SEQUENCES = (("llama", 8192), ("", 4096))
"""Tokens in a sequence by the first letters of a model, in Megatron-Bridge's ``*_llm_pretrain.py`` and NeMo 2."""
_STATE_TYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_APART = (
    "accelerator", "accumulate_grad", "activation_func", "adam", "add_", "apex", "apply_wd", "async",
    "auto_detect", "average_in", "betas", "bf16", "bucket_cap", "calculate_per_token", "check_",
    "checkpoint_dir", "checkpoint_path", "ckpt", "clip", "completion", "constant_steps", "contiguous",
    "cross_attention", "crossattn", "csa_compress_rotary", "cuda_graph_warmup", "data", "deallocate_pipeline",
    "decoupled", "devices", "dist", "dsa_indexer_loss", "end_step", "eval", "exit", "extra_loggers",
    "finetune", "fp8_amax", "fp8_interval", "fp8_margin", "gated_", "gc_interval", "grad_allreduce",
    "gradient_as", "gradient_clip", "group_query", "hf_", "high_priority", "hysteresis", "init",
    "initial_loss", "is_hybrid", "keep_mtp", "layernorm", "limit_", "lion", "load", "log", "loss", "lr",
    "make_vocab", "manual_gc", "master", "max_pos", "max_steps", "max_time", "mcore_gpt", "megatron_amp",
    "merge", "min_loss", "min_lr", "mock", "moe_aux", "moe_router_bias", "moe_router_dtype",
    "moe_router_enable", "moe_router_force", "moe_router_load", "moe_router_padding", "moe_router_score",
    "moe_router_topk_scaling", "moe_z_loss", "mtp_eval",
    "mtp_hybrid", "mtp_loss", "muon_extra", "muon_fp32", "muon_momentum", "muon_nesterov", "muon_scal",
    "name", "native_amp", "nnodes", "no_", "node", "norm", "nproc", "num_gpus_per", "num_nodes",
    "num_tokenizer", "num_workers", "override_opt", "pad_cu", "pad_seq", "parallel_output",
    "position_embedding", "post_process", "pre_process", "profile", "prompt", "ranks", "rdzv", "rope",
    "rotary", "save", "seed", "separator", "should_pad", "skip_warmup", "split", "start_step", "strip",
    "tensorboard", "tiktoken", "timing", "token", "tp_comm_bootstrap", "trace", "train", "truncation",
    "use_checkpoint", "use_scaled_init", "use_te_rng", "val_check", "wandb", "warmup_steps", "weight_decay",
    "yarn",
)  # fmt: skip
"""Settings of convergence, files, logs and processes, by the first letters of their names."""
_ASSUMED: Mapping[str, tuple[Any, ...]] = {
    "apply_rope_fusion": (True,), "bias_activation_fusion": (True,),
    "bias_dropout_fusion": (True,), "checkpoint_num_layers": (1,), "fp4_recipe": ("nvfp4",),
    "fp8_wgrad": (True,), "mamba_chunk_size": (128,),
    "masked_softmax_fusion": (True,), "moe_grouped_gemm": (True,), "overlap_param_gather": (True,),
    "params_dtype": ("bfloat16",), "persist_layer_norm": (True,), "pipeline_dtype": ("bfloat16",),
    "use_fused_weighted_squared_relu": (True,),
}  # fmt: skip
"""Settings that the costs assume to have one of these values. Another value has no effect, and a note."""
_VALUES: Mapping[str, tuple[str, ...]] = {
    "attention_backend": ("auto", "flash", "fused", "unfused", "local"),
    "cross_entropy_fusion_impl": ("native", "te"),
    "cuda_graph_impl": ("none", "local", "transformer_engine", "full_iteration"),
    "expert_parallel_comm_backend": ("standard", "deepep"),
    "moe_flex_dispatcher_backend": ("none", "deepep", "hybridep"),
    "moe_token_dispatcher_type": ("allgather", "alltoall", "alltoall_seq", "flex"),
    "optimizer": ("adam", "muon", "dist_muon"),
    "recompute_granularity": ("full", "selective"),
    "recompute_method": ("uniform", "block"),
    "transformer_impl": ("local", "transformer_engine"),
}
"""Settings that have one of these values. Another value has no effect, and a note."""
_SIZES: Mapping[str, str] = {
    "num_layers": "layers", "hidden_size": "hidden", "ffn_hidden_size": "ffn", "num_attention_heads": "heads",
    "num_query_groups": "kv_heads", "kv_channels": "head_dim", "num_moe_experts": "num_experts",
    "moe_ffn_hidden_size": "expert_ffn", "moe_shared_expert_intermediate_size": "shared_ffn",
    "moe_router_topk": "top_k", "moe_router_num_groups": "expert_groups", "moe_router_group_topk": "top_groups",
    "mamba_num_heads": "mamba.heads", "mamba_head_dim": "mamba.head_dim",
    "mamba_state_dim": "mamba.state", "mamba_num_groups": "mamba.groups",
}  # fmt: skip
"""Settings of sizes by the keys of a model preset."""
_MAMBA: Mapping[str, int] = {"mamba.head_dim": 64, "mamba.state": 128, "mamba.groups": 8}
"""Sizes of Mamba-2 layers that a preset need not have."""
_ALWAYS = frozenset({"pp", "dp", "etp"})
"""Axes of parallelism that a configuration has even with one process."""
_PAIRS = "overlap_moe_expert_parallel_comm"
"""The setting of overlapped pairs."""
_GRAPH_PARTS = ("attn", "mamba", "mlp", "moe", "moe_router", "moe_preprocess")
"""Scopes of CUDA graphs that are parts of a layer."""


class RecipeOptions(Struct, frozen=True, kw_only=True):
    """What a user gives in place of what the recipe says, or because it does not say it."""

    model: str = ""
    device: str = ""
    gpus: int = 0
    stack: str = ""


def configuration(recipe: Recipe, options: RecipeOptions, registry: Registry) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration that simulates a recipe, and notes on what has no effect.

    Raises:
        ConfigError: the model, the device or the number of GPUs is unknown, or a setting has an invalid value.
    """
    settings = Settings(recipe.settings, _ARGUMENT_DEFAULTS if recipe.is_command else {})
    try:
        return _configuration(recipe, settings, options, registry)
    except ConfigError as error:
        if error.file:
            raise
        raise ConfigError(error.message, key=error.key, file=recipe.file) from None


def configuration_text(recipe: Recipe, sections: Mapping[str, Any]) -> str:
    """Return a configuration as YAML, with the recipe's file and name at its head."""
    name = "" if recipe.name in {recipe.file, Path(recipe.file).stem} else recipe.name
    return yaml_text(sections, head=f"# pptrace recipe {recipe.file} {name}".rstrip() + "\n")


def _configuration(
    recipe: Recipe, settings: Settings, options: RecipeOptions, registry: Registry
) -> tuple[dict[str, Any], list[str]]:
    parallel = _parallel(settings, options)
    model, layers = _model(recipe, settings, options, registry)
    parallel["vp"] = _chunks(settings, parallel["pp"], layers[0])
    preset = registry.models[model["preset"]].offer.values if model.get("preset") in registry.models else {}
    default = parallel["tp"] if recipe.is_command and parallel["tp"] > 1 else 0
    etp = settings.count("expert_tensor_parallel_size") or default
    if etp and (model.get("num_experts") or preset.get("num_experts")):
        parallel["etp"] = etp
    notes: list[str]
    if recipe.is_torchtitan:
        sections, notes = titan_sections(settings, parallel, layers[0]), titan_notes(settings)
    else:
        sections, notes = _megatron_sections(recipe, settings, parallel, layers), _notes(settings, parallel)
    if parallel["pp"] * parallel["dp"] > 1:
        notes.insert(0, "a recipe has no network: add network or cluster, or give --cluster")
    values = {
        "stack": options.stack or recipe.stack,
        "model": model | sections.pop("model"),
        "device": options.device or _found("device", recipe, registry.devices, "--device"),
        "parallel": {
            axis: size for axis, size in parallel.items() if size is True or size != 1 or axis in _ALWAYS
        },
        **sections,
    }
    unknown = [
        f"{name} {value}"
        for name, known in _VALUES.items()
        if (value := settings.values.get(name)) and str(value).lower() not in known and "$" not in str(value)
    ]
    if unknown:
        notes.append(f"unknown values without effect: {', '.join(unknown)}")
    ambiguous = sorted(recipe.ambiguous & settings.used)
    if ambiguous:
        notes.append(f"several values, of which the last one is used: {', '.join(ambiguous)}")
    return {key: value for key, value in values.items() if value}, [*recipe.notes, *settings.notes, *notes]


def _megatron_sections(
    recipe: Recipe, settings: Settings, parallel: Mapping[str, Any], layers: tuple[int, int]
) -> dict[str, dict[str, Any]]:
    """Return the sections of the configuration except stack, device and parallel sizes."""
    model = _split(settings, layers, parallel["pp"], parallel["vp"]) | _recomputation(settings)
    offloaded = settings.count("cpu_offloading_num_layers")
    model |= {"offloaded_layers": offloaded} if offloaded else {}
    if settings.read("fine_grained_activation_offloading"):
        model["offload_modules"] = settings.words("offload_modules")
    precision = _precision(recipe, settings)
    model |= {"precision": precision} if precision else {}
    model |= _bf16_layers(settings)
    if settings.read("fp8_output_proj") and precision == "mxfp8":
        model["product_precisions"] = {"head": precision}
    if settings.read("fp8_dot_product_attention") or settings.read("fp8_multi_head_attention"):
        model["fp8_attention"] = True
    backend, uses_flash = settings.read("attention_backend"), settings.read("use_flash_attn")
    if str(backend) in {"unfused", "local"} or (settings.read("transformer_impl") == "local" and not uses_flash):
        model["flash_attention"] = False
    if settings.read("peft", "none") != "none":
        raise ConfigError("fine-tuning of adapters is not modelled", key="peft")
    return {
        "model": model,
        "batch": _batch(settings, parallel),
        "schedule": _schedule(settings, parallel),
        "p2p": _messages(settings, parallel),
        "data_parallel": _reduction(settings, parallel),
        "costs": _costs(recipe, settings, parallel),
    }


def _notes(settings: Settings, parallel: Mapping[str, Any]) -> list[str]:
    notes = []
    group = settings.count("microbatch_group_size_per_vp_stage")
    if group and group != parallel["pp"]:
        notes.append(
            f"microbatch_group_size_per_vp_stage {group} has no effect: groups have {parallel['pp']} here"
        )
    if _has_weight_shards(settings) and parallel["pp"] > 1:
        notes.append("tensor_parallel_num_weight_shards: a pipeline gathers whole stages here")
    modules = [module for module in settings.words("recompute_modules") if module not in _MODULES]
    if modules:
        notes.append(f"recompute_modules without effect: {', '.join(modules)}")
    unresolved = [
        f"{name} {value}" for name, value in settings.values.items()
        if "$" in str(value) and not name.startswith(_APART)
    ]  # fmt: skip
    if unresolved:
        notes.append(f"variables without a value: {', '.join(unresolved)}")
    unused = sorted(
        name for name, value in settings.values.items()
        if name not in settings.used and not name.startswith(_APART)
        and (value not in _ASSUMED[name] if name in _ASSUMED else value)
    )  # fmt: skip
    if unused:
        notes.append(f"without effect: {', '.join(unused)}")
    return notes


def _parallel(settings: Settings, options: RecipeOptions) -> dict[str, Any]:
    tp = settings.size("tensor_model_parallel_size")
    pp = settings.size("pipeline_model_parallel_size")
    cp = settings.size("context_parallel_size")
    ep = settings.size("expert_model_parallel_size")
    gpus = options.gpus or settings.count("num_gpus") or _launched(settings)
    replicas, rest = divmod(gpus, tp * pp * cp)
    if not gpus:
        raise ConfigError("the number of GPUs is unknown: add --gpus", key="num_gpus")
    if rest or not replicas:
        raise ConfigError(
            f"{gpus} GPUs are not a multiple of tp x pp x cp, {tp * pp * cp}: give --gpus", key="num_gpus"
        )
    parallel = {"pp": pp, "tp": tp, "cp": cp, "dp": replicas, "ep": ep, "vp": 1}
    sequence = settings.read("sequence_parallel")
    if sequence is not None and tp > 1:
        parallel["sequence_parallel"] = bool(sequence)
    return parallel


def _launched(settings: Settings) -> int:
    """Return the number of processes that torchrun starts; 0 if it is not in the line."""
    if "nproc_per_node" not in settings:
        return settings.count("world_size")
    return settings.count("nproc_per_node") * settings.count("nnodes", 1)


def _chunks(settings: Settings, ranks: int, layers: int) -> int:
    """Return the chunks of the model on each rank.

    Raises:
        ConfigError: the layers do not fill chunks of the given size.
    """
    per_stage = settings.count("num_layers_per_virtual_pipeline_stage")
    layout = settings.read("pipeline_model_parallel_layout")
    chunks = settings.size("virtual_pipeline_model_parallel_size")
    if per_stage and layers and ranks > 1:
        chunks, rest = divmod(layers + sum(_counted_ends(settings)), ranks * per_stage)
        if rest or chunks < 1:
            message = f"{layers} layers do not fill stages of {per_stage} on {ranks} ranks"
            raise ConfigError(message, key="num_layers_per_virtual_pipeline_stage")
    elif chunks == 1 and isinstance(layout, str | list):
        chunks = max((len(layout) if isinstance(layout, list) else _stages_of(layout)) // ranks, 1)
    return chunks if ranks > 1 else 1


def _counted_ends(settings: Settings) -> tuple[bool, bool]:
    """Return whether embedding and LM head count as a layer each where layers are divided into stages."""
    embedding, loss = (
        bool(settings.read(f"account_for_{end}_in_pipeline_split")) for end in ("embedding", "loss")
    )
    return embedding, loss


def _stages_of(layout: str) -> int:
    """Return the number of stages of a layout: bars, where ``(…)*n`` repeats."""
    repeated = re.compile(r"\(([^)]*)\)\*(\d{1,4})")
    expanded = repeated.sub(lambda match: match[1] * int(match[2]), layout)
    return len([stage for stage in expanded.split("|") if stage])


def _batch(settings: Settings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    total = settings.count("global_batch_size")
    micro = settings.size("micro_batch_size")
    if not total:
        total = micro * parallel["dp"]
    sequence = settings.count("seq_length")
    return {"global": total, "micro": micro, **({"sequence": sequence} if sequence else {})}


def _schedule(settings: Settings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    if settings.read(_PAIRS) and parallel["ep"] > 1:
        group = settings.count("microbatch_group_size_per_vp_stage")
        options = {"options": {"round": group}} if group > parallel["pp"] else {}
        return {"name": "combined-1f1b", **options}
    return {"name": "interleaved-1f1b" if parallel["vp"] > 1 else "1f1b"}


def _messages(settings: Settings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message policy where a setting differs from what follows from the number of chunks."""
    overlap, flush = settings.read("overlap_p2p_comm"), settings.read("overlap_p2p_comm_warmup_flush")
    settings.read("batch_p2p_comm")
    options: dict[str, Any] = {}
    if parallel["vp"] > 1:
        options |= {"overlap_p2p_comm": False} if overlap is False else {}
        options |= {"overlap_p2p_comm_warmup_flush": True} if flush else {}
    return {"policy": "megatron", "options": options} if options else {}


def _reduction(settings: Settings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of reductions; Megatron-FSDP shards gradients and weights as soon as it can."""
    if _has_weight_shards(settings):
        return _weight_shard_reduction(settings, parallel)
    overlap, zero = settings.read("overlap_grad_reduce"), _zero(settings) or 0
    reduction: dict[str, Any] = {} if overlap is None else {"overlap": bool(overlap)}
    if zero >= _SHARDS["optim_grads"] and overlap is not False:
        reduction["reduce_each"] = True
    if zero == _SHARDS["optim_grads_params"]:
        reduction["reshard"] = "always"
    groups = _shard_groups(settings, parallel)
    if zero and groups > 1:
        reduction["shard"] = parallel["dp"] // groups
    return reduction


def _weight_shards(settings: Settings) -> tuple[int, int]:
    """Return the replicas that share a dense weight, and an expert's, with generalized tensor parallelism (GTP).

    Arguments count the shards of both kinds of tensor parallelism, and configurations of Megatron-Bridge those of
    GTP alone (``resolve_tensor_parallel_weight_shards`` in Megatron-LM's ``model_parallel_config.py``).

    Raises:
        ConfigError: shards that are no multiple of the tensor-parallel size.
    """
    tp = settings.size("tensor_model_parallel_size")
    sizes = {"": tp, "expert_": settings.count("expert_tensor_parallel_size") or tp}
    replicas = []
    for prefix, size in sizes.items():
        key = f"{prefix}tensor_parallel_num_weight_shards"
        shards = settings.count(key) or size * settings.size(f"{prefix}gtp_weight_remat_size")
        if shards % size and size % shards:  # Megatron-LM's guide has fewer shards for a model without experts
            raise ConfigError(f"{shards} is not a multiple of the tensor-parallel size, {size}", key=key)
        replicas.append(max(shards // size, 1))
    return replicas[0], replicas[1]


def _has_weight_shards(settings: Settings) -> bool:
    return max(_weight_shards(settings)) > 1


def _weight_shard_reduction(settings: Settings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of GTP, which gathers weights and scatters gradients asynchronously in each pass."""
    settings.read("overlap_grad_reduce")
    shard, expert_shard = _weight_shards(settings)
    reduction: dict[str, Any] = {"overlap": True, "shard": shard}
    if parallel["ep"] > 1 or expert_shard > 1:
        reduction["expert_shard"] = expert_shard
    return reduction | (
        {"units": "weights"} if parallel["pp"] == 1 else {"reduce_each": True, "reshard": "always"}
    )


def _shard_groups(settings: Settings, parallel: Mapping[str, Any]) -> int:
    """Return the number of groups of replicas that each share all sharded state; 1 if they do not divide them."""
    groups = settings.size("num_distributed_optimizer_instances")
    return groups if parallel["dp"] % groups == 0 else 1


def _costs(recipe: Recipe, settings: Settings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    costs = _state(recipe, settings, parallel)
    overlap = settings.read("tp_comm_overlap")
    if parallel["tp"] > 1 and (not overlap or recipe.is_command) and overlap is not None:
        costs["overlap_tp"] = bool(overlap)  # where it is true, a stack of Megatron-Bridge has it by device
    loss, is_fused = settings.read("cross_entropy_fusion_impl"), settings.read("cross_entropy_loss_fusion")
    if loss is not None:
        costs["fused_loss"] = loss == "te" and is_fused is not False
    if settings.read("attention_backend") == "flash":
        costs["attention"] = "flash-2"
    costs |= _scaling(recipe, settings)
    exchanges = _dispatcher(recipe, settings) | _fused_routing(settings)
    if parallel["ep"] > 1:
        costs |= exchanges
    graphs = _graphs(settings)
    if graphs is not None:
        costs["cuda_graphs"] = graphs
    if settings.read(_PAIRS) and "delay_wgrad_compute" in settings:
        costs["delay_wgrad"] = bool(settings.read("delay_wgrad_compute"))
    return costs


def _state(recipe: Recipe, settings: Settings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sharding and the precisions of gradients and of optimizer state."""
    costs: dict[str, Any] = {}
    zero = _zero(settings)
    if zero is not None:
        costs["zero"] = zero
    is_outer = settings.read("outer_dp_sharding_strategy") == "optim"
    if _has_weight_shards(settings):
        shard, expert_shard = _weight_shards(settings)
        has_groups = shard < parallel["dp"] or (parallel["ep"] > 1 and expert_shard > 1)
        if settings.read("use_distributed_optimizer") and has_groups:
            costs["outer_sharding"] = True
    elif is_outer and zero == _SHARDS["optim_grads_params"] and _shard_groups(settings, parallel) > 1:
        costs["outer_sharding"] = True
    gradients = _gradients(recipe, settings)
    if gradients:
        costs["gradients"] = gradients
    if settings.read("gradient_accumulation_fusion") is False and not settings.read(_PAIRS):
        costs["accumulation"] = "separate"
    if "muon" in _optimizer(settings):
        costs |= {"optimizer": "muon", "muon_steps": settings.count("muon_num_ns_steps", 5)}
        mode = settings.read("muon_tp_mode")
        costs |= {"muon_tp": mode} if mode in {"blockwise", "duplicated"} else {}
    is_typed = settings.read("use_precision_aware_optimizer")
    for name in ("main_params", "exp_avg", "exp_avg_sq"):
        kind = settings.read(f"{name}_dtype")
        if kind and is_typed:
            costs[name] = _STATE_TYPES.get(str(kind), str(kind))
    return costs


def _optimizer(settings: Settings) -> str:
    """Return the name of the optimizer; ``dist_muon`` deals whole matrices to replicas."""
    return str(settings.read("optimizer", "adam"))


def _zero(settings: Settings) -> int | None:
    """Return the stage of ZeRO; None if the recipe does not have it."""
    strategy = settings.read("data_parallel_sharding_strategy", "optim_grads_params")
    shards = settings.read("use_distributed_optimizer")
    if settings.read("use_megatron_fsdp") or settings.read("use_custom_fsdp") or settings.read("fsdp") == 1:
        if strategy not in _SHARDS:
            raise ConfigError(
                f"must be one of {', '.join(_SHARDS)}, not {strategy!r}", key="data_parallel_sharding_strategy"
            )
        return _SHARDS[strategy]
    if settings.read("use_torch_fsdp2") or _has_weight_shards(settings):
        return 3
    if _optimizer(settings) == "dist_muon":
        return 1
    return None if shards is None else int(bool(shards))


def _gradients(recipe: Recipe, settings: Settings) -> str:
    """Return the type in which gradients are reduced; empty if the recipe does not have it."""
    wide, kind = settings.read("grad_reduce_in_fp32"), settings.read("main_grads_dtype")
    in_fp32 = settings.read("accumulate_allreduce_grads_in_fp32")
    if wide is not None:
        return "fp32" if wide else "bf16"
    if settings.read("grad_reduce_in_bf16"):
        return "bf16"
    if kind:
        return _STATE_TYPES.get(str(kind), str(kind))
    precision = _precision(recipe, settings) if recipe.is_command else None
    if precision in {None, "bf16"}:
        return ""
    return "fp16" if precision == "fp16" and not in_fp32 else "fp32"


def _dispatcher(recipe: Recipe, settings: Settings) -> dict[str, Any]:
    """Return how tokens reach their experts, and that DeepEP does not align their rows."""
    kind, backend = settings.read("moe_token_dispatcher_type"), settings.read("moe_flex_dispatcher_backend")
    has_backend = kind == "flex" if recipe.is_command else str(backend).lower() != "none"
    if settings.read("moe_enable_deepep") or (has_backend and backend == "deepep"):
        return {"dispatcher": "deduplicated", "aligned_dispatch": False}
    if has_backend:
        return {"dispatcher": "deduplicated"}
    return {"dispatcher": "all-to-all"} if kind or (backend and not recipe.is_command) else {}


def _fused_routing(settings: Settings) -> dict[str, Any]:
    """Return which parts of routing are fused kernels; nothing if the recipe does not say it."""
    fused = {
        "router": settings.read("moe_router_fusion"), "permutation": settings.read("moe_permute_fusion"),
    }  # fmt: skip
    if all(value is None for value in fused.values()):
        return {}
    parts = [part for part, value in fused.items() if value is not False]
    return {"fused_routing": len(parts) == len(fused) or parts or False}


def _graphs(settings: Settings) -> bool | list[str] | None:
    """Return whether CUDA graphs issue layers, or which parts of them; None if the recipe does not have it."""
    impl, scopes = settings.read("cuda_graph_impl"), {*settings.words("cuda_graph_scope")}
    switches = [
        settings.read(name)
        for name in ("cuda_graphs", "enable_cuda_graph", "external_cuda_graph", "full_cuda_graph")
    ]
    if any(switch is not None for switch in switches):
        return any(switches)
    if impl is None:
        return None
    if impl == "none":
        return False
    if impl == "full_iteration" or not scopes or scopes & {"full_iteration", "full"}:
        return True
    return [part for part in _GRAPH_PARTS if part in scopes] or False


def _scaling(recipe: Recipe, settings: Settings) -> dict[str, Any]:
    """Return the recipe of FP8, and whether weights are in FP8 or MXFP8 alone; nothing in other precisions."""
    precision, gather = _precision(recipe, settings), settings.read("fp8_param_gather")
    if precision not in {"fp8", "mxfp8"}:
        return {}
    costs: dict[str, Any] = {} if gather is None else {"fp8_param_gather": bool(gather)}
    if precision == "mxfp8":
        settings.read("reuse_grad_buf_for_mxfp8_param_ag")
        return costs
    words = " ".join(str(settings.read(name) or "") for name in ("fp8_recipe", "precision"))
    for text in (words, recipe.name):
        for pattern, name in _SCALINGS:
            if re.search(pattern, text.lower()):
                return costs | {"fp8_recipe": name}
    return costs


def _precision(recipe: Recipe, settings: Settings) -> str | None:
    """Return the precision of products; None if neither a setting nor the name has it."""
    names = ("fp8_recipe", "fp8", "fp4", "bf16", "fp16", "precision", "transformer_engine", "fp8_hybrid")
    words = {name: settings.read(name) for name in names}
    if words["fp4"]:
        return "nvfp4"
    if words["fp8"] or (words["fp8"] is None and words["fp8_hybrid"]):
        return "mxfp8" if words["fp8_recipe"] == "mxfp8" else "fp8"
    setting = f"{words['precision']} {words['fp8_recipe']}" if words["precision"] else ""
    for text in (setting, recipe.name):
        for pattern, precision in _PRECISIONS:
            if re.search(pattern, text.lower()):
                return precision
    return next((name for name in ("bf16", "fp16") if words[name]), None)


def _bf16_layers(settings: Settings) -> dict[str, int]:
    """Return the number of first and last layers that stay in BF16; Megatron-Core has one of each by default."""
    counts = {
        f"{key}_bf16_layers": settings.count(f"num_layers_at_{end}_in_bf16", 1)
        for key, end in (("first", "start"), ("last", "end"))
    }
    if not settings.read("first_last_layers_bf16"):
        return {}
    return {key: count for key, count in counts.items() if count}


def _recomputation(settings: Settings) -> dict[str, Any]:
    """Return the settings of recomputation; empty if the recipe has none."""
    granularity, modules = settings.read("recompute_granularity"), settings.words("recompute_modules")
    layers, method = settings.count("recompute_num_layers"), settings.read("recompute_method")
    if settings.read("recompute_activations") and not granularity:
        granularity = "selective"
    settings.read("checkpoint_activations")
    if granularity == "full" or (layers and not granularity):
        if layers <= 1 and method != "block":
            return {"recompute": "full"}
        return {"recompute": "full", "recompute_method": method or "block", "recompute_num_layers": layers or 1}
    if settings.read("recompute_modules") is None:
        return {"recompute": "selective"} if granularity == "selective" else {}
    kept = [module for module in modules if module in _MODULES]
    return {"recompute": "selective", "recompute_modules": kept} if kept else {"recompute": "none"}


def _model(
    recipe: Recipe, settings: Settings, options: RecipeOptions, registry: Registry
) -> tuple[dict[str, Any], tuple[int, int]]:
    """Return the model, and its layers and modules of multi-token prediction."""
    has_sizes = {"num_layers", "hidden_size", "num_attention_heads"} <= settings.values.keys()
    if has_sizes and not options.model and not settings.read("hybrid_layer_pattern"):
        model = _architecture(recipe, settings, registry)
    else:
        preset = options.model or _found("model", recipe, registry.models, "--model")
        values = registry.models[preset].offer.values if preset in registry.models else {}
        model = {"preset": preset}
        if "mtp_num_layers" in settings:
            model["mtp"] = settings.count("mtp_num_layers")
        vocabulary = 0 if recipe.is_command else settings.count("vocab_size")
        if vocabulary and vocabulary != values.get("vocabulary"):
            model["vocabulary"] = vocabulary
        dropouts = [settings.read(name) for name in ("attention_dropout", "hidden_dropout") if name in settings]
        if dropouts and any(dropouts) != values.get("dropout", False):
            model["dropout"] = any(dropouts)
        mamba = {f"mamba.{name}": size for name, size in (values.get("mamba") or {}).items()}
        leaves = {**_MAMBA, **values, **mamba}
        settings.used |= {name for name, key in _SIZES.items() if settings.values.get(name) == leaves.get(key)}
        if recipe.stack.startswith(("megatron-bridge", "nemo")) and not settings.read("seq_length"):
            settings.values = {**settings.values, "seq_length": _sequence(preset)}
        return _experts(settings, model), (
            int(values.get("layers", 0)),
            int(model.get("mtp", values.get("mtp", 0))),
        )
    return _experts(settings, model), (model["layers"], int(model.get("mtp", 0)))


def _sequence(preset: str) -> int:
    return next(tokens for letters, tokens in _SEQUENCES if preset.startswith(letters))


def _experts(settings: Settings, model: dict[str, Any]) -> dict[str, Any]:
    """Add what a recipe says of the execution of experts."""
    capacity, pads = (
        settings.read("moe_expert_capacity_factor"),
        settings.read("moe_pad_expert_input_to_capacity"),
    )
    if isinstance(capacity, int | float) and capacity > 0:
        model["capacity"] = float(capacity)
        if pads is not None:
            model["capacity_padding"] = bool(pads)
    fuser, interleave = (
        settings.read("use_transformer_engine_op_fuser"),
        settings.read("moe_mlp_glu_interleave_size"),
    )
    variables = settings.read("env_vars", {})
    is_fused = isinstance(variables, dict) and str(variables.get("NVTE_CUTEDSL_FUSED_GROUPED_MLP")) == "1"
    if settings.read("cutedsl_fused_grouped_mlp") or (fuser and (interleave or is_fused)):
        model["fused_experts"] = True
    return model


def _architecture(recipe: Recipe, settings: Settings, registry: Registry) -> dict[str, Any]:
    """Return a model from the arguments of its layers, with Megatron-LM's defaults."""
    hidden, heads = settings.count("hidden_size"), settings.count("num_attention_heads")
    gated = bool(settings.read("swiglu")) or "swiglu" in str(settings.read("activation"))
    ffn = settings.count("ffn_hidden_size") or (int(4 * hidden * 2 / 3 / 64) * 64 if gated else 4 * hidden)
    model: dict[str, Any] = {
        "layers": settings.count("num_layers"), "hidden": hidden, "heads": heads, "ffn": ffn, "gated": gated,
        "vocabulary": _vocabulary(recipe, settings, registry),
        "tied_embeddings": not settings.read("untie_embeddings_and_output_weights")
        and settings.read("share_embeddings_and_output_weights") is not False,
        "bias": not settings.read("disable_bias_linear") and settings.read("add_bias_linear") is not False,
        "dropout": any(settings.read(f"{place}_dropout", 0.1) for place in ("attention", "hidden")),
    }  # fmt: skip
    if settings.read("position_embedding_type", "learned_absolute") == "learned_absolute":
        model["learned_positions"] = settings.count("max_position_embeddings") or settings.count("seq_length")
    if not recipe.is_command or settings.read("group_query_attention"):  # without it, the number has no effect
        model |= _given_sizes(settings, "num_query_groups")
    model |= _given_sizes(settings, "kv_channels")
    if settings.count("mtp_num_layers"):
        model["mtp"] = settings.count("mtp_num_layers")
    if settings.read("multi_latent_attention"):
        model |= _latent_attention(settings)
    return model | (_mixture(settings) if settings.count("num_moe_experts") else {})


def _vocabulary(recipe: Recipe, settings: Settings, registry: Registry) -> int:
    """Return the number of tokens: as given, or of the preset in the name of the tokenizer or the recipe."""
    kind = settings.read("tokenizer_type", "GPT2BPETokenizer" if settings.read("merge_file") else "")
    file = str(settings.read("tokenizer_model", ""))
    named = next((size for name, size in _VOCABULARIES.items() if name in f"{kind} {file}"), 0)
    size = settings.count("padded_vocab_size") or settings.count("vocab_size") or named
    if size:
        return size
    places = file, _title(recipe)
    preset = next(filter(None, (_preset_in(place, registry.models) for place in places)), "")
    size = int(registry.models[preset].offer.values.get("vocabulary", 0)) if preset else 0
    if not size:
        setting = "--vocab-size 128256" if recipe.is_command else "vocab_size: 128256"
        message = f"the number of tokens is unknown: add {setting}, or give --model"
        raise ConfigError(message, key="vocab_size")
    settings.notes.append(f"vocab_size is that of {preset}, {size}")
    return size


def _latent_attention(settings: Settings) -> dict[str, Any]:
    """Return the widths of multi-head latent attention, with the defaults of ``MLATransformerConfig``."""
    settings.read("kv_channels")
    return {
        "query_rank": settings.count("q_lora_rank"), "kv_rank": settings.count("kv_lora_rank", 512),
        "head_dim": settings.count("qk_head_dim", 128), "rope_dim": settings.count("qk_pos_emb_head_dim", 64),
        "value_dim": settings.count("v_head_dim", 128),
    }  # fmt: skip


def _mixture(settings: Settings) -> dict[str, Any]:
    values = {"num_experts": settings.count("num_moe_experts"), "top_k": settings.count("moe_router_topk", 2)}
    values |= _given_sizes(
        settings, "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_router_num_groups",
        "moe_router_group_topk",
    )  # fmt: skip
    return values | _layers_with_experts(settings)


def _given_sizes(settings: Settings, *names: str) -> dict[str, int]:
    """Return settings of sizes by the keys of a model, without absent ones."""
    return {_SIZES[name]: settings.count(name) for name in names if settings.count(name)}


def _layers_with_experts(settings: Settings) -> dict[str, int]:
    """Return the keys for a pattern: an interval, or a list with a number for each layer."""
    pattern, layers = settings.read("moe_layer_freq", 1), settings.count("num_layers")
    if isinstance(pattern, str):
        pattern = evaluate_expression(pattern.strip("'\""))
    if isinstance(pattern, int) and pattern > 0:
        return {"moe_every": pattern} if pattern > 1 else {}
    if isinstance(pattern, list) and len(pattern) == layers and 1 in pattern:
        dense = pattern.index(1)
        if all(pattern[dense:]):
            return {"dense_layers": dense} if dense else {}
    raise ConfigError(
        f"must be an interval, or {layers} numbers: 0 for layers without experts, then 1", key="moe_layer_freq"
    )


def _split(settings: Settings, layers: tuple[int, int], ranks: int, chunks: int) -> dict[str, Any]:
    """Return the layers of each stage where the recipe or the model's size does not leave an even split."""
    stages = ranks * chunks
    layout = settings.read("pipeline_model_parallel_layout")
    count, mtp = layers
    first, last = (settings.count(f"num_layers_in_{end}_pipeline_stage") for end in ("first", "last"))
    ends = _counted_ends(settings)
    if layout:
        is_list = isinstance(layout, list)
        return {"layout": _layout_text(map(_stage_letters, layout)) if is_list else str(layout)}
    if stages == 1 or not count:
        return {}
    if first or last:
        return {"layers_per_stage": _uneven_split(count, first, last, ranks, chunks)}
    if sum(ends) == 1:
        each, rest = divmod(count + 1, stages)
        if rest:
            raise ConfigError(f"{count} layers and one end do not fill {stages} stages", key="num_layers")
        return {"layers_per_stage": [each - ends[0], *[each] * (stages - 2), each - ends[1]]}
    # Megatron-Bridge's layouts of DeepSeek-V3 and Kimi K2: equal stages, and fewer layers on the last
    each = -(-count // stages)
    rest = count - each * (stages - 1)
    if any(ends) or rest <= 0 or any((count + more) % stages == 0 for more in (0, 1, 2)):
        return {}
    return {"layout": _layout_text(["E" + "t" * each, *["t" * each] * (stages - 2), "t" * rest + "m" * mtp + "L"])}


def _uneven_split(layers: int, first: int, last: int, ranks: int, chunks: int) -> list[int]:
    """Return the layers of each stage with the layers of the first or last rank; chunks of a rank are equal.

    Raises:
        ConfigError: the layers do not fill the ranks.
    """
    inner = ranks - bool(first) - bool(last)
    even = (layers - first - last) // inner if inner > 0 else 0
    split = [*[first] * bool(first), *[even] * inner, *[last] * bool(last)]
    if sum(split) != layers or any(each < 0 or each % chunks for each in split):
        message = f"{first or last} does not divide {layers} layers into {chunks} equal chunks on {ranks} ranks"
        raise ConfigError(message, key=f"num_layers_in_{'first' if first else 'last'}_pipeline_stage")
    return [each // chunks for each in split] * chunks


def _stage_letters(stage: Any) -> str:
    letters = [_PLACES.get(str(item), "") for item in stage] if isinstance(stage, list | tuple) else [""]
    if not all(letters):
        raise ConfigError(f"has unknown items in {stage!r:.60}", key="pipeline_model_parallel_layout")
    return "".join(letters)


def _layout_text(stages: Iterable[str]) -> str:
    """Return a layout in which equal items and equal stages are counted.

    >>> _layout_text(["Ett", "tt", "tt", "tL"])
    'Et*2|(t*2|)*2tL'
    """
    texts = ["".join(_counted(letter, count) for letter, count in _runs(stage)) for stage in stages]
    return "".join(f"{text}|" if count == 1 else f"({text}|)*{count}" for text, count in _runs(texts)).rstrip("|")


def _counted(letter: str, count: int) -> str:
    return letter if count == 1 else f"{letter}*{count}"


def _runs(items: Iterable[str]) -> list[tuple[str, int]]:
    return [(item, len(list(group))) for item, group in groupby(items)]


def _found(what: str, recipe: Recipe, known: Iterable[str], option: str) -> str:
    """Return the preset whose name is in the recipe's name.

    Raises:
        ConfigError: there is none.
    """
    model = recipe.model if what == "model" else ""
    preset = _preset_in(model or _title(recipe), known)
    if not preset:
        raise ConfigError(f"no {what} preset is in the name {model or recipe.name}: add {option}", key=what)
    return preset


def _title(recipe: Recipe) -> str:
    return f"{recipe.file} {recipe.name}" if recipe.is_command else recipe.name


def _preset_in(text: str, known: Iterable[str]) -> str:
    """Return the preset whose name is in a text, without case and punctuation; the longest one, empty for none."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    spans = {
        "".join(words[first:last]) for first in range(len(words)) for last in range(first + 1, first + _LONGEST)
    }
    matches = {name: preset for preset in known for name in _names_of(preset) if name in spans}
    return matches[max(matches, key=len)] if matches else ""


_LONGEST = 6
"""Words of a preset's name, at most, plus one."""


def _names_of(preset: str) -> list[str]:
    """Return the names of a preset in recipes: without the form of a device, and Llama 3.1's as Llama 3's."""
    name = re.sub(r"[^a-z0-9]", "", preset.removesuffix("-sxm").lower())
    return [name, name.replace("llama3", "llama31", 1)] if name.startswith("llama3") else [name]


_EXAMPLES = """\b
pptrace recipe deepseek_workload_base_configs.py
pptrace recipe deepseek_workload_base_configs.py DEEPSEEK_V3_PRETRAIN_CONFIG_GB200_FP8_MX_V2 -o job.yaml
pptrace recipe pretrain.sh --device h100-sxm --gpus 256 -o job.yaml
pptrace recipe llama3_70b.toml --device h100-sxm --gpus 256 -- --parallelism.pipeline_parallel_degree 4
pptrace simulate job.yaml
"""


@click.command("recipe", epilog=_EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.argument("words", nargs=-1, metavar="[NAME] [-- ARGUMENT...]")
@click.option("--model", default="", metavar="PRESET", help="The model; by default that in the recipe's name.")
@click.option("--device", default="", metavar="PRESET", help="The device; by default that in the recipe's name.")
@click.option("--gpus", type=click.IntRange(1), default=None, metavar="N", help="The job's number of GPUs.")
@click.option(
    "--stack", default="", metavar="STACK", help="The software stack; by default that of the repository."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write the configuration: .yaml."
)
def command(
    file: Path,
    words: tuple[str, ...],
    *,
    model: str,
    device: str,
    gpus: int | None,
    stack: str,
    output: Path | None,
) -> None:
    """Print the configuration that simulates the recipe NAME in FILE.

    FILE has recipes of Megatron-Bridge (.py, .yaml), a configuration of NeMo or of a test case of Megatron-LM
    (.yaml), or configurations of torchtitan (.py, .toml). With another suffix, or - for standard input, it is a
    script or line with the arguments of Megatron-LM or torchtitan. Words after a script are its own arguments, $1
    and so on. Arguments of torchtitan replace settings. Without NAME, the names of several recipes are printed. No
    code of a recipe runs.
    """
    if str(file) == "-":
        recipe = recipe_of_text(sys.stdin.read(), "standard input")
    else:
        names = recipe_names(file)
        if len(names) > 1 and not words and output is None:
            click.echo("\n".join(names))
            return
        recipe = read_recipe(file, *words)
    options = RecipeOptions(model=model, device=device, gpus=gpus or 0, stack=stack)
    settings, notes = configuration(recipe, options, Registry.load())
    for note in notes:
        click.echo(f"note: {note}", err=True)
    print_or_write(configuration_text(recipe, settings), output)
