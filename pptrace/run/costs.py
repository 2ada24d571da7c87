"""Durations and bytes of a step, its model parts and its sequence lengths."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.choices import Reshard
from pptrace.errors import ConfigError
from pptrace.network.collectives import LinkCollectives
from pptrace.plugins.construction import build_workload
from pptrace.plugins.guards import call_plugin
from pptrace.plugins.requests import CostRequest
from pptrace.run.devices import check_unread_device, preset_values, rank_devices, with_first_device
from pptrace.run.inputs import at_location
from pptrace.run.speeds import speeds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.network.contract import Network
    from pptrace.plugins.offers import CostModelOffer, Provided, ScheduleOffer
    from pptrace.plugins.requests import ScheduleRequest
    from pptrace.run.inputs import Assembly, OnCluster
    from pptrace.steps.columns import Int64s
    from pptrace.steps.workload import Workload

__all__ = ["Costs", "costs_of", "in_parts", "lengths_of", "part_times", "with_lengths", "with_reduction"]


def with_reduction(resolved: Resolved, network: Network) -> Resolved:
    """Let replicas reduce over a network like the pipeline's where none of their own is described."""
    experiment = resolved.experiment
    parallel, reduction = experiment.parallel, experiment.data_parallel
    if parallel.dp * parallel.cp == 1 or reduction.bandwidth is not None or (parallel.pp or 1) < 2:  # noqa: PLR2004 - a pair
        return resolved
    path = network.paths(np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int32))
    rate = int(path.rate_kbps[0]) * 1000
    if not rate:
        return resolved
    found = {"bandwidth": rate}
    if "data_parallel.latency" not in resolved.positions:
        found["latency"] = int(path.latency_ns[0])
    origins = {**resolved.origins, **{f"data_parallel.{key}": "as the pipeline's network" for key in found}}
    reduction = reduction.model_copy(update=found)
    return replace(
        resolved, experiment=experiment.model_copy(update={"data_parallel": reduction}), origins=origins
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """A cost model with its options checked, ready for any number of stages."""

    resolved: Resolved
    """Where errors are placed."""
    offer: Provided[CostModelOffer]
    """The cost model."""
    request: CostRequest
    """What it is asked for, but for the stages."""
    lengths: Int64s | None = None
    """Tokens in each microbatch's sequences, shape (replicas, microbatches); None where all are alike."""
    speeds: Int64s | None = None
    """Speeds of ranks in thousandths, shape (replicas, ranks); None where all have the device's."""

    def workload(
        self,
        stages: int,
        edges: tuple[tuple[int, int], ...],
        holders: tuple[tuple[int, ...], ...] = (),
        *,
        has_pairs: bool = False,
    ) -> Workload:
        """Return what actions cost where the model is cut into these stages.

        Args:
            stages: how many.
            edges: the stages' graph as (from, to), forward.
            holders: the ranks that hold each stage; none where stages loop over the ranks.
            has_pairs: whether the schedule has overlapped pairs.

        Raises:
            ConfigError: costs that these stages cannot have.
            PluginError: the cost model fails.
        """
        chain = tuple((stage, stage + 1) for stage in range(stages - 1))
        looped = tuple((stage % self.request.ranks,) for stage in range(stages))
        request = replace(
            self.request, stages=stages, edges=() if edges == chain else edges,
            stage_ranks=() if holders == looped else holders, has_pairs=has_pairs,
        )  # fmt: skip

        def of_one(length: int) -> Workload:
            return build_workload(self.offer, replace(request, sequence=length, global_batch=request.micro))

        with at_location(self.resolved, "costs"):
            base = build_workload(self.offer, request)
            if self.lengths is None:
                return base
            if base.classes:
                raise self.resolved.error("batch.lengths", "costs have lengths of their own: remove one of them")
            build = of_one if self.offer.offer.model is not None else None
            return with_lengths(base, self.lengths, request.sequence, request.micro, build)


def costs_of(work: Assembly, job: OnCluster | None) -> tuple[Assembly, Costs]:
    """Return the costs that a configuration names, or those that read its model.

    Raises:
        ConfigError: a value that the cost model cannot take, or no cost model for the model.
        PluginError: a name that no plugin offers.
    """
    work, provided = _cost_model(work)
    offer = provided.offer
    work, model = _described(work, "model", offer.model, offer.name)
    if offer.device is not None:
        work = with_first_device(work)
    work, device = _described(work, "device", offer.device, offer.name)
    work, by_rank = rank_devices(work, offer.device, device)
    work, options = _options(work, offer)
    if options.get("spread") and work.experiment.data_parallel.spread:
        message = "costs.spread lengthens all times for the slowest of the same GPUs: write one of the two keys"
        raise work.resolved.error("data_parallel.spread", message)
    resolved, lengths = lengths_of(work.resolved)
    work = work.at(resolved)
    experiment = work.experiment
    parallel, batch = experiment.parallel, experiment.batch
    ranks = parallel.pp or 1
    reduction = experiment.data_parallel
    request = CostRequest(
        ranks=ranks, stages=ranks * parallel.vp, microbatches=batch.known_microbatches,
        model=model, device=device, rank_devices=by_rank, options=options,
        tp=parallel.tp, cp=parallel.cp, dp=parallel.dp, ep=parallel.ep, etp=parallel.etp or 0,
        sequence_parallel=parallel.sequence_parallel, micro=batch.micro, sequence=batch.sequence or 0,
        global_batch=batch.global_batch or 0,
        collectives=LinkCollectives(network=job.cluster, layout=job.layout) if job else None,
        data_parallel={"rate_kbps": max(reduction.bandwidth // 1000, 1), "latency_ns": reduction.latency}
        if reduction.bandwidth else {},
        reshard=(reduction.reshard or Reshard.NEVER).value, reduce_each=bool(reduction.reduce_each),
    )  # fmt: skip
    return work, Costs(
        resolved=work.resolved, offer=provided, request=request, lengths=lengths, speeds=speeds_of(resolved)
    )


def _cost_model(work: Assembly) -> tuple[Assembly, Provided[CostModelOffer]]:
    name = work.experiment.costs.name
    if name is None:
        readers = [name for name, p in sorted(work.registry.cost_models.items()) if p.offer.model is not None]
        if len(readers) != 1:
            known = ", ".join(readers) or "none is installed: pip install pptrace-models"
            raise work.resolved.error("costs", f"write which cost model reads the model: {known}")
        (name,) = readers
        work = work.at(work.resolved.with_costs(name, "the cost model that reads models"))
    with at_location(work.resolved, "costs"):
        provided = work.registry.cost_models[name]
    return work.using(provided), provided


def _options(work: Assembly, offer: CostModelOffer) -> tuple[Assembly, dict[str, Any]]:
    """Return the cost model's checked options; an error names the cost models that have the option."""
    try:
        return work.options("costs", offer.options)
    except ConfigError as error:
        option = re.split(r"[.\[]", f"{error.key}.")[1]
        takers = [name for name, one in sorted(work.registry.cost_models.items()) if option in _fields(one.offer)]
        others = " or ".join(name for name in takers if name != offer.name)
        if option in work.registry.cost_models and offer.name not in takers:
            message = f"it is no option: write costs.name: {option}, and its options beside it"
        elif others and offer.name not in takers:
            message = f"{offer.name} costs do not take it: remove it, or write costs.name: {others}"
        elif others and "costs.name" not in work.resolved.positions:
            message = f"{error.message} (of {offer.name} costs; for others write costs.name: {others})"
        else:
            raise
        raise work.resolved.error(error.key, message) from None


def _fields(offer: CostModelOffer) -> Collection[str]:
    return offer.options().model_fields if offer.options else ()


def _described(work: Assembly, key: str, model: Any, costs: str) -> tuple[Assembly, dict[str, Any]]:
    """Return the model's or device's values, its preset's under those that the user wrote."""
    section = getattr(work.experiment, key)
    if model is None and key == "device":
        check_unread_device(work, costs)
        return work, {}
    if model is None:
        if section is not None:
            raise work.resolved.error(key, f"{costs} costs read no model: remove the key, or choose other costs")
        return work, {}
    if section is None:
        hint = "--model NAME" if key == "model" else "--device NAME"
        raise work.resolved.error(key, f"missing: costs {costs} depend on it, write {hint}")
    work, preset = preset_values(work, key, section.preset, key)
    return work.options(key, model, preset)


_BY_BYTES = (
    "activation_bytes", "weight_activation_bytes", "boundary_bytes", "boundary_gradient_bytes", "offload_bytes",
    "checkpoint_bytes",
    "offload_ns", "reload_ns",
)  # fmt: skip
"""What parts of unlike times have alike."""


def part_times(
    provided: Provided[ScheduleOffer], request: ScheduleRequest, workload: Workload
) -> Sequence[Fraction]:
    """Return the share of a microbatch's time that each of its parts takes; none where they are alike.

    Raises:
        PluginError: the schedule's own function fails.
    """
    told = provided.offer.part_times
    if told is None:
        return ()
    return call_plugin(provided.provider, told, replace(request, causal_share=_causal_share(workload)))


def _causal_share(workload: Workload) -> Fraction:
    kernels = workload.kernels() if workload.kernels else ()
    whole = sum(one.duration_ns for one in kernels)
    return Fraction(sum(one.duration_ns for one in kernels if one.causal), max(whole, 1))


def in_parts(workload: Workload, microbatches: int, parts: int, times: Sequence[Fraction]) -> Workload:
    """Return the costs of so many parts of each microbatch, one after the other.

    Args:
        workload: the costs of whole microbatches.
        microbatches: how many there are.
        parts: into how many each is cut.
        times: each part's share of the time; none where all are alike.
    """
    if len(set(times)) <= 1:
        return workload.divided(parts)
    used = workload.microbatch_class
    used = used if used.size else np.zeros(microbatches, dtype=np.int32)
    alike = replace(workload, classes=(), microbatch_class=np.zeros(0, dtype=np.int32))
    first, *others = (_part(one, share, parts) for one in (alike, *workload.classes) for share in times)
    number = np.repeat(used, parts) * parts + np.tile(np.arange(parts, dtype=np.int32), microbatches)
    return replace(first, classes=tuple(others), microbatch_class=number.astype(np.int32))


def _part(whole: Workload, share: Fraction, parts: int) -> Workload:
    """Return the costs of a part of ``share`` of the time, and of as many bytes as all others."""
    even = whole.scaled(Fraction(1, parts))
    return replace(whole.scaled(share), **{name: getattr(even, name) for name in _BY_BYTES})


_KEY = "batch.lengths"
_NUMBER = re.compile(r"[^\s,;]+")


def lengths_of(resolved: Resolved) -> tuple[Resolved, Int64s | None]:
    """Return what a configuration says of lengths, shape (replicas, microbatches), with the longest as sequence.

    Raises:
        ConfigError: a file that cannot be read or holds something else, another number of lengths, or one that
            passes the sequence.
    """
    batch, dp = resolved.experiment.batch, resolved.experiment.parallel.dp
    if batch.lengths is None:
        return resolved, None
    given = batch.lengths if isinstance(batch.lengths, list) else _read(resolved, batch.lengths)
    count = batch.known_microbatches
    if len(given) not in {count, dp * count}:
        each = f"{count} or, replica after replica, {dp * count}" if dp > 1 else str(count)
        of = f"{count} microbatches" + (f" on {dp} replicas" if dp > 1 else "")
        raise resolved.error(_KEY, f"{len(given)} lengths for {of}: write {each}")
    lengths = np.broadcast_to(np.array(given, dtype=np.int64).reshape(-1, count), (dp, count))
    longest = int(lengths.max())
    if batch.sequence is None:
        batch = batch.model_copy(update={"sequence": longest})
        origins = {"batch.sequence": "the longest of batch.lengths"}
        return resolved.with_section("batch", batch, origins), lengths
    if longest > batch.sequence:
        place = given.index(longest)
        raise resolved.error(_KEY, f"{longest} in place {place} passes batch.sequence ({batch.sequence})")
    return resolved, lengths


def _read(resolved: Resolved, file: str) -> list[int]:
    found = []
    try:
        whole = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        said = (error.strerror if isinstance(error, OSError) else "") or "it is no text"
        raise resolved.error(_KEY, f"{file} cannot be read: {said}") from None
    for line, text in enumerate(whole.splitlines(), start=1):
        for word in _NUMBER.findall(text):
            if not word.isdecimal() or not 0 < int(word) < 2**31:
                message = f"{file}, line {line}: {word[:20]!r} is no number of tokens: a whole number from 1"
                raise resolved.error(_KEY, message)
            found.append(int(word))
    return found


def with_lengths(
    base: Workload, lengths: Int64s, sequence: int, micro: int, build: Callable[[int], Workload] | None
) -> Workload:
    """Return costs of microbatches of unlike lengths; each microbatch has those of its first replica's.

    Args:
        base: costs of microbatches of ``sequence`` tokens.
        lengths: shape (replicas, microbatches).
        sequence: tokens in a sequence of the base.
        micro: sequences in a microbatch.
        build: returns the costs of a step of one microbatch whose sequences have so many tokens; None where costs
            read no model, whose microbatches cost as much as they are long.
    """
    distinct, number = np.unique(lengths, return_inverse=True)
    number = number.reshape(lengths.shape)
    classes = [build(length) if build else base.scaled(Fraction(length, sequence)) for length in distinct.tolist()]
    flops = [one.model_flops for one in classes] if build else [0] * len(classes)
    times = np.bincount(number.ravel(), minlength=distinct.size).tolist()
    return replace(
        base, classes=tuple(classes), microbatch_class=(number[0] + 1).astype(np.int32),
        tokens=micro * int(lengths.sum()),
        model_flops=sum(own * count for own, count in zip(flops, times, strict=True)),
    )  # fmt: skip
