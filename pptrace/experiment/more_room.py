"""Where no form of a schedule fits: settings beyond those that vary, such as ZeRO, that would make room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.errors import PptraceError
from pptrace.experiment.candidates import Change, room_makers
from pptrace.experiment.tried import Tried

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.experiment.form import Variation
    from pptrace.experiment.run import Run
    from pptrace.experiment.varied import Ground

__all__ = ["in_more_room"]


def in_more_room(tried: Tried, variation: Variation, ground: Ground, run: Callable[[Change], Run]) -> Tried | None:
    """Return a form that fits with settings beyond those that vary; None where none does.

    What it has in common with the form that was tried is left out of its change.

    Args:
        tried: the form that does not fit.
        variation: the schedule, and what may differ.
        ground: what the values of settings depend on.
        run: simulates a form; raises PptraceError where it cannot run.
    """
    known = {key for one in variation.settings for change in one.values(ground) for key in change}
    seen = []
    for switches in room_makers(ground.resolved, variation.registry):
        more = {key: value for key, value in switches.items() if key not in known}
        if not more or more in seen or variation.keeps(more):
            continue
        seen.append(more)
        try:
            found = run(tried.change.with_settings(more))
        except PptraceError:
            continue
        if found.metrics.over_capacity is None:
            return Tried.of(Change(settings=more), found)
    return None
