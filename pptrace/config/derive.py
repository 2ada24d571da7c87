"""Numbers that follow from others, and the numbers that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from pptrace.config.choices import Reshard
from pptrace.config.open_sections import DEFAULT_COSTS
from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from pptrace.config.experiment import Batch, Experiment

__all__ = ["derived"]

Complaint: TypeAlias = Callable[[str, str], ConfigError]
"""Makes a located error from a key and a message."""

_MOST = 2**31 - 1


def derived(experiment: Experiment, error: Complaint) -> tuple[Experiment, Mapping[str, str]]:
    """Fill what follows from other keys, and return with it the origin of each filled key.

    Raises:
        ConfigError: what ``error`` makes, for a missing key or numbers that cannot be.
    """
    _check_present(experiment, error)
    batch, origins = _batch(experiment, error)
    experiment = experiment.model_copy(update={"batch": batch})
    if experiment.costs.name is None and experiment.model is None:
        costs = experiment.costs.model_copy(update={"name": DEFAULT_COSTS})
        experiment = experiment.model_copy(update={"costs": costs})
    _check_counts(experiment, error)
    _check_agreement(experiment, error)
    return experiment, origins


def _check_present(experiment: Experiment, error: Complaint) -> None:
    is_table = experiment.schedule.kind == "table"
    if experiment.parallel.pp is None and not is_table:
        raise error("parallel.pp", "missing: write the pipeline ranks, such as --pp 8")
    batch = experiment.batch
    if batch.microbatches is None and batch.global_batch is None and not is_table:
        raise error("batch", "missing: write batch.microbatches, such as --microbatches 32, or batch.global")
    if experiment.model is None:
        return
    if batch.sequence is None and batch.lengths is None:
        raise error("batch.sequence", "missing: a model needs the tokens in a sequence, such as --sequence 8192")
    if experiment.costs.name is None and experiment.device is None and experiment.cluster is None:
        raise error("device", "missing: a model's costs depend on it, write --device NAME or --costs unit")


def _batch(experiment: Experiment, error: Complaint) -> tuple[Batch, dict[str, str]]:
    batch, dp = experiment.batch, experiment.parallel.dp
    step = dp * batch.micro
    if batch.global_batch is None:
        if batch.microbatches is None:
            return batch, {}
        total = batch.microbatches * step
        return batch.model_copy(update={"global_batch": total}), {
            "batch.global": "derived: microbatches x dp x micro"
        }
    if batch.global_batch % step:
        raise error("batch.global", _not_divisible(batch.global_batch, dp, batch.micro))
    microbatches = batch.global_batch // step
    if batch.microbatches is not None and batch.microbatches != microbatches:
        raise error("batch.microbatches", _disagreement(batch, dp))
    if batch.microbatches is not None:
        return batch, {}
    return batch.model_copy(update={"microbatches": microbatches}), {
        "batch.microbatches": "derived: global / (dp x micro)"
    }


def _not_divisible(total: int, dp: int, micro: int) -> str:
    step = dp * micro
    below = total // step * step
    work = " or ".join(str(size) for size in (below, below + step) if size)
    return f"{total} is no multiple of dp x micro = {dp} x {micro} = {step}; nearest that work: {work}"


def _disagreement(batch: Batch, dp: int) -> str:
    total = (batch.microbatches or 0) * dp * batch.micro
    return (
        f"{batch.microbatches} x dp {dp} x micro {batch.micro} make {total} sequences, "
        f"but batch.global says {batch.global_batch}; leave one of them out"
    )


def _check_counts(experiment: Experiment, error: Complaint) -> None:
    parallel = experiment.parallel
    pp = parallel.pp or 1
    processes = pp * parallel.tp * parallel.dp * parallel.cp
    if processes > _MOST:
        sizes = f"pp {pp} x tp {parallel.tp} x dp {parallel.dp} x cp {parallel.cp}"
        raise error("parallel", f"{sizes} make {processes:,} processes; the most is {_MOST:,}")
    microbatches = experiment.batch.known_microbatches
    actions = 2 * pp * parallel.vp * microbatches
    if actions > _MOST:
        sizes = f"2 x pp {pp} x vp {parallel.vp} x microbatches {microbatches}"
        raise error("batch.microbatches", f"{sizes} make {actions:,} actions; the most is {_MOST:,}")


def _check_agreement(experiment: Experiment, error: Complaint) -> None:
    """Refuse keys that other keys leave without a meaning."""
    replica, replicas = experiment.batch.replica, experiment.parallel.dp
    if replica is not None and replica >= replicas:
        raise error("batch.replica", f"{replica}: the job has replicas 0 to {replicas - 1}")
    reduction = experiment.data_parallel
    if reduction.seed is not None and reduction.spread is None:
        raise error("data_parallel.seed", "nothing is drawn: write data_parallel.spread, too, or remove the key")
    if reduction.active_stages is not None and reduction.reshard not in {None, Reshard.NEVER}:
        message = f"reshard: {reduction.reshard.value} frees weights itself: remove one of the two keys"
        raise error("data_parallel.active_stages", message)
