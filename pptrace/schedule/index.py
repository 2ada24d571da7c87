"""Where each action of a schedule is: one position per slot, stage and unit, and the first thing wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.kernel import run
from pptrace.model.action import Kind
from pptrace.schedule.kernels.tables import index_actions

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s
    from pptrace.schedule.table import Schedule

__all__ = ["ABSENT", "FORWARD", "GRADIENT", "SLOT_OF_KIND", "Positions", "Problem", "index_schedule"]

FORWARD, GRADIENT, WEIGHT, SEND_F, RECV_F, SEND_B, RECV_B, OFFLOAD, RELOAD, RECOMPUTE = range(10)
"""Slots: a full backward fills GRADIENT and WEIGHT, an input-gradient backward GRADIENT alone."""

ABSENT = -1

SLOT_OF_KIND = np.full(len(Kind), -1, dtype=np.int32)
for _kind, _slot in {
    Kind.F: FORWARD, Kind.B: GRADIENT, Kind.I: GRADIENT, Kind.W: WEIGHT, Kind.SEND_F: SEND_F,
    Kind.RECV_F: RECV_F, Kind.SEND_B: SEND_B, Kind.RECV_B: RECV_B, Kind.OFFLOAD: OFFLOAD,
    Kind.RELOAD: RELOAD, Kind.RECOMPUTE: RECOMPUTE,
}.items():  # fmt: skip
    SLOT_OF_KIND[_kind] = _slot

OUT_OF_STAGES, OUT_OF_UNITS, TWICE, MISPLACED = 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The first action that cannot be placed in the index."""

    code: int
    """One of this module's problem codes."""
    row: int
    """The action's position in the schedule's columns."""
    other: int
    """The earlier action that it repeats, or the rank on which it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """Positions of actions in a schedule's columns."""

    slots: int
    """Slots that the schedule uses: 2 (F, B), 3 (also I, W), 7 (also messages) or 10."""
    flat: Int32s
    """Shape (slots x stages x units,): position or ``ABSENT``."""
    stages: int
    """Number of stages."""
    units: int
    """Number of units."""
    problem: Problem | None
    """The first problem met, or None."""

    def of(self, slot: int) -> Int32s:
        """Return one slot's positions, shape (stages, units); all absent for a slot not in use."""
        size = self.stages * self.units
        if slot >= self.slots:
            return np.full((self.stages, self.units), ABSENT, dtype=np.int32)
        return self.flat[slot * size : (slot + 1) * size].reshape(self.stages, self.units)


def index_schedule(schedule: Schedule) -> Positions:
    """Index every action that belongs to a unit; stop at the first that is out of range, twice or misplaced."""
    placement = schedule.placement
    slots = _slots_in_use(schedule.kind)
    flat = np.full(slots * placement.stages * placement.units, ABSENT, dtype=np.int32)
    problem = np.zeros(3, dtype=np.int64)
    run(
        index_actions,
        (
            schedule.row_ptr, schedule.kind, schedule.stage, schedule.unit, schedule.span,
            placement.stage_rank.ravel(), placement.unit_route, SLOT_OF_KIND,
            placement.stages, placement.units, placement.routes,
        ),
        (flat, problem),
        work=len(schedule),
    )  # fmt: skip
    code, row, other = (int(value) for value in problem)
    found = Problem(code=code, row=row, other=other) if code else None
    return Positions(slots=slots, flat=flat, stages=placement.stages, units=placement.units, problem=found)


def _slots_in_use(kind: Any) -> int:
    present = np.bincount(kind, minlength=len(Kind)) > 0
    if present[Kind.OFFLOAD] or present[Kind.RELOAD] or present[Kind.RECOMPUTE]:
        return 10
    if present[Kind.SEND_F : Kind.RECV_B + 1].any():
        return 7
    return 3 if present[Kind.I] or present[Kind.W] else 2
