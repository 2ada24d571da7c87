"""One step of each side, compared: what is found anew for every pair of recorded steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.analysis.diff.culprits import Blame, blame_of
from pptrace.analysis.diff.findings import kinds, ways
from pptrace.analysis.diff.ladder import Rung, climb
from pptrace.analysis.steps.match import Matched, match
from pptrace.analysis.steps.parts import parts_of
from pptrace.analysis.steps.path import Chain, chain_of
from pptrace.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.analysis.diff.findings import KindRow, Way
    from pptrace.analysis.steps.sides import Side
    from pptrace.analysis.steps.times import Performed
    from pptrace.timeline.metrics import Metrics

__all__ = ["One", "Pair", "pair_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class One:
    """One step of a side, taken apart."""

    step: Performed
    """Its computations and messages."""
    metrics: Metrics
    """Its figures."""
    parts: Mapping[str, int]
    """Nanoseconds by part, mean over ranks."""

    @classmethod
    def of(cls, side: Side, step: Performed) -> One:
        """Return a side's chosen step, its actions as given."""
        return cls(step=step, metrics=side.metrics, parts=parts_of(side))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What tells one step from another; every pair of values has the first's first."""

    step_ns: tuple[int, int]
    """Lengths of the steps."""
    matched: Matched
    """The pairs of computations."""
    parts: Mapping[str, tuple[int, int]]
    """Nanoseconds by part."""
    rungs: tuple[Rung, ...]
    """The ladder; empty where there is none."""
    no_ladder: str
    """Why not."""
    kinds: tuple[KindRow, ...]
    """Per kind and stage."""
    ways: tuple[Way, ...]
    """Messages by sender and receiver."""
    blame: Blame
    """By which share ranks, stages and ways are slower."""
    chains: tuple[Chain, Chain]
    """Both critical paths."""


def pair_of(a: One, b: One) -> Pair:
    """Compare two steps."""
    first, second = a.step, b.step
    matched = match(first, second)
    between = ways(first, second)
    rungs, why = _ladder(a, b)
    return Pair(
        step_ns=(a.metrics.step_ns, b.metrics.step_ns), matched=matched,
        parts={name: (a.parts.get(name, 0), b.parts.get(name, 0)) for name in {**a.parts, **b.parts}},
        rungs=rungs, no_ladder=why, kinds=kinds(first, second), ways=between,
        blame=blame_of(first, second, matched, between), chains=(chain_of(first), chain_of(second)),
    )  # fmt: skip


def _ladder(a: One, b: One) -> tuple[tuple[Rung, ...], str]:
    sizes = [(one.placement.ranks, one.placement.stages, one.placement.units) for one in (a.step, b.step)]
    if sizes[0] != sizes[1]:
        told = " and ".join(
            f"{ranks} ranks, {stages} stages, {units} microbatches" for ranks, stages, units in sizes
        )
        return (), f"the steps have {told}"
    try:
        return climb(a.step, b.step, a.metrics.step_ns, b.metrics.step_ns), ""
    except ScheduleError as error:
        return (), f"an order cannot be replayed: {error}"
