"""Advice: changes of a configuration that shorten its step.

Estimates rank the candidates (:mod:`pptrace.run.neighbourhood`), and the best few are simulated. The advice is the
shortest simulated step that fits.
"""

from __future__ import annotations

from fractions import Fraction
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pptrace.config.choices import Sharing
from pptrace.config.quantities import format_size
from pptrace.config.resolution import load
from pptrace.errors import PptraceError
from pptrace.memo import Memo, memoizing
from pptrace.report.document import Document, Table
from pptrace.run.neighbourhood import (
    DIVISION,
    Advice,
    Change,
    Trial,
    change_of,
    chunks_of,
    estimate,
    has_equal_work,
    memory_savings,
    policy_settings,
    schedules_of,
    sizes_of,
)
from pptrace.run.overheads import contention_of
from pptrace.run.preparation import build_costs
from pptrace.run.summary import time_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace.config.schema import Parallel
    from pptrace.plugins.offers import ScheduleOffer
    from pptrace.plugins.providers import Provided
    from pptrace.run.costs import Costs
    from pptrace.run.neighbourhood import Estimate, Factor, Sizes
    from pptrace.run.simulated_step import SimulatedStep

_MIN_SAVING = 0.005
"""Minimum saving of a change, as a share of the step."""

_HIGH_MEMORY_SHARE = 0.5
"""The share of the device's memory above which candidates have more pipeline ranks."""

_SIZES = frozenset({"parallel.pp", "parallel.dp", "parallel.vp"})
"""Keys that change the number of actions, except the size of microbatches."""


class _Effort(Struct, frozen=True):
    """Limits of a search for advice."""

    workloads: int
    """Maximum number of numbers of stages and divisions for which costs are built."""
    simulated: int
    """Maximum number of simulated candidates."""
    actions: int
    """Maximum sum of their actions; with shared links, an action counts three times."""
    step_ratio: float
    """The same limit as a multiple of the step's actions; the larger limit applies."""


_QUICK = _Effort(workloads=24, simulated=3, actions=3_200, step_ratio=0.25)
"""Limits for the summary, which take some tenths of a second."""

_DEEP = _Effort(workloads=400, simulated=32, actions=2_000_000, step_ratio=32)

_SHARED = 3
"""Actions as which an action with shared links counts."""
_MOST_REFUSED = 8
"""Number of candidates that cannot run after which the search ends."""


def advise(run: SimulatedStep, *, deep: bool = False) -> Advice:
    """Return the best of a limited number of simulated candidates with the same processes and global batch.

    A ``deep`` search simulates many candidates, which may take minutes; another only the best few by estimate.
    """
    with memoizing(Memo()):
        return _Search(run, _DEEP if deep else _QUICK, deep=deep).advice()


class _Search:
    """Search for the best candidate near one step."""

    def __init__(self, run: SimulatedStep, effort: _Effort, *, deep: bool) -> None:
        self.run, self.effort, self.deep = run, effort, deep
        self.experiment = run.prepared.resolved.experiment
        self.fits = run.metrics.memory.over_capacity is None
        self.remaining_actions = max(effort.actions, int(effort.step_ratio * len(run.prepared.schedule)))
        self.weight = _SHARED if contention_of(run).links is not Sharing.NONE else 1
        self.tried: dict[str, Trial] = {}
        self.refused: set[str] = set()
        self.offers: dict[str, Provided[ScheduleOffer]] = {}
        self.estimated = 0
        self.workloads = 0

    def advice(self) -> Advice:
        """Estimate, simulate the best candidates by estimate, and drop switches without effect."""
        if self.run.metrics.step_ns:
            for change in self._rank_candidates():
                if len(self.tried) < self.effort.simulated and len(self.refused) < _MOST_REFUSED:
                    self._simulate(change)
            self._simplify()
        return Advice(best=self._best(), tried=tuple(self.tried.values()), estimated=self.estimated)

    def _rank_candidates(self) -> list[Change]:
        """Return the candidates in order of their estimates, each with the switches that cost nothing."""
        policy = policy_settings(self.run)
        estimates = sorted(self._estimates(), key=lambda pair: (not pair[1].fits, pair[1].step_ns))
        self.estimated = len(estimates)
        best = next((i for i, (change, _) in enumerate(estimates) if "schedule.name" not in change.settings), 0)
        ordered = [*estimates[best : best + 1], *estimates[:best], *estimates[best + 1 :]]
        changes = [
            change.with_settings(policy | self._overlap(guess.reduction_ns, guess.step_ns))
            for change, guess in ordered
            if guess.fits or not self.fits
        ]
        metrics = self.run.metrics
        switches = policy | self._overlap(int(metrics.reduction_ns.max(initial=0)), metrics.step_ns)
        # Switches alone come second, because a quick search simulates few changes.
        changes[1:1] = [Change(settings=settings) for settings in (policy, switches) if settings]
        return [change for change in changes if change.settings]

    def _overlap(self, reduction_ns: int, step_ns: int) -> dict[str, Any]:
        """Return the switch for reductions during the drain if it can save time."""
        saves_time = reduction_ns > _MIN_SAVING * step_ns and not self.experiment.data_parallel.overlaps
        return {"data_parallel.overlap": True} if saves_time else {}

    def _estimates(self) -> Iterator[tuple[Change, Estimate]]:
        """Yield candidates with increasing memory savings until a candidate of each size fits."""
        schedules = [name for name in schedules_of(self.run) if self._offers(name)]
        pending = list(sizes_of(self.experiment, *self._factors())) if schedules else []
        resolved, model = self.run.prepared.resolved, self.experiment.model
        for switches in memory_savings(resolved, self.run.registry) if model else [{}]:
            not_fitting = []
            for sizes in pending:
                candidates = list(self._of_sizes(sizes, switches, schedules))
                yield from candidates
                configured = [guess for change, guess in candidates if "schedule.name" not in change.settings]
                if not any(guess.fits for guess in configured or [guess for _, guess in candidates]):
                    not_fitting.append(sizes)
            pending = not_fitting

    def _offers(self, name: str) -> bool:
        """Look up a schedule; return False if its plugin fails."""
        try:
            self.offers[name] = self.run.registry.schedules[name]
        except PptraceError:
            return False
        return True

    def _of_sizes(
        self, sizes: Sizes, switches: dict[str, Any], schedules: Sequence[str]
    ) -> Iterator[tuple[Change, Estimate]]:
        """Yield every schedule with every number of chunks, without candidates that cannot run or be simulated."""
        division = change_of(self.run, sizes, self.run.prepared.chunks, "", switches)
        costs: Costs | None = None
        microbatches = sizes.microbatches(self.experiment.batch.global_batch or 0)
        for chunks in chunks_of(self.experiment, self.run.prepared.chunks, sizes.pp, deep=self.deep):
            size, names = change_of(self.run, sizes, chunks, "", switches), schedules
            if self._actions_of(size.settings) > self.remaining_actions:
                if size.settings:
                    continue
                names = schedules[:1]  # the step itself, for comparison with candidates of its schedule
            if self.workloads >= self.effort.workloads:
                return
            self.workloads += 1
            try:
                costs = costs or build_costs(
                    load(self.run.prepared.resolved.written, division.sets, division.flags), self.run.registry
                )
                stages = sizes.pp * chunks
                workload = costs.workload(stages)
            except PptraceError:
                continue
            for name in names:
                provided = self.offers[name]
                options = self.run.prepared.request.options if name == schedules[0] else None
                memory_actions = self.experiment.schedule.offload, self.experiment.schedule.recompute
                guess = estimate(
                    provided,
                    workload,
                    sizes.pp,
                    microbatches,
                    options,
                    *memory_actions,
                    experiment=costs.resolved.experiment,
                )
                if guess is not None:
                    yield change_of(self.run, sizes, chunks, name, switches), guess

    def _factors(self) -> tuple[Sequence[Factor], Sequence[Factor], Sequence[Factor]]:
        """Return the factors of pp, tp and micro: all factors, or likely ones by the step's time and memory.

        Larger tensor-parallel groups need a cluster, as a flat network has no topology.
        """
        metrics = self.run.metrics
        wider_tp = (2.0,) if self.run.prepared.job is not None else ()
        if self.deep:
            return (1, 0.5, 2, 0.25, 4, 0.125, 8), (1, 0.5, 0.25, 0.125, *wider_tp), (1, 2, 0.5, 4)
        peak_bytes, capacity_bytes = metrics.memory.fullest_bytes, metrics.memory.fullest_device_bytes
        collective = int(metrics.collective_ns.sum()) > _MIN_SAVING * metrics.ranks * metrics.step_ns
        is_nearly_full = capacity_bytes and peak_bytes > _HIGH_MEMORY_SHARE * capacity_bytes
        return (
            (0.5, 1, 2) if is_nearly_full else (0.5, 1),
            (*((0.5,) if collective and self.fits else ()), 1, *(wider_tp if not self.fits else ())),
            (1,) if self.fits else (Fraction(1, self.experiment.batch.micro), 0.5, 1),
        )

    def _simulate(self, change: Change) -> Trial | None:
        """Simulate a candidate; None if it cannot run, is too large or is another job."""
        if change.arguments in self.tried or change.arguments in self.refused:
            return self.tried.get(change.arguments)
        if self._actions_of(change.settings) > self.remaining_actions:
            return None
        actions = 0
        try:
            resolved = load(self.run.prepared.resolved.written, change.sets, change.flags)
            experiment = resolved.experiment
            has_same_batch = self.experiment.batch.global_batch in {None, experiment.batch.global_batch}
            if not has_same_batch or experiment.parallel.processes != self.experiment.parallel.processes:
                return None
            actions = self._actions(experiment.parallel, experiment.batch.microbatches)
            if actions > self.remaining_actions:
                return None
            self.remaining_actions -= actions
            other = self.run.under(resolved)
            if self.experiment.model is None and not has_equal_work(self.run.work_ns, other.work_ns):
                return None
            self.tried[change.arguments] = Trial.of(change, other)
        except PptraceError:
            self.remaining_actions += actions
            self.refused.add(change.arguments)
        return self.tried.get(change.arguments)

    def _actions(self, parallel: Parallel, microbatches: int | None) -> int:
        return 2 * (parallel.pp or 1) * parallel.vp * (microbatches or 0) * self.weight

    def _actions_of(self, settings: Mapping[str, Any]) -> int:
        """Return the number of actions of a candidate; 0 if its settings do not determine it."""
        sizes = {key: value for key, value in settings.items() if key in _SIZES}
        parallel = self.experiment.parallel.model_copy(
            update={key.removeprefix("parallel."): value for key, value in sizes.items()}
        )
        micro = settings.get("batch.micro", self.experiment.batch.micro)
        microbatches, remainder = divmod(self.experiment.batch.global_batch or 0, parallel.dp * micro)
        return 0 if remainder else self._actions(parallel, microbatches)

    def _best(self) -> Trial | None:
        """Return the shortest step that fits and saves enough; the tie-break is fewer settings."""
        limit_ns = int(self.run.metrics.step_ns * (1 - _MIN_SAVING)) if self.fits else None
        suitable = [
            tried
            for tried in self.tried.values()
            if tried.fits and (limit_ns is None or (tried.step_ns or 0) <= limit_ns)
        ]
        return min(suitable, key=attrgetter("order"), default=None)

    def _simplify(self) -> None:
        """Simulate the best candidate without each switch, and drop switches that do not shorten the step."""
        best = self._best()
        for key in list(best.change.settings) if best else ():
            if best is None or key in DIVISION:
                continue
            simpler = best.change.without(frozenset({key}))
            tried = self._simulate(simpler) if simpler.settings else None
            if tried and tried.fits and (tried.step_ns or 0) <= (best.step_ns or 0):
                best = tried


def advice_document(run: SimulatedStep, advice: Advice) -> Document:
    """Return the configuration's step and all simulated candidates with their arguments, the shortest first."""
    simulated = advice.tried
    return Document(title="advice", lead=(
        advice_table(run, advice),
        *([] if all(tried.fits for tried in simulated) else ["!: more than the device has"]),
        f"simulated {len(simulated)} of {advice.estimated} candidates, those with the best estimates",
    ))  # fmt: skip


def advice_table(run: SimulatedStep, advice: Advice) -> Table:
    """Return step, peak memory and arguments of the configuration and of each candidate, the shortest first."""
    metrics = run.metrics
    steps = [(metrics.step_ns, metrics.memory.fullest_bytes, metrics.memory.over_capacity is None, "as it is")]
    steps += [
        (tried.step_ns or 0, tried.peak_bytes, tried.fits, tried.change.arguments)
        for tried in sorted(advice.tried, key=lambda tried: tried.step_ns or 0)
    ]
    rows = tuple(
        (time_text(run, step_ns), f"{format_size(peak_bytes) if peak_bytes else '-'}{'' if fits else ' !'}", text)
        for step_ns, peak_bytes, fits, text in steps
    )
    return Table(head=("step", "peak", "pptrace simulate ..."), rows=rows, words=0, left=(2,))
