"""Max-min fair rates of flows that share links, refilled only where something changed.

A flow of rate r takes weight x r of each of its links. Rates are max-min fair where every flow is at its
own cap, or has a bottleneck: a full link on which no flow has a higher rate (Bertsekas and Gallager, Data
Networks, 6.5.2). Called by kernels; columns are lists or arrays of integers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

AT_CAP = -1
"""The limit of a flow that no link limits."""

KEPT, FREE, FILLED = 0, 1, 2
"""Marks of a flow: it keeps its rate; has no rate; has a new rate."""

_HIGHEST = 1 << 62
_STALE = -1
"""The next level of an open link before its computation."""


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
    """Links and their flows. A link is open while flows on it, or all that it limits, may get new rates."""

    head: Any
    """The first place on it, -1 for none."""
    tail: Any
    room: Any
    """Capacity that no flow takes."""
    wanted: Any
    """Sum of the weights of its free flows."""
    limited: Any
    """Sum of the weights of the flows that it limits."""
    level: Any
    """The lowest rate of these flows."""
    open: Any
    """Open links; their number is the only value of ``opened``."""
    opened: Any
    index: Any
    """The index of each link in ``open``, -1 for the other links."""
    next_level: Any
    """Per open link, in the same order: the level at which it fills, or at which its flows can rise."""


def refill(flows: Flows, places: Places, links: LinkCapacities, count: int) -> int:
    """Give the first ``count`` flows and all that they affect fair rates; return the number of these flows.

    The level rises from zero, and each open link fills at its share. A link that fills takes capacity only from
    faster flows, and leaves capacity only to links that limit faster flows. So no flow gets a rate twice, and a
    link that limits flows opens only if their rate changes. A difference of one unit is rounding.
    """
    released, lowest_cap = 0, _HIGHEST
    while True:
        while released < count:
            flow = flows.free[released]
            flows.mark[flow] = FREE
            lowest_cap = min(lowest_cap, flows.cap[flow])
            release(flows, places, links, flow, 1)
            released += 1
        level = _lowest_level(links)
        if lowest_cap <= level and lowest_cap < _HIGHEST:
            lowest_cap = _fill_to_caps(flows, places, links, count, level)
        elif level < _HIGHEST:
            count = _fill_links(flows, places, links, count, level)
        else:
            break
    for i in range(count):
        flows.mark[flows.free[i]] = KEPT
    return count


def release(flows: Flows, places: Places, links: LinkCapacities, flow: int, is_free: int) -> None:
    """Return the rate of a flow to its links, which open; ``is_free`` is 0 if it needs no other rate."""
    rate, limit = flows.rate[flow], flows.limit[flow]
    first = flow * places.width
    for place in range(first, first + flows.links[flow]):
        link, weight = places.link[place], places.weight[place]
        links.room[link] += weight * rate
        links.wanted[link] += weight * is_free
        if link == limit:
            links.limited[link] -= weight
        if links.index[link] < 0:
            links.index[link] = links.opened[0]
            links.open[links.opened[0]] = link
            links.opened[0] += 1
        links.next_level[links.index[link]] = _STALE


def _next_level(links: LinkCapacities, i: int) -> int:
    """Return the next level of an open link."""
    if links.next_level[i] == _STALE:
        link = links.open[i]
        room, wanted, limited = links.room[link], links.wanted[link], links.limited[link]
        level = room // wanted if wanted > 0 else _HIGHEST
        if limited > 0 and (wanted > 0 or room >= limited):
            level = min(level, links.level[link] + 1)
        links.next_level[i] = level
    return links.next_level[i]


def _lowest_level(links: LinkCapacities) -> int:
    """Close the links without a next level; return the lowest of all others."""
    opened, lowest = links.opened[0], _HIGHEST
    i = 0
    while i < opened:
        level = _next_level(links, i)
        if level < _HIGHEST:
            lowest = min(lowest, level)
            i += 1
        else:
            opened -= 1
            links.index[links.open[i]] = -1
            if i < opened:
                links.open[i] = links.open[opened]
                links.next_level[i] = links.next_level[opened]
                links.index[links.open[i]] = i
    links.opened[0] = opened
    return max(lowest, 1)  # a flow of rate 0 would never end


def _fill_to_caps(flows: Flows, places: Places, links: LinkCapacities, count: int, level: int) -> int:
    """Give all free flows whose caps are at most the level their caps; return the lowest cap of all others."""
    lowest_cap = _HIGHEST
    for i in range(count):
        flow = flows.free[i]
        if flows.mark[flow] == FREE:
            if flows.cap[flow] <= level:
                _fill(flows, places, links, flow, flows.cap[flow], AT_CAP)
            else:
                lowest_cap = min(lowest_cap, flows.cap[flow])
    return lowest_cap


def _fill_links(flows: Flows, places: Places, links: LinkCapacities, count: int, level: int) -> int:
    """Fill the open links of a level up to the first that frees flows; return the new count of these flows."""
    for i in range(links.opened[0]):
        if _next_level(links, i) <= level:
            link = links.open[i]
            listed = _free_faster(flows, places, links, link, level, count)
            if listed > count:
                return listed
            place = links.head[link]
            while place >= 0:
                flow = places.flow[place]
                if flows.mark[flow] == FREE:
                    _fill(flows, places, links, flow, level, link)
                place = places.after[place]
            if _next_level(links, i) <= level:
                links.next_level[i] = _HIGHEST
    return count


def _free_faster(flows: Flows, places: Places, links: LinkCapacities, link: int, level: int, count: int) -> int:
    """List the flows of a link that change if it fills to a level; return the new count.

    Flows that it limits are its fastest. They change if they are faster than the level, or if capacity is left at
    the level. The other flows change if they are faster.
    """
    limited, common = links.limited[link], links.level[link]
    is_limit = limited > 0 and (
        common > level + 1 or links.room[link] - links.wanted[link] * (common + 1) >= limited
    )
    place = links.head[link]
    while place >= 0:
        flow = places.flow[place]
        if flows.mark[flow] == KEPT and (flows.limit[flow] == link if is_limit else flows.rate[flow] > level + 1):
            flows.free[count] = flow
            count += 1
        place = places.after[place]
    return count


def _fill(flows: Flows, places: Places, links: LinkCapacities, flow: int, level: int, limit: int) -> None:
    """Set a flow's rate, and subtract it from its links."""
    flows.mark[flow] = FILLED
    flows.fair[flow] = level
    flows.limit[flow] = limit
    first = flow * places.width
    for place in range(first, first + flows.links[flow]):
        link, weight = places.link[place], places.weight[place]
        links.wanted[link] -= weight
        links.room[link] -= weight * level
        if link == limit:
            if links.limited[link] == 0 or level < links.level[link]:
                links.level[link] = level
            links.limited[link] += weight
        links.next_level[links.index[link]] = _STALE  # a link of a free flow is open
