"""One configuration of a plan: what it sets, what is known of it before it runs, and what became of it."""

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
    from pptrace.search.problem import Worth
    from pptrace.search.space import Layout

__all__ = ["Candidate", "Fate"]


class Fate(StrEnum):
    """What became of a configuration."""

    REFUSED = "refused"
    """It cannot run."""
    MEMORY = "memory"
    """It needs more memory than there is, whatever its step."""
    EQUAL = "equal"
    """It has the same table and costs as another one."""
    COVERED = "covered"
    """It has no pipeline, where 1F1B stands for all schedules."""
    BOUNDED = "bounded"
    """Its step cannot be among the first."""
    SIMULATED = "simulated"


@dataclass(slots=True, kw_only=True, eq=False)
class Candidate:
    """A configuration that is considered."""

    number: int
    """Its place in the order of the space."""
    layout: Layout
    """The division of the GPUs, and the batch."""
    schedule: str
    """The schedule, as it is named."""
    chunks: int
    """Chunks per rank."""
    varied: tuple[Assignment, ...]
    """All that it sets."""
    fate: Fate = Fate.BOUNDED
    """What became of it."""
    reason: str = ""
    """Why it is refused, or which configuration it equals or is covered by."""
    bound: Bound | None = None
    """What its step and memory are not below."""
    worth: Worth = ()
    """What the bound is worth; once it is simulated, what its step is."""
    origin: Origin | None = None
    """What its own bound is made of; None once that is known, or where it is refused before."""
    row: Row = field(default_factory=dict)
    """The figures of its simulation."""
    twins: list[Candidate] = field(default_factory=list)
    """Others that share its place: the same layout and schedule, other settings, and as long a step in as much
    memory."""

    @property
    def fits(self) -> bool:
        """Whether it was simulated and fits."""
        return self.fate is Fate.SIMULATED and bool(self.row.get("fits"))

    @property
    def settings(self) -> dict[str, Any]:
        """What it sets, by key; the last of several settings of one key."""
        return {key_text(one.path): one.value for one in self.varied}

    @property
    def arguments(self) -> str:
        """What to write behind ``pptrace simulate CONFIG`` to get it."""
        return Change(settings={key: value for key, value in self.settings.items() if value is not None}).arguments

    @property
    def name(self) -> str:
        """Return it in one line, without what all have in common."""
        layout = self.layout
        sizes = {"pp": layout.pp, "vp": self.chunks, "tp": layout.tp, "cp": layout.cp, "ep": layout.ep,
                 "dp": layout.dp, "micro": layout.micro}  # fmt: skip
        shown = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name in {"pp", "micro"}]
        return f"{self.schedule}, {' '.join(shown)}"
