"""The ground of a plan: a configuration without what a plan chooses, its model and machine, and what it fixes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from pptrace.config.overrides import Assignment, assignment, assignments, overlaid
from pptrace.config.places import Place, key_text, place_of
from pptrace.config.resolve import document_of, load
from pptrace.config.yaml_file import Document
from pptrace.errors import ConfigError
from pptrace.experiment.devices import ranks_named
from pptrace.experiment.limit import limit_settings, memory_limit
from pptrace.experiment.prepare import costs_alone
from pptrace.study.axes import axes_of
from pptrace.study.entry import parse_entries
from pptrace.study.plan.question import varied_axes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pptrace.config.places import Places
    from pptrace.config.resolve import Resolved
    from pptrace.experiment.costs import Costs
    from pptrace.hooks.registry import Registry
    from pptrace.study.axes import Axis
    from pptrace.study.plan.question import Question

__all__ = ["Ground", "ground_of", "setting"]

_SIZES = ("pp", "tp", "cp", "ep", "dp", "vp")
_PLANNED = (*(f"parallel.{size}" for size in _SIZES), "batch.micro", "batch.global", "schedule.name")
"""Keys whose values a plan chooses, unless the command line says them."""
_PLACE = Place(source="plan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
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


def ground_of(
    file: Path | Document | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    vary: Sequence[str] | Mapping[str, Iterable[Any]],
    question: Question,
    registry: Registry,
) -> Ground:
    """Read a configuration as the ground of a plan.

    Args:
        file: the configuration.
        sets: ``key.path=value`` texts; a size among them is fixed.
        flags: values by flag name; a size among them is fixed.
        vary: what varies, as texts or as values by key.
        question: what is asked.
        registry: the plugins.

    Raises:
        PptraceError: what cannot be used; no model; a cluster of another size.
    """
    question.check()
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
    costs = _trial(document, registry, question)
    if question.memory is not None:
        document = _limited(document, question, costs)
        costs = _trial(document, registry, question)
    return _ground(document, registry, axes, costs, (sequences, schedule))


def _ground(
    document: Document, registry: Registry, axes: Mapping[str, Axis], costs: Costs, said: tuple[int, str]
) -> Ground:
    experiment = costs.resolved.experiment
    devices = costs.request.rank_devices or (costs.request.device,)
    cluster = experiment.cluster
    model = costs.offer.offer.model
    return Ground(
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


def _trial(document: Document, registry: Registry, question: Question) -> Costs:
    """Return the costs of the plainest division, which says what model and machine are."""
    ranks = ranks_named(document.value.get("device"))
    replicas = max(question.gpus // ranks, 1)
    sizes = {"parallel.pp": ranks, "parallel.dp": replicas, "batch.global": replicas}
    return costs_alone(load(document, (), {}, [setting(*one) for one in sizes.items()]), registry)


def _limited(document: Document, question: Question, costs: Costs) -> Document:
    """Return the configuration with a limit to every rank's memory."""
    size = memory_limit(question.memory, "--memory")
    resolved = load(
        document, (), {}, [
            setting("parallel.pp", ranks_named(document.value.get("device"))), setting("batch.global", 1),
        ],
    )  # fmt: skip
    settings = limit_settings(resolved, costs, size, "--memory")
    over = [assignment(key, str(value), "--memory") for key, value in settings.items()]
    tree, places = overlaid(document.value, document.places, over)
    return Document(value=tree, places=places, source=document.source)
