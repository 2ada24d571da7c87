"""Order of the segments of overlapped pairs, and their dependencies."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from heapq import heappop, heappush
from itertools import cycle, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.errors import ScheduleError
from pptrace.sim.streams import PartColumns
from pptrace.steps.actions import group_starts, microbatches_of
from pptrace.steps.dependencies import explain_deadlock
from pptrace.steps.kinds import COMMUNICATION, COMPUTE, SENDS, TABLE, Kind, Stream
from pptrace.steps.segments import Segment, results_of, single
from pptrace.timeline.timeline import Parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s
    from pptrace.steps.message_calls import IssueOrder, Policy
    from pptrace.steps.placement import Placement
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload


class OrderedSegment(NamedTuple):
    """One segment in the order in which a rank issues it."""

    member: int
    """Index of its action in the pair."""
    number: int
    """Its index in that action."""
    release: int
    """Index in the order of the computation after which it is issued; else :data:`ROW` or :data:`STREAM`."""


ROW, STREAM = -1, -2
"""Issued after the rank's previous computation, or constrained by its stream and its dependencies alone."""
_START = -1
"""The place before an action's first segment."""


class SegmentOrder(Struct, frozen=True):
    """The segments of one or more actions in the order of issue."""

    order: tuple[OrderedSegment, ...]
    """The segments; each stream runs its segments in this order."""
    needs: tuple[tuple[int, int], ...]
    """Dependencies that no stream implies: index in the order of a segment, and of one that waits for it."""
    results: tuple[tuple[int, ...], ...]
    """Per action, the indices of the segments whose ends complete its result."""


def _sequential_order(segments: Sequence[Segment]) -> SegmentOrder:
    """Return the order of a single action: each segment waits for the previous one."""
    order, last_computation = [], STREAM
    for number, segment in enumerate(segments):
        order.append(OrderedSegment(0, number, ROW if segment.is_computation or not number else last_computation))
        if segment.is_computation:
            last_computation = number
    return SegmentOrder(
        order=tuple(order),
        needs=tuple((i, i + 1) for i, (a, b) in enumerate(pairwise(segments)) if a.stream is not b.stream),
        results=((len(segments) - 1,),),
    )


def _overlapped_order(segments: Sequence[Segment]) -> SegmentOrder:
    """Return the order of a single action whose computation and communication overlap; all are its result."""
    rows = _pair_order((segments,))
    last = {segments[segment.number].stream: index for index, segment in enumerate(rows.order)}
    return replace(rows, results=(tuple(sorted(last.values())),))


def _pair_order(members: Sequence[Sequence[Segment]], interleave: Sequence[int] = ()) -> SegmentOrder:
    """Return the order of several actions' segments.

    Computations of one action keep their order. ``interleave`` is the repeated order of actions; without it, the
    computation that can start first is next. Communication is issued right after its last predecessor.
    """
    turns = _turns(members, interleave) if interleave else _first_ready(members)
    computations = [
        iter([number for number, segment in enumerate(segments) if segment.is_computation]) for segments in members
    ]
    order: list[OrderedSegment] = []
    place: dict[tuple[int, int], int] = {}
    following = [_communication_after(segments) for segments in members]

    def issue(member: int, number: int, release: int) -> None:
        place[member, number] = len(order)
        order.append(OrderedSegment(member, number, release))

    def issue_communication(member: int, after: int) -> None:
        """Issue the communication whose last predecessor is a segment, or that follows such communication."""
        segments, waiting = members[member], [*following[member][after]]
        while waiting:
            number = heappop(waiting)
            dependencies = segments[number].needs_of(number)
            if (member, number) in place or any((member, need) not in place for need in dependencies):
                continue
            computed = [place[member, need] for need in dependencies if segments[need].is_computation]
            issue(member, number, max(computed, default=STREAM if number else ROW))
            for follower in following[member][number]:
                heappush(waiting, follower)

    for member in range(len(members)):
        issue_communication(member, _START)
    for member in turns:
        number = next(computations[member])
        issue(member, number, ROW)
        issue_communication(member, number)
    dependencies = [
        (place[member, need], index)
        for (member, number), index in sorted(place.items(), key=lambda item: item[1])
        for need in members[member][number].needs_of(number)
        if members[member][need].stream is not members[member][number].stream
    ]
    results = tuple(
        tuple(place[member, number] for number in results_of(segments)) for member, segments in enumerate(members)
    )
    return SegmentOrder(order=tuple(order), needs=tuple(dependencies), results=results)


def least_pair_ns(members: Sequence[tuple[Segment, ...]], interleave: Sequence[int]) -> int:
    """Return the least time from the start of an overlapped pair to the end of its last computation, in ns.

    Its segments have the order of the simulation, and those on links of the network take no time.

    Args:
        members: the segments of its actions.
        interleave: the repeated order of the actions; empty for the computation that can start first.
    """
    ends_ns, free_ns, computed_ns = dict[tuple[int, int], int](), dict[Stream, int](), 0
    for member, number, _ in _pair_order(members, interleave).order:
        segment = members[member][number]
        needed_ns = max((ends_ns[member, need] for need in segment.needs_of(number)), default=0)
        end_ns = max(needed_ns, free_ns.get(segment.stream, 0)) + (0 if segment.link else segment.duration_ns)
        ends_ns[member, number] = free_ns[segment.stream] = end_ns
        if segment.is_computation:
            computed_ns = end_ns
    return computed_ns


def _communication_after(segments: Sequence[Segment]) -> Mapping[int, list[int]]:
    """Return the communication that depends on each segment, in order; that without dependencies at ``_START``."""
    following: dict[int, list[int]] = defaultdict(list)
    for number, segment in enumerate(segments):
        if not segment.is_computation:
            for need in segment.needs_of(number) or (_START,):
                following[need].append(number)
    return following


def _turns(members: Sequence[Sequence[Segment]], interleave: Sequence[int]) -> list[int]:
    left = [sum(segment.is_computation for segment in segments) for segments in members]
    turns: list[int] = []
    for member in cycle(interleave):
        if not any(left[named] for named in interleave):
            break
        if left[member]:
            left[member] -= 1
            turns.append(member)
    return turns + [member for member, count in enumerate(left) for _ in range(count)]


def _first_ready(members: Sequence[Sequence[Segment]]) -> list[int]:
    """Return the order of members if each stream runs the segment that is ready first; ties go by member."""
    end: dict[tuple[int, int], int] = {}
    free: dict[Stream, int] = {}
    turns: list[int] = []

    def ready(member: int, number: int) -> int:
        return max((end[member, need] for need in members[member][number].needs_of(number)), default=0)

    def run(member: int, number: int) -> None:
        segment = members[member][number]
        begin = max(ready(member, number), free.get(segment.stream, 0))
        end[member, number] = free[segment.stream] = begin + segment.duration_ns

    while len(end) < sum(map(len, members)):
        waiting = [
            (member, number)
            for member, segments in enumerate(members)
            for number, segment in enumerate(segments)
            if (member, number) not in end
            and all((member, need) in end for need in segment.needs_of(number))
            and all((member, i) in end for i in range(number) if segments[i].stream is segment.stream)
        ]
        communication = [
            (member, number) for member, number in waiting if not members[member][number].is_computation
        ]
        chosen = min(communication or waiting, key=lambda segment: (ready(*segment), segment))
        if not communication:
            turns.append(chosen[0])
        run(*chosen)
    return turns


_NONE = np.zeros(0, dtype=np.int32)
_NO_TIMES = np.zeros(0, dtype=np.int64)
_NO_SEGMENTS = PartColumns(_NONE, _NONE, _NO_TIMES, _NO_TIMES, _NONE, _NONE, _NO_TIMES)
"""No segments."""


class Expansion(Struct, frozen=True):
    """Rows of an issue order that are segments."""

    columns: PartColumns = _NO_SEGMENTS
    """One value per row."""
    name: Int32s = _NONE
    """Index into :attr:`names` of each row's segment, -1 for none."""
    names: tuple[str, ...] = ()
    """Names of segments."""
    links: tuple[str, ...] = ()
    """Link of each path of segments: one path per link, rank and stream."""
    needs: tuple[Int32s, Int32s] = (_NONE, _NONE)
    """Dependencies that no stream implies: rows, and rows that wait for them."""

    def parts(self, place: Int32s) -> Parts | None:
        """Return the segments of rows in the order of lanes; None if there are none."""
        if not self.names:
            return None
        number, name = np.empty_like(self.name), np.empty_like(self.name)
        number[place], name[place] = self.columns.number, self.name
        return Parts(number=number, name=name, names=self.names)


class _Group(NamedTuple):
    """Actions or pairs with equal segments, and their order."""

    start: NDArray[np.int64]
    size: int
    rows: SegmentOrder
    members: tuple[tuple[Segment, ...], ...]


def expand_segments(
    schedule: Schedule, issued: IssueOrder, workload: Workload, policy: Policy, *, slows: bool
) -> tuple[IssueOrder, Expansion]:
    """Return a schedule's issue order with actions replaced by their segments, and these segments.

    A table without overlapped pairs does not change, unless computation and communication of an action overlap and
    slow each other (``slows``).

    Raises:
        DeadlockError: a rank needs a result that it computes later.
        ScheduleError: an order of segments names a member that its pair does not have.
    """
    if not workload.segments or not _overlaps(issued, workload, slows=slows):
        return issued, Expansion()
    issued = issued.with_whole_pairs()
    groups = (
        _group(issued, workload, schedule.interleave, start, size)
        for start, size in _equal_actions(issued, workload)
    )
    expanded, expansion = _expand(issued, policy, [group for group in groups if group is not None])
    if expansion.names and _needs_later_result(issued):
        raise explain_deadlock(schedule)
    return expanded, expansion


def _overlaps(issued: IssueOrder, workload: Workload, *, slows: bool) -> bool:
    return (workload.overlapped and slows) or bool((issued.pair >= 0).any())


def _equal_actions(issued: IssueOrder, workload: Workload) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield groups of equal actions, messages and pairs: their first rows, and the number of rows of each."""
    first = group_starts(issued.pair, issued.row_ptr)
    size = np.diff(first, append=len(issued))
    class_of = workload.microbatch_class
    code = issued.kind.astype(np.int64) * issued.placement.stages + issued.stage
    code = code * (int(issued.span.max(initial=1)) + 1) + issued.span
    if class_of.size:
        code = code * (len(workload.classes) + 1) + np.where(issued.microbatch < 0, 0, class_of[issued.microbatch])
    key = np.zeros(first.size, dtype=np.int64)
    for member in range(int(size.max(initial=0))):
        member_code = np.where(member < size, code[np.minimum(first + member, len(issued) - 1)] + 1, 0)
        dense = np.unique(key, return_inverse=True)[1]
        key = np.unique(dense * (int(code.max(initial=0)) + 2) + member_code, return_inverse=True)[1]
    order = np.argsort(key, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
        yield first[rows], int(size[rows[0]])


def _group(
    issued: IssueOrder,
    workload: Workload,
    interleave: Mapping[tuple[Kind, ...], tuple[int, ...]],
    start: NDArray[np.int64],
    size: int,
) -> _Group | None:
    """Return the order of an action's or pair's segments; None for messages and actions without segments."""
    rows = range(int(start[0]), int(start[0]) + size)
    kinds = tuple(Kind(int(issued.kind[row])) for row in rows)
    segments = [_segments_of(issued, workload, row) for row in rows]
    if size == 1:
        segments = [single(segments[0])]
    if not any(segments):
        return None
    members = tuple(
        parts or (Segment(name=kind.name, duration_ns=_duration_ns(issued, workload, row)),)
        for row, kind, parts in zip(rows, kinds, segments, strict=True)
    )
    turns = interleave.get(kinds, ())
    if any(not 0 <= turn < size for turn in turns):
        raise ScheduleError(
            f"the order of segments of {' with '.join(kind.name for kind in kinds)} names member "
            f"{next(turn for turn in turns if not 0 <= turn < size)}: they are 0 to {size - 1}"
        )
    if size > 1:
        return _Group(start, size, _pair_order(members, turns), members)
    single_order = _overlapped_order if workload.overlapped else _sequential_order
    return _Group(start, size, single_order(members[0]), members)


def _duration_ns(issued: IssueOrder, workload: Workload, row: int) -> int:
    durations = workload.of_microbatch(int(issued.microbatch[row])).duration_ns(Kind(int(issued.kind[row])))
    return int(durations[issued.stage[row]]) * int(issued.span[row])


def _segments_of(issued: IssueOrder, workload: Workload, row: int) -> tuple[Segment, ...]:
    kind = Kind(int(issued.kind[row]))
    by_stage = workload.of_microbatch(int(issued.microbatch[row])).segments.get(kind)
    if by_stage is None or kind not in COMPUTE:  # actions of other streams have no segments
        return ()
    span, segments = int(issued.span[row]), by_stage[int(issued.stage[row])]
    return segments if span == 1 else tuple(segment.scaled(Fraction(span)) for segment in segments)


def _expand(issued: IssueOrder, policy: Policy, groups: Sequence[_Group]) -> tuple[IssueOrder, Expansion]:
    length = np.ones(len(issued), dtype=np.int64)
    for group in groups:
        length[group.start[:, None] + np.arange(group.size)] = 0
        length[group.start] = len(group.rows.order)
    first = np.concatenate([[0], np.cumsum(length)])
    source = np.repeat(np.arange(len(issued)), length)
    most = max((len(places) for group in groups for places in group.rows.results), default=1)
    results = np.full((most, len(issued)), -1, dtype=np.int64)
    begin = first[:-1].copy()
    unset, zero = np.full(source.size, -1, dtype=np.int32), np.zeros(source.size, dtype=np.int64)
    columns = PartColumns(unset, unset.copy(), zero, zero.copy(), unset.copy(), unset.copy(), zero.copy())
    name, names, links = np.full(source.size, -1, dtype=np.int32), dict[str, int](), dict[str, int]()
    dependencies: list[NDArray[np.int64]] = []
    for start, _, rows, members in groups:
        origin = first[start]
        place = origin[:, None] + np.arange(len(rows.order))
        segments = [members[segment.member][segment.number] for segment in rows.order]
        source[place] = start[:, None] + [segment.member for segment in rows.order]
        name[place] = [names.setdefault(segment.name, len(names)) for segment in segments]
        columns.number[place] = [segment.number for segment in rows.order]
        columns.stream[place] = [int(segment.stream) for segment in segments]
        columns.duration_ns[place] = [segment.duration_ns for segment in segments]
        columns.collective_ns[place] = [segment.collective_ns for segment in segments]
        columns.path[place] = [
            links.setdefault(segment.link, len(links)) if segment.link else -1 for segment in segments
        ]
        columns.size_bytes[place] = [segment.size_bytes for segment in segments]
        release = np.array([segment.release for segment in rows.order])
        columns.release[place] = np.where(release < 0, release, origin[:, None] + release)
        for member, places in enumerate(rows.results):
            first_segment = next(i for i, segment in enumerate(rows.order) if segment[:2] == (member, 0))
            begin[start + member] = origin + first_segment
            results[: len(places), start + member] = origin + np.array(places)[:, None]
        dependencies += [np.stack([origin + awaited, origin + waiting]) for awaited, waiting in rows.needs]
    calls = None if issued.calls is None else issued.calls.with_rows(source, begin)
    expanded = replace(
        issued, row_ptr=first[issued.row_ptr], edge=issued.edge[source],
        peer=issued.peer[source] if issued.peer.size else issued.peer, calls=calls,
        **issued.cells.taken(source)._asdict(),
    )  # fmt: skip
    paths = _paths_over_links(expanded, columns, list(links))
    dependencies += _wait_for_results(issued, columns, begin, results, policy)
    edges = np.concatenate(dependencies, axis=1).astype(np.int32)
    return expanded, Expansion(
        columns=columns, name=name, names=tuple(names), links=paths, needs=(edges[0], edges[1])
    )


def _paths_over_links(whole: IssueOrder, columns: PartColumns, links: Sequence[str]) -> tuple[str, ...]:
    """Number the paths over single links in place, one per link, rank and stream."""
    rows = np.flatnonzero(columns.path >= 0)
    rank = np.searchsorted(whole.row_ptr, rows, side="right") - 1
    key = (columns.path[rows].astype(np.int64) * whole.placement.ranks + rank) * len(Stream) + columns.stream[rows]
    distinct, columns.path[rows] = np.unique(key, return_inverse=True)
    return tuple(links[index] for index in (distinct // (whole.placement.ranks * len(Stream))).tolist())


_KEEPS_MESSAGES = {PolicyName.ASYNC, PolicyName.ORDERED}
"""Policies under which a message leaves when its member of a pair ends, not when the whole pair ends."""


def _needs_later_result(issued: IssueOrder) -> bool:
    """Return whether an action needs a result that its own rank computes later in its row."""
    cell, rows, cells = _cells(issued)
    producer = np.full(2 * cells, -1, dtype=np.int64)
    producer[cell] = rows
    awaited, waiting = (producer[side] for side in _local_dependencies(issued.placement))
    return bool(((awaited > waiting) & (waiting >= 0)).any())


def _wait_for_results(
    issued: IssueOrder,
    columns: PartColumns,
    begin: NDArray[np.int64],
    results: NDArray[np.int64],
    policy: Policy,
) -> list[NDArray[np.int64]]:
    """Return the dependencies on results that communication completes, and release messages of pairs early.

    Dependents are the action's message, its consumer on the same rank and, after a single action, the rank's next
    row.
    """
    placement = issued.placement
    stages, microbatches = placement.stages, placement.microbatches
    cell, rows, cells = _cells(issued)
    begins, makers = np.full(2 * cells, -1, dtype=np.int64), np.full(2 * cells, -1, dtype=np.int64)
    begins[cell], makers[cell] = begin[rows], rows
    awaited, waiting = _local_dependencies(placement)
    computed = _last_rows_before(issued, COMPUTE.mask(issued.kind))
    sends = np.flatnonzero(SENDS.mask(issued.kind))
    sent = ((issued.kind[sends] == Kind.SEND_B) * stages + issued.stage[sends]) * microbatches
    sent += issued.microbatch[sends]
    maker = makers[sent]
    if policy.name in _KEEPS_MESSAGES:
        early = (issued.pair[maker] >= 0) & (issued.pair[maker] == issued.pair[computed[sends]])
        _release(columns, results[:, maker[early]], begin[sends[early]])
    single, following = _followers_of_single_actions(issued, results, policy, computed)
    edges = []
    for result in results:
        ends = np.where(makers < 0, -1, result[makers])
        source = np.concatenate([ends[awaited], ends[sent], result[single]])
        target = np.concatenate([begins[waiting], begin[sends], begin[following]])
        kept = (source >= 0) & (target >= 0)
        kept &= columns.stream[source] != Stream.COMPUTE  # the compute stream keeps the order
        edges.append(np.stack([source, target])[:, kept])
    return edges


def _cells(issued: IssueOrder) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the index of each result, its row, and the number of results per direction."""
    stages, microbatches = issued.placement.stages, issued.placement.microbatches
    direction = TABLE.feeds[issued.kind].astype(np.int64)
    rows = np.flatnonzero((direction >= 0) & (issued.microbatch >= 0))
    number, stage, microbatch = microbatches_of(issued, rows)
    rows = rows[number]
    return (direction[rows] * stages + stage) * microbatches + microbatch, rows, stages * microbatches


def _release(columns: PartColumns, results: NDArray[np.int64], sends: NDArray[np.int64]) -> None:
    """Release messages after the computations of their results, not after the whole pair."""
    computes = (results >= 0) & (columns.stream[results] == Stream.COMPUTE)
    last = np.where(computes, results, STREAM).max(axis=0)
    segmented = (results >= 0).any(axis=0)
    columns.release[sends[segmented]] = last[segmented]


def _local_dependencies(placement: Placement) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return pairs of results on one rank, the second of which needs the first."""
    stages, microbatches = placement.stages, placement.microbatches
    forward_rank, backward_rank = (ranks[placement.microbatch_route] for ranks in placement.pass_ranks)
    microbatch = np.arange(microbatches)
    cells = np.flatnonzero((forward_rank == backward_rank).T)
    awaited, waiting = [cells], [stages * microbatches + cells]
    for low, high in placement.edges.tolist():
        local = microbatch[forward_rank[:, low] == forward_rank[:, high]]
        awaited.append(low * microbatches + local)
        waiting.append(high * microbatches + local)
        local = microbatch[backward_rank[:, low] == backward_rank[:, high]]
        awaited.append((stages + high) * microbatches + local)
        waiting.append((stages + low) * microbatches + local)
    return np.concatenate(awaited), np.concatenate(waiting)


def _followers_of_single_actions(
    issued: IssueOrder, results: NDArray[np.int64], policy: Policy, computed: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return single actions, and the rows that their ranks issue next on any stream.

    Rows of the compute stream follow its previous row; other rows follow the previous computation. All members of
    a pair follow the same row.
    """
    follows = COMPUTE.mask(issued.kind) | (COMMUNICATION.mask(issued.kind) & policy.blocks)
    last = np.where(follows, _last_rows_before(issued, follows), computed)
    starts = group_starts(issued.pair, issued.row_ptr)
    last = np.repeat(last[starts], np.diff(starts, append=len(issued)))
    single = (results[0] >= 0) & (issued.pair < 0)
    following = np.flatnonzero((last >= 0) & single[last])
    return last[following], following


def _last_rows_before(issued: IssueOrder, rows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the last of the given rows before each row on its rank, -1 for none."""
    last = np.full(len(issued), -1, dtype=np.int64)
    last[1:] = np.maximum.accumulate(np.where(rows, np.arange(len(issued)), -1))[:-1]
    first = np.repeat(issued.row_ptr[:-1], np.diff(issued.row_ptr))
    return np.where(last < first, -1, last)
