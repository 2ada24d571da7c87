"""The question of a plan, and the sizes that it fixes."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from pptrace.config.flags import key_of
from pptrace.config.overrides import Assignment, assignment, assignments, overlaid
from pptrace.config.places import Place, key_text, place_of
from pptrace.config.resolution import document_of, load
from pptrace.config.yaml_document import Document
from pptrace.errors import ConfigError, nearest
from pptrace.run.devices import ranks_named
from pptrace.run.neighbourhood import limit_settings, memory_limit
from pptrace.run.preparation import costs_alone
from pptrace.search.axes import axes_of, parse_axes
from pptrace.search.basis import parse_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.config.places import Places
    from pptrace.config.resolution import Resolved
    from pptrace.plugins.registry import Registry
    from pptrace.run.costs import Costs
    from pptrace.search.axes import Axis

Score: TypeAlias = "tuple[Fraction, ...]"
"""What a configuration is score under an objective: the smaller the better."""

OBJECTIVES = {
    "tokens": "most tokens per second",
    "mfu": "highest model FLOPs utilisation",
    "step": "shortest step",
    "gpus": "fewest GPUs, then most tokens per second",
}
"""What may count, with what it means."""

ALIASES = {
    "recompute": "model.recompute",
    "zero": "costs.zero",
    "offload": "schedule.offload.ratio",
    "order": "parallel.order",
    "layers": "model.layers_per_stage",
}
"""Names that may stand for a key of what varies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is asked."""

    gpus: int
    """As many the job has; under ``gpus``, at most so many."""
    memory: str | None = None
    """What a rank may hold, such as ``76GiB``; what the device has unless given."""
    objective: str = "tokens"
    """One of :data:`OBJECTIVES`."""
    top: int = 10
    """How many are asked for."""
    exhaustive: bool = False
    """Whether to simulate everything that can run, without bounds."""

    def check(self) -> None:
        """Refuse what cannot be asked.

        Raises:
            ConfigError: no GPUs, nothing asked for, or an unknown objective.
        """
        if self.gpus < 1:
            raise ConfigError(f"{self.gpus} is no number of GPUs: write 1 or more", file="--gpus")
        if self.top < 1:
            raise ConfigError(f"{self.top} is nothing: write 1 or more", file="--top")
        if self.objective not in OBJECTIVES:
            message = f"{self.objective!r} is no objective{nearest(self.objective, OBJECTIVES)}"
            raise ConfigError(message, file="--objective")

    def score(self, step_ns: int, sequences: int, gpus: int) -> Score:
        """Return what a step, or a lower bound on one, is score.

        Args:
            step_ns: its length.
            sequences: the global batch.
            gpus: how many it takes.
        """
        if self.objective == "step":
            return (Fraction(step_ns),)
        each = Fraction(step_ns, sequences)
        return (Fraction(gpus), each) if self.objective == "gpus" else (each * gpus,)


def gpus_text(count: int) -> str:
    """Return so many GPUs in words.

    >>> gpus_text(1), gpus_text(1024)
    ('1 GPU', '1,024 GPUs')
    """
    return f"{count:,} GPU{'s' * (count != 1)}"


def varied_axes(texts: Sequence[str], written: Mapping[str, Iterable[Any]]) -> dict[str, Axis]:
    """Return what varies by the key that it varies; texts win over what a configuration has under ``plan``.

    Args:
        texts: as for ``--over`` of a sweep, with names of :data:`ALIASES` too.
        written: values by key.

    Raises:
        ConfigError: as for the axes of a sweep; or a key twice.
    """
    named = {_whole(key): values for key, values in written.items()}
    found = {_key(axis): axis for axis in axes_of(named, "plan")}
    given: dict[str, Axis] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        (axis,) = parse_axes([f"{_whole(key.strip())}{equals}{values}"], "--vary")
        if _key(axis) in given:
            raise ConfigError(f"{key.strip()} is there twice: write all values behind one --vary", file="--vary")
        given[_key(axis)] = axis
    return found | given


def _whole(key: str) -> str:
    return ALIASES.get(key, key)


def _key(axis: Axis) -> str:
    """Return the key that an axis sets; of coupled keys and files, its name."""
    first = axis.values[0].varied
    return key_of(axis.key) if axis.is_coupled else key_text(first[0].path)


_SIZES = ("pp", "tp", "cp", "ep", "dp", "vp")
_PLANNED = (*(f"parallel.{size}" for size in _SIZES), "batch.micro", "batch.global", "schedule.name")
"""Keys whose values a plan chooses, unless the command line says them."""
_PLACE = Place(source="plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProblem:
    """What all configurations of a plan have in common."""

    document: Document
    """The configuration without the sizes that a plan chooses."""
    registry: Registry
    """The plugins."""
    axes: Mapping[str, Axis]
    """What the user says of what varies, by key."""
    facts: Mapping[str, Any]
    """The model's parameters, as its cost model reads them: ``layers``, ``heads`` and so on."""
    model_keys: frozenset[str]
    """All parameters that it has."""
    costs_name: str
    """The cost model."""
    node_gpus: int
    """GPUs of a node: those of the cluster, or of the device's scale-up network."""
    on_cluster: bool
    """Whether links between GPUs are known."""
    sequences: int
    """The configuration's own global batch; 0 where it says none."""
    sequence: int
    """Tokens in a sequence."""
    schedule: str
    """The configuration's own schedule; empty where it names none."""

    def resolved(self, varied: Sequence[Assignment]) -> Resolved:
        """Return one configuration.

        Raises:
            ConfigError: what cannot be used.
        """
        return load(self.document, (), {}, varied)


def setting(key: str, value: Any) -> Assignment:
    """Return what sets a key to a plain value."""
    return Assignment(path=tuple(key.split(".")), value=value, place=_PLACE)


def plan_problem(
    file: Path | Document | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    vary: Sequence[str] | Mapping[str, Iterable[Any]],
    request: PlanRequest,
    registry: Registry,
) -> PlanProblem:
    """Read a configuration as the ground of a plan.

    Args:
        file: the configuration.
        sets: ``key.path=value`` texts; a size among them is fixed.
        flags: values by flag name; a size among them is fixed.
        vary: what varies, as texts or as values by key.
        request: what is asked.
        registry: the plugins.

    Raises:
        PptraceError: what cannot be used; no model; a cluster of another size.
    """
    request.check()
    source = document_of(file)
    own = assignments(sets, {name: value for name, value in flags.items() if value is not None})
    tree, places = overlaid(source.value, source.places, own)
    written = tree.pop("plan", None) or {}
    texts, given = ([], vary) if not isinstance(vary, (list, tuple)) else (vary, {})
    axes = varied_axes(texts, {**written, **dict(given)})  # type: ignore[arg-type] # a mapping by now
    axes = _fixed(own, axes) | axes
    if not tree.get("model"):
        raise ConfigError("missing: a plan divides a model over GPUs, such as --model llama3-70b", key="model")
    _check_microbatches(own)
    sequences = _sequences(tree, places)
    schedule = str((tree.get("schedule") or {}).get("name") or "")
    _without_sizes(tree)
    if not schedule:
        tree["schedule"] = {"name": "1f1b"}
    document = Document(value=tree, places=places, source=source.source)
    costs = _trial(document, registry, request)
    if request.memory is not None:
        document = _limited(document, request, costs)
        costs = _trial(document, registry, request)
    return _problem(document, registry, axes, costs, (sequences, schedule))


def _problem(
    document: Document, registry: Registry, axes: Mapping[str, Axis], costs: Costs, said: tuple[int, str]
) -> PlanProblem:
    experiment = costs.resolved.experiment
    devices = costs.request.rank_devices or (costs.request.device,)
    cluster = experiment.cluster
    model = costs.offer.offer.model
    return PlanProblem(
        document=document, registry=registry, axes=axes, facts=dict(costs.request.model),
        model_keys=frozenset(model().model_fields if model else ()), costs_name=costs.offer.offer.name,
        node_gpus=(cluster.gpus or 1) if cluster else min(int(one.get("scale_up_size") or 8) for one in devices),
        on_cluster=cluster is not None, sequences=said[0], schedule=said[1],
        sequence=experiment.batch.sequence or 0,
    )  # fmt: skip


def _fixed(own: Sequence[Assignment], axes: Mapping[str, Axis]) -> dict[str, Axis]:
    """Return the sizes that the command line says, each with its one value."""
    fixed = {key_text(one.path): one for one in own}
    for key, one in fixed.items():
        if key in axes and key in _PLANNED:
            raise ConfigError("it varies, too: leave one of them out", key=key, file=str(one.place.source))
    several = fixed.get("schedule.name")
    if several is not None and len(parse_entries([str(several.value)], str(several.place.source))) > 1:
        message = f"{several.value} are several, where one is fixed: write --vary schedule={several.value}"
        raise ConfigError(message, key="schedule.name", file=str(several.place.source))
    return {
        key: next(iter(axes_of({key: [one.value]})))
        for key, one in fixed.items()
        if key in _PLANNED and one.value is not None
    }


def _check_microbatches(own: Sequence[Assignment]) -> None:
    """Refuse microbatches: they follow from the batch and a layout's replicas."""
    for one in own:
        if key_text(one.path) == "batch.microbatches" and one.value is not None:
            message = "they follow from the global batch and each layout: write --global and --micro instead"
            raise ConfigError(message, key="batch.microbatches", file=str(one.place.source))


def _sequences(tree: Mapping[str, Any], places: Places) -> int:
    """Return the global batch that a configuration says, or that follows from its microbatches."""
    if "global" in (tree.get("batch") or {}):
        return _number(tree, "batch.global", 0, places)
    known = {"batch.microbatches": 0, "batch.micro": 1, "parallel.dp": 1}
    return prod(_number(tree, key, unless, places) for key, unless in known.items())


def _number(tree: Mapping[str, Any], key: str, unless: int, places: Places) -> int:
    """Return a whole number of the configuration's from 1, or what it is unless given."""
    section, _, name = key.partition(".")
    value = (tree.get(section) or {}).get(name, unless)
    if name in (tree.get(section) or {}) and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        place = place_of(key, places)
        several = f"; for several: --vary {name}=64,128"
        raise ConfigError(
            f"{value} is no whole number from 1{several}", key=key, file=place.source if place else "",
            line=place.line if place else 0,
        )  # fmt: skip
    return int(value)


def _without_sizes(tree: dict[str, Any]) -> None:
    for section, keys in (("parallel", _SIZES), ("batch", ("global", "micro", "microbatches"))):
        tree[section] = {key: value for key, value in (tree.get(section) or {}).items() if key not in keys}


def _trial(document: Document, registry: Registry, request: PlanRequest) -> Costs:
    """Return the costs of the plainest division, which says what model and machine are."""
    ranks = ranks_named(document.value.get("device"))
    replicas = max(request.gpus // ranks, 1)
    sizes = {"parallel.pp": ranks, "parallel.dp": replicas, "batch.global": replicas}
    return costs_alone(load(document, (), {}, [setting(*one) for one in sizes.items()]), registry)


def _limited(document: Document, request: PlanRequest, costs: Costs) -> Document:
    """Return the configuration with a limit to every rank's memory."""
    size = memory_limit(request.memory, "--memory")
    resolved = load(
        document, (), {}, [
            setting("parallel.pp", ranks_named(document.value.get("device"))), setting("batch.global", 1),
        ],
    )  # fmt: skip
    settings = limit_settings(resolved, costs, size, "--memory")
    over = [assignment(key, str(value), "--memory") for key, value in settings.items()]
    tree, places = overlaid(document.value, document.places, over)
    return Document(value=tree, places=places, source=document.source)
