"""Configurations from the settings of a job of torchtitan.

Source: torchtitan 0.1 to 0.3 and its main branch of September 2026: ``torchtitan/config`` (in 0.1 and before,
``config_manager.py``), ``distributed/pipeline_parallel.py``, ``distributed/activation_checkpoint.py`` and
``trainer.py``; ``get_schedule_class`` of ``torch.distributed.pipelining``.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pptrace.plugin import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace_frameworks.recipe_files import Settings

_SINGLE_STAGE = {"1f1b": "1f1b", "gpipe": "gpipe"}
"""Schedules with one stage per rank, by torchtitan's names in lower case."""
_SCHEDULES = _SINGLE_STAGE | {
    "interleaved1f1b": "interleaved-1f1b", "loopedbfs": "looped-bfs", "dualpipev": "dualpipe-v",
    "interleavedzerobubble": "interleaved-zb", "zbvzerobubble": "zb-v",
}  # fmt: skip
_RECOMPUTATION = {"SelectiveAC": "selective", "FullAC": "full", "MemoryBudgetAC": "memory_budget"}
"""Modes of recomputation by the classes of torchtitan 0.3."""
_PRECISIONS = (("nvfp4", "nvfp4"), ("mx", "mxfp8"), ("float8", "fp8"))
"""Precisions by letters in the names of converters."""
_APART = (
    "context_parallel_", "custom_", "dataset", "deterministic", "disable_", "enable_wandb", "gc_", "import",
    "max_norm", "nnodes", "nproc_per_node", "num_gpus", "num_workers", "seed", "spmd_", "steps", "warmup_steps",
)  # fmt: skip
"""Settings of convergence, data and processes, by the first letters of their names."""
_ASSUMED: Mapping[str, Any] = {
    "dtype": "float32", "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32",
    "pipeline_parallel_expert_parallel_overlap": True,
}  # fmt: skip
"""Settings that torchtitan's stacks assume to have this value. Another value has no effect, and a note."""


def titan_sections(settings: Settings, parallel: dict[str, Any], layers: int) -> dict[str, dict[str, Any]]:
    """Return the sections of the configuration except stack, device and parallel sizes.

    Args:
        settings: the settings.
        parallel: the parallel sizes, which receive the stages of a rank as ``vp``.
        layers: layers of the model; 0 if unknown.

    Raises:
        ConfigError: a schedule or a split of layers that torchtitan does not have, or an invalid value.
    """
    schedule, model = _pipeline(settings, parallel, layers)
    model |= _recomputation(settings, -(-layers // (parallel["pp"] * parallel["vp"])))
    sharding, costs = _sharding(settings, parallel)
    is_compiled = settings.read("compile.enable") or settings.read("compile")
    components = (settings.words("compile.components") or ["model", "loss"]) if is_compiled else []
    if "model" in components:
        model |= {"fused_activation": True, "fused_norms": True}
    if "loss" in components:
        costs["fused_loss"] = "compiled"
    is_chunked = settings.read("loss.class", "ChunkedLossWrapper") == "ChunkedLossWrapper"
    if not is_chunked or "loss.num_chunks" in settings:
        costs["loss_chunks"] = settings.size("loss.num_chunks") if is_chunked else 1
    if any(settings.read(f"{section}enable_async_tensor_parallel") for section in ("", "compile.")):
        costs["overlap_tp"] = True
    if "deepep" in [settings.read("expert_parallel_comm_backend"), settings.read("model_spec.moe_comm_backend")]:
        costs |= {"dispatcher": "deduplicated", "aligned_dispatch": False}
    precision = _precision(settings)
    if precision:
        model["precision"] = precision
    gathers = (f"{section}.enable_fsdp_float8_all_gather" for section in ("float8", "quantize.linear.float8"))
    if precision == "fp8" and any(settings.read(name) for name in gathers):
        costs["fp8_param_gather"] = True
    return {
        "model": model, "batch": _batch(settings, parallel), "schedule": schedule, "data_parallel": sharding,
        "costs": costs,
    }  # fmt: skip


def titan_notes(settings: Settings) -> list[str]:
    """Return a note on the settings of training and parallelism that have no effect here."""
    unused = sorted(
        name for name, value in settings.values.items()
        if name not in settings.used and "." not in name and not name.startswith(_APART)
        and (value != _ASSUMED[name] if name in _ASSUMED else value)
    )  # fmt: skip
    return [f"without effect: {', '.join(unused)}"] if unused else []


def _batch(settings: Settings, parallel: Mapping[str, Any]) -> dict[str, Any]:
    """Return the batch; ranks of a pipeline split a local batch into microbatches."""
    local, total = settings.size("local_batch_size", 8), settings.count("global_batch_size", -1)
    number = settings.size("pipeline_parallel_microbatches", local)
    if number > local:
        raise ConfigError(f"{number} are more than {local} sequences", key="pipeline_parallel_microbatches")
    size = settings.size("pipeline_parallel_microbatch_size", local // number)
    micro = local if parallel["pp"] == 1 else size
    if local % micro:
        raise ConfigError(f"{local} is not a multiple of the microbatch size, {micro}", key="local_batch_size")
    accumulated = total // (local * parallel["dp"]) if total > 0 else 1
    if parallel["pp"] > 1 and accumulated > 1:
        settings.notes.append(f"one pipeline here has the microbatches of {accumulated} accumulated ones")
    return {
        "global": total if total > 0 else local * parallel["dp"], "micro": micro,
        "sequence": settings.size("seq_length"),
    }  # fmt: skip


def _sharding(settings: Settings, parallel: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of ``data_parallel``, and those of ``costs`` for weights that are not sharded."""
    replicas, shard = parallel["dp"], settings.count("data_parallel_shard_degree", -1)
    groups = settings.size("data_parallel_replicate_degree")
    reshard = settings.read("fsdp_reshard_after_forward", "default")
    if replicas % groups or (shard != -1 and shard * groups != replicas):
        message = f"{groups} groups of {'equal' if shard == -1 else shard} shards are not {replicas} replicas"
        raise ConfigError(message, key="data_parallel_replicate_degree")
    if replicas > 1 and groups == replicas:
        return {}, {"zero": 0}
    sharding: dict[str, Any] = {"shard": replicas // groups} if groups > 1 else {}
    return sharding | ({"reshard": reshard} if reshard != "default" else {}), {}


def _recomputation(settings: Settings, layers: int) -> dict[str, Any]:
    """Return the settings of recomputation, with the number of layers of a stage; 0 if it is unknown."""
    kind, mode = (settings.read(f"activation_checkpoint.{name}") for name in ("class", "mode"))
    mode = str(_RECOMPUTATION.get(str(kind), kind) or mode or "selective")
    period = settings.read("activation_checkpoint.selective_ac_option", "op" if kind else "2")
    if mode in {"memory_budget", "memory-budget"}:
        settings.notes.append("a memory budget is not modelled: layers keep all activations")
        return {"recompute": "none"}
    if mode != "selective" or not str(period).isdecimal():
        return {"recompute": mode}
    again = -(-layers // max(int(period), 1))
    return {"recompute": "full"} | (
        {"recompute_method": "block", "recompute_num_layers": again} if again < layers else {}
    )


def _precision(settings: Settings) -> str:
    """Return the precision of products; empty without converters.

    Raises:
        ConfigError: the job trains adapters.
    """
    words = [*settings.words("model.converters"), *settings.words("model_spec.converters")]
    if settings.read("float8.enable_float8_linear"):
        words.append("float8")
    names = " ".join(words).lower()
    if "lora" in names:
        raise ConfigError("fine-tuning of adapters is not modelled", key="model.converters")
    return next((precision for letters, precision in _PRECISIONS if letters in names), "")


def _pipeline(settings: Settings, parallel: dict[str, Any], layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schedule, and the layers of each stage where stages differ; sets the stages of a rank."""
    ranks, parallel["vp"] = parallel["pp"], 1
    file = settings.read("pipeline_parallel_schedule_csv")
    name = settings.read("pipeline_parallel_schedule", "1F1B")
    first, last = (settings.count(f"pipeline_parallel_{end}_stage_less_layers", 1) for end in ("first", "last"))
    per_stage = settings.size("pipeline_parallel_layers_per_stage", layers or 1)
    split = _explicit_split(settings, layers)
    if ranks == 1:
        return {"name": "1f1b"}, {}
    key = str(name).lower()
    if key not in _SCHEDULES:
        known = "1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble or DualPipeV"
        raise ConfigError(f"must be {known}, not {name!r:.40}", key="pipeline_parallel_schedule")
    stages = len(split) or ranks * (1 if key in _SINGLE_STAGE else 2)
    if layers and not split:
        if "pipeline_parallel_layers_per_stage" in settings:
            stages = -(-(layers + first + last) // per_stage)
        split = _even_split(layers, stages, first, last)
    if stages % ranks:
        message = f"{stages} stages are not a multiple of {ranks} ranks"
        raise ConfigError(message, key="pipeline_parallel_layers_per_stage")
    parallel["vp"] = stages // ranks
    return {"name": str(file or _SCHEDULES[key])}, {"layers_per_stage": split} if len({*split}) > 1 else {}


def _even_split(layers: int, stages: int, first: int, last: int) -> list[int]:
    """Return the layers of each stage where embedding and LM head count as ``first`` and ``last`` layers.

    Raises:
        ConfigError: a stage has less than no layers.
    """
    even, more = divmod(layers + first + last, stages)
    split = [even + (stage < more) for stage in range(stages)]
    split[0], split[-1] = split[0] - first, split[-1] - last
    if min(split) < 0:
        raise ConfigError(f"{layers} layers do not fill {stages} stages", key="pipeline_parallel_degree")
    return split


def _explicit_split(settings: Settings, layers: int) -> list[int]:
    """Return the layers of each stage from names of modules; empty without them.

    Raises:
        ConfigError: the modules are not a list for each stage.
    """
    modules = settings.read("module_fqns_per_model_part")
    parts = re.findall(r"\[([^][]+)\]", str(modules or ""))
    if modules and not parts:
        message = f"must be a list of modules for each stage, not {modules!r:.40}"
        raise ConfigError(message, key="module_fqns_per_model_part")
    points = re.findall(r"layers\.(\d+)", str(settings.read("pipeline_parallel_split_points", "")))
    if parts:
        return [len(re.findall(r"\blayers\.", part)) for part in parts]
    ends = [0, *map(int, points), layers] if points and layers else []
    return [end - start for start, end in pairwise(ends)]
