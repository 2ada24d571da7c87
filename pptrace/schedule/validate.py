"""Hold a schedule to its laws: every action once and in place, in order, matched, and free of deadlock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.model.kinds import ORDER, Kind, Result
from pptrace.schedule.deadlock import explain_deadlock
from pptrace.schedule.index import Positions, Problem, index_schedule
from pptrace.schedule.kernels import tables
from pptrace.schedule.matched import check_copies, check_messages, check_stage_ends, check_waits
from pptrace.schedule.pairing import check_pairs
from pptrace.schedule.shape import check_shape
from pptrace.schedule.walk import walk

if TYPE_CHECKING:
    from pptrace.schedule.table import Schedule

__all__ = ["validate", "validate_partial", "validate_structure"]

_PASSES = {Result.ACTIVATION: Kind.F, Result.GRADIENT: Kind.B, Result.WEIGHT_GRADIENT: Kind.W}
"""What each stage of each microbatch has, by the kind that leaves it."""


def validate(schedule: Schedule) -> None:
    """Check a schedule wholly.

    Raises:
        ScheduleError: an action is out of range, on a wrong rank, there twice, missing, out of order
            in its row, or a message without its other end.
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
    check_shape(schedule)
    positions = index_schedule(schedule)
    if positions.problem is not None:
        raise _describe(schedule, positions.problem)
    _check_present(schedule, positions)
    _check_order(schedule, positions)
    check_pairs(schedule, positions)
    if schedule.has_communication:
        check_messages(schedule, positions)
    if positions.results > Result.OFFLOADED:
        check_copies(schedule, positions)
    check_stage_ends(schedule)
    check_waits(schedule)
    return positions


def validate_partial(schedule: Schedule) -> None:
    """Check a table of computations of which some may be missing: every action once, in place and in order.

    Raises:
        ScheduleError: an action is on a wrong rank, there twice, or out of order in its row.
    """
    positions = index_schedule(schedule)
    if positions.problem is not None:
        raise _describe(schedule, positions.problem)
    _check_order(schedule, positions)


def _describe(schedule: Schedule, problem: Problem) -> ScheduleError:
    row, rank = problem.row, schedule.rank_at(problem.row)
    action = schedule.action(row)
    where = f"rank {rank}, action {row - int(schedule.row_ptr[rank])} ({action})"
    if problem.code == tables.OUT_OF_STAGES:
        text = f"{where}: stage {action.stage} is out of range: stages are 0 to {schedule.stages - 1}"
    elif problem.code == tables.OUT_OF_MICROBATCHES:
        last = action.microbatch + action.span - 1
        text = f"{where}: microbatch {last} is out of range: they are 0 to {schedule.microbatches - 1}"
    elif problem.code == tables.TWICE:
        first = problem.other
        text = (
            f"{where}: does again what action {first - int(schedule.row_ptr[rank])} "
            f"({schedule.action(first)}) has done: remove one"
        )
    else:
        home = f"is on rank {problem.other}" if problem.other >= 0 else "is not on that microbatch's route"
        text = f"{where}: stage {action.stage} {home}: move the action there"
    return ScheduleError(text, rank=rank, position=row, action=str(action))


def _check_present(schedule: Schedule, positions: Positions) -> None:
    placement = schedule.placement
    wanted = placement.stage_rank.T[:, placement.microbatch_route] >= 0
    for result in list(_PASSES)[: positions.results]:
        missing = wanted & (positions.of(result) < 0)
        if not missing.any():
            continue
        stage, microbatch = (int(axis[0]) for axis in np.nonzero(missing))
        name = _missing_name(schedule, positions, result, stage, microbatch)
        rank = placement.rank_of(stage, microbatch)
        count = int(missing.sum())
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise ScheduleError(
            f"rank {rank}: {name} is missing{more}: every stage runs each microbatch forward and backward once",
            rank=rank,
            missing=name,
        )


def _missing_name(schedule: Schedule, positions: Positions, result: Result, stage: int, microbatch: int) -> str:
    if result is Result.GRADIENT:
        whole, half = ((schedule.kind == kind).any() for kind in (Kind.B, Kind.I))
        halved = positions.of(Result.WEIGHT_GRADIENT)[stage, microbatch] >= 0 or (half and not whole)
        return f"{stage}{'I' if halved else 'B'}{microbatch}"
    return f"{stage}{_PASSES[result].name}{microbatch}"


def _check_order(schedule: Schedule, positions: Positions) -> None:
    for before, after in ORDER:
        if max(before, after) >= positions.results:
            continue
        first, second = positions.of(before), positions.of(after)
        wrong = (first > second) & (second >= 0)
        if wrong.any():
            stage, microbatch = (int(axis[0]) for axis in np.nonzero(wrong))
            row, other = int(second[stage, microbatch]), int(first[stage, microbatch])
            rank = schedule.rank_at(row)
            raise ScheduleError(
                f"rank {rank}: {schedule.action(row)} comes before {schedule.action(other)}: swap them",
                rank=rank,
                position=row,
                action=str(schedule.action(row)),
                missing=str(schedule.action(other)),
            )
