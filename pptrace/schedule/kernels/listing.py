"""The list scheduler's kernel: every rank starts, whenever it is free, the first of its actions that may run.

Columns are lists or arrays of integers, alike in use, hence without annotations.
"""

from pptrace.schedule.kernels.heap import pop, push

__all__ = ["list_actions", "put", "take"]


def list_actions(
    duration, after_ptr, after, lag, queue, key, returns, room, queue_rank, queue_ptr, queue_room, rank_queues,
    needs, left, free, fill, ready, shelf, dirty, stack, heap, place, when, turn,
):  # fmt: skip
    """Run all actions and fill ``turn``; return how many could run.

    Args:
        duration: per action, its time.
        after_ptr: with ``after`` and ``lag``, CSR by action: what it enables, that long after its end.
        after: see above.
        lag: see above.
        queue: per action, the queue in which it waits once it is enabled.
        key: per action, its place in the order of its rank's choice; distinct.
        returns: shape (actions x 2,): the rooms to which its end returns what ``room`` says; -1 for none.
        room: per action, the units that it takes at its start or returns at its end.
        queue_rank: per queue, its rank; a rank's queues stand together.
        queue_ptr: per queue and one more, where its part of ``shelf`` starts.
        queue_room: shape (queues x 2,): the rooms from which its actions take; -1 for none.
        rank_queues: per rank and one more, its first queue.
        needs: per action, how many others enable it.
        left: per room, the units that may still be taken.
        free: per rank, 1.
        fill: per queue, 0.
        ready: per action, 0.
        shelf: per action, scratch: a heap by ``key`` for each queue.
        dirty: per rank, 0.
        stack: per rank, scratch.
        heap: shape (actions x 2,), scratch.
        place: likewise, -1.
        when: likewise, scratch.
        turn: per action, -1: its place among all starts.
    """
    actions = len(duration)
    size, begun, now, touched = 0, 0, 0, 0
    for action in range(actions):
        if needs[action] == 0:
            when[actions + action] = 0
            size = push(heap, place, when, size, actions + action)
    while size > 0:
        now = when[heap[0]]
        while size > 0 and when[heap[0]] == now:
            event = heap[0]
            size = pop(heap, place, when, size)
            if event >= actions:
                action = event - actions
                own = queue[action]
                put(shelf, key, queue_ptr[own], fill[own], action)
                fill[own] += 1
                rank = queue_rank[own]
            else:
                rank = queue_rank[queue[event]]
                free[rank] = 1
                for side in range(2):
                    given = returns[2 * event + side]
                    if given >= 0:
                        left[given] += room[event]
                for edge in range(after_ptr[event], after_ptr[event + 1]):
                    target = after[edge]
                    ready[target] = max(ready[target], now + lag[edge])
                    needs[target] -= 1
                    if needs[target] == 0:
                        when[actions + target] = ready[target]
                        size = push(heap, place, when, size, actions + target)
            if dirty[rank] == 0:
                dirty[rank] = 1
                stack[touched] = rank
                touched += 1
        while touched > 0:
            touched -= 1
            rank = stack[touched]
            dirty[rank] = 0
            if free[rank] == 0:
                continue
            best, chosen = -1, -1
            for own in range(rank_queues[rank], rank_queues[rank + 1]):
                if fill[own] == 0:
                    continue
                action = shelf[queue_ptr[own]]
                held, all_held = queue_room[2 * own], queue_room[2 * own + 1]
                if held >= 0 and left[held] < room[action]:
                    continue
                if all_held >= 0 and left[all_held] < room[action]:
                    continue
                if best < 0 or key[action] < key[best]:
                    best, chosen = action, own
            if best < 0:
                continue
            for side in range(2):
                taken = queue_room[2 * chosen + side]
                if taken >= 0:
                    left[taken] -= room[best]
            fill[chosen] -= 1
            take(shelf, key, queue_ptr[chosen], fill[chosen])
            free[rank] = 0
            turn[best] = begun
            begun += 1
            when[best] = now + duration[best]
            size = push(heap, place, when, size, best)
    return begun


def put(shelf, key, first, count, action):
    """Put an action into the queue that starts at ``first`` and holds ``count``."""
    at = count
    while at > 0:
        above = (at - 1) >> 1
        if key[shelf[first + above]] < key[action]:
            break
        shelf[first + at] = shelf[first + above]
        at = above
    shelf[first + at] = action


def take(shelf, key, first, count):
    """Take the first action off a queue (the caller has read it), which leaves ``count``."""
    last = shelf[first + count]
    at = 0
    while 2 * at + 1 < count:
        below = 2 * at + 1
        if below + 1 < count and key[shelf[first + below + 1]] < key[shelf[first + below]]:
            below += 1
        if key[last] < key[shelf[first + below]]:
            break
        shelf[first + at] = shelf[first + below]
        at = below
    shelf[first + at] = last
