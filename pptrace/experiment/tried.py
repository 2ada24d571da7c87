"""Configurations that were simulated for advice, and the best of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.record import dataclass

if TYPE_CHECKING:
    from pptrace.errors import PptraceError
    from pptrace.experiment.candidates import Change
    from pptrace.experiment.run import Run

__all__ = ["Advice", "Tried"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A candidate that was simulated."""

    change: Change
    """In what it differs from the configuration."""
    step_ns: int | None = None
    """Its step; None where it cannot run."""
    peak_bytes: int = 0
    """The memory of its fullest rank; 0 where the costs know none."""
    rank: int = 0
    """That rank; the first of several alike."""
    room_bytes: int = 0
    """The memory of its device; 0 where unknown."""
    fits: bool = True
    """Whether every rank fits its device."""
    reason: str = ""
    """Why it cannot run, in one line."""

    @classmethod
    def of(cls, change: Change, run: Run) -> Tried:
        """Return what a run of a changed configuration comes to."""
        memory = run.memory
        return cls(
            change=change, step_ns=run.step_ns, peak_bytes=memory.fullest_bytes,
            rank=memory.fullest, room_bytes=memory.fullest_room_bytes, fits=memory.over_capacity is None,
        )  # fmt: skip

    @classmethod
    def refused(cls, change: Change, error: PptraceError) -> Tried:
        """Return one that cannot run."""
        return cls(change=change, reason=" ".join(str(error).split()), fits=False)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "settings": dict(self.change.settings),
            "arguments": self.change.arguments,
            "step_ns": self.step_ns,
            "peak_memory_bytes": self.peak_bytes,
            "fits": self.fits,
            "refused": self.reason or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What was tried, and the best of it."""

    best: Tried | None
    """The shortest step that fits; None where none is shorter than the configuration's own, or none fits."""
    tried: tuple[Tried, ...]
    """All that was simulated, in order."""
    estimated: int
    """How many candidates were estimated to choose these."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON values, times in ns and sizes in bytes."""
        return {
            "best": self.best.to_dict() if self.best else None,
            "tried": [one.to_dict() for one in self.tried],
            "estimated": self.estimated,
        }
