"""Trim a timeline to some ranks and microbatches, and say so in its provenance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ConfigError, nearest
from pptrace.timeline.timeline import ROW_COLUMNS, Timeline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Only", "parse_only", "trim"]

_LONGEST = 1 << 24
_KEYS = ("ranks", "microbatches")


@dataclass(frozen=True, slots=True, kw_only=True)
class Only:
    """What an export is trimmed to."""

    ranks: tuple[int, ...] | None = None
    """Ranks to keep, in order; None for all."""
    units: tuple[int, ...] | None = None
    """Microbatches to keep, in order; None for all."""


def parse_only(text: Sequence[str]) -> Only:
    """Read ``ranks=0,7`` and ``microbatches=0:32``: numbers and half-open ranges, joined by commas.

    >>> parse_only(["ranks=0,6:8", "microbatches=:3"])
    Only(ranks=(0, 6, 7), units=(0, 1, 2))

    Raises:
        ConfigError: a key is unknown or given twice, or a value is no number or range.
    """
    found: dict[str, tuple[int, ...]] = {}
    for item in text:
        key, equals, values = item.partition("=")
        if not equals or key not in _KEYS:
            raise ConfigError(
                f"{item!r} is not a selection such as ranks=0,7 or microbatches=0:32{nearest(key, _KEYS)}",
                key="only",
            )
        if key in found:
            raise ConfigError("given twice; join the values with commas", key=f"only.{key}")
        numbers = [number for part in values.split(",") for number in _numbers(part, key)]
        found[key] = tuple(sorted(set(numbers)))
    return Only(ranks=found.get("ranks"), units=found.get("microbatches"))


def trim(timeline: Timeline, ranks: Sequence[int] | None, units: Sequence[int] | None) -> Timeline:
    """Return the slices of ``ranks`` that work on any of ``units``, or on none; None keeps all.

    Times, ranks and microbatches keep their numbers. Lanes left empty go, and so do the counters of
    other ranks; those that stay still tell of all microbatches. A ``cause`` that went becomes -1.

    Raises:
        ConfigError: a rank or microbatch is not there.
    """
    if ranks is None and units is None:
        return timeline
    _check(ranks, timeline.ranks, "ranks")
    _check(units, timeline.placement.units, "microbatches")
    kept = _rows_of(timeline, ranks, units)
    renumbered = np.full(len(timeline) + 1, -1, dtype=np.int32)
    renumbered[kept] = np.arange(kept.size, dtype=np.int32)
    lane = timeline.lane_of_row()[kept]
    lanes, counts = np.unique(lane, return_counts=True)
    columns = {name: getattr(timeline, name)[kept] for name in ROW_COLUMNS}
    columns["cause"] = renumbered[columns["cause"]]
    return replace(
        timeline,
        lane_rank=timeline.lane_rank[lanes],
        lane_stream=timeline.lane_stream[lanes],
        lane_peer=timeline.lane_peer[lanes],
        lane_ptr=np.concatenate([[0], np.cumsum(counts)]),
        counters=tuple(c for c in timeline.counters if ranks is None or c.rank in set(ranks)),
        provenance={**timeline.provenance, "trimmed": _note(timeline, ranks, units)},
        **columns,
    )


def _rows_of(timeline: Timeline, ranks: Sequence[int] | None, units: Sequence[int] | None) -> NDArray[np.int64]:
    keep = np.ones(len(timeline), dtype=bool)
    if ranks is not None:
        keep &= np.isin(timeline.rank_of_row(), np.asarray(ranks, dtype=np.int64))
    if units is not None:
        wanted = np.zeros(timeline.placement.units + 1, dtype=np.int64)
        wanted[1:][np.asarray(units, dtype=np.int64)] = 1
        before = np.cumsum(wanted)
        first = np.clip(timeline.unit.astype(np.int64), 0, before.size - 1)
        last = np.clip(timeline.unit.astype(np.int64) + timeline.span, 0, before.size - 1)
        keep &= (timeline.unit < 0) | (before[last] > before[first])
    return np.flatnonzero(keep)


def _note(timeline: Timeline, ranks: Sequence[int] | None, units: Sequence[int] | None) -> dict[str, str]:
    """Say what is left, on top of an earlier trim."""
    note = dict(timeline.provenance.get("trimmed", {}))
    if ranks is not None:
        note["ranks"] = _compact(ranks)
    if units is not None:
        note["microbatches"] = _compact(units)
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
