"""A configuration as command-line arguments of Megatron-LM, with what it has no argument for.

Source: Megatron-LM as of 22 August 2026, ``megatron/training/arguments.py`` with what it refuses, and the
dataclasses whose fields it makes arguments of (``megatron/core/model_parallel_config.py``,
``megatron/core/transformer/transformer_config.py``, ``megatron/training/config``). ``titan_arguments.py`` beside
this has torchtitan's.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pptrace.config.experiment import Experiment

__all__ = ["Arguments", "megatron_arguments", "told", "values_of", "without_modifiers"]

_ENDS = ("loss", "embedding")
"""What takes the place of a layer where a stage or two are more than layers."""
_KEPT = ("main-params", "exp-avg", "exp-avg-sq")
"""State of the optimizer whose type Megatron-LM takes."""
_MEGATRON_SHARDS = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}
"""What Megatron-FSDP calls ZeRO's stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What to start a framework with."""

    words: tuple[str, ...]
    """The arguments."""
    without: tuple[str, ...]
    """What of the configuration the framework has no argument for."""

    @property
    def text(self) -> str:
        """The arguments as a shell takes them."""
        return shlex.join(self.words)


def megatron_arguments(experiment: Experiment, chunks: int) -> Arguments:
    """Return a configuration as Megatron-LM takes it.

    Args:
        experiment: the configuration, the cost model's options filled in.
        chunks: per rank.
    """
    parallel, batch = experiment.parallel, experiment.batch
    model, costs = values_of(experiment.model), values_of(experiment.costs)
    values: dict[str, Any] = {
        "tensor-model-parallel-size": parallel.tp, "pipeline-model-parallel-size": parallel.pp,
        "context-parallel-size": parallel.cp, "expert-model-parallel-size": parallel.ep,
        **({"expert-tensor-parallel-size": parallel.etp} if parallel.etp else {}),
        "micro-batch-size": batch.micro, "global-batch-size": batch.global_batch, "seq-length": batch.sequence,
    }  # fmt: skip
    words, without = told(values), without_modifiers(experiment)
    layout = model.get("layout") or _layout(model.get("layers_per_stage"), int(model.get("mtp") or 0))
    if (parallel.pp or 1) == 1 < chunks:
        pass
    elif layout:
        words += ["--pipeline-model-parallel-layout", layout]
    else:
        words += told({"num-virtual-stages-per-pipeline-rank": chunks}) if chunks > 1 else []
        ends, missing = _uneven(int(model.get("layers") or 0), (parallel.pp or 1) * chunks)
        words, without = [*words, *ends], [*without, *missing]
    words += ["--sequence-parallel"] if parallel.sequence_parallel and parallel.tp > 1 else []
    zero = int(costs.get("zero") or 0)
    words += ["--use-distributed-optimizer"] if zero else []
    kept = {name: costs.get(name.replace("-", "_")) for name in _KEPT}
    if any(kept.values()):
        types = {f"{name}-dtype": kind for name, kind in kept.items() if kind not in {None, "remainder"}}
        words += ["--use-precision-aware-optimizer", *told(types)]
    if zero > 1:
        words += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", _MEGATRON_SHARDS[zero]]
        words += ["--ckpt-format", "fsdp_dtensor"]
        without.append("CUDA_DEVICE_MAX_CONNECTIONS: unset it, or above 1")
    words += ["--overlap-grad-reduce"] if experiment.data_parallel.overlap else []
    if chunks > 1 and experiment.p2p.options.get("overlap_p2p_comm") is False:
        words += ["--no-overlap-p2p-communication"]
    if chunks > 1 and experiment.p2p.options.get("overlap_p2p_comm_warmup_flush"):
        words += ["--overlap-p2p-communication-warmup-flush"]
    words += _recompute(model)
    if "mlp_act" in (model.get("recompute_modules") or []):
        without.append("recompute_modules: mlp_act")
    found, missing = _schedule(experiment, chunks, model, costs)
    return Arguments(words=(*words, *found), without=(*missing, *without))


def _schedule(
    experiment: Experiment, chunks: int, model: dict[str, Any], costs: dict[str, Any]
) -> tuple[list[str], list[str]]:
    """Return what asks for the schedule, and what of it Megatron-LM refuses."""
    name, parallel = experiment.schedule.name, experiment.parallel
    ranks, microbatches = parallel.pp or 1, experiment.batch.known_microbatches
    if ranks == 1 and chunks > 1:
        return [], [f"{chunks} chunks on one rank: it has them from two ranks on"]
    words, missing = [], []
    if name == "combined-1f1b":
        if (parallel.ep or 1) == 1:
            return [], ["schedule combined-1f1b: it asks for ep above 1"]
        if model.get("recompute") == "full":
            return [], ["schedule combined-1f1b: it asks for recompute other than full"]
        words += ["--overlap-moe-expert-parallel-comm"]
        words += ["--delay-wgrad-compute"] if costs.get("delay_wgrad", True) else []
    elif name != ("interleaved-1f1b" if chunks > 1 else "1f1b"):
        return [], [f"schedule {name}"]
    if chunks > 1:
        size = microbatches // max(microbatches // ranks, 1)
        if size < ranks:
            missing.append(f"{microbatches} microbatches: it asks for {ranks} or more")
        elif size > ranks:
            words += told({"microbatch-group-size-per-virtual-pipeline-stage": size})
    return words, missing


def told(values: dict[str, Any]) -> list[str]:
    """Return values by name as words of a command line."""
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def values_of(choice: Any) -> dict[str, Any]:
    """Return a section's values; none where there is no such section."""
    return choice.values if choice else {}


def _recompute(model: dict[str, Any]) -> list[str]:
    recompute = model.get("recompute")
    if recompute == "full":
        method, layers = model.get("recompute_method") or "uniform", model.get("recompute_num_layers") or 1
        return told({"recompute-granularity": "full", "recompute-method": method, "recompute-num-layers": layers})
    if recompute == "selective":
        asked = model.get("recompute_modules") or []
        modules = [one for one in asked if one != "mlp_act"]
        if asked and not modules:
            return []
        return ["--recompute-granularity", "selective", *(["--recompute-modules", *modules] if modules else [])]
    return []


def _layout(split: list[int] | None, mtp: int) -> str | None:
    """Return layers per stage as Megatron-LM writes a layout: E, layers as t, modules of prediction as m, L."""
    if not split:
        return None
    stages = [f"t*{count}" if count > 1 else "t" * count for count in split]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    return "|".join(stages)


def _uneven(layers: int, stages: int) -> tuple[list[str], list[str]]:
    """Return what gives the head, and the embedding, a stage in place of a layer, or that none says the split."""
    if stages > 1 and 0 < stages - layers <= len(_ENDS):
        return [f"--account-for-{end}-in-pipeline-split" for end in _ENDS[: stages - layers]], []
    told_apart = f"an even split of {layers} layers on {stages} stages: --pipeline-model-parallel-layout says it"
    return [], [told_apart] if layers % stages else []


def without_modifiers(experiment: Experiment) -> list[str]:
    """Return what no framework has an argument for: a schedule's options, copies, forwards computed again."""
    choice = experiment.schedule
    found = [f"schedule options {choice.options}"] if any(choice.options.values()) else []
    return [
        *found,
        *(["schedule.offload"] if choice.offload else []),
        *(["schedule.recompute"] if choice.recompute else []),
    ]
