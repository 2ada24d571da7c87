"""How much of an overlapped pair each of its members took: as they do where they run alone, in proportion."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING

from pptrace.plugin import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Action
    from pptrace_profilers.recording.recording import Execution, Recording

__all__ = ["Arrivals", "TimesAlone", "arrival", "own_length"]

Arrivals = dict[tuple[bool, int, int], int]
"""When inputs were there: of forwards or of backwards, by stage and microbatch."""


class TimesAlone:
    """What actions take that run alone, by kind and stage."""

    def __init__(self, ranks: Sequence[Recording], arrivals: Arrivals) -> None:
        times: dict[tuple[Kind, int], list[int]] = defaultdict(list)
        for rank in ranks:
            for execution in rank.executions:
                action = execution.action
                if not action.sub_actions:
                    times[action.kind, action.stage].append(own_length(execution, arrivals))
        self._by_stage = {key: median(lengths) for key, lengths in times.items()}
        for (kind, _), lengths in list(times.items()):
            times[kind, -1] += lengths
        self._by_kind = {kind: median(lengths) for (kind, stage), lengths in times.items() if stage < 0}

    def boundaries(self, members: Sequence[Action], length_ns: int) -> list[int]:
        """Return where each member begins and the last one ends; even parts where one never ran alone."""
        times = [self._of(member.kind, member.stage) for member in members]
        known = [time for time in times if time]
        weights = known if len(known) == len(times) else [1.0] * len(members)
        whole = sum(weights)
        inner = [min(round(length_ns * reached / whole), length_ns) for reached in accumulate(weights[:-1])]
        return [0, *inner, length_ns]

    def _of(self, kind: Kind, stage: int) -> float | None:
        time = self._by_stage.get((kind, stage), self._by_kind.get(kind))
        if time is None and kind is Kind.B:
            parts = [self._of(part, stage) for part in (Kind.I, Kind.W)]
            return sum(part for part in parts if part) if all(parts) else None
        return time


def arrival(action: Action, arrivals: Arrivals, otherwise: int) -> int:
    """Return when an action's input was there."""
    return arrivals.get((action.kind is Kind.F, action.stage, action.microbatch), otherwise)


def own_length(execution: Execution, arrivals: Arrivals) -> int:
    """Return what an action took without the wait for its input."""
    if execution.gpu is not None:
        return execution.gpu.end_ns - execution.gpu.start_ns
    there = arrival(execution.action, arrivals, execution.start_ns)
    return execution.end_ns - min(max(execution.start_ns, there), execution.end_ns)
