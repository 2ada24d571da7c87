"""A step at another time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

__all__ = ["earliest_ns", "shifted"]


def shifted(timeline: Timeline, by_ns: int) -> Timeline:
    """Return a step with all its times later, its counters' too."""
    times = {name: getattr(timeline, name) + by_ns for name in ("enter_ns", "start_ns", "end_ns")}
    counters = tuple(replace(counter, at_ns=counter.at_ns + by_ns) for counter in timeline.counters)
    why = None if timeline.why is None else timeline.why.shifted(by_ns)
    return replace(timeline, counters=counters, why=why, **times)


def earliest_ns(timeline: Timeline) -> int:
    """Return the first time that a step holds, 0 at most."""
    counted = [int(counter.at_ns.min(initial=0)) for counter in timeline.counters]
    return min([0, int(timeline.enter_ns.min(initial=0)), *counted])
