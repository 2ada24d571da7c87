"""The request of a plan, and its common configuration."""

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
from pptrace.run.preparation import build_costs
from pptrace.search.axes import axes_of, parse_axes
from pptrace.search.basis import limit_settings, memory_limit, parse_entries

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.config.places import Places
    from pptrace.config.resolution import Resolved
    from pptrace.plugins.registry import Registry
    from pptrace.run.costs import Costs
    from pptrace.search.axes import Axis

Score: TypeAlias = "tuple[Fraction, ...]"
"""The value of the objective, to be minimized; tuples compare lexicographically."""

OBJECTIVES = {
    "tokens": "most tokens per second",
    "mfu": "highest model FLOPs utilisation",
    "step": "shortest step",
    "gpus": "fewest GPUs, then most tokens per second",
}
"""Objectives and their descriptions."""

ALIASES = {
    "recompute": "model.recompute",
    "zero": "costs.zero",
    "offload": "schedule.offload.ratio",
    "order": "parallel.order",
    "layers": "model.layers_per_stage",
}
"""Short names of keys that vary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A division of GPUs with a batch."""

    gpus: int
    pp: int
    tp: int
    cp: int
    ep: int
    dp: int
    micro: int
    sequences: int
    """The global batch."""

    @property
    def microbatches(self) -> int:
        """Microbatches of one pipeline in a step; 0 if replicas and size do not divide the batch."""
        count, rest = divmod(self.sequences, self.dp * self.micro)
        return 0 if rest else count


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """GPUs, limits and objective of a plan."""

    gpus: int
    """GPUs of the job; with the objective ``gpus``, the largest number."""
    memory: str | None = None
    """Memory of a rank, such as ``76GiB``; by default that of the device."""
    objective: str = "tokens"
    """One of :data:`OBJECTIVES`."""
    top: int = 10
    """Number of ranked places."""
    exhaustive: bool = False
    """Whether to simulate all candidates, without bounds."""

    def check(self) -> None:
        """Refuse invalid values.

        Raises:
            ConfigError: no GPUs, no places, or an unknown objective.
        """
        if self.gpus < 1:
            raise ConfigError(f"{self.gpus} is no number of GPUs: write 1 or more", file="--gpus")
        if self.top < 1:
            raise ConfigError(f"{self.top} is nothing: write 1 or more", file="--top")
        if self.objective not in OBJECTIVES:
            message = f"{self.objective!r} is no objective{nearest(self.objective, OBJECTIVES)}"
            raise ConfigError(message, file="--objective")

    def score(self, step_ns: int, layout: Layout) -> Score:
        """Return the score of a step of a layout, or of a lower bound on it."""
        if self.objective == "step":
            return (Fraction(step_ns),)
        per_sequence = Fraction(step_ns, layout.sequences)
        return (Fraction(layout.gpus), per_sequence) if self.objective == "gpus" else (per_sequence * layout.gpus,)


def gpus_text(count: int) -> str:
    """Return a number of GPUs in words.

    >>> gpus_text(1), gpus_text(1024)
    ('1 GPU', '1,024 GPUs')
    """
    return f"{count:,} GPU{'s' * (count != 1)}"


def varied_axes(texts: Sequence[str], written: Mapping[str, Iterable[Any]]) -> dict[str, Axis]:
    """Return the axes by key; texts override the ``plan`` section of the configuration.

    Args:
        texts: as for ``--over`` of a sweep, or with names of :data:`ALIASES`.
        written: values by key.

    Raises:
        ConfigError: as for the axes of a sweep; or a repeated key.
    """
    named = {ALIASES.get(key, key): values for key, values in written.items()}
    configured = {_key(axis): axis for axis in axes_of(named, "plan")}
    given: dict[str, Axis] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        name = key.strip()
        (axis,) = parse_axes([f"{ALIASES.get(name, name)}{equals}{values}"], "--vary")
        if _key(axis) in given:
            raise ConfigError(f"{key.strip()} is there twice: write all values behind one --vary", file="--vary")
        given[_key(axis)] = axis
    return configured | given


def _key(axis: Axis) -> str:
    """Return the key of an axis; of coupled keys and files, its name."""
    first = axis.values[0].varied
    return key_of(axis.key) if axis.is_coupled else key_text(first[0].path)


_SIZES = ("pp", "tp", "cp", "ep", "dp", "vp")
PLANNED = (*(f"parallel.{size}" for size in _SIZES), "batch.micro", "batch.global", "schedule.name")
"""Keys that a plan chooses, unless the command line sets them."""
LAYERS = "model.layers_per_stage"
"""The key of the split of layers over stages."""
_PLACE = Place(source="plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProblem:
    """The common configuration of a plan."""

    document: Document
    """The configuration without the keys that a plan chooses."""
    registry: Registry
    """The plugins."""
    axes: Mapping[str, Axis]
    """The requested axes by key."""
    facts: Mapping[str, Any]
    """Parameters of the model, such as ``layers`` and ``heads``."""
    model_keys: frozenset[str]
    """Names of all parameters of the model."""
    costs_name: str
    """The cost model."""
    node_gpus: int
    """GPUs of a node: those of the cluster, or of the device's scale-up network."""
    on_cluster: bool
    """Whether the configuration has a cluster."""
    sequences: int
    """The configured global batch; 0 without one."""
    sequence: int
    """Tokens in a sequence."""
    schedule: str
    """The configured schedule; empty without one."""

    def resolved(self, varied: Sequence[Assignment]) -> Resolved:
        """Return the configuration with settings.

        Raises:
            ConfigError: an invalid value.
        """
        return load(self.document, (), {}, varied)


def setting(key: str, value: Any) -> Assignment:
    """Return the assignment of a plain value to a key."""
    return Assignment(path=tuple(key.split(".")), value=value, place=_PLACE)


def plan_problem(
    file: Path | Document | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    vary: Sequence[str] | Mapping[str, Iterable[Any]],
    request: PlanRequest,
    registry: Registry,
) -> PlanProblem:
    """Read the common configuration of a plan.

    Args:
        file: the configuration.
        sets: ``key.path=value`` texts; a size among them is fixed.
        flags: values by flag name; a size among them is fixed.
        vary: axes, as texts or as values by key.
        request: GPUs, limits and objective.
        registry: the plugins.

    Raises:
        PptraceError: an invalid value, no model, or a cluster of another size.
    """
    request.check()
    source = document_of(file)
    given = assignments(sets, {name: value for name, value in flags.items() if value is not None})
    tree, places = overlaid(source.value, source.places, given)
    written = tree.pop("plan", None) or {}
    texts, values = ([], vary) if not isinstance(vary, (list, tuple)) else (vary, {})
    axes = varied_axes(texts, {**written, **dict(values)})  # type: ignore[arg-type] # a mapping by now
    axes = _fixed({key_text(assigned.path): assigned for assigned in given}, axes) | axes
    if not tree.get("model"):
        raise ConfigError("missing: a plan divides a model over GPUs, such as --model llama3-70b", key="model")
    sequences = _sequences(tree, places)
    schedule = str((tree.get("schedule") or {}).get("name") or "")
    for section, keys in (("parallel", _SIZES), ("batch", ("global", "micro", "microbatches"))):
        tree[section] = {key: value for key, value in (tree.get(section) or {}).items() if key not in keys}
    if not schedule:
        tree["schedule"] = {"name": "1f1b"}
    document = Document(value=tree, places=places, source=source.source)
    costs = _trial(document, registry, request)
    if request.memory is not None:
        document = _limited(document, request, costs)
        costs = _trial(document, registry, request)
    cluster, model = costs.resolved.experiment.cluster, costs.offer.offer.model
    devices = costs.request.rank_devices or (costs.request.device,)
    scale_up = min(int(device.get("scale_up_size") or 8) for device in devices)
    return PlanProblem(
        document=document, registry=registry, axes=axes, facts=dict(costs.request.model),
        model_keys=frozenset(model().model_fields if model else ()), costs_name=costs.offer.offer.name,
        node_gpus=(cluster.gpus or 1) if cluster else scale_up, on_cluster=cluster is not None,
        sequences=sequences, schedule=schedule, sequence=costs.resolved.experiment.batch.sequence or 0,
    )  # fmt: skip


def _fixed(given: Mapping[str, Assignment], axes: Mapping[str, Axis]) -> dict[str, Axis]:
    """Return the sizes on the command line as axes with one value."""
    fixed = {key: assigned for key, assigned in given.items() if assigned.value is not None}
    if "batch.microbatches" in fixed:
        message = "they follow from the global batch and each layout: write --global and --micro instead"
        raise _refusal(message, "batch.microbatches", fixed)
    for key in given:
        if key in axes and key in PLANNED:
            raise _refusal("it varies, too: leave one of them out", key, given)
    schedule = given.get("schedule.name")
    if schedule is not None and len(parse_entries([str(schedule.value)], str(schedule.place.source))) > 1:
        message = f"{schedule.value} are several, where one is fixed: write --vary schedule={schedule.value}"
        raise _refusal(message, "schedule.name", given)
    return {key: axes_of({key: [assigned.value]})[0] for key, assigned in fixed.items() if key in PLANNED}


def _refusal(message: str, key: str, given: Mapping[str, Assignment]) -> ConfigError:
    return ConfigError(message, key=key, file=str(given[key].place.source))


def _sequences(tree: Mapping[str, Any], places: Places) -> int:
    """Return the global batch: configured, or computed from the microbatches."""
    if "global" in (tree.get("batch") or {}):
        return _number(tree, "batch.global", 0, places)
    known = {"batch.microbatches": 0, "batch.micro": 1, "parallel.dp": 1}
    return prod(_number(tree, key, default, places) for key, default in known.items())


def _number(tree: Mapping[str, Any], key: str, default: int, places: Places) -> int:
    """Return a configured whole number from 1, or its default."""
    section, _, name = key.partition(".")
    value = (tree.get(section) or {}).get(name, default)
    if name in (tree.get(section) or {}) and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        place = place_of(key, places)
        several = f"; for several: --vary {name}=64,128"
        raise ConfigError(
            f"{value} is no whole number from 1{several}", key=key, file=place.source if place else "",
            line=place.line if place else 0,
        )  # fmt: skip
    return int(value)


def _trial(document: Document, registry: Registry, request: PlanRequest) -> Costs:
    """Return the costs of the simplest layout, for the facts of model and machine."""
    ranks = ranks_named(document.value.get("device"))
    replicas = max(request.gpus // ranks, 1)
    sizes = {"parallel.pp": ranks, "parallel.dp": replicas, "batch.global": replicas}
    return build_costs(load(document, (), {}, [setting(key, size) for key, size in sizes.items()]), registry)


def _limited(document: Document, request: PlanRequest, costs: Costs) -> Document:
    """Return the configuration with a memory limit of every rank."""
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
