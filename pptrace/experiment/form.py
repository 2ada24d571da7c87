"""A schedule of which settings may differ, a form of it, and what was found among its forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.config.resolve import Resolved
    from pptrace.errors import PptraceError
    from pptrace.experiment.run import Run
    from pptrace.experiment.tried import Tried
    from pptrace.experiment.varied import VariedSetting
    from pptrace.hooks.registry import Registry

__all__ = ["Form", "Forms", "Variation"]


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
