"""What a list scheduler bounds in flight: rooms of microbatches, and the queues of what waits for room in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Kind
from pptrace.record import dataclass
from pptrace.schedule.kernels.listing import Queues

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.placement import Placement
    from pptrace.schedule.list_scheduler import Actions

__all__ = ["InFlight", "queues_of", "rank_room", "room_of", "rooms_of", "stage_room"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """The most microbatches between a forward's start and its backward's end (of ``W``, where it is split)."""

    stage: object = None
    """Shape (routes, stages): on each stage of each route; None for no bound, -1 for none there."""
    rank: object = None
    """Shape (ranks,): over all stages that a rank holds; None and -1 likewise."""


def room_of(placement: Placement, in_flight: InFlight) -> Int64s:
    """Return what each room holds: every stage of each route, then every rank; -1 for no bound."""
    return np.concatenate([
        _room(in_flight.stage, (placement.routes, placement.stages)), _room(in_flight.rank, (placement.ranks,)),
    ])  # fmt: skip


def stage_room(placement: Placement, route: Int64s | Int32s, stage: Int64s | Int32s) -> Int64s:
    """Return the numbers of stages' rooms."""
    number: Int64s = route.astype(np.int64) * placement.stages + stage
    return number


def rank_room(placement: Placement, rank: Int64s | Int32s) -> Int64s:
    """Return the numbers of ranks' rooms."""
    number: Int64s = placement.routes * placement.stages + rank.astype(np.int64)
    return number


def rooms_of(placement: Placement, actions: Actions, left: Int64s) -> Int64s:
    """Return every action's two rooms, its stage's and its rank's; -1 where unbounded.

    Where nothing is bounded, no action has any.
    """
    if (left < 0).all():
        return np.full((0, 2), -1, dtype=np.int64)
    # By the number that a room would have: its own, or -1 where nothing is bounded.
    of = np.where(left < 0, -1, np.arange(left.size))
    rooms = np.empty((len(actions), 2), dtype=np.int64)
    rooms[:, 0] = of[stage_room(placement, actions.route, actions.stage)]
    rooms[:, 1] = of[rank_room(placement, actions.rank)]
    return rooms


def queues_of(placement: Placement, actions: Actions, rooms: Int64s) -> tuple[Int64s, Queues, Int64s]:
    """Return every action's queue, the queues, and the rooms that are taken from each.

    There is one for each stage of each route that a rank holds, for what takes room there, and one for all else.
    """
    ranks = placement.ranks
    slot = actions.rank.astype(np.int64)
    if len(rooms):
        waits_for_room = (actions.kind == Kind.F) & ((rooms[:, 0] >= 0) | (rooms[:, 1] >= 0))
        slot = np.where(waits_for_room, ranks + stage_room(placement, actions.route, actions.stage), slot)
    slot_rank = np.concatenate([np.arange(ranks), placement.stage_rank.ravel()])
    held = np.bincount(slot, minlength=slot_rank.size)
    sample, queue = np.empty((2, slot_rank.size), dtype=np.int64)
    used = np.argsort(slot_rank, kind="stable")
    used = used[held[used] > 0]
    queue[used] = np.arange(used.size)
    sample[slot] = np.arange(slot.size)  # any will do: all that take room from one queue take the same
    taken = np.full((used.size, 2), -1, dtype=np.int64)
    takes = used >= ranks
    taken[takes] = rooms[sample[used[takes]]]
    queues = Queues(
        rank=slot_rank[used], ptr=np.cumsum([0, *held[used]]),
        of_rank=np.searchsorted(slot_rank[used], np.arange(ranks + 1)),
    )  # fmt: skip
    return queue[slot], queues, taken


def _room(bound: object, shape: tuple[int, ...]) -> Int64s:
    """Return how much room there is, flat; -1 for no bound."""
    room: Int64s = (
        np.broadcast_to(np.asarray(-1 if bound is None else bound, dtype=np.int64), shape).ravel().copy()
    )
    return room
