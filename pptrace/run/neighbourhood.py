"""Candidates near a configuration, and estimates that choose among them.

A candidate has another division of the same processes, size of microbatches, chunks per rank, schedule, or
switches of training state and messages. Users can make all of these changes.

An estimate is the larger of computation (with recomputation) and copies of the slowest rank, plus the schedule's
bubble and the end of the step. Without a pipeline, reductions of units overlap with backwards. Memory is estimated
at peak activations. Estimates omit all other waits, so a simulated step is rarely shorter.
"""

from __future__ import annotations

import json
import shlex
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args, get_origin

import numpy as np
from msgspec import Struct

from pptrace.config.choices import CopyStream, PolicyName, Reshard
from pptrace.config.flags import FLAGS
from pptrace.errors import PptraceError
from pptrace.plugins.construction import checked_options
from pptrace.plugins.guards import plugin_code
from pptrace.plugins.requests import ScheduleRequest
from pptrace.run.table_changes import is_sharded, units_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pydantic import BaseModel

    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import Experiment, Offload, Recompute
    from pptrace.plugins.offers import ScheduleOffer
    from pptrace.plugins.providers import Provided
    from pptrace.plugins.registry import Registry
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.steps.columns import Int64s
    from pptrace.steps.workload import Workload

_ALWAYS_HELD = 3
"""Activations on a rank that copies do not remove: one in use, one in each direction of copies."""


_EQUAL_WORK_RATIO = 1.01
"""Maximum ratio between the computation of two steps with the same work."""


def has_equal_work(first_ns: int, second_ns: int) -> bool:
    """Return whether two steps compute the same; costs per stage do not hold for other numbers of stages."""
    return max(first_ns, second_ns) <= _EQUAL_WORK_RATIO * min(first_ns, second_ns)


class Estimate(NamedTuple):
    """An estimated step."""

    step_ns: int
    """The step time."""
    peak_bytes: int
    """The memory of the fullest rank."""
    fits: bool
    """Whether the memory fits the device; true for unknown devices."""
    reduction_ns: int = 0
    """The part of the step in which only gradients are reduced over replicas."""


def estimate(
    provided: Provided[ScheduleOffer],
    workload: Workload,
    ranks: int,
    microbatches: int,
    options: Mapping[str, Any] | None = None,
    offload: Offload | None = None,
    recompute: Recompute | None = None,
    *,
    hides: bool = False,
    experiment: Experiment | None = None,
) -> Estimate | None:
    """Return an estimate of a schedule's step; None if it cannot run or has no closed forms.

    Args:
        provided: the schedule.
        workload: costs of the stages of all chunks.
        ranks: pipeline ranks.
        microbatches: microbatches of one pipeline.
        options: options of the configured schedule, which defaults to the closed forms of 1F1B; None for defaults.
        offload: copies of activations to the host.
        recompute: recomputation by separate actions.
        hides: whether overlapped pairs hide all collectives, which is an upper bound.
        experiment: the configuration of the data-parallel replicas; None for reductions that do not overlap.
    """
    if recompute is not None and (offload is not None or not workload.recompute_ns.any()):
        return None
    chunks = workload.stages // ranks
    forms = _closed_forms(provided, ranks, microbatches, chunks, options)
    if forms is None:
        return None
    share, peak_activations = forms
    hidden_ns = workload.f_collective_ns + workload.b_collective_ns if hides else 0
    compute_ns = _by_rank(workload.f_ns + workload.b_ns - hidden_ns, ranks)
    is_recomputed = _selected_stages(workload, ranks, recompute)
    recompute_ns = _by_rank(np.where(is_recomputed, workload.recompute_ns, 0), ranks)
    pipeline_ns = compute_ns if recompute is not None and recompute.early else compute_ns + recompute_ns
    idle_ns = float(pipeline_ns.mean()) * microbatches * share / (1 - share)
    if len(peak_activations) != ranks:
        peak_activations = [float(min(ranks - rank, ranks) * chunks) for rank in range(ranks)]
    chunk_peaks = np.array(peak_activations)
    is_copied = _selected_stages(workload, ranks, offload)
    if offload is not None and offload.gap:
        # By Little's law, activations wait for the computation of all other activations on the rank.
        waits_ns = (chunk_peaks - 1) * compute_ns / chunks
        copies_ns = (workload.offload_ns + workload.reload_ns) * offload.ratio
        is_copied &= np.tile(waits_ns, chunks) > offload.gap * copies_ns
    reduction, update = (int(_by_rank(time, ranks).max()) for time in (workload.reduce_ns, workload.optimizer_ns))
    ratio = 0 if offload is None else offload.ratio
    copied_bytes = np.where(is_copied, workload.copied_bytes * ratio, 0).astype(np.int64)
    peaks = _peaks(workload, chunk_peaks, chunks, copied_bytes, is_recomputed)
    computation_ns = int((compute_ns + recompute_ns).max()) * microbatches + int(idle_ns)
    if experiment is not None and workload.stages == 1:
        computation_ns, reduction = _beside_collectives(
            experiment, workload, microbatches, computation_ns, has_pairs=provided.offer.has_pairs
        )
    return Estimate(
        step_ns=max(computation_ns, _copying_ns(workload, is_copied, ranks, offload) * microbatches)
        + reduction + update + workload.sync_ns,
        peak_bytes=int(peaks.max()),
        fits=not workload.capacity_bytes or bool((peaks <= workload.capacities(ranks)).all()),
        reduction_ns=reduction,
    )  # fmt: skip


def _beside_collectives(
    experiment: Experiment, workload: Workload, microbatches: int, computation_ns: int, *, has_pairs: bool
) -> tuple[int, int]:
    """Return the times of computation, and of exposed reductions, of a step without a pipeline.

    A unit is reduced while the backward of the units before it computes, which the collectives slow down. Exposed
    are the last unit, and the part of a reduction that exceeds the backward.
    """
    configured, reduce_ns = experiment.data_parallel, int(workload.reduce_ns[0])
    units = units_of(configured, workload, has_pairs=has_pairs)
    if units == 1 or not configured.overlaps:
        return computation_ns, reduce_ns
    reductions = microbatches if is_sharded(workload) and configured.reduces_each(units=True) else 1
    exposed_ns = max(reduce_ns, units * reduce_ns - int(workload.b_ns[0]) * (units - 1)) // units
    passes = {Reshard.NEVER: 1, Reshard.BACKWARD: microbatches}
    rule = configured.reshard_rule or Reshard.ALWAYS
    gathers = passes.get(rule, 2 * microbatches) if workload.gathered_bytes.any() else 1
    hidden_ns = reductions * (reduce_ns - exposed_ns) + gathers * int(workload.unshard_ns[0])
    slowed_ns = computation_ns + round(min(hidden_ns, computation_ns) * (1 - experiment.contention.compute))
    return max(slowed_ns, hidden_ns), reductions * exposed_ns


def _closed_forms(
    provided: Provided[ScheduleOffer],
    ranks: int,
    microbatches: int,
    chunks: int,
    options: Mapping[str, Any] | None,
) -> tuple[float, list[float]] | None:
    """Return bubble and activations per rank by a schedule's closed forms; None without a bubble."""
    offer = provided.offer
    if offer.bubble is None and options is None:
        return None
    try:
        with plugin_code(provided.provider, offer.build):
            checked = {**_default_options(provided)} if options is None else options
            request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks, options=checked)
            if offer.check is not None:
                offer.check(request)
            bubble = offer.bubble(request) if offer.bubble else None
            share = None if bubble is None else float(bubble)
            peaks = (offer.peak_activations(request) if offer.peak_activations else None) or ()
            peak_activations = [float(peak) for peak in peaks]
    except PptraceError:
        return None
    if share is None and options is not None:
        share = (ranks - 1) / (chunks * microbatches + ranks - 1)
    return None if share is None or not 0 <= share < 1 else (share, peak_activations)


@lru_cache(maxsize=128)
def _default_options(provided: Provided[ScheduleOffer]) -> Mapping[str, Any]:
    """Return the default options of a schedule, which all its candidates share."""
    return checked_options(provided, {}, "schedule.options")


def _peaks(
    workload: Workload,
    chunk_peaks: NDArray[np.float64],
    chunks: int,
    copied_bytes: Int64s,
    is_recomputed: NDArray[np.bool_],
) -> Int64s:
    """Return the peak memory of each rank; ``chunk_peaks`` are its peak activations of chunks."""
    ranks = chunk_peaks.size
    state = workload.static_bytes
    dropped_bytes = np.where(is_recomputed, workload.activation_bytes - workload.checkpoint_bytes, 0)
    stored, offloaded, dropped = (
        _by_rank(size, ranks) / chunks for size in (workload.activation_bytes, copied_bytes, dropped_bytes)
    )
    activation_bytes = stored * chunk_peaks - offloaded * np.maximum(chunk_peaks - _ALWAYS_HELD, 0)
    activation_bytes -= dropped * np.maximum(chunk_peaks - 1, 0)
    peaks: Int64s = (_by_rank(state, ranks) + activation_bytes).astype(np.int64) + workload.reserved_bytes
    return peaks


def _selected_stages(workload: Workload, ranks: int, selection: Offload | Recompute | None) -> NDArray[np.bool_]:
    stage = np.arange(workload.stages)
    is_selected: NDArray[np.bool_] = np.full(workload.stages, selection is not None)
    if selection is not None and selection.stages is not None:
        is_selected &= np.isin(stage, selection.stages)
    if selection is not None and selection.chunks is not None:
        is_selected &= np.isin(stage // ranks, selection.chunks)
    return is_selected


def _copying_ns(workload: Workload, is_copied: NDArray[np.bool_], ranks: int, offload: Offload | None) -> int:
    """Return the time of copies per microbatch on the busiest copy stream."""
    if offload is None:
        return 0
    out_ns, back_ns = (
        _by_rank(np.where(is_copied, times * offload.ratio, 0).astype(np.int64), ranks)
        for times in (workload.offload_ns, workload.reload_ns)
    )
    if offload.stream is CopyStream.RANK:
        return int((out_ns + back_ns).max())
    if offload.stream is CopyStream.PAIR:
        out_ns, back_ns = (np.add.reduceat(times, np.arange(0, ranks, 2)) for times in (out_ns, back_ns))
    return int(np.maximum(out_ns, back_ns).max())


def _by_rank(values: Int64s, ranks: int) -> Int64s:
    """Return the sum over each rank's stages, which loop over the ranks."""
    total: Int64s = values.reshape(-1, ranks).sum(axis=0)
    return total


_POLICY: Mapping[str, Any] = {"p2p.policy": "ordered", "p2p.stream": "direction"}
"""The message policy of candidates, for configurations without ideal messages and without a framework's policy."""

_MEMORY_SAVING = (("parallel.sequence_parallel", False), ("costs.zero", False), ("model.recompute", True))
"""Keys whose later values save more memory, each with whether they cost time."""

WIDELY: Mapping[str, tuple[Any, ...]] = {"costs.zero": (0, 1)}
"""Values that plans and memory savings try by default: those of every framework with pipelines."""

DIVISION = frozenset(
    {
        "parallel.pp",
        "parallel.tp",
        "parallel.dp",
        "parallel.vp",
        "batch.micro",
        "batch.microbatches",
        "schedule.name",
    }
)
"""Layout keys, which depend on each other: a change without one of them can be invalid."""

_FLAG_OF = {key: name for name, flag in FLAGS.items() for key in (flag.key, f"{flag.key}.{flag.headline}")}
"""The flag of a key, with or without its headline."""

_CHUNKS = range(1, 9)

Factor: TypeAlias = Fraction | float
"""A factor of a size."""


class Change(NamedTuple):
    """Settings that override a configuration."""

    settings: Mapping[str, Any]
    """Values by key."""

    @property
    def flags(self) -> dict[str, Any]:
        """Return the settings with a flag on the command line, by flag; flags override other settings."""
        return {_FLAG_OF[key]: value for key, value in self.settings.items() if key in _FLAG_OF}

    @property
    def sets(self) -> list[str]:
        """Return the settings without a flag, as ``--set`` takes them."""
        return [f"{key}={_text(value)}" for key, value in self.settings.items() if key not in _FLAG_OF]

    @property
    def words(self) -> list[str]:
        """Return the arguments to append to the command ``pptrace simulate``."""
        words = [word for name, value in self.flags.items() for word in (f"--{name}", _text(value))]
        return [*words, *(word for text in self.sets for word in ("--set", text))]

    @property
    def arguments(self) -> str:
        """Return :attr:`words`, quoted for a shell."""
        return shlex.join(self.words)

    def with_settings(self, settings: Mapping[str, Any]) -> Change:
        """Return the change with further settings."""
        return Change(settings={**self.settings, **settings})

    def without(self, keys: frozenset[str]) -> Change:
        """Return the change without some settings."""
        return Change(settings={key: value for key, value in self.settings.items() if key not in keys})


class Sizes(NamedTuple):
    """Division of a job's processes, and the size of its microbatches."""

    pp: int
    tp: int
    dp: int
    micro: int

    def microbatches(self, global_batch: int) -> int:
        """Return the microbatches of one pipeline in a step; 0 if replicas and size do not divide the batch."""
        count, remainder = divmod(global_batch, self.dp * self.micro)
        return 0 if remainder else count


def sizes_of(
    experiment: Experiment,
    pp: Sequence[Factor] = (1,),
    tp: Sequence[Factor] = (1,),
    micro: Sequence[Factor] = (1,),
) -> Iterator[Sizes]:
    """Yield sizes with the same processes and global batch, the configured sizes first.

    Costs without a model are valid for one division only, and a table for its number of microbatches. ``pp``,
    ``tp`` and ``micro`` are factors of the configured sizes.
    """
    parallel, batch = experiment.parallel, experiment.batch
    configured = Sizes(pp=parallel.pp or 1, tp=parallel.tp, dp=parallel.dp, micro=batch.micro)
    yield configured
    if experiment.model is None or experiment.schedule.kind == "table" or parallel.grids:
        return
    processes = configured.pp * configured.tp * configured.dp
    for factors in product(pp, tp, micro):
        ranks, tensor, sequences = map(_times, (configured.pp, configured.tp, configured.micro), factors)
        if not ranks or not tensor or not sequences or processes % (ranks * tensor):
            continue
        sizes = Sizes(pp=ranks, tp=tensor, dp=processes // (ranks * tensor), micro=sequences)
        if sizes != configured and sizes.microbatches(batch.global_batch or 0) >= 1:
            yield sizes


def chunks_of(experiment: Experiment, configured: int, ranks: int, *, deep: bool) -> list[int]:
    """Return chunks per rank: ``configured``, one, and the largest number that divides the model's layers.

    ``deep`` returns all numbers that divide the layers.
    """
    layers = experiment.model.values.get("layers") if experiment.model else None
    if not isinstance(layers, int) or layers % ranks:
        return sorted({1, 2, 4, configured})
    divisors = [chunks for chunks in _CHUNKS if layers // ranks % chunks == 0]
    return sorted({configured, *(divisors if deep else (1, divisors[-1]))})


def memory_savings(resolved: Resolved, registry: Registry) -> list[dict[str, Any]]:
    """Return settings by increasing memory savings, settings without a cost in time first.

    The first settings have the least recomputation, even if the configuration has more.
    """
    steps: list[dict[str, Any]] = [{}]
    for key, costs_time in _MEMORY_SAVING:
        values, configured = words_of(resolved, registry, key), value_of(resolved, key)
        if configured not in values:
            continue
        if key in WIDELY:  # other values need other frameworks, and change messages of replicas
            values = tuple(value for value in values if value in {*WIDELY[key], configured})
        if costs_time and configured != values[0]:
            steps = [{**step, key: values[0]} for step in steps]
        first = 1 if costs_time else values.index(configured) + 1
        steps += [{**steps[-1], key: value} for value in values[first:]]
    configured_values = {key: value_of(resolved, key) for key, _ in _MEMORY_SAVING}
    return [{key: value for key, value in step.items() if value != configured_values[key]} for step in steps]


def policy_settings(run: SimulatedStep) -> dict[str, Any]:
    """Return the settings of the candidates' message policy that differ from the configuration's."""
    resolved = run.prepared.resolved
    policy = resolved.experiment.p2p.policy
    is_fixed = policy == PolicyName.ASYNC.value or policy not in PolicyName.words()
    if is_fixed or run.prepared.schedule.ranks == 1:
        return {}
    return {key: value for key, value in _POLICY.items() if value_of(resolved, key) != value}


def schedules_of(run: SimulatedStep) -> list[str]:
    """Return the schedules of candidates, the configured schedule first.

    There are no other schedules if it is a file, or has options on the command line, which other schedules lack.
    Schedules with different parts of microbatches are excluded: costs ignore the inefficiency of small parts.
    So are schedules that train with older weights.
    """
    resolved = run.prepared.resolved
    choice = resolved.experiment.schedule
    if choice.kind != "plugin":
        return [choice.name] if choice.kind == "python" else []
    is_fixed = any(
        key.startswith(("schedule.options.", "schedule.interleave")) and str(place.source) != resolved.file
        for key, place in resolved.positions.items()
    )
    schedules = run.registry.schedules
    other_names = [
        name
        for name in sorted(schedules)
        if name != choice.name
        and schedules[name].offer.part_times is None
        and not schedules[name].offer.only_by_name
    ]
    return [choice.name, *(() if is_fixed else other_names)]


def change_of(run: SimulatedStep, sizes: Sizes, chunks: int, schedule: str, switches: Mapping[str, Any]) -> Change:
    """Return the difference of a candidate to a configuration."""
    resolved = run.prepared.resolved
    batch = resolved.experiment.batch
    is_other = schedule not in {"", resolved.experiment.schedule.name}
    values: dict[str, Any] = {"schedule.name": schedule} if is_other else {}
    values |= {
        "parallel.pp": sizes.pp,
        "parallel.tp": sizes.tp,
        "parallel.dp": sizes.dp,
        "batch.micro": sizes.micro,
    }
    settings = {key: value for key, value in values.items() if value_of(resolved, key) != value}
    if chunks != run.prepared.chunks or is_other:
        settings["parallel.vp"] = chunks
    microbatches = sizes.microbatches(batch.global_batch or 0)
    if "batch.microbatches" in resolved.positions and microbatches != batch.microbatches:
        settings["batch.microbatches"] = microbatches
    return Change(settings={**settings, **switches})


def words_of(resolved: Resolved, registry: Registry, key: str) -> tuple[Any, ...]:
    """Return the values of a switch, in their order; none if the cost model does not have it."""
    experiment = resolved.experiment
    if key == "parallel.sequence_parallel":
        return (False, True) if experiment.parallel.tp > 1 else ()
    if experiment.costs.name is None:
        return ()
    offer = registry.cost_models[experiment.costs.name].offer
    section, _, name = key.partition(".")
    model = offer.options if section == "costs" else offer.model
    return literals(model()).get(name, ()) if model is not None else ()


def literals(model: type[BaseModel]) -> dict[str, tuple[Any, ...]]:
    """Return the parameters of a model with a closed set of values, and these values."""
    fields = model.model_fields.items()
    return {name: get_args(info.annotation) for name, info in fields if get_origin(info.annotation) is Literal}


def value_of(resolved: Resolved, key: str) -> Any:
    """Return the plain value of a key; None where the configuration does not have its section."""
    section, _, name = key.partition(".")
    part = getattr(resolved.experiment, section)
    if part is None:
        return None
    value = getattr(part, name, None) if name in type(part).model_fields else part.values.get(name)
    return getattr(value, "value", value)


def _times(size: int, factor: Factor) -> int:
    """Return a size times a factor; 0 if the product is not a whole number."""
    scaled = Fraction(factor) * size
    return int(scaled) if scaled.denominator == 1 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Trial(Struct, frozen=True):
    """A simulated candidate."""

    change: Change
    """The difference to the configuration."""
    step_ns: int | None = None
    """Its step; None if it cannot run."""
    peak_bytes: int = 0
    """The memory of its fullest rank; 0 for costs without memory."""
    rank: int = 0
    """The fullest rank; the lowest number in case of a tie."""
    device_bytes: int = 0
    """The memory of that rank's device; 0 where unknown."""
    activation_bytes: int = 0
    """Peak activations on a rank."""
    fits: bool = True
    """Whether every rank fits its device."""
    reason: str = ""
    """The reason why it cannot run, in one line."""

    @classmethod
    def of(cls, change: Change, run: SimulatedStep) -> Trial:
        """Return the result of a simulated candidate."""
        memory = run.memory
        return cls(
            change=change, step_ns=run.step_ns, peak_bytes=memory.fullest_bytes,
            rank=memory.fullest, device_bytes=memory.fullest_device_bytes, fits=memory.over_capacity is None,
            activation_bytes=int(memory.peak_activation_bytes.max(initial=0)),
        )  # fmt: skip

    @classmethod
    def refused(cls, change: Change, error: PptraceError) -> Trial:
        """Return a candidate that cannot run."""
        return cls(change=change, reason=" ".join(str(error).split()), fits=False)

    @property
    def order(self) -> tuple[bool, int, int]:
        """Return the sort key: by step for candidates that fit, else by memory; then by number of settings."""
        amount = (self.step_ns or 0) if self.fits else self.peak_bytes
        return not self.fits, amount, len(self.change.settings)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "settings": dict(self.change.settings),
            "arguments": self.change.arguments,
            "step_ns": self.step_ns,
            "peak_memory_bytes": self.peak_bytes,
            "fits": self.fits,
            "refused": self.reason or None,
        }


class Advice(NamedTuple):
    """Simulated candidates, and the best of them."""

    best: Trial | None
    """The shortest step that fits; None if none fits or is shorter than the configuration's."""
    tried: tuple[Trial, ...]
    """All simulated candidates, in order."""
    estimated: int
    """Number of estimated candidates."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, times in ns and sizes in bytes."""
        return {
            "best": self.best.to_dict() if self.best else None,
            "tried": [candidate.to_dict() for candidate in self.tried],
            "estimated": self.estimated,
        }
