"""The diff of two steps: everything that tells them apart, ready to be printed, drawn or gated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.errors import ScheduleError
from pptrace.stepdiff.culprits import Culprit, culprits
from pptrace.stepdiff.divergence import Divergence, first_divergence
from pptrace.stepdiff.findings import changes, kinds, orders, spread_of, ways
from pptrace.stepdiff.ladder import Rung, climb
from pptrace.stepdiff.match import Matched, alike, match
from pptrace.stepdiff.parts import parts_of
from pptrace.stepdiff.path import Chain, Parted, chain_of, parted
from pptrace.stepdiff.times import Performed, performed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.stepdiff.findings import Change, KindRow, OrderChange, Way
    from pptrace.stepdiff.sides import Side
    from pptrace.timeline.metrics import Metrics

__all__ = ["TOLERANCE", "StepDiff", "diff"]

TOLERANCE = 0.02
"""By which share the step and each kind's median may differ unless said otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDiff:
    """What tells the second step from the first; every pair has the first side's value first."""

    names: tuple[str, str]
    """The sides."""
    step_ns: tuple[int, int]
    """Length of the steps."""
    tolerance: float
    """Which share counts as equal."""
    matched: Matched
    """The pairs of computations."""
    steps: tuple[Performed, Performed]
    """The computations, taken apart; first stages folded where only one side splits them."""
    folded: tuple[int, ...]
    """Those stages."""
    metrics: tuple[Metrics, Metrics]
    """Both steps' figures."""
    parts: Mapping[str, tuple[int, int]]
    """Nanoseconds by part of the step, mean over ranks; each side's sum to its step."""
    rungs: tuple[Rung, ...]
    """The ladder; empty where the steps cannot be replayed with each other's times."""
    no_ladder: str
    """Why not."""
    kinds: tuple[KindRow, ...]
    """Per kind and stage."""
    changes: tuple[Change, ...]
    """Matched actions, the one that changed most first; what lies in the steps' own noise left out."""
    noise: int
    """How many are left out as noise."""
    divergence: Divergence | None
    """Where they part; None where they do not."""
    culprits: tuple[Culprit, ...]
    """Who is slow throughout, and what stands out."""
    orders: tuple[OrderChange, ...]
    """Where ranks' orders part."""
    ways: tuple[Way, ...]
    """Messages by sender and receiver."""
    chains: tuple[Chain, Chain]
    """Both critical paths."""
    parted: Parted | None
    """Where those part, followed back from the end; None where they are the same."""
    spans_ns: tuple[tuple[int, ...], tuple[int, ...]]
    """Lengths of the pipeline in all of a side's steps."""

    @property
    def change(self) -> float:
        """By which share the second step is longer."""
        first, second = self.step_ns
        return second / first - 1 if first else 0.0

    @property
    def same(self) -> bool:
        """Whether the steps are equal to the tolerance: their length, every kind's median, and every order."""
        ratios = [row.ratio for row in self.kinds]
        return (
            abs(self.change) <= self.tolerance
            and all(ratio is not None and abs(ratio - 1) <= self.tolerance for ratio in ratios)
            and not self.orders
        )


def diff(a: Side, b: Side, tolerance: float = TOLERANCE) -> StepDiff:
    """Compare two steps action by action."""
    first, second, folded = alike(a.performed, b.performed)
    matched = match(first, second)
    others = [
        performed(step.timeline).folded(folded) if folded else performed(step.timeline)
        for number, step in enumerate(b.steps)
        if number != b.chosen
    ]
    every = changes(first, second, matched, spread_of(second, others))
    told = tuple(one for one in every if one.change_ns and not one.is_noise)
    metrics = (a.metrics, b.metrics)
    between = ways(first, second)
    rungs, why = _ladder(first, second, metrics)
    own = (parts_of(a), parts_of(b))
    chains = (chain_of(first), chain_of(second))
    return StepDiff(
        names=(a.name, b.name), step_ns=(metrics[0].step_ns, metrics[1].step_ns), tolerance=tolerance,
        matched=matched, steps=(first, second), folded=folded, metrics=metrics,
        parts={name: (own[0].get(name, 0), own[1].get(name, 0)) for name in own[0] | own[1]},
        rungs=rungs, no_ladder=why, kinds=kinds(first, second), changes=told,
        noise=sum(one.is_noise and bool(one.change_ns) for one in every),
        divergence=first_divergence(first, second, matched, tolerance),
        culprits=culprits(first, second, matched, between, tolerance), orders=orders(first, second), ways=between,
        chains=chains, parted=parted(first, second, chains), spans_ns=(_spans(a), _spans(b)),
    )  # fmt: skip


def _spans(side: Side) -> tuple[int, ...]:
    return tuple(performed(step.timeline).span_ns for step in side.steps)


def _ladder(a: Performed, b: Performed, metrics: tuple[Metrics, Metrics]) -> tuple[tuple[Rung, ...], str]:
    sizes = [(one.placement.ranks, one.placement.stages, one.placement.units) for one in (a, b)]
    if sizes[0] != sizes[1]:
        told = " and ".join(
            f"{ranks} ranks, {stages} stages, {units} microbatches" for ranks, stages, units in sizes
        )
        return (), f"the steps have {told}"
    try:
        return climb(a, b, metrics[0].step_ns, metrics[1].step_ns), ""
    except ScheduleError as error:
        return (), f"an order cannot be replayed: {error}"
