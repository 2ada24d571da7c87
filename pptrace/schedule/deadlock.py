"""Spell out why no order of messages lets a schedule run: the cycle of actions that wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.errors import DeadlockError
from pptrace.model.action import Kind
from pptrace.schedule.index import FORWARD, GRADIENT, index_schedule
from pptrace.schedule.issue_order import walk
from pptrace.schedule.neighbours import neighbours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.columns import Int32s
    from pptrace.schedule.table import Schedule

__all__ = ["cycle_text", "explain_deadlock"]

SHOWN = 12
"""Actions of a cycle that are spelled out; the rest is counted."""


def explain_deadlock(schedule: Schedule) -> DeadlockError:
    """Return the error for a schedule whose walk gets stuck (index it without problem first)."""
    _, head = walk(schedule)
    rank = next(r for r in range(schedule.ranks) if head[r] < schedule.row_ptr[r + 1])
    chain: list[str] = []
    visited: dict[int, int] = {}
    while rank not in visited:
        visited[rank] = len(chain)
        row, needed = _missing(schedule, int(head[rank]), head)
        chain.append(f"rank {rank}: {schedule.action(row)}")
        rank = schedule.rank_at(needed)
        if int(head[rank]) != needed:
            chain.append(f"rank {rank}: {schedule.action(needed)}")
    cycle = chain[visited[rank] :]
    return DeadlockError(
        f"the schedule deadlocks: {cycle_text(cycle)}; each action waits for the next: "
        f"change the order on one of these ranks",
        cycle=cycle,
    )


def cycle_text(cycle: Sequence[str]) -> str:
    """Return a cycle on one line, at most 12 actions spelled out.

    >>> cycle_text(["rank 0: 0B0", "rank 1: 1B0"])
    'rank 0: 0B0 -> rank 1: 1B0 -> rank 0: 0B0'
    """
    shown = list(cycle[:SHOWN])
    if len(cycle) > SHOWN:
        shown.append(f"... {len(cycle) - SHOWN} more ...")
    return " -> ".join([*shown, cycle[0]])


def _missing(schedule: Schedule, first: int, head: Int32s) -> tuple[int, int]:
    """Return the member of the stuck action at ``first`` that waits, and the position it waits for."""
    placement, near = schedule.placement, neighbours(schedule.placement)
    positions = index_schedule(schedule)
    rank = schedule.rank_at(first)
    row = first
    while row == first or (
        row < schedule.row_ptr[rank + 1]
        and schedule.braid[row] >= 0
        and schedule.braid[row] == schedule.braid[first]
    ):
        kind, stage = int(schedule.kind[row]), int(schedule.stage[row])
        forward = kind == Kind.F
        ptr, near_stages = (near.pred_ptr, near.pred) if forward else (near.succ_ptr, near.succ)
        table = positions.of(FORWARD if forward else GRADIENT)
        if kind in {Kind.F, Kind.B, Kind.I}:
            for unit in range(int(schedule.unit[row]), int(schedule.unit[row] + schedule.span[row])):
                for other in near_stages[ptr[stage] : ptr[stage + 1]]:
                    if placement.stage_rank[placement.unit_route[unit], other] < 0:
                        continue
                    needed = int(table[other, unit])
                    if needed >= head[schedule.rank_at(needed)]:
                        return row, needed
        row += 1
    raise AssertionError("a stuck action waits for one that is not done")
