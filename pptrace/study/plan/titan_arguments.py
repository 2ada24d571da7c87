"""A configuration as command-line arguments of torchtitan, with what it has no argument for.

Source: torchtitan as of 21 August 2026: ``torchtitan/config/configs.py``, ``torchtitan/trainer.py``,
``torchtitan/distributed/pipeline_parallel.py``, ``parallel_dims.py``, ``fsdp.py`` and
``activation_checkpoint.py`` beside it; schedules of ``torch.distributed.pipelining`` 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.config.choices import Reshard
from pptrace.study.plan.arguments import Arguments, told, values_of, without_modifiers

if TYPE_CHECKING:
    from pptrace.config.experiment import Experiment

__all__ = ["titan_split", "torchtitan_arguments"]

_ONE = {"1f1b": "1F1B", "gpipe": "GPipe"}
_LOOPED = {
    "interleaved-1f1b": "Interleaved1F1B", "looped-bfs": "LoopedBFS", "interleaved-zb": "InterleavedZeroBubble",
}  # fmt: skip
_V = {"zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV"}
_SCHEDULES = _ONE | _LOOPED | _V
"""Names by which torchtitan finds schedules: those with one stage on a rank, with more, and with two in a V."""
_LAYERS_APART = "layers per stage: module_fqns_per_model_part in its configuration"


def torchtitan_arguments(experiment: Experiment, chunks: int) -> Arguments:
    """Return a configuration as torchtitan takes it.

    Args:
        experiment: the configuration, the cost model's options filled in.
        chunks: per rank.
    """
    parallel, batch = experiment.parallel, experiment.batch
    model = values_of(experiment.model)
    micro, sequence, ranks = batch.micro or 1, batch.sequence or 0, parallel.pp or 1
    sharding, without = _sharding(experiment)
    values: dict[str, Any] = {
        "parallelism.tensor_parallel_degree": parallel.tp,
        "parallelism.pipeline_parallel_degree": ranks,
        "parallelism.context_parallel_degree": parallel.cp,
        "parallelism.expert_parallel_degree": parallel.ep,
        **sharding,
        "parallelism.pipeline_parallel_schedule": _SCHEDULES.get(
            experiment.schedule.name, "1F1B" if chunks == 1 else "Interleaved1F1B"
        ),
        "parallelism.num_pp_microbatches": batch.known_microbatches,
        "training.num_tokens_per_microbatch_per_dp_rank": micro * sequence,
        "training.num_tokens_per_train_step": (batch.global_batch or 0) * sequence,
        "training.max_context_length": sequence,
    }
    if ranks > 1:
        split = _stages(model, ranks, chunks)
        values |= split
        without = [*_refused(experiment, chunks), *([] if split else [_LAYERS_APART]), *without]
    words = told(values)
    if parallel.tp > 1 and not parallel.sequence_parallel:
        words.append("--parallelism.no-enable_sequence_parallel")
    recompute = str(model.get("recompute") or "none")
    if recompute == "selective":
        without.append("recompute selective: it keeps products, too, and computes all else again")
    elif model.get("recompute_method"):
        without.append("recompute_method: every layer is computed again")
    # A word that chooses among configurations stands behind all flags.
    words.append(f"activation-checkpoint:{recompute}")
    return Arguments(words=tuple(words), without=(*without, *without_modifiers(experiment)))


def titan_split(layers: int, stages: int, first: int, last: int) -> list[int] | None:
    """Return torchtitan's layers per stage for ends that count as some layers; none where it refuses them."""
    even, more = divmod(layers + first + last, stages)
    if not even or first > even or last > even:
        return None
    found = [even + (stage < more) for stage in range(stages)]
    found[0] -= first
    found[-1] -= last
    return found


def _sharding(experiment: Experiment) -> tuple[dict[str, Any], list[str]]:
    """Return how weights are kept, and what FSDP does else than the configuration."""
    parallel, zero = experiment.parallel, int(values_of(experiment.costs).get("zero") or 0)
    degree = "parallelism.data_parallel_{}_degree"
    if not zero:
        alone = (parallel.tp or 1) * (parallel.cp or 1) % (parallel.ep or 1)
        why = f"expert parallelism of weights that are not sharded: ep {parallel.ep} does not divide tp x cp"
        return {degree.format("replicate"): parallel.dp, degree.format("shard"): 1}, [why] * bool(alone)
    reshard = experiment.data_parallel.reshard or Reshard.NEVER
    again = zero == max(_SHARDS) and reshard is not Reshard.NEVER
    words = {
        degree.format("replicate"): 1, degree.format("shard"): parallel.dp,
        "parallelism.fsdp_reshard_after_forward": "always" if again else "never",
    }  # fmt: skip
    return words, [f"zero {zero}: FSDP shards {_SHARDS[zero]}, too"] * bool(_SHARDS[zero])


_SHARDS = {1: "gradients and weights", 2: "weights", 3: ""}
"""What FSDP shards beyond each of ZeRO's stages; it keeps gathered weights through a step where asked to."""


def _refused(experiment: Experiment, chunks: int) -> list[str]:
    name = experiment.schedule.name
    if name not in _SCHEDULES:
        return [f"schedule {name}"]
    if name in _LOOPED and chunks == 1:
        return [f"schedule {name} with one stage on a rank: it asks for two or more"]
    return []


def _stages(model: dict[str, Any], ranks: int, chunks: int) -> dict[str, Any]:
    """Return what splits the layers as the configuration does; nothing where no arguments do."""
    stages, layers = ranks * chunks, int(model.get("layers") or 0)
    split = model.get("layers_per_stage") or ([layers // stages] * stages if not layers % stages else None)
    if not split or model.get("layout"):
        return {}
    name, most = "parallelism.pipeline_parallel_{}", max(split) + 1
    for first in range(most):
        for last in range(most):
            total = sum(split) + first + last
            each = -(-total // stages)
            # It counts the stages by layers on each, rounded up.
            counted = chunks == 1 or -(-total // each) == stages
            if counted and titan_split(sum(split), stages, first, last) == list(split):
                return {
                    name.format("first_stage_less_layers"): first, name.format("last_stage_less_layers"): last,
                    **({name.format("layers_per_stage"): each} if chunks > 1 else {}),
                }  # fmt: skip
    return {}
