"""A timeline's actions as single rows: the waits for their own groups inside them, their segments folded."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.model.kinds import Stream
from pptrace.timeline.actions import Actions, actions_in_parts, in_group, segment_rows
from pptrace.timeline.timeline import ROW_COLUMNS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = ["OwnWaits", "folded", "with_own_waits"]


class OwnWaits(NamedTuple):
    """Rows' times where waits for own groups, which nothing hides, belong to the computation that waits."""

    start_ns: Int64s
    end_ns: Int64s
    collective_ns: Int64s


def with_own_waits(timeline: Timeline) -> OwnWaits:
    """Return the rows' times as they are where every action is one row: its waits for its own groups inside it."""
    start, end, collective = timeline.start_ns, timeline.end_ns, timeline.collective_ns
    if timeline.parts is None:
        return OwnWaits(start, end, collective)
    start, end, collective = start.copy(), end.copy(), collective.copy()
    own, follows = in_group(timeline), _follows(timeline)
    _fill_actions_alone(timeline, own, start, end)
    cause = timeline.cause
    waits = follows & (timeline.pair[1:] >= 0)
    waits &= (timeline.parts.number[1:] > 0) | ((cause[1:] >= 0) & own[cause[1:]])
    start[1:] -= np.where(waits, np.maximum(start[1:] - end[:-1], 0), 0)
    collective += timeline.start_ns - start + end - timeline.end_ns
    return OwnWaits(start, end, collective)


def _fill_actions_alone(timeline: Timeline, own: NDArray[np.bool_], start: Int64s, end: Int64s) -> None:
    """Let the computations of each action alone take all of its time."""
    actions, (rows, action) = actions_in_parts(timeline), segment_rows(timeline)
    computes = ~own[rows] & (timeline.pair[rows] < 0)
    rows, action = rows[computes], action[computes]
    leads = np.diff(action, prepend=-1) != 0  # an action's computations follow one another on their lane
    ends = np.diff(action, append=-1) != 0
    start[rows[leads]], end[rows[ends]] = actions.start_ns[action[leads]], actions.end_ns[action[ends]]
    start[rows[~leads]] = end[rows[~leads] - 1]


def _follows(timeline: Timeline) -> NDArray[np.bool_]:
    """Return, for each row but the first, whether it follows the row before it on a compute stream."""
    lane = timeline.lane_of_row()
    found: NDArray[np.bool_] = (lane[1:] == lane[:-1]) & (timeline.lane_stream[lane[1:]] == Stream.COMPUTE)
    return found


def folded(timeline: Timeline) -> Timeline:
    """Return a timeline with one row per action, as profilers record them.

    The members of an overlapped pair share the time from its first computation to its last, one after the other,
    in proportion to what they computed. What is not in parts stays as it is.
    """
    if timeline.parts is None:
        return timeline
    actions, (segments, action) = actions_in_parts(timeline), segment_rows(timeline)
    first, computes = np.empty(len(actions), dtype=np.int64), ~in_group(timeline)[segments]
    first[action[computes][::-1]] = segments[computes][::-1]
    keeps = timeline.parts.number < 0
    keeps[first] = True
    rows = np.flatnonzero(keeps)
    renumbered = np.full(len(timeline) + 1, -1, dtype=np.int32)
    renumbered[rows] = np.arange(rows.size, dtype=np.int32)
    renumbered[segments] = renumbered[first[action]]
    columns = {name: getattr(timeline, name).copy() for name in ROW_COLUMNS}
    columns["start_ns"][first], columns["end_ns"][first] = _shared(timeline, actions)
    took = columns["end_ns"] - columns["start_ns"]
    columns["uncontended_ns"][first] = took[first]
    columns["collective_ns"][first] = np.minimum(actions.exposed_ns, took[first])
    columns["enter_ns"] = np.minimum(columns["enter_ns"], columns["start_ns"])
    columns["cause"] = renumbered[columns["cause"]]
    columns = {name: values[rows] for name, values in columns.items()}
    columns["cause"][columns["cause"] == np.arange(rows.size)] = -1
    lanes, counts = np.unique(timeline.lane_of_row()[rows], return_counts=True)
    return replace(
        timeline, parts=None, lane_rank=timeline.lane_rank[lanes], lane_stream=timeline.lane_stream[lanes],
        lane_peer=timeline.lane_peer[lanes], lane_ptr=np.concatenate([[0], np.cumsum(counts)]),
        routes=None if timeline.routes is None else timeline.routes.of_rows(rows), **columns,
    )  # fmt: skip


def _shared(timeline: Timeline, actions: Actions) -> tuple[Int64s, Int64s]:
    """Return each action's start and end on its compute stream, where members of a pair come one after another."""
    times, (rows, action) = with_own_waits(timeline), segment_rows(timeline)
    computes = ~in_group(timeline)[rows]
    rows, action = rows[computes], action[computes]
    start, end = np.full(len(actions), np.iinfo(np.int64).max), np.zeros(len(actions), dtype=np.int64)
    np.minimum.at(start, action, times.start_ns[rows])
    np.maximum.at(end, action, times.end_ns[rows])
    order = np.lexsort((actions.first, actions.pair))
    order = order[actions.pair[order] >= 0]
    if not order.size:
        return start, end
    _, begins, pair = np.unique(actions.pair[order], return_index=True, return_inverse=True)
    low, high = np.minimum.reduceat(start[order], begins), np.maximum.reduceat(end[order], begins)
    busy = np.maximum(actions.busy_ns[order], 1)
    done = np.cumsum(busy)
    ahead = done - (done[begins] - busy[begins])[pair]
    until = low[pair] + (high - low)[pair] * ahead // np.add.reduceat(busy, begins)[pair]
    leads = np.zeros(order.size, dtype=bool)
    leads[begins] = True
    start[order], end[order] = np.where(leads, low[pair], np.roll(until, 1)), until
    return start, end
