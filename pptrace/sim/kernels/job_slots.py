"""Running jobs: their slots, the links of their paths, and their ranks."""

from __future__ import annotations

from typing import Any, NamedTuple

from pptrace.sim.kernels.fairness import AT_CAP, FREE, KEPT, Flows, LinkCapacities, Places
from pptrace.sim.kernels.sweep import COMPUTATION, Jobs

ENDED = -2
"""The limit of a job that has ended."""


class SharedLinks(NamedTuple):
    """The links on which flows contend, renumbered."""

    number: Any
    """Index of each link in the network."""
    rate_kbps: Any
    """Capacity of each link."""
    ptr: Any
    """Shape (paths + 1,): the shared links of path ``p`` are ``link[ptr[p]:ptr[p + 1]]``."""
    link: Any
    """Shared links along the paths."""
    weight: Any
    """Flows of a message on each of them."""


class Running(NamedTuple):
    """Slots of running jobs; few slots keep the columns in the caches.

    A slot is an index into :class:`~pptrace.sim.kernels.fairness.Flows`, whose caps, rates and limits hold for all
    jobs.
    """

    slot: Any
    """Per job its slot, -1 before it arrives."""
    due: Any
    """Per job, the time of its next event. Its time in the heap may be earlier and is never later."""
    job: Any
    """Per slot its job."""
    remaining: Any
    since: Any
    """Time at which ``remaining`` was last updated."""
    unused: Any
    """Slots of jobs that have ended."""
    used: Any
    """Three values: slots ever used, unused slots, and slots that were unused before this instant."""


class Ranks(NamedTuple):
    """Jobs on ranks: slot ``s`` has the places ``2 * s`` on its rank and ``2 * s + 1`` on its peer."""

    head: Any
    after: Any
    before: Any
    computing: Any
    communicating: Any


def arrive(jobs: Jobs, running: Running, flows: Flows, job: int, now: int) -> int:
    """Give a job a slot; return the slot."""
    unused, used = running.unused, running.used
    if used[2] > 0:
        used[2] -= 1
        used[1] -= 1
        slot = unused[used[2]]
        unused[used[2]] = unused[used[1]]
    else:
        slot = used[0]
        used[0] += 1
    running.slot[job] = slot
    running.job[slot] = job
    running.remaining[slot] = jobs.volume[job]
    running.since[slot] = now
    flows.cap[slot] = jobs.full_rate[job]
    flows.rate[slot] = 0
    flows.limit[slot] = AT_CAP
    return slot


def leave(running: Running, flows: Flows, slot: int) -> None:
    """Give up a slot."""
    flows.limit[slot] = ENDED
    running.unused[running.used[1]] = slot
    running.used[1] += 1


def enter_links(
    shared: SharedLinks, flows: Flows, places: Places, links: LinkCapacities, path: int, slot: int
) -> None:
    """Append a flow to the links of its path."""
    first = place = slot * places.width
    if path >= 0:
        for entry in range(shared.ptr[path], shared.ptr[path + 1]):
            link, weight = shared.link[entry], shared.weight[entry]
            places.link[place] = link
            places.weight[place] = weight
            places.flow[place] = slot
            links.members[link] += weight
            last = links.tail[link]
            places.before[place] = last
            places.after[place] = -1
            if last >= 0:
                places.after[last] = place
            else:
                links.head[link] = place
            links.tail[link] = place
            place += 1
    flows.links[slot] = place - first


def leave_links(flows: Flows, places: Places, links: LinkCapacities, slot: int) -> None:
    """Take a flow off its links."""
    first = slot * places.width
    for place in range(first, first + flows.links[slot]):
        link, weight = places.link[place], places.weight[place]
        links.members[link] -= weight
        links.load[link] -= weight * flows.rate[slot]
        before, after = places.before[place], places.after[place]
        if before >= 0:
            places.after[before] = after
        else:
            links.head[link] = after
        if after >= 0:
            places.before[after] = before
        else:
            links.tail[link] = before


def mark_changed(flows: Flows, slot: int, count: int) -> int:
    """Append a job to the ``count`` jobs whose rates change, once; return the new count."""
    if flows.mark[slot] != KEPT:
        return count
    flows.mark[slot] = FREE
    flows.free[count] = slot
    return count + 1


def mark_limited(flows: Flows, places: Places, links: LinkCapacities, slot: int, count: int) -> int:
    """Append the flows that the links of a flow limit; return the new count."""
    flow, after, limit = places.flow, places.after, flows.limit
    first = slot * places.width
    for entry in range(first, first + flows.links[slot]):
        link = places.link[entry]
        place = links.head[link]
        while place >= 0:
            if limit[flow[place]] == link:
                count = mark_changed(flows, flow[place], count)
            place = after[place]
    return count


def change_ranks(
    jobs: Jobs, running: Running, ranks: Ranks, flows: Flows, slot: int, arrives: int, count: int
) -> int:
    """Add a job to its ranks, or remove it, and append all jobs of these ranks; return the new count."""
    job = running.job[slot]
    for side in range(2):
        rank = jobs.rank[job] if side == 0 else jobs.peer[job]
        if rank < 0:
            continue
        if arrives:
            _chain_on_rank(ranks, rank, 2 * slot + side)
        else:
            _unchain_from_rank(ranks, rank, 2 * slot + side)
        busy = ranks.computing if jobs.kind[job] == COMPUTATION else ranks.communicating
        busy[rank] += 1 if arrives else -1
        place = ranks.head[rank]
        while place >= 0:
            count = mark_changed(flows, place >> 1, count)
            place = ranks.after[place]
    return count


def _chain_on_rank(ranks: Ranks, rank: int, place: int) -> None:
    first = ranks.head[rank]
    ranks.before[place] = -1
    ranks.after[place] = first
    if first >= 0:
        ranks.before[first] = place
    ranks.head[rank] = place


def _unchain_from_rank(ranks: Ranks, rank: int, place: int) -> None:
    before, after = ranks.before[place], ranks.after[place]
    if before >= 0:
        ranks.after[before] = after
    else:
        ranks.head[rank] = after
    if after >= 0:
        ranks.before[after] = before
