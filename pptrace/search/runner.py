"""Simulation of the points of a study."""

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
from pptrace.search.basis import Basis, short_reason
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
    from pptrace.search.execution import ExecutorChoice, Kept
    from pptrace.search.grid import Base

__all__ = ["TRIALS", "Runner", "Trial", "inputs_of", "installed", "plugins_text", "run_candidate", "run_point"]


def run_point(base: Base, entry: Entry, registry: Registry | None = None, *, rows: int = 0) -> Row:
    """Simulate one point and return its inputs and figures, or why there are none as its ``error``.

    Args:
        base: what the points have in common.
        entry: what this one lays over it.
        registry: the plugins; those that are installed where this runs by default.
        rows: how many this point and those that follow give each kernel to do.
    """
    plugins = registry or _installed()
    basis = Basis(file=base.document, sets=base.sets, flags=base.flags, registry=plugins)
    try:
        with many_runs(rows):
            run = basis.run(entry)
            figures = metrics_row(at_levels(run))
    except PptraceError as error:
        return _failed(str(error))
    except MemoryError:
        return _failed("out of memory: take fewer ranks or microbatches, or fewer --workers")
    except Exception as error:  # noqa: BLE001 - one point that fails costs no other
        return _failed(f"{one_line(error)} (a bug: pptrace simulate shows where)")
    prepared = run.prepared
    return {
        **inputs_of(prepared.resolved), **figures,
        "error": None, "pptrace": __version__, "plugins": plugins_text(prepared.plugins),
    }  # fmt: skip


def inputs_of(resolved: Resolved) -> Row:
    """Return every resolved key with its value, lists as JSON; absolute paths keep their last part."""
    return {key: _cell(value) for key, value, _ in resolved.explain()}


def plugins_text(plugins: Mapping[str, str]) -> str:
    """Write distributions with their versions.

    >>> plugins_text({"pptrace-schedules": "0.1.0"})
    'pptrace-schedules 0.1.0'
    """
    return ", ".join(f"{name} {version}".strip() for name, version in sorted(plugins.items()))


def _failed(reason: str) -> Row:
    return {"error": " ".join(reason.split()), "pptrace": __version__}


def _cell(value: Any) -> Cell:
    if isinstance(value, str):
        return PurePath(value).name if value.startswith(("/", "~")) else value
    if value is None or isinstance(value, bool | int | float):
        return value
    return json.dumps(value, ensure_ascii=False)


@cache
def _installed() -> Registry:
    return Registry.load(warn=lambda _: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What another machine may be like."""

    name: str
    compute: float = 1.0
    """The speed of computation, of what the costs say."""
    communication: float = 1.0
    """The speed of communication."""
    jitter: float = 0.0
    """Standard deviation of computations by stage and microbatch."""
    seed: int = 0

    def altered(self, prepared: Prepared) -> Prepared:
        """Return a step on such a machine."""
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
"""Machines on which the first places of a plan are simulated again."""


def run_candidate(
    document: Document, varied: Sequence[Assignment], trial: Trial | None, registry: Registry | None = None
) -> Row:
    """Simulate one configuration and return its figures, or why there are none as its ``error``.

    Args:
        document: what all configurations have in common.
        varied: what this one sets.
        trial: another machine to simulate it on; the configuration's own unless given.
        registry: the plugins; those that are installed where this runs by default.
    """
    try:
        with always_compiled():
            prepared = prepare(load(document, (), {}, varied), registry or installed())
            run = run_prepared(trial.altered(prepared) if trial else prepared, registry or installed())
    except PptraceError as error:
        return {"error": short_reason(error)}
    except MemoryError:
        return {"error": "out of memory: take fewer --workers"}
    except Exception as error:  # noqa: BLE001 - one configuration that fails costs no other
        return {"error": f"{one_line(error)} (a bug: pptrace simulate shows where)"}
    return {**figures_of(run), **_where(run), "error": None, "plugins": plugins_text(prepared.plugins)}


def _where(run: SimulatedStep) -> Row:
    """Return where the step's time goes on the mean rank; the parts sum to the step."""
    metrics = run.metrics
    ranks = metrics.ranks or 1
    idle = metrics.idle_ns.sum(axis=0) / ranks
    collectives = float(metrics.collective_ns.sum()) / ranks
    waits = [IdleCause.FILL, IdleCause.DRAIN, IdleCause.PEER_COMPUTE, IdleCause.SLOWER_REPLICA]
    waiting = float(idle[waits].sum())
    messages = float(idle[IdleCause.TRANSFER] + idle[IdleCause.CONTENTION] + idle[IdleCause.HEAD_OF_LINE])
    reduction = float(idle[IdleCause.REDUCTION])
    rest = metrics.step_ns - collectives - waiting - messages - reduction
    return {
        "mean_compute_ns": round(rest), "mean_collectives_ns": round(collectives),
        "mean_waiting_ns": round(waiting), "mean_messages_ns": round(messages),
        "mean_reduction_ns": round(reduction),
    }  # fmt: skip


@cache
def installed() -> Registry:
    """Return the installed plugins, loaded once per process."""
    return Registry.load(warn=lambda _: None)


_AHEAD = 4


class Runner:
    """What simulates the configurations of a plan, as a context."""

    def __init__(
        self, document: Document, registry: Registry, chosen: ExecutorChoice, kept: Kept, output: Path | None,
        *, fresh: bool,
    ) -> None:  # fmt: skip
        """Read what an earlier start finished.

        Args:
            document: what all configurations have in common.
            registry: the plugins.
            chosen: what they run on.
            kept: the executor of that choice, for all batches.
            output: the first file that the plan is for; rows are kept in the journal beside it.
            fresh: take over no finished row.

        Raises:
            OutputError: the journal cannot be read or written.
        """
        self.document, self.registry, self.chosen, self.kept = document, registry, chosen, kept
        self._plugins = sorted((one.distribution, one.version) for one in registry.providers)
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
        """Keep the journal: the files that it is for may still fail to be written."""
        if self._journal is not None:
            self._journal.__exit__(kind, error, trace)

    @property
    def workers(self) -> int:
        """How many configurations run at once."""
        return self.chosen.request.workers

    def others(self) -> Executor | None:
        """Return the executor of other processes, several at once; None where there is none, or before any ran."""
        is_alone = self.chosen.in_process or self.workers == 1 or not self._is_warm
        return None if is_alone else self.kept.begin()

    def rows(
        self,
        candidates: Sequence[Candidate],
        trial: Trial | None = None,
        watch: Callable[[int], None] | None = None,
    ) -> list[Row]:
        """Return the figures of some configurations, in their order.

        Args:
            candidates: the configurations.
            trial: another machine to simulate them on.
            watch: told how many are finished, after each.
        """
        names = [self._identity(one, trial) for one in candidates]
        found = {name: self._known[name] for name in names if name in self._known}
        missing = [at for at, name in enumerate(names) if name not in found]
        items: list[Any] = [(at, candidates[at].varied, trial) for at in missing]
        if items and not self._is_warm:
            self._is_warm = True
            item = items.pop()  # compiles once, for all workers, before they start
            self._note(found, names[item[0]], run_candidate(self.document, item[1], item[2], self.registry))
            installed()
        own = self.registry if self.chosen.in_process else None
        call = partial(_call, document=self.document, registry=own)
        ahead = _AHEAD * self.chosen.request.workers
        for item, row in run_all(items, call, self.kept, ahead=ahead) if items else ():
            self._note(found, names[item[0]], row)
            if watch is not None:
                watch(len(found))
        return [found[name] for name in names]

    def _note(self, found: dict[str, Row], name: str, row: Row) -> None:
        found[name] = {**row, "point": name}
        if self._journal is not None and not row.get("error"):
            self._journal.append(found[name])

    def _identity(self, candidate: Candidate, trial: Trial | None) -> str:
        said = [__version__, self._plugins, self.document.value, candidate.settings, str(trial or "")]
        text = json.dumps(said, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _call(item: Any, *, document: Document, registry: Registry | None) -> Row:
    _, varied, trial = item
    return run_candidate(document, varied, trial, registry)
