"""A list scheduler: ranks that are free start the first of their actions that may run, by a priority of one's own.

Many schedules are best said as a rule and not as an order: "a backward if there is one, else the forward of the
deepest stage". :func:`list_schedule` plays such a rule, in slots or in real durations, and returns the table. No
rank waits while one of its actions may run. At one instant, ends come before starts; an action that takes no time
ends after the starts that it is among. What is still equal goes by kind, stage and microbatch, so that the same
input gives the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.kernel import run
from pptrace.limits.memory import gibibytes, memory_key, most_memory
from pptrace.model.cells import Cells
from pptrace.model.kinds import Kind
from pptrace.record import dataclass
from pptrace.schedule.in_turn import links_of, rows_in_turn
from pptrace.schedule.kernels.heap import OUTSIDE, Heap
from pptrace.schedule.kernels.listing import Playing, Rooms, Work, list_actions
from pptrace.schedule.rooms import InFlight, queues_of, room_of, rooms_of
from pptrace.schedule.table import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int8s, Int32s, Int64s
    from pptrace.model.placement import Placement
    from pptrace.schedule.in_turn import Link

__all__ = ["Actions", "InFlight", "Priority", "backward_first", "list_schedule"]

_WHOLE = (Kind.F, Kind.B)
_SPLIT = (Kind.F, Kind.I, Kind.W)
_LONGEST = 2**62
_MANY, _ACTION_BYTES = 10_000_000, 20
"""Actions from which the machine's memory is looked at, and what the columns of one take at least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Actions(Cells):
    """What there is to do, in columns of one value per action."""

    rank: Int32s
    """The rank that holds the stage for the microbatch."""
    route: Int32s
    """The microbatch's route."""


Priority: TypeAlias = Callable[[Actions], "Sequence[Int64s | Int32s]"]
"""Returns columns by which a rank chooses, the most important first; in each, the lowest value goes first."""


def backward_first(actions: Actions) -> Sequence[Int64s | Int32s]:
    """Choose a backward before a forward: of backwards the earliest microbatch, of forwards the deepest stage."""
    forward = actions.kind == Kind.F
    return [
        forward.astype(np.int32),
        np.where(forward, -actions.stage, actions.microbatch),
        actions.microbatch,
        actions.stage,
    ]


def list_schedule(
    placement: Placement,
    durations: Mapping[Kind, object],
    *,
    priority: Priority = backward_first,
    in_flight: InFlight | None = None,
    spans: Mapping[Kind, int] | None = None,
    transfer: int = 0,
) -> Schedule:
    """Return the table that a rule gives.

    Args:
        placement: the stages' ranks; every route visits every stage.
        durations: time of one action for F and B, or F, I and W: one value, or one per stage. All 1 for slots.
        priority: what a rank prefers.
        in_flight: how many microbatches may be in flight; none is bounded unless given.
        spans: microbatches of one action by kind, 1 unless given; a route's microbatches come in blocks that wide.
        transfer: time from one rank to another.

    Raises:
        ScheduleError: the bounds in flight leave an action waiting for ever, or times add up to 2**62 and more.
        ValueError: kinds other than those, times that are no integers from 0, microbatches that do not fill the
            spans, or a route that skips a stage.

    >>> from pptrace.model.placement import Placement
    >>> list_schedule(Placement.looped(ranks=2, microbatches=2), {Kind.F: 1, Kind.B: 2}).rows()
    [['0F0', '0F1', '0B0', '0B1'], ['1F0', '1B0', '1F1', '1B1']]
    """
    kinds = _SPLIT if Kind.I in durations else _WHOLE
    if set(durations) != set(kinds):
        msg = "durations are of F and B, or of F, I and W"
        raise ValueError(msg)
    spans = _spans(kinds, spans or {})
    times = _times(placement, spans, durations, transfer)
    if (placement.stage_rank < 0).any():
        msg = "every route visits every stage"
        raise ValueError(msg)
    left, links = room_of(placement, in_flight or InFlight()), links_of(placement, kinds)
    if priority is backward_first and not transfer and max(spans.values()) == 1:
        rows = rows_in_turn(placement, times, links, left)
        if rows is not None:
            return Schedule.of_cells(placement, *rows)
    actions = _actions(placement, spans)
    duration = np.concatenate([
        np.repeat(of_stages, placement.microbatches // spans[kind]) for kind, of_stages in times.items()
    ])  # fmt: skip
    source, target = _edges(placement, spans, links)
    lag = np.zeros(source.size if transfer else 0, dtype=np.int64)
    if transfer:
        lag[actions.rank[source] != actions.rank[target]] = transfer
    row_ptr = np.cumsum([0, *np.bincount(actions.rank, minlength=placement.ranks)])
    order = _played(placement, actions, duration, (source, target, lag), row_ptr, priority, left)
    return Schedule.of_cells(placement, row_ptr, actions.cells.taken(order))


def _spans(kinds: Sequence[Kind], spans: Mapping[Kind, int]) -> dict[Kind, int]:
    """Return the microbatches of one action of each kind."""
    if set(spans) - set(kinds) or any(span < 1 for span in spans.values()):
        msg = f"spans are from 1, of {', '.join(kind.name for kind in kinds)}"
        raise ValueError(msg)
    return {kind: spans.get(kind, 1) for kind in kinds}


def _times(
    placement: Placement, spans: Mapping[Kind, int], durations: Mapping[Kind, object], transfer: int
) -> dict[Kind, Int64s]:
    """Return the times of each kind's actions, per stage."""
    found: dict[Kind, Int64s] = {}
    total, actions = 0.0, 0
    for kind, span in spans.items():
        times = np.asarray(durations[kind])
        if not np.issubdtype(times.dtype, np.integer) or (times < 0).any() or transfer < 0:
            msg = f"times of {kind.name} and of transfers are integers from 0"
            raise ValueError(msg)
        found[kind] = np.broadcast_to(times, (placement.stages,)).astype(np.int64)
        blocks = placement.microbatches // span
        total += blocks * float(found[kind].sum(dtype=np.float64))
        actions += blocks * placement.stages
    if actions >= _MANY and actions * _ACTION_BYTES > most_memory():
        size = gibibytes(actions * _ACTION_BYTES)
        raise ScheduleError(f"{actions:,} actions would take {size} of memory: take fewer, or {memory_key()}")
    if total + actions * transfer >= _LONGEST:
        raise ScheduleError("times add up to 2**62 or more: give them in a larger unit")
    return found


def _actions(placement: Placement, spans: Mapping[Kind, int]) -> Actions:
    """Return every action: kind by kind, stage by stage, in the order of microbatches."""
    stages, microbatches = placement.stages, placement.microbatches
    firsts = {kind: np.arange(0, microbatches, span, dtype=np.int32) for kind, span in spans.items()}
    count = stages * sum(first.size for first in firsts.values())
    stage, microbatch, width, rank, route = (np.empty(count, dtype=np.int32) for _ in range(5))
    kinds, done = np.empty(count, dtype=np.int8), 0
    for kind, span in spans.items():
        first = firsts[kind]
        routes = placement.microbatch_route[first]
        if microbatches % span or any(
            not np.array_equal(routes, placement.microbatch_route[first + i]) for i in range(1, span)
        ):
            msg = f"{microbatches} microbatches do not fill blocks of {span} {kind.name} that each take one route"
            raise ValueError(msg)
        own = slice(done, done + stages * first.size)
        kinds[own], width[own] = kind, span
        for column, values in (
            (stage, np.arange(stages)[:, None]), (microbatch, first), (route, routes),
            (rank, placement.stage_rank.T[:, routes]),
        ):  # fmt: skip
            column[own].reshape(stages, first.size)[:] = values
        done = own.stop
    return Actions(
        kind=kinds, stage=stage, microbatch=microbatch, span=width, pair=np.full(count, -1, dtype=np.int32),
        rank=rank, route=route,
    )  # fmt: skip


def _edges(placement: Placement, spans: Mapping[Kind, int], links: Sequence[Link]) -> tuple[Int64s, Int64s]:
    """Return which action enables which."""
    stages, microbatches = placement.stages, placement.microbatches
    blocks = {kind: microbatches // span for kind, span in spans.items()}
    first = dict(zip(spans, np.cumsum([0, *(stages * n for n in blocks.values())]), strict=False))
    sides = [
        np.concatenate(
            [[first[kind] + stage * blocks[kind], np.full(stage.size, spans[kind])] for kind, stage in side],
            axis=1,
        )
        for side in zip(*(((one, at), (other, to)) for one, at, other, to in links), strict=True)
    ]
    order = np.argsort(sides[0][0], kind="stable")
    microbatch = np.arange(microbatches)
    alone = max(spans.values()) == 1
    source, target = (
        (start[order, None] + (microbatch if alone else microbatch // span[order, None])).ravel()
        for start, span in sides
    )
    if alone and (np.diff(sides[0][0][order]) > 0).all():
        return source, target  # in order already: each stage's actions enable one other's
    actions = max(int(sum(stages * n for n in blocks.values())), 1)
    both = np.sort(source * actions + target, kind="stable")  # a few runs that are sorted
    if not alone:
        both = both[np.append([True], both[1:] != both[:-1])]
    source = both // actions
    return source, both - source * actions


def _played(
    placement: Placement,
    actions: Actions,
    duration: Int64s,
    edges: tuple[Int64s, Int64s, Int64s],
    row_ptr: Int64s,
    priority: Priority,
    left: Int64s,
) -> Int64s:
    """Return all actions, rank by rank in the order of their starts."""
    count, (source, target, lag) = len(actions), edges
    key = _one_key([*priority(actions), actions.kind, actions.stage, actions.microbatch])
    rooms = rooms_of(placement, actions, left)
    queue, queues, taking = queues_of(placement, actions, rooms)
    last = actions.kind == (Kind.W if (actions.kind == Kind.W).any() else Kind.B)
    narrow = np.int32 if max(count, target.size) < np.iinfo(np.int32).max else np.int64
    late = count if lag.size else 0
    needs = np.bincount(target, minlength=count).astype(narrow)
    playing, events = _beginning(needs, left, row_ptr, queues.rank.size, late)
    after_ptr = np.zeros(count + 1, dtype=narrow)
    np.cumsum(np.bincount(source, minlength=count), out=after_ptr[1:])
    begun = run(
        list_actions,
        (
            Work(
                duration=duration, after_ptr=after_ptr, after=target.astype(narrow), lag=lag,
                queue=queue.astype(narrow), key=key,
            ),
            Rooms(
                microbatches=actions.span,
                returned=np.where(last[: len(rooms), None], rooms, -1).astype(narrow).ravel(),
                taken=taking.ravel(),
            ),
            queues,
        ),
        (playing, events),
        work=count,
    )  # fmt: skip
    if begun < count:
        waits = playing.needs == 0
        for first, end in zip(row_ptr[:-1], playing.next, strict=True):
            waits[playing.order[first:end]] = False
        raise _stuck(actions, np.flatnonzero(waits))
    order: Int64s = playing.order
    return order


def _beginning(needs: NDArray[Any], left: Int64s, row_ptr: Int64s, queues: int, late: int) -> tuple[Playing, Heap]:
    """Return where each rank is before its first action; ``late`` actions may begin after what they need."""
    zeros, ranks = partial(np.zeros, dtype=np.int64), row_ptr.size - 1
    playing = Playing(
        needs=needs, left=left, doing=np.full(ranks, -1, dtype=np.int64), fill=zeros(queues), ready=zeros(late),
        shelf=np.zeros_like(needs), dirty=zeros(ranks), stack=zeros(ranks), order=np.zeros_like(needs),
        next=row_ptr[:-1].copy(),
    )  # fmt: skip
    most = ranks + late
    return playing, Heap(item=zeros(most), place=np.full(most, OUTSIDE), time=zeros(most), size=zeros(1))


def _one_key(columns: Sequence[Int64s | Int32s | Int8s]) -> Int64s:
    """Return one value per row that orders rows as several columns do, of which the first counts most."""
    key = np.zeros(columns[0].size, dtype=np.int64)
    largest = 0
    for column in columns:
        low, high = (int(value) for value in (column.min(initial=0), column.max(initial=0)))
        width = high - low + 1
        largest = largest * width + width - 1
        if largest >= _LONGEST:
            key[np.lexsort(columns[::-1])] = np.arange(key.size)
            return key
        key *= width
        key += column
        key -= low
    return key


def _stuck(actions: Actions, enabled: Int64s) -> ScheduleError:
    """Return the error of actions that nothing but room is missing for, naming the deepest stage's first."""
    if enabled.size == 0:
        return ScheduleError("the stages' graph has a cycle: no action on it can ever start")
    at = int(enabled[np.lexsort((actions.microbatch[enabled], -actions.stage[enabled]))[0]])
    rank, action = int(actions.rank[at]), actions.action(at)
    message = f"rank {rank}: {action} can never start: too few microbatches may be in flight; allow more"
    return ScheduleError(message, rank=rank, action=str(action))
