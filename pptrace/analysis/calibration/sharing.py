"""Whether actions take longer while more ranks compute, as where ranks share processors, power or memory.

What an action takes then depends on how many ranks a schedule keeps computing at once, so a mean does not carry
over to schedules that keep another number of them. The logarithms of actions' times are set against how many ranks
computed meanwhile, by least squares with a mean for each kind and stage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.analysis.steps.times import Performed
    from pptrace.model.columns import Int64s

__all__ = ["Sharing", "ranks_meanwhile", "sharing"]

_ERRORS = 2
"""How many standard errors below its slope is sure."""
_CLEAR = 0.1
"""By which share actions surely take longer, from few ranks computing to many, from which on it is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How what actions take grows with the ranks that compute meanwhile."""

    few: float
    """Ranks that computed during an action, that itself included, mean over its time: 5 % had fewer."""
    many: float
    """5 % had more."""
    ratio: float
    """How many times as long actions take while ``many`` ranks compute as while ``few`` do."""
    at_most: float
    """By which share longer the mean action would be if all ranks computed all the time."""


def sharing(steps: Sequence[Performed]) -> Sharing | None:
    """Return how actions slow each other down; None where they surely do not by a tenth, or ranks are missing.

    Args:
        steps: what was recorded, of one order, at least one.
    """
    if any(step.lacks_ranks for step in steps):
        return None
    found = _Actions.of(steps)
    spread = float((found.ranks_apart**2).sum())
    free = found.ranks.size - found.sorts - 1
    if not spread or free < 1:
        return None
    slope = float((found.ranks_apart * found.times_apart).sum()) / spread
    missed = found.times_apart - slope * found.ranks_apart
    error = float(np.sqrt((missed**2).sum() / free / spread))
    few, many = (float(each) for each in np.percentile(found.ranks, [5, 95]))
    if (slope - _ERRORS * error) * (many - few) < math.log1p(_CLEAR):
        return None
    more = steps[0].placement.ranks - float(found.ranks.mean())
    return Sharing(few=few, many=many, ratio=math.exp(slope * (many - few)), at_most=math.expm1(slope * more))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Actions:
    ranks: NDArray[np.float64]
    """Ranks that computed meanwhile."""
    ranks_apart: NDArray[np.float64]
    """That against the mean of its sort."""
    times_apart: NDArray[np.float64]
    """The logarithm of what it took, against the mean of its sort."""
    sorts: int
    """Kinds on stages."""

    @classmethod
    def of(cls, steps: Sequence[Performed]) -> Self:
        """Return the actions of all steps that took any time."""
        took = np.concatenate([step.duration_ns for step in steps]).astype(np.float64)
        ranks = np.concatenate([ranks_meanwhile(step) for step in steps])
        columns = np.concatenate([np.stack([step.kind, step.stage, step.pair >= 0]) for step in steps], axis=1)
        lasted = (took > 0) & (ranks > 0)
        took, ranks = took[lasted], ranks[lasted]
        sort = np.unique(columns[:, lasted], axis=1, return_inverse=True)[1].reshape(-1)
        count, times = np.bincount(sort), np.log(took)
        return cls(
            ranks=ranks, ranks_apart=ranks - (np.bincount(sort, ranks) / count)[sort],
            times_apart=times - (np.bincount(sort, times) / count)[sort], sorts=count.size,
        )  # fmt: skip


def ranks_meanwhile(step: Performed) -> NDArray[np.float64]:
    """Return how many ranks computed during each action, mean over its time; 0 where it took none."""
    starts, ends = _busy(step)
    times, place = np.unique(np.concatenate([starts, ends]), return_inverse=True)
    change = np.concatenate([np.ones(starts.size), -np.ones(ends.size)])
    level = np.cumsum(np.bincount(place.reshape(-1), change))
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    lasted = step.end_ns - step.start_ns
    within = np.interp(step.end_ns, times, area) - np.interp(step.start_ns, times, area)
    return np.where(lasted > 0, within / np.maximum(lasted, 1), 0.0)


def _busy(step: Performed) -> tuple[Int64s, Int64s]:
    """Return from when to when ranks computed; overlapped actions of one rank are one such time."""
    starts, ends = [], []
    for rank in range(step.placement.ranks):
        here = np.flatnonzero(step.rank == rank)
        here = here[np.argsort(step.start_ns[here], kind="stable")]
        start, reached = step.start_ns[here], np.maximum.accumulate(step.end_ns[here])
        fresh = np.ones(here.size, dtype=np.bool_)
        fresh[1:] = start[1:] > reached[:-1]
        starts.append(start[fresh])
        ends.append(reached[np.roll(fresh, -1)])
    return np.concatenate(starts), np.concatenate(ends)
