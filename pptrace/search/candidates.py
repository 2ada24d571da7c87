"""Candidates of a plan, and the best-first search over their lower bounds.

Configurations are simulated in the order of their bounds, in batches of fixed sizes. The search ends when no bound
is below the score of the last requested place, so it finds the same places as an exhaustive search. The result
does not depend on the machine or on the order in which simulations finish. Worker processes prefetch chunks of
bounds, because the order of bounding is known in advance.
"""

from __future__ import annotations

import pickle
from bisect import insort
from collections import deque
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache, partial
from heapq import heapify, heappop, heappush, nsmallest
from itertools import groupby
from math import gcd
from operator import attrgetter
from time import monotonic
from typing import TYPE_CHECKING, Any

from pptrace.config.places import key_text
from pptrace.config.quantities import format_size
from pptrace.config.resolution import load
from pptrace.errors import ConfigError, ConstraintError, PptraceError
from pptrace.run.figures import figures_of
from pptrace.run.neighbourhood import Change
from pptrace.run.preparation import prepare
from pptrace.run.run import Run
from pptrace.search.basis import digest_of, short_reason
from pptrace.search.launch_arguments import ANY, FRAMEWORKS
from pptrace.search.pricing import Group, Origin, Pricing
from pptrace.search.runner import Runner, installed, journal_path, plugins_text, row_or_error
from pptrace.search.space import LAYERS, PLAIN, PlanProblem, setting
from pptrace.search.what_if import at_speeds, jittered
from pptrace.steps.pytorch_tables import compute_only
from pptrace.steps.text_forms import table_text
from pptrace.timeline.idle import IdleCause
from pptrace.version import __version__
from pptrace_kernel import always_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from pathlib import Path
    from typing import Self

    from pptrace.config.overrides import Assignment
    from pptrace.config.places import Document
    from pptrace.plugins.registry import Registry
    from pptrace.run.figures import Row
    from pptrace.run.inputs import Prepared
    from pptrace.search.basis import Entry
    from pptrace.search.bias import Bias
    from pptrace.search.pricing import Bound, Price
    from pptrace.search.runner import ExecutorChoice
    from pptrace.search.space import Layout, Score, Space


class Outcome(StrEnum):
    """The outcome of a candidate."""

    FOREIGN = "foreign"
    """The framework of the plan does not run it."""

    REFUSED = "refused"
    """It cannot run."""
    MEMORY = "memory"
    """Its lower bound on memory is above the capacity."""
    EQUAL = "equal"
    """Another candidate has the same table and costs."""
    COVERED = "covered"
    """It has one pipeline rank, where 1F1B represents all schedules."""
    BOUNDED = "bounded"
    """Its lower bound on the step excludes it from the first places."""
    SIMULATED = "simulated"


@dataclass(slots=True, kw_only=True, eq=False)
class Candidate:
    """A configuration of the space."""

    number: int
    """Its index in the order of the space."""
    layout: Layout
    """The division of the GPUs, and the batch."""
    schedule: str
    """The label of the schedule."""
    chunks: int
    """Chunks per rank."""
    varied: tuple[Assignment, ...]
    """All settings of the candidate."""
    outcome: Outcome = Outcome.BOUNDED
    reason: str = ""
    """Why it is refused, or the name of the equal or covering candidate."""
    bound: Bound | None = None
    """Lower bounds on its step and memory."""
    score: Score = ()
    """The score of the bound; after the simulation, that of the step."""
    origin: Origin | None = None
    """The inputs of its bound; None after the bound is computed, or if the candidate is refused earlier."""
    row: Row = field(default_factory=dict)
    """The figures of its simulation."""
    equivalents: list[Candidate] = field(default_factory=list)
    """Candidates that share its place: same layout, schedule, step and memory, but other settings."""

    @property
    def is_bounded(self) -> bool:
        """Whether it is neither simulated nor excluded so far."""
        return self.outcome is Outcome.BOUNDED

    @property
    def fits(self) -> bool:
        """Whether its simulated step fits its devices."""
        return self.outcome is Outcome.SIMULATED and bool(self.row.get("fits"))

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings by key; a later setting overrides an earlier one."""
        return {key_text(override.path): override.value for override in self.varied}

    @property
    def arguments(self) -> str:
        """The arguments of ``pptrace simulate CONFIG`` that reproduce it."""
        return Change(settings={key: value for key, value in self.settings.items() if value is not None}).arguments

    @property
    def name(self) -> str:
        """Schedule and sizes in one line."""
        layout = self.layout
        sizes = {"pp": layout.pp, "vp": self.chunks, "tp": layout.tp, "cp": layout.cp, "ep": layout.ep,
                 "dp": layout.dp, "micro": layout.micro}  # fmt: skip
        listed = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name in {"pp", "micro"}]
        return f"{self.schedule}, {' '.join(listed)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine whose speed differs from the configured one."""

    name: str
    compute: float = 1.0
    """The speed of computation, relative to the configured costs."""
    communication: float = 1.0
    """The speed of communication, relative to the configured costs."""
    jitter: float = 0.0
    """Standard deviation of computations by stage and microbatch."""
    seed: int = 0

    def apply(self, prepared: Prepared) -> Prepared:
        """Return a step on this machine."""
        if self.jitter:
            return jittered(prepared, self.seed, self.jitter)
        return at_speeds(prepared, self.compute, self.communication)


MACHINES = (
    Machine(name="bandwidth -20%", communication=0.8),
    Machine(name="bandwidth +20%", communication=1.2),
    Machine(name="efficiency -10%", compute=0.9),
    Machine(name="efficiency +10%", compute=1.1),
    *(Machine(name=f"jitter 5%, seed {seed}", jitter=0.05, seed=seed) for seed in range(1, 5)),
)
"""Machines on which the first places of a plan are re-simulated."""


def run_candidate(
    item: tuple[Sequence[Assignment], Machine | None, str], *, document: Document, registry: Registry | None = None
) -> Row:
    """Simulate one candidate and return its figures, or the reason of its failure as ``error``.

    A candidate that the framework does not run has the reason as ``foreign``, and is not simulated.

    Args:
        item: the settings of the candidate, another machine to simulate it on, None for the configured one, and
            the framework that has to run it, empty for none.
        document: the common configuration.
        registry: the plugins; the installed ones of this process by default.
    """
    plugins = registry or installed()
    varied, machine, framework = item

    def simulate_row() -> Row:
        with always_compiled():
            prepared = prepare(load(document, (), {}, varied), plugins)
            if framework:
                arguments = FRAMEWORKS[framework].arguments(prepared.resolved.experiment, prepared.schedule)
                if arguments.without:
                    return {FOREIGN: arguments.without[0]}
            run = Run.of(machine.apply(prepared) if machine else prepared, plugins)
        return {
            **figures_of(run), **_breakdown(run), "error": None, "plugins": plugins_text(prepared.plugins),
            SEARCHED_TABLE: _searched_table(prepared, plugins),
        }  # fmt: skip

    return row_or_error(simulate_row, short_reason, "--workers")


FOREIGN = "foreign"
"""The cell of the reason why a framework does not run a candidate."""
SEARCHED_TABLE = "searched_table"
"""The cell of the simulated table as text if a search found it; another search may find another table."""


def _searched_table(prepared: Prepared, registry: Registry) -> str | None:
    schedule = prepared.resolved.experiment.schedule
    is_searched = schedule.kind != "table" and registry.schedules[schedule.name].offer.searches
    return table_text(compute_only(prepared.schedule)) if is_searched else None


def _breakdown(run: Run) -> Row:
    """Return the parts of the step on the mean rank; they sum to the step."""
    metrics = run.metrics
    ranks = metrics.ranks or 1
    idle = metrics.idle_ns.sum(axis=0) / ranks
    collectives = float(metrics.collective_ns.sum()) / ranks
    waits = [IdleCause.FILL, IdleCause.DRAIN, IdleCause.PEER_COMPUTE, IdleCause.SLOWER_REPLICA]
    queue = float(idle[waits].sum())
    messages = float(idle[IdleCause.TRANSFER] + idle[IdleCause.CONTENTION] + idle[IdleCause.HEAD_OF_LINE])
    reduction = float(idle[IdleCause.REDUCTION])
    compute = metrics.step_ns - collectives - queue - messages - reduction
    return {
        "mean_compute_ns": round(compute), "mean_collectives_ns": round(collectives),
        "mean_waiting_ns": round(queue), "mean_messages_ns": round(messages),
        "mean_reduction_ns": round(reduction),
    }  # fmt: skip


class CandidateRunner(Runner):
    """Runner that simulates the candidates of a plan."""

    def __init__(
        self, document: Document, registry: Registry, chosen: ExecutorChoice, output: Path | None, *, fresh: bool
    ) -> None:
        """Read finished rows from the journal next to the first output, and start the executor.

        Raises:
            OutputError: the journal cannot be read or written.
        """
        super().__init__(registry, chosen, output and journal_path(output), fresh=fresh)
        self.document = document
        self._plugins = sorted((provider.distribution, provider.version) for provider in registry.providers)

    def __enter__(self) -> Self:
        """Start the executor, so that an unreachable executor fails early."""
        self.pool.begin()
        return self

    def worker_executor(self) -> Executor | None:
        """Return the executor of several other processes; None without one, or before the first simulation."""
        is_alone = self.chosen.in_process or self.workers == 1 or not self.is_warm
        return None if is_alone else self.pool.begin()

    def rows(
        self,
        candidates: Sequence[Candidate],
        machine: Machine | None = None,
        watch: Callable[[int], None] | None = None,
        framework: str = "",
    ) -> list[Row]:
        """Return the rows of candidates, in their order.

        Args:
            candidates: the candidates.
            machine: another machine to simulate them on.
            framework: the framework that has to run them; empty for none.
            watch: receives the number of finished rows after each simulation.
        """
        keys = [self._key(candidate, machine, framework) for candidate in candidates]
        items = {
            key: (candidate.varied, machine, framework) for key, candidate in zip(keys, candidates, strict=True)
        }
        call = partial(run_candidate, document=self.document)
        rows = self.rows_by_key(items, call, warms=not self.is_warm, watch=watch)
        return [rows[key] for key in keys]

    def _key(self, candidate: Candidate, machine: Machine | None, framework: str) -> str:
        variant = [str(machine or ""), framework]
        return digest_of([__version__, self._plugins, self.document.value, candidate.settings, *variant])


class CandidateFilter:
    """Creates the candidates of layouts with rough bounds, and bounds candidates by their tables."""

    def __init__(self, space: Space, bias: Bias) -> None:
        self.space, self.problem, self.bias = space, space.problem, bias
        self.request = space.request
        self.pricing = Pricing(space.problem, space.entries, space.layers)
        self.prefetch: BoundPrefetch | None = None
        """Bounds in worker processes; None where this process computes all of them."""
        self.count = 0
        self.groups = 0
        self.seen: dict[Any, Candidate] = {}

    def candidates_of(self, layout: Layout, varied: tuple[Assignment, ...]) -> list[Candidate]:
        """Return a layout's candidates with lower bounds that hold for any table.

        The total computation is assumed not to depend on the number of stages.
        """
        entries = self.space.entries
        if not layout.microbatches:
            step = layout.dp * layout.micro
            reason = f"batch.global: {layout.sequences} is no multiple of dp x micro = {step}"
            return [self._add(layout, entry, varied, reason) for entry in entries]
        group = Group(number=self.groups, layout=layout, varied=varied)
        self.groups += 1
        try:
            pairs = {self.pricing.has_pairs(entry) for entry in entries}
            rough_bounds = {has_pairs: self.pricing.lower_bound(group, has_pairs=has_pairs) for has_pairs in pairs}
        except PptraceError as error:
            if self.request.objective != "gpus" and _is_everywhere(error):
                raise
            return [self._add(layout, entry, varied, short_reason(error)) for entry in entries]
        candidates: list[Candidate] = []
        for index, entry in enumerate(entries):
            bound = rough_bounds[self.pricing.has_pairs(entry)]
            score = self.request.score(self.bias.bound_ns(bound.step_ns), layout)
            for candidate in self._of_entry(group, index, entry):
                if candidate.is_bounded:
                    self._bound(candidate, bound, score)
                candidates.append(candidate)
        return candidates

    def _add(self, layout: Layout, entry: Entry, varied: tuple[Assignment, ...], reason: str = "") -> Candidate:
        """Return a new candidate; it is refused if there is a reason."""
        self.count += 1
        return Candidate(
            number=self.count - 1, layout=layout, schedule=entry.label, chunks=1,
            varied=(*varied, *entry.varied), outcome=Outcome.REFUSED if reason else Outcome.BOUNDED, reason=reason,
        )  # fmt: skip

    def refine(self, candidate: Candidate) -> None:
        """Bound a candidate by its table and costs; it may become refused, or equal to another candidate."""
        origin, candidate.origin = candidate.origin, None
        if origin is None:
            return
        price = self.prefetch.of(candidate) if self.prefetch is not None else None
        price = price or self.pricing.price(origin)
        if price.chunks is not None:
            candidate.chunks = price.chunks
        if price.layers is not None:
            candidate.varied += (setting(LAYERS, price.layers),)
        if price.is_even:
            candidate.outcome, candidate.reason = Outcome.EQUAL, "an even split"
        elif price.bound is None:
            candidate.outcome, candidate.reason = Outcome.REFUSED, price.reason
        elif (first := self.seen.setdefault(price.step_key, candidate)) is not candidate:
            candidate.outcome, candidate.reason = Outcome.EQUAL, first.name
        else:
            score = self.request.score(self.bias.bound_ns(price.bound.step_ns), candidate.layout)
            self._bound(candidate, price.bound, score)

    def _bound(self, candidate: Candidate, bound: Bound, score: Score) -> None:
        candidate.bound, candidate.score = bound, score
        if not bound.fits and not self.request.exhaustive:
            candidate.outcome = Outcome.MEMORY

    def _of_entry(self, group: Group, index: int, entry: Entry) -> Iterator[Candidate]:
        """Yield a schedule's candidates on a layout: one per accepted number of chunks and per split."""
        is_covered = group.layout.pp == 1 and self.space.is_covered_by_plain(entry)
        if is_covered and not self.pricing.overlaps(group, entry):
            candidate = self._add(group.layout, entry, group.varied)
            candidate.outcome, candidate.reason = Outcome.COVERED, f"{PLAIN} on one rank"
            yield candidate
            return
        for chunks in self._chunks_of(group.layout, entry):
            error = self.pricing.tables.refusal(entry, group.layout, chunks)
            reason = short_reason(error) if error else ""
            for split in self.space.splits:
                candidate = self._add(group.layout, entry, group.varied, reason)
                candidate.origin = Origin(group=group, entry=index, chunks=chunks, split=split)
                candidate.chunks = chunks or 1
                candidate.varied += candidate.origin.settings
                yield candidate

    def _chunks_of(self, layout: Layout, entry: Entry) -> list[int | None]:
        """Return the chunks per rank that a schedule accepts; its default if it accepts no requested number."""
        requested = self.space.sizes["vp"]
        default = None if self.problem.registry.schedules[entry.name].offer.chunks is not None else 1
        if default is None and not requested:
            return [default]
        accepted: list[int | None] = [
            chunks
            for chunks in self.space.chunks_of(layout.pp)
            if getattr(self.pricing.tables.refusal(entry, layout, chunks), "key", "") != "parallel.vp"
        ]
        return accepted or ([default] if requested else [])


def _is_everywhere(error: PptraceError) -> bool:
    """Return whether an error concerns every layout: a cluster size, a failing plugin, an unknown key."""
    key = getattr(error, "key", "") or ""
    return not isinstance(error, ConstraintError) and not key.startswith(("parallel", "batch", "device.ranks"))


_PREFETCH_FROM = 500
"""Number of candidates from which worker processes that bound them shorten the search."""
_CHUNK = 24
"""Candidates per task of a worker."""


class BoundPrefetch:
    """Bounds that worker processes compute in advance."""

    def __init__(self, space: Space, candidates: Sequence[Candidate], executor: Executor, workers: int) -> None:
        """Submit the first chunks.

        Args:
            space: the space of the plan.
            candidates: candidates without bounds by their tables, in the order in which the search needs them.
            executor: the executor of the workers.
            workers: number of workers.
        """
        problem = space.problem
        fields_of_problem = {
            field.name: getattr(problem, field.name) for field in fields(problem) if field.name != "registry"
        }
        self._problem = pickle.dumps((fields_of_problem, space.entries, space.layers))
        self._executor, self._most = executor, 2 * workers
        self._chunks = _chunks(candidates)
        self._running: deque[tuple[list[int], Future[list[Price]]]] = deque()
        self._prices: dict[int, Price] = {}
        self._has_ended = False
        self._submit()

    def of(self, candidate: Candidate) -> Price | None:
        """Return a candidate's bound; None if no worker computes it, for example after a failure."""
        while candidate.number not in self._prices and self._running:
            numbers, future = self._running.popleft()
            try:
                self._prices.update(zip(numbers, future.result(), strict=True))
            except Exception:  # noqa: BLE001 - this process repeats a failed task
                self.end()
            self._submit()
        return self._prices.pop(candidate.number, None)

    def end(self) -> None:
        """Cancel the tasks that no worker has started."""
        self._has_ended = True
        for _, future in self._running:
            future.cancel()
        self._running.clear()

    def _submit(self) -> None:
        while not self._has_ended and len(self._running) < self._most:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            origins = tuple(candidate.origin for candidate in chunk if candidate.origin is not None)
            try:
                future = self._executor.submit(_price_all, self._problem, origins)
            except Exception:  # noqa: BLE001 - without an executor, this process computes the bounds
                self.end()
                return
            self._running.append(([candidate.number for candidate in chunk], future))


def _chunks(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Yield chunks of candidates of one layout."""
    for _, group in groupby(candidates, key=lambda candidate: candidate.layout):
        members = list(group)
        yield from (members[begin : begin + _CHUNK] for begin in range(0, len(members), _CHUNK))


def _price_all(problem: bytes, origins: Sequence[Origin]) -> list[Price]:
    pricing = _pricing(problem)
    return [pricing.price(origin) for origin in origins]


@lru_cache(maxsize=1)
def _pricing(problem: bytes) -> Pricing:
    values: Any
    values, entries, layers = pickle.loads(problem)  # noqa: S301 - pickled by the process of this plan
    return Pricing(PlanProblem(**values, registry=installed()), entries, layers)


_BATCHES = (2, 6, 16, 32)
"""Sizes of the batches between two looks at the bounds; the last size repeats."""
_PEEKS = (24, 96, 384, 1536)
"""Counts of bounded candidates after which the best of them are simulated early."""
_EARLY = (400, 800)
"""Counts of groups after which the best candidates are simulated, unless some are already."""
_GOLDEN = 0.618
"""Golden ratio: multiples of it, modulo 1, cover an interval evenly."""
_PAUSE_S = 0.2
_LARGE = 2**19
"""Forward and backward pairs from which a table takes so long that the progress text names it."""
_NEED_MEMORY = {Outcome.MEMORY, Outcome.SIMULATED}
_LEAST, _FURTHER = 8, 1000
"""Candidates of least memory that are bounded where none fits: per layout, and of all remaining ones."""


class Search:
    """Best-first search of a space; ``watch`` receives its progress."""

    candidates: list[Candidate]
    """All candidates of the space."""
    best: list[Candidate]
    """Simulated candidates that fit, best first; of equivalent ones, the first in the order of the space."""
    foreign: Candidate | None
    """The fastest candidate that the framework does not run, if it is faster than all that it runs."""

    def __init__(
        self, space: Space, runner: CandidateRunner, bias: Bias, watch: Callable[[str], None] | None = None
    ) -> None:
        self.space, self.runner, self.bias = space, runner, bias
        self.request = space.request
        self.watch = watch or (lambda _: None)
        self.filter = CandidateFilter(space, bias)
        self.candidates, self.best, self.foreign = [], [], None
        self._places: dict[Any, Candidate] = {}
        self.simulated = self.bounded = 0
        self._reported_s = 0.0

    def run(self) -> None:
        """Bound all layouts, then simulate the candidates that can be among the first places.

        Raises:
            ConfigError: no candidate can run, or none fits.
            PptraceError: settings that no layout can use.
        """
        with always_compiled():
            self._bound_layouts()
            try:
                self._simulate_by_bounds()
            finally:
                if self.filter.prefetch is not None:
                    self.filter.prefetch.end()
            if not self.best:
                raise self._no_result_error()
            self._simulate_foreign()

    def _bound_layouts(self) -> None:
        """Bound all layouts, in an order whose prefixes cover the space evenly."""
        layouts = list(self.space.layouts())
        groups: list[list[Candidate]] = [[] for _ in layouts]
        for index in spread_indices(len(layouts)):
            for varied in self.space.settings_of(layouts[index]):
                candidates = self.filter.candidates_of(layouts[index], varied)
                groups[index] += candidates
                self.candidates += candidates
                if self.filter.groups in _EARLY:
                    self._simulate_early()
            self._report()
        self.candidates = [candidate for group in groups for candidate in group]
        for number, candidate in enumerate(self.candidates):
            candidate.number = number
        self.best.sort(key=_rank_key)

    def _simulate_early(self) -> None:
        """Simulate the candidates with the best scores, or of least memory where none of these fits."""
        if self.best or self.request.exhaustive:
            return
        for count, key in ((_PEEKS[2], attrgetter("score", "number")), (_PEEKS[1], _memory_key)):
            unrefined = [
                candidate for candidate in self.candidates if candidate.is_bounded and candidate.origin is not None
            ]
            likely: list[Candidate] = []
            for candidate in nsmallest(count, unrefined, key=key):
                self.filter.refine(candidate)
                self.bounded += 1
                likely += [candidate] * candidate.is_bounded
                if len(likely) == _BATCHES[0]:
                    break
            self._simulate(likely)
            if self.best:
                return

    def _simulate_by_bounds(self) -> None:
        """Pop candidates by their bounds; bound and push again those with only the bound of their layout."""
        queue = [
            (candidate.score, candidate.number, candidate) for candidate in self.candidates if candidate.is_bounded
        ]
        heapify(queue)
        sizes, size = iter(_BATCHES), 0
        batch: list[Candidate] = []
        refined: list[Candidate] = []
        while queue:
            size = size or next(sizes, _BATCHES[-1])
            score, _, candidate = heappop(queue)
            if self._is_excluded(score):
                break
            if candidate.origin is None:
                batch += [candidate] * candidate.is_bounded
            else:
                self._report_at_intervals(candidate)
                self.filter.refine(candidate)
                refined.append(candidate)
                self.bounded += 1
                if candidate.is_bounded and not self._is_excluded(candidate.score):
                    heappush(queue, (candidate.score, candidate.number, candidate))
                if len(refined) in _PEEKS and not self.request.exhaustive:
                    self._simulate(self._best_bounded(refined, batch))
                    self._prefetch_bounds(queue)
            if len(batch) == size:
                self._simulate(batch)
                batch, size = [], 0
        self._simulate([candidate for candidate in batch if not self._is_excluded(candidate.score)])

    def _prefetch_bounds(self, queue: Sequence[tuple[Score, int, Candidate]]) -> None:
        """Start to bound candidates in worker processes, once these have compiled kernels."""
        executor = self.runner.worker_executor()
        if self.filter.prefetch is None and executor is not None:
            unbounded = [candidate for *_, candidate in sorted(queue) if candidate.origin is not None]
            if len(unbounded) >= _PREFETCH_FROM:
                self.filter.prefetch = BoundPrefetch(self.space, unbounded, executor, self.runner.workers)

    def _best_bounded(self, refined: Sequence[Candidate], batch: Sequence[Candidate]) -> list[Candidate]:
        """Return the requested number of bounded candidates, best first. Their scores bound the last place."""
        queue = [candidate for candidate in refined if candidate.is_bounded and candidate not in batch]
        return sorted(queue, key=attrgetter("score", "number"))[: self.request.top]

    def _is_excluded(self, score: Score) -> bool:
        """Return whether a lower bound is above the score of the last requested place."""
        top = self.request.top
        return not self.request.exhaustive and len(self.best) >= top and score > self.best[top - 1].score

    def _simulate(self, batch: Sequence[Candidate]) -> None:
        done = f" of {len(batch):,} that run"
        framework = self.space.problem.framework
        rows = self.runner.rows(batch, None, lambda count: self._report(f", {count:,}{done}"), framework)
        for candidate, row in zip(batch, rows, strict=True):
            if row.get(FOREIGN):
                candidate.outcome, candidate.reason = Outcome.FOREIGN, str(row[FOREIGN])
                continue
            candidate.row = row
            if row.get("error"):
                candidate.outcome, candidate.reason = Outcome.REFUSED, str(row["error"])
                continue
            candidate.outcome = Outcome.SIMULATED
            candidate.score = self._score_of(row, candidate)
            self.simulated += 1
            if candidate.fits:
                self._rank(candidate)
        self._report()

    def _score_of(self, row: Row, candidate: Candidate) -> Score:
        return self.request.score(self.bias.expected_ns(row, candidate.arguments), candidate.layout)

    def _simulate_foreign(self) -> None:
        """Simulate candidates that the framework does not run, in the order of their bounds."""
        queue = [candidate for candidate in self.candidates if candidate.outcome is Outcome.FOREIGN]
        queue.sort(key=attrgetter("score", "number"))
        limit = self.best[0].score
        for begin in range(0, len(queue), _BATCHES[1]):
            batch = [candidate for candidate in queue[begin : begin + _BATCHES[1]] if candidate.score < limit]
            for candidate, row in zip(batch, self.runner.rows(batch), strict=True):
                if row.get("error") or not row.get("fits"):
                    continue
                score = self._score_of(row, candidate)
                if score < limit:
                    limit, self.foreign = score, candidate
                    candidate.row, candidate.score = row, score
            self._report()

    def _rank(self, candidate: Candidate) -> None:
        """Insert a candidate into the ranking, or among the equivalents of another one."""
        first = self._places.get(_equivalence_key(candidate))
        if first is not None and first.number < candidate.number:
            insort(first.equivalents, candidate, key=attrgetter("number"))
            return
        if first is not None:
            self.best.remove(first)
            candidate.equivalents, first.equivalents = [first, *first.equivalents], []
        self._places[_equivalence_key(candidate)] = candidate
        insort(self.best, candidate, key=_rank_key)

    def _report(self, now: str = "") -> None:
        best = f", best so far {self.best[0].name}" if self.best else ""
        bounded = f"{self.bounded:,} bounded by their tables, " if self.bounded else ""
        self.watch(f"{len(self.candidates):,} considered, {bounded}{self.simulated:,} simulated{best}{now}")

    def _report_at_intervals(self, candidate: Candidate) -> None:
        """Report the progress, at intervals and before large tables."""
        layout = candidate.layout
        large = layout.pp * candidate.chunks * layout.microbatches > _LARGE
        if large or monotonic() - self._reported_s > _PAUSE_S:
            self._reported_s = monotonic()
            self._report(f", now {candidate.name} of {layout.microbatches:,} microbatches" if large else "")

    def _no_result_error(self) -> ConfigError:
        """Return the error without a result: the most frequent reason, or the least sufficient memory."""
        short_of_memory = [
            candidate for candidate in self.candidates if candidate.bound and candidate.outcome in _NEED_MEMORY
        ]
        foreign = [candidate.reason for candidate in self.candidates if candidate.outcome is Outcome.FOREIGN]
        if foreign:
            title = FRAMEWORKS[self.space.problem.framework].title
            message = f"{title} runs none of the configurations that fit: {foreign[0]}; --for {ANY} plans with all"
            return ConfigError(message, file="plan")
        if not short_of_memory:
            reasons = [candidate.reason for candidate in self.candidates if candidate.reason]
            most = max(dict.fromkeys(reasons), key=reasons.count, default="nothing varies")
            return ConfigError(f"none of {len(self.candidates):,} configurations can run: {most}", file="plan")
        needs = self._simulated_needs(short_of_memory)
        if not needs:
            return ConfigError(f"none of {len(self.candidates):,} configurations fits", file="--memory")
        size, candidate = min(needs, key=lambda need: need[0])
        # A candidate without a bound by its table needs at least the bound of its layout.
        is_least = all(_least_memory(other)[0] >= size for other in short_of_memory if other.origin is not None)
        enough = f"{format_size(size)} is enough{'' if is_least else ', and less may be'} ({candidate.name})"
        message = f"none of {len(self.candidates):,} configurations fits: {enough}; give more GPUs, or more memory"
        return ConfigError(message, file="--memory")

    def _simulated_needs(self, short_of_memory: Sequence[Candidate]) -> list[tuple[int, Candidate]]:
        """Return the simulated memory of the candidates with the least bounds by their tables.

        Bounds of layouts ignore activations. Among equal bounds, the longest steps come first: they recompute.
        """
        layouts: dict[Layout, list[Candidate]] = {}
        for candidate in sorted(short_of_memory, key=_memory_key):
            layouts.setdefault(candidate.layout, []).append(candidate)
        likely = [candidate for group in layouts.values() for candidate in group[:_LEAST]]
        further = [candidate for group in layouts.values() for candidate in group[_LEAST:]]
        likely += sorted(further, key=_memory_key)[:_FURTHER]
        for candidate in likely:
            self._report()
            self.filter.refine(candidate)
        likely = sorted(
            (candidate for candidate in likely if candidate.outcome in _NEED_MEMORY), key=_least_memory
        )
        needs: list[tuple[int, Candidate]] = []
        for begin in range(0, len(likely), _LEAST):
            batch = likely[begin : begin + _LEAST]
            if needs and _least_memory(batch[0])[0] >= min(size for size, _ in needs):
                break
            for candidate, row in zip(batch, self.runner.rows(batch), strict=True):
                if not row.get("error"):
                    needs.append((int(row["peak_memory_bytes"] or 0), candidate))
        return needs


def spread_indices(count: int) -> list[int]:
    """Return the numbers below a count once each, such that every prefix covers the range evenly."""
    step = next((step for step in range(round(count * _GOLDEN), count) if gcd(step, count) == 1), 1)
    return [index * step % count for index in range(count)]


def _least_memory(candidate: Candidate) -> tuple[int, int]:
    return candidate.bound.peak_bytes if candidate.bound else 0, candidate.number


def _equivalence_key(candidate: Candidate) -> tuple[Any, ...]:
    """Return the key that equivalent candidates share."""
    return candidate.layout, candidate.schedule, candidate.chunks, _rank_key(candidate)[:-1]


def _rank_key(candidate: Candidate) -> tuple[Score, int, int]:
    return candidate.score, int(candidate.row["peak_memory_bytes"] or 0), candidate.number


def _memory_key(candidate: Candidate) -> tuple[int, tuple[float, ...], int]:
    least, number = _least_memory(candidate)
    return least, tuple(-float(part) for part in candidate.score), number
