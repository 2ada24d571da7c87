"""Take actions apart into their segments where a table has overlapped pairs: an issue order of parts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.model.kinds import COMPUTE, SENDS, TABLE, Kind, Stream
from pptrace.model.segments import Segment
from pptrace.network.contract import Paths, transfer_ns
from pptrace.sim.pairs import STREAM, Braided, alone, braided
from pptrace.sim.policy import PolicyName
from pptrace.timeline.parts import Parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.placement import Placement
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Links
    from pptrace.schedule.issue_order import IssueOrder
    from pptrace.sim.policy import Policy

__all__ = ["WHOLE", "Expansion", "PartColumns", "in_segments", "timed"]

_NONE = np.zeros(0, dtype=np.int32)
_SHOWN = 8
_KEEPS_MESSAGES = {PolicyName.ASYNC, PolicyName.ORDERED}
"""Policies under which a message leaves when its own member of a pair is done, not when the whole pair is."""


class PartColumns(NamedTuple):
    """What kernels need of segments, one value per issued row; empty columns where no action is in parts."""

    number: Int32s
    """Place of the segment in its action; -1 for a row that is a whole action or a message."""
    stream: Int32s
    """Where it runs; -1 as above."""
    duration_ns: Int64s
    """What it takes."""
    release: Int32s
    """The row of the computation behind which it is issued; -1 for the one before it in its row, -2 for none."""
    path: Int32s
    """Which of :attr:`Expansion.links` its bytes go over, -1 for none."""
    size_bytes: Int64s
    """Bytes that it moves."""


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
    """Links that segments' bytes go over."""
    needs: tuple[Int32s, Int32s] = (_NONE, _NONE)
    """Rows of which the first is waited for by the second, where no stream says so."""

    def placed(self, place: Int32s) -> Parts | None:
        """Return which segments the rows are once they have their places; None where nothing is in parts."""
        if not self.names:
            return None
        number, name = np.empty_like(self.name), np.empty_like(self.name)
        number[place], name[place] = self.columns.number, self.name
        return Parts(number=number, name=name, names=self.names)


def timed(workload: Workload, links: Links) -> Workload:
    """Return the costs with what bytes over links take alone, latency included.

    Raises:
        ScheduleError: the network has no link of that name.
    """

    def over(segment: Segment) -> Segment:
        if not segment.link:
            return segment
        if segment.link not in links.name:
            known = f"known: {', '.join(links.name[:_SHOWN])}" if len(links) else "it has none"
            raise ScheduleError(
                f"segment {segment.name} goes over link {segment.link!r}, which the network lacks; {known}"
            )
        link = links.name.index(segment.link)
        path = Paths.along(links, [0, 1], [link])
        took = transfer_ns(np.array([segment.size_bytes]), path.overhead_ns, path.rate_kbps)
        return replace(segment, duration_ns=int(took[0] + path.latency_ns[0]))

    if not any(one.link for stages in workload.segments.values() for own in stages for one in own):
        return workload
    segments = {kind: [tuple(map(over, own)) for own in stages] for kind, stages in workload.segments.items()}
    whole = replace(workload, segments={}, classes=tuple(timed(one, links) for one in workload.classes))
    return whole.segmented(segments)


class _Group(NamedTuple):
    """Actions or pairs that are alike, and the rows that stand for each of them."""

    start: NDArray[np.int64]
    size: int
    rows: Braided | None
    members: tuple[tuple[Segment, ...], ...]


def in_segments(
    issued: IssueOrder,
    workload: Workload,
    policy: Policy,
    interleave: Mapping[tuple[Kind, ...], tuple[int, ...]],
) -> tuple[IssueOrder, Expansion]:
    """Return the issue order with every action that has segments in parts, and what the parts are.

    A table without overlapped pairs stays as it is: there, an action's segments only follow one another.

    Raises:
        ScheduleError: an order of segments that names members which a pair does not have.
    """
    if not workload.segments or not (issued.braid >= 0).any():
        return issued, Expansion()
    issued = issued.with_whole_pairs()
    groups = [_group(issued, workload, interleave, start, size) for start, size in _alike(issued, workload)]
    return _expanded(issued, policy, groups)


def _alike(issued: IssueOrder, workload: Workload) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield the rows with which actions, messages and pairs begin, the alike together, and how many rows each has."""
    begins = np.ones(len(issued), dtype=bool)
    begins[1:] = (issued.braid[1:] < 0) | (issued.braid[1:] != issued.braid[:-1])
    begins[issued.row_ptr[issued.row_ptr < len(issued)]] = True
    first = np.flatnonzero(begins)
    size = np.diff(first, append=len(issued))
    used = workload.microbatch_class
    code = issued.kind.astype(np.int64) * issued.placement.stages + issued.stage
    code = code * (int(issued.span.max(initial=1)) + 1) + issued.span
    if used.size:
        code = code * (len(workload.classes) + 1) + np.where(issued.unit < 0, 0, used[issued.unit])
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
    return _Group(start, size, alone(members[0]) if size == 1 else braided(members, turns), members)


def _costs(issued: IssueOrder, workload: Workload, row: int) -> Workload:
    unit, used = int(issued.unit[row]), workload.microbatch_class
    return workload.of_class(int(used[unit]) if used.size and unit >= 0 else 0)


def _whole_ns(issued: IssueOrder, workload: Workload, row: int) -> int:
    durations = _costs(issued, workload, row).duration_ns(Kind(int(issued.kind[row])))
    return int(durations[issued.stage[row]]) * int(issued.span[row])


def _segments_of(issued: IssueOrder, workload: Workload, row: int) -> tuple[Segment, ...]:
    by_stage = _costs(issued, workload, row).segments.get(Kind(int(issued.kind[row])))
    if by_stage is None:
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
    whole = replace(
        issued, row_ptr=at[issued.row_ptr], edge=issued.edge[source], **issued.cells.taken(source)._asdict()
    )
    needs += _behind_results(issued, columns, begin, results, policy)
    both = np.concatenate(needs, axis=1).astype(np.int32)
    return whole, Expansion(
        columns=columns, name=name, names=tuple(names), links=tuple(links), needs=(both[0], both[1])
    )


def _most_results(groups: Sequence[_Group]) -> int:
    return max((len(places) for group in groups if group.rows for places in group.rows.results), default=1)


def _unfilled(rows: int) -> PartColumns:
    none, some = np.full(rows, -1, dtype=np.int32), np.zeros(rows, dtype=np.int64)
    return PartColumns(none, none.copy(), some, none.copy(), none.copy(), some.copy())


def _released(rows: Braided, start: NDArray[np.int64]) -> NDArray[np.int64]:
    release = np.array([one.release for one in rows.order])
    return np.where(release < 0, release, start[:, None] + release)


def _behind_results(
    issued: IssueOrder,
    columns: PartColumns,
    begin: NDArray[np.int64],
    results: NDArray[np.int64],
    policy: Policy,
) -> list[NDArray[np.int64]]:
    """Return what waits for an action's results where those are communication; let messages leave behind theirs.

    That is its message, what its own rank makes of it, and behind an action alone whatever comes next.
    """
    placement = issued.placement
    cells, stages, units = placement.stages * placement.units, placement.stages, placement.units
    way = TABLE.feeds[issued.kind].astype(np.int64)
    rows = np.flatnonzero((way >= 0) & (issued.unit >= 0))
    rows = np.repeat(rows, issued.span[rows])
    ahead = np.arange(rows.size) - np.searchsorted(rows, rows)
    cell = (way[rows] * stages + issued.stage[rows]) * units + issued.unit[rows] + ahead
    begins, makers = np.full(2 * cells, -1, dtype=np.int64), np.full(2 * cells, -1, dtype=np.int64)
    begins[cell], makers[cell] = begin[rows], rows
    before, behind = _on_own_rank(placement)
    sends = np.flatnonzero(SENDS.mask(issued.kind))
    sent = ((issued.kind[sends] == Kind.SEND_B) * stages + issued.stage[sends]) * units + issued.unit[sends]
    if policy.name in _KEEPS_MESSAGES:
        _release(columns, results[:, makers[sent]], begin[sends])
    single = np.flatnonzero((results[0] >= 0) & (issued.braid < 0))
    found = []
    for result in results:
        ends = np.where(makers < 0, -1, result[makers])
        pairs = [
            (ends[before], begins[behind]),
            (ends[sent], begin[sends]),
            _to_next(issued, begin, result, single),
        ]
        source, target = (np.concatenate(side) for side in zip(*pairs, strict=True))
        kept = (source >= 0) & (target >= 0)
        kept &= columns.stream[source] != Stream.COMPUTE  # whose order says so
        found.append(np.stack([source, target])[:, kept])
    return found


def _release(columns: PartColumns, results: NDArray[np.int64], sends: NDArray[np.int64]) -> None:
    """Let messages leave behind the computations that their results follow, not behind the whole pair."""
    computes = (results >= 0) & (columns.stream[results] == Stream.COMPUTE)
    last = np.where(computes, results, STREAM).max(axis=0)
    own = (results >= 0).any(axis=0)
    columns.release[sends[own]] = last[own]


def _on_own_rank(placement: Placement) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the results of which the first is needed, on the same rank, for the second."""
    stages, units = placement.stages, placement.units
    held, unit = placement.stage_rank[placement.unit_route], np.arange(units)
    cells = np.arange(stages * units)
    before, behind = [cells], [stages * units + cells]
    for low, high in placement.edges.tolist():
        here = unit[held[:, low] == held[:, high]]
        before += [low * units + here, (stages + high) * units + here]
        behind += [high * units + here, (stages + low) * units + here]
    return np.concatenate(before), np.concatenate(behind)


def _to_next(
    issued: IssueOrder, begin: NDArray[np.int64], result: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each row's result with the first part of the computation that its rank issues next."""
    computes = np.flatnonzero(COMPUTE.mask(issued.kind))
    place = np.searchsorted(computes, rows, side="right")
    rows, following = rows[place < computes.size], computes[place[place < computes.size]]
    rank = np.searchsorted(issued.row_ptr, np.arange(len(issued)), side="right")
    same = rank[rows] == rank[following]
    return result[rows[same]], begin[following[same]]
