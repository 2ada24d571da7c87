"""List scheduling under limits of microbatches in flight.

Many schedules are a priority rule: "a backward if one is ready, else the forward of the deepest stage".
:func:`list_schedule` simulates such a rule, in slots or in real durations, and returns the table. No rank waits
while one of its actions can run. At one instant, ends precede starts; an action of zero duration ends after the
starts at its instant. Remaining ties are broken by kind, stage and microbatch: equal input gives equal tables.

The default rule prefers the earlier microbatch among actions of one stage and kind, which is also ready first.
A faster kernel uses this: it counts actions per stage and kind and needs no queues (:func:`_rows_in_turn`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from pptrace.config.limits import gibibytes, memory_key, most_memory
from pptrace.errors import ScheduleError
from pptrace.steps.actions import USUAL, CellColumns, Cells
from pptrace.steps.columns import uniform
from pptrace.steps.kernels.heap import OUTSIDE, Heap
from pptrace.steps.kernels.list_scheduling import (
    InFlightLimits,
    ListingState,
    Progress,
    Queues,
    Sequences,
    Work,
    Written,
    list_actions,
    list_in_turn,
)
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace_kernel import run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.steps.columns import Int8s, Int32s, Int64s
    from pptrace.steps.placement import Placement

_UNSPLIT = (Kind.F, Kind.B)
_SPLIT = (Kind.F, Kind.I, Kind.W)
_LARGEST_TIME = 2**62
_CHECKED_ACTIONS, _ACTION_BYTES = 10_000_000, 20
"""Number of actions from which memory is checked, and the least bytes of one action's columns."""


class Actions(Cells, frozen=True, kw_only=True):
    """All actions of a table before their order is known, in columns of one value per action."""

    rank: Int32s
    """The rank that holds the stage for the microbatch."""
    route: Int32s
    """The microbatch's route."""


Priority: TypeAlias = Callable[[Actions], "Sequence[Int64s | Int32s]"]
"""Returns sort keys by which a rank chooses, the most significant first; the lowest value goes first."""


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
    """Return the table of a priority rule.

    Args:
        placement: the stages' ranks; every route visits every stage.
        durations: time of one action for F and B, or F, I and W: one value, or one per stage. All 1 for slots.
        priority: the rule by which a rank chooses among actions that can run.
        in_flight: limits of microbatches in flight; unlimited by default.
        spans: microbatches of one action by kind, 1 by default; consecutive blocks of that size share a route.
        transfer: time from one rank to another.

    Raises:
        ScheduleError: an action can never start under the limits in flight, or times sum to 2**62 or more.
        ValueError: other kinds, times that are not integers from 0, microbatches that do not fill the spans, or a
            route that skips a stage.

    >>> from pptrace.steps.placement import Placement
    >>> list_schedule(Placement.looped(ranks=2, microbatches=2), {Kind.F: 1, Kind.B: 2}).rows()
    [['0F0', '0F1', '0B0', '0B1'], ['1F0', '1B0', '1F1', '1B1']]
    """
    kinds = _SPLIT if Kind.I in durations else _UNSPLIT
    if set(durations) != set(kinds):
        msg = "durations are of F and B, or of F, I and W"
        raise ValueError(msg)
    spans = _spans(kinds, spans or {})
    times = _times(placement, spans, durations, transfer)
    if (placement.stage_rank < 0).any() or placement.has_host_state:
        msg = "every route visits every stage, and a backward is on the rank of its forward"
        raise ValueError(msg)
    left, links = _limits(placement, in_flight or InFlight()), _links(placement, kinds)
    if priority is backward_first and not transfer and max(spans.values()) == 1:
        rows = _rows_in_turn(placement, times, links, left)
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
    order = _simulate_rule(placement, actions, duration, (source, target, lag), row_ptr, priority, left)
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
    stage_times: dict[Kind, Int64s] = {}
    total, actions = 0.0, 0
    for kind, span in spans.items():
        times = np.asarray(durations[kind])
        if not np.issubdtype(times.dtype, np.integer) or (times < 0).any() or transfer < 0:
            msg = f"times of {kind.name} and of transfers are integers from 0"
            raise ValueError(msg)
        stage_times[kind] = np.broadcast_to(times, (placement.stages,)).astype(np.int64)
        blocks = placement.microbatches // span
        total += blocks * float(stage_times[kind].sum(dtype=np.float64))
        actions += blocks * placement.stages
    if actions >= _CHECKED_ACTIONS and actions * _ACTION_BYTES > most_memory():
        size = gibibytes(actions * _ACTION_BYTES)
        raise ScheduleError(f"{actions:,} actions would take {size} of memory: take fewer, or {memory_key()}")
    if total + actions * transfer >= _LARGEST_TIME:
        raise ScheduleError("times add up to 2**62 or more: give them in a larger unit")
    return stage_times


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
        of_kind = slice(done, done + stages * first.size)
        kinds[of_kind], width[of_kind] = kind, span
        for column, values in (
            (stage, np.arange(stages)[:, None]), (microbatch, first), (route, routes),
            (rank, placement.stage_rank.T[:, routes]),
        ):  # fmt: skip
            column[of_kind].reshape(stages, first.size)[:] = values
        done = of_kind.stop
    return Actions(
        kind=kinds, stage=stage, microbatch=microbatch, span=width, pair=np.full(count, -1, dtype=np.int32),
        rank=rank, route=route,
    )  # fmt: skip


def _edges(placement: Placement, spans: Mapping[Kind, int], links: Sequence[Link]) -> tuple[Int64s, Int64s]:
    """Return the dependencies: the index of each enabling action, and of the action that it enables."""
    stages, microbatches = placement.stages, placement.microbatches
    blocks = {kind: microbatches // span for kind, span in spans.items()}
    first = dict(zip(spans, np.cumsum([0, *(stages * n for n in blocks.values())]), strict=False))
    sides = [
        np.concatenate(
            [[first[kind] + stage * blocks[kind], np.full(stage.size, spans[kind])] for kind, stage in side],
            axis=1,
        )
        for side in zip(*((link[:2], link[2:]) for link in links), strict=True)
    ]
    order = np.argsort(sides[0][0], kind="stable")
    microbatch = np.arange(microbatches)
    alone = max(spans.values()) == 1
    source, target = (
        (start[order, None] + (microbatch if alone else microbatch // span[order, None])).ravel()
        for start, span in sides
    )
    if alone and (np.diff(sides[0][0][order]) > 0).all():
        return source, target  # sorted: actions of each stage and kind enable those of one other
    actions = max(int(sum(stages * n for n in blocks.values())), 1)
    both = np.sort(source * actions + target, kind="stable")  # a few runs that are sorted
    if not alone:
        both = both[np.append([True], both[1:] != both[:-1])]
    source = both // actions
    return source, both - source * actions


def _simulate_rule(
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
    limit_indices = _limits_of_actions(placement, actions, left)
    queue, queues, taking = _queues(placement, actions, limit_indices)
    last = actions.kind == (Kind.W if (actions.kind == Kind.W).any() else Kind.B)
    narrow = np.int32 if max(count, target.size) < np.iinfo(np.int32).max else np.int64
    late = count if lag.size else 0
    needs = np.bincount(target, minlength=count).astype(narrow)
    state, events = _initial_state(needs, left, row_ptr, queues.rank.size, late)
    after_ptr = np.zeros(count + 1, dtype=narrow)
    np.cumsum(np.bincount(source, minlength=count), out=after_ptr[1:])
    begun = run(
        list_actions,
        (
            Work(
                duration=duration, after_ptr=after_ptr, after=target.astype(narrow), lag=lag,
                queue=queue.astype(narrow), key=key,
            ),
            InFlightLimits(
                microbatches=actions.span,
                returned=np.where(last[: len(limit_indices), None], limit_indices, -1).astype(narrow).ravel(),
                taken=taking.ravel(),
            ),
            queues,
        ),
        (state, events),
        work=count,
    )  # fmt: skip
    if begun < count:
        waits = state.needs == 0
        for first, end in zip(row_ptr[:-1], state.next, strict=True):
            waits[state.order[first:end]] = False
        raise _deadlock_error(actions, np.flatnonzero(waits))
    order: Int64s = state.order
    return order


def _initial_state(
    needs: NDArray[Any], left: Int64s, row_ptr: Int64s, queues: int, late: int
) -> tuple[ListingState, Heap]:
    """Return the initial state; ``late`` actions may start later than their dependencies end."""
    zeros, ranks = partial(np.zeros, dtype=np.int64), row_ptr.size - 1
    state = ListingState(
        needs=needs, left=left, running=np.full(ranks, -1, dtype=np.int64), fill=zeros(queues), ready=zeros(late),
        enabled=np.zeros_like(needs), dirty=zeros(ranks), stack=zeros(ranks), order=np.zeros_like(needs),
        next=row_ptr[:-1].copy(),
    )  # fmt: skip
    most = ranks + late
    return state, Heap(item=zeros(most), place=np.full(most, OUTSIDE), time=zeros(most), size=zeros(1))


def _one_key(columns: Sequence[Int64s | Int32s | Int8s]) -> Int64s:
    """Return one key per row that sorts rows by several columns, the most significant first."""
    key = np.zeros(columns[0].size, dtype=np.int64)
    largest = 0
    for column in columns:
        low, high = (int(value) for value in (column.min(initial=0), column.max(initial=0)))
        width = high - low + 1
        largest = largest * width + width - 1
        if largest >= _LARGEST_TIME:
            key[np.lexsort(columns[::-1])] = np.arange(key.size)
            return key
        key *= width
        key += column
        key -= low
    return key


def _deadlock_error(actions: Actions, enabled: Int64s) -> ScheduleError:
    """Return the error of actions that limits in flight block; it names the first one of the deepest stage."""
    if enabled.size == 0:
        return ScheduleError("the stages' graph has a cycle: no action on it can ever start")
    row = int(enabled[np.lexsort((actions.microbatch[enabled], -actions.stage[enabled]))[0]])
    rank, action = int(actions.rank[row]), actions.action(row)
    message = f"rank {rank}: {action} can never start: too few microbatches may be in flight; allow more"
    return ScheduleError(message, rank=rank, action=str(action))


Link: TypeAlias = "tuple[Kind, Int32s, Kind, Int32s]"
"""Kind and stages of enabling actions, kind and stages of enabled ones: the n-th action enables the n-th."""

_MOST_SEQUENCES = 256
"""Most sequences per rank for which the kernel without queues is faster: each choice compares all of them."""


def _rows_in_turn(
    placement: Placement,
    times: Mapping[Kind, Int64s],
    links: Sequence[Link],
    left: Int64s,
) -> tuple[Int64s, CellColumns] | None:
    """Return where each rank's row begins, and the actions; None for a deadlock or too many stages per rank.

    ``left`` has the limits of microbatches in flight, see :func:`_limits`.
    """
    given, actions = _sequences(placement, times, links, left)
    ranks = placement.ranks
    if (np.diff(given.of_rank) > _MOST_SEQUENCES).any():
        return None
    row_ptr = np.concatenate([[0], np.cumsum(np.bincount(given.rank, given.count, ranks).astype(np.int64))])
    written = Written(
        kind=np.empty(actions, dtype=np.int8), stage=np.empty(actions, dtype=np.int32),
        microbatch=np.empty(actions, dtype=np.int32),
    )  # fmt: skip
    begun = run(list_in_turn, (given,), (*_initial_progress(given, row_ptr, left), written), work=actions)
    if begun < actions:
        return None
    usual = {name: uniform(value, actions) for name, value in USUAL.items()}
    return row_ptr, CellColumns(*written, **usual)


def _links(placement: Placement, kinds: Sequence[Kind]) -> list[Link]:
    """Return the dependencies between stages: forwards along the stages, gradients back, weight after input."""
    low, high = placement.edges[:, 0], placement.edges[:, 1]
    is_end = np.ones(placement.stages, dtype=np.bool_)
    is_end[low] = False
    ends = np.flatnonzero(is_end).astype(np.int32)
    gradient = Kind.I if Kind.I in kinds else Kind.B
    links: list[Link] = [
        (Kind.F, low, Kind.F, high), (gradient, high, gradient, low), (Kind.F, ends, gradient, ends),
    ]  # fmt: skip
    if Kind.W in kinds:
        stages = np.arange(placement.stages, dtype=np.int32)
        links.append((Kind.I, stages, Kind.W, stages))
    return links


def _sequences(
    placement: Placement,
    times: Mapping[Kind, Int64s],
    links: Sequence[Link],
    left: Int64s,
) -> tuple[Sequences, int]:
    """Return the sequences sorted by rank, then by kind, route and stage, and the number of actions."""
    kinds, stages, routes = list(times), placement.stages, placement.routes
    width = routes * stages
    number = np.arange(len(kinds) * width)
    kind, route, stage = number // width, number // stages % routes, number % stages
    rank = placement.stage_rank[route, stage].astype(np.int64)
    order = np.argsort(rank, kind="stable")
    moved = np.empty_like(order)
    moved[order] = number
    microbatches = np.bincount(placement.microbatch_route, minlength=routes)
    source, target = (
        np.concatenate([
            (kinds.index(link_kind) * width + np.arange(routes)[:, None] * stages + link_stage).ravel()
            for link_kind, link_stage in side
        ])
        for side in zip(*((link[:2], link[2:]) for link in links), strict=True)
    )  # fmt: skip
    last = Kind.W if Kind.W in times else Kind.B
    kind_of = np.array(kinds)[kind]
    origin, step = _places(kind_of, kind, stage, placement, len(kinds))
    limit_indices = np.stack([_stage_limit(placement, route, stage), _rank_limit(placement, rank)], axis=1)
    limit_indices = np.where(left[limit_indices] < 0, -1, limit_indices)
    direction = np.where(kind_of == Kind.F, 1, np.where(kind_of == last, -1, 0)) * (limit_indices >= 0).any(axis=1)
    before_ptr, before = _csr(moved[target], moved[source], number.size)
    after_ptr, after = _csr(moved[source], moved[target], number.size)
    sequences = Sequences(
        rank=rank[order], of_rank=np.searchsorted(rank[order], np.arange(placement.ranks + 1)),
        kind=kind_of[order], stage=stage[order],
        duration=np.stack(list(times.values()))[kind, stage][order],
        count=microbatches[route][order], first=(np.cumsum(microbatches) - microbatches)[route][order],
        turns=np.argsort(placement.microbatch_route, kind="stable"), origin=origin[order], step=step[order],
        before_ptr=before_ptr, before=before, after_ptr=after_ptr, after=after,
        room=limit_indices[order].ravel(), direction=direction[order],
    )  # fmt: skip
    return sequences, len(kinds) * stages * placement.microbatches


def _places(
    kind_of: Int64s, kind: Int64s, stage: Int64s, placement: Placement, kinds: int
) -> tuple[Int64s, Int64s]:
    """Return the priority of each sequence's microbatch 0, and the increment per microbatch.

    The order of :func:`~pptrace.steps.list_scheduler.backward_first`: backwards by microbatch, stage and kind,
    then forwards by stage, the deepest first, and microbatch.
    """
    stages, microbatches = placement.stages, placement.microbatches
    forward, each = kind_of == Kind.F, stages * kinds
    first_forward = each * microbatches
    return (
        np.where(forward, first_forward + (stages - 1 - stage) * microbatches, stage * kinds + kind),
        np.where(forward, 1, each),
    )


def _csr(key: Int64s, values: Int64s, size: int) -> tuple[Int64s, Int64s]:
    """Return the offsets and values of a CSR grouping by key."""
    return np.concatenate([[0], np.cumsum(np.bincount(key, minlength=size))]), values[
        np.argsort(key, kind="stable")
    ]


def _initial_progress(given: Sequences, row_ptr: Int64s, left: Int64s) -> tuple[Progress, Heap]:
    zeros, ranks, size = partial(np.zeros, dtype=np.int64), row_ptr.size - 1, given.rank.size
    free = np.diff(given.before_ptr) == 0
    head, some = zeros(size), given.count > 0
    head[some] = given.origin[some] + given.step[some] * given.turns[given.first[some]]
    progress = Progress(
        begun=zeros(size), ended=zeros(size), ready=np.where(free, given.count, 0), head=head, left=left.copy(),
        running=np.full(ranks, -1, dtype=np.int64), dirty=zeros(ranks), stack=zeros(ranks),
        next=row_ptr[:-1].copy(),
    )  # fmt: skip
    return progress, Heap(item=zeros(ranks), place=np.full(ranks, OUTSIDE), time=zeros(ranks), size=zeros(1))


class InFlight(NamedTuple):
    """Most microbatches between the start of a forward and the end of its backward (``W`` if split)."""

    stage: object = None
    """Shape (routes, stages): limit of each stage of each route, -1 for no limit; None for no limits."""
    rank: object = None
    """Shape (ranks,): limit over all stages of a rank, -1 for no limit; None for no limits."""


def _limits(placement: Placement, in_flight: InFlight) -> Int64s:
    """Return the limit of every stage of each route, then of every rank; -1 for no limit."""
    shapes = ((in_flight.stage, (placement.routes, placement.stages)), (in_flight.rank, (placement.ranks,)))
    return np.concatenate([
        np.broadcast_to(np.asarray(-1 if limit is None else limit, dtype=np.int64), shape).ravel()
        for limit, shape in shapes
    ])  # fmt: skip


def _stage_limit(placement: Placement, route: Int64s | Int32s, stage: Int64s | Int32s) -> Int64s:
    index: Int64s = route.astype(np.int64) * placement.stages + stage
    return index


def _rank_limit(placement: Placement, rank: Int64s | Int32s) -> Int64s:
    index: Int64s = placement.routes * placement.stages + rank.astype(np.int64)
    return index


def _limits_of_actions(placement: Placement, actions: Actions, left: Int64s) -> Int64s:
    """Return the indices of each action's two limits, of its stage and of its rank; -1 for no limit.

    Without any limit, the result has no rows.
    """
    if (left < 0).all():
        return np.full((0, 2), -1, dtype=np.int64)
    index = np.where(left < 0, -1, np.arange(left.size))
    limit_indices = np.empty((len(actions), 2), dtype=np.int64)
    limit_indices[:, 0] = index[_stage_limit(placement, actions.route, actions.stage)]
    limit_indices[:, 1] = index[_rank_limit(placement, actions.rank)]
    return limit_indices


def _queues(placement: Placement, actions: Actions, limit_indices: Int64s) -> tuple[Int64s, Queues, Int64s]:
    """Return each action's queue, the queues, and the limits that the actions of each queue share.

    A rank has a queue per stage and route for actions under a limit, and one for all other actions.
    """
    ranks = placement.ranks
    slot = actions.rank.astype(np.int64)
    if len(limit_indices):
        waits_for_room = (actions.kind == Kind.F) & ((limit_indices[:, 0] >= 0) | (limit_indices[:, 1] >= 0))
        slot = np.where(waits_for_room, ranks + _stage_limit(placement, actions.route, actions.stage), slot)
    slot_rank = np.concatenate([np.arange(ranks), placement.stage_rank.ravel()])
    count = np.bincount(slot, minlength=slot_rank.size)
    sample, queue = np.empty((2, slot_rank.size), dtype=np.int64)
    used = np.argsort(slot_rank, kind="stable")
    used = used[count[used] > 0]
    queue[used] = np.arange(used.size)
    sample[slot] = np.arange(slot.size)  # any action: all actions of a queue have the same limits
    taken = np.full((used.size, 2), -1, dtype=np.int64)
    takes = used >= ranks
    taken[takes] = limit_indices[sample[used[takes]]]
    queues = Queues(
        rank=slot_rank[used], ptr=np.cumsum([0, *count[used]]),
        of_rank=np.searchsorted(slot_rank[used], np.arange(ranks + 1)),
    )  # fmt: skip
    return queue[slot], queues, taken
