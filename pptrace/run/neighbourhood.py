"""The changes of one setting that advice tries.

A candidate is a division of the same processes, a size of microbatches, chunks per rank, a schedule, and
switches of how training state is kept and messages are issued. All of it can be switched on by whoever runs the
step: prices, such as another network, are :mod:`pptrace.run.overheads`' to say.
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
"""What programs can be told of how messages are issued; tried where messages are not ideal already, nor as a
framework issues them."""

_LEAVES_ROOM = (("parallel.sequence_parallel", False), ("costs.zero", False), ("model.recompute", True))
"""Settings that leave more room the later their value stands among those that they take, and whether they cost
time then."""

WIDELY: Mapping[str, tuple[Any, ...]] = {"costs.zero": (0, 1)}
"""Values that every framework with pipelines has, of those settings that have others."""

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
"""Keys that hang together: none of them can be left out of a change on its own."""

_FLAG_OF = {key: name for name, flag in FLAGS.items() for key in (flag.key, f"{flag.key}.{flag.headline}")}
"""The flag of a key, with or without its headline."""

_CHUNKS = range(1, 9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Settings that are laid over a configuration."""

    settings: Mapping[str, Any]
    """Values by key."""

    @property
    def flags(self) -> dict[str, Any]:
        """Those that have a flag of the command line, by its name; a flag wins over all else."""
        return {_FLAG_OF[key]: value for key, value in self.settings.items() if key in _FLAG_OF}

    @property
    def sets(self) -> list[str]:
        """All others, as ``--set`` takes them."""
        return [f"{key}={_text(value)}" for key, value in self.settings.items() if key not in _FLAG_OF]

    @property
    def arguments(self) -> str:
        """What to write behind ``pptrace simulate``, and behind all that stands there."""
        words = [word for name, value in self.flags.items() for word in (f"--{name}", _text(value))]
        return shlex.join([*words, *(word for text in self.sets for word in ("--set", text))])

    def with_settings(self, more: Mapping[str, Any]) -> Change:
        """Return this and further settings."""
        return Change(settings={**self.settings, **more})

    def without(self, keys: frozenset[str]) -> Change:
        """Return this without some settings."""
        return Change(settings={key: value for key, value in self.settings.items() if key not in keys})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How the processes of a job are divided, and the size of its microbatches."""

    pp: int
    tp: int
    dp: int
    micro: int

    def microbatches(self, global_batch: int) -> int:
        """Return how many one pipeline runs in a step; 0 where they do not divide the batch."""
        count, rest = divmod(global_batch, self.dp * self.micro)
        return 0 if rest else count


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far candidates go from a configuration."""

    pp: tuple[Fraction | float, ...]
    """By what the number of pipeline ranks is multiplied."""
    tp: tuple[Fraction | float, ...]
    """By what the tensor-parallel size is."""
    micro: tuple[Fraction | float, ...] = (1,)
    """By what the sequences of a microbatch are."""


def sizes_of(experiment: Experiment, reach: Reach) -> Iterator[Sizes]:
    """Yield other sizes with the same processes and global batch, the configuration's own first.

    Costs that read no model hold for one division only, and a table for its own microbatches.
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
    """Return chunks per rank: a configuration's ``own``, one, and others that divide the model's layers.

    That is the largest of these, or all where ``deep``.
    """
    layers = experiment.model.values.get("layers") if experiment.model else None
    if not isinstance(layers, int) or layers % ranks:
        return sorted({1, 2, 4, own})
    whole = [chunks for chunks in _CHUNKS if layers // ranks % chunks == 0]
    return sorted({own, *(whole if deep else (1, whole[-1]))})


def room_makers(resolved: Resolved, registry: Registry) -> list[dict[str, Any]]:
    """Return settings with more and more room for activations, those that cost no time first.

    They begin with the least recomputation, even where the configuration has more.
    """
    steps: list[dict[str, Any]] = [{}]
    for key, costs_time in _LEAVES_ROOM:
        values, own = words_of(resolved, registry, key), value_of(resolved, key)
        if own not in values:
            continue
        if key in WIDELY:  # others change what a framework has to be, and how messages of replicas run
            values = tuple(value for value in values if value in {*WIDELY[key], own})
        if costs_time and own != values[0]:
            steps = [{**step, key: values[0]} for step in steps]
        steps += [{**steps[-1], key: value} for value in values[1 if costs_time else values.index(own) + 1 :]]
    own_values = {key: value_of(resolved, key) for key, _ in _LEAVES_ROOM}
    return [{key: value for key, value in step.items() if value != own_values[key]} for step in steps]


def policies(run: SimulatedStep) -> Iterator[Mapping[str, Any]]:
    """Yield the ways of issuing messages that differ from the configuration's."""
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
    """Return the schedules that may run instead, the configuration's own first.

    Only that one where a file is it, and where options were given on the command line, which no other takes.
    Others that cut microbatches into unlike parts are left out: what smaller parts lose is not counted.
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
    """Return the settings in which a candidate differs from a configuration."""
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
    """Return the values that a switch takes, in their order; none where the cost model has no such option."""
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
    """Return the parameters of a model that take one of a few words or numbers, each with these."""
    fields = model.model_fields.items()
    return {name: get_args(one.annotation) for name, one in fields if get_origin(one.annotation) is Literal}


def value_of(resolved: Resolved, key: str) -> Any:
    """Return what a configuration says under a key, as plain values; None where it has no such section."""
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
"""Parts of a form's activations within which a generated order is made anew."""
_MIB = 2**20
_RATIOS = (0.25, 0.5, 1)
"""Shares of activations that may be copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the values of a setting may depend on."""

    resolved: Resolved
    """The configuration with its schedule, all options filled in."""
    registry: Registry
    """The plugins."""
    offer: ScheduleOffer | None
    """The schedule; None for a table file."""
    options: Settings
    """Its options, defaults included."""
    chunks: int
    """Chunks per rank that the configuration runs with; 0 where it does not run, or ranks differ in them."""
    activation_bytes: int = 0
    """The most activations on a rank of the form that is varied; 0 where none was simulated yet."""
    copies_take_time: bool = False
    """Whether the costs have times for copies of activations to the host and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariedSetting:
    """One setting, or several that hang together."""

    name: str
    """As ``--vary`` takes it."""
    text: str
    """What it is."""
    values: Callable[[Ground], Sequence[Settings]]
    """Other values than the configuration's own, each as settings by key."""
    is_estimated: bool = True
    """Whether estimates know what it changes; values of others are tried on the best form by estimated ones."""
    is_tried: bool = False
    """Whether estimated values are tried on the best form too: estimates do not know them beside options."""
    on_request: bool = False
    """Whether it differs only where it is named."""


def varied_settings(names: Sequence[str], source: str) -> tuple[VariedSetting, ...]:
    """Return the settings of some names, in the order of the table; all but those on request where none is named.

    Args:
        names: as ``--vary`` takes them.
        source: what to call them in errors.

    Raises:
        ConfigError: an unknown name.
    """
    known = [one.name for one in VARIED]
    for name in names:
        if name not in known:
            raise ConfigError(f"{name!r} is nothing that differs{nearest(name, known)}", file=source)
    return tuple(one for one in VARIED if (one.name in names if names else not one.on_request))


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
    found: list[Settings] = []
    for sizes in sizes_of(experiment, Reach(pp=(1,), tp=(1,), micro=_MICRO)):
        count = sizes.microbatches(experiment.batch.global_batch or 0)
        if sizes.micro != experiment.batch.micro:
            found.append({"batch.micro": sizes.micro, **({"batch.microbatches": count} if written else {})})
    return found


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
    """Return less memory than an order took: another order may be made for it, which is sometimes shorter."""
    if ground.offer is None or ground.options.get("order") == "fixed" or "memory" not in ground.options:
        return []
    sizes = [int(ground.activation_bytes * part) // _MIB * _MIB for part in _LESS]
    return [{"schedule.options.memory": exact_size(size)} for size in sizes if size]


def _offload(ground: Ground) -> list[Settings]:
    """Return shares of activations to copy to the host."""
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
"""All settings that may differ, in the order in which they are tried."""

_COPIED, _AGAIN = "schedule.offload.ratio", "schedule.recompute.early"

MOVED = frozenset({_COPIED, _AGAIN})
"""Settings that change a table, and no cost of its stages."""

NO_COPY_TIMES = "the costs have no time for copies: give device.host_bandwidth, or costs.offload and costs.reload"
"""Why activations are not copied to the host."""


def is_both(settings: Mapping[str, Any]) -> bool:
    """Whether a form would copy what it computes again, which is refused."""
    return settings.keys() >= MOVED


def copies_take_time(workload: Workload) -> bool:
    """Whether all activations take time to be copied to the host and back."""
    costs = (workload, *workload.classes)
    return all(
        bool((times[one.activation_bytes > 0] > 0).all())
        for one in costs
        for times in (one.offload_ns, one.reload_ns)
    )


def moved_by(settings: Mapping[str, Any], choice: ScheduleChoice) -> tuple[Offload | None, Recompute | None]:
    """Return what a form copies and what it computes again, where it does not say so as the configuration does."""
    copied, again = settings.get(_COPIED), settings.get(_AGAIN)
    return (
        choice.offload if copied is None else Offload(ratio=copied),
        choice.recompute if again is None else Recompute(early=again),
    )


LIMITS = ("device.memory", "costs.capacity")
"""Keys under which cost models read what a device holds, each a parameter of its section."""


def memory_limit(text: object, source: str) -> int:
    """Read a limit such as ``76GiB``, in bytes.

    Raises:
        ConfigError: no size, or none above zero.
    """
    try:
        size = parse_size(text)
    except ConfigError as error:
        raise ConfigError(error.message, file=source) from None
    if not size:
        raise ConfigError("nothing fits into 0 bytes", file=source)
    return size


def limit_settings(resolved: Resolved, costs: Costs, size_bytes: int, source: str) -> dict[str, Any]:
    """Return the settings by which costs know of a limit.

    Args:
        resolved: the configuration as it was written.
        costs: its costs.
        size_bytes: the limit.
        source: what to call it in errors.

    Raises:
        ConfigError: the costs know no memory.
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
        # A cluster's own device, which a setting below ``device`` would take the place of.
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
    """A candidate that was simulated."""

    change: Change
    """In what it differs from the configuration."""
    step_ns: int | None = None
    """Its step; None where it cannot run."""
    peak_bytes: int = 0
    """The memory of its fullest rank; 0 where the costs know none."""
    rank: int = 0
    """That rank; the first of several alike."""
    room_bytes: int = 0
    """The memory of its device; 0 where unknown."""
    fits: bool = True
    """Whether every rank fits its device."""
    reason: str = ""
    """Why it cannot run, in one line."""

    @classmethod
    def of(cls, change: Change, run: SimulatedStep) -> Tried:
        """Return what a run of a changed configuration comes to."""
        memory = run.memory
        return cls(
            change=change, step_ns=run.step_ns, peak_bytes=memory.fullest_bytes,
            rank=memory.fullest, room_bytes=memory.fullest_room_bytes, fits=memory.over_capacity is None,
        )  # fmt: skip

    @classmethod
    def refused(cls, change: Change, error: PptraceError) -> Tried:
        """Return one that cannot run."""
        return cls(change=change, reason=" ".join(str(error).split()), fits=False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
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
    """What was tried, and the best of it."""

    best: Tried | None
    """The shortest step that fits; None where none is shorter than the configuration's own, or none fits."""
    tried: tuple[Tried, ...]
    """All that was simulated, in order."""
    estimated: int
    """How many candidates were estimated to choose these."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values, times in ns and sizes in bytes."""
        return {
            "best": self.best.to_dict() if self.best else None,
            "tried": [one.to_dict() for one in self.tried],
            "estimated": self.estimated,
        }
