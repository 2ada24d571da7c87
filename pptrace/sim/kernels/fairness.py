"""Max-min fair rates of flows that share links, refilled only where something changed.

A flow of rate r takes weight x r of each of its links. Rates are max-min fair where every flow is at its
own cap, or has a bottleneck: a full link on which no flow has a higher rate (Bertsekas and Gallager, Data
Networks, 6.5.2). Called by kernels; columns are lists or arrays of integers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

AT_CAP = -1
"""The limit of a flow that no link limits."""

KEPT, FREE, FILLED, FREED = 0, 1, 2, 3
"""Marks of a flow: it keeps its rate; has no rate; has a new rate; was freed in this round."""

UNTOUCHED, OURS, MIXED = 0, 1, 2
"""Marks of a link: no flow on it changes; all do; some do."""

_HIGHEST = 1 << 62


class Flows(NamedTuple):
    """Active flows and their rates."""

    links: Any
    """Number of its links, which are the links of its first places."""
    cap: Any
    """The rate that it cannot pass."""
    rate: Any
    """The rate at which it moves."""
    fair: Any
    """The rate that it should have."""
    limit: Any
    """The link that sets its rate, or :data:`AT_CAP`."""
    free: Any
    """Flows that need new rates; functions pass their number."""
    mark: Any
    """:data:`KEPT` for all other flows."""


class Places(NamedTuple):
    """Flows on links: flow ``f`` has the places from ``width * f`` on, which are chained along each link."""

    link: Any
    weight: Any
    """How many times the flow's rate it takes there."""
    flow: Any
    after: Any
    """The next place on the link, -1 at its end."""
    before: Any
    width: int


class LinkCapacities(NamedTuple):
    """Links, their flows, and scratch columns of the filling."""

    capacity: Any
    head: Any
    """The first place on it, -1 for none."""
    tail: Any
    load: Any
    """Rate of its flows without the free flows."""
    members: Any
    """Sum of the weights of its flows."""
    room: Any
    """Remaining capacity."""
    wanted: Any
    """Sum of the weights of its flows without a rate."""
    share: Any
    """Remaining capacity per unit of that weight."""
    touched: Any
    """Links of free flows; functions pass their number."""
    mark: Any
    """:data:`UNTOUCHED` for all other links."""


def refill(flows: Flows, places: Places, links: LinkCapacities, count: int) -> int:
    """Give the first ``count`` free flows their fair rates; return how many flows were freed in all.

    Other flows keep their rates. If that leaves one without a bottleneck, or above a flow that now has one, it is
    freed too, and the filling starts again.
    """
    done = touched = 0
    while done < count:
        touched = _subtract_rates(flows, places, links, done, count, touched)
        done = count
        _fill(flows, places, links, count, touched)
        count = _add_affected(flows, places, links, count, touched)
    for i in range(touched):
        links.mark[links.touched[i]] = UNTOUCHED
    for i in range(count):
        flow = flows.free[i]
        flows.mark[flow] = KEPT
        first = flow * places.width
        for place in range(first, first + flows.links[flow]):
            links.load[places.link[place]] += places.weight[place] * flows.fair[flow]
    return count


def _subtract_rates(
    flows: Flows, places: Places, links: LinkCapacities, first: int, count: int, touched: int
) -> int:
    """Subtract the rates of free flows from their links, and mark these links; return how many are marked."""
    for i in range(first, count):
        flow = flows.free[i]
        start = flow * places.width
        for place in range(start, start + flows.links[flow]):
            link = places.link[place]
            links.load[link] -= places.weight[place] * flows.rate[flow]
            if links.mark[link] == UNTOUCHED:
                links.mark[link] = OURS
                links.touched[touched] = link
                touched += 1
    return touched


def _fill(flows: Flows, places: Places, links: LinkCapacities, count: int, touched: int) -> None:
    """Fill the remaining capacity: all rates rise at the same pace, each until its cap or a full link."""
    lowest_cap = _reset(flows, places, links, count, touched)
    left = count
    while left > 0:
        touched, level = _lowest_share(links, touched)
        if lowest_cap <= level:
            # A flow at its cap takes no more than its share, so all caps up to the level go at once.
            lowest_cap = _HIGHEST
            for i in range(count):
                flow = flows.free[i]
                if flows.mark[flow] == FREE:
                    if flows.cap[flow] <= level:
                        _take(flows, places, links, flow, flows.cap[flow], AT_CAP)
                        left -= 1
                    else:
                        lowest_cap = min(lowest_cap, flows.cap[flow])
            continue
        for i in range(touched):
            full = links.touched[i]
            if links.wanted[full] > 0 and links.share[full] <= level:
                left -= _take_link(flows, places, links, full, level)


def _reset(flows: Flows, places: Places, links: LinkCapacities, count: int, touched: int) -> int:
    """Clear the rates of the first ``count`` free flows; return their lowest cap."""
    lowest_cap = _HIGHEST
    wanted, mark = links.wanted, links.mark
    for i in range(touched):
        wanted[links.touched[i]] = 0
    for i in range(count):
        flow = flows.free[i]
        flows.mark[flow] = FREE
        lowest_cap = min(lowest_cap, flows.cap[flow])
        start = flow * places.width
        for place in range(start, start + flows.links[flow]):
            wanted[places.link[place]] += places.weight[place]
    for i in range(touched):
        link = links.touched[i]
        mark[link] = MIXED if wanted[link] < links.members[link] else OURS
        room = links.capacity[link] - links.load[link]
        links.room[link] = room
        if wanted[link] > 0:
            links.share[link] = room // wanted[link]
    return lowest_cap


def _lowest_share(links: LinkCapacities, open_links: int) -> tuple[int, int]:
    """Move the links that are still open to the front; return their number and their lowest share."""
    touched, wanted, share = links.touched, links.wanted, links.share
    level = _HIGHEST
    i = 0
    while i < open_links:
        link = touched[i]
        if wanted[link] > 0:
            level = min(level, share[link])
            i += 1
        else:
            open_links -= 1
            touched[i] = touched[open_links]
            touched[open_links] = link
    return open_links, max(level, 1)  # a flow of rate 0 would never end


def _take_link(flows: Flows, places: Places, links: LinkCapacities, full: int, level: int) -> int:
    """Give the rate ``level`` to all flows of a full link without a rate; return how many."""
    taken = 0
    place = links.head[full]
    while place >= 0:
        flow = places.flow[place]
        if flows.mark[flow] == FREE:
            _take(flows, places, links, flow, level, full)
            taken += 1
        place = places.after[place]
    return taken


def _take(flows: Flows, places: Places, links: LinkCapacities, flow: int, level: int, limit: int) -> None:
    """Set a flow's rate, and subtract it from its links."""
    flows.mark[flow] = FILLED
    flows.fair[flow] = level
    flows.limit[flow] = limit
    start = flow * places.width
    for place in range(start, start + flows.links[flow]):
        link, weight = places.link[place], places.weight[place]
        left = links.wanted[link] - weight
        room = links.room[link] - weight * level
        links.wanted[link] = left
        links.room[link] = room
        if left > 0:
            links.share[link] = room // left


def _add_affected(flows: Flows, places: Places, links: LinkCapacities, count: int, touched: int) -> int:
    """Free the flows whose rates are no longer fair; return the new count.

    Such a flow is faster than one that the same link limits, or its link has capacity left or a faster flow. A
    difference of one unit is rounding.
    """
    for i in range(touched):
        link = links.touched[i]
        if links.mark[link] == MIXED:
            count = _add_affected_of_link(flows, places, links, link, count)
    return count


def _add_affected_of_link(flows: Flows, places: Places, links: LinkCapacities, link: int, count: int) -> int:
    """Free the flows of a link whose rates are no longer fair; return the new count."""
    rate, limit, mark = flows.rate, flows.limit, flows.mark
    limited_weight, lowest, highest = 0, _HIGHEST, 0
    place = links.head[link]
    while place >= 0:
        flow = places.flow[place]
        if limit[flow] == link:
            limited_weight += places.weight[place]
        if mark[flow] == FILLED:
            highest = max(highest, flows.fair[flow])
            if limit[flow] == link:
                lowest = min(lowest, flows.fair[flow])
        place = places.after[place]
    place = links.head[link]
    while place >= 0:
        flow = places.flow[place]
        if mark[flow] == KEPT:
            above = rate[flow] > lowest + 1
            below = limit[flow] == link and (highest > rate[flow] + 1 or links.room[link] >= limited_weight)
            if above or below:
                mark[flow] = FREED
                flows.free[count] = flow
                count += 1
        place = places.after[place]
    return count
