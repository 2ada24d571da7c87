"""Actions of a timeline whose rows are segments: their own starts and ends, and what is hidden of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pptrace.model.cells import Cells
from pptrace.model.kinds import COMPUTE, Stream
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = [
    "Actions", "Clock", "GroupTime", "actions_in_parts", "communication", "group_times", "in_group",
    "last_segments", "segment_rows",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Actions(Cells):
    """Actions that consist of segments, one value each, in the order of their first rows."""

    rank: Int32s
    """The rank."""
    first: Int32s
    """The row of its first segment."""
    start_ns: Int64s
    """When the first of its segments started."""
    end_ns: Int64s
    """When the last of them ended."""
    busy_ns: Int64s
    """Time in which it computed."""
    hidden_ns: Int64s
    """Time in which it communicated within its rank's groups and its rank computed."""
    exposed_ns: Int64s
    """Time in which it communicated and its rank did not compute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTime:
    """Communication on one sort of stream; arrays have shape (ranks,)."""

    stream: Stream
    """The stream: of the data-parallel group, or of one whose communication is inside actions."""
    total_ns: Int64s
    """Time in which it was busy."""
    hidden_ns: Int64s
    """The part in which the rank computed."""

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

    >>> took = np.array([3, 1]), np.array([2, 1])
    >>> communication([GroupTime(stream=Stream.TENSOR_PARALLEL, total_ns=took[0], hidden_ns=took[1])])
    {'tensor-parallel': {'total_ns': 4, 'hidden_ns': 3, 'hidden': 0.75}}
    """
    return {
        one.name: {
            "total_ns": int(one.total_ns.sum()), "hidden_ns": int(one.hidden_ns.sum()), "hidden": one.hidden,
        }
        for one in groups
    }  # fmt: skip


def in_group(timeline: Timeline) -> NDArray[np.bool_]:
    """Return which rows are communication inside actions."""
    lane = np.array([Stream(stream).is_group for stream in timeline.lane_stream.tolist()], dtype=bool)
    return np.repeat(lane, np.diff(timeline.lane_ptr))


_GROUPS = (Stream.DATA_PARALLEL, Stream.TENSOR_PARALLEL, Stream.EXPERT_PARALLEL, Stream.CONTEXT_PARALLEL)


def group_times(timeline: Timeline) -> tuple[GroupTime, ...]:
    """Return what each group's communication took and how much of it was hidden, in the order of streams."""
    sums = {group: np.zeros((2, timeline.ranks), dtype=np.int64) for group in _GROUPS}
    for lane, rows, hidden in _beside_computation(timeline):
        took = timeline.end_ns[rows] - timeline.start_ns[rows]
        sums[Stream(int(timeline.lane_stream[lane]))][:, timeline.lane_rank[lane]] += took.sum(), hidden.sum()
    present = set(timeline.lane_stream.tolist())
    return tuple(
        GroupTime(stream=group, total_ns=total, hidden_ns=inside)
        for group, (total, inside) in sums.items()
        if group in present
    )


def _beside_computation(timeline: Timeline) -> Iterator[tuple[int, slice, Int64s]]:
    """Yield the lanes of groups, each with its rows and how long their rank computed during each of them."""
    computing = {int(rank): lane for lane, rank in enumerate(timeline.lane_rank.tolist())
                 if timeline.lane_stream[lane] == Stream.COMPUTE}  # fmt: skip
    for lane in np.flatnonzero(np.isin(timeline.lane_stream, _GROUPS)).tolist():
        rows = slice(*timeline.lane_ptr[lane : lane + 2].tolist())
        rank = int(timeline.lane_rank[lane])
        hidden = np.zeros(rows.stop - rows.start, dtype=np.int64)
        if rank in computing:
            inside = timeline.parts is None and Stream(int(timeline.lane_stream[lane])).is_group
            clock = Clock.of(timeline, computing[rank], waits_first=inside)
            hidden = clock.at(timeline.end_ns[rows]) - clock.at(timeline.start_ns[rows])
        yield lane, rows, hidden


def _hidden(timeline: Timeline) -> Int64s:
    """Return, for rows off the compute stream, how long their rank computed meanwhile; 0 for others."""
    hidden = np.zeros(len(timeline), dtype=np.int64)
    for _, rows, own in _beside_computation(timeline):
        hidden[rows] = own
    return hidden


class Clock(NamedTuple):
    """How long a rank has computed by any time."""

    start: Int64s
    """When each of its computations starts."""
    end: Int64s
    """When each ends."""
    before: Int64s
    """Shape (computations + 1,): time computed before each, and in all."""

    @classmethod
    def of(cls, timeline: Timeline, lane: int, *, waits_first: bool = False) -> Clock:
        """Return the clock of a compute stream's lane.

        With ``waits_first``, computations begin with their waits for their own group, which do not count.
        """
        rows = np.arange(*timeline.lane_ptr[lane : lane + 2].tolist())
        rows = rows[COMPUTE.mask(timeline.kind[rows])]
        start, end = timeline.start_ns[rows], timeline.end_ns[rows]
        if waits_first:
            start = start + timeline.collective_ns[rows]
        return cls(start, end, np.concatenate([[0], np.cumsum(end - start)]))

    def at(self, now: Int64s) -> Int64s:
        """Return the time computed by each of some times."""
        done = np.searchsorted(self.end, now, side="right")
        if not self.start.size:
            return np.zeros_like(now)
        running = np.minimum(done, self.start.size - 1)
        part = np.where(done < self.start.size, np.clip(now - self.start[running], 0, None), 0)
        found: Int64s = self.before[done] + part
        return found


def actions_in_parts(timeline: Timeline) -> Actions:
    """Return the actions of a timeline that consist of segments; none where every row is a whole action."""
    rows, action = segment_rows(timeline)
    count = int(action.max(initial=-1)) + 1
    first = np.zeros(count, dtype=np.int32)
    first[action[::-1]] = rows[::-1]
    start, end = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(start, action, timeline.start_ns[rows])
    np.maximum.at(end, action, timeline.end_ns[rows])
    took, hidden, own = (
        timeline.end_ns[rows] - timeline.start_ns[rows],
        _hidden(timeline)[rows],
        in_group(timeline)[rows],
    )
    sums = np.zeros((3, count), dtype=np.int64)
    for total, values in zip(sums, (took * ~own, hidden * own, (took - hidden) * own), strict=True):
        np.add.at(total, action, values)
    return Actions(
        **timeline.cells.taken(first)._asdict(), rank=timeline.rank_of_row()[first], first=first,
        start_ns=start, end_ns=end, busy_ns=sums[0], hidden_ns=sums[1], exposed_ns=sums[2],
    )  # fmt: skip


def segment_rows(timeline: Timeline) -> tuple[Int64s, Int64s]:
    """Return the rows that are segments, and the number of each one's action, in the order of first rows."""
    if timeline.parts is None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    rows = np.flatnonzero(timeline.parts.number >= 0)
    stages, microbatches = timeline.placement.stages, timeline.placement.microbatches + 1
    cell = timeline.kind[rows].astype(np.int64) * stages + timeline.stage[rows]
    key = cell * microbatches + timeline.microbatch[rows] + 1
    _, first, action = np.unique(key, return_index=True, return_inverse=True)
    turn = np.empty(first.size, dtype=np.int64)
    turn[np.argsort(first)] = np.arange(first.size)
    return rows, turn[action]


def last_segments(timeline: Timeline) -> Int32s:
    """Return, for each row, the row of its action's segment that ends last; behind them all -1."""
    last = np.append(np.arange(len(timeline), dtype=np.int32), np.int32(-1))
    rows, action = segment_rows(timeline)
    if rows.size:
        order = np.lexsort((rows, timeline.end_ns[rows], action))
        ends = order[np.flatnonzero(np.diff(action[order], append=-1))]
        last[rows] = rows[ends][action]
    return last
