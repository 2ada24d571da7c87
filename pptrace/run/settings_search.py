"""A search over variants of a schedule's settings, guided by estimates.

Estimates order the variants (:mod:`pptrace.run.estimates`). A step is rarely a tenth shorter than its estimate, so
the search simulates variants until no estimate promises a shorter step. It then varies the other settings of the
best variant. The configured variant is always simulated, so the result is never worse.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConstraintError, PptraceError
from pptrace.run.estimates import Estimate, estimate
from pptrace.run.inputs import Inputs
from pptrace.run.neighbourhood import (
    MOVED,
    Change,
    Ground,
    Tried,
    copies_take_time,
    is_both,
    memory_actions,
    memory_savings,
)
from pptrace.run.preparation import build_costs
from pptrace.run.run import simulate
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.plugins.registry import Registry
    from pptrace.run.neighbourhood import VariedSetting
    from pptrace.run.run import Run
    from pptrace.steps.workload import Workload

_ESTIMATED, _OTHERS = 16, 20
"""Limits of simulated variants: the best by estimate, and others near the best of these."""

_NEARLY = 2
"""Variants that do not fit, whose other settings are varied too."""

_SMALLEST = 4
"""Variants of least memory that replace the best by estimate while none fits."""

_SHORTER = 0.9
"""The least expected ratio of a step to its estimate."""

_LESS_MEMORY = 0.6
"""The same ratio of memory; orders that are generated for a limit take less than their estimate."""

_ACTIONS, _OF_OWN = 4_000_000, 8
"""Limits of the sum of actions: absolute, and as a multiple of the configured variant's; the larger holds."""

_OPTIONS = "schedule.options."

_WHOLE = (Kind.F, Kind.B)
_ALIKE = 1.01
"""Limit of the ratio of computation of two variants for costs without a model."""


class FormSearch:
    """The search over the variants of one schedule."""

    def __init__(
        self,
        variation: Variation,
        workloads: dict[Any, Workload | None],
        watch: Callable[[int], None] | None = None,
    ) -> None:
        """Look up a schedule.

        Args:
            variation: the schedule and its variable settings.
            workloads: a cache of costs, shared by the schedules of a comparison.
            watch: called with the number of simulated variants.

        Raises:
            PptraceError: costs or options that cannot be used.
        """
        self.variation, self.workloads, self.watch = variation, workloads, watch
        self.registry = variation.registry
        schedule = variation.resolved.experiment.schedule
        self.provided = None if schedule.kind == "table" else self.registry.schedules[schedule.name]
        inputs = Inputs(resolved=build_costs(variation.resolved, self.registry).resolved, registry=self.registry)
        offered = self.provided.offer.options if self.provided else None
        options = inputs.fill_options("schedule", offered)
        self.ground = Ground(
            resolved=inputs.resolved, registry=self.registry, options=options, chunks=0,
            offer=self.provided.offer if self.provided else None,
        )  # fmt: skip
        self.tried: dict[str, Tried] = {}
        self.forms: list[Form] = []
        self.run: Run | None = None
        self.error: PptraceError | None = None
        self.misplaced: ConstraintError | None = None  # of a form whose messages the policy cannot place
        self.left, self.candidates, self.work_ns = 0, 0, 0

    def forms_found(self, likely: Change | None = None) -> Forms:
        """Simulate the configured variant, the ``likely`` one, the best by estimate, and those near the best."""
        own = self._own()
        if likely is not None:
            self._simulate(likely)
        self._simulate_likeliest(self._promising([{}]))
        if not self._fits():  # other options may fit, with copies and recomputation as well
            others = [one for one in self.variation.settings if not one.is_estimated]
            bases = [change for one in others for change in self._values(one, self.ground)]
            for base in bases:
                self._simulate(Change(settings=dict(base)))
            self._simulate_likeliest(self._promising(bases))
        self._refine()
        best = self._best()
        return Forms(
            own=own, error=self.error, best=best.tried if best else None, run=self.run,
            tried=tuple(self.tried.values()), candidates=self.candidates,
        )  # fmt: skip

    def with_room(self, tried: Tried) -> Tried | None:
        """Return a variant that fits with further memory savings; None if none fits."""
        return add_memory_savings(tried, self.variation, self.ground, self._run)

    def _own(self) -> Tried:
        root, change = self.variation.resolved, Change(settings={})
        self.left = _ACTIONS
        try:
            run = simulate(root, self.registry, loose=self.variation.loose)
        except PptraceError as error:
            self.error = error
            parallel = root.experiment.parallel
            self._check_copies(self._workload(change, (parallel.pp or 1) * parallel.vp))
            return self._refused(change, error)
        self._check_copies(run.prepared.workload)
        schedule = run.prepared.schedule
        chunks, uneven = divmod(schedule.stages, schedule.ranks)
        if not uneven and root.experiment.schedule.kind != "table":
            self.ground = replace(self.ground, chunks=chunks)
            change = Change(settings={"parallel.vp": chunks})
        self.left, self.work_ns = (
            max(_ACTIONS, _OF_OWN * len(schedule)),
            run.prepared.workload.total_ns(_WHOLE, schedule.microbatches),
        )
        return self._ran(change, run)

    def _check_copies(self, workload: Workload | None) -> None:
        """Vary copies to the host only where they take time."""
        timed = workload is not None and copies_take_time(workload)
        self.ground = replace(self.ground, copies_take_time=timed)

    def _promising(self, bases: Sequence[Mapping[str, Any]]) -> list[tuple[Change, Estimate]]:
        """Return the variants of each base with different estimates, the best estimate first."""
        found = [guess for base in bases for guess in self._guessed(base)]
        self.candidates += len(found)
        return sorted(found, key=lambda one: (not self._may_fit(one[1]), one[1].step_ns))

    def _guessed(self, base: Mapping[str, Any]) -> list[tuple[Change, Estimate]]:
        guesses = [(change, self._estimate(change)) for change in self._combined(base)]
        return [(change, guess) for change, guess in guesses if guess and change.arguments not in self.tried]

    def _combined(self, base: Mapping[str, Any]) -> Iterator[Change]:
        own = {**base, **({"parallel.vp": self.ground.chunks} if self.ground.chunks else {})}
        rows = [[{}, *self._values(one, self.ground)] for one in self.variation.settings if one.is_estimated]
        for parts in product(*rows):
            settings = own | {key: value for part in parts for key, value in part.items()}
            if not is_both(settings):
                yield Change(settings=settings)

    def _values(self, setting: VariedSetting, ground: Ground) -> list[Mapping[str, Any]]:
        return [change for change in setting.values(ground) if not self.variation.keeps(change)]

    def _estimate(self, change: Change) -> Estimate | None:
        """Return the estimate of a variant; None where the schedule does not take its sizes."""
        experiment = self.ground.resolved.experiment
        if self.provided is None:
            return Estimate(step_ns=0, peak_bytes=0, fits=True)
        ranks, micro = experiment.parallel.pp or 1, change.settings.get("batch.micro", experiment.batch.micro)
        count = experiment.batch.known_microbatches * experiment.batch.micro // micro
        stages = ranks * change.settings.get("parallel.vp", experiment.parallel.vp)
        workload = self._workload(change, stages)
        if workload is None or not self._is_the_same_work(workload, count):
            return None
        given = {
            key.removeprefix(_OPTIONS): value for key, value in change.settings.items() if key.startswith(_OPTIONS)
        }
        options = {**self.ground.options, **given}
        moved = memory_actions(change.settings, experiment.schedule)
        hides = self.provided.offer.has_pairs and bool(workload.segments)
        return estimate(self.provided, workload, ranks, count, options, *moved, hides=hides)

    def _workload(self, change: Change, stages: int) -> Workload | None:
        costly = change.without(MOVED | {"parallel.vp"})
        has_pairs = self.provided is not None and self.provided.offer.has_pairs
        key = (self.variation.apart, costly.arguments, stages, has_pairs)
        if key not in self.workloads:
            chain = tuple((stage, stage + 1) for stage in range(stages - 1))
            try:
                resolved = self.variation.resolved.again(costly.sets, costly.flags)
                costs = build_costs(resolved, self.registry)
                self.workloads[key] = costs.workload(stages, chain, has_pairs=has_pairs)
            except PptraceError:
                self.workloads[key] = None
        return self.workloads[key]

    def _is_the_same_work(self, workload: Workload, microbatches: int) -> bool:
        """Return whether stages compute as much as those of the configured variant."""
        if self.ground.resolved.experiment.model is not None or not self.work_ns:
            return True
        work = workload.total_ns(_WHOLE, microbatches)
        return max(work, self.work_ns) <= _ALIKE * min(work, self.work_ns)

    def _may_fit(self, guess: Estimate) -> bool:
        return guess.peak_bytes * _LESS_MEMORY <= self.variation.limit_bytes

    def _simulate_likeliest(self, promising: Sequence[tuple[Change, Estimate]]) -> None:
        """Simulate variants until no estimate promises a shorter step; if none fits, those of least memory too."""
        until = len(self.tried) + _ESTIMATED
        for change, guess in promising:
            if self._hopeless(guess) or len(self.tried) >= until - (0 if self._fits() else _SMALLEST):
                break
            self._simulate(change)
        for change, _ in sorted(promising, key=lambda one: (one[1].peak_bytes, one[1].step_ns)):
            if not self._fits() and len(self.tried) < until:
                self._simulate(change)

    def _hopeless(self, guess: Estimate) -> bool:
        best = self._best()
        return best is not None and best.tried.fits and guess.step_ns * _SHORTER >= (best.tried.step_ns or 0)

    def _refine(self) -> None:
        """Vary settings without estimates on the best variant, and on shorter variants that nearly fit."""
        best, until = self._best(), len(self.tried) + _OTHERS
        if best is None:
            return
        self._refine_one(best, until)
        fastest = best.tried.step_ns or 0
        shorter = [form for form in self.forms if not form.tried.fits and (form.tried.step_ns or 0) < fastest]
        for start in sorted(shorter, key=lambda form: form.order)[:_NEARLY]:
            self._refine_one(start, until)

    def _refine_one(self, form: Form, until: int) -> None:
        first = form
        for setting in self.variation.settings:
            ground = replace(self.ground, activation_bytes=form.activation_bytes)
            # Insufficient memory savings may exclude larger ones: copies exclude recomputation.
            starts = [form] if form.tried.fits or form is first else [form, first]
            for change in (one for start in starts for one in self._tried_on(start.tried.change, setting, ground)):
                found = self._simulate(change) if len(self.tried) < until else None
                form = min(form, found, key=lambda one: one.order) if found else form

    def _tried_on(self, change: Change, setting: VariedSetting, ground: Ground) -> list[Change]:
        """Return a variant with each value of a setting and without it, where estimates do not decide."""
        if setting.is_estimated and not setting.is_tried:
            return []
        values = self._values(setting, ground)
        own = frozenset().union(*values)
        return [change.without(own)] * bool(setting.is_tried and own & change.settings.keys()) + [
            more for one in values if not is_both((more := change.with_settings(one)).settings)
        ]

    def _simulate(self, change: Change) -> Form | None:
        """Simulate a variant; None where it cannot run, exceeds the limit of actions, or has a result."""
        batch, parallel = self.ground.resolved.experiment.batch, self.ground.resolved.experiment.parallel
        stages = (parallel.pp or 1) * change.settings.get("parallel.vp", parallel.vp)
        per_stage = batch.known_microbatches * batch.micro // change.settings.get("batch.micro", batch.micro)
        self.left -= 2 * stages * per_stage
        if self.left < 0 or change.arguments in self.tried:
            return None
        if self.watch is not None:
            self.watch(len(self.tried) + 1)
        try:
            self._ran(change, self._run(change))
        except PptraceError as error:
            self._refused(change, error)
            return None
        return self.forms[-1]

    def _run(self, change: Change) -> Run:
        loose = self.variation.loose and "parallel.vp" not in change.settings
        return simulate(self.variation.resolved.again(change.sets, change.flags), self.registry, loose=loose)

    def _ran(self, change: Change, run: Run) -> Tried:
        tried = self._note(Tried.of(change, run))
        form = Form(tried=tried, activation_bytes=int(run.metrics.memory.peak_activation_bytes.max(initial=0)))
        best = self._best()
        if best is None or form.order < best.order:
            self.run = run
        self.forms.append(form)
        return tried

    def _refused(self, change: Change, error: PptraceError) -> Tried:
        if self.misplaced is None and isinstance(error, ConstraintError) and error.key.startswith("p2p."):
            self.misplaced = error
        return self._note(Tried.refused(change, error))

    def _note(self, tried: Tried) -> Tried:
        self.tried[tried.change.arguments] = tried
        return tried

    def _fits(self) -> bool:
        return any(form.tried.fits for form in self.forms)

    def _best(self) -> Form | None:
        return min(self.forms, key=lambda form: form.order, default=None)


def add_memory_savings(
    tried: Tried, variation: Variation, ground: Ground, run: Callable[[Change], Run]
) -> Tried | None:
    """Return a variant that fits with settings beyond the variable ones; None if none fits.

    Its change has only the further settings.

    Args:
        tried: the variant that does not fit.
        variation: the schedule and its variable settings.
        ground: the inputs of the settings' values.
        run: simulates a variant; raises PptraceError where it cannot run.
    """
    known = {key for one in variation.settings for change in one.values(ground) for key in change}
    seen = []
    for switches in memory_savings(ground.resolved, variation.registry):
        more = {key: value for key, value in switches.items() if key not in known}
        if not more or more in seen or variation.keeps(more):
            continue
        seen.append(more)
        try:
            found = run(tried.change.with_settings(more))
        except PptraceError:
            continue
        if found.metrics.over_capacity is None:
            return Tried.of(Change(settings=more), found)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """A schedule and its variable settings."""

    resolved: Resolved
    """The configuration with the schedule and the limit."""
    registry: Registry
    """The plugins."""
    settings: tuple[VariedSetting, ...]
    """The variable settings."""
    limit_bytes: int
    """The memory limit of a rank."""
    apart: tuple[Any, ...] = ()
    """The key of its costs among the schedules of a comparison."""
    kept: tuple[str, ...] = ()
    """Keys that the entry sets; they and all keys below them are fixed."""
    loose: bool = True
    """Whether to drop chunks per rank that the schedule does not take."""

    def keeps(self, change: Mapping[str, Any]) -> bool:
        """Return whether a change sets a fixed key."""
        return any(key == kept or key.startswith(f"{kept}.") for key in change for kept in self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A simulated variant of a schedule."""

    tried: Tried
    """Its settings and its result."""
    activation_bytes: int
    """Peak activations on a rank."""

    @property
    def order(self) -> tuple[bool, int, int]:
        """Return the sort key: by step for variants that fit, else by memory; then by number of settings."""
        worth = (self.tried.step_ns or 0) if self.tried.fits else self.tried.peak_bytes
        return not self.tried.fits, worth, len(self.tried.change.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """The result of the search over one schedule."""

    own: Tried
    """The configured variant."""
    error: PptraceError | None
    """The error of the configured variant, if any."""
    best: Tried | None
    """The shortest step that fits, else the variant of least memory; None if none runs."""
    run: Run | None
    """Its simulated step."""
    tried: tuple[Tried, ...]
    """All simulated variants, in order, the configured one first."""
    candidates: int
    """Number of estimated variants."""

    @property
    def fits(self) -> bool:
        """Return whether a variant fits."""
        return self.best is not None and self.best.fits
