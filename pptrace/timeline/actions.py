"""Actions that consist of segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from pptrace.steps.actions import Cells
from pptrace.steps.kinds import TABLE, Stream
from pptrace.timeline.kernels import rows as kernels
from pptrace_kernel import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline


class Actions(Cells, frozen=True, kw_only=True):
    """Actions that consist of segments, one entry per action, in the order of their first rows."""

    rank: Int32s
    """The rank."""
    first: Int32s
    """The row of its first segment."""
    start_ns: Int64s
    """Start of its first segment."""
    end_ns: Int64s
    """End of its last segment."""
    busy_ns: Int64s
    """Computation time."""
    hidden_ns: Int64s
    """Communication time within the rank's groups that overlaps with computation of the rank."""
    exposed_ns: Int64s
    """Communication time that does not overlap with computation of the rank."""


class GroupTime(NamedTuple):
    """Communication on one kind of stream; arrays have shape (ranks,)."""

    stream: Stream
    """The stream of the data-parallel group, or of a group whose communication is inside actions."""
    total_ns: Int64s
    """Busy time of the stream."""
    hidden_ns: Int64s
    """The part of the busy time in which the rank computed."""

    @property
    def name(self) -> str:
        """The group's name, such as ``tensor-parallel``."""
        return self.stream.name.lower().replace("_", "-")

    @property
    def hidden(self) -> float:
        """Share of all ranks' communication that computation hid; 0 where there was none."""
        total = int(self.total_ns.sum())
        return int(self.hidden_ns.sum()) / total if total else 0.0


def communication(groups: Sequence[GroupTime]) -> dict[str, dict[str, Any]]:
    """Return all ranks' communication by group, as plain JSON values.

    >>> total_ns, hidden_ns = np.array([3, 1]), np.array([2, 1])
    >>> communication([GroupTime(stream=Stream.TENSOR_PARALLEL, total_ns=total_ns, hidden_ns=hidden_ns)])
    {'tensor-parallel': {'total_ns': 4, 'hidden_ns': 3, 'hidden': 0.75}}
    """
    return {
        group.name: {
            "total_ns": int(group.total_ns.sum()), "hidden_ns": int(group.hidden_ns.sum()), "hidden": group.hidden,
        }
        for group in groups
    }  # fmt: skip


def in_group(timeline: Timeline) -> NDArray[np.bool_]:
    """Return which rows are communication inside actions."""
    return np.repeat(timeline.lane_stream >= Stream.TENSOR_PARALLEL, np.diff(timeline.lane_ptr))


_GROUPS = (Stream.DATA_PARALLEL, Stream.TENSOR_PARALLEL, Stream.EXPERT_PARALLEL, Stream.CONTEXT_PARALLEL)


def group_times(timeline: Timeline) -> tuple[GroupTime, ...]:
    """Return the total and hidden communication time of each group, in the order of streams."""
    lanes, total, hidden = _hidden_time(timeline, np.zeros(0, dtype=np.int64))
    stream, rank = timeline.lane_stream[lanes], timeline.lane_rank[lanes]
    times = []
    for group in _GROUPS:
        chosen = stream == group
        if chosen.any():
            sums = np.zeros((2, timeline.ranks), dtype=np.int64)
            for of_ranks, of_lanes in zip(sums, (total, hidden), strict=True):
                np.add.at(of_ranks, rank[chosen], of_lanes[chosen])
            times.append(GroupTime(stream=group, total_ns=sums[0], hidden_ns=sums[1]))
    return tuple(times)


def _hidden_time(timeline: Timeline, hidden_ns: Int64s) -> tuple[NDArray[np.intp], Int64s, Int64s]:
    """Return the lanes of groups, their busy time, and the part of it in which the rank computed.

    Fill in ``hidden_ns`` of their rows, unless it is empty.
    """
    stream = timeline.lane_stream
    lanes = np.flatnonzero(np.isin(stream, _GROUPS))
    compute = np.flatnonzero(stream == Stream.COMPUTE)
    of_rank = np.full(timeline.ranks, -1, dtype=np.int32)
    of_rank[timeline.lane_rank[compute]] = compute
    # Waits inside actions have no rows, unless actions consist of segments.
    excludes_waits = (stream[lanes] >= Stream.TENSOR_PARALLEL) & (timeline.parts is None)
    rows = kernels.Computations(timeline.kind, timeline.start_ns, timeline.end_ns, timeline.collective_ns)
    total, hidden = np.zeros((2, lanes.size), dtype=np.int64)
    run(
        kernels.sum_hidden_time,
        (
            lanes.astype(np.int32), of_rank[timeline.lane_rank[lanes]], excludes_waits.astype(np.int8),
            timeline.lane_ptr, rows, TABLE,
        ),
        (total, hidden, hidden_ns),
        work=len(timeline) if lanes.size else 0,
    )  # fmt: skip
    return lanes, total, hidden


def actions_in_parts(timeline: Timeline) -> Actions:
    """Return the actions of a timeline that consist of segments."""
    rows, action = segment_rows(timeline)
    count = int(action.max(initial=-1)) + 1
    first = np.zeros(count, dtype=np.int32)
    first[action[::-1]] = rows[::-1]
    start, end = _extents(action, count, timeline.start_ns[rows], timeline.end_ns[rows])
    hidden_ns = np.zeros(len(timeline), dtype=np.int64)
    _hidden_time(timeline, hidden_ns)
    duration_ns = timeline.end_ns[rows] - timeline.start_ns[rows]
    hidden_ns, grouped = hidden_ns[rows], in_group(timeline)[rows]
    terms = duration_ns * ~grouped, hidden_ns * grouped, (duration_ns - hidden_ns) * grouped
    sums = np.zeros((3, count), dtype=np.int64)
    for total, values in zip(sums, terms, strict=True):
        np.add.at(total, action, values)
    return Actions(
        **timeline.cells.taken(first)._asdict(), rank=timeline.rank_of_row()[first], first=first,
        start_ns=start, end_ns=end, busy_ns=sums[0], hidden_ns=sums[1], exposed_ns=sums[2],
    )  # fmt: skip


def _extents(action: Int64s, count: int, start_ns: Int64s, end_ns: Int64s) -> tuple[Int64s, Int64s]:
    """Return the start of each action's first segment and the end of its last segment."""
    start, end = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(start, action, start_ns)
    np.maximum.at(end, action, end_ns)
    return start, end


def segment_rows(timeline: Timeline, among: Int64s | None = None) -> tuple[Int64s, Int64s]:
    """Return the rows that are segments, and the index of each segment's action in the order of first rows.

    Args:
        timeline: the timeline.
        among: all rows of some ranks, in ascending order; None for all ranks.
    """
    if timeline.parts is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    among = np.arange(len(timeline)) if among is None else among
    rows = among[timeline.parts.number[among] >= 0]
    stages, microbatches = timeline.placement.stages, timeline.placement.microbatches + 1
    cell = timeline.kind[rows].astype(np.int64) * stages + timeline.stage[rows]
    key, index = cell * microbatches + timeline.microbatch[rows] + 1, np.arange(rows.size)
    first_of_key = np.empty(int(key.max(initial=-1)) + 1, dtype=np.int64)
    first_of_key[key[::-1]] = index[::-1]
    first = first_of_key[key]
    action: Int64s = (np.cumsum(first == index) - 1)[first]
    return rows, action


def last_segments(timeline: Timeline, among: Int64s | None = None) -> Int32s:
    """Return, for each row, the row of its action's segment that ends last; an extra last value is -1.

    With ``among``, as in :func:`segment_rows`, rows of other ranks have their own number.
    """
    return _ends_of_actions(timeline, timeline.end_ns, among, last=True)


def first_segments(timeline: Timeline) -> Int32s:
    """Return, for each row, the row of its action's first segment; an extra last value is -1."""
    number = timeline.kind if timeline.parts is None else timeline.parts.number
    return _ends_of_actions(timeline, number, last=False)


def _ends_of_actions(
    timeline: Timeline, key: NDArray[np.integer], among: Int64s | None = None, *, last: bool
) -> Int32s:
    """Return, for each row, the row with the first or last key among its action's segments, then -1."""
    ends = np.append(np.arange(len(timeline), dtype=np.int32), np.int32(-1))
    rows, action = segment_rows(timeline, among)
    if rows.size:
        # Of the rows with an action's first or last key, the assignment keeps the last one, or the first one.
        step = 1 if last else -1
        keys = key[rows].astype(np.int64) * step
        best = np.full(int(action.max()) + 1, np.iinfo(np.int64).min)
        np.maximum.at(best, action, keys)
        chosen = np.flatnonzero(keys == best[action])[::step]
        row_of_action = np.empty(best.size, dtype=np.int32)
        row_of_action[action[chosen]] = rows[chosen]
        ends[rows] = row_of_action[action]
    return ends


class GroupWaits(NamedTuple):
    """Times of rows where non-overlapped waits for the rank's groups are part of the waiting computation."""

    start_ns: Int64s
    end_ns: Int64s
    collective_ns: Int64s


def include_group_waits(timeline: Timeline) -> GroupWaits:
    """Return the rows' times with waits for the rank's groups inside the computation, as without segments."""
    start, end, collective = timeline.start_ns, timeline.end_ns, timeline.collective_ns
    if timeline.parts is None:
        return GroupWaits(start, end, collective)
    start, end, collective = start.copy(), end.copy(), collective.copy()
    grouped, lane, cause = in_group(timeline), timeline.lane_of_row(), timeline.cause
    _fill_unpaired_actions(timeline, grouped, start, end)
    waits = (lane[1:] == lane[:-1]) & (timeline.lane_stream[lane[1:]] == Stream.COMPUTE) & (timeline.pair[1:] >= 0)
    waits &= (timeline.parts.number[1:] > 0) | ((cause[1:] >= 0) & grouped[cause[1:]])
    start[1:] -= np.where(waits, np.maximum(start[1:] - end[:-1], 0), 0)
    collective += timeline.start_ns - start + end - timeline.end_ns
    return GroupWaits(start, end, collective)


def _fill_unpaired_actions(timeline: Timeline, grouped: NDArray[np.bool_], start: Int64s, end: Int64s) -> None:
    """Extend the computations of each action outside overlapped pairs to the action's full time."""
    actions, (rows, action) = actions_in_parts(timeline), segment_rows(timeline)
    computes = ~grouped[rows] & (timeline.pair[rows] < 0)
    rows, action = rows[computes], action[computes]
    leads = np.diff(action, prepend=-1) != 0  # an action's computations are consecutive on their lane
    ends = np.diff(action, append=-1) != 0
    start[rows[leads]], end[rows[ends]] = actions.start_ns[action[leads]], actions.end_ns[action[ends]]
    start[rows[~leads]] = end[rows[~leads] - 1]


def folded(timeline: Timeline) -> Timeline:
    """Return a timeline with one row per action, as profilers record them.

    The members of an overlapped pair become consecutive. They share the time from the pair's first computation to
    its last in proportion to their computation time. Actions without segments do not change.
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
    start, end = timeline.start_ns.copy(), timeline.end_ns.copy()
    uncontended, collective = timeline.uncontended_ns.copy(), timeline.collective_ns.copy()
    start[first], end[first] = _serialize_pairs(timeline, actions)
    uncontended[first] = end[first] - start[first]
    collective[first] = np.minimum(actions.exposed_ns, uncontended[first])
    kept = replace(
        timeline, parts=None, enter_ns=np.minimum(timeline.enter_ns, start), start_ns=start, end_ns=end,
        uncontended_ns=uncontended, collective_ns=collective,
    ).of_rows(rows)  # fmt: skip
    cause = renumbered[kept.cause]
    cause[cause == np.arange(rows.size)] = -1
    return replace(kept, cause=cause)


def _serialize_pairs(timeline: Timeline, actions: Actions) -> tuple[Int64s, Int64s]:
    """Return each action's start and end on its compute stream, with members of a pair one after the other."""
    times, (rows, action) = include_group_waits(timeline), segment_rows(timeline)
    computes = ~in_group(timeline)[rows]
    rows, action = rows[computes], action[computes]
    start, end = _extents(action, len(actions), times.start_ns[rows], times.end_ns[rows])
    order = np.lexsort((actions.first, actions.pair))
    order = order[actions.pair[order] >= 0]
    if not order.size:
        return start, end
    _, begins, pair = np.unique(actions.pair[order], return_index=True, return_inverse=True)
    low, high = np.minimum.reduceat(start[order], begins), np.maximum.reduceat(end[order], begins)
    busy = np.maximum(actions.busy_ns[order], 1)
    total = np.cumsum(busy)
    busy_until = total - (total[begins] - busy[begins])[pair]
    member_end = low[pair] + (high - low)[pair] * busy_until // np.add.reduceat(busy, begins)[pair]
    leads = np.zeros(order.size, dtype=bool)
    leads[begins] = True
    start[order], end[order] = np.where(leads, low[pair], np.roll(member_end, 1)), member_end
    return start, end
