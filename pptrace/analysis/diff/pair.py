"""One step of each side, compared: what is found anew for every pair of recorded steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.analysis.diff.culprits import Blame, blame_of
from pptrace.analysis.diff.findings import OrderChange, kinds, orders, ways
from pptrace.analysis.diff.ladder import LadderStep, ladder_steps, simulated_ladder
from pptrace.analysis.diff.order_share import OrderShare, order_share
from pptrace.analysis.figure import Figure, Sides
from pptrace.analysis.steps.match import Matched, match
from pptrace.analysis.steps.parts import parts_of
from pptrace.analysis.steps.path import Chain, chain_of
from pptrace.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.analysis.diff.findings import KindRow, Way
    from pptrace.analysis.steps.sides import Side
    from pptrace.analysis.steps.times import Performed
    from pptrace.experiment.prepare import Prepared
    from pptrace.timeline.metrics import Metrics

__all__ = ["Pair", "StepOfSide", "pair_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOfSide:
    """One step of a side, taken apart."""

    step: Performed
    """Its computations and messages."""
    metrics: Metrics
    """Its figures."""
    parts: Mapping[str, int]
    """Nanoseconds by part, mean over ranks."""
    simulation: Prepared | None = None
    """What gives it again, its waits included, where it was simulated."""

    @classmethod
    def of(cls, side: Side, step: Performed) -> StepOfSide:
        """Return a side's chosen step, its actions as given."""
        return cls(step=step, metrics=side.metrics, parts=parts_of(side), simulation=side.simulation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What tells one step from another; every pair of values has the first's first."""

    step_ns: Sides
    """Lengths of the steps."""
    matched: Matched
    """The pairs of computations."""
    parts_ns: Mapping[str, Sides]
    """Nanoseconds by part of the step, mean over ranks; each side's sum to its step."""
    ladder: tuple[LadderStep, ...]
    """What changes the step; empty where the two cannot be replayed with each other's times."""
    no_ladder: str
    """Why not."""
    orders: tuple[OrderChange, ...]
    """Where ranks' orders differ."""
    order_share: OrderShare | None
    """What that changes, and what times change; None where orders are the same, or cannot be run alike."""
    kinds: Mapping[tuple[str, int], KindRow]
    """Per kind and stage."""
    ways: Mapping[tuple[int, int], Way]
    """Messages by sender and receiver."""
    blame: Blame
    """By which share ranks, stages and ways are slower."""
    chains: tuple[Chain, Chain]
    """Both critical paths."""
    paths_ns: Mapping[str, Sides]
    """What those consist of, by kind, and what lies between."""


def pair_of(a: StepOfSide, b: StepOfSide) -> Pair:
    """Compare two steps."""
    first, second = a.step, b.step
    matched = match(first, second)
    between = ways(first, second)
    ladder, why = _ladder(a, b)
    chains = chain_of(first), chain_of(second)
    reordered = orders(first, second)
    return Pair(
        step_ns=Sides(Figure(a.metrics.step_ns), Figure(b.metrics.step_ns)), matched=matched,
        parts_ns=_sides(a.parts, b.parts), ladder=ladder, no_ladder=why, orders=reordered,
        order_share=_order_share(a, b) if reordered and _alike(a, b) else None,
        kinds=kinds(first, second), ways=between, blame=blame_of(first, second, matched, between), chains=chains,
        paths_ns=_sides(chains[0].by_kind_ns, chains[1].by_kind_ns),
    )  # fmt: skip


def _sides(first: Mapping[str, int], second: Mapping[str, int]) -> Mapping[str, Sides]:
    return {name: Sides(Figure(first.get(name, 0)), Figure(second.get(name, 0))) for name in {**first, **second}}


def _sizes(a: StepOfSide, b: StepOfSide) -> list[tuple[int, int, int]]:
    """Return ranks, stages and microbatches of both."""
    return [(one.placement.ranks, one.placement.stages, one.placement.microbatches) for one in (a.step, b.step)]


def _alike(a: StepOfSide, b: StepOfSide) -> bool:
    first, second = _sizes(a, b)
    return first == second


def _order_share(a: StepOfSide, b: StepOfSide) -> OrderShare | None:
    return order_share(a.step, b.step, (a.simulation, b.simulation), b.metrics.step_ns - a.metrics.step_ns)


def _ladder(a: StepOfSide, b: StepOfSide) -> tuple[tuple[LadderStep, ...], str]:
    sizes = _sizes(a, b)
    if not _alike(a, b):
        both = " and ".join(
            f"{ranks} ranks, {stages} stages, {microbatches} microbatches" for ranks, stages, microbatches in sizes
        )
        return (), f"the steps have {both}"
    lengths = (a.metrics.step_ns, b.metrics.step_ns)
    if a.simulation is not None and b.simulation is not None:
        found = simulated_ladder((a.step, b.step), (a.simulation, b.simulation), *lengths)
        if found:
            return found, ""
    try:
        return ladder_steps(a.step, b.step, *lengths), ""
    except ScheduleError as error:
        return (), f"an order cannot be replayed: {error}"
