"""Waits for what a rank's own group brings, which no computation hides: part of the computation that waits.

A timeline counts them as ``collective_ns``, as it does of simulated pairs of actions in segments.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace.plugin import SENDS, Kind, Pass, Slice, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Action

    Row = tuple[Slice, int, int]
    """A slice, and what belongs to it."""

__all__ = ["with_group_waits"]


def with_group_waits(rows: Sequence[Row]) -> list[Row]:
    """Return slices whose computations begin with their wait for the phase of an overlapped pair that feeds them.

    Args:
        rows: slices, of each stream by their time.
    """
    fed = {_fed_by(row.action): row for row, *_ in rows if row.stream is Stream.EXPERT_PARALLEL}
    free: dict[int, int] = {}
    found = []
    for row, gap, received in rows:
        if row.stream is not Stream.COMPUTE:
            found.append((row, gap, received))
            continue
        fits = row.action.kind is not Kind.W and row.rank in free
        brought = fed.get((row.action.kind is Kind.F, row.action.stage, row.action.microbatch)) if fits else None
        waited = 0
        if brought is not None:
            waited = min(brought.end_ns, row.start_ns) - max(free[row.rank], brought.start_ns)
        free[row.rank] = row.end_ns
        found.append((_from(row, max(waited, 0)), gap, received))
    return found


def _from(row: Slice, earlier_ns: int) -> Slice:
    begin = row.start_ns - earlier_ns
    return replace(
        row, start_ns=begin, enter_ns=min(row.enter_ns, begin), collective_ns=row.collective_ns + earlier_ns
    )


def _fed_by(action: Action) -> tuple[bool, int, int]:
    """Return which computation takes what a phase carries: whether a forward, its stage and its microbatch."""
    forward = action.kind.traits.direction is Pass.FORWARD
    away = (1 if forward else -1) if action.kind in SENDS else 0
    return forward, action.stage + away, action.microbatch
