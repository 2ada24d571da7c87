"""Candidates of a plan: their lower bounds, simulations and outcomes.

The order in which candidates are bounded is known in advance, so worker processes prefetch chunks of bounds. The
order in which the search uses the bounds does not depend on the machine.
"""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import dataclass, field, fields
from enum import StrEnum
from functools import lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pptrace.config.places import key_text
from pptrace.config.resolution import load
from pptrace.errors import ConstraintError, PptraceError
from pptrace.run.cost_changes import at_speeds, jittered
from pptrace.run.figures import figures_of
from pptrace.run.neighbourhood import Change
from pptrace.run.preparation import prepare
from pptrace.run.simulated_step import run_prepared
from pptrace.search.basis import short_reason
from pptrace.search.execution import journal_path
from pptrace.search.pricing import Group, Origin, Pricing
from pptrace.search.problem import LAYERS, PlanProblem, setting
from pptrace.search.runner import Runner, digest_of, installed, plugins_text, row_or_error
from pptrace.search.space import PLAIN
from pptrace.timeline.idle import IdleCause
from pptrace.version import __version__
from pptrace_kernel import always_compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from pathlib import Path
    from typing import Self

    from pptrace.config.overrides import Assignment
    from pptrace.config.yaml_document import Document
    from pptrace.plugins.registry import Registry
    from pptrace.run.figures import Row
    from pptrace.run.inputs import Prepared
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.search.basis import Entry
    from pptrace.search.bounds import Bound
    from pptrace.search.execution import ExecutorChoice
    from pptrace.search.pricing import Price
    from pptrace.search.problem import Layout, Score
    from pptrace.search.space import Space


class Outcome(StrEnum):
    """The outcome of a candidate."""

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
    item: tuple[Sequence[Assignment], Machine | None], *, document: Document, registry: Registry | None = None
) -> Row:
    """Simulate one candidate and return its figures, or the reason of its failure as ``error``.

    Args:
        item: the settings of the candidate, and another machine to simulate it on; None for the configured one.
        document: the common configuration.
        registry: the plugins; the installed ones of this process by default.
    """
    plugins = registry or installed()
    varied, machine = item

    def simulate_row() -> Row:
        with always_compiled():
            prepared = prepare(load(document, (), {}, varied), plugins)
            run = run_prepared(machine.apply(prepared) if machine else prepared, plugins)
        return {**figures_of(run), **_breakdown(run), "error": None, "plugins": plugins_text(prepared.plugins)}

    return row_or_error(simulate_row, short_reason, "--workers")


def _breakdown(run: SimulatedStep) -> Row:
    """Return the parts of the step on the mean rank; they sum to the step."""
    metrics = run.metrics
    ranks = metrics.ranks or 1
    idle = metrics.idle_ns.sum(axis=0) / ranks
    collectives = float(metrics.collective_ns.sum()) / ranks
    waits = [IdleCause.FILL, IdleCause.DRAIN, IdleCause.PEER_COMPUTE, IdleCause.SLOWER_REPLICA]
    waiting = float(idle[waits].sum())
    messages = float(idle[IdleCause.TRANSFER] + idle[IdleCause.CONTENTION] + idle[IdleCause.HEAD_OF_LINE])
    reduction = float(idle[IdleCause.REDUCTION])
    compute = metrics.step_ns - collectives - waiting - messages - reduction
    return {
        "mean_compute_ns": round(compute), "mean_collectives_ns": round(collectives),
        "mean_waiting_ns": round(waiting), "mean_messages_ns": round(messages),
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
        self._is_warm = False

    def __enter__(self) -> Self:
        """Start the executor, so that an unreachable executor fails early."""
        self.pool.begin()
        return self

    def worker_executor(self) -> Executor | None:
        """Return the executor of several other processes; None without one, or before the first simulation."""
        is_alone = self.chosen.in_process or self.workers == 1 or not self._is_warm
        return None if is_alone else self.pool.begin()

    def rows(
        self,
        candidates: Sequence[Candidate],
        machine: Machine | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> list[Row]:
        """Return the rows of candidates, in their order.

        Args:
            candidates: the candidates.
            machine: another machine to simulate them on.
            watch: receives the number of finished rows after each simulation.
        """
        keys = [self._key(candidate, machine) for candidate in candidates]
        rows = {key: self.known[key] for key in keys if key in self.known}
        missing = {
            key: (candidate.varied, machine)
            for key, candidate in zip(keys, candidates, strict=True)
            if key not in rows
        }
        call = partial(run_candidate, document=self.document)
        for key, row in self.run(missing, call, warms=not self._is_warm):
            self._is_warm = True
            rows[key] = row
            if watch is not None:
                watch(len(rows))
        return [rows[key] for key in keys]

    def _key(self, candidate: Candidate, machine: Machine | None) -> str:
        return digest_of([__version__, self._plugins, self.document.value, candidate.settings, str(machine or "")])


class CandidateFilter:
    """Creates the candidates of layouts with rough bounds, and bounds candidates by their tables."""

    def __init__(self, space: Space) -> None:
        self.space, self.problem = space, space.problem
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
            score = self.request.score(bound.step_ns, layout)
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
            score = self.request.score(price.bound.step_ns, candidate.layout)
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
"""Number of candidates from which worker processes shorten the search."""
_CHUNK = 24
"""Candidates per task of a worker."""


def should_prefetch(candidates: Sequence[Candidate]) -> bool:
    """Return whether there are enough candidates for worker processes to bound."""
    return len(candidates) >= _PREFETCH_FROM


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
