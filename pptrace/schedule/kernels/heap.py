"""A binary heap of jobs by (time, job) that knows each job's place, so that times may change.

Called by kernels; columns are lists or arrays of integers, alike in use, hence without annotations.
"""

__all__ = ["lift", "pop", "push", "sink"]


def lift(heap, place, when, at):
    """Move the job at a place of the heap towards the top as far as it belongs."""
    job = heap[at]
    time = when[job]
    while at > 0:
        above = (at - 1) >> 1
        other = heap[above]
        if when[other] < time or (when[other] == time and other < job):
            break
        heap[at] = other
        place[other] = at
        at = above
    heap[at] = job
    place[job] = at


def sink(heap, place, when, size, at):
    """Move the job at a place of the heap away from the top as far as it belongs."""
    job = heap[at]
    time = when[job]
    while True:
        below = 2 * at + 1
        if below >= size:
            break
        other = heap[below]
        if below + 1 < size:
            right = heap[below + 1]
            if when[right] < when[other] or (when[right] == when[other] and right < other):
                below += 1
                other = right
        if time < when[other] or (time == when[other] and job < other):
            break
        heap[at] = other
        place[other] = at
        at = below
    heap[at] = job
    place[job] = at


def push(heap, place, when, size, job):
    """Add a job whose time is in ``when``; return the new size."""
    heap[size] = job
    lift(heap, place, when, size)
    return size + 1


def pop(heap, place, when, size):
    """Take the first job off (the caller has read it); return the new size."""
    place[heap[0]] = -1
    size -= 1
    if size > 0:
        heap[0] = heap[size]
        sink(heap, place, when, size, 0)
    return size
