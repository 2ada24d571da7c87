"""Axes of a plan: the sizes and settings that it varies, their default values, and all their combinations.

By default, a plan varies what practitioners vary: sizes that divide the model and the GPUs, tensor and context
parallelism inside a node, microbatches of up to eight sequences, all recomputation and ZeRO stages of the
cost model, even and balanced splits of layers, and every installed schedule with a formula of its bubble.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from functools import cached_property
from itertools import accumulate, product
from math import gcd, lcm, prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.flags import key_of
from pptrace.config.overrides import Assignment, assignment, assignments, overlaid
from pptrace.config.places import Document, Place, key_text, place_of
from pptrace.config.quantities import DURATION
from pptrace.config.resolution import document_of, leaves_by_key, load
from pptrace.config.schema import grid_key
from pptrace.errors import ConfigError, nearest
from pptrace.run.hardware import ranks_named
from pptrace.run.inputs import Preparation
from pptrace.run.neighbourhood import WIDELY, literals, value_of, words_of
from pptrace.run.preparation import build_costs
from pptrace.run.stacks import framework_of
from pptrace.search.basis import Entry, limit_settings, memory_limit, parse_entries
from pptrace.search.grid import axes_of, parse_axes
from pptrace.search.launch_arguments import ANY, FRAMEWORKS
from pptrace.steps.placement import Placement, branch_edges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pptrace.config.places import Places
    from pptrace.config.resolution import Resolved
    from pptrace.plugins.registry import Registry
    from pptrace.run.costs import Costs
    from pptrace.search.grid import Axis


Score: TypeAlias = "tuple[int, ...]"
"""The value of the objective, to be minimized, in units of a space; tuples compare lexicographically."""

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


class EncoderSizes(NamedTuple):
    """Sizes of a grid of encoders; None for those of the decoder."""

    key: str
    """Its section, such as ``parallel.encoder``."""
    pp: int
    """Pipeline ranks on separate GPUs; 0 on the decoder's."""
    tp: int | None
    cp: int | None
    dp: int | None

    def devices(self, tp: int, cp: int) -> int:
        """Return the separate GPUs of a replica, for sizes of the decoder."""
        return self.pp * (self.tp or tp) * (self.cp or cp)


class PlanLayout(Struct, frozen=True, kw_only=True):
    """A division of GPUs with a batch; the sizes but ``pp`` are those of the decoder."""

    gpus: int
    pp: int
    tp: int
    cp: int
    ep: int
    dp: int
    micro: int = 0
    sequences: int = 0
    """The global batch."""
    grids: tuple[EncoderSizes, ...] = ()
    """Grids of encoders, if one of them is on separate GPUs; ``pp`` counts their ranks."""

    @property
    def sizes(self) -> tuple[object, ...]:
        """The parallel sizes, without the batch."""
        return (self.gpus, self.pp, self.tp, self.cp, self.ep, self.dp, self.grids)

    @property
    def branches(self) -> tuple[int, ...]:
        """Pipeline ranks of each grid on separate GPUs."""
        return tuple(grid.pp for grid in self.grids if grid.pp)

    @property
    def depth(self) -> int:
        """Pipeline ranks of the longest path through encoders and decoder."""
        return self.pp - sum(self.branches) + max(self.branches, default=0)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """Edges between the stages of all ranks as (from, to); empty for a chain."""
        if len(self.branches) <= 1:
            return ()
        return replace(Placement.looped(self.pp, 0), edges=branch_edges(self.branches, self.pp)).graph

    @property
    def microbatches(self) -> int:
        """Microbatches of one pipeline in a step; 0 if replicas and size do not divide the batch."""
        count, rest = divmod(self.sequences, self.dp * self.micro)
        return 0 if rest else count


class LayoutGroup(Struct, frozen=True, kw_only=True, dict=True):
    """Configurations of one layout and settings, which differ in schedule, chunks and split."""

    number: int
    """Its index in the order of the space."""
    layout: PlanLayout
    varied: tuple[Assignment, ...]
    """Its settings."""

    @cached_property
    def texts(self) -> dict[str, str]:
        """The values of its settings as texts, by key."""
        return {key_text(each.path): repr(each.value) for each in self.varied}


class PlanRequest(Struct, frozen=True, kw_only=True):
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
    time: str | None = None
    """Time after which the search ends with the best so far, such as ``60s``; None for no limit."""
    framework: str = ""
    """The framework that has to run all places, or :data:`ANY`; by default that of the stack."""

    def check(self) -> None:
        """Refuse invalid values.

        Raises:
            ConfigError: no GPUs, no places, no time, an unknown objective or an unknown framework.
        """
        if self.gpus < 1:
            raise ConfigError(f"{self.gpus} is not a number of GPUs: write 1 or more", file="--gpus")
        if self.top < 1:
            raise ConfigError(f"{self.top} is not a number of places: write 1 or more", file="--top")
        if self.objective not in OBJECTIVES:
            message = f"{self.objective!r} is not an objective{nearest(self.objective, OBJECTIVES)}"
            raise ConfigError(message, file="--objective")
        if self.framework and self.framework not in {*FRAMEWORKS, ANY}:
            message = f"{self.framework!r} is not a framework: write {', '.join(FRAMEWORKS)} or {ANY}"
            raise ConfigError(message, file="--for")

        self.deadline_ns(0)

    def deadline_ns(self, start_ns: int) -> int | None:
        """Return the end of a search that starts at a time, in ns; None without a limit.

        Raises:
            ConfigError: the limit is not a time.
        """
        if self.time is None:
            return None
        try:
            return start_ns + DURATION.parse(self.time)
        except ConfigError as error:
            raise ConfigError(error.message, file="--time") from None


def gpus_text(count: int) -> str:
    """Return a number of GPUs in words.

    >>> gpus_text(1), gpus_text(1024)
    ('1 GPU', '1,024 GPUs')
    """
    return f"{count:,} GPU{'s' * (count != 1)}"


def varied_axes(
    vary: Sequence[str] | Mapping[str, Iterable[Any]], written: Mapping[str, Iterable[Any]]
) -> dict[str, Axis]:
    """Return the axes by key; ``vary`` overrides the ``plan`` section of the configuration.

    Names of :data:`ALIASES` are also keys.

    Raises:
        ConfigError: as for the axes of a sweep; or a repeated key.
    """
    configured = _named_axes(written, "plan")
    if isinstance(vary, Mapping):
        return configured | _named_axes(vary, "--vary")
    requested: dict[str, Axis] = {}
    for text in vary:
        key, equals, values = text.partition("=")
        name = key.strip()
        (axis,) = parse_axes([f"{ALIASES.get(name, name)}{equals}{values}"], "--vary")
        if _key(axis) in requested:
            raise ConfigError(f"{key.strip()} is given twice: write all values in one --vary", file="--vary")
        requested[_key(axis)] = axis
    return configured | requested


def _named_axes(values: Mapping[str, Iterable[Any]], option: str) -> dict[str, Axis]:
    named = {ALIASES.get(name, name): axis_values for name, axis_values in values.items()}
    return {_key(axis): axis for axis in axes_of(named, option)}


def _key(axis: Axis) -> str:
    """Return the key of an axis; of coupled keys and files, its name."""
    first = axis.values[0].varied
    return key_of(axis.key) if axis.is_coupled else key_text(first[0].path)


_LAYOUT_SIZES = ("pp", "tp", "cp", "ep", "dp", "vp")
_ENCODER_SIZES = ("pp", "tp", "cp", "dp")
"""Sizes of a grid of encoders."""
PLANNED = (*(f"parallel.{size}" for size in _LAYOUT_SIZES), "batch.micro", "batch.global", "schedule.name")
"""Keys that a plan chooses, unless the command line sets them."""
SCHEDULE_OPTION = "schedule.options."
"""The beginning of keys of options that only some schedules have."""
CLUSTER = "cluster.preset"
LAYERS = "model.layers_per_stage"
"""The key of the split of layers over stages."""
DIVIDED = (
    LAYERS, "model.layout", "model.offloaded_layers", "data_parallel.shard", "data_parallel.expert_shard",
    "costs.outer_sharding",
)  # fmt: skip
"""Keys of the layers of a stage and of groups of replicas, which belong to the configured sizes."""
_PLACE = Place(source="plan")


class PlanProblem(Struct, frozen=True, kw_only=True):
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
    words: Mapping[str, tuple[Any, ...]]
    """The values of keys that vary by default; none where the cost model does not have the key."""
    node_gpus: int
    """GPUs of a node: those of the cluster, or of the device's scale-up network."""
    on_cluster: bool
    """Whether the configuration has a cluster."""
    derived: tuple[Assignment, ...]
    """Settings that the plan adds to the configuration: the stack of the framework, the device's usual cluster."""
    sequences: int
    """The configured global batch; 0 without one."""
    sequence: int
    """Tokens in a sequence."""
    schedule: str
    """The configured schedule; empty without one."""
    framework: str
    """The framework that has to run all places; empty for none."""
    configured: Mapping[str, Any]
    """The values of the configuration and its stack for the other keys that vary by default."""
    given: Mapping[str, Any]
    """The settings of the command line that the plan does not choose, by key."""
    grids: Mapping[str, Mapping[str, Any]]
    """Configured sizes of encoders' grids by section, if one of them can be on separate GPUs."""

    def resolved(self, settings: Sequence[Assignment]) -> Resolved:
        """Return the configuration with settings.

        Raises:
            ConfigError: an invalid value.
        """
        return load(self.document, (), {}, settings)


def setting(key: str, value: Any) -> Assignment:
    """Return the assignment of a plain value to a key."""
    return Assignment(path=tuple(key.split(".")), value=value, place=_PLACE)


def job_gpus(config: Document) -> int:
    """Return the GPUs of a configuration's parallel sizes.

    Raises:
        ConfigError: it has none, or encoders on GPUs beside them.
    """
    tree = config.value or {}
    sizes, axes = tree.get("parallel") or {}, ("pp", "tp", "cp", "dp")
    if not sizes.keys() & {*axes} or sizes.keys() & {"encoder", "encoders"}:
        raise ConfigError("missing: the configuration does not have the number of GPUs", file="--gpus")
    return prod(_number(tree, f"parallel.{axis}", 1, config.places) for axis in axes)


def plan_problem(
    file: Path | Document | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    vary: Sequence[str] | Mapping[str, Iterable[Any]],
    request: PlanRequest,
    registry: Registry,
) -> PlanProblem:
    """Read the common configuration of a plan; sizes among ``sets`` and ``flags`` are fixed.

    Raises:
        PptraceError: an invalid value, no model, or a cluster of another size.
    """
    request.check()
    source = document_of(file)
    assigned_settings = assignments(sets, {name: value for name, value in flags.items() if value is not None})
    tree, places = overlaid(source.value, source.places, assigned_settings)
    written = tree.pop("plan", None) or {}
    axes = varied_axes(vary, written)
    axes = _fixed({key_text(assigned.path): assigned for assigned in assigned_settings}, axes) | axes
    if not tree.get("model"):
        raise ConfigError("missing: a plan divides a model over GPUs, such as --model llama3-70b", key="model")
    sequences = _sequences(tree, places)
    schedule = str((tree.get("schedule") or {}).get("name") or "")
    grids = _separate_grids(tree.get("parallel") or {}, axes)
    for section, keys in (("parallel", _LAYOUT_SIZES), ("batch", ("global", "micro", "microbatches"))):
        tree[section] = {key: value for key, value in (tree.get(section) or {}).items() if key not in keys}
    if grids:
        _without_sizes(tree["parallel"])
    if not schedule:
        tree["schedule"] = {"name": "1f1b"}
    assigned_keys = {key_text(assigned.path) for assigned in assigned_settings}
    has_sizes = any(size in _LAYOUT_SIZES for size in (source.value or {}).get("parallel") or {})
    removed = [
        setting(key, None) for key in DIVIDED
        if has_sizes and key in leaves_by_key(tree) and key not in assigned_keys
    ]  # fmt: skip
    tree, places = overlaid(tree, places, removed)
    document = Document(value=tree, places=places, source=source.source)
    costs = _trial(document, registry, request)
    derived = []
    if _has_other_stack(request, costs.resolved, registry) and not flags.get("stack"):
        derived.append(assignment("stack", request.framework, "--for"))
    cluster_name = _usual_cluster(tree, costs.resolved, registry)
    if cluster_name is not None:
        derived.append(setting(CLUSTER, cluster_name))
    if derived:
        assigned_settings += derived
        tree, places = overlaid(tree, places, derived)
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
        model_keys=frozenset(model().model_fields if model else ()),
        words={key: words_of(costs.resolved, registry, key) for key in _DEFAULT_AXES},
        node_gpus=(cluster.gpus or 1) if cluster else scale_up, on_cluster=cluster is not None,
        derived=(*removed, *derived),
        sequences=sequences, schedule=schedule, sequence=costs.resolved.experiment.batch.sequence or 0,
        framework=_framework(request, costs.resolved, registry),
        configured={key: value_of(costs.resolved, key) for key in _DEFAULT_AXES},
        given={
            key_text(assigned.path): assigned.value for assigned in assigned_settings
            if key_text(assigned.path) not in PLANNED and assigned.value is not None
        },
        grids=grids,
    )  # fmt: skip


def _separate_grids(parallel: Mapping[str, Any], axes: Mapping[str, Axis]) -> dict[str, dict[str, Any]]:
    """Return the configured sizes of encoders' grids by section; none if all are on the decoder's GPUs."""
    sections = {grid_key(name): grid for name, grid in (parallel.get("encoders") or {}).items()}
    if parallel.get("encoder") is not None:
        sections[grid_key("")] = parallel["encoder"]
    for key in axes:
        section, _, size = key.rpartition(".")
        if section.startswith(grid_key("")) and size in _ENCODER_SIZES:
            sections.setdefault(section, {})
    grids = {
        key: {size: grid[size] for size in _ENCODER_SIZES if size in (grid or {})}
        for key, grid in sections.items()
    }
    has_ranks = any(sizes.get("pp") or f"{key}.pp" in axes for key, sizes in grids.items())
    return grids if has_ranks else {}


def _without_sizes(parallel: dict[str, Any]) -> None:
    """Remove the sizes of encoders' grids, which a plan chooses, from a section."""

    def rest(grid: Mapping[str, Any] | None) -> dict[str, Any]:
        return {key: value for key, value in (grid or {}).items() if key not in _ENCODER_SIZES}

    if parallel.get("encoder") is not None:
        parallel["encoder"] = rest(parallel["encoder"])
    if parallel.get("encoders"):
        parallel["encoders"] = {name: rest(grid) for name, grid in parallel["encoders"].items()}


def _has_other_stack(request: PlanRequest, resolved: Resolved, registry: Registry) -> bool:
    """Return whether the stack is that of another framework, and plugins offer one of the requested framework."""
    framework = framework_of(Preparation(resolved=resolved, registry=registry))
    is_offered = any(name.rpartition("-")[0] == request.framework for name in registry.stacks)
    return request.framework in FRAMEWORKS and framework != request.framework and is_offered


def _usual_cluster(tree: Mapping[str, Any], resolved: Resolved, registry: Registry) -> str | None:
    """Return the first preset of a cluster of the device.

    Returns:
        None without such a preset, or if the configuration describes a network.
    """
    device, clusters = resolved.experiment.device, registry.clusters
    if device is None or device.ranks or tree.get("cluster") or tree.get("network"):
        return None
    keys = leaves_by_key({name: tree.get(name) for name in ("device", "data_parallel")})
    if any(key.startswith(("device.scale_up", "data_parallel.bandwidth")) for key in keys):
        return None
    return next((name for name in clusters if clusters[name].offer.device == device.preset), None)


def _framework(request: PlanRequest, resolved: Resolved, registry: Registry) -> str:
    """Return the framework that has to run all places; empty for none."""
    named = request.framework or framework_of(Preparation(resolved=resolved, registry=registry))
    return named if named in FRAMEWORKS else ""


def _fixed(by_key: Mapping[str, Assignment], axes: Mapping[str, Axis]) -> dict[str, Axis]:
    """Return the sizes on the command line as axes with one value."""
    fixed = {key: assigned for key, assigned in by_key.items() if assigned.value is not None}
    if "batch.microbatches" in fixed:
        message = "they follow from the global batch and each layout: write --global and --micro instead"
        raise _refusal(message, "batch.microbatches", fixed)
    for key in by_key:
        if key in axes and key in PLANNED:
            raise _refusal("it is also varied: leave one of them out", key, by_key)
    schedule = by_key.get("schedule.name")
    if schedule is not None and len(parse_entries([str(schedule.value)], str(schedule.place.source))) > 1:
        message = (
            f"{schedule.value} are several schedules, and a plan fixes one: write --vary schedule={schedule.value}"
        )
        raise _refusal(message, "schedule.name", by_key)
    return {key: axes_of({key: [assigned.value]})[0] for key, assigned in fixed.items() if key in PLANNED}


def _refusal(message: str, key: str, by_key: Mapping[str, Assignment]) -> ConfigError:
    return ConfigError(message, key=key, file=str(by_key[key].place.source))


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
    if name in (tree.get(section) or {}) and not _is_count(value, 1):
        place = place_of(key, places)
        raise ConfigError(
            f"{value} is not a whole number from 1; for several, write --vary {name}=64,128", key=key,
            file=place.source if place else "", line=place.line if place else 0,
        )  # fmt: skip
    return int(value)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _trial(document: Document, registry: Registry, request: PlanRequest) -> Costs:
    """Return the costs of the simplest layout, for the facts of model and machine; encoders have its sizes."""
    ranks = ranks_named(document.value.get("device"))
    replicas = max(request.gpus // ranks, 1)
    sizes = {"parallel.pp": ranks, "parallel.dp": replicas, "batch.global": replicas}
    without_grids = {"parallel.encoder": None, "parallel.encoders": None}
    return build_costs(
        load(document, (), {}, [setting(key, size) for key, size in [*sizes.items(), *without_grids.items()]]),
        registry,
    )


def _limited(document: Document, request: PlanRequest, costs: Costs) -> Document:
    """Return the configuration with a memory limit of every rank."""
    size = memory_limit(request.memory)
    resolved = load(
        document, (), {}, [
            setting("parallel.pp", ranks_named(document.value.get("device"))), setting("batch.global", 1),
        ],
    )  # fmt: skip
    settings = limit_settings(resolved, costs, size)
    over = [assignment(key, str(value), "--memory") for key, value in settings.items()]
    tree, places = overlaid(document.value, document.places, over)
    return Document(value=tree, places=places, source=document.source)


RECOMPUTE = "model.recompute"
RECOMPUTE_OPTIONS: dict[str, tuple[tuple[str, ...], Any]] = {
    "model.recompute_modules": (("selective",), []), "model.recompute_method": (("full",), None),
    "model.recompute_num_layers": (("full",), None), "model.offload_modules": (("none", "selective"), []),
}  # fmt: skip
"""Options of some kinds of recomputation, and their values under any other kind."""


def compatible_settings(settings: Sequence[Assignment], model: Mapping[str, Any]) -> tuple[Assignment, ...]:
    """Return settings without options of another kind of recomputation; those of the model are reset."""
    words = [override.value for override in settings if key_text(override.path) == RECOMPUTE]
    if not words:
        return tuple(settings)
    reset_values = {key: empty for key, (kinds, empty) in RECOMPUTE_OPTIONS.items() if words[-1] not in kinds}
    kept = tuple(override for override in settings if key_text(override.path) not in reset_values)
    configured = [key for key in reset_values if model.get(key.partition(".")[2])]
    return (*kept, *(setting(key, reset_values[key]) for key in configured))


PLAIN = "1f1b"
"""The schedule that represents all other schedules on one pipeline rank."""
_MICRO = (1, 2, 4, 8)
_CHUNKS = range(1, 9)
_POWERS = (1, 2, 4, 8)
"""Chunks per rank where the layers do not divide evenly."""
_ENDS = 2
"""Embedding and head, which can replace layers of a stage."""
_LONG, _LONGER = 8_192, 16_384
"""Tokens in a sequence from which context parallelism uses two devices, and all devices of a node."""
_MOST_STAGES = 64
"""Largest default number of pipeline ranks."""
_COPIED = "schedule.offload.ratio"
_NOTHING = "none"
"""The value of :data:`RECOMPUTE` without recomputation."""
_EVEN, _BALANCED = "even", "balanced"
_NEAREST = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""Orders of the axes on a cluster: replicas, or pipeline neighbours, inside a node."""
_ZERO, _SHARD = "costs.zero", "data_parallel.shard"
_DEFAULT_AXES = (RECOMPUTE, _ZERO)
_OFFLOADED = "model.offloaded_layers"
_SHARDED = 3
"""ZeRO's stage that shards weights."""


class Space:
    """The layouts and settings of a plan.

    Groups are generated when they are needed, so a space takes little memory.
    """

    def __init__(self, problem: PlanProblem, request: PlanRequest) -> None:
        """Read the requested values, and defaults for the other keys.

        Raises:
            ConfigError: invalid sizes, no batch, or an empty space.
        """
        self.problem, self.request = problem, request
        self.layers = int(problem.facts.get("layers") or 0)
        self.counts = self._counts()
        self.grids = tuple(product(*(self._grid_choices(key) for key in problem.grids)))
        self.sizes = {name: self._sizes(name) for name in _LAYOUT_SIZES}
        self.micro = self._numbers("batch.micro") or _MICRO
        self.sequences = self._numbers("batch.global") or ((problem.sequences,) if problem.sequences else ())
        if not self.sequences:
            raise ConfigError("missing: write the sequences in a step, such as --global 1024", key="batch.global")
        self.splits = self._splits()
        self.entries = self._with_varied_options(self._entries())
        self._combinations: dict[int, list[tuple[Assignment, ...]]] = {}
        self._variants: dict[int, list[tuple[int, ...]]] = {}
        self.divisions = list(self._divisions())
        if not self.divisions or not self.entries or not self._settings_of(0):
            raise self._empty_error()
        self._batch_unit = lcm(*self.sequences)
        batches = len(self.sequences) * len(self.micro)
        counts = (batches * len(self._settings_of(division)) for division in range(len(self.divisions)))
        self._ends = list(accumulate(counts))

    @property
    def groups(self) -> int:
        """The number of groups."""
        return self._ends[-1]

    def group(self, number: int) -> LayoutGroup:
        """Return the group with a number, in the order of divisions, batches, microbatches and other settings."""
        division, batch, combination = self._place_of(number)
        sequences, micro = divmod(batch, len(self.micro))
        layout = replace(self.divisions[division], micro=self.micro[micro], sequences=self.sequences[sequences])
        settings = (*self._size_settings(layout), *self._settings_of(division)[combination])
        return LayoutGroup(number=number, layout=layout, varied=settings)

    def score(self, step_ns: int, layout: PlanLayout) -> Score:
        """Return the score of a step of a layout, or of a lower bound on it."""
        if self.request.objective == "step":
            return (step_ns,)
        batches_ns = step_ns * (self._batch_unit // layout.sequences)
        return (layout.gpus, batches_ns) if self.request.objective == "gpus" else (batches_ns * layout.gpus,)

    def variants_of(self, number: int) -> tuple[int, ...]:
        """Return the numbers of the groups that differ from a group in recomputation alone, and its own.

        The first of them recomputes nothing. A group without such a variant is its only one. Where layers are
        offloaded, it is also its only one: recomputation then shortens copies.
        """
        if _OFFLOADED in self.problem.axes or self.problem.facts.get(_OFFLOADED.partition(".")[2]):
            return (number,)
        division, _, combination = self._place_of(number)
        shard = self._shard_group(self.divisions[division])
        if shard not in self._variants:
            self._variants[shard] = _recomputations(self._settings_of(division))
        return tuple(number - combination + other for other in self._variants[shard][combination])

    def _place_of(self, number: int) -> tuple[int, int, int]:
        """Return the division of a group, and the numbers of its batch and of its other settings there."""
        division = bisect_right(self._ends, number)
        first = self._ends[division - 1] if division else 0
        return division, *divmod(number - first, len(self._settings_of(division)))

    def _divisions(self) -> Iterator[PlanLayout]:
        """Yield every division of the GPUs, without a batch.

        Default numbers of pipeline ranks are those of the decoder.
        """
        sizes = [self.sizes[name] for name in ("pp", "tp", "cp", "ep")]
        counts_all = bool(self._numbers("parallel.pp"))
        for gpus, grids, (number, tp, cp, ep) in product(self.counts, self.grids, product(*sizes)):
            encoder_ranks = sum(grid.pp for grid in grids)
            decoder_ranks = number - encoder_ranks if counts_all else number
            if decoder_ranks < 1:
                continue
            devices = decoder_ranks * tp * cp + sum(grid.devices(tp, cp) for grid in grids if not grid.dp)
            separate = sum(grid.devices(tp, cp) * grid.dp for grid in grids if grid.dp)
            dp, remainder = divmod(gpus - separate, devices)
            if not remainder and dp > 0 and (not self.sizes["dp"] or dp in self.sizes["dp"]):
                pp = encoder_ranks + decoder_ranks
                yield PlanLayout(gpus=gpus, pp=pp, tp=tp, cp=cp, ep=ep, dp=dp, grids=grids)

    def _grid_choices(self, key: str) -> list[EncoderSizes]:
        """Return the sizes of a grid of encoders: varied, configured, or by default.

        By default, an encoder on separate GPUs has tensor-parallel sizes that divide its heads, inside a node, and
        powers of two as replicas. Other sizes are those of the decoder.
        """
        written, most = self.problem.grids[key], self.request.gpus
        axis = self.problem.axes.get(f"{key}.pp")
        ranks = [value.varied[0].value for value in axis.values] if axis else [written.get("pp") or 0]
        if not all(_is_count(pp, 0) for pp in ranks):
            raise ConfigError("write whole numbers from 0", file=f"--vary {key}.pp")

        def sizes(name: str, default: Sequence[int | None]) -> Sequence[int | None]:
            configured = [written[name]] if written.get(name) else default
            return self._numbers(f"{key}.{name}") or configured

        heads = gcd(*(int(encoder.get("heads") or 0) for encoder in self._encoders(key)))
        choices = []
        for pp in ranks:
            tensor = [size for size in range(1, self.problem.node_gpus + 1) if heads % size == 0]
            replicas = [1 << power for power in range(most.bit_length()) if pp << power < most]
            choices += [
                EncoderSizes(key, pp, tp, cp, dp)
                for tp, cp, dp in product(
                    sizes("tp", tensor if pp else [None]), sizes("cp", [None]),
                    sizes("dp", replicas if pp else [None]),
                )
            ]  # fmt: skip
        return choices

    def _encoders(self, key: str) -> list[Mapping[str, Any]]:
        """Return the parameters of the encoders of a grid."""
        facts, name = self.problem.facts, key.removeprefix(f"{grid_key('')}s.")
        named = facts.get("encoders") or {"": facts.get("encoder")}
        return [
            encoder for encoder_name, encoder in named.items()
            if encoder and (key == grid_key("") or encoder_name == name)
        ]  # fmt: skip

    def _size_settings(self, layout: PlanLayout) -> tuple[Assignment, ...]:
        """Return the settings of a layout's sizes."""
        values = {f"parallel.{name}": getattr(layout, name) for name in ("pp", "tp", "cp", "ep", "dp")}
        values |= {"batch.micro": layout.micro, "batch.global": layout.sequences}
        for grid in layout.grids:
            sizes = {name: getattr(grid, name) for name in _ENCODER_SIZES}
            values |= {f"{grid.key}.{name}": size for name, size in sizes.items() if size is not None}
        written = "sequence_parallel" in (self.problem.document.value or {}).get("parallel", {})
        if layout.tp == 1 or not written:
            values["parallel.sequence_parallel"] = layout.tp > 1
        return tuple(setting(key, value) for key, value in values.items())

    def _settings_of(self, division: int) -> list[tuple[Assignment, ...]]:
        """Return combinations of all other settings of a division, without options of another recomputation."""
        shard = self._shard_group(self.divisions[division])
        if shard not in self._combinations:
            written = (self.problem.document.value or {}).get("model")
            model = written if isinstance(written, dict) else {}
            by_text: dict[str, tuple[Assignment, ...]] = {}
            for parts in product(*self._other_values(shard)):
                settings = tuple(override for part in parts for override in part)
                kept = compatible_settings(settings, model)
                by_text.setdefault(repr([(override.path, override.value) for override in kept]), kept)
            self._combinations[shard] = list(by_text.values())
        return self._combinations[shard]

    def _shard_group(self, layout: PlanLayout) -> int:
        """Return the size of shard groups to try beside sharding over all replicas of a layout.

        Returns:
            The most replicas of a node that can be a group, 1 for no groups; 0 if sharded weights are not tried by
            default.
        """
        framework, axes = FRAMEWORKS.get(self.problem.framework), self.problem.axes
        is_fixed = _ZERO in axes or _SHARDED not in self.problem.words[_ZERO]
        gpus, tp, cp = layout.gpus, layout.tp, layout.cp
        if layout.pp > 1 or gpus <= tp or is_fixed or framework is None or not framework.shards_alone:
            return 0
        written = (self.problem.document.value or {}).get("data_parallel") or {}
        if "shard" in written or _SHARD in axes or gpus <= self.problem.node_gpus:
            return 1
        sizes = range(2, self.problem.node_gpus // (tp * cp) + 1)
        return max((size for size in sizes if layout.dp % size == 0 and size * cp % layout.ep == 0), default=1)

    def chunks_of(self, layout: PlanLayout) -> tuple[int, ...]:
        """Return the chunks per rank: the requested ones, or all that divide the layers.

        Where the number of ranks does not divide the layers, such as 61 or 126, they are powers of two. With
        encoders on separate GPUs, ranks have one.
        """
        pp = layout.pp
        if self.sizes["vp"]:
            return self.sizes["vp"]
        if layout.branches:
            return (1,)
        return tuple(chunks for chunks in _CHUNKS if chunks == 1 or (pp > 1 and self._divides(pp, chunks)))

    def is_covered_by_plain(self, entry: Entry) -> bool:
        """Return whether 1F1B represents a schedule on one rank."""
        labels = {other.label for other in self.entries}
        if PLAIN not in labels or entry.label != entry.name or entry.name == PLAIN:
            return False
        costs = (self.problem.document.value or {}).get("costs") or {}
        return not costs.get("segments") and "costs.segments" not in self.problem.axes

    def _divides(self, pp: int, chunks: int) -> bool:
        if self.layers % pp == 0:
            return self.layers % (pp * chunks) == 0 and self.layers >= pp * chunks
        return chunks in _POWERS and pp * chunks <= self.layers + _ENDS

    @cached_property
    def heading(self) -> str:
        """The varied sizes in one line."""
        parts = {name: values for name, values in self.sizes.items() if values}
        parts |= {"micro": self.micro, "global": self.sequences}
        named = [f"{name} {min(values)}..{max(values)}" for name, values in parts.items() if len(values) > 1]
        count = len(self.entries)
        return f"{', '.join(named) or 'sizes are fixed'}; {count} schedule{'s' * (count > 1)}"

    def _counts(self) -> tuple[int, ...]:
        most = self.request.gpus
        if self.request.objective != "gpus":
            return (most,)
        return tuple(count for count in range(1, most + 1) if most % count == 0)

    def _numbers(self, key: str) -> tuple[int, ...]:
        axis = self.problem.axes.get(key)
        values = [value.varied[0].value for value in axis.values] if axis else []
        for value in values:
            if not _is_count(value, 1):
                raise ConfigError(f"{value!r} is not a size: write whole numbers from 1", file=f"--vary {key}")
        return tuple(values)

    def _sizes(self, name: str) -> tuple[int, ...]:
        named = self._numbers(f"parallel.{name}")
        if named or name in {"dp", "vp"}:
            return named
        most, facts, node = self.request.gpus, self.problem.facts, self.problem.node_gpus
        divisors = [size for size in range(1, most + 1) if self.problem.grids or most % size == 0]
        if name == "pp":
            return tuple(size for size in divisors if size <= min(self.layers or most, _MOST_STAGES))
        if name == "tp":
            return tuple(size for size in divisors if size <= node and int(facts.get("heads") or size) % size == 0)
        if name == "cp":
            tokens = self.problem.sequence
            most = node if tokens >= _LONGER else min(2, node) if tokens >= _LONG else 1
            return tuple(size for size in divisors if size <= most)
        experts = int(facts.get("num_experts") or 0)
        return tuple(size for size in divisors if experts and experts % size == 0 and size <= most) or (1,)

    def _splits(self) -> tuple[Any, ...]:
        axis = self.problem.axes.get(LAYERS)
        if axis is None:
            return (_EVEN, _BALANCED) if LAYERS.partition(".")[2] in self.problem.model_keys else (_EVEN,)
        splits = tuple(value.varied[0].value for value in axis.values)
        for split in splits:
            if not isinstance(split, list) and split not in {_EVEN, _BALANCED}:
                message = f"{split!r} is not a split: write even, balanced or a list"
                raise ConfigError(message, file="--vary layers")
        return splits

    def _entries(self) -> tuple[Entry, ...]:
        """Return the requested schedules, or the configured one and all installed ones with a bubble formula.

        Schedules that train with older weights have to be requested.
        """
        axis = self.problem.axes.get("schedule.name")
        offers, default = self.problem.registry.schedules, self.problem.schedule
        requested = axis.values if axis else ()
        if [value.text for value in requested] == ["all"]:
            return tuple(entry for name in sorted(offers) for entry in self._option_entries(name))
        if requested:
            return tuple(
                Entry(
                    label=value.text, name=str(value.varied[0].value), settings=(), varied=value.varied,
                    source="--vary",
                )
                for value in requested
            )  # fmt: skip
        other_names = [
            name
            for name in sorted(offers)
            if name != default
            and offers[name].offer.bubble is not None
            and offers[name].offer.part_times is None
            and not offers[name].offer.only_by_name
        ]
        return parse_entries([*([default] if default else []), *other_names], "plan")

    def _with_varied_options(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        """Return entries with each value of the varied options that their schedules have.

        Raises:
            ConfigError: an option that no schedule has.
        """
        for key, axis in self.problem.axes.items():
            if not key.startswith(SCHEDULE_OPTION):
                continue
            if not any(self._has_option(entry, key) for entry in entries):
                names = ", ".join(dict.fromkeys(entry.name for entry in entries))
                raise ConfigError(f"no schedule of the plan has this option: {names}", file=f"--vary {key}")
            entries = tuple(
                variant
                for entry in entries
                for variant in (_with_option(entry, key, axis) if self._has_option(entry, key) else (entry,))
            )
        return entries

    def _has_option(self, entry: Entry, key: str) -> bool:
        """Return whether the schedule of an entry has an option that the entry does not set."""
        if entry.is_table or entry.sets(key):
            return False
        model = self.problem.registry.schedules[entry.name].offer.options
        return model is not None and key.removeprefix(SCHEDULE_OPTION) in model().model_fields

    def _option_entries(self, name: str) -> tuple[Entry, ...]:
        """Return a schedule with its defaults, and with each value of its enumerated options."""
        model = self.problem.registry.schedules[name].offer.options
        words = literals(model()) if model else {}
        texts = [f"{name}:{option}={word}" for option, values in words.items() for word in values]
        return parse_entries([name, *texts], "plan")

    def _other_values(self, shard: int) -> list[list[tuple[Assignment, ...]]]:
        """Return the values of all other keys, a list per axis.

        Args:
            shard: replicas in a node that share state where sharded weights are tried by default; else 0.
        """
        axes = self.problem.axes
        of_grids = {f"{key}.{size}" for key in self.problem.grids for size in _ENCODER_SIZES}
        for axis in axes.values():
            _check_coupled(axis)
        axis_values = [
            [tuple(map(_normalize_offload, value.varied)) for value in axis.values]
            for key, axis in axes.items()
            if key not in {*PLANNED, LAYERS, *of_grids} and not key.startswith(SCHEDULE_OPTION)
        ]
        framework = FRAMEWORKS.get(self.problem.framework)
        usual_values = {**WIDELY, **(framework.values if framework else {})}
        for key in _DEFAULT_AXES:
            words = self.problem.words[key] if key not in axes else ()
            usual = {*usual_values.get(key, words), self.problem.configured[key]}
            values = [value for value in words if value in usual]
            settings: list[tuple[Assignment, ...]] = [(setting(key, value),) for value in values]
            if key == _ZERO and shard:
                settings += [(setting(key, _SHARDED),)] if _SHARDED not in values else []
                settings += [(setting(key, _SHARDED), setting(_SHARD, shard))] if shard > 1 else []
            axis_values += [settings] if len(settings) > 1 else []
        if self.problem.on_cluster and "parallel.order" not in axes:
            axis_values.append([(setting("parallel.order", order),) for order in _NEAREST])
        return axis_values

    def _empty_error(self) -> ConfigError:
        """Return the error of a space without configurations."""
        smallest = prod(min(self.sizes[name], default=0) for name in ("pp", "tp", "cp"))
        job = self.request.gpus
        if smallest > job:
            message = f"a replica of the given sizes needs {gpus_text(smallest)}, and the job has {job:,}"
            return ConfigError(message, file="--gpus")
        message = f"no pp x tp x cp x dp of the given sizes is {gpus_text(job)}: give other sizes"
        return ConfigError(message, file="--vary")


def _recomputations(combinations: Sequence[tuple[Assignment, ...]]) -> list[tuple[int, ...]]:
    """Return for each combination the indices of those that differ in recomputation alone, without it first."""
    other_settings, words = [], []
    for settings in combinations:
        values = {key_text(override.path): override.value for override in settings}
        words.append(values.get(RECOMPUTE))
        other_settings.append(
            repr([(key, value) for key, value in values.items() if key not in {RECOMPUTE, *RECOMPUTE_OPTIONS}])
        )
    variants: dict[str, list[int]] = {}
    for index in sorted(range(len(words)), key=lambda index: words[index] != _NOTHING):
        variants.setdefault(other_settings[index], []).append(index)
    return [
        tuple(variants[other]) if words[variants[other][0]] == _NOTHING else (index,)
        for index, other in enumerate(other_settings)
    ]


def _with_option(entry: Entry, key: str, axis: Axis) -> tuple[Entry, ...]:
    """Return an entry with each value of an option."""
    option = key.removeprefix(SCHEDULE_OPTION)
    return tuple(
        replace(entry, label=f"{entry.label}:{option}={value.text}", varied=(*entry.varied, *value.varied))
        for value in axis.values
    )


def _check_coupled(axis: Axis) -> None:
    """Reject coupled keys of a layout."""
    layout_keys = sorted({key_text(path) for path in axis.paths} & {*PLANNED, LAYERS})
    if layout_keys and axis.is_coupled:
        message = f"{layout_keys[0]} is a separate axis of a plan; for complete layouts, use pptrace sweep --gpus"
        raise ConfigError(message, file=f"--vary {axis.key}")


def _normalize_offload(override: Assignment) -> Assignment:
    """Return an assignment; a copied share of 0 removes ``schedule.offload``."""
    is_zero = key_text(override.path) == _COPIED and not override.value
    return setting("schedule.offload", None) if is_zero else override
