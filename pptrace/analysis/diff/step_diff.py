"""The diff of two steps: everything that tells them apart, ready to be printed, drawn or gated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pptrace.analysis.diff.culprits import Culprit, culprits, spikes
from pptrace.analysis.diff.divergence import Divergence, first_divergence
from pptrace.analysis.diff.findings import changes, orders, spread_of
from pptrace.analysis.diff.memory import RankMemory, memory_of
from pptrace.analysis.diff.pair import One, pair_of
from pptrace.analysis.diff.replicates import Replicates, deviation
from pptrace.analysis.steps.match import Matched, alike, same_stages
from pptrace.analysis.steps.path import Chain, Parted, parted
from pptrace.analysis.steps.pooled import share_of_deviation
from pptrace.analysis.steps.times import Performed, performed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.analysis.diff.findings import Change, KindRow, OrderChange, Way
    from pptrace.analysis.diff.ladder import Rung
    from pptrace.analysis.diff.pair import Pair
    from pptrace.analysis.steps.sides import Side
    from pptrace.model.columns import Int64s
    from pptrace.timeline.metrics import Metrics

__all__ = ["TOLERANCE", "StepDiff", "diff"]

Renumber: TypeAlias = "Callable[[Performed], Performed]"

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
    pools: tuple[bool, bool]
    """Whether a side's times are medians over all its steps."""
    step_varies_ns: tuple[int | None, int | None]
    """Standard deviation of a side's length from step to step; None where it has one step."""
    parts_vary_ns: Mapping[str, tuple[int | None, int | None]]
    """Those of the parts."""
    memory: tuple[RankMemory, ...]
    """Memory by rank; empty where nothing is known of it that differs."""
    paths_vary_ns: tuple[Mapping[str, int | None], Mapping[str, int | None]]
    """Those of the critical paths' times by kind."""

    @property
    def change(self) -> float:
        """By which share the second step is longer."""
        first, second = self.step_ns
        return second / first - 1 if first else 0.0

    @property
    def varies(self) -> bool:
        """Whether a side has several steps, so that figures have a spread."""
        return any(len(spans) > 1 for spans in self.spans_ns)

    @property
    def change_varies_ns(self) -> float | None:
        """Standard deviation of the steps' difference from step to step."""
        return deviation(*self.step_varies_ns)

    @property
    def same(self) -> bool:
        """Whether the steps are equal to the tolerance: their length, every kind's median, and every order."""
        ratios = [row.ratio for row in self.kinds]
        return (
            abs(self.change) <= self.tolerance
            and all(ratio is not None and abs(ratio - 1) <= self.tolerance for ratio in ratios)
            and not self.orders
            and not self.unlike
        )

    @property
    def unlike(self) -> str:
        """Why no action of one step is one of the other; empty where they can be the same."""
        if same_stages(*self.steps):
            return ""
        first, second = (one.placement.stages for one in self.steps)
        return f"{first} and {second} stages are not the same parts of the model"

    @property
    def ranks(self) -> tuple[int, int]:
        """How many ranks each side has."""
        first, second = (one.ranks for one in self.metrics)
        return first, second


def diff(a: Side, b: Side, tolerance: float = TOLERANCE) -> StepDiff:
    """Compare two steps action by action."""
    numbers = _numbers(a, b)
    first, second, folded = alike(*(one(side.performed) for one, side in zip(numbers, (a, b), strict=True)))
    ones = (One.of(a, first), One.of(b, second))
    pair = pair_of(*ones)
    single = (_single(a, folded, numbers[0]), _single(b, folded, numbers[1]))
    others = [
        [step for at, step in enumerate(own) if at != side.chosen]
        for side, own in zip((a, b), single, strict=True)
    ]
    again = _again((a, b), ones, single)
    noise = _noise((a, b), (first, second), others, pair.matched, "duration_ns")
    every = changes(first, second, pair.matched, noise)
    between = again.ways(pair.ways)
    blamed = culprits(pair.blame, between, tolerance, lambda share: again.both(lambda each: share(each.blame)))
    blamed += tuple(spikes(first, second, pair.matched, tolerance, noise))
    ends = _noise((a, b), (first, second), others, pair.matched, "end_ns")
    return StepDiff(
        names=(a.name, b.name), step_ns=pair.step_ns, tolerance=tolerance, matched=pair.matched,
        steps=(first, second), folded=folded, metrics=(ones[0].metrics, ones[1].metrics), parts=pair.parts,
        rungs=again.rungs(pair.rungs), no_ladder=pair.no_ladder, kinds=again.kinds(pair.kinds),
        changes=tuple(one for one in every if one.change_ns and not one.is_noise),
        noise=sum(one.is_noise and bool(one.change_ns) for one in every),
        divergence=first_divergence(first, second, pair.matched, tolerance, ends),
        culprits=tuple(sorted(blamed, key=lambda one: (-abs(one.total_ns), one.sort, one.what))),
        orders=orders(first, second), ways=between, chains=pair.chains, parted=parted(first, second, pair.chains),
        spans_ns=(_spans(a), _spans(b)), pools=(a.pools, b.pools), step_varies_ns=again.step_ns(),
        parts_vary_ns=again.parts_ns(list(pair.parts)), paths_vary_ns=again.paths(pair),
        memory=memory_of((a, b), (ones[0].metrics, ones[1].metrics)),
    )  # fmt: skip


def _numbers(a: Side, b: Side) -> tuple[Renumber, Renumber]:
    """Return what gives the ranks of either side their numbers where recordings lack ranks."""
    known = [one.measurement.numbers if one.measurement is not None else () for one in (a, b)]
    ranks = max(
        one.performed.placement.ranks if not own else own[-1] + 1 for one, own in zip((a, b), known, strict=True)
    )

    def renumber(own: tuple[int, ...]) -> Renumber:
        return lambda step: step.renumbered(own, ranks) if own else step

    return renumber(known[0]), renumber(known[1])


def _single(side: Side, folded: tuple[int, ...], renumber: Renumber) -> list[Performed]:
    """Return each of a side's steps with its own times."""
    steps = [renumber(performed(step.timeline)) for step in side.steps]
    return [step.folded(folded) for step in steps] if folded else steps


def _again(sides: tuple[Side, Side], ones: tuple[One, One], single: Sequence[Sequence[Performed]]) -> Replicates:
    """Compare every recorded step of either side with what the other side is compared by."""
    groups: list[list[Pair]] = [[], []]
    for number, (side, steps) in enumerate(zip(sides, single, strict=True)):
        for at, step in enumerate(steps) if len(steps) > 1 else ():
            one = One.of(replace(side, chosen=at, pools=False), step)
            groups[number].append(pair_of(one, ones[1]) if number == 0 else pair_of(ones[0], one))
    factors = [share_of_deviation(len(side.steps)) if side.pools else 1.0 for side in sides]
    return Replicates(groups=(groups[0], groups[1]), factors=(factors[0], factors[1]))


def _noise(
    sides: tuple[Side, Side],
    steps: tuple[Performed, Performed],
    others: Sequence[Sequence[Performed]],
    matched: Matched,
    column: str,
) -> Int64s:
    """Return, per pair, by how much both sides' steps vary."""
    own = [
        spread_of(step, rest, column, pooled=side.pools and column == "duration_ns").astype(np.float64)
        for side, step, rest in zip(sides, steps, others, strict=True)
    ]
    found: Int64s = np.hypot(own[0][matched.first], own[1][matched.second]).astype(np.int64)
    return found


def _spans(side: Side) -> tuple[int, ...]:
    return tuple(performed(step.timeline).span_ns for step in side.steps)
