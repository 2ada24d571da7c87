"""A candidate configuration of a plan, with its bound and its outcome."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pptrace.config.places import key_text
from pptrace.run.neighbourhood import Change

if TYPE_CHECKING:
    from pptrace.config.overrides import Assignment
    from pptrace.run.figures import Row
    from pptrace.search.bounds import Bound
    from pptrace.search.pricing import Origin
    from pptrace.search.problem import Score
    from pptrace.search.space import Layout


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
    """All settings that it makes."""
    outcome: Outcome = Outcome.BOUNDED
    reason: str = ""
    """Why it is refused, or which candidate it equals or is covered by."""
    bound: Bound | None = None
    """Lower bounds on its step and memory."""
    score: Score = ()
    """The score of the bound; after the simulation, that of the step."""
    origin: Origin | None = None
    """The inputs of its own bound; None once that is computed, or where it is refused before."""
    row: Row = field(default_factory=dict)
    """The figures of its simulation."""
    equivalents: list[Candidate] = field(default_factory=list)
    """Candidates that share its place: same layout, schedule, step and memory, but other settings."""

    @property
    def fits(self) -> bool:
        """Whether its simulated step fits its devices."""
        return self.outcome is Outcome.SIMULATED and bool(self.row.get("fits"))

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings by key; a later setting overrides an earlier one."""
        return {key_text(one.path): one.value for one in self.varied}

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
        shown = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name in {"pp", "micro"}]
        return f"{self.schedule}, {' '.join(shown)}"
