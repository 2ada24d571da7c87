"""What ranks issue, with forwards computed again that wait for what their backwards wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import GRADIENTS, Kind, KindSet
from pptrace.schedule.calls import in_calls
from pptrace.schedule.inserted import blocks_of
from pptrace.schedule.issue_order import with_messages, with_sends
from pptrace.sim.records import Pairs

if TYPE_CHECKING:
    from pptrace.model.cells import CellColumns
    from pptrace.model.columns import Int32s
    from pptrace.schedule.issue_order import IssueOrder
    from pptrace.schedule.policy import Policy
    from pptrace.schedule.table import Schedule

__all__ = ["issue", "waiting"]

_AGAIN = KindSet({Kind.RECOMPUTE})


def issue(schedule: Schedule, policy: Policy) -> IssueOrder:
    """Put messages in their places; forwards computed again that wait for gradients stand behind these.

    Raises:
        ScheduleError: no order of messages lets every action run.
    """
    waits = schedule.recompute_waits
    again = _AGAIN.mask(schedule.kind)
    table = schedule.selected(np.flatnonzero(~again)) if waits else schedule
    if policy.program is not None:
        issued = in_calls(table, policy.program, policy.label)
    else:
        issued = with_messages(table, policy.placing) if policy.has_receives else with_sends(table)
    return _put_back(issued, schedule.cells.taken(np.flatnonzero(again))) if waits else issued


def _put_back(issued: IssueOrder, again: CellColumns) -> IssueOrder:
    """Put forwards that are computed again right before their backwards, behind what these receive."""
    width = issued.placement.microbatches
    backward = np.flatnonzero(GRADIENTS.mask(issued.kind))
    row_of = np.full(issued.placement.stages * width, -1, dtype=np.int64)
    for offset in range(int(issued.span[backward].max(initial=0))):
        rows = backward[issued.span[backward] > offset]
        row_of[issued.stage[rows] * width + issued.microbatch[rows] + offset] = rows
    blocks = blocks_of(issued)
    backward = row_of[again.stage * width + again.microbatch]
    at = blocks.first[blocks.of_row[backward]]
    order = np.argsort(at, kind="stable")
    at, backward = at[order], backward[order]
    place = at + np.arange(at.size)
    source = np.insert(np.arange(len(issued)), at, backward)
    cells, edge = issued.cells.taken(source), issued.edge[source]
    cells.kind[place], cells.pair[place], edge[place] = Kind.RECOMPUTE, -1, -1
    begin = np.flatnonzero(~np.isin(np.arange(source.size), place))
    begin[backward] = place  # what a backward waits for, so does its forward
    rank = np.searchsorted(issued.row_ptr, at, side="right") - 1
    shift = np.cumsum([0, *np.bincount(rank, minlength=issued.row_ptr.size - 1)])
    calls = issued.calls and issued.calls.with_rows(source, begin)
    return replace(issued, row_ptr=issued.row_ptr + shift, edge=edge, calls=calls, **cells._asdict())


def waiting(edges: Pairs, cells: CellColumns, made_at: Int32s, stages: int) -> Pairs:
    """Return edges with those from what backwards wait for to the forwards computed again before them.

    Args:
        edges: all that no stream implies.
        cells: what each task is, by its place.
        made_at: where each stage makes each microbatch's activation, then its gradient.
        stages: how many stages there are.
    """
    microbatches = made_at.size // (2 * stages)
    again = np.flatnonzero(_AGAIN.mask(cells.kind))[::-1]  # of several segments, the first is written last
    first = np.full(max(int(made_at.max(initial=-1)), int(edges.target.max(initial=-1))) + 1, -1, dtype=np.int32)
    made = made_at.reshape(2, stages, microbatches)[1]
    for offset in range(int(cells.span[again].max(initial=0))):
        rows = again[cells.span[again] > offset]
        first[made[cells.stage[rows], cells.microbatch[rows] + offset]] = rows
    there = edges.target >= 0
    behind = np.where(there, first[np.where(there, edges.target, 0)], -1)
    more = np.flatnonzero(behind >= 0)
    return Pairs(np.concatenate([edges.source, edges.source[more]]), np.concatenate([edges.target, behind[more]]))
