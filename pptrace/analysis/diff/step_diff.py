"""The diff of two steps: everything that tells them apart, ready to be shown or gated."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.analysis.diff.culprits import Culprit, culprits, spikes
from pptrace.analysis.diff.divergence import Divergence, first_divergence
from pptrace.analysis.diff.findings import changes, spread_of
from pptrace.analysis.diff.memory import RankMemory, memory_of
from pptrace.analysis.diff.pair import Pair, StepOfSide, pair_of
from pptrace.analysis.figure import Figure, Sides, with_deviations
from pptrace.analysis.steps.match import folded_alike, same_stages
from pptrace.analysis.steps.medians import share_of_deviation
from pptrace.analysis.steps.path import PathsDiffer, paths_differ

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.analysis.diff.findings import Change
    from pptrace.analysis.steps.match import Matched
    from pptrace.analysis.steps.sides import Side
    from pptrace.analysis.steps.times import Performed
    from pptrace.model.columns import Int64s
    from pptrace.timeline.metrics import Metrics

__all__ = ["TOLERANCE", "StepDiff", "diff"]

TOLERANCE = 0.02
"""By which share the step and each kind's median may differ unless said otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDiff(Pair):
    """What tells the second step from the first; every pair has the first side's value first.

    Where a side has several steps, figures have deviations.
    """

    names: tuple[str, str]
    """The sides."""
    tolerance: float
    """Which share counts as equal."""
    steps: tuple[Performed, Performed]
    """The computations, taken apart; first stages folded where only one side splits them."""
    folded: tuple[int, ...]
    """Those stages."""
    metrics: tuple[Metrics, Metrics]
    """Both steps' figures."""
    changes: tuple[Change, ...]
    """Matched actions, the one that changed most first; what lies in the steps' own noise left out."""
    noise: int
    """How many are left out as noise."""
    divergence: Divergence | None
    """The first action that is off; None where none is."""
    culprits: tuple[Culprit, ...]
    """Who is slow throughout, and what stands out."""
    paths_differ: PathsDiffer | None
    """Where the critical paths differ, followed back from the end; None where they are the same."""
    spans_ns: tuple[tuple[int, ...], tuple[int, ...]]
    """Lengths of the pipeline in all of a side's steps."""
    pools: tuple[bool, bool]
    """Whether a side's times are medians over all its steps."""
    memory: tuple[RankMemory, ...]
    """Memory by rank; empty where nothing is known of it that differs."""

    @property
    def change(self) -> float:
        """By which share the second step is longer."""
        first, second = self.step_ns
        return second.value / first.value - 1 if first.value else 0.0

    @property
    def varies(self) -> bool:
        """Whether a side has several steps, so that figures have a spread."""
        return any(len(spans) > 1 for spans in self.spans_ns)

    @property
    def same(self) -> bool:
        """Whether the steps are equal to the tolerance: their length, every kind's median, and every order."""
        ratios = [row.ratio for row in self.kinds.values()]
        return (
            abs(self.change) <= self.tolerance
            and all(ratio is not None and abs(ratio.value - 1) <= self.tolerance for ratio in ratios)
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
    def groups_ns(self) -> Mapping[str, Sides]:
        """Communication within ranks' own groups, and the part of it that computation hid; on all ranks in sum."""
        times = [
            {name: int(time.sum()) for one in metrics.groups if one.stream.is_group
             for name, time in ((one.name, one.total_ns), (f"{one.name}, hidden", one.hidden_ns))}
            for metrics in self.metrics
        ]  # fmt: skip
        return {name: Sides(*(Figure(side.get(name, 0)) for side in times)) for name in times[0] | times[1]}

    @property
    def ranks(self) -> tuple[int, int]:
        """How many ranks each side has."""
        first, second = (one.ranks for one in self.metrics)
        return first, second


def diff(a: Side, b: Side, tolerance: float = TOLERANCE) -> StepDiff:
    """Compare two steps action by action."""
    sides = (a, b)
    ranks = max(one.numbers[-1] + 1 if one.numbers else one.performed.placement.ranks for one in sides)
    first, second, folded = folded_alike(*(_numbered(side, side.performed, ranks) for side in sides))
    taken = StepOfSide.of(a, first), StepOfSide.of(b, second)
    single = [[_numbered(side, step, ranks).folded(folded) for step in side.every] for side in sides]
    pair = _varied(pair_of(*taken), _replicates(sides, taken, single), sides)
    others = [
        [step for at, step in enumerate(steps) if at != side.chosen]
        for side, steps in zip(sides, single, strict=True)
    ]
    noise, ends = (
        _noise(sides, (first, second), others, pair.matched, column) for column in ("duration_ns", "end_ns")
    )
    changed = [one for one in changes(first, second, pair.matched, noise) if one.change_ns.value]
    blamed = culprits(pair.blame, pair.ways, tolerance) + spikes(first, second, pair.matched, tolerance, noise)
    metrics = taken[0].metrics, taken[1].metrics
    return StepDiff(
        **{field.name: getattr(pair, field.name) for field in fields(pair)},
        names=(a.name, b.name), tolerance=tolerance, steps=(first, second), folded=folded, metrics=metrics,
        changes=tuple(one for one in changed if not one.change_ns.is_noise),
        noise=sum(one.change_ns.is_noise for one in changed),
        divergence=first_divergence(first, second, pair.matched, tolerance, ends),
        culprits=tuple(sorted(blamed, key=lambda one: (-abs(one.total_ns), one.sort, one.what))),
        paths_differ=paths_differ(first, second, pair.chains),
        spans_ns=(a.spans_ns, b.spans_ns), pools=(a.pools, b.pools), memory=memory_of(sides, metrics),
    )  # fmt: skip


def _numbered(side: Side, step: Performed, ranks: int) -> Performed:
    """Return a side's step with the numbers that its ranks have where recordings of others are missing."""
    return step.renumbered(side.numbers, ranks) if side.numbers else step


def _replicates(
    sides: tuple[Side, Side], taken: tuple[StepOfSide, StepOfSide], single: Sequence[Sequence[Performed]]
) -> list[list[Pair]]:
    """Compare every recorded step of either side with what the other side is compared by."""
    groups: list[list[Pair]] = [[], []]
    for number, (side, steps) in enumerate(zip(sides, single, strict=True)):
        for at, step in enumerate(steps) if len(steps) > 1 else ():
            again = StepOfSide.of(replace(side, chosen=at, pools=False), step)
            groups[number].append(pair_of(again, taken[1]) if number == 0 else pair_of(taken[0], again))
    return groups


def _varied(pair: Pair, groups: Sequence[Sequence[Pair]], sides: Sequence[Side]) -> Pair:
    """Return a pair with deviations; those of parts and paths are of one step even where steps are pooled."""
    factors = [share_of_deviation(len(side.steps)) if side.pools else 1.0 for side in sides]
    single = with_deviations(pair, *groups)
    return replace(
        with_deviations(pair, *groups, factors=factors), parts_ns=single.parts_ns, paths_ns=single.paths_ns
    )


def _noise(
    sides: tuple[Side, Side],
    steps: tuple[Performed, Performed],
    others: Sequence[Sequence[Performed]],
    matched: Matched,
    column: str,
) -> Int64s:
    """Return, per pair, by how much both sides' steps vary."""
    first, second = (
        spread_of(step, rest, column, pooled=side.pools and column == "duration_ns").astype(np.float64)
        for side, step, rest in zip(sides, steps, others, strict=True)
    )
    both: Int64s = np.hypot(first[matched.first], second[matched.second]).astype(np.int64)
    return both
