"""A configuration as command-line arguments of training frameworks, with what they have no argument for.

Sources: Megatron-LM, ``megatron/training/arguments.py``, and the dataclasses whose fields it makes arguments of
(``megatron/core/model_parallel_config.py``, ``megatron/core/transformer/transformer_config.py``,
``megatron/training/config``); torchtitan, ``torchtitan/config/configs.py`` and
``torchtitan/distributed/pipeline_parallel.py``; both as of August 2026.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pptrace.config.experiment import Experiment

__all__ = ["Arguments", "megatron_arguments", "titan_split", "torchtitan_arguments"]

_TITAN_SCHEDULES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved-1f1b": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "zb-v": "ZBVZeroBubble", "interleaved-zb": "InterleavedZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
"""Names by which torchtitan finds the schedules of ``torch.distributed.pipelining``."""
_TITAN_CHECKPOINTS = {"none": "None", "selective": "SelectiveAC.Config()", "full": "FullAC.Config()"}
"""What torchtitan's configurations call recomputation, for which its command line has no word."""
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
    model, costs = _values(experiment.model), _values(experiment.costs)
    values: dict[str, Any] = {
        "tensor-model-parallel-size": parallel.tp, "pipeline-model-parallel-size": parallel.pp,
        "context-parallel-size": parallel.cp, "expert-model-parallel-size": parallel.ep,
        **({"expert-tensor-parallel-size": parallel.etp} if (parallel.ep or 1) > 1 and parallel.etp else {}),
        "micro-batch-size": batch.micro, "global-batch-size": batch.global_batch, "seq-length": batch.sequence,
    }  # fmt: skip
    words, without = _told(values), _without(experiment)
    layout = model.get("layout") or _layout(model.get("layers_per_stage"))
    if layout:
        words += ["--pipeline-model-parallel-layout", layout]
    else:
        words += _told({"num-virtual-stages-per-pipeline-rank": chunks}) if chunks > 1 else []
        without += _uneven(model, parallel.pp or 1, chunks)
    words += ["--sequence-parallel"] if parallel.sequence_parallel and parallel.tp > 1 else []
    zero = int(costs.get("zero") or 0)
    words += ["--use-distributed-optimizer"] if zero else []
    kept = {name: costs.get(name.replace("-", "_")) for name in _KEPT}
    if any(kept.values()):
        types = {f"{name}-dtype": kind for name, kind in kept.items() if kind not in {None, "remainder"}}
        words += ["--use-precision-aware-optimizer", *_told(types)]
    if zero > 1:
        words += ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", _MEGATRON_SHARDS[zero]]
    words += ["--overlap-grad-reduce"] if experiment.data_parallel.overlap else []
    if chunks > 1 and experiment.p2p.options.get("overlap_p2p_comm") is False:
        words += ["--no-overlap-p2p-communication"]
    words += _megatron_recompute(model)
    name = experiment.schedule.name
    if name == "combined-1f1b":
        words += ["--overlap-moe-expert-parallel-comm"]
        words += ["--delay-wgrad-compute"] if costs.get("delay_wgrad", True) else []
    elif name != ("interleaved-1f1b" if chunks > 1 else "1f1b"):
        without.insert(0, f"schedule {name}")
    return Arguments(words=tuple(words), without=tuple(without))


def torchtitan_arguments(experiment: Experiment, chunks: int) -> Arguments:
    """Return a configuration as torchtitan takes it; as above."""
    parallel, batch = experiment.parallel, experiment.batch
    model, costs = _values(experiment.model), _values(experiment.costs)
    name, micro, sequence = experiment.schedule.name, batch.micro or 1, batch.sequence or 0
    sharded = bool(int(costs.get("zero") or 0))
    values: dict[str, Any] = {
        "parallelism.tensor_parallel_degree": parallel.tp,
        "parallelism.pipeline_parallel_degree": parallel.pp,
        "parallelism.context_parallel_degree": parallel.cp,
        "parallelism.expert_parallel_degree": parallel.ep,
        "parallelism.data_parallel_replicate_degree": 1 if sharded else parallel.dp,
        "parallelism.data_parallel_shard_degree": parallel.dp if sharded else 1,
        "parallelism.pipeline_parallel_schedule": _TITAN_SCHEDULES.get(name, "1F1B"),
        "parallelism.num_pp_microbatches": batch.known_microbatches,
        "training.num_tokens_per_microbatch_per_dp_rank": micro * sequence,
        "training.num_tokens_per_train_step": (batch.global_batch or 0) * sequence,
        "training.max_context_length": sequence,
    }
    without = [] if name in _TITAN_SCHEDULES else [f"schedule {name}"]
    stages, layers = (parallel.pp or 1) * chunks, int(model.get("layers") or 0)
    split = model.get("layers_per_stage") or ([layers // stages] * stages if not layers % stages else None)
    lighter = _lighter_ends(split) if split and not model.get("layout") else None
    if stages == 1:
        pass
    elif lighter is None:
        without.append("layers per stage: module_fqns_per_model_part in its configuration")
    else:
        first, last = lighter
        values["parallelism.pipeline_parallel_first_stage_less_layers"] = first
        values["parallelism.pipeline_parallel_last_stage_less_layers"] = last
        if chunks > 1:
            values["parallelism.pipeline_parallel_layers_per_stage"] = -(-(layers + first + last) // stages)
    checkpoint = _TITAN_CHECKPOINTS.get(str(model.get("recompute") or "none"), "MemoryBudgetAC.Config()")
    without.append(f"recompute: activation_checkpoint={checkpoint} in its configuration")
    return Arguments(words=tuple(_told(values)), without=(*without, *_without(experiment)))


def titan_split(layers: int, stages: int, first: int, last: int) -> list[int] | None:
    """Return torchtitan's layers per stage for ends that count as some layers; none where it refuses them."""
    even, more = divmod(layers + first + last, stages)
    if not even or first > even or last > even:
        return None
    found = [even + (stage < more) for stage in range(stages)]
    found[0] -= first
    found[-1] -= last
    return found


def _lighter_ends(split: list[int]) -> tuple[int, int] | None:
    """Return by how many layers torchtitan's first and last stage are to be lighter for this split."""
    most = max(split) + 1
    for first in range(most):
        for last in range(most):
            if titan_split(sum(split), len(split), first, last) == list(split):
                return first, last
    return None


def _told(values: dict[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def _values(choice: Any) -> dict[str, Any]:
    return choice.values if choice else {}


def _megatron_recompute(model: dict[str, Any]) -> list[str]:
    recompute = model.get("recompute")
    if recompute == "full":
        method, layers = model.get("recompute_method") or "uniform", model.get("recompute_num_layers") or 1
        return _told({"recompute-granularity": "full", "recompute-method": method, "recompute-num-layers": layers})
    if recompute == "selective":
        modules = model.get("recompute_modules")
        return ["--recompute-granularity", "selective", *(["--recompute-modules", *modules] if modules else [])]
    return []


def _layout(split: list[int] | None) -> str | None:
    """Return layers per stage as Megatron-LM writes a layout: E, layers as t, L; stages apart by bars."""
    if not split:
        return None
    stages = [f"t*{count}" if count > 1 else "t" * count for count in split]
    return "|".join(["E" + stages[0], *stages[1:-1], stages[-1] + "L"]) if len(stages) > 1 else f"E{stages[0]}L"


def _uneven(model: dict[str, Any], ranks: int, chunks: int) -> list[str]:
    layers = int(model.get("layers") or 0)
    uneven = layers % (ranks * chunks)
    return [f"{layers} layers on {ranks * chunks} stages: give layers_per_stage"] if uneven else []


def _without(experiment: Experiment) -> list[str]:
    choice = experiment.schedule
    found = [f"schedule options {choice.options}"] if any(choice.options.values()) else []
    return [
        *found,
        *(["schedule.offload"] if choice.offload else []),
        *(["schedule.recompute"] if choice.recompute else []),
    ]
