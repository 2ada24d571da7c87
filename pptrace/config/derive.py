"""Numbers that follow from others, and the numbers that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from pptrace.config.experiment import Batch, Experiment, NamedChoice
from pptrace.errors import ConfigError

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
    if experiment.costs is None and experiment.model is None:
        experiment = experiment.model_copy(update={"costs": NamedChoice(name="unit")})
    _check_counts(experiment, error)
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
    if experiment.costs is None and experiment.device is None and experiment.cluster is None:
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
