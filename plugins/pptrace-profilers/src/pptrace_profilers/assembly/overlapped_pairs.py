"""How much of a braid each of its members took: as they do where they run alone, in proportion."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING

from pptrace.model.action import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.model.action import Action
    from pptrace_profilers.assembly.messages import RankStep
    from pptrace_profilers.recording.recording import Ran

__all__ = ["Usual"]


class Usual:
    """What actions take that run alone, by kind and stage."""

    def __init__(self, ranks: Sequence[RankStep], arrived: Mapping[tuple[bool, int, int], int]) -> None:
        times: dict[tuple[Kind, int], list[int]] = defaultdict(list)
        for rank in ranks:
            for one in rank.ran:
                if not one.action.sub_actions:
                    there = arrived.get(
                        (one.action.kind is Kind.F, one.action.stage, one.action.unit), one.start_ns
                    )
                    times[one.action.kind, one.action.stage].append(_length(one, there))
        self._by_stage = {key: median(own) for key, own in times.items()}
        for (kind, _), own in list(times.items()):
            times[kind, -1] += own
        self._by_kind = {kind: median(own) for (kind, stage), own in times.items() if stage < 0}

    def cuts(self, members: Sequence[Action], length_ns: int) -> list[int]:
        """Return where each member begins and the last one ends; even parts where one never ran alone."""
        found = [self._of(member.kind, member.stage) for member in members]
        known = [time for time in found if time]
        weights = known if len(known) == len(found) else [1.0] * len(members)
        whole = sum(weights)
        return [0, *(round(length_ns * reached / whole) for reached in accumulate(weights))]

    def _of(self, kind: Kind, stage: int) -> float | None:
        time = self._by_stage.get((kind, stage), self._by_kind.get(kind))
        if time is None and kind is Kind.B:
            parts = [self._of(one, stage) for one in (Kind.I, Kind.W)]
            return sum(part for part in parts if part) if all(parts) else None
        return time


def _length(one: Ran, there_ns: int) -> int:
    if one.device is not None:
        return one.device.end_ns - one.device.start_ns
    return one.end_ns - min(max(one.start_ns, there_ns), one.end_ns)
