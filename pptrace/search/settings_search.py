"""Variable settings of a schedule, and the search for their best values.

Estimates order the variants (:mod:`pptrace.run.neighbourhood`). A step is rarely a tenth shorter than its
estimate, so the search simulates variants until no estimate promises a shorter step. It then varies the other
settings of the best variant. The configured variant is always simulated, so the result is never worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from pptrace.config.quantities import exact_size
from pptrace.config.resolution import load
from pptrace.config.schema import Offload, Recompute
from pptrace.errors import ConfigError, ConstraintError, PptraceError, nearest
from pptrace.run.inputs import Preparation
from pptrace.run.neighbourhood import (
    Change,
    Estimate,
    Trial,
    chunks_of,
    estimate,
    has_equal_work,
    literals,
    memory_savings,
    sizes_of,
    value_of,
    words_of,
)
from pptrace.run.preparation import build_costs
from pptrace.run.run import simulate
from pptrace.run.table_changes import copies_take_time
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.config.schema import ScheduleChoice
    from pptrace.plugins.offers import ScheduleOffer
    from pptrace.plugins.providers import Provided
    from pptrace.plugins.registry import Registry
    from pptrace.run.run import Run
    from pptrace.steps.workload import Workload

Settings: TypeAlias = Mapping[str, Any]
"""Values by key."""

_MICRO = (2, 0.5, 4, 0.25)
_ACTIVATION_SHARES = (Fraction(15, 16), Fraction(7, 8), Fraction(13, 16), Fraction(3, 4))
"""Shares of a variant's activations for which another order is generated."""
_MIB = 2**20
_RATIOS = (0.25, 0.5, 1)
"""Shares of copied activations."""
_COPIED, _RECOMPUTED = "schedule.offload.ratio", "schedule.recompute.early"


class VariableSetting(Struct, frozen=True, kw_only=True):
    """One variable setting, or several dependent settings."""

    name: str
    """Its name for ``--vary``."""
    text: str
    """Its description."""
    values: Callable[[SettingsSearch], Sequence[Settings]]
    """Returns values that differ from the configuration's, each as settings by key."""
    is_estimated: bool = True
    """Whether estimates depend on it; other settings are varied on the best variant by estimate."""
    is_tried: bool = False
    """Whether the second phase also tries its values on the best variant by estimate."""
    on_request: bool = False
    """Whether it varies only if named."""


def varied_settings(names: Sequence[str]) -> tuple[VariableSetting, ...]:
    """Return the settings named by ``--vary``, in the order of the table; by default, all except those on request.

    Raises:
        ConfigError: an unknown name.
    """
    known = [setting.name for setting in VARIED]
    for name in names:
        if name not in known:
            raise ConfigError(f"{name!r} is not a variable setting{nearest(name, known)}", file="--vary")
    return tuple(s for s in VARIED if (s.name in names if names else not s.on_request))


def _chunks(search: SettingsSearch) -> list[Settings]:
    experiment = search.filled.experiment
    if experiment.schedule.kind == "table":
        return []
    configured = search.chunks or experiment.parallel.vp
    counts = chunks_of(experiment, configured, experiment.parallel.pp or 1, deep=True)
    return [{"parallel.vp": count} for count in counts if count != search.chunks]


def _micro(search: SettingsSearch) -> list[Settings]:
    experiment = search.filled.experiment
    written = "batch.microbatches" in search.filled.positions
    values: list[Settings] = []
    for sizes in sizes_of(experiment, micro=_MICRO):
        count = sizes.microbatches(experiment.batch.global_batch or 0)
        if sizes.micro != experiment.batch.micro:
            values.append({"batch.micro": sizes.micro, **({"batch.microbatches": count} if written else {})})
    return values


def _words(key: str) -> Callable[[SettingsSearch], list[Settings]]:
    def values(search: SettingsSearch) -> list[Settings]:
        words = words_of(search.filled, search.registry, key)
        return [{key: word} for word in words if word != value_of(search.filled, key)]

    return values


def _options(search: SettingsSearch) -> list[Settings]:
    if search.provided is None or search.provided.offer.options is None:
        return []
    return [
        {f"schedule.options.{name}": word}
        for name, words in literals(search.provided.offer.options()).items()
        for word in words
        if word != search.options.get(name)
    ]


def _order_memory(search: SettingsSearch) -> list[Settings]:
    """Return memory limits below that of an order; an order for a lower limit is sometimes shorter."""
    if search.provided is None or search.options.get("order") == "fixed" or "memory" not in search.options:
        return []
    sizes = [int(search.activation_bytes * part) // _MIB * _MIB for part in _ACTIVATION_SHARES]
    return [{"schedule.options.memory": exact_size(size)} for size in sizes if size]


def _offload(search: SettingsSearch) -> list[Settings]:
    if not search.copies_take_time or _has_memory_actions(search):
        return []
    return [{_COPIED: ratio} for ratio in _RATIOS]


def _recompute_actions(search: SettingsSearch) -> list[Settings]:
    return [] if _has_memory_actions(search) else [{_RECOMPUTED: early} for early in (False, True)]


def _has_memory_actions(search: SettingsSearch) -> bool:
    choice = search.filled.experiment.schedule
    return choice.offload is not None or choice.recompute is not None


VARIED = (
    VariableSetting(name="vp", text="chunks of the model per rank", values=_chunks),
    VariableSetting(name="micro", text="sequences in a microbatch", values=_micro),
    VariableSetting(name="recompute", text="what the backward recomputes", values=_words("model.recompute")),
    VariableSetting(name="zero", text="the ZeRO stage", values=_words("costs.zero"), on_request=True),
    VariableSetting(
        name="sequence-parallel", text="whether activations are split over the sequence",
        values=_words("parallel.sequence_parallel"), on_request=True,
    ),
    VariableSetting(
        name="options", text="options of the schedule that take one of a few words", values=_options,
        is_estimated=False,
    ),
    VariableSetting(
        name="offload", text="the share of activations that is copied to the host and back", values=_offload,
        is_tried=True,
    ),
    VariableSetting(
        name="recompute-actions", text="forwards recomputed by separate actions",
        values=_recompute_actions, is_tried=True,
    ),
    VariableSetting(
        name="memory", text="the memory that a generated order is made for", values=_order_memory,
        is_estimated=False,
    ),
)  # fmt: skip
"""All variable settings, in the order of the search."""

TABLE_SETTINGS = frozenset({_COPIED, _RECOMPUTED})
"""Settings that change a table, and not the costs of its stages."""


def is_both(settings: Mapping[str, Any]) -> bool:
    """Return whether a variant copies and recomputes the same activations, which is invalid."""
    return settings.keys() >= TABLE_SETTINGS


def memory_actions(settings: Mapping[str, Any], choice: ScheduleChoice) -> tuple[Offload | None, Recompute | None]:
    """Return copies and recomputation of a variant; by default those of the configuration."""
    ratio, early = settings.get(_COPIED), settings.get(_RECOMPUTED)
    return (
        choice.offload if ratio is None else Offload(ratio=ratio),
        choice.recompute if early is None else Recompute(early=early),
    )


_BY_ESTIMATE, _NEAR_BEST = 16, 20
"""Limits of simulated variants: the best by estimate, and variants near the best of these."""

_NOT_FITTING = 2
"""Variants that do not fit, whose other settings are varied too."""

_LEAST_MEMORY = 4
"""Variants of least memory that replace the best by estimate while none fits."""

_STEP_RATIO = 0.9
"""The least expected ratio of a step to its estimate."""

_MEMORY_RATIO = 0.6
"""The same ratio of memory; orders that are generated for a limit take less than their estimate."""

_ACTIONS, _OF_CONFIGURED = 4_000_000, 8
"""Limits of the sum of actions: absolute, and as a multiple of the configured variant's; the larger holds."""

_OPTIONS = "schedule.options."


@dataclass(slots=True, kw_only=True)
class SettingsSearch:
    """The search over the variants of one schedule, and its result."""

    resolved: Resolved
    """The configuration with the schedule and the limit."""
    registry: Registry
    """The plugins."""
    settings: tuple[VariableSetting, ...]
    """The variable settings."""
    limit_bytes: int
    """The memory limit of a rank."""
    workloads: dict[Any, Workload | None]
    """A cache of costs, shared by the schedules of a comparison."""
    costs_key: tuple[Any, ...] = ()
    """The key of its costs in the cache."""
    fixed: tuple[str, ...] = ()
    """Keys that do not vary, nor do the keys below them."""
    may_drop_chunks: bool = True
    """Whether to drop chunks per rank that the schedule does not take."""
    watch: Callable[[int], None] | None = None
    """Receives the number of simulated variants."""
    tried: list[Trial] = field(default_factory=list)
    """All simulated variants, in order, the configured one first."""
    best: Trial | None = None
    """The shortest step that fits, else the variant of least memory; None if none runs."""
    run: Run | None = None
    """Its simulated step."""
    error: PptraceError | None = None
    """The error of the configured variant, if any."""
    misplaced: ConstraintError | None = None
    """The first error of a variant whose messages the policy cannot place."""
    candidates: int = 0
    """Number of estimated variants."""
    work_ns: int = 0
    """Computation of the configured variant; 0 where it cannot run."""
    actions_left: int = _ACTIONS
    """Actions that the search may still simulate."""
    chunks: int = 0
    """Chunks per rank of the configuration; 0 where it does not run or ranks differ in them."""
    activation_bytes: int = 0
    """Peak activations on a rank of the variant whose settings vary; 0 before any simulation."""
    copies_take_time: bool = False
    """Whether the costs have times of copies to the host and back."""
    provided: Provided[ScheduleOffer] | None = field(init=False)
    """The schedule; None for a table file."""
    filled: Resolved = field(init=False)
    """The configuration with all options filled in."""
    options: Settings = field(init=False)
    """Options of the schedule, defaults included."""

    def __post_init__(self) -> None:
        """Look up the schedule.

        Raises:
            PptraceError: invalid costs or options.
        """
        schedule = self.resolved.experiment.schedule
        self.provided = None if schedule.kind == "table" else self.registry.schedules[schedule.name]
        inputs = Preparation(resolved=build_costs(self.resolved, self.registry).resolved, registry=self.registry)
        self.options = inputs.fill_options("schedule", self.provided.offer.options if self.provided else None)
        self.filled = inputs.resolved

    @property
    def configured(self) -> Trial:
        """The configured variant."""
        return self.tried[0]

    @property
    def fits(self) -> bool:
        """Whether a variant fits."""
        return self.best is not None and self.best.fits

    def search(self, likely: Change | None = None) -> None:
        """Simulate the configured variant, the ``likely`` one, the best by estimate, and those near the best."""
        self._simulate_configured()
        if likely is not None:
            self._simulate(likely)
        self._simulate_likeliest(self._estimates([{}]))
        if not self.fits:  # other options may fit, with copies and recomputation as well
            unestimated = [setting for setting in self.settings if not setting.is_estimated]
            bases = [values for setting in unestimated for values in self._values(setting)]
            for base in bases:
                self._simulate(Change(settings=dict(base)))
            self._simulate_likeliest(self._estimates(bases))
        self._refine()

    def add_memory_savings(self) -> Trial | None:
        """Return a variant that fits with settings beyond the variable ones; None if none fits.

        Its change has only the further settings.
        """
        start = self.best or self.configured
        known = {key for setting in self.settings for values in setting.values(self) for key in values}
        seen = []
        for switches in memory_savings(self.filled, self.registry):
            more = {key: value for key, value in switches.items() if key not in known}
            if not more or more in seen or self._is_fixed(more):
                continue
            seen.append(more)
            try:
                run = self._run(start.change.with_settings(more))
            except PptraceError:
                continue
            if run.metrics.memory.over_capacity is None:
                return Trial.of(Change(settings=more), run)
        return None

    def _simulate_configured(self) -> None:
        change, parallel = Change(settings={}), self.resolved.experiment.parallel
        try:
            run = simulate(self.resolved, self.registry, may_drop_chunks=self.may_drop_chunks)
        except PptraceError as error:
            self.error = error
            workload = self._workload(change, (parallel.pp or 1) * parallel.vp)
            self.copies_take_time = workload is not None and copies_take_time(workload)
            self._add_refused(change, error)
            return
        self.copies_take_time = copies_take_time(run.prepared.workload)
        schedule = run.prepared.schedule
        if schedule.stages % schedule.ranks == 0 and self.resolved.experiment.schedule.kind != "table":
            self.chunks = run.prepared.chunks
            change = Change(settings={"parallel.vp": self.chunks})
        self.actions_left = max(_ACTIONS, _OF_CONFIGURED * len(schedule))
        self.work_ns = run.work_ns
        self._add(change, run)

    def _estimates(self, bases: Sequence[Settings]) -> list[tuple[Change, Estimate]]:
        """Return the variants of each base that have an estimate and no result, the best estimate first."""
        known = {variant.change.arguments for variant in self.tried}
        estimates = [
            (change, guess)
            for base in bases
            for change in self._combinations(base)
            if (guess := self._estimate(change)) and change.arguments not in known
        ]
        self.candidates += len(estimates)
        return sorted(estimates, key=lambda pair: (not self._may_fit(pair[1]), pair[1].step_ns))

    def _combinations(self, base: Settings) -> Iterator[Change]:
        chunks = {"parallel.vp": self.chunks} if self.chunks else {}
        rows = [[{}, *self._values(setting)] for setting in self.settings if setting.is_estimated]
        for parts in product(*rows):
            settings = {**base, **chunks, **{key: value for part in parts for key, value in part.items()}}
            if not is_both(settings):
                yield Change(settings=settings)

    def _values(self, setting: VariableSetting) -> list[Settings]:
        return [values for values in setting.values(self) if not self._is_fixed(values)]

    def _is_fixed(self, settings: Settings) -> bool:
        return any(key == fixed or key.startswith(f"{fixed}.") for key in settings for fixed in self.fixed)

    def _estimate(self, change: Change) -> Estimate | None:
        """Return the estimate of a variant; None where the schedule does not take its sizes."""
        if self.provided is None:
            return Estimate(step_ns=0, peak_bytes=0, fits=True)
        stages, microbatches = self._sizes(change)
        workload = self._workload(change, stages)
        if workload is None or not self._has_same_work(workload, microbatches):
            return None
        options = {
            key.removeprefix(_OPTIONS): value for key, value in change.settings.items() if key.startswith(_OPTIONS)
        }
        experiment = self.filled.experiment
        copies, recompute = memory_actions(change.settings, experiment.schedule)
        hides = self.provided.offer.has_pairs and bool(workload.segments)
        return estimate(
            self.provided, workload, experiment.parallel.pp or 1, microbatches,
            {**self.options, **options}, copies, recompute, hides=hides, experiment=experiment,
        )  # fmt: skip

    def _sizes(self, change: Change) -> tuple[int, int]:
        """Return the stages and microbatches of a variant."""
        parallel, batch = self.filled.experiment.parallel, self.filled.experiment.batch
        stages = (parallel.pp or 1) * change.settings.get("parallel.vp", parallel.vp)
        return stages, batch.known_microbatches * batch.micro // change.settings.get("batch.micro", batch.micro)

    def _workload(self, change: Change, stages: int) -> Workload | None:
        """Return the costs of a variant from the cache; None where they are invalid."""
        costly = change.without(TABLE_SETTINGS | {"parallel.vp"})
        has_pairs = self.provided is not None and self.provided.offer.has_pairs
        key = (self.costs_key, costly.arguments, stages, has_pairs)
        if key not in self.workloads:
            try:
                costs = build_costs(load(self.resolved.written, costly.sets, costly.flags), self.registry)
                self.workloads[key] = costs.workload(stages, has_pairs=has_pairs)
            except PptraceError:
                self.workloads[key] = None
        return self.workloads[key]

    def _has_same_work(self, workload: Workload, microbatches: int) -> bool:
        """Return whether stages compute as much as those of the configured variant."""
        if self.filled.experiment.model is not None or not self.work_ns:
            return True
        return has_equal_work(workload.total_ns((Kind.F, Kind.B), microbatches), self.work_ns)

    def _may_fit(self, guess: Estimate) -> bool:
        return guess.peak_bytes * _MEMORY_RATIO <= self.limit_bytes

    def _simulate_likeliest(self, estimates: Sequence[tuple[Change, Estimate]]) -> None:
        """Simulate variants until no estimate promises a shorter step; if none fits, those of least memory too."""
        until = len(self.tried) + _BY_ESTIMATE
        for change, guess in estimates:
            if self._is_hopeless(guess) or len(self.tried) >= until - (0 if self.fits else _LEAST_MEMORY):
                break
            self._simulate(change)
        for change, _ in sorted(estimates, key=lambda pair: (pair[1].peak_bytes, pair[1].step_ns)):
            if not self.fits and len(self.tried) < until:
                self._simulate(change)

    def _is_hopeless(self, guess: Estimate) -> bool:
        best = self.best
        return best is not None and best.fits and guess.step_ns * _STEP_RATIO >= (best.step_ns or 0)

    def _refine(self) -> None:
        """Vary settings without estimates on the best variant, and on shorter variants that nearly fit."""
        best, until = self.best, len(self.tried) + _NEAR_BEST
        if best is None:
            return
        self._refine_variant(best, until)
        fastest_ns = best.step_ns or 0
        shorter = [
            variant
            for variant in self.tried
            if not variant.fits and variant.step_ns is not None and variant.step_ns < fastest_ns
        ]
        for start in sorted(shorter, key=attrgetter("order"))[:_NOT_FITTING]:
            self._refine_variant(start, until)

    def _refine_variant(self, first: Trial, until: int) -> None:
        best = first
        for setting in self.settings:
            self.activation_bytes = best.activation_bytes
            # Insufficient memory savings may exclude larger ones: copies exclude recomputation.
            starts = [best] if best.fits or best is first else [best, first]
            for change in [more for start in starts for more in self._changes(start.change, setting)]:
                variant = self._simulate(change) if len(self.tried) < until else None
                best = min(best, variant, key=attrgetter("order")) if variant else best

    def _changes(self, change: Change, setting: VariableSetting) -> list[Change]:
        """Return a variant with each value of a setting and without it, where estimates do not decide."""
        if setting.is_estimated and not setting.is_tried:
            return []
        values = self._values(setting)
        keys = frozenset().union(*values)
        return [change.without(keys)] * bool(setting.is_tried and keys & change.settings.keys()) + [
            more for settings in values if not is_both((more := change.with_settings(settings)).settings)
        ]

    def _simulate(self, change: Change) -> Trial | None:
        """Simulate a variant; None where it cannot run, exceeds the limit of actions, or has a result."""
        stages, microbatches = self._sizes(change)
        actions = 2 * stages * microbatches
        is_known = any(variant.change.arguments == change.arguments for variant in self.tried)
        if is_known or actions > self.actions_left:
            return None
        self.actions_left -= actions
        if self.watch is not None:
            self.watch(len(self.tried) + 1)
        try:
            return self._add(change, self._run(change))
        except PptraceError as error:
            self._add_refused(change, error)
            return None

    def _run(self, change: Change) -> Run:
        may_drop_chunks = self.may_drop_chunks and "parallel.vp" not in change.settings
        resolved = load(self.resolved.written, change.sets, change.flags)
        return simulate(resolved, self.registry, may_drop_chunks=may_drop_chunks)

    def _add(self, change: Change, run: Run) -> Trial:
        variant = Trial.of(change, run)
        self.tried.append(variant)
        if self.best is None or variant.order < self.best.order:
            self.best, self.run = variant, run
        return variant

    def _add_refused(self, change: Change, error: PptraceError) -> None:
        if self.misplaced is None and isinstance(error, ConstraintError) and error.key.startswith("p2p."):
            self.misplaced = error
        self.tried.append(Trial.refused(change, error))
