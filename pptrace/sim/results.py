"""What waits for the results of actions in segments, and from when their messages may leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.cells import group_starts
from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import COMMUNICATION, COMPUTE, SENDS, Kind, Stream
from pptrace.schedule.policy import PolicyName
from pptrace.sim.pairs import STREAM

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.placement import Placement
    from pptrace.schedule.issue_order import IssueOrder
    from pptrace.schedule.policy import Policy
    from pptrace.sim.records import PartColumns

__all__ = ["behind_results", "is_early"]

_KEEPS_MESSAGES = {PolicyName.ASYNC, PolicyName.ORDERED}
"""Policies under which a message leaves when its own member of a pair is done, not when the whole pair is."""


def is_early(issued: IssueOrder) -> bool:
    """Return whether an action needs a result that its own rank computes later in its row."""
    cell, rows, cells = _cells(issued)
    made = np.full(2 * cells, -1, dtype=np.int64)
    made[cell] = rows
    before, behind = (made[side] for side in _on_own_rank(issued.placement))
    return bool(((before > behind) & (behind >= 0)).any())


def behind_results(
    issued: IssueOrder,
    columns: PartColumns,
    begin: NDArray[np.int64],
    results: NDArray[np.int64],
    policy: Policy,
) -> list[NDArray[np.int64]]:
    """Return what waits for an action's results where those are communication; let a pair's messages leave early.

    That is its message, what its own rank makes of it, and behind an action alone whatever its rank issues next.
    """
    placement = issued.placement
    stages, microbatches = placement.stages, placement.microbatches
    cell, rows, cells = _cells(issued)
    begins, makers = np.full(2 * cells, -1, dtype=np.int64), np.full(2 * cells, -1, dtype=np.int64)
    begins[cell], makers[cell] = begin[rows], rows
    before, behind = _on_own_rank(placement)
    computed = _last(issued, COMPUTE.mask(issued.kind))
    sends = np.flatnonzero(SENDS.mask(issued.kind))
    sent = ((issued.kind[sends] == Kind.SEND_B) * stages + issued.stage[sends]) * microbatches
    sent += issued.microbatch[sends]
    maker = makers[sent]
    if policy.name in _KEEPS_MESSAGES:
        early = (issued.pair[maker] >= 0) & (issued.pair[maker] == issued.pair[computed[sends]])
        _release(columns, results[:, maker[early]], begin[sends[early]])
    alone, later = _behind_alone(issued, results, policy, computed)
    found = []
    for result in results:
        ends = np.where(makers < 0, -1, result[makers])
        source = np.concatenate([ends[before], ends[sent], result[alone]])
        target = np.concatenate([begins[behind], begin[sends], begin[later]])
        kept = (source >= 0) & (target >= 0)
        kept &= columns.stream[source] != Stream.COMPUTE  # whose order says so
        found.append(np.stack([source, target])[:, kept])
    return found


def _cells(issued: IssueOrder) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the results that forwards and backwards make, by place, who makes each, and how many each way has."""
    stages, microbatches = issued.placement.stages, issued.placement.microbatches
    way = TABLE.feeds[issued.kind].astype(np.int64)
    rows = np.flatnonzero((way >= 0) & (issued.microbatch >= 0))
    rows = np.repeat(rows, issued.span[rows])
    ahead = np.arange(rows.size) - np.searchsorted(rows, rows)
    cell = (way[rows] * stages + issued.stage[rows]) * microbatches + issued.microbatch[rows] + ahead
    return cell, rows, stages * microbatches


def _release(columns: PartColumns, results: NDArray[np.int64], sends: NDArray[np.int64]) -> None:
    """Let messages leave behind the computations that their results follow, not behind the whole pair."""
    computes = (results >= 0) & (columns.stream[results] == Stream.COMPUTE)
    last = np.where(computes, results, STREAM).max(axis=0)
    own = (results >= 0).any(axis=0)
    columns.release[sends[own]] = last[own]


def _on_own_rank(placement: Placement) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the results of which the first is needed, on the same rank, for the second."""
    stages, microbatches = placement.stages, placement.microbatches
    held, microbatch = placement.stage_rank[placement.microbatch_route], np.arange(microbatches)
    cells = np.arange(stages * microbatches)
    before, behind = [cells], [stages * microbatches + cells]
    for low, high in placement.edges.tolist():
        here = microbatch[held[:, low] == held[:, high]]
        before += [low * microbatches + here, (stages + high) * microbatches + here]
        behind += [high * microbatches + here, (stages + low) * microbatches + here]
    return np.concatenate(before), np.concatenate(behind)


def _behind_alone(
    issued: IssueOrder, results: NDArray[np.int64], policy: Policy, computed: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return actions alone, and the rows that its rank issues behind each on any stream.

    What holds the compute stream comes behind whatever held it before, all else behind what was computed before.
    Each member of a pair comes behind what the whole pair comes behind.
    """
    follows = COMPUTE.mask(issued.kind) | (COMMUNICATION.mask(issued.kind) & policy.blocks)
    last = np.where(follows, _last(issued, follows), computed)
    starts = group_starts(issued.pair, issued.row_ptr)
    last = np.repeat(last[starts], np.diff(starts, append=len(issued)))
    single = (results[0] >= 0) & (issued.pair < 0)
    later = np.flatnonzero((last >= 0) & single[last])
    return last[later], later


def _last(issued: IssueOrder, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the last of some rows before each row of its rank, -1 where there is none."""
    last = np.full(len(issued), -1, dtype=np.int64)
    last[1:] = np.maximum.accumulate(np.where(rows, np.arange(len(issued)), -1))[:-1]
    first = np.repeat(issued.row_ptr[:-1], np.diff(issued.row_ptr))
    return np.where(last < first, -1, last)
