"""Forms that copy activations to the host or compute forwards again: what their settings mean to estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.config.experiment import Offload, Recompute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.config.experiment import ScheduleChoice

__all__ = ["MOVED", "is_both", "moved_by"]

_COPIED, _AGAIN = "schedule.offload.ratio", "schedule.recompute.early"

MOVED = frozenset({_COPIED, _AGAIN})
"""Settings that change a table, and no cost of its stages."""


def is_both(settings: Mapping[str, Any]) -> bool:
    """Whether a form would copy what it computes again, which is refused."""
    return settings.keys() >= MOVED


def moved_by(settings: Mapping[str, Any], choice: ScheduleChoice) -> tuple[Offload | None, Recompute | None]:
    """Return what a form copies and what it computes again, where it does not say so as the configuration does."""
    copied, again = settings.get(_COPIED), settings.get(_AGAIN)
    return (
        choice.offload if copied is None else Offload(ratio=copied),
        choice.recompute if again is None else Recompute(early=again),
    )
