"""A search over settings, guided by estimates.

Estimates put forms in order (:mod:`estimate`). A step is rarely a tenth shorter than its estimate, so forms are
simulated until none promises a shorter one; what estimates do not know is then tried on the best. The own form of
the configuration is always simulated, so nothing found is worse.
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
    moved_by,
    room_makers,
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
"""Forms of a schedule that are simulated: the likeliest by their estimates, and others near the best of these."""

_NEARLY = 2
"""Forms that do not fit from which others are tried."""

_SMALLEST = 4
"""The likeliest forms that are left out for those of least memory while none fits."""

_SHORTER = 0.9
"""The part of an estimate below which a step is not expected."""

_LESS_MEMORY = 0.6
"""The same of memory; orders that are made for a limit take less than their estimate."""

_ACTIONS, _OF_OWN = 4_000_000, 8
"""Actions of all forms of a schedule in sum; or so many times those of its own form, where that is more."""

_OPTIONS = "schedule.options."

_WHOLE = (Kind.F, Kind.B)
_ALIKE = 1.01
"""How far the computation of two forms may differ where costs know no model."""


class FormSearch:
    """The forms of one schedule."""

    def __init__(
        self,
        variation: Variation,
        workloads: dict[Any, Workload | None],
        watch: Callable[[int], None] | None = None,
    ) -> None:
        """Look a schedule up.

        Args:
            variation: the schedule, and what may differ.
            workloads: costs that were built; shared by the schedules of a comparison.
            watch: told how many forms were simulated.

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
        """Simulate the own form, one that was the best elsewhere, the likeliest, and what is near the best."""
        own = self._own()
        if likely is not None:
            self._simulate(likely)
        self._simulate_likeliest(self._promising([{}]))
        if not self._fits():  # other options may, with copies and forwards computed again as well
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
        """Return a form that fits with settings beyond those that vary; None where none does."""
        return in_more_room(tried, self.variation, self.ground, self._run)

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
        """Offer copies to the host only where they take time."""
        timed = workload is not None and copies_take_time(workload)
        self.ground = replace(self.ground, copies_take_time=timed)

    def _promising(self, bases: Sequence[Mapping[str, Any]]) -> list[tuple[Change, Estimate]]:
        """Return forms that estimates tell apart, beside what each base sets; the likeliest first."""
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
        """Return what a form about takes; None where the schedule does not take its sizes."""
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
        moved = moved_by(change.settings, experiment.schedule)
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
        """Whether stages compute what the own form's do: figures of single stages say nothing of other numbers."""
        if self.ground.resolved.experiment.model is not None or not self.work_ns:
            return True
        work = workload.total_ns(_WHOLE, microbatches)
        return max(work, self.work_ns) <= _ALIKE * min(work, self.work_ns)

    def _may_fit(self, guess: Estimate) -> bool:
        return guess.peak_bytes * _LESS_MEMORY <= self.variation.limit_bytes

    def _simulate_likeliest(self, promising: Sequence[tuple[Change, Estimate]]) -> None:
        """Simulate forms until no estimate promises a shorter step; where none fits, those of least memory too."""
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
        """Vary what estimates do not tell on the best form, and on shorter ones that nearly fit."""
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
            # What made room, but not enough, may exclude what makes more: copies exclude forwards computed again.
            starts = [form] if form.tried.fits or form is first else [form, first]
            for change in (one for start in starts for one in self._tried_on(start.tried.change, setting, ground)):
                found = self._simulate(change) if len(self.tried) < until else None
                form = min(form, found, key=lambda one: one.order) if found else form

    def _tried_on(self, change: Change, setting: VariedSetting, ground: Ground) -> list[Change]:
        """Return a form with each value of a setting, and without one, where estimates alone do not settle it."""
        if setting.is_estimated and not setting.is_tried:
            return []
        values = self._values(setting, ground)
        own = frozenset().union(*values)
        return [change.without(own)] * bool(setting.is_tried and own & change.settings.keys()) + [
            more for one in values if not is_both((more := change.with_settings(one)).settings)
        ]

    def _simulate(self, change: Change) -> Form | None:
        """Simulate a form; None where it cannot run, is too large for what is left, or was simulated already."""
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


def in_more_room(tried: Tried, variation: Variation, ground: Ground, run: Callable[[Change], Run]) -> Tried | None:
    """Return a form that fits with settings beyond those that vary; None where none does.

    What it has in common with the form that was tried is left out of its change.

    Args:
        tried: the form that does not fit.
        variation: the schedule, and what may differ.
        ground: what the values of settings depend on.
        run: simulates a form; raises PptraceError where it cannot run.
    """
    known = {key for one in variation.settings for change in one.values(ground) for key in change}
    seen = []
    for switches in room_makers(ground.resolved, variation.registry):
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
    """A schedule, and what of it may differ."""

    resolved: Resolved
    """The configuration with the schedule and the limit."""
    registry: Registry
    """The plugins."""
    settings: tuple[VariedSetting, ...]
    """What may differ."""
    limit_bytes: int
    """What a rank may hold."""
    apart: tuple[Any, ...] = ()
    """What tells its costs from those of the other schedules of a comparison."""
    kept: tuple[str, ...] = ()
    """Keys that the schedule sets itself; they and all below them keep their values."""
    loose: bool = True
    """Whether chunks per rank that the schedule does not take are left out of its own form."""

    def keeps(self, change: Mapping[str, Any]) -> bool:
        """Whether a change sets something that the schedule sets itself."""
        return any(key == kept or key.startswith(f"{kept}.") for key in change for kept in self.kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of a schedule that was simulated."""

    tried: Tried
    """In what it differs from the configuration, and what it comes to."""
    activation_bytes: int
    """The most activations on a rank."""

    @property
    def order(self) -> tuple[bool, int, int]:
        """The better the smaller: those that fit by their steps, others by their memory; then fewer settings."""
        worth = (self.tried.step_ns or 0) if self.tried.fits else self.tried.peak_bytes
        return not self.tried.fits, worth, len(self.tried.change.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """What was found of one schedule."""

    own: Tried
    """The configuration's own form."""
    error: PptraceError | None
    """Why that cannot run, if so."""
    best: Tried | None
    """The shortest step that fits; else the form of least memory; None where none runs."""
    run: Run | None
    """Its simulated step."""
    tried: tuple[Tried, ...]
    """All that was simulated, in order, the own form first."""
    candidates: int
    """How many other forms estimates chose among."""

    @property
    def fits(self) -> bool:
        """Whether a form fits."""
        return self.best is not None and self.best.fits
