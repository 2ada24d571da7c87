"""The timeline of a step in columns."""

from __future__ import annotations

from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.steps.actions import CELL, Cells
from pptrace.steps.columns import Columns, ComparedColumns, Int8s, Int32s, Int64s, difference, ranges
from pptrace.steps.kinds import Stream

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from pptrace.steps.actions import Action
    from pptrace.steps.placement import Placement


class Counter(ComparedColumns, frozen=True, kw_only=True, eq=False):
    """A step function: from ``at_ns[i]`` on, the value is ``value[i]``."""

    rank: int
    """The rank of the counter; -1 for a counter of the cluster, such as the use of a shared link."""
    name: str
    """Such as ``memory``, or the name of a link, such as ``leaf0>spine2``."""
    unit: str
    """Such as ``bytes``."""
    at_ns: Int64s
    """Strictly increasing times."""
    value: Int64s
    """The value from each time on."""


class Parts(Columns, frozen=True, kw_only=True):
    """Segments of rows, one value per row; -1 for messages and for actions without segments."""

    number: Int32s
    """Index of the segment in its action, from 0."""
    name: Int32s
    """Index of its name in :attr:`names`."""
    names: tuple[str, ...]
    """Names of segments."""

    def of_rows(self, rows: NDArray[np.integer]) -> Self:
        """Return the parts of the given rows, in their order; name indices do not change."""
        return replace(self, number=self.number[rows], name=self.name[rows])

    def name_of(self, row: int) -> str:
        """Return the name of a row's segment, ``""`` for none."""
        name = int(self.name[row])
        return self.names[name] if name >= 0 else ""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Parts):
            return NotImplemented
        names, other_names = (np.array([*parts.names, ""], dtype=object)[parts.name] for parts in (self, other))
        return np.array_equal(self.number, other.number) and np.array_equal(names, other_names)

    __hash__ = None  # type: ignore[assignment] # arrays inside: equal by value, not hashable


LOADS_KEY = "expert_load"
"""Key of a provenance with the loads of experts, as in ``Workload.expert_load``."""


class Routes(ComparedColumns, frozen=True, kw_only=True, eq=False):
    """Links by name, and the links of each row in columns.

    A message with several flows has the links of its first flow, from source to target.
    """

    name: tuple[str, ...]
    """Name of each link."""
    rate_kbps: Int64s
    """Capacity of each link in kB/s."""
    ptr: Int32s
    """Shape (rows + 1,): row ``r`` of the timeline uses ``link[ptr[r]:ptr[r + 1]]``; empty unless a message."""
    link: Int32s
    """Links, in order along each route."""

    def of_rows(self, rows: NDArray[np.integer]) -> Self:
        """Return the routes of the given rows, in their order; link indices do not change."""
        length = np.diff(self.ptr)[rows]
        ptr = np.concatenate([[0], np.cumsum(length)])
        return replace(self, ptr=ptr, link=self.link[ranges(self.ptr[:-1][rows], length)])

    def of_links(self, names: AbstractSet[str]) -> Self:
        """Return the same routes with the links in ``names`` and the links in use only, in the same order."""
        kept = np.fromiter((name in names for name in self.name), dtype=bool, count=len(self.name))
        kept[self.link] = True
        number = np.cumsum(kept) - 1
        return replace(
            self,
            name=tuple(self.name[link] for link in np.flatnonzero(kept).tolist()),
            rate_kbps=self.rate_kbps[kept],
            link=number[self.link],
        )


class OnPath(Struct, frozen=True, kw_only=True, eq=False):
    """Consecutive parts of the critical path; together they fill the step's window."""

    row: Int32s
    """Shape (parts,): the row of the timeline of each part."""
    part: Int8s
    """Whether the part is the slice or follows it: an index into :data:`PATH_PARTS`."""
    start_ns: Int64s
    """Start of the part."""
    end_ns: Int64s
    """End of the part, after its start."""

    def __len__(self) -> int:
        return int(self.row.size)


class Waits(Struct, frozen=True, kw_only=True, eq=False):
    """Intervals in which ranks idled, by rank and time; columns of shape (waits,)."""

    rank: Int32s
    """The rank that idled."""
    cause: Int8s
    """The cause: an :class:`IdleCause`."""
    start_ns: Int64s
    """Start of the wait."""
    end_ns: Int64s
    """End of the wait, after its start."""
    row: Int32s
    """The row of the timeline that ended it: message, producer or reduction; -1 where unknown."""
    peer: Int32s
    """The rank that it waited for; -1 where unknown or the same rank."""

    def __len__(self) -> int:
        return int(self.rank.size)


_Columns = TypeVar("_Columns", Waits, OnPath)


class Why(Struct, frozen=True):
    """Waits and critical path of a full step; trimmed timelines keep them."""

    waits: Waits
    """Idle intervals of ranks with their causes."""
    path: OnPath
    """The critical path."""

    def of_ranks(self, ranks: Collection[int], rank_of_row: Int32s) -> Self:
        """Return the waits and path parts of the given ranks; row numbers do not change."""
        chosen = sorted(ranks)
        return replace(
            self, waits=take(self.waits, np.isin(self.waits.rank, chosen)),
            path=take(self.path, np.isin(rank_of_row[self.path.row], chosen)),
        )  # fmt: skip

    def renumbered(self, number: Int32s) -> Self:
        """Renumber rows; path parts whose row has the number -1 are removed."""
        path = take(self.path, number[self.path.row] >= 0)
        waits = replace(self.waits, row=number[self.waits.row])
        return replace(self, waits=waits, path=replace(path, row=number[path.row]))

    def within(self, start_ns: int, end_ns: int) -> Self:
        """Return the waits inside a time span, and the path."""
        inside = (self.waits.start_ns >= start_ns) & (self.waits.end_ns <= end_ns)
        return replace(self, waits=take(self.waits, inside))

    def shifted(self, by_ns: int) -> Self:
        """Return waits and path later by a duration."""
        return replace(self, waits=shift(self.waits, by_ns), path=shift(self.path, by_ns))


def take(columns: _Columns, chosen: NDArray[np.bool_]) -> _Columns:
    """Return the chosen rows of columns."""
    return replace(columns, **{name: getattr(columns, name)[chosen] for name in columns.__struct_fields__})


def shift(columns: _Columns, by_ns: int) -> _Columns:
    """Return columns with times that are later by a duration."""
    return replace(columns, start_ns=columns.start_ns + by_ns, end_ns=columns.end_ns + by_ns)


LANE_COLUMNS = ("lane_rank", "lane_stream", "lane_peer", "lane_ptr")
ROW_COLUMNS = (
    *CELL, "enter_ns", "start_ns", "end_ns", "lag_ns", "uncontended_ns", "collective_ns", "size_bytes", "cause",
)  # fmt: skip


class Slice(Struct, frozen=True, kw_only=True):
    """One row of a timeline, for reading and for tests."""

    rank: int
    """The rank whose stream the slice occupies."""
    stream: Stream
    """The stream of the rank."""
    action: Action
    """The executed action."""
    start_ns: int
    """When it started to run."""
    end_ns: int
    """When it left its stream."""
    peer: int = -1
    """The peer of a stream for a single peer, else -1."""
    enter_ns: int = -1
    """When it was launched; -1 means its start."""
    lag_ns: int = 0
    """Wire latency after its end."""
    uncontended_ns: int = -1
    """Its duration without contention; -1 means its duration."""
    collective_ns: int = 0
    """The part in which a group of the rank communicated."""
    size_bytes: int = 0
    """Bytes moved."""
    cause: int = -1
    """Row whose end (or start) released it."""
    pair: int = -1
    """Index of its overlapped pair, -1 for none."""


class Timeline(Cells, frozen=True, kw_only=True):
    """Slices on lanes; lanes are sorted by (rank, stream, peer), slices within a lane by time.

    Times are integer nanoseconds from the step's start; slices of one lane never overlap.
    A message has a slice on each stream that it occupies: a single slice (``SEND_F`` or ``SEND_B``, on the
    sender) if it occupies no stream of the receiver, else a slice on each side.
    """

    placement: Placement
    """The rank of each stage, per route."""
    lane_rank: Int32s
    """Shape (lanes,): the rank of each lane."""
    lane_stream: Int8s
    """:class:`Stream` of each lane."""
    lane_peer: Int32s
    """The peer of a lane for a single peer, else -1."""
    lane_ptr: Int32s
    """Shape (lanes + 1,): lane ``l`` holds the rows ``lane_ptr[l]:lane_ptr[l + 1]``."""
    enter_ns: Int64s
    """When it was launched: all earlier actions of its rank on its stream were complete."""
    start_ns: Int64s
    """When it started to run."""
    end_ns: Int64s
    """When it left its stream."""
    lag_ns: Int64s
    """Wire latency from ``end_ns`` to the arrival of the data."""
    uncontended_ns: Int64s
    """The value of ``end_ns - start_ns`` without contention."""
    collective_ns: Int64s
    """The part of the slice in which a group of the rank communicated."""
    size_bytes: Int64s
    """Bytes moved, 0 for none."""
    cause: Int32s
    """Row whose end (or start) released this one; -1 for none or unknown."""
    counters: tuple[Counter, ...] = ()
    """Quantities over time, sorted by rank, then in the order of display."""
    parts: Parts | None = None
    """Segments of actions; None where no action has segments."""
    routes: Routes | None = None
    """Links of each message; None where no links are known."""
    why: Why | None = None
    """Waits and critical path, for display; derived from the columns of the full step."""
    provenance: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Origin of the timeline: version, plugins, configuration; plain JSON values."""

    @classmethod
    def from_slices(cls, slices: Iterable[Slice], placement: Placement) -> Self:
        """Return the timeline of ``slices``, sorted into lanes; ``cause`` refers to rows of the result.

        Raises:
            ValueError: two slices of one lane overlap.
        """
        rows = list(slices)
        names = ("rank", "stream", "peer", *ROW_COLUMNS)
        columns = {name: np.array([_value(row, name) for row in rows], dtype=np.int64) for name in names}
        return cls.from_columns(columns, placement)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Any], placement: Placement) -> Self:
        """Return the timeline of slices in any order; ``cause`` refers to rows of the result.

        The columns are ``rank``, ``stream``, ``peer`` and :data:`ROW_COLUMNS`.

        Raises:
            ValueError: two slices of one lane overlap.
        """
        order = np.lexsort([columns[name] for name in ("end_ns", "start_ns", "peer", "stream", "rank")])
        columns = {name: values[order] for name, values in columns.items()}
        lanes = np.stack([columns[name] for name in ("rank", "stream", "peer")])
        is_first = (np.diff(lanes, prepend=-2) != 0).any(axis=0)
        overlaps = ~is_first[1:] & (columns["start_ns"][1:] < columns["end_ns"][:-1])
        if overlaps.any():
            msg = f"slices of rank {columns['rank'][1:][overlaps][0]} overlap on one stream"
            raise ValueError(msg)
        lane_rank, lane_stream, lane_peer = lanes[:, is_first]
        return cls(
            placement=placement, lane_rank=lane_rank, lane_stream=lane_stream, lane_peer=lane_peer,
            lane_ptr=np.append(np.flatnonzero(is_first), order.size),
            **{name: columns[name] for name in ROW_COLUMNS},
        )  # fmt: skip

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.placement.ranks

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return int(self.lane_rank.size)

    def lane_of_row(self) -> Int32s:
        """Return each row's lane, shape (rows,)."""
        return np.repeat(np.arange(self.lanes, dtype=np.int32), np.diff(self.lane_ptr))

    def rank_of_row(self) -> Int32s:
        """Return each row's rank, shape (rows,)."""
        return np.repeat(self.lane_rank, np.diff(self.lane_ptr))

    def rank_slices(self, rank: int) -> tuple[slice, slice]:
        """Return the lanes and the rows of a rank."""
        first, last = np.searchsorted(self.lane_rank, [rank, rank + 1]).tolist()
        return slice(first, last), slice(int(self.lane_ptr[first]), int(self.lane_ptr[last]))

    def of_rows(self, rows: NDArray[np.integer]) -> Self:
        """Return the given rows, in their order, without empty lanes; causes keep their numbers."""
        lanes, counts = np.unique(self.lane_of_row()[rows], return_counts=True)
        return replace(
            self,
            lane_rank=self.lane_rank[lanes],
            lane_stream=self.lane_stream[lanes],
            lane_peer=self.lane_peer[lanes],
            lane_ptr=np.concatenate([[0], np.cumsum(counts)]),
            routes=None if self.routes is None else self.routes.of_rows(rows),
            parts=None if self.parts is None else self.parts.of_rows(rows),
            **{name: getattr(self, name)[rows] for name in ROW_COLUMNS},
        )

    def __getitem__(self, row: int) -> Slice:
        if not 0 <= row < len(self):
            msg = f"row {row} of {len(self)}"
            raise IndexError(msg)
        lane = int(np.searchsorted(self.lane_ptr, row, side="right")) - 1
        return Slice(
            rank=int(self.lane_rank[lane]),
            stream=Stream(int(self.lane_stream[lane])),
            peer=int(self.lane_peer[lane]),
            action=self.action(row),
            **{name: int(getattr(self, name)[row]) for name in ROW_COLUMNS[len(CELL) - 1 :]},
        )

    def difference(self, other: Timeline) -> str:
        """Describe the first difference between two timelines, ``""`` for none."""
        if self.placement != other.placement:
            return "the placements differ"
        if self.counters != other.counters:
            return "the counters differ"
        if self.routes != other.routes:
            return "the routes differ"
        if self.parts != other.parts:
            return "the segments of actions differ"
        return difference(self, other, (*LANE_COLUMNS, *ROW_COLUMNS))

    def __repr__(self) -> str:
        span = int(self.end_ns.max()) if len(self) else 0
        return f"<Timeline {self.ranks} ranks, {self.lanes} lanes, {len(self)} slices, {span} ns>"


def _value(item: Slice, name: str) -> int:
    if name in {"kind", "stage", "microbatch", "span"}:
        return int(getattr(item.action, name))
    value = int(getattr(item, name))
    if value < 0 and name == "enter_ns":
        return item.start_ns
    if value < 0 and name == "uncontended_ns":
        return item.end_ns - item.start_ns
    return value


def time_within(start_ns: Int64s, end_ns: Int64s, at_ns: Int64s) -> Int64s:
    """Return the time up to each instant that is inside intervals, which ascend and do not overlap.

    >>> time_within(np.array([2, 7]), np.array([4, 9]), np.array([1, 3, 8])).tolist()
    [0, 1, 3]
    """
    total_ns = np.append(0, np.cumsum(end_ns - start_ns))
    ended = np.searchsorted(end_ns, at_ns, side="right")
    current_ns = np.maximum(at_ns - np.append(start_ns, np.iinfo(np.int64).max)[ended], 0)
    within_ns: Int64s = total_ns[ended] + current_ns
    return within_ns


def step_functions(key: Int32s | Int64s, time_ns: Int64s, total: Int64s) -> Iterator[tuple[int, Int64s, Int64s]]:
    """Yield each key with its times and values; totals are sorted by key and time and accumulate across keys.

    Of several values at the same time the last counts; values equal to the previous value are omitted.
    """
    last = np.ones(key.size, dtype=bool)
    last[:-1] = (key[1:] != key[:-1]) | (time_ns[1:] != time_ns[:-1])
    key, time_ns, total = key[last], time_ns[last], total[last]
    ends = np.flatnonzero(np.diff(key, append=-1)) + 1
    previous_total = start = 0
    for end in ends.tolist():
        value = total[start:end] - previous_total
        kept = np.diff(value, prepend=0) != 0
        if kept.any():
            yield int(key[start]), time_ns[start:end][kept], value[kept]
        previous_total, start = int(total[end - 1]), end


def join(timelines: Sequence[Timeline]) -> tuple[Timeline, list[Int32s]]:
    """Return the rows of timelines on the same ranks in one, and the new number of each timeline's rows.

    Causes refer to rows of their own timeline. The placement and the provenance are those of the last timeline.

    Raises:
        ValueError: two slices of one lane overlap.
    """
    first_row = np.cumsum([0, *map(len, timelines)])
    columns = {name: np.concatenate([getattr(each, name) for each in timelines]) for name in ROW_COLUMNS}
    columns["cause"] = np.concatenate(
        [
            np.where(each.cause < 0, -1, each.cause + first)
            for each, first in zip(timelines, first_row, strict=False)
        ]
    )
    columns["rank"] = np.concatenate([each.rank_of_row() for each in timelines])
    for name in ("stream", "peer"):
        lanes = [getattr(each, f"lane_{name}")[each.lane_of_row()] for each in timelines]
        columns[name] = np.concatenate(lanes)
    order = np.lexsort([columns[name] for name in ("end_ns", "start_ns", "peer", "stream", "rank")])
    number = np.empty(order.size + 1, dtype=np.int32)
    number[order], number[-1] = np.arange(order.size), -1
    columns["cause"] = number[columns["cause"]]
    joined = replace(
        Timeline.from_columns(columns, timelines[-1].placement), provenance=timelines[-1].provenance,
        parts=_joined_parts(timelines, order),
    )  # fmt: skip
    return joined, [number[start:stop] for start, stop in pairwise(first_row.tolist())]


def _joined_parts(timelines: Sequence[Timeline], order: NDArray[np.integer]) -> Parts | None:
    if all(each.parts is None for each in timelines):
        return None
    names: list[str] = []
    columns = []
    for each in timelines:
        none = np.full(len(each), -1, dtype=np.int32)
        parts = each.parts or Parts(number=none, name=none, names=())
        columns.append((parts.number, np.where(parts.name < 0, -1, parts.name + len(names))))
        names += parts.names
    number, name = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Parts(number=number, name=name, names=tuple(names)).of_rows(order)


_MESSAGES = np.isin(np.arange(len(Stream)), (Stream.COMM, Stream.SEND, Stream.RECV))
"""By stream, whether it has messages."""


def window(timeline: Timeline) -> tuple[int, int]:
    """Return when the first slice starts and when the last ends.

    Starts of messages do not count, because measured messages include the wait for the peer.
    """
    filled = np.flatnonzero(np.diff(timeline.lane_ptr) > 0)
    if not filled.size:
        return 0, 0
    first, last = timeline.lane_ptr[filled], timeline.lane_ptr[filled + 1] - 1
    opens = ~_MESSAGES[timeline.lane_stream[filled]]
    starts = timeline.start_ns[first[opens] if opens.any() else first]
    return int(starts.min()), int(timeline.end_ns[last].max())
