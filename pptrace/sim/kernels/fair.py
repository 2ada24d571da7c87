"""Max-min fair rates of flows that share links, refilled only where something changed.

A flow of rate r takes weight x r of each of its links. Rates are max-min fair where every flow is at its
own cap, or has a bottleneck: a full link on which no flow has a higher rate (Bertsekas and Gallager, Data
Networks, 6.5.2). Called by kernels; columns are lists or arrays of integers, hence without annotations.
"""

__all__ = ["fill", "refill", "take", "widen"]


def refill(
    count, free, is_free, path, path_ptr, path_link, path_weight, capacity, cap,
    head, after, owner, width, load, members, room, wanted, share, touched, is_touched, rate, fair, limit,
):  # fmt: skip
    """Give the first ``count`` flows of ``free`` new rates in ``fair``; return how many were needed in the end.

    All others keep theirs at first. Where that leaves one without its bottleneck, or above a flow that now
    has one, it is freed too, and the filling starts again.
    """
    done = 0
    links = 0
    while True:
        for i in range(done, count):
            job = free[i]
            for e in range(path_ptr[path[job]], path_ptr[path[job] + 1]):
                link = path_link[e]
                load[link] -= path_weight[e] * rate[job]
                if is_touched[link] == 0:
                    is_touched[link] = 1
                    touched[links] = link
                    links += 1
        done = count
        fill(
            count, free, is_free, path, path_ptr, path_link, path_weight, capacity, cap, head, after, owner,
            load, members, room, wanted, share, links, touched, is_touched, fair, limit,
        )  # fmt: skip
        count = widen(
            count, free, is_free, path, path_ptr, path_weight, links, touched, is_touched, head, after, owner,
            width, room, rate, fair, limit,
        )  # fmt: skip
        if count == done:
            break
    for i in range(links):
        is_touched[touched[i]] = 0
    for i in range(count):
        job = free[i]
        is_free[job] = 0
        for e in range(path_ptr[path[job]], path_ptr[path[job] + 1]):
            load[path_link[e]] += path_weight[e] * fair[job]
    return count


def fill(
    count, free, is_free, path, path_ptr, path_link, path_weight, capacity, cap, head, after, owner,
    load, members, room, wanted, share, links, touched, is_touched, fair, limit,
):  # fmt: skip
    """Fill what the other flows leave: all rates rise together, each until its cap or a full link.

    ``is_free`` becomes 1 for a flow without a rate yet, 2 for one that has it; ``is_touched`` becomes 2 for
    a link that flows of other rates are on too.
    """
    for i in range(links):
        link = touched[i]
        room[link] = capacity[link] - load[link]
        wanted[link] = 0
    lowest_cap = -1
    for i in range(count):
        job = free[i]
        is_free[job] = 1
        if lowest_cap < 0 or cap[job] < lowest_cap:
            lowest_cap = cap[job]
        for e in range(path_ptr[path[job]], path_ptr[path[job] + 1]):
            wanted[path_link[e]] += path_weight[e]
    for i in range(links):
        link = touched[i]
        is_touched[link] = 2 if wanted[link] < members[link] else 1
        if wanted[link] > 0:
            share[link] = room[link] // wanted[link]
    left = count
    open_links = links
    while left > 0:
        level = -1
        i = 0
        while i < open_links:
            link = touched[i]
            if wanted[link] <= 0:
                open_links -= 1
                touched[i] = touched[open_links]
                touched[open_links] = link
                continue
            if level < 0 or share[link] < level:
                level = share[link]
            i += 1
        level = max(level, 1)  # a flow of rate 0 would never end
        if lowest_cap <= level:
            # A flow at its cap takes no more than its share, so all caps up to the level go at once.
            lowest_cap = -1
            for i in range(count):
                job = free[i]
                if is_free[job] == 1:
                    if cap[job] <= level:
                        left -= 1
                        take(
                            job, cap[job], -1, is_free, path, path_ptr, path_link, path_weight,
                            room, wanted, share, fair, limit,
                        )  # fmt: skip
                    elif lowest_cap < 0 or cap[job] < lowest_cap:
                        lowest_cap = cap[job]
            if lowest_cap < 0:
                lowest_cap = 1 << 62
            continue
        for i in range(open_links):
            full = touched[i]
            if wanted[full] <= 0 or share[full] > level:
                continue
            node = head[full]
            while node >= 0:
                job = owner[node]
                if is_free[job] == 1:
                    left -= 1
                    take(
                        job, level, full, is_free, path, path_ptr, path_link, path_weight,
                        room, wanted, share, fair, limit,
                    )  # fmt: skip
                node = after[node]


def take(job, level, why, is_free, path, path_ptr, path_link, path_weight, room, wanted, share, fair, limit):
    """Give a flow its rate, and take that from its links."""
    is_free[job] = 2
    fair[job] = level
    limit[job] = why
    for e in range(path_ptr[path[job]], path_ptr[path[job] + 1]):
        link = path_link[e]
        room[link] -= path_weight[e] * level
        wanted[link] -= path_weight[e]
        if wanted[link] > 0:
            share[link] = room[link] // wanted[link]


def widen(
    count, free, is_free, path, path_ptr, path_weight, links, touched, is_touched, head, after, owner, width,
    room, rate, fair, limit,
):  # fmt: skip
    """Free the flows whose rates can no longer stand; return the new count.

    A flow above one that the same link limits, or limited by a link that has room or a faster flow. One unit
    either way is rounding.
    """
    for i in range(links):
        link = touched[i]
        if is_touched[link] < 2:
            continue
        held = 0
        lowest = -1
        highest = 0
        node = head[link]
        while node >= 0:
            job = owner[node]
            if is_free[job] == 2:
                highest = max(highest, fair[job])
            if limit[job] == link:
                held += path_weight[path_ptr[path[job]] + node - job * width]
                if is_free[job] == 2:
                    lowest = fair[job] if lowest < 0 else min(lowest, fair[job])
            node = after[node]
        node = head[link]
        while node >= 0:
            job = owner[node]
            if is_free[job] == 0:
                above = lowest >= 0 and rate[job] > lowest + 1
                below = limit[job] == link and (highest > rate[job] + 1 or room[link] >= held)
                if above or below:
                    is_free[job] = 3
                    free[count] = job
                    count += 1
            node = after[node]
    return count
