"""A configuration as command-line arguments of training frameworks, with what they have no argument for.

Sources: Megatron-LM, ``megatron/training/arguments.py``; torchtitan, ``torchtitan/config/job_config.py``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pptrace.config.experiment import Experiment

__all__ = ["Arguments", "megatron_arguments", "torchtitan_arguments"]

_TITAN_SCHEDULES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved-1f1b": "Interleaved1F1B", "looped-bfs": "LoopedBFS",
    "zb-v": "ZBVZeroBubble", "interleaved-zb": "InterleavedZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
"""Names by which torchtitan finds the schedules of ``torch.distributed.pipelining``."""


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
    values: dict[str, Any] = {
        "tensor-model-parallel-size": parallel.tp, "pipeline-model-parallel-size": parallel.pp,
        "context-parallel-size": parallel.cp, "expert-model-parallel-size": parallel.ep,
        "micro-batch-size": batch.micro, "global-batch-size": batch.global_batch, "seq-length": batch.sequence,
    }  # fmt: skip
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    model = experiment.model.values if experiment.model else {}
    split = model.get("layers_per_stage")
    if split:
        words += ["--pipeline-model-parallel-layout", _layout(split)]
    elif chunks > 1:
        words += ["--num-virtual-stages-per-pipeline-rank", str(chunks)]
    words += ["--sequence-parallel"] if parallel.sequence_parallel and parallel.tp > 1 else []
    costs = experiment.costs.values if experiment.costs else {}
    words += ["--use-distributed-optimizer"] if int(costs.get("zero") or 0) else []
    words += ["--overlap-grad-reduce"] if experiment.data_parallel.overlap else []
    recompute = model.get("recompute")
    if recompute == "full":
        words += [
            "--recompute-granularity",
            "full",
            "--recompute-method",
            "uniform",
            "--recompute-num-layers",
            "1",
        ]
    elif recompute == "selective":
        words += ["--recompute-granularity", "selective"]
    name = experiment.schedule.name
    without = [] if name == ("interleaved-1f1b" if chunks > 1 else "1f1b") else [f"schedule {name}"]
    return Arguments(words=tuple(words), without=(*without, *_without(experiment)))


def torchtitan_arguments(experiment: Experiment, chunks: int) -> Arguments:
    """Return a configuration as torchtitan takes it; as above."""
    parallel, batch = experiment.parallel, experiment.batch
    name = experiment.schedule.name
    costs = experiment.costs.values if experiment.costs else {}
    sharded = bool(int(costs.get("zero") or 0))
    values: dict[str, Any] = {
        "parallelism.tensor_parallel_degree": parallel.tp,
        "parallelism.pipeline_parallel_degree": parallel.pp,
        "parallelism.context_parallel_degree": parallel.cp,
        "parallelism.expert_parallel_degree": parallel.ep,
        "parallelism.data_parallel_replicate_degree": 1 if sharded else parallel.dp,
        "parallelism.data_parallel_shard_degree": parallel.dp if sharded else 1,
        "parallelism.pipeline_parallel_schedule": _TITAN_SCHEDULES.get(name, "1F1B"),
        "parallelism.pipeline_parallel_microbatch_size": batch.micro,
        "training.local_batch_size": batch.micro * batch.known_microbatches,
        "training.global_batch_size": batch.global_batch,
        "training.seq_len": batch.sequence,
    }
    model = experiment.model.values if experiment.model else {}
    values["activation_checkpoint.mode"] = model.get("recompute") or "none"
    without = [] if name in _TITAN_SCHEDULES else [f"schedule {name}"]
    split, layers = model.get("layers_per_stage"), model.get("layers")
    if split:
        without.append("layers_per_stage")
    elif chunks > 1 and layers:
        values["parallelism.pipeline_parallel_layers_per_stage"] = -(-int(layers) // ((parallel.pp or 1) * chunks))
    words = [word for key, value in values.items() for word in (f"--{key}", str(value))]
    return Arguments(words=tuple(words), without=(*without, *_without(experiment)))


def _layout(split: list[int]) -> str:
    """Return layers per stage as Megatron-LM writes a layout: E, layers as t, L; stages apart by bars."""
    stages = [f"t*{count}" if count > 1 else "t" * count for count in split]
    return "|".join(["E" + stages[0], *stages[1:-1], stages[-1] + "L"]) if len(stages) > 1 else f"E{stages[0]}L"


def _without(experiment: Experiment) -> list[str]:
    choice = experiment.schedule
    found = [f"schedule options {choice.options}"] if any(choice.options.values()) else []
    return [
        *found,
        *(["schedule.offload"] if choice.offload else []),
        *(["schedule.recompute"] if choice.recompute else []),
    ]
