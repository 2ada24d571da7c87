"""Changes of a configuration that keep its processes and its global batch: what advice is chosen among.

A candidate is a division of the same processes, a size of microbatches, chunks per rank, a schedule, and
switches of how training state is kept and messages are issued. All of it can be switched on by whoever runs the
step: prices, such as another network, are :mod:`pptrace.experiment.prices`' to say.
"""

from __future__ import annotations

import json
import shlex
from fractions import Fraction
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from pptrace.config.choices import PolicyName
from pptrace.config.flags import FLAGS
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import BaseModel

    from pptrace.config.experiment import Experiment
    from pptrace.config.resolve import Resolved
    from pptrace.experiment.run import Run
    from pptrace.hooks.registry import Registry

__all__ = [
    "DIVISION",
    "WIDELY",
    "Change",
    "Reach",
    "Sizes",
    "change_of",
    "chunks_of",
    "literals",
    "policies",
    "room_makers",
    "schedules_of",
    "sizes_of",
    "value_of",
    "words_of",
]

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


def policies(run: Run) -> Iterator[Mapping[str, Any]]:
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


def schedules_of(run: Run) -> list[str]:
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


def change_of(run: Run, sizes: Sizes, chunks: int, schedule: str, switches: Mapping[str, Any]) -> Change:
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
