"""Counters that a timeline's slices imply: microbatches in flight and use of the links."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import BACKWARD, GRADIENTS, PASSES, SENDS, WEIGHT_GRADIENTS, Kind
from pptrace.timeline.counter import Counter
from pptrace.timeline.folded import folded

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = ["counters_of", "in_flight", "link_use"]

_RELEASES = sorted(BACKWARD, key=lambda kind: (kind not in WEIGHT_GRADIENTS, kind in GRADIENTS))
"""What ends a microbatch's stay, the first that it has."""


def in_flight(timeline: Timeline) -> tuple[Counter, ...]:
    """Count the microbatches of each rank between their forward's start and their backward's end.

    A backward ends with ``W`` where it is split, else with ``B``, else with ``I``. A microbatch counts
    once for each of the rank's stages that it has passed.
    """
    timeline = folded(timeline)
    rank = timeline.rank_of_row()
    rows, microbatch = _microbatch_rows(timeline)
    key = timeline.stage[rows].astype(np.int64) * (int(microbatch.max(initial=0)) + 1) + microbatch
    kind = timeline.kind[rows]
    held = kind == Kind.F
    released, done = np.zeros_like(held), ~np.isin(key, key[held])
    for release in _RELEASES:
        now = (kind == release) & ~done
        released |= now
        done |= np.isin(key, key[now])
    into, out = rows[held], rows[released]
    return _summed(
        "in flight",
        "microbatches",
        np.concatenate([rank[into], rank[out]]),
        np.concatenate([timeline.start_ns[into], timeline.end_ns[out]]),
        np.concatenate([np.ones(into.size, dtype=np.int64), np.full(out.size, -1)]),
    )


def link_use(timeline: Timeline) -> tuple[Counter, ...]:
    """Sum, for each rank, the rates in bytes/s of the messages that are leaving it.

    A message's rate is its bytes over its time on the sender's stream, rounded down.
    """
    took = timeline.end_ns - timeline.start_ns
    rows = np.flatnonzero(SENDS.mask(timeline.kind) & (took > 0) & (timeline.size_bytes > 0))
    rate = _per_second(timeline.size_bytes[rows], took[rows])
    rank = timeline.rank_of_row()[rows]
    return _summed(
        "link use",
        "bytes/s",
        np.concatenate([rank, rank]),
        np.concatenate([timeline.start_ns[rows], timeline.end_ns[rows]]),
        np.concatenate([rate, -rate]),
    )


def _microbatch_rows(timeline: Timeline) -> tuple[Int64s, Int64s]:
    """Return the rows of passes, once for each of their microbatches, and those microbatches."""
    rows = np.flatnonzero(PASSES.mask(timeline.kind) & (timeline.microbatch >= 0))
    span = timeline.span[rows]
    first = np.repeat(np.cumsum(span) - span, span)
    rows = np.repeat(rows, span)
    return rows, timeline.microbatch[rows].astype(np.int64) + np.arange(rows.size) - first


def _per_second(size_bytes: Int64s, took_ns: Int64s) -> Int64s:
    """Return ``size_bytes * 10**9 // took_ns``, three digits at a time so that nothing overflows."""
    rate, rest = np.divmod(size_bytes, took_ns)
    for _ in range(3):
        more, rest = np.divmod(rest * 1000, took_ns)
        rate = rate * 1000 + more
    return rate


def _summed(name: str, unit: str, rank: Int32s, at_ns: Int64s, change: Int64s) -> tuple[Counter, ...]:
    """Add up each rank's changes."""
    order = np.lexsort((at_ns, rank))
    return counters_of(name, unit, rank[order], at_ns[order], np.cumsum(change[order]))


def counters_of(name: str, unit: str, rank: Int32s, at_ns: Int64s, total: Int64s) -> tuple[Counter, ...]:
    """Return a counter per rank of values that are sorted by rank and time, and go on from rank to rank.

    Of those at one time the last counts, and one that changes nothing is no step.
    """
    last = np.ones(rank.size, dtype=bool)
    last[:-1] = (rank[1:] != rank[:-1]) | (at_ns[1:] != at_ns[:-1])
    rank, at_ns, total = rank[last], at_ns[last], total[last]
    found = []
    ends = np.flatnonzero(np.diff(rank, append=-1)) + 1
    before, start = 0, 0
    for end in ends.tolist():
        value = total[start:end] - before
        kept = np.diff(value, prepend=0) != 0
        at, value = at_ns[start:end][kept], value[kept]
        if at.size:
            found.append(Counter(rank=int(rank[start]), name=name, unit=unit, at_ns=at, value=value))
        before, start = int(total[end - 1]), end
    return tuple(found)
