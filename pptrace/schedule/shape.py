"""Check that a schedule's columns fit each other and its placement, before anything is looked up in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.model.cells import CELL
from pptrace.model.columns import distinct_rows
from pptrace.model.kinds import Kind

if TYPE_CHECKING:
    from pptrace.model.placement import Placement
    from pptrace.schedule.table import Schedule

__all__ = ["check_shape"]

MOST_ACTIONS = 2**28
"""So many, with their messages and what they wait for, are counted with 32 bits."""


def check_shape(schedule: Schedule) -> None:
    """Check lengths and ranges of columns, and that every stage is somewhere.

    Raises:
        ScheduleError: what does not fit; a plugin that builds columns itself may get here.
    """
    placement = schedule.placement
    if schedule.ranks != placement.ranks:
        raise ScheduleError(f"the table has {schedule.ranks} rows for {placement.ranks} ranks: one row a rank")
    if not len(schedule):
        raise ScheduleError("the table is empty: write one row of actions per rank")
    _check_columns(schedule)
    _check_placement(placement)
    _check_spans(schedule)


def _check_columns(schedule: Schedule) -> None:
    rows, ptr = len(schedule), schedule.row_ptr
    cells = schedule.stages * schedule.microbatches
    if max(rows, cells) > MOST_ACTIONS:
        raise ScheduleError(
            f"{rows} actions on {schedule.stages} stages x {schedule.microbatches} microbatches: "
            f"at most {MOST_ACTIONS} are simulated"
        )
    for name in CELL[1:]:
        if getattr(schedule, name).size != rows:
            raise ScheduleError(
                f"column {name} has {getattr(schedule, name).size} values for {rows} actions: one each"
            )
    if ptr[0] != 0 or ptr[-1] != rows or (np.diff(ptr) < 0).any():
        raise ScheduleError(f"row_ptr must rise from 0 to the number of actions ({rows}), one range a rank")
    if schedule.kind.min() < 0 or schedule.kind.max() >= len(Kind):
        raise ScheduleError(f"column kind holds numbers that are no kind: they are 0 to {len(Kind) - 1}")
    if schedule.span.min() < 1:
        row = int(np.argmax(schedule.span < 1))
        raise _at(schedule, row, f"a span is at least 1, not {int(schedule.span[row])}")


def _check_placement(placement: Placement) -> None:
    held, route = placement.stage_rank, placement.microbatch_route
    if held.size and (held.min() < -1 or held.max() >= placement.ranks):
        raise ScheduleError(f"the placement names ranks beyond its {placement.ranks}: they count from 0")
    if route.size and (route.min() < 0 or route.max() >= placement.routes):
        raise ScheduleError(f"the placement names routes beyond its {placement.routes}: they count from 0")
    if placement.edge_fault:
        raise ScheduleError(f"the placement's {placement.edge_fault}")
    nowhere = np.flatnonzero((held < 0).all(axis=0))
    if nowhere.size:
        stage = int(nowhere[0])
        raise ScheduleError(
            f"stage {stage} has no actions on any rank: stages are numbered from 0 without gaps",
            missing=f"{stage}F0",
        )


def _check_spans(schedule: Schedule) -> None:
    """All microbatches of a span take one route, for they travel as one message."""
    placement = schedule.placement
    wide = np.flatnonzero((schedule.span > 1) & (schedule.microbatch >= 0))
    if not wide.size or placement.routes == 1:
        return
    _, alike = distinct_rows(placement.stage_rank)
    route = alike[placement.microbatch_route]
    changes = np.concatenate([[0], np.cumsum(route[1:] != route[:-1])])
    first = schedule.microbatch[wide].astype(np.int64)
    last = np.minimum(first + schedule.span[wide], placement.microbatches) - 1
    split = wide[changes[np.minimum(first, last)] != changes[last]]
    if split.size:
        raise _at(schedule, int(split[0]), "its microbatches take different routes: write one action for each")


def _at(schedule: Schedule, row: int, text: str) -> ScheduleError:
    rank, action = schedule.rank_at(row), str(schedule.action(row))
    return ScheduleError(f"rank {rank}: {action}: {text}", rank=rank, position=row, action=action)
