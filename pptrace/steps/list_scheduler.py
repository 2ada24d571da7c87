"""List scheduling under limits of microbatches in flight.

Many schedules are a priority rule: "a backward if one is ready, else the forward of the deepest stage".
:func:`list_schedule` simulates such a rule, in slots or in real durations, and returns the table. No rank waits
while one of its actions can run. At one instant, ends precede starts; an action of zero duration ends after the
starts at its instant. Remaining ties are broken by kind, stage and microbatch: equal input gives equal tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from pptrace.config.limits import gibibytes, memory_key, most_memory
from pptrace.errors import ScheduleError
from pptrace.steps.actions import Action, CellColumns, Cells
from pptrace.steps.columns import empty_columns, uniform
from pptrace.steps.kernels.heap import OUTSIDE, Heap
from pptrace.steps.kernels.list_scheduling import ListingState, Order, Sequences, list_actions
from pptrace.steps.kinds import Kind
from pptrace.steps.schedule import Schedule
from pptrace_kernel import run

if TYPE_CHECKING:
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
    spans = _spans(placement, kinds, spans or {})
    times = _times(placement, spans, durations, transfer)
    if (placement.stage_rank < 0).any() or placement.has_host_state:
        msg = "every route visits every stage, and a backward is on the rank of its forward"
        raise ValueError(msg)
    left = _limits(placement, in_flight or InFlight())
    sequences, awaited = _sequences(placement, spans, times, transfer, left)
    count, row_ptr = int(sequences.first[-1]), sequences.first[sequences.of_rank]
    state, events = _initial_state(sequences, awaited, left, row_ptr)
    order = Order(*empty_columns(count, np.int8, np.int32, np.int32))
    key = _keys(placement, sequences, priority)
    if run(list_actions, (sequences, key, transfer), (state, events, order), work=count) < count:
        raise _deadlock_error(sequences, state)
    span = uniform(1, count)
    if max(spans.values()) > 1:
        span = np.array([spans.get(kind, 1) for kind in Kind], dtype=np.int32)[order.kind]
    return Schedule.of_cells(placement, row_ptr, CellColumns(*order, span=span, pair=uniform(-1, count)))


def _spans(placement: Placement, kinds: Sequence[Kind], spans: Mapping[Kind, int]) -> dict[Kind, int]:
    """Return the microbatches of one action of each kind."""
    if set(spans) - set(kinds) or any(span < 1 for span in spans.values()):
        msg = f"spans are from 1, of {', '.join(kind.name for kind in kinds)}"
        raise ValueError(msg)
    route = placement.microbatch_route
    for kind, span in spans.items():
        if route.size % span or (route.reshape(-1, span) != route[::span, None]).any():
            msg = f"{route.size} microbatches do not fill blocks of {span} {kind.name} that each take one route"
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


def _sequences(
    placement: Placement,
    spans: Mapping[Kind, int],
    times: Mapping[Kind, Int64s],
    transfer: int,
    left: Int64s,
) -> tuple[Sequences, Int64s]:
    """Return the sequences, and for each of them the number of dependencies of one action.

    An action of several microbatches has a dependency for each microbatch. Sequences are sorted by rank, then by
    kind, route and stage. ``left`` has the limits, see :func:`_limits`.
    """
    kinds, routes, stages = list(times), placement.routes, placement.stages
    number = np.arange(len(kinds) * routes * stages)
    ranks = np.tile(placement.stage_rank.ravel(), len(kinds))
    order = np.argsort(ranks, kind="stable")
    position = np.empty_like(order)
    position[order] = number
    rank, (kind_index, route, stage) = ranks[order], np.unravel_index(order, (len(kinds), routes, stages))
    kind, span = np.array(kinds)[kind_index], np.array(list(spans.values()))[kind_index]
    source, target = position[_dependencies(placement, split=Kind.W in times)]
    by_source = np.argsort(source, kind="stable")
    room = np.stack([route * stages + stage, routes * stages + rank], axis=1)
    room[left[room] < 0] = -1
    microbatches = np.bincount(placement.microbatch_route, minlength=routes)
    blocks = microbatches[route] // span
    # Linear priorities of backward_first: backwards by microbatch, stage and kind, then forwards.
    is_forward, per_microbatch = kind == Kind.F, len(Kind) * stages
    first_forward = (per_microbatch + stages - stage) * placement.microbatches
    sequences = Sequences(
        rank=rank, of_rank=np.searchsorted(rank, np.arange(placement.ranks + 1)), kind=kind, stage=stage,
        duration=np.stack(list(times.values()))[kind_index, stage], span=span,
        first=np.cumsum([0, *blocks]), sequence_of=np.repeat(number, blocks if transfer else 0),
        microbatch=np.argsort(placement.microbatch_route, kind="stable").astype(np.int32),
        turn=(np.cumsum(microbatches) - microbatches)[route],
        after_ptr=np.searchsorted(source[by_source], np.arange(number.size + 1)), after=target[by_source],
        room=room.ravel(), origin=np.where(is_forward, first_forward, stage * len(Kind) + kind),
        step=np.where(is_forward, 1, per_microbatch),
        direction=np.where(is_forward, 1, np.where(kind == kinds[-1], -1, 0)),
    )  # fmt: skip
    return sequences, np.bincount(target, minlength=number.size) * span


def _initial_state(
    sequences: Sequences, awaited: Int64s, left: Int64s, row_ptr: Int64s
) -> tuple[ListingState, Heap]:
    zeros, ranks, count = partial(np.zeros, dtype=np.int64), row_ptr.size - 1, int(sequences.first[-1])
    late = sequences.sequence_of.size
    narrow = np.int32 if count < np.iinfo(np.int32).max else np.int64
    state = ListingState(
        needs=np.repeat(awaited.astype(narrow), np.diff(sequences.first)), left=left,
        sequence=np.full(ranks, -1), action=zeros(ranks), enabled=np.empty(count, dtype=narrow),
        begin=sequences.first[:-1].copy(), end=sequences.first[:-1].copy(), head=zeros(awaited.size),
        ready=zeros(late), dirty=zeros(ranks), stack=zeros(ranks), next=row_ptr[:-1].copy(),
    )  # fmt: skip
    most = ranks + late
    return state, Heap(item=zeros(most), place=np.full(most, OUTSIDE), time=zeros(most), size=zeros(1))


def _dependencies(placement: Placement, *, split: bool) -> Int64s:
    """Return the enabling and the enabled sequences, shape (2, dependencies), numbered by kind, route and stage.

    Forwards are along the stages, gradients back, weight gradients after input gradients.
    """
    low, high = placement.edges.T
    stages = np.arange(placement.stages)
    ends = np.setdiff1d(stages, low)
    links = [((0, low), (0, high)), ((1, high), (1, low)), ((0, ends), (1, ends))]
    if split:
        links.append(((1, stages), (2, stages)))
    route = np.arange(placement.routes)[:, None]
    return np.stack([
        np.concatenate([
            ((kind * placement.routes + route) * placement.stages + stage).ravel() for kind, stage in side
        ])
        for side in zip(*links, strict=True)
    ])  # fmt: skip


def _keys(placement: Placement, sequences: Sequences, priority: Priority) -> Int64s:
    """Return the distinct priority of each action; empty for the default rule, whose priorities are linear."""
    if priority is backward_first:
        return np.zeros(0, dtype=np.int64)
    blocks = np.diff(sequences.first)
    columns = np.stack([sequences.kind, sequences.stage, sequences.span, sequences.rank]).astype(np.int32)
    kind, stage, span, rank = (np.repeat(column, blocks) for column in columns)
    microbatch = np.concatenate([
        sequences.microbatch[turn : turn + count * width : width]
        for turn, count, width in zip(sequences.turn, blocks, sequences.span, strict=True)
    ])  # fmt: skip
    actions = Actions(
        kind=kind, stage=stage, microbatch=microbatch, span=span, pair=uniform(-1, kind.size), rank=rank,
        route=placement.microbatch_route[microbatch],
    )  # fmt: skip
    return _one_key([*priority(actions), kind, stage, microbatch])


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


def _deadlock_error(sequences: Sequences, state: ListingState) -> ScheduleError:
    """Return the error of actions that limits in flight block; it names the first one of the deepest stage."""
    blocked = list[tuple[int, int, int]]()
    for sequence in np.flatnonzero(state.begin < state.end).tolist():
        action = state.enabled[state.begin[sequence] : state.end[sequence]].min()
        turn = (action - sequences.first[sequence]) * sequences.span[sequence]
        microbatch = sequences.microbatch[sequences.turn[sequence] + turn]
        blocked.append((-sequences.stage[sequence], microbatch, sequence))
    if not blocked:
        return ScheduleError("the stages' graph has a cycle: no action on it can ever start")
    _, microbatch, sequence = min(blocked)
    rank, kind = int(sequences.rank[sequence]), Kind(sequences.kind[sequence])
    action = Action(
        kind=kind, stage=sequences.stage[sequence], microbatch=microbatch, span=sequences.span[sequence]
    )
    message = f"rank {rank}: {action} can never start: too few microbatches may be in flight; allow more"
    return ScheduleError(message, rank=rank, action=str(action))
