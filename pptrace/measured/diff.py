"""The diff of two steps.

The first step's replay gets the second's durations, then its order, its transfers, what held its messages up,
its host gaps. What replays do not give of either step is a step of the ladder too, and so is what lies before and
behind the pipeline.

Two simulations are simulated again instead, so that what waits does so for as long as it would then: the first
with the second's durations, then its order, its network and sizes, and its policy.

What actions and messages take says little of two schedules: a link can look slow because its messages now wait for
each other. So the first step's order is run with the second's times and network. What the second step takes beyond
that is its order's; what that takes beyond the first step is the times'.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import PptraceError, ScheduleError
from pptrace.measured.computations import performed
from pptrace.measured.findings import (
    Blame,
    Culprit,
    Divergence,
    OrderChange,
    blame_of,
    changes,
    culprits,
    first_divergence,
    kinds,
    orders,
    spikes,
    spread_of,
    ways,
)
from pptrace.measured.matching import Matched, folded_alike, match, same_stages
from pptrace.measured.replay import again_ns, run_order
from pptrace.measured.sides import parts_of, share_of_deviation
from pptrace.measured.waits import Chain, PathsDiffer, chain_of, paths_differ
from pptrace.report.numbers import Figure, Sides, with_deviations
from pptrace.steps.columns import find
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.measured.computations import Performed
    from pptrace.measured.findings import Change, KindRow, Way
    from pptrace.measured.sides import Side
    from pptrace.run.inputs import Prepared
    from pptrace.sim.task_graph import ActionTimes
    from pptrace.steps.columns import Int64s
    from pptrace.timeline.metrics import Metrics

__all__ = [
    "TOLERANCE",
    "LadderStep",
    "OrderShare",
    "Pair",
    "RankMemory",
    "StepDiff",
    "StepOfSide",
    "diff",
    "ladder_steps",
    "memory_of",
    "order_share",
    "pair_of",
    "simulated_ladder",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderStep:
    """One step of the ladder."""

    name: str
    """What is taken over."""
    change_ns: Figure
    """By how much it lengthens the training step."""
    reached_ns: int
    """How long that is then."""


def ladder_steps(a: Performed, b: Performed, a_ns: int, b_ns: int) -> tuple[LadderStep, ...]:
    """Return the ladder from a step of ``a_ns`` to one of ``b_ns``.

    Raises:
        ScheduleError: an order cannot be replayed.
    """
    lengths = [
        performed(run_order(order, times, partial=a.partial or b.partial)).span_ns
        for order, times in (
            (a.order, a.times()),
            (a.order, a.times(durations=b)),
            (b.order, b.times(transfers=a, holds=a, gaps=a)),
            (b.order, b.times(holds=a, gaps=a)),
            (b.order, b.times(gaps=a)),
            (b.order, b.times()),
        )
    ]
    return _rungs(lengths, (a, b), a_ns, b_ns)


def simulated_ladder(
    steps: tuple[Performed, Performed], on: tuple[Prepared, Prepared], a_ns: int, b_ns: int
) -> tuple[LadderStep, ...]:
    """Return the ladder between two simulations; empty where they do not run on each other's parts.

    Args:
        steps: both, taken apart.
        on: what they were simulated on.
        a_ns: length of the first training step.
        b_ns: length of the second.
    """
    (a, b), (first, second) = steps, on
    ordered = replace(first, schedule=second.schedule)
    moved = replace(ordered, workload=second.workload, network=second.network)
    try:
        lengths = [
            again_ns(first, a.times()), again_ns(first, a.times(durations=b)), again_ns(ordered, b.times()),
            again_ns(moved, b.times()), again_ns(second, b.times()),
        ]  # fmt: skip
    except PptraceError:
        return ()
    own = lengths[0] == a.span_ns and lengths[-1] == b.span_ns
    return _rungs([*lengths, lengths[-1]], steps, a_ns, b_ns) if own else ()


def _rungs(
    lengths: Sequence[int], steps: tuple[Performed, Performed], a_ns: int, b_ns: int
) -> tuple[LadderStep, ...]:
    a, b = steps
    names = ("durations", "order", "transfers", "messages held up", "host gaps")
    changes = [(name, after - before) for name, (before, after) in zip(names, pairwise(lengths), strict=True)]
    changes.append(("not explained by replays", (b.span_ns - lengths[-1]) - (a.span_ns - lengths[0])))
    changes.append(("before and behind the pipeline", (b_ns - b.span_ns) - (a_ns - a.span_ns)))
    reached = accumulate((change for _, change in changes), initial=a_ns)
    return tuple(
        LadderStep(name=name, change_ns=Figure(change), reached_ns=length)
        for (name, change), length in zip(changes, islice(reached, 1, None), strict=True)
    )


_SPLIT = (Kind.B, Kind.I, Kind.W)
"""A whole backward, and the two gradients that it consists of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderShare:
    """What a difference goes back to; together the whole difference."""

    order_ns: Figure
    """By how much the second's order lengthens the step, with the second's times and network."""
    times_ns: Figure
    """By how much the second's times and network lengthen it, in the first's order."""
    rest_ns: Figure
    """What neither gives: what replays miss of the steps, and what lies before and behind the pipeline."""


def order_share(
    a: Performed, b: Performed, on: tuple[Prepared | None, Prepared | None], change_ns: int
) -> OrderShare | None:
    """Return what the order and what the times change; None where neither step can be run in the other's way.

    Args:
        a: the first step.
        b: the second, of as many ranks, stages and microbatches.
        on: what they were simulated on; None for what was recorded.
        change_ns: by how much the second training step is longer.
    """
    if a.partial or b.partial:
        return None
    times = replace(a, duration_ns=_durations(a, b)).times(transfers=b, gaps=b, held=False)
    try:
        before, between, after = _simulated(a, b, times, on) or _replayed(a, b, times)
    except PptraceError:
        return None
    order, own = after - between, between - before
    return OrderShare(order_ns=Figure(order), times_ns=Figure(own), rest_ns=Figure(change_ns - order - own))


def _simulated(
    a: Performed, b: Performed, times: ActionTimes, on: tuple[Prepared | None, Prepared | None]
) -> tuple[int, int, int] | None:
    """Return both lengths, and between them that of the first's order on the second's network."""
    first, second = on
    if first is None or second is None:
        return None
    try:
        return a.span_ns, again_ns(replace(second, schedule=first.schedule), times), b.span_ns
    except PptraceError:
        return None


def _replayed(a: Performed, b: Performed, times: ActionTimes) -> tuple[int, int, int]:
    """Return the same of replays, in which messages are held by nothing but their own order."""
    ran = ((a.order, a.times(held=False)), (a.order, times), (b.order, b.times(held=False)))
    before, between, after = (performed(run_order(order, each)).span_ns for order, each in ran)
    return before, between, after


def _durations(a: Performed, b: Performed) -> Int64s:
    """Return what the first's actions take in the second, shape (actions of the first,); what it lacks stays.

    A whole backward takes what both gradients take; a gradient alone takes half of a whole backward.
    """
    order = np.argsort(b.places, kind="stable")
    keys, durations = b.places[order], np.append(b.duration_ns[order], -1)
    cells = b.placement.stages * b.placement.microbatches
    of_kind = {kind: durations[find(keys, a.places + (kind - a.kind.astype(np.int64)) * cells)] for kind in _SPLIT}
    whole, inputs, weights = of_kind.values()
    both = np.where((inputs >= 0) & (weights >= 0), inputs + weights, -1)
    half = np.where(whole >= 0, whole // 2, -1)
    substitute = np.select([a.kind == Kind.B, np.isin(a.kind, _SPLIT)], [both, half], -1)
    known = durations[find(keys, a.places)]
    known = np.where(known >= 0, known, substitute)
    return np.where(known >= 0, known, a.duration_ns)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """What one rank holds in both steps."""

    rank: int
    """The rank."""
    peak_bytes: tuple[int, int] | None
    """The most bytes in use; None where a side does not know."""
    activations: tuple[int, int]
    """The most microbatches whose activations are held at once, each stage's counted as one."""


def memory_of(sides: tuple[Side, Side], metrics: tuple[Metrics, Metrics]) -> tuple[RankMemory, ...]:
    """Return every rank of both steps; nothing of other numbers of ranks, or where it is alike."""
    if metrics[0].ranks != metrics[1].ranks:
        return ()
    peaks = [_peaks(side, one) for side, one in zip(sides, metrics, strict=True)]
    held = [one.memory.peak_activations for one in metrics]
    ranks = tuple(
        RankMemory(
            rank=rank,
            peak_bytes=None
            if peaks[0] is None or peaks[1] is None
            else (int(peaks[0][rank]), int(peaks[1][rank])),
            activations=(int(held[0][rank]), int(held[1][rank])),
        )
        for rank in range(metrics[0].ranks)
    )
    differs = any(one.peak_bytes is not None or one.activations[0] != one.activations[1] for one in ranks)
    return ranks if differs else ()


def _peaks(side: Side, metrics: Metrics) -> Int64s | None:
    """Return each rank's peak: of what the step costs, else of the counters that its trace holds."""
    if metrics.memory.peak_bytes.any():
        return metrics.memory.peak_bytes
    counted = {
        one.rank: one.value for one in side.timeline.counters if (one.name, one.unit) == ("memory", "bytes")
    }
    if any(rank not in counted for rank in range(metrics.ranks)):
        return None
    return np.array([int(counted[rank].max(initial=0)) for rank in range(metrics.ranks)], dtype=np.int64)


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
