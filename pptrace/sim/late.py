"""What ranks issue, with forwards computed again that wait for what their backwards wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import COMPUTE, COPIES, GRADIENTS, Kind, KindSet
from pptrace.schedule.calls import in_calls
from pptrace.schedule.issue_order import with_messages, with_sends
from pptrace.sim.records import Pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.cells import CellColumns
    from pptrace.model.columns import Int32s
    from pptrace.schedule.issue_order import IssueOrder
    from pptrace.schedule.policy import Policy
    from pptrace.schedule.table import Schedule

__all__ = ["issue", "waiting"]

_AGAIN = KindSet({Kind.RECOMPUTE})
_BESIDE = KindSet({Kind.UNSHARD, Kind.RESHARD, *COPIES})


def issue(schedule: Schedule, policy: Policy, made_at: Int32s | None = None) -> IssueOrder:
    """Put messages in their places: none between a forward computed again and what follows it, where that matters.

    Where such forwards wait for gradients, or a program issues messages as if they were not there, they are put
    behind the messages; so are copies, and gathers and reductions within a row, which are beside all messages: a
    row has its messages where it would have them without these. Where results are made may be known:
    ``made_at``, of each activation, then of each gradient.

    Raises:
        ScheduleError: no order of messages lets every action run.
    """
    beside = _beside_messages(schedule)
    if beside.size:
        kept = np.setdiff1d(np.arange(len(schedule)), beside)
        issued = issue(schedule.selected(kept), policy)
        computed = np.searchsorted(kept[COMPUTE.mask(schedule.kind[kept])], beside)
        return _put_back(issued, schedule.cells.taken(beside), computed, waits=False)
    again = np.flatnonzero(_AGAIN.mask(schedule.kind))
    waits = schedule.recompute_waits
    if not again.size or not (waits or policy.program is not None):
        return _with_messages(schedule, policy, made_at)
    others = np.flatnonzero(~_AGAIN.mask(schedule.kind))
    issued = _with_messages(schedule.selected(others), policy)
    behind = np.searchsorted(others[COMPUTE.mask(schedule.kind[others])], again)
    return _put_back(issued, schedule.cells.taken(again), behind, waits=waits)


def _beside_messages(schedule: Schedule) -> NDArray[np.int64]:
    """Return copies, gathers, and reductions of single microbatches, where a computation of their rank follows."""
    kind = schedule.kind
    reduces = np.equal(kind, int(Kind.REDUCE_GRAD))  # a member itself would widen the column
    reduced = np.flatnonzero(reduces)
    cells = _ranks_of(schedule, reduced) * schedule.stages + schedule.stage[reduced]
    each = bool((np.diff(np.sort(cells)) == 0).any())  # without np.unique, which imports masked arrays
    there = _BESIDE.mask(kind) | (reduces & each)
    if schedule.has_communication or not there.any():
        return np.zeros(0, dtype=np.int64)
    computed = np.append(np.flatnonzero(COMPUTE.mask(kind)), len(schedule))
    rows = np.flatnonzero(there)
    behind = computed[np.searchsorted(computed, rows)]
    ends = schedule.row_ptr[1:][_ranks_of(schedule, rows)]
    return np.asarray(rows[behind < ends])


def _ranks_of(schedule: Schedule, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the ranks of some actions."""
    return np.searchsorted(schedule.row_ptr, rows, side="right") - 1


def _with_messages(schedule: Schedule, policy: Policy, made_at: Int32s | None = None) -> IssueOrder:
    if policy.program is not None:
        return in_calls(schedule, policy.program, policy.label, made_at)
    return with_messages(schedule, policy.placing) if policy.has_receives else with_sends(schedule)


def _put_back(issued: IssueOrder, again: CellColumns, behind: NDArray[np.integer], *, waits: bool) -> IssueOrder:
    """Put forwards that are computed again each before the computation that is the ``behind``-th of all."""
    at = np.flatnonzero(COMPUTE.mask(issued.kind))[behind]
    place = at + np.arange(at.size)
    row = np.insert(np.arange(len(issued)), at, at)
    cells, edge = issued.cells.taken(row), issued.edge[row]
    for column, values in zip(cells, again, strict=True):
        column[place] = values
    edge[place] = -1
    begin = np.flatnonzero(~np.isin(np.arange(row.size), place))
    if waits:  # what a backward waits for, so does its forward
        begin[_backwards(issued, again)] = place
    rank = np.searchsorted(issued.row_ptr, at, side="right") - 1
    shift = np.cumsum([0, *np.bincount(rank, minlength=issued.row_ptr.size - 1)])
    calls = None if issued.calls is None else issued.calls.with_rows(row, begin)
    return replace(issued, row_ptr=issued.row_ptr + shift, edge=edge, calls=calls, **cells._asdict())


def _backwards(issued: IssueOrder, again: CellColumns) -> NDArray[np.int64]:
    """Return the row of the backward of each forward that is computed again."""
    width = issued.placement.microbatches
    backward = np.flatnonzero(GRADIENTS.mask(issued.kind))
    row_of = np.full(issued.placement.stages * width, -1, dtype=np.int64)
    for offset in range(int(issued.span[backward].max(initial=0))):
        rows = backward[issued.span[backward] > offset]
        row_of[issued.stage[rows] * width + issued.microbatch[rows] + offset] = rows
    found: NDArray[np.int64] = row_of[again.stage * width + again.microbatch]
    return found


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
