"""Forms that copy activations to the host or compute forwards again: what their settings mean to estimates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.config.experiment import Offload, Recompute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.config.experiment import ScheduleChoice
    from pptrace.model.workload import Workload

__all__ = ["MOVED", "NO_COPY_TIMES", "copies_take_time", "is_both", "moved_by"]

_COPIED, _AGAIN = "schedule.offload.ratio", "schedule.recompute.early"

MOVED = frozenset({_COPIED, _AGAIN})
"""Settings that change a table, and no cost of its stages."""

NO_COPY_TIMES = "the costs have no time for copies: give device.host_bandwidth, or costs.offload and costs.reload"
"""Why activations are not copied to the host."""


def is_both(settings: Mapping[str, Any]) -> bool:
    """Whether a form would copy what it computes again, which is refused."""
    return settings.keys() >= MOVED


def copies_take_time(workload: Workload) -> bool:
    """Whether all activations take time to be copied to the host and back."""
    costs = (workload, *workload.classes)
    return all(
        bool((times[one.activation_bytes > 0] > 0).all())
        for one in costs
        for times in (one.offload_ns, one.reload_ns)
    )


def moved_by(settings: Mapping[str, Any], choice: ScheduleChoice) -> tuple[Offload | None, Recompute | None]:
    """Return what a form copies and what it computes again, where it does not say so as the configuration does."""
    copied, again = settings.get(_COPIED), settings.get(_AGAIN)
    return (
        choice.offload if copied is None else Offload(ratio=copied),
        choice.recompute if again is None else Recompute(early=again),
    )
