"""Take actions apart into their segments where a table has overlapped pairs: an issue order of parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.model.cells import group_starts
from pptrace.model.kinds import COMPUTE, Kind, Stream
from pptrace.model.segments import Segment
from pptrace.sim.pairs import Paired, alone, alone_overlapped, paired
from pptrace.sim.records import PartColumns
from pptrace.sim.results import behind_results
from pptrace.timeline.parts import Parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s
    from pptrace.model.workload import Workload
    from pptrace.schedule.issue_order import IssueOrder
    from pptrace.schedule.policy import Policy

__all__ = ["WHOLE", "Expansion", "in_segments"]

_NONE = np.zeros(0, dtype=np.int32)
WHOLE = PartColumns(_NONE, _NONE, np.zeros(0, dtype=np.int64), _NONE, _NONE, np.zeros(0, dtype=np.int64))
"""Nothing in parts."""


class Expansion(NamedTuple):
    """Actions in parts: the rows of an issue order that are segments."""

    columns: PartColumns = WHOLE
    """One value per row."""
    name: Int32s = _NONE
    """Which of :attr:`names` each row's segment has, -1 for none."""
    names: tuple[str, ...] = ()
    """Names of segments."""
    links: tuple[str, ...] = ()
    """The link of each path that segments' bytes go over: one path per link, rank and stream."""
    needs: tuple[Int32s, Int32s] = (_NONE, _NONE)
    """Rows of which the first is waited for by the second, where no stream says so."""

    def placed(self, place: Int32s) -> Parts | None:
        """Return which segments the rows are once they have their places; None where nothing is in parts."""
        if not self.names:
            return None
        number, name = np.empty_like(self.name), np.empty_like(self.name)
        number[place], name[place] = self.columns.number, self.name
        return Parts(number=number, name=name, names=self.names)


class _Group(NamedTuple):
    """Actions or pairs that are alike, and the rows that stand for each of them."""

    start: NDArray[np.int64]
    size: int
    rows: Paired | None
    members: tuple[tuple[Segment, ...], ...]


def in_segments(
    issued: IssueOrder,
    workload: Workload,
    policy: Policy,
    interleave: Mapping[tuple[Kind, ...], tuple[int, ...]],
    *,
    slows: bool = False,
) -> tuple[IssueOrder, Expansion]:
    """Return the issue order with every action that has segments in parts, and what the parts are.

    A table without overlapped pairs stays as it is, where an action's segments only follow one another, or do not
    slow each other (``slows``).

    Raises:
        ScheduleError: an order of segments that names members which a pair does not have.
    """
    if not workload.segments or not _overlaps(issued, workload, slows=slows):
        return issued, Expansion()
    issued = issued.with_whole_pairs()
    groups = [_group(issued, workload, interleave, start, size) for start, size in _alike(issued, workload)]
    return _expanded(issued, policy, groups)


def _overlaps(issued: IssueOrder, workload: Workload, *, slows: bool) -> bool:
    return (workload.overlapped and slows) or bool((issued.pair >= 0).any())


def _alike(issued: IssueOrder, workload: Workload) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield the rows with which actions, messages and pairs begin, the alike together, and the rows of each."""
    first = group_starts(issued.pair, issued.row_ptr)
    size = np.diff(first, append=len(issued))
    used = workload.microbatch_class
    code = issued.kind.astype(np.int64) * issued.placement.stages + issued.stage
    code = code * (int(issued.span.max(initial=1)) + 1) + issued.span
    if used.size:
        code = code * (len(workload.classes) + 1) + np.where(issued.microbatch < 0, 0, used[issued.microbatch])
    key = np.zeros(first.size, dtype=np.int64)
    for member in range(int(size.max(initial=0))):
        own = np.where(member < size, code[np.minimum(first + member, len(issued) - 1)] + 1, 0)
        key = np.unique(np.unique(key, return_inverse=True)[1] * (int(code.max(initial=0)) + 2) + own,
                        return_inverse=True)[1]  # fmt: skip
    order = np.argsort(key, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        yield first[rows], int(size[rows[0]])


def _group(
    issued: IssueOrder,
    workload: Workload,
    interleave: Mapping[tuple[Kind, ...], tuple[int, ...]],
    start: NDArray[np.int64],
    size: int,
) -> _Group:
    """Return the rows that stand for an action or pair; a message, and an action without segments, stays whole."""
    rows = range(int(start[0]), int(start[0]) + size)
    kinds = tuple(Kind(int(issued.kind[row])) for row in rows)
    given = [_segments_of(issued, workload, row) for row in rows]
    if not any(given):
        return _Group(start, size, None, ())
    members = tuple(
        found or (Segment(name=kind.name, duration_ns=_whole_ns(issued, workload, row)),)
        for row, kind, found in zip(rows, kinds, given, strict=True)
    )
    turns = interleave.get(kinds, ())
    if any(not 0 <= turn < size for turn in turns):
        raise ScheduleError(
            f"the order of segments of {' with '.join(kind.name for kind in kinds)} names member "
            f"{next(turn for turn in turns if not 0 <= turn < size)}: they are 0 to {size - 1}"
        )
    if size > 1:
        return _Group(start, size, paired(members, turns), members)
    return _Group(start, size, alone_overlapped(members[0]) if workload.overlapped else alone(members[0]), members)


def _costs(issued: IssueOrder, workload: Workload, row: int) -> Workload:
    microbatch, used = int(issued.microbatch[row]), workload.microbatch_class
    return workload.of_class(int(used[microbatch]) if used.size and microbatch >= 0 else 0)


def _whole_ns(issued: IssueOrder, workload: Workload, row: int) -> int:
    durations = _costs(issued, workload, row).duration_ns(Kind(int(issued.kind[row])))
    return int(durations[issued.stage[row]]) * int(issued.span[row])


def _segments_of(issued: IssueOrder, workload: Workload, row: int) -> tuple[Segment, ...]:
    kind = Kind(int(issued.kind[row]))
    by_stage = _costs(issued, workload, row).segments.get(kind)
    if by_stage is None or kind not in COMPUTE:  # what runs on another stream stays whole there
        return ()
    span = int(issued.span[row])
    return tuple(
        replace(one, duration_ns=one.duration_ns * span, size_bytes=one.size_bytes * span)
        for one in by_stage[int(issued.stage[row])]
    )


def _expanded(issued: IssueOrder, policy: Policy, groups: Sequence[_Group]) -> tuple[IssueOrder, Expansion]:
    length = np.ones(len(issued), dtype=np.int64)
    for group in groups:
        if group.rows is not None:
            length[group.start[:, None] + np.arange(group.size)] = 0
            length[group.start] = len(group.rows.order)
    at = np.concatenate([[0], np.cumsum(length)])
    source = np.repeat(np.arange(len(issued)), length)
    results = np.full((_most_results(groups), len(issued)), -1, dtype=np.int64)
    begin = at[:-1].copy()
    columns = _unfilled(source.size)
    name, names, links = np.full(source.size, -1, dtype=np.int32), dict[str, int](), dict[str, int]()
    needs: list[NDArray[np.int64]] = []
    for start, _, rows, members in groups:
        if rows is None:
            continue
        place = at[start][:, None] + np.arange(len(rows.order))
        segments = [members[one.member][one.number] for one in rows.order]
        source[place] = start[:, None] + [one.member for one in rows.order]
        name[place] = [names.setdefault(one.name, len(names)) for one in segments]
        columns.number[place] = [one.number for one in rows.order]
        columns.stream[place] = [int(one.stream) for one in segments]
        columns.duration_ns[place] = [one.duration_ns for one in segments]
        columns.path[place] = [links.setdefault(one.link, len(links)) if one.link else -1 for one in segments]
        columns.size_bytes[place] = [one.size_bytes for one in segments]
        columns.release[place] = _released(rows, at[start])
        for member, places in enumerate(rows.results):
            begin[start + member] = at[start] + rows.order.index(
                next(one for one in rows.order if one[:2] == (member, 0))
            )
            results[: len(places), start + member] = at[start] + np.array(places)[:, None]
        needs += [np.stack([at[start] + before, at[start] + behind]) for before, behind in rows.needs]
    calls = None if issued.calls is None else issued.calls.with_rows(source, begin)
    whole = replace(
        issued, row_ptr=at[issued.row_ptr], edge=issued.edge[source], calls=calls,
        **issued.cells.taken(source)._asdict(),
    )  # fmt: skip
    paths = _paths_over_links(whole, columns, list(links))
    needs += behind_results(issued, columns, begin, results, policy)
    both = np.concatenate(needs, axis=1).astype(np.int32)
    return whole, Expansion(columns=columns, name=name, names=tuple(names), links=paths, needs=(both[0], both[1]))


def _most_results(groups: Sequence[_Group]) -> int:
    return max((len(places) for group in groups if group.rows for places in group.rows.results), default=1)


def _paths_over_links(whole: IssueOrder, columns: PartColumns, links: Sequence[str]) -> tuple[str, ...]:
    """Number the paths over single links, in place; what one rank sends on one stream follows one another."""
    rows = np.flatnonzero(columns.path >= 0)
    rank = np.searchsorted(whole.row_ptr, rows, side="right") - 1
    key = (columns.path[rows].astype(np.int64) * whole.placement.ranks + rank) * len(Stream) + columns.stream[rows]
    distinct, columns.path[rows] = np.unique(key, return_inverse=True)
    return tuple(links[one] for one in (distinct // (whole.placement.ranks * len(Stream))).tolist())


def _unfilled(rows: int) -> PartColumns:
    none, some = np.full(rows, -1, dtype=np.int32), np.zeros(rows, dtype=np.int64)
    return PartColumns(none, none.copy(), some, none.copy(), none.copy(), some.copy())


def _released(rows: Paired, start: NDArray[np.int64]) -> NDArray[np.int64]:
    release = np.array([one.release for one in rows.order])
    return np.where(release < 0, release, start[:, None] + release)
