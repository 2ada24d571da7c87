"""Counters of a step over time, which traces show as tracks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.steps.actions import microbatches_of
from pptrace.steps.columns import ranges
from pptrace.steps.kinds import BACKWARD, COMPUTE, GRADIENTS, PASSES, SENDS, WEIGHT_GRADIENTS, Kind, Stream
from pptrace.timeline.actions import folded, in_group
from pptrace.timeline.idle import COMMUNICATION
from pptrace.timeline.link_use import busiest_links
from pptrace.timeline.memory import changes_of_rank, held_at_start, measure_memory
from pptrace.timeline.metrics import received_spans
from pptrace.timeline.timeline import Counter, step_functions
from pptrace.timeline.trim import update_intervals

if TYPE_CHECKING:
    from pptrace.network.contract import Paths
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.workload import Workload
    from pptrace.timeline.link_use import Traffic
    from pptrace.timeline.timeline import Timeline, Waits


def counters_of(
    timeline: Timeline, workload: Workload, traffic: Traffic | None, waits: Waits
) -> tuple[Counter, ...]:
    """Return the counters of a simulated step, by rank; those of the cluster first.

    Without links, ``traffic`` is None. ``waits`` have the idle time by cause.
    """
    has_memory = workload.activation_bytes.any() or workload.static_bytes.any()
    counters = [
        *(memory_counters(timeline, workload) if has_memory else ()),
        *in_flight(timeline),
        *send_rates(timeline),
        *communication_counters(timeline, waits),
        *(link_counters(timeline, traffic) if traffic is not None else ()),
    ]
    return tuple(sorted(counters, key=lambda counter: counter.rank))


def memory_counters(timeline: Timeline, workload: Workload) -> tuple[Counter, ...]:
    """Return each rank's memory over time, static bytes included, as counters."""
    static = measure_memory(timeline, workload).static_bytes
    held_bytes = held_at_start(timeline, workload).size_bytes
    counters = []
    for rank in range(timeline.ranks):
        change_ns, changes = changes_of_rank(timeline, workload, rank, held_bytes)
        time_ns, first = np.unique(change_ns, return_index=True)
        value = static[rank] + np.add.reduceat(changes.sum(axis=0), first).cumsum() if time_ns.size else time_ns
        if not time_ns.size or time_ns[0] > 0:
            time_ns, value = np.concatenate([[0], time_ns]), np.concatenate([[static[rank]], value])
        counters.append(Counter(rank=rank, name="memory", unit="bytes", at_ns=time_ns, value=value))
    return tuple(counters)


_RELEASES = sorted(BACKWARD, key=lambda kind: (kind not in WEIGHT_GRADIENTS, kind in GRADIENTS))
"""Kinds that release a microbatch's activations; the first kind that the microbatch has is the release."""


def in_flight(timeline: Timeline) -> tuple[Counter, ...]:
    """Count the microbatches of each rank between their forward's start and their backward's end.

    A backward ends with ``W`` where it is split, else with ``B``, else with ``I``. A microbatch counts
    once for each of the rank's stages that it has passed. Where the backward is on another rank, a microbatch
    counts during its passes alone.
    """
    timeline = folded(timeline)
    rank = timeline.rank_of_row()
    passes = np.flatnonzero(PASSES.mask(timeline.kind) & (timeline.microbatch >= 0))
    number, stage, microbatch = microbatches_of(timeline, passes)
    rows = passes[number]
    key = stage.astype(np.int64) * (int(microbatch.max(initial=0)) + 1) + microbatch
    kind = timeline.kind[rows]
    enters = kind == Kind.F
    is_steady = bool(update_intervals(timeline))
    leaves, done = np.zeros_like(enters), ~np.isin(key, key[enters]) & (not is_steady)
    for release in _RELEASES:
        releases = (kind == release) & ~done
        leaves |= releases
        done |= np.isin(key, key[releases])
    placement = timeline.placement
    if placement.has_host_state:
        is_moved = placement.is_moved[placement.microbatch_route[microbatch], stage]
        enters, leaves = enters | (leaves & is_moved), leaves | (enters & is_moved)
    into, out = rows[enters], rows[leaves]
    held = rows[leaves & ~np.isin(key, key[enters])]
    return _sum_counters(
        "in flight",
        "microbatches",
        np.concatenate([rank[held], rank[into], rank[out]]),
        np.concatenate([np.zeros(held.size, dtype=np.int64), timeline.start_ns[into], timeline.end_ns[out]]),
        np.concatenate([np.ones(held.size + into.size, dtype=np.int64), np.full(out.size, -1)]),
    )


def send_rates(timeline: Timeline) -> tuple[Counter, ...]:
    """Sum, for each rank, the rates in bytes/s of the messages that are leaving it.

    A message's rate is its bytes over its time on the sender's stream, rounded down.
    """
    duration_ns = timeline.end_ns - timeline.start_ns
    rows = np.flatnonzero(SENDS.mask(timeline.kind) & (duration_ns > 0) & (timeline.size_bytes > 0))
    rate = _per_second(timeline.size_bytes[rows], duration_ns[rows])
    rank = timeline.rank_of_row()[rows]
    return _sum_counters(
        "send rate",
        "bytes/s",
        np.concatenate([rank, rank]),
        np.concatenate([timeline.start_ns[rows], timeline.end_ns[rows]]),
        np.concatenate([rate, -rate]),
    )


def _per_second(size_bytes: Int64s, duration_ns: Int64s) -> Int64s:
    """Return ``size_bytes * 10**9 // duration_ns``, three digits at a time to avoid overflow."""
    rate, remainder = np.divmod(size_bytes, duration_ns)
    for _ in range(3):
        digits, remainder = np.divmod(remainder * 1000, duration_ns)
        rate = rate * 1000 + digits
    return rate


def _sum_counters(name: str, unit: str, rank: Int32s, time_ns: Int64s, change: Int64s) -> tuple[Counter, ...]:
    """Return a counter per rank from changes in any order."""
    order = np.lexsort((time_ns, rank))
    return _rank_counters(name, unit, rank[order], time_ns[order], np.cumsum(change[order]))


def _rank_counters(name: str, unit: str, rank: Int32s, time_ns: Int64s, total: Int64s) -> tuple[Counter, ...]:
    """Return a counter per rank from totals that are sorted by rank and time and accumulate across ranks."""
    return tuple(
        Counter(rank=number, name=name, unit=unit, at_ns=times_ns, value=value)
        for number, times_ns, value in step_functions(rank, time_ns, total)
    )


_UNIT = "at once"


def communication_counters(timeline: Timeline, waits: Waits) -> tuple[Counter, ...]:
    """Return each rank's counters ``hidden communication`` and ``exposed communication``.

    Hidden counts the operations that overlap with computation: messages at their receiver until the data arrive,
    and communication of groups at each of their ranks. Its integral over time is
    :func:`~pptrace.timeline.metrics.hidden_ns`. Exposed is 1 while the rank waits for a message or a reduction,
    and 1 for each segment of the rank's groups without simultaneous computation.
    """
    stream = np.repeat(timeline.lane_stream, np.diff(timeline.lane_ptr))
    rank = timeline.rank_of_row()
    computing = (stream == Stream.COMPUTE) & COMPUTE.mask(timeline.kind)
    inside, reducing = in_group(timeline), stream == Stream.DATA_PARALLEL
    blocked = np.isin(waits.cause, COMMUNICATION)
    ranks, time_ns, (busy, grouped, reduced, received, waiting) = _active(
        *((rank[rows], timeline.start_ns[rows], timeline.end_ns[rows]) for rows in (computing, inside, reducing)),
        received_spans(timeline),
        (waits.rank[blocked], waits.start_ns[blocked], waits.end_ns[blocked]),
    )
    hidden, exposed = (grouped + reduced + received) * busy, waiting + grouped * (1 - busy)
    return (
        *_rank_counters("hidden communication", _UNIT, ranks, time_ns, hidden),
        *_rank_counters("exposed communication", _UNIT, ranks, time_ns, exposed),
    )


def _active(*spans: tuple[Int32s, Int64s, Int64s]) -> tuple[Int32s, Int64s, list[Int64s]]:
    """Return the sorted ranks and times of starts and ends, and the number of active spans per category.

    Each argument is a category: the ranks, starts and ends of its spans.
    """
    ranks = np.concatenate([rank for rank, _, _ in spans] * 2)
    time_ns = np.concatenate([start for _, start, _ in spans] + [end for _, _, end in spans])
    category = np.tile(np.repeat(np.arange(len(spans), dtype=np.int8), [rank.size for rank, _, _ in spans]), 2)
    change = np.repeat(np.array([1, -1], dtype=np.int64), time_ns.size // 2)
    order = np.lexsort((time_ns, ranks))
    category, change = category[order], change[order]
    counts = [np.cumsum(np.where(category == index, change, 0)) for index in range(len(spans))]
    return ranks[order], time_ns[order], counts


def link_counters(timeline: Timeline, traffic: Traffic, most: int = 32) -> tuple[Counter, ...]:
    """Return the rate over time on the ``most`` links with the highest utilisation.

    The first link represents all links with equal figures.
    """
    number = {name: link for link, name in enumerate(traffic.links.name)}
    chosen = sorted(number[use.names[0]] for use in busiest_links(timeline, traffic, 0)[:most])
    segments = traffic.segments(timeline.start_ns, timeline.end_ns)
    segment, link, weight = _link_uses(traffic.paths, np.array(chosen, dtype=np.int32), traffic.path[segments.row])
    rate = segments.rate_kbps[segment] * weight * 1000
    link, time_ns = np.tile(link, 2), np.concatenate([segments.start_ns[segment], segments.end_ns[segment]])
    order = np.lexsort((time_ns, link))
    total = np.cumsum(np.concatenate([rate, -rate])[order])
    return tuple(
        Counter(rank=-1, name=traffic.links.name[chosen[index]], unit="bytes/s", at_ns=at_ns, value=value)
        for index, at_ns, value in step_functions(link[order], time_ns[order], total)
    )


def _link_uses(paths: Paths, chosen: Int32s, path: Int32s) -> tuple[Int64s, Int64s, Int32s]:
    """Return each use of a chosen link by a path: indices into ``path`` and ``chosen``, and the path's weight.

    Other links are removed first: the paths of a large job have many, and hundreds of messages use each path.
    """
    kept = np.flatnonzero(np.isin(paths.link, chosen))
    ptr = np.searchsorted(kept, paths.link_ptr)
    length = np.diff(ptr)[path]
    entry = kept[ranges(ptr[:-1][path], length)]
    path_index = np.repeat(np.arange(path.size), length)
    return path_index, np.searchsorted(chosen, paths.link[entry]), paths.weight[entry]
