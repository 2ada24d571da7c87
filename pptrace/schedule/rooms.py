"""What a list scheduler bounds in flight: rooms of microbatches, and the queues of what waits for room in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Kind
from pptrace.schedule.kernels.listing import Queues

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s
    from pptrace.model.placement import Placement
    from pptrace.schedule.list_scheduler import Actions, InFlight

__all__ = ["queues_of", "rooms_of"]


def rooms_of(placement: Placement, actions: Actions, in_flight: InFlight) -> tuple[Int64s, Int64s]:
    """Return what rooms hold, and every action's two, its stage's and its rank's; -1 where unbounded.

    Where nothing is bounded, no action has any.
    """
    routes, stages = placement.routes, placement.stages
    left = np.concatenate([
        _room(in_flight.stage, (routes, stages)), _room(in_flight.rank, (placement.ranks,)),
    ])  # fmt: skip
    if (left < 0).all():
        return left, np.full((0, 2), -1, dtype=np.int64)
    # By the number that a room would have: its own, or -1 where nothing is bounded.
    of = np.where(left < 0, -1, np.arange(left.size))
    rooms = np.empty((len(actions), 2), dtype=np.int64)
    rooms[:, 0], rooms[:, 1] = of[_stage_room(placement, actions)], of[routes * stages + actions.rank]
    return left, rooms


def _stage_room(placement: Placement, actions: Actions) -> Int64s:
    number: Int64s = actions.route.astype(np.int64) * placement.stages + actions.stage
    return number


def queues_of(placement: Placement, actions: Actions, rooms: Int64s) -> tuple[Int64s, Queues, Int64s]:
    """Return every action's queue, the queues, and the rooms that are taken from each.

    There is one for each stage of each route that a rank holds, for what takes room there, and one for all else.
    """
    ranks = placement.ranks
    slot = actions.rank.astype(np.int64)
    if len(rooms):
        waits_for_room = (actions.kind == Kind.F) & ((rooms[:, 0] >= 0) | (rooms[:, 1] >= 0))
        slot = np.where(waits_for_room, ranks + _stage_room(placement, actions), slot)
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
