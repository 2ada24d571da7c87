"""Simulation of points and candidates into rows of figures."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from pptrace.config.resolution import load
from pptrace.errors import PptraceError
from pptrace.plugins.guards import one_line
from pptrace.plugins.registry import Registry
from pptrace.run.cost_changes import at_speeds, jittered
from pptrace.run.figures import at_levels, figures_of, metrics_row
from pptrace.run.preparation import prepare
from pptrace.run.simulated_step import run_prepared
from pptrace.search.basis import short_reason
from pptrace.search.execution import Journal, journal_path, run_all
from pptrace.timeline.idle import IdleCause
from pptrace.version import __version__
from pptrace_kernel import always_compiled, many_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Executor
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from pptrace.config.overrides import Assignment
    from pptrace.config.resolution import Resolved
    from pptrace.config.yaml_document import Document
    from pptrace.run.figures import Cell, Row
    from pptrace.run.inputs import Prepared
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.search.basis import Entry
    from pptrace.search.candidate import Candidate
    from pptrace.search.execution import ExecutorChoice, ExecutorPool
    from pptrace.search.grid import Base


def run_point(base: Base, entry: Entry, registry: Registry | None = None, *, rows: int = 0) -> Row:
    """Simulate one point and return its inputs and figures, or the reason of its failure as ``error``.

    Args:
        base: the common configuration of the points.
        entry: the settings of this point.
        registry: the plugins; the installed ones of this process by default.
        rows: actions of this point and the following ones, which decide whether kernels are compiled.
    """
    plugins = registry or installed()

    def simulate() -> Row:
        with many_runs(rows):
            run = base.basis(plugins).run(entry)
            figures = metrics_row(at_levels(run))
        prepared = run.prepared
        return {
            **inputs_of(prepared.resolved),
            **figures,
            "error": None,
            "plugins": plugins_text(prepared.plugins),
        }

    row = _row_or_error(simulate, str, "ranks or microbatches, or fewer --workers")
    return row | {"pptrace": __version__}


def _row_or_error(simulate: Callable[[], Row], reason_of: Callable[[PptraceError], str], less: str) -> Row:
    try:
        return simulate()
    except PptraceError as error:
        reason = reason_of(error)
    except MemoryError:
        reason = f"out of memory: take fewer {less}"
    except Exception as error:  # noqa: BLE001 - a failed point does not end the other ones
        reason = f"{one_line(error)} (a bug: pptrace simulate shows where)"
    return {"error": " ".join(reason.split())}


def inputs_of(resolved: Resolved) -> Row:
    """Return the resolved keys with their values: lists as JSON, absolute paths as their last part."""
    return {key: _cell(value) for key, value, _ in resolved.explain()}


def plugins_text(plugins: Mapping[str, str]) -> str:
    """Write distributions with their versions.

    >>> plugins_text({"pptrace-schedules": "0.1.0"})
    'pptrace-schedules 0.1.0'
    """
    return ", ".join(f"{name} {version}".strip() for name, version in sorted(plugins.items()))


def _cell(value: Any) -> Cell:
    if isinstance(value, str):
        return PurePath(value).name if value.startswith(("/", "~")) else value
    if value is None or isinstance(value, bool | int | float):
        return value
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A machine whose speed differs from the configured one."""

    name: str
    compute: float = 1.0
    """The speed of computation, relative to the configured costs."""
    communication: float = 1.0
    """The speed of communication, likewise."""
    jitter: float = 0.0
    """Standard deviation of computations by stage and microbatch."""
    seed: int = 0

    def apply(self, prepared: Prepared) -> Prepared:
        """Return a step on this machine."""
        if self.jitter:
            return jittered(prepared, self.seed, self.jitter)
        return at_speeds(prepared, self.compute, self.communication)


TRIALS = (
    Trial(name="bandwidth -20%", communication=0.8),
    Trial(name="bandwidth +20%", communication=1.2),
    Trial(name="efficiency -10%", compute=0.9),
    Trial(name="efficiency +10%", compute=1.1),
    *(Trial(name=f"jitter 5%, seed {seed}", jitter=0.05, seed=seed) for seed in range(1, 5)),
)
"""Machines on which the first places of a plan are re-simulated."""


def run_candidate(
    document: Document, varied: Sequence[Assignment], trial: Trial | None, registry: Registry | None = None
) -> Row:
    """Simulate one candidate and return its figures, or the reason of its failure as ``error``.

    Args:
        document: the common configuration.
        varied: the settings of the candidate.
        trial: another machine to simulate it on; the configured one by default.
        registry: the plugins; the installed ones of this process by default.
    """
    plugins = registry or installed()

    def simulate() -> Row:
        with always_compiled():
            prepared = prepare(load(document, (), {}, varied), plugins)
            run = run_prepared(trial.apply(prepared) if trial else prepared, plugins)
        return {**figures_of(run), **_breakdown(run), "error": None, "plugins": plugins_text(prepared.plugins)}

    return _row_or_error(simulate, short_reason, "--workers")


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


@cache
def installed() -> Registry:
    """Return the installed plugins, loaded once per process."""
    return Registry.load(warn=lambda _: None)


_AHEAD = 4
"""Calls per worker that are submitted in advance."""


class Runner:
    """Simulates the candidates of a plan and stores finished rows in a journal, as a context."""

    def __init__(
        self, document: Document, registry: Registry, chosen: ExecutorChoice, pool: ExecutorPool,
        output: Path | None, *, fresh: bool,
    ) -> None:  # fmt: skip
        """Read the rows that an earlier start finished.

        Args:
            document: the common configuration.
            registry: the plugins.
            chosen: the choice of the executor.
            pool: its executor, shared by all batches.
            output: the first output file; the journal is beside it.
            fresh: ignore finished rows.

        Raises:
            OutputError: the journal cannot be read or written.
        """
        self.document, self.registry, self.chosen, self.pool = document, registry, chosen, pool
        self._plugins = sorted((provider.distribution, provider.version) for provider in registry.providers)
        self._known: dict[str, Row] = {}
        self._journal: Journal | None = None
        self._is_warm = False
        if output is not None:
            self._journal = Journal(journal_path(output), fresh=fresh)
            self._known = {str(row["point"]): row for row in self._journal.rows}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the journal and keep it, because writing the outputs can still fail."""
        if self._journal is not None:
            self._journal.__exit__(kind, error, trace)

    @property
    def workers(self) -> int:
        """Number of concurrent simulations."""
        return self.chosen.request.workers

    def worker_executor(self) -> Executor | None:
        """Return the executor of several other processes; None without one, or before the first simulation."""
        is_alone = self.chosen.in_process or self.workers == 1 or not self._is_warm
        return None if is_alone else self.pool.begin()

    def rows(
        self,
        candidates: Sequence[Candidate],
        trial: Trial | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> list[Row]:
        """Return the rows of candidates, in their order.

        Args:
            candidates: the candidates.
            trial: another machine to simulate them on.
            watch: receives the number of finished rows after each simulation.
        """
        names = [self._identity(candidate, trial) for candidate in candidates]
        rows = {name: self._known[name] for name in names if name in self._known}
        items: list[Any] = [
            (name, candidate.varied, trial)
            for name, candidate in zip(names, candidates, strict=True)
            if name not in rows
        ]
        if items and not self._is_warm:
            self._is_warm = True
            item = items.pop()  # compiles once, for all workers, before they start
            self._add(rows, item[0], _call(item, document=self.document, registry=self.registry))
            installed()
        registry = self.registry if self.chosen.in_process else None
        call = partial(_call, document=self.document, registry=registry)
        for item, row in run_all(items, call, self.pool, ahead=_AHEAD * self.workers) if items else ():
            self._add(rows, item[0], row)
            if watch is not None:
                watch(len(rows))
        return [rows[name] for name in names]

    def _add(self, rows: dict[str, Row], name: str, row: Row) -> None:
        rows[name] = {**row, "point": name}
        if self._journal is not None and not row.get("error"):
            self._journal.append(rows[name])

    def _identity(self, candidate: Candidate, trial: Trial | None) -> str:
        parts = [__version__, self._plugins, self.document.value, candidate.settings, str(trial or "")]
        text = json.dumps(parts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _call(item: Any, *, document: Document, registry: Registry | None) -> Row:
    _, varied, trial = item
    return run_candidate(document, varied, trial, registry)
