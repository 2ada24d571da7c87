"""Candidates of a plan: configurations of its space, their simulation, and other machines to simulate them on."""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pptrace.config.places import key_text
from pptrace.config.resolution import load
from pptrace.run.figures import figures_of
from pptrace.run.neighbourhood import Change
from pptrace.run.preparation import prepare
from pptrace.run.run import Run
from pptrace.search.basis import digest_of, short_reason
from pptrace.search.launch_arguments import FRAMEWORKS
from pptrace.search.plan_axes import DIVIDED
from pptrace.search.runner import (
    Runner,
    installed,
    journal_path,
    plugins_text,
    row_or_error,
)
from pptrace.search.what_if import at_speeds, jittered
from pptrace.steps.pytorch_tables import compute_only
from pptrace.steps.text_forms import table_text
from pptrace.timeline.idle import IdleCause
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor
    from pathlib import Path
    from typing import Self

    from pptrace.config.overrides import Assignment
    from pptrace.config.places import Document
    from pptrace.plugins.registry import Registry
    from pptrace.run.figures import Row
    from pptrace.run.inputs import StepInputs
    from pptrace.search.bounds import Bound
    from pptrace.search.plan_axes import LayoutGroup, PlanLayout, Score
    from pptrace.search.runner import ExecutorChoice
    from pptrace.search.space_bounds import GroupMember


class Outcome(StrEnum):
    """The outcome of a candidate."""

    FOREIGN = "foreign"
    """The framework of the plan does not run it."""

    REFUSED = "refused"
    """It cannot run."""
    MEMORY = "memory"
    """Its lower bound on memory is above the capacity, or its schedule needs more memory."""
    EQUAL = "equal"
    """Another candidate has the same table and costs."""
    COVERED = "covered"
    """It has one pipeline rank, where 1F1B represents all schedules."""
    BOUNDED = "bounded"
    """Its lower bound on the step excludes it from the first places."""
    SIMULATED = "simulated"


class Candidate(Struct, kw_only=True, eq=False):
    """A configuration of the space."""

    number: int
    """Its place in the order of the space: unique and ascending."""
    layout: PlanLayout
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
    origin: tuple[LayoutGroup, GroupMember] | None = None
    """The inputs of its bound; None once it has the bound of its whole table."""
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
    def written(self) -> dict[str, Any]:
        """Its settings for ``CONFIG``; None removes a key that belongs to the sizes in it."""
        return {key: value for key, value in self.settings.items() if value is not None or key in DIVIDED}

    @property
    def arguments(self) -> str:
        """The arguments of ``pptrace simulate CONFIG`` that reproduce it."""
        return Change(settings=self.written).arguments

    @property
    def sizes(self) -> dict[str, int]:
        """Its parallel sizes, chunks and sequences of a microbatch by name."""
        layout = self.layout
        return {
            "pp": layout.pp, "vp": self.chunks, "tp": layout.tp, "cp": layout.cp, "ep": layout.ep,
            "dp": layout.dp, "micro": layout.micro,
        }  # fmt: skip

    @property
    def name(self) -> str:
        """Schedule and sizes in one line."""
        listed = [f"{name} {size}" for name, size in self.sizes.items() if size > 1 or name in {"pp", "micro"}]
        return f"{self.schedule}, {' '.join(listed)}"


class Machine(Struct, frozen=True, kw_only=True):
    """A machine whose speed differs from the configured one."""

    name: str
    compute: float = 1.0
    """The speed of computation, relative to the configured costs."""
    communication: float = 1.0
    """The speed of communication, relative to the configured costs."""
    jitter: float = 0.0
    """Standard deviation of computations by stage and microbatch."""
    seed: int = 0

    def apply(self, prepared: StepInputs) -> StepInputs:
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
        prepared = prepare(load(document, (), {}, varied), plugins)
        if framework:
            arguments = FRAMEWORKS[framework].arguments(prepared.resolved.experiment, prepared.stage_table)
            if arguments.without:
                return {Outcome.FOREIGN: arguments.without[0]}
        run = Run.of(machine.apply(prepared) if machine else prepared, plugins)
        return {
            **figures_of(run), **_breakdown(run), "error": None, "plugins": plugins_text(prepared.plugins),
            SEARCHED_TABLE: _searched_table(prepared, plugins),
        }  # fmt: skip

    return row_or_error(simulate_row, short_reason, actions=sys.maxsize)


SEARCHED_TABLE = "searched_table"
"""The cell of the simulated table as text if a search found it; another search may find another table."""


def _searched_table(prepared: StepInputs, registry: Registry) -> str | None:
    schedule = prepared.resolved.experiment.schedule
    is_searched = schedule.kind != "table" and registry.schedules[schedule.name].offer.searches
    return table_text(compute_only(prepared.stage_table)) if is_searched else None


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
        """Return the rows of candidates in their order, on another machine if given.

        A framework has to run them unless it is empty. ``watch`` receives the number of finished rows.
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
