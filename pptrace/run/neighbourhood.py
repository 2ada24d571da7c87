"""Candidates near a configuration.

A candidate has another division of the same processes, size of microbatches, chunks per rank, schedule, or
switches of training state and messages. Users can make all of these changes.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, get_origin

from pptrace.config.choices import PolicyName
from pptrace.config.flags import FLAGS
from pptrace.config.quantities import exact_size, parse_size
from pptrace.config.schema import Offload, Recompute
from pptrace.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic import BaseModel

    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import Experiment, ScheduleChoice
    from pptrace.errors import PptraceError
    from pptrace.plugins.offers import CostModelOffer, ScheduleOffer
    from pptrace.plugins.registry import Registry
    from pptrace.run.costs import Costs
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.steps.workload import Workload

_POLICIES: tuple[Mapping[str, Any], ...] = ({"p2p.policy": "ordered", "p2p.stream": "direction"},)
"""Message policies of candidates, for configurations without ideal messages and without a framework's policy."""

_LEAVES_ROOM = (("parallel.sequence_parallel", False), ("costs.zero", False), ("model.recompute", True))
"""Settings whose later values save more memory, and whether these cost time."""

WIDELY: Mapping[str, tuple[Any, ...]] = {"costs.zero": (0, 1)}
"""Values that every framework with pipelines has."""

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
"""Keys that depend on each other: a change without one of them is invalid."""

_FLAG_OF = {key: name for name, flag in FLAGS.items() for key in (flag.key, f"{flag.key}.{flag.headline}")}
"""The flag of a key, with or without its headline."""

_CHUNKS = range(1, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Settings over a configuration."""

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
    def arguments(self) -> str:
        """Return the arguments to append to the command ``pptrace simulate``."""
        words = [word for name, value in self.flags.items() for word in (f"--{name}", _text(value))]
        return shlex.join([*words, *(word for text in self.sets for word in ("--set", text))])

    def with_settings(self, more: Mapping[str, Any]) -> Change:
        """Return the change with further settings."""
        return Change(settings={**self.settings, **more})

    def without(self, keys: frozenset[str]) -> Change:
        """Return the change without some settings."""
        return Change(settings={key: value for key, value in self.settings.items() if key not in keys})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Division of a job's processes, and the size of its microbatches."""

    pp: int
    tp: int
    dp: int
    micro: int

    def microbatches(self, global_batch: int) -> int:
        """Return the microbatches of one pipeline in a step; 0 where they do not divide the batch."""
        count, rest = divmod(global_batch, self.dp * self.micro)
        return 0 if rest else count


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Factors of sizes of candidates."""

    pp: tuple[Fraction | float, ...]
    """Of the number of pipeline ranks."""
    tp: tuple[Fraction | float, ...]
    """Of the tensor-parallel size."""
    micro: tuple[Fraction | float, ...] = (1,)
    """Of the sequences in a microbatch."""


def sizes_of(experiment: Experiment, reach: Reach) -> Iterator[Sizes]:
    """Yield sizes with the same processes and global batch, the configuration's own first.

    Costs without a model hold for one division only, and a table for its own microbatches.
    """
    parallel, batch = experiment.parallel, experiment.batch
    pp, total = parallel.pp or 1, batch.global_batch or 0
    own = Sizes(pp=pp, tp=parallel.tp, dp=parallel.dp, micro=batch.micro)
    yield own
    if experiment.model is None or experiment.schedule.kind == "table":
        return
    group = pp * parallel.tp * parallel.dp
    for along_pp, along_tp, of_micro in product(reach.pp, reach.tp, reach.micro):
        ranks, tensor, micro = _times(pp, along_pp), _times(parallel.tp, along_tp), _times(batch.micro, of_micro)
        if not ranks or not tensor or not micro or group % (ranks * tensor):
            continue
        sizes = Sizes(pp=ranks, tp=tensor, dp=group // (ranks * tensor), micro=micro)
        if sizes != own and sizes.microbatches(total) >= 1:
            yield sizes


def chunks_of(experiment: Experiment, own: int, ranks: int, *, deep: bool) -> list[int]:
    """Return chunks per rank: the configuration's ``own``, one, and the largest that divides the model's layers.

    ``deep`` returns all numbers that divide the layers.
    """
    layers = experiment.model.values.get("layers") if experiment.model else None
    if not isinstance(layers, int) or layers % ranks:
        return sorted({1, 2, 4, own})
    whole = [chunks for chunks in _CHUNKS if layers // ranks % chunks == 0]
    return sorted({own, *(whole if deep else (1, whole[-1]))})


def memory_savings(resolved: Resolved, registry: Registry) -> list[dict[str, Any]]:
    """Return settings by increasing memory savings, those without a cost in time first.

    The first have the least recomputation, even where the configuration has more.
    """
    steps: list[dict[str, Any]] = [{}]
    for key, costs_time in _LEAVES_ROOM:
        values, own = words_of(resolved, registry, key), value_of(resolved, key)
        if own not in values:
            continue
        if key in WIDELY:  # other values need other frameworks, and change messages of replicas
            values = tuple(value for value in values if value in {*WIDELY[key], own})
        if costs_time and own != values[0]:
            steps = [{**step, key: values[0]} for step in steps]
        steps += [{**steps[-1], key: value} for value in values[1 if costs_time else values.index(own) + 1 :]]
    own_values = {key: value_of(resolved, key) for key, _ in _LEAVES_ROOM}
    return [{key: value for key, value in step.items() if value != own_values[key]} for step in steps]


def policies(run: SimulatedStep) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of message policies that differ from the configuration's."""
    resolved = run.prepared.resolved
    policy = resolved.experiment.p2p.policy
    fixed = policy == PolicyName.ASYNC.value or policy not in PolicyName.words()
    if fixed or run.prepared.schedule.ranks == 1:
        return
    for settings in _POLICIES:
        changed = {key: value for key, value in settings.items() if value_of(resolved, key) != value}
        if changed:
            yield changed


def schedules_of(run: SimulatedStep) -> list[str]:
    """Return the schedules of candidates, the configuration's own first.

    There is only the own schedule if it is a file, or has options on the command line, which others do not take.
    Schedules with different parts of microbatches are excluded, as costs do not count the loss of small parts.
    """
    resolved = run.prepared.resolved
    choice = resolved.experiment.schedule
    if choice.kind != "plugin":
        return [choice.name] if choice.kind == "python" else []
    fixed = any(
        key.startswith(("schedule.options.", "schedule.interleave")) and str(place.source) != resolved.file
        for key, place in resolved.positions.items()
    )
    schedules = run.registry.schedules
    others = [
        name for name in sorted(schedules) if schedules[name].offer.part_times is None and name != choice.name
    ]
    return [choice.name, *(() if fixed else others)]


def change_of(run: SimulatedStep, sizes: Sizes, chunks: int, schedule: str, switches: Mapping[str, Any]) -> Change:
    """Return the difference of a candidate to a configuration."""
    resolved = run.prepared.resolved
    batch = resolved.experiment.batch
    other = schedule not in {"", resolved.experiment.schedule.name}
    wanted: dict[str, Any] = {"schedule.name": schedule} if other else {}
    wanted |= {
        "parallel.pp": sizes.pp,
        "parallel.tp": sizes.tp,
        "parallel.dp": sizes.dp,
        "batch.micro": sizes.micro,
    }
    settings = {key: value for key, value in wanted.items() if value_of(resolved, key) != value}
    if chunks != run.prepared.schedule.stages // run.prepared.schedule.ranks or other:
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


def _times(size: int, factor: Fraction | float) -> int:
    """Return a size times a factor; 0 where that is no whole number."""
    product_of = Fraction(factor) * size
    return int(product_of) if product_of.denominator == 1 else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


Settings: TypeAlias = "Mapping[str, Any]"

_MICRO: tuple[Fraction | float, ...] = (2, 0.5, 4, 0.25)
_LESS = (Fraction(15, 16), Fraction(7, 8), Fraction(13, 16), Fraction(3, 4))
"""Shares of a variant's activations for which another order is generated."""
_MIB = 2**20
_RATIOS = (0.25, 0.5, 1)
"""Shares of copied activations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Inputs for the values of settings."""

    resolved: Resolved
    """The configuration with its schedule, all options filled in."""
    registry: Registry
    """The plugins."""
    offer: ScheduleOffer | None
    """The schedule; None for a table file."""
    options: Settings
    """Its options, defaults included."""
    chunks: int
    """Chunks per rank of the configuration; 0 where it does not run or ranks differ in them."""
    activation_bytes: int = 0
    """Peak activations on a rank of the current variant; 0 before any simulation."""
    copies_take_time: bool = False
    """Whether the costs have times of copies to the host and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedSetting:
    """One variable setting, or several dependent settings."""

    name: str
    """Its name for ``--vary``."""
    text: str
    """Its description."""
    values: Callable[[Ground], Sequence[Settings]]
    """Returns values that differ from the configuration's, each as settings by key."""
    is_estimated: bool = True
    """Whether estimates depend on it; other settings are varied on the best variant by estimate."""
    is_tried: bool = False
    """Whether its values are varied on the best variant too; estimates do not combine them with options."""
    on_request: bool = False
    """Whether it varies only if named."""


def varied_settings(names: Sequence[str], source: str) -> tuple[VariedSetting, ...]:
    """Return the named settings, in the order of the table; by default, all except those on request.

    Args:
        names: names for ``--vary``.
        source: their name in errors.

    Raises:
        ConfigError: an unknown name.
    """
    known = [setting.name for setting in VARIED]
    for name in names:
        if name not in known:
            raise ConfigError(f"{name!r} is nothing that differs{nearest(name, known)}", file=source)
    return tuple(s for s in VARIED if (s.name in names if names else not s.on_request))


def _chunks(ground: Ground) -> list[Settings]:
    experiment = ground.resolved.experiment
    if experiment.schedule.kind == "table":
        return []
    own = ground.chunks or experiment.parallel.vp
    counts = chunks_of(experiment, own, experiment.parallel.pp or 1, deep=True)
    return [{"parallel.vp": count} for count in counts if count != ground.chunks]


def _micro(ground: Ground) -> list[Settings]:
    experiment = ground.resolved.experiment
    written = "batch.microbatches" in ground.resolved.positions
    values: list[Settings] = []
    for sizes in sizes_of(experiment, Reach(pp=(1,), tp=(1,), micro=_MICRO)):
        count = sizes.microbatches(experiment.batch.global_batch or 0)
        if sizes.micro != experiment.batch.micro:
            values.append({"batch.micro": sizes.micro, **({"batch.microbatches": count} if written else {})})
    return values


def _words(key: str) -> Callable[[Ground], list[Settings]]:
    def values(ground: Ground) -> list[Settings]:
        own = value_of(ground.resolved, key) if words_of(ground.resolved, ground.registry, key) else None
        words = words_of(ground.resolved, ground.registry, key)
        return [{key: word} for word in words if word != own]

    return values


def _options(ground: Ground) -> list[Settings]:
    if ground.offer is None or ground.offer.options is None:
        return []
    return [
        {f"schedule.options.{name}": word}
        for name, words in literals(ground.offer.options()).items()
        for word in words
        if word != ground.options.get(name)
    ]


def _order_memory(ground: Ground) -> list[Settings]:
    """Return memory limits below that of an order; an order for a lower limit is sometimes shorter."""
    if ground.offer is None or ground.options.get("order") == "fixed" or "memory" not in ground.options:
        return []
    sizes = [int(ground.activation_bytes * part) // _MIB * _MIB for part in _LESS]
    return [{"schedule.options.memory": exact_size(size)} for size in sizes if size]


def _offload(ground: Ground) -> list[Settings]:
    """Return shares of copied activations."""
    own = ground.resolved.experiment.schedule
    if not ground.copies_take_time or own.offload is not None or own.recompute is not None:
        return []
    return [{"schedule.offload.ratio": ratio} for ratio in _RATIOS]


def _recompute_actions(ground: Ground) -> list[Settings]:
    own = ground.resolved.experiment.schedule
    if own.offload is not None or own.recompute is not None:
        return []
    return [{"schedule.recompute.early": early} for early in (False, True)]


VARIED = (
    VariedSetting(name="vp", text="chunks of the model per rank", values=_chunks),
    VariedSetting(name="micro", text="sequences in a microbatch", values=_micro),
    VariedSetting(name="recompute", text="what the backward computes again", values=_words("model.recompute")),
    VariedSetting(name="zero", text="the ZeRO stage", values=_words("costs.zero"), on_request=True),
    VariedSetting(
        name="sequence-parallel", text="whether activations are split over the sequence",
        values=_words("parallel.sequence_parallel"), on_request=True,
    ),
    VariedSetting(
        name="options", text="options of the schedule that take one of a few words", values=_options,
        is_estimated=False,
    ),
    VariedSetting(
        name="offload", text="the share of activations that is copied to the host and back", values=_offload,
        is_tried=True,
    ),
    VariedSetting(
        name="recompute-actions", text="forwards computed again by actions of their own",
        values=_recompute_actions, is_tried=True,
    ),
    VariedSetting(
        name="memory", text="the memory that a generated order is made for", values=_order_memory,
        is_estimated=False,
    ),
)  # fmt: skip
"""All variable settings, in the order of the search."""

_COPIED, _AGAIN = "schedule.offload.ratio", "schedule.recompute.early"

MOVED = frozenset({_COPIED, _AGAIN})
"""Settings that change a table, and not the costs of its stages."""

NO_COPY_TIMES = "the costs have no time for copies: give device.host_bandwidth, or costs.offload and costs.reload"
"""The reason for no copies to the host."""


def is_both(settings: Mapping[str, Any]) -> bool:
    """Return whether a variant copies and recomputes the same activations, which is invalid."""
    return settings.keys() >= MOVED


def copies_take_time(workload: Workload) -> bool:
    """Return whether copies of all activations take time."""
    costs = (workload, *workload.classes)
    return all(
        bool((times[each.activation_bytes > 0] > 0).all())
        for each in costs
        for times in (each.offload_ns, each.reload_ns)
    )


def memory_actions(settings: Mapping[str, Any], choice: ScheduleChoice) -> tuple[Offload | None, Recompute | None]:
    """Return copies and recomputation of a variant; the configuration's own by default."""
    copied, again = settings.get(_COPIED), settings.get(_AGAIN)
    return (
        choice.offload if copied is None else Offload(ratio=copied),
        choice.recompute if again is None else Recompute(early=again),
    )


LIMITS = ("device.memory", "costs.capacity")
"""Keys of the device's memory in cost models."""


def memory_limit(text: object, source: str) -> int:
    """Read a limit such as ``76GiB``, in bytes.

    Raises:
        ConfigError: no positive size.
    """
    try:
        size = parse_size(text)
    except ConfigError as error:
        raise ConfigError(error.message, file=source) from None
    if not size:
        raise ConfigError("nothing fits into 0 bytes", file=source)
    return size


def limit_settings(resolved: Resolved, costs: Costs, size_bytes: int, source: str) -> dict[str, Any]:
    """Return the settings that give a limit to the costs.

    Args:
        resolved: the configuration as written.
        costs: its costs.
        size_bytes: the limit.
        source: its name in errors.

    Raises:
        ConfigError: the costs have no memory.
    """
    offer = costs.offer.offer
    key = next((key for key in LIMITS if _reads(offer, key)), None)
    if key is None:
        message = (
            f"costs {offer.name} know no memory: give a model and a device, or costs with bytes and a capacity"
        )
        raise ConfigError(message, file=source)
    device = costs.resolved.experiment.device
    given: dict[str, Any] = {}
    if key.startswith("device.") and resolved.experiment.device is None and device is not None:
        # A setting below ``device`` would replace the cluster's device.
        own = {name: value for name, value in device.values.items() if f"device.{name}" in costs.resolved.origins}
        given = {"device.preset": device.preset} if device.preset else {f"device.{k}": v for k, v in own.items()}
    if key.startswith("device.") and device is not None and device.ranks:
        return {**given, **device.limited(size_bytes, resolved.experiment.device)}
    own_costs = costs.request.options.get("capacity")
    if key == "costs.capacity" and isinstance(own_costs, list):
        return {key: json.dumps([exact_size(min(size, size_bytes)) for size in own_costs])}
    return {**given, key: exact_size(size_bytes)}


def _reads(offer: CostModelOffer, key: str) -> bool:
    section, _, name = key.partition(".")
    parameters: type[BaseModel] | None = None
    if section == "device":
        parameters = offer.device() if offer.device else None
    elif offer.options:
        parameters = offer.options()
    return parameters is not None and name in parameters.model_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A simulated candidate."""

    change: Change
    """The difference to the configuration."""
    step_ns: int | None = None
    """Its step; None where it cannot run."""
    peak_bytes: int = 0
    """The memory of its fullest rank; 0 where the costs know none."""
    rank: int = 0
    """That rank; the lowest of equals."""
    room_bytes: int = 0
    """The memory of its device; 0 where unknown."""
    fits: bool = True
    """Whether every rank fits its device."""
    reason: str = ""
    """The reason why it cannot run, in one line."""

    @classmethod
    def of(cls, change: Change, run: SimulatedStep) -> Tried:
        """Return the result of a simulated candidate."""
        memory = run.memory
        return cls(
            change=change, step_ns=run.step_ns, peak_bytes=memory.fullest_bytes,
            rank=memory.fullest, room_bytes=memory.fullest_room_bytes, fits=memory.over_capacity is None,
        )  # fmt: skip

    @classmethod
    def refused(cls, change: Change, error: PptraceError) -> Tried:
        """Return a candidate that cannot run."""
        return cls(change=change, reason=" ".join(str(error).split()), fits=False)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Simulated candidates, and the best of them."""

    best: Tried | None
    """The shortest step that fits; None if none fits or is shorter than the configuration's."""
    tried: tuple[Tried, ...]
    """All simulated candidates, in order."""
    estimated: int
    """Number of estimated candidates."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, times in ns and sizes in bytes."""
        return {
            "best": self.best.to_dict() if self.best else None,
            "tried": [one.to_dict() for one in self.tried],
            "estimated": self.estimated,
        }
