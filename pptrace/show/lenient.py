"""Give every action of a table a time, even of one that cannot run: to draw what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.model.kind_table import TABLE
from pptrace.schedule.neighbours import graph_of

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pptrace.schedule.table import Schedule

__all__ = ["place_leniently"]

_FORWARD = 0


def place_leniently(schedule: Schedule, length: Sequence[int], at_fault: Collection[int] = ()) -> list[int]:
    """Return the start of every action, each rank's in the order of its row.

    An action waits for what it needs from the neighbouring stages, where the table has it. Where all
    ranks wait for each other, one goes on without: the lowest, or that of an action ``at_fault``.
    """
    feeds = _Feeds(schedule)
    ends: dict[tuple[int, int, int], int] = {}
    head, stop = schedule.row_ptr[:-1].tolist(), schedule.row_ptr[1:].tolist()
    free = [0] * schedule.ranks
    start = [0] * len(schedule)
    forced = -1
    while any(low < high for low, high in zip(head, stop, strict=True)):
        moved = False
        for rank in range(schedule.ranks):
            while head[rank] < stop[rank]:
                row = head[rank]
                needs = [ends.get(need, -1) for need in feeds.needs(row)]
                if -1 in needs and forced != rank:
                    break
                forced, moved = -1, True
                start[row] = max([free[rank], *needs])
                free[rank] = start[row] + length[row]
                for made in feeds.makes(row):
                    ends.setdefault(made, free[rank])
                head[rank] += 1
        if not moved:
            stuck = [rank for rank in range(schedule.ranks) if head[rank] < stop[rank]]
            forced = next((rank for rank in stuck if head[rank] in at_fault), stuck[0])
    return start


class _Feeds:
    """What each action of a table makes and needs, as (0 forward or 1 gradient, stage, microbatch)."""

    def __init__(self, schedule: Schedule) -> None:
        self._near = graph_of(schedule.placement)
        self._stages = schedule.stages
        self._rows = [
            (int(TABLE.feeds[kind]), stage, range(microbatch, microbatch + span))
            for kind, stage, microbatch, span in zip(
                *(values.tolist() for values in schedule.cells[:4]), strict=True
            )
        ]
        self._made = {made for row in range(len(schedule)) for made in self.makes(row)}

    def makes(self, row: int) -> list[tuple[int, int, int]]:
        way, stage, microbatches = self._rows[row]
        return [] if way < 0 else [(way, stage, microbatch) for microbatch in microbatches]

    def needs(self, row: int) -> list[tuple[int, int, int]]:
        way, stage, microbatches = self._rows[row]
        if way < 0 or not 0 <= stage < self._stages:
            return []
        near = self._near
        ptr, others = (near.pred_ptr, near.pred) if way == _FORWARD else (near.succ_ptr, near.succ)
        stages = others[ptr[stage] : ptr[stage + 1]].tolist()
        needed = [(way, other, microbatch) for other in stages for microbatch in microbatches]
        return [need for need in needed if need in self._made]
