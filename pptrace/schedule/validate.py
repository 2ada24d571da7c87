"""Hold a schedule to its laws: every action once and in place, in order, matched, and free of deadlock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.model.action import Action, Kind
from pptrace.schedule import index as slots
from pptrace.schedule.deadlock import explain_deadlock
from pptrace.schedule.index import Positions, Problem, index_schedule
from pptrace.schedule.issue_order import walk

if TYPE_CHECKING:
    from pptrace.schedule.table import Schedule

__all__ = ["validate", "validate_structure"]

_ORDER = (
    (slots.FORWARD, slots.GRADIENT),
    (slots.GRADIENT, slots.WEIGHT),
    (slots.FORWARD, slots.OFFLOAD),
    (slots.OFFLOAD, slots.RELOAD),
    (slots.RELOAD, slots.GRADIENT),
    (slots.FORWARD, slots.RECOMPUTE),
    (slots.RECOMPUTE, slots.GRADIENT),
    (slots.FORWARD, slots.SEND_F),
    (slots.GRADIENT, slots.SEND_B),
    (slots.RECV_F, slots.FORWARD),
    (slots.RECV_B, slots.GRADIENT),
)
"""Slots of which the first comes before the second in a rank's row, where both are there."""

_NAMES = {
    slots.FORWARD: Kind.F, slots.GRADIENT: Kind.B, slots.WEIGHT: Kind.W, slots.SEND_F: Kind.SEND_F,
    slots.RECV_F: Kind.RECV_F, slots.SEND_B: Kind.SEND_B, slots.RECV_B: Kind.RECV_B,
    slots.OFFLOAD: Kind.OFFLOAD, slots.RELOAD: Kind.RELOAD, slots.RECOMPUTE: Kind.RECOMPUTE,
}  # fmt: skip


def validate(schedule: Schedule) -> None:
    """Check a schedule wholly.

    Raises:
        ScheduleError: an action is out of range, on a wrong rank, there twice, missing, out of order
            in its row, or a message without its other end; the first in row order is named.
        DeadlockError: the rows wait for each other in a cycle.
    """
    validate_structure(schedule)
    walked, _ = walk(schedule)
    if walked < len(schedule):
        raise explain_deadlock(schedule)


def validate_structure(schedule: Schedule) -> Positions:
    """Check all but deadlock, and return the positions found.

    Raises:
        ScheduleError: as :func:`validate`.
    """
    if schedule.ranks != schedule.placement.ranks:
        raise ScheduleError(
            f"the table has {schedule.ranks} rows for {schedule.placement.ranks} ranks: one row a rank"
        )
    if not len(schedule):
        raise ScheduleError("the table is empty: write one row of actions per rank")
    positions = index_schedule(schedule)
    if positions.problem is not None:
        raise _describe(schedule, positions.problem)
    _check_present(schedule, positions)
    _check_order(schedule, positions)
    if positions.slots > slots.RECV_B:
        _check_matched(schedule, positions)
    return positions


def _describe(schedule: Schedule, problem: Problem) -> ScheduleError:
    row, rank = problem.row, schedule.rank_at(problem.row)
    action = schedule.action(row)
    where = f"rank {rank}, action {row - int(schedule.row_ptr[rank]) + 1} ({action})"
    if problem.code == slots.OUT_OF_STAGES:
        text = f"{where}: stage {action.stage} is out of range: stages are 0 to {schedule.stages - 1}"
    elif problem.code == slots.OUT_OF_UNITS:
        last = action.unit + action.span - 1
        text = f"{where}: microbatch {last} is out of range: they are 0 to {schedule.units - 1}"
    elif problem.code == slots.TWICE:
        first = problem.other
        text = (
            f"{where}: does again what action {first - int(schedule.row_ptr[rank]) + 1} "
            f"({schedule.action(first)}) has done: remove one"
        )
    else:
        home = f"is on rank {problem.other}" if problem.other >= 0 else "is not on that microbatch's route"
        text = f"{where}: stage {action.stage} {home}: move the action there"
    return ScheduleError(text, rank=rank, position=row, action=str(action))


def _check_present(schedule: Schedule, positions: Positions) -> None:
    placement = schedule.placement
    wanted = placement.stage_rank.T[:, placement.unit_route] >= 0
    for slot in (slots.FORWARD, slots.GRADIENT, slots.WEIGHT)[: positions.slots]:
        missing = wanted & (positions.of(slot) < 0)
        if not missing.any():
            continue
        stage, unit = (int(axis[0]) for axis in np.nonzero(missing))
        name = _missing_name(schedule, positions, slot, stage, unit)
        rank = placement.rank_of(stage, unit)
        count = int(missing.sum())
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise ScheduleError(
            f"rank {rank}: {name} is missing{more}: every stage runs each microbatch forward and backward once",
            rank=rank,
            missing=name,
        )


def _missing_name(schedule: Schedule, positions: Positions, slot: int, stage: int, unit: int) -> str:
    if slot == slots.GRADIENT and (schedule.kind == Kind.I).any():
        return f"{stage}I{unit}"
    if slot == slots.WEIGHT and positions.of(slots.GRADIENT)[stage, unit] < 0:
        return f"{stage}B{unit}"
    return str(Action(kind=_NAMES[slot], stage=stage, unit=unit))


def _check_order(schedule: Schedule, positions: Positions) -> None:
    for before, after in _ORDER:
        if max(before, after) >= positions.slots:
            continue
        first, second = positions.of(before), positions.of(after)
        wrong = (first > second) & (second >= 0)
        if wrong.any():
            stage, unit = (int(axis[0]) for axis in np.nonzero(wrong))
            row, other = int(second[stage, unit]), int(first[stage, unit])
            rank = schedule.rank_at(row)
            raise ScheduleError(
                f"rank {rank}: {schedule.action(row)} comes before {schedule.action(other)}: swap them",
                rank=rank,
                position=row,
                action=str(schedule.action(row)),
                missing=str(schedule.action(other)),
            )


def _check_matched(schedule: Schedule, positions: Positions) -> None:
    """Every hop between ranks has both ends, and no message goes where no hop is."""
    placement = schedule.placement
    rank = placement.stage_rank.T[:, placement.unit_route]
    hop = np.zeros((placement.stages + 1, placement.units), dtype=bool)
    hop[1:-1] = (rank[1:] != rank[:-1]) & (rank[1:] >= 0) & (rank[:-1] >= 0)
    for slot, wanted in (
        (slots.SEND_F, hop[1:]), (slots.RECV_F, hop[:-1]), (slots.SEND_B, hop[:-1]), (slots.RECV_B, hop[1:]),
    ):  # fmt: skip
        there = positions.of(slot) >= 0
        wrong = wanted != there
        if not wrong.any():
            continue
        stage, unit = (int(axis[0]) for axis in np.nonzero(wrong))
        name = f"{stage}{_NAMES[slot].name}{unit}"
        at = int(rank[stage, unit])
        if there[stage, unit]:
            text = f"rank {at}: {name} has no peer: that stage's neighbour is on the same rank, or there is none"
            raise ScheduleError(text, rank=at, position=int(positions.of(slot)[stage, unit]), action=name)
        raise ScheduleError(
            f"rank {at}: {name} is missing: a table with messages needs both ends of every hop",
            rank=at,
            missing=name,
        )
