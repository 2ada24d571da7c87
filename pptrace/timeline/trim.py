"""Trimming of timelines to some ranks, some microbatches or one of several steps, recorded in the provenance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.errors import ConfigError, nearest
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Counter, Timeline

_LONGEST = 1 << 24
_KEYS = ("ranks", "microbatches")


class Selection(Struct, frozen=True):
    """Ranks and microbatches of a trimmed export."""

    ranks: tuple[int, ...] | None = None
    """Ranks to keep, in order; None for all."""
    microbatches: tuple[int, ...] | None = None
    """Microbatches to keep, in order; None for all."""


def parse_only(text: Sequence[str]) -> Selection:
    """Read ``ranks=0,7`` and ``microbatches=0:32``: numbers and half-open ranges, joined by commas.

    >>> parse_only(["ranks=0,6:8", "microbatches=:3"])
    Selection(ranks=(0, 6, 7), microbatches=(0, 1, 2))

    Raises:
        ConfigError: a key is unknown or given twice, or a value is not a number or range.
    """
    selected: dict[str, tuple[int, ...]] = {}
    for item in text:
        key, equals, values = item.partition("=")
        if not equals or key not in _KEYS:
            raise ConfigError(
                f"{item!r} is not a selection such as ranks=0,7 or microbatches=0:32{nearest(key, _KEYS)}",
                key="only",
            )
        if key in selected:
            raise ConfigError("given twice; join the values with commas", key=f"only.{key}")
        numbers = [number for part in values.split(",") for number in _numbers(part, key)]
        selected[key] = tuple(sorted(set(numbers)))
    return Selection(ranks=selected.get("ranks"), microbatches=selected.get("microbatches"))


def trim(timeline: Timeline, ranks: Sequence[int] | None, microbatches: Sequence[int] | None) -> Timeline:
    """Return the slices of ``ranks`` that work on any of ``microbatches``; None keeps all.

    If microbatches are removed, rows without a microbatch stay if they lie within the time of the remaining
    microbatches. Counters are cut to the same time; their values still include all microbatches. The beginning
    and the end of the step stay with the adjacent work.

    If ranks are removed, their counters are removed too, and the counters of links that no remaining message
    uses. Other counters of the cluster still include all ranks.

    Times, ranks and microbatches keep their numbers. Empty lanes are removed; a removed ``cause`` becomes -1.

    Raises:
        ConfigError: a rank or microbatch is not there.
    """
    if ranks is None and microbatches is None:
        return timeline
    _check(ranks, timeline.ranks, "ranks")
    _check(microbatches, timeline.placement.microbatches, "microbatches")
    kept = timeline
    if ranks is not None and len(set(ranks)) < timeline.ranks:
        kept = _of_ranks(kept, set(ranks))
    if microbatches is not None and len(set(microbatches)) < timeline.placement.microbatches:
        kept = _of_microbatches(kept, microbatches)
    return replace(kept, provenance={**timeline.provenance, "trimmed": _note(timeline, ranks, microbatches)})


_INTERVALS_KEY = "update_intervals_ns"
"""Provenance key: the times between updates, where the timeline is the step between two of them."""
_PROPORTIONAL = ("uncontended_ns", "collective_ns", "size_bytes")


class TimelinePart(Struct, frozen=True):
    """A part of a timeline."""

    timeline: Timeline
    """The part; its time 0 is ``start_ns``."""
    rows: Int64s
    """Its rows in the whole timeline."""
    start_ns: int
    """Its start in the whole timeline."""
    end_ns: int
    """Its end in the whole timeline."""


def steady_step(timeline: Timeline) -> TimelinePart:
    """Return the part between two updates of a pipeline without flushes: the third to last and the second to last.

    An update is complete when all stages have it. The pipeline drains after the second to last update. Slices over
    the start or the end are cut, and their bytes with them.
    """
    updates = _update_times(timeline)
    start_ns, end_ns = (int(time_ns) for time_ns in updates[-3:-1])
    inside = (timeline.end_ns > start_ns) & ((timeline.start_ns < end_ns) | (timeline.end_ns <= end_ns))
    rows = np.flatnonzero(inside)
    kept = _of_rows(timeline, inside)
    columns = {name: np.clip(getattr(kept, name), start_ns, end_ns) - start_ns for name in ("start_ns", "end_ns")}
    columns["enter_ns"] = np.maximum(kept.enter_ns, start_ns) - start_ns
    duration_ns, whole_ns = columns["end_ns"] - columns["start_ns"], kept.end_ns - kept.start_ns
    cut = np.flatnonzero(duration_ns < whole_ns)
    for name in _PROPORTIONAL:
        columns[name] = getattr(kept, name).copy()
        columns[name][cut] = [
            value * part // whole
            for value, part, whole in zip(
                columns[name][cut].tolist(), duration_ns[cut].tolist(), whole_ns[cut].tolist(), strict=True
            )
        ]
    provenance = {**kept.provenance, _INTERVALS_KEY: np.diff(updates)[:-1].tolist()}
    return TimelinePart(
        timeline=replace(kept, provenance=provenance, **columns), rows=rows, start_ns=start_ns, end_ns=end_ns
    )


def update_intervals(timeline: Timeline) -> list[int]:
    """Return the times between updates up to this step's end, the last one its length; empty for other steps."""
    times = timeline.provenance.get(_INTERVALS_KEY)
    return times if isinstance(times, list) and all(isinstance(time_ns, int) for time_ns in times) else []


def step_microbatches(timeline: Timeline) -> int:
    """Return the number of microbatches of a step, without those of other updates."""
    intervals = len(update_intervals(timeline))
    return timeline.placement.microbatches // (intervals + 2 if intervals else 1)


def _update_times(timeline: Timeline) -> Int64s:
    """Return when all stages had each of their updates, of which they have as many."""
    rows = np.flatnonzero(timeline.kind == Kind.OPTIMIZER)
    cell = timeline.rank_of_row()[rows].astype(np.int64) * timeline.placement.stages + timeline.stage[rows]
    order = np.lexsort((timeline.end_ns[rows], cell))
    ends: Int64s = timeline.end_ns[rows[order]].reshape(np.unique(cell).size, -1).max(axis=0)
    return ends


def _of_ranks(timeline: Timeline, ranks: AbstractSet[int]) -> Timeline:
    """Return the slices of some ranks, their counters, and the counters of the cluster without unused links."""
    rank = timeline.rank_of_row()
    why = None if timeline.why is None else timeline.why.of_ranks(ranks, rank)
    kept = _of_rows(replace(timeline, why=why), np.isin(rank, sorted(ranks)))
    routes = kept.routes
    unused = set() if routes is None else {*routes.name} - {routes.name[link] for link in np.unique(routes.link)}
    counters = [c for c in timeline.counters if (c.rank in ranks if c.rank >= 0 else c.name not in unused)]
    return replace(kept, counters=tuple(counters))


def select_ranks(timeline: Timeline, ranks: Sequence[int]) -> tuple[Timeline, NDArray[np.bool_]]:
    """Return the step as a recording of some ranks alone, and a mask of its rows.

    These ranks get the numbers 0, 1 and so on. Stages of other ranks have no rank; messages from and to
    other ranks are left out.
    """
    new = np.full(timeline.ranks + 1, -1, dtype=np.int32)
    new[list(ranks)] = np.arange(len(ranks))
    lanes = (new[timeline.lane_rank] >= 0) & ((timeline.lane_peer < 0) | (new[timeline.lane_peer] >= 0))
    chosen = lanes[timeline.lane_of_row()]
    counters = tuple(counter for counter in timeline.counters if counter.rank >= 0 and new[counter.rank] >= 0)
    kept = _of_rows(replace(timeline, counters=counters, why=None), chosen)
    return renumber_ranks(kept, new, len(ranks)), chosen


def renumber_ranks(timeline: Timeline, new: Int32s, ranks: int) -> Timeline:
    """Return a step with other rank numbers, in a pipeline of ``ranks`` ranks.

    Args:
        timeline: the step.
        new: the new number by rank, ascending; -1 for a rank without slices. One more than ranks: the last is -1.
        ranks: the ranks of the pipeline.
    """
    placement = timeline.placement.with_ranks(new, ranks)
    counters = tuple(replace(counter, rank=int(new[counter.rank])) for counter in timeline.counters)
    return replace(
        timeline, placement=placement, lane_rank=new[timeline.lane_rank], lane_peer=new[timeline.lane_peer],
        counters=counters,
    )  # fmt: skip


def _of_microbatches(timeline: Timeline, microbatches: Sequence[int]) -> Timeline:
    """Return the rows of some microbatches, and the rows without a microbatch during the same time."""
    working = timeline.microbatch >= 0
    wanted = working & _works_on(timeline, microbatches)
    start, end = _span(timeline, working, wanted)
    concurrent = ~working & (timeline.start_ns >= start) & (timeline.end_ns <= end)
    counters = [_within(counter, start, end) for counter in timeline.counters]
    kept = _of_rows(timeline, wanted | concurrent)
    why = None if kept.why is None else kept.why.within(start, end)
    return replace(kept, why=why, counters=tuple(counter for counter in counters if counter is not None))


def _span(timeline: Timeline, working: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the time span of the wanted work; a side without other work is unbounded."""
    if not wanted.any():
        return 0, -1
    start, end = int(timeline.start_ns[wanted].min()), int(timeline.end_ns[wanted].max())
    limits = np.iinfo(np.int64)
    return (
        start if timeline.start_ns[working].min() < start else limits.min,
        end if timeline.end_ns[working].max() > end else limits.max,
    )


def _works_on(timeline: Timeline, microbatches: Sequence[int]) -> NDArray[np.bool_]:
    """Return a mask of the rows that work on any of the microbatches."""
    wanted = np.zeros(timeline.placement.microbatches + 1, dtype=np.int64)
    wanted[1:][np.asarray(microbatches, dtype=np.int64)] = 1
    wanted_before = np.cumsum(wanted)
    first = np.clip(timeline.microbatch.astype(np.int64), 0, wanted_before.size - 1)
    last = np.clip(timeline.microbatch.astype(np.int64) + timeline.span, 0, wanted_before.size - 1)
    mask: NDArray[np.bool_] = wanted_before[last] > wanted_before[first]
    return mask


def _within(counter: Counter, start_ns: int, end_ns: int) -> Counter | None:
    """Return a counter's steps in a time span, with its value at the start; None where it has no value there."""
    first = max(int(np.searchsorted(counter.at_ns, start_ns, side="right")) - 1, 0)
    last = int(np.searchsorted(counter.at_ns, end_ns, side="right"))
    if first >= last:
        return None
    return replace(counter, at_ns=np.maximum(counter.at_ns[first:last], start_ns), value=counter.value[first:last])


def _of_rows(timeline: Timeline, chosen: NDArray[np.bool_]) -> Timeline:
    """Return the chosen rows without empty lanes, with renumbered causes."""
    rows = np.flatnonzero(chosen)
    number = np.full(len(timeline) + 1, -1, dtype=np.int32)
    number[rows] = np.arange(rows.size, dtype=np.int32)
    kept = timeline.of_rows(rows)
    why = None if timeline.why is None else timeline.why.renumbered(number)
    return replace(kept, cause=number[kept.cause], why=why)


def _note(timeline: Timeline, ranks: Sequence[int] | None, microbatches: Sequence[int] | None) -> dict[str, str]:
    """Return the provenance entry of the selection, combined with that of an earlier trim."""
    note = dict(timeline.provenance.get("trimmed", {}))
    if ranks is not None:
        note["ranks"] = _compact(ranks)
    if microbatches is not None:
        note["microbatches"] = _compact(microbatches)
    return note


def _compact(numbers: Sequence[int]) -> str:
    """Write numbers as :func:`parse_only` reads them.

    >>> _compact([0, 1, 2, 5])
    '0:3,5'
    """
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    return ",".join(str(first) if stop == first + 1 else f"{first}:{stop}" for first, stop in runs)


def _check(numbers: Sequence[int] | None, count: int, key: str) -> None:
    wrong = [number for number in numbers or () if not 0 <= number < count]
    if wrong:
        raise ConfigError(f"{wrong[0]} is not there; known: 0 to {count - 1}", key=f"only.{key}")


def _numbers(text: str, key: str) -> range:
    first, colon, stop = (part.strip() for part in text.partition(":"))
    try:
        start = int(first) if first or not colon else 0
        values = range(start, int(stop)) if colon else range(start, start + 1)
    except ValueError:
        values = range(0)
    if not values or start < 0 or len(values) > _LONGEST:
        raise ConfigError(
            f"{text!r} is neither a number nor a range with its end, such as 0:32 (0 to 31)", key=f"only.{key}"
        )
    return values
