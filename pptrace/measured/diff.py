"""The diff of two steps.

The ladder explains the difference between the lengths of two training steps. Replays of the first step take over
the durations, the order, the transfer times, the blocked times of messages, the late receives and the host gaps of
the second step, one after another. Its last rungs are the part that replays miss, and the time before and after
the pipeline.

The ladder of two simulations is from simulations instead of replays, so waits follow from the new times. The first
simulation takes over the durations, the order, the network and sizes, and the policy of the second one.

Where orders differ, a link can look slow although only the order of its messages changed. Therefore the first
order also runs with times and network of the second step, which separates the effect of order from that of times.
"""

from __future__ import annotations

from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from pptrace.errors import PptraceError, ScheduleError
from pptrace.measured.causes import Blame, Cause, attribute_slowdown, candidates, late_hosts, rank_causes, spikes
from pptrace.measured.dependencies import Chain, PathsDiffer, Releases, find_releases, follow_chain, paths_differ
from pptrace.measured.findings import (
    Change,
    Divergence,
    OrderChange,
    first_divergence,
    kinds,
    links,
    orders,
    rank_changes,
    standard_deviations,
)
from pptrace.measured.matching import MatchedActions, fold_first_stages, has_same_stages, match
from pptrace.measured.replay import Resimulation
from pptrace.measured.sides import clock_uncertainty_ns, median_deviation_factor, partial_data
from pptrace.report.numbers import SIGMAS, Figure, Sides, microbatches_text, with_deviations
from pptrace.steps.columns import find
from pptrace.steps.kinds import Kind
from pptrace.timeline.trim import step_microbatches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pptrace.measured.causes import Candidate
    from pptrace.measured.computations import Computations
    from pptrace.measured.findings import KindRow, Link
    from pptrace.measured.sides import Side
    from pptrace.sim.task_graph import ActionTimes
    from pptrace.steps.columns import Int64s
    from pptrace.timeline.metrics import Metrics


class ComparedStep(Struct, frozen=True, kw_only=True, dict=True):
    """A step of a side in a diff; replays and waits are computed once, at their first use."""

    step: Computations
    """Its computations and messages."""
    metrics: Metrics
    parts_ns: Mapping[str, int]
    """Nanoseconds by part, mean over ranks."""
    simulation: Resimulation | None = None
    """Its simulation; None for a recording, and where it is unknown."""
    partial: bool = False
    """Whether either compared step lacks computations."""
    microbatches: int
    """Microbatches of the step, without those of other updates."""
    slices: int = 1
    """Slices of each microbatch's sequence, which the step has as microbatches."""

    @cached_property
    def replay(self) -> Resimulation:
        """Its order, which runs with times of both steps."""
        return Resimulation.of_order(self.step.order, partial=self.partial)

    @cached_property
    def releases(self) -> Releases:
        """The last dependency of each computation."""
        return find_releases(self.step)

    @cached_property
    def chain(self) -> Chain:
        """Its critical path."""
        return follow_chain(self.step, self.releases)

    @property
    def sizes(self) -> str:
        """The sizes of its pipeline in words."""
        placement = self.step.placement
        microbatches = microbatches_text(self.microbatches // self.slices, self.slices)
        return f"{placement.ranks} ranks, {placement.stages} stages, {microbatches}"


class Rung(Struct, frozen=True, kw_only=True):
    """One rung of the ladder."""

    name: str
    """The part that is taken over from the second step."""
    change_ns: Figure
    """The change of the length of the training step."""
    reached_ns: int
    """The length after this change."""


_RUNGS = (
    "durations", "order", "transfers", "message delays", "late receives", "host gaps", "not explained by replays",
    "before and after the pipeline",
)  # fmt: skip
"""The parts that are taken over, one after another.

Message delays are the blocked times of messages; late receives are messages that waited for their receivers.
"""


def ladder(a: ComparedStep, b: ComparedStep) -> tuple[tuple[Rung, ...], str]:
    """Return the ladder from the first step to the second, or the reason why there is none."""
    first, second = (
        (step.placement.ranks, step.placement.stages, step.placement.microbatches) for step in (a.step, b.step)
    )
    if first != second:
        return (), f"the steps have {a.sizes} and {b.sizes}"
    if a.partial:
        return (), "recordings are partial, and a replay needs all actions"
    try:
        spans_ns = _simulated_spans(a, b) or _replayed_spans(a, b)
    except ScheduleError as error:
        return (), f"an order cannot be replayed: {error}"
    outside_ns = a.metrics.step_ns - a.step.span_ns
    lengths_ns = [a.metrics.step_ns, *(outside_ns + a.step.span_ns + span - spans_ns[0] for span in spans_ns[1:])]
    lengths_ns += [outside_ns + b.step.span_ns, b.metrics.step_ns]
    return tuple(
        Rung(name=name, change_ns=Figure(reached - length), reached_ns=reached)
        for name, (length, reached) in zip(_RUNGS, pairwise(lengths_ns), strict=True)
    ), ""


def _replayed_spans(a: ComparedStep, b: ComparedStep) -> list[int]:
    """Return the spans of replays, from the times of the first step to the times of the second step.

    A keyword of ``times`` names the step that supplies these times; the called step supplies all other times.

    Raises:
        ScheduleError: an order cannot be replayed.
    """
    first, second = a.step, b.step
    times = partial(second.times, with_late=True)
    return [
        a.replay.span_ns(first.times(with_late=True)),
        a.replay.span_ns(first.times(durations=second, with_late=True)),  # durations
        b.replay.span_ns(times(transfers=first, blocked=first, late=first, gaps=first)),  # order
        b.replay.span_ns(times(blocked=first, late=first, gaps=first)),  # transfers
        b.replay.span_ns(times(late=first, gaps=first)),  # message delays
        b.replay.span_ns(times(gaps=first)),  # late receives
        b.replay.span_ns(times()),  # host gaps
    ]


def _simulated_spans(a: ComparedStep, b: ComparedStep) -> list[int] | None:
    """Return the spans of simulations with the same changes.

    None without two simulations, where one cannot run with these changes, or where they do not reproduce both
    steps.
    """
    first, second = a.simulation, b.simulation
    if first is None or second is None:
        return None
    reordered = with_second_network = second
    if not first.has_setting_of(second):
        same_placement = first.schedule.placement == second.schedule.placement
        same_order = same_placement and not first.schedule.difference(second.schedule)
        reordered = first if same_order else replace(first, schedule=second.schedule)
        if (first.policy, first.contention) != (second.policy, second.contention):
            with_second_network = replace(reordered, workload=second.workload, network=second.network)
    times = b.step.times()
    try:
        spans_ns = [first.span_ns(a.step.times()), first.span_ns(a.step.times(durations=b.step))]
        spans_ns += [simulation.span_ns(times) for simulation in (reordered, with_second_network, second)]
    except PptraceError:
        return None
    reproduced = (spans_ns[0], spans_ns[-1]) == (a.step.span_ns, b.step.span_ns)
    # Simulations have no late receives and no host gaps, so these rungs change nothing.
    return [*spans_ns, spans_ns[-1], spans_ns[-1]] if reproduced else None


_SPLIT = (Kind.B, Kind.I, Kind.W)
"""A full backward, and its two gradients."""


class OrderShare(Struct, frozen=True, kw_only=True):
    """Effects of order and times; they sum to the difference of the lengths."""

    order_ns: Figure
    """The effect of the second order, with the second times and network."""
    times_ns: Figure
    """The effect of the second times and network, in the first order."""
    rest_ns: Figure
    """The part that replays miss, and time before and after the pipeline."""


def order_share(a: ComparedStep, b: ComparedStep) -> OrderShare | None:
    """Return the effects of order and of times.

    None for partial steps, and where the first order cannot run with the times of the second step.
    """
    first, second = a.step, b.step
    if first.partial or second.partial:
        return None
    mixed = replace(first, duration_ns=_durations(first, second)).times(
        transfers=second, gaps=second, with_blocked=False
    )
    try:
        # In replays, only the message order delays messages.
        first_ns, mixed_ns, second_ns = _mixed_simulation(a, b, mixed) or (
            a.replay.span_ns(first.times(with_blocked=False)), a.replay.span_ns(mixed),
            b.replay.span_ns(second.times(with_blocked=False)),
        )  # fmt: skip
    except PptraceError:
        return None
    order_ns, times_ns = second_ns - mixed_ns, mixed_ns - first_ns
    rest_ns = b.metrics.step_ns - a.metrics.step_ns - order_ns - times_ns
    return OrderShare(order_ns=Figure(order_ns), times_ns=Figure(times_ns), rest_ns=Figure(rest_ns))


def _mixed_simulation(a: ComparedStep, b: ComparedStep, times: ActionTimes) -> tuple[int, int, int] | None:
    """Return three spans: the first step, the first order on the second network, the second step.

    None without two simulations, or where the first order cannot run on the second network.
    """
    first, second = a.simulation, b.simulation
    if first is None or second is None:
        return None
    mixed = first if first.has_setting_of(second) else replace(second, schedule=first.schedule)
    try:
        return a.step.span_ns, mixed.span_ns(times), b.step.span_ns
    except PptraceError:
        return None


def _durations(a: Computations, b: Computations) -> Int64s:
    """Return the durations of the first step's actions in the second step, shape (actions of the first,).

    A full backward is the sum of both gradients; a gradient is half of a full backward. Actions that the second
    step lacks keep their duration.
    """
    order = np.argsort(b.places, kind="stable")
    # ``find`` returns -1 for a missing action, which reads the last duration: -1, unknown.
    keys, durations = b.places[order], np.append(b.duration_ns[order], -1)
    cells = b.placement.stages * b.placement.microbatches
    # Places are ordered by kind, so ``cells`` places further is the same stage and microbatch of the next kind.
    backward, inputs, weights = (
        durations[find(keys, a.places + (kind - a.kind.astype(np.int64)) * cells)] for kind in _SPLIT
    )
    total = np.where((inputs >= 0) & (weights >= 0), inputs + weights, -1)
    half = np.where(backward >= 0, backward // 2, -1)
    substitute = np.select([a.kind == Kind.B, np.isin(a.kind, _SPLIT)], [total, half], -1)
    duration_ns = durations[find(keys, a.places)]
    duration_ns = np.where(duration_ns >= 0, duration_ns, substitute)
    return np.where(duration_ns >= 0, duration_ns, a.duration_ns)


class Pair(Struct, frozen=True, kw_only=True):
    """Differences of two steps; each pair of values starts with the first step."""

    step_ns: Sides
    matched: MatchedActions
    parts_ns: Mapping[str, Sides]
    """Nanoseconds by part of the step, mean over ranks; the parts of a side sum to its step."""
    ladder: tuple[Rung, ...]
    """Changes of the length by part; empty where replays are impossible."""
    no_ladder: str
    """The reason for an empty ladder."""
    orders: tuple[OrderChange, ...]
    """The first difference of order per rank."""
    order_share: OrderShare | None
    """Effects of order and times; None where orders are equal, or cannot run with the other times."""
    kinds: Mapping[tuple[str, int], KindRow]
    """Per kind and stage."""
    links: Mapping[tuple[int, int], Link]
    """Messages by sender and receiver."""
    blame: Blame
    """Relative slowdown of ranks, stages and links."""
    chains: tuple[Chain, Chain]
    """Both critical paths."""
    paths_ns: Mapping[str, Sides]
    """Time on the critical paths by kind, and between actions."""


def compare_pair(a: ComparedStep, b: ComparedStep, tolerance: float) -> Pair:
    """Compare two steps."""
    first, second = a.step, b.step
    matched = match(first, second)
    messages = links(first, second)
    rungs, no_ladder = ladder(a, b)
    reordered = orders(first, second)
    return Pair(
        step_ns=Sides(Figure(a.metrics.step_ns), Figure(b.metrics.step_ns)), matched=matched,
        parts_ns=_sides(a.parts_ns, b.parts_ns), ladder=rungs, no_ladder=no_ladder, orders=reordered,
        order_share=order_share(a, b) if reordered and a.sizes == b.sizes else None,
        kinds=kinds(first, second), links=messages,
        blame=attribute_slowdown(first, second, matched, messages, tolerance),
        chains=(a.chain, b.chain), paths_ns=_sides(a.chain.by_kind_ns, b.chain.by_kind_ns),
    )  # fmt: skip


def _sides(first: Mapping[str, int], second: Mapping[str, int]) -> Mapping[str, Sides]:
    return {name: Sides(Figure(first.get(name, 0)), Figure(second.get(name, 0))) for name in {**first, **second}}


class RankMemory(Struct, frozen=True, kw_only=True):
    """Memory of one rank in both steps."""

    rank: int
    peak_bytes: tuple[int, int] | None
    """Peak memory in bytes; None where unknown on a side."""
    activations: tuple[int, int]
    """Peak number of activations; each pair of stage and microbatch counts once."""


def compare_memory(sides: tuple[Side, Side], metrics: tuple[Metrics, Metrics]) -> tuple[RankMemory, ...]:
    """Return the memory of each rank.

    Empty where ranks differ in number, or where bytes are unknown and activations are equal.
    """
    if metrics[0].ranks != metrics[1].ranks:
        return ()
    peaks = [_peaks(side, figures) for side, figures in zip(sides, metrics, strict=True)]
    activations = [figures.memory.peak_activations.tolist() for figures in metrics]
    known = all(peaks)
    if not known and activations[0] == activations[1]:
        return ()
    return tuple(
        RankMemory(
            rank=sides[0].pipeline_ranks[rank], peak_bytes=(peaks[0][rank], peaks[1][rank]) if known else None,
            activations=(activations[0][rank], activations[1][rank]),
        )
        for rank in range(metrics[0].ranks)
    )  # fmt: skip


def _peaks(side: Side, metrics: Metrics) -> list[int]:
    """Return the peak of each rank, from costs or else from memory counters of the trace; empty where unknown."""
    peak_bytes: list[int] = metrics.memory.peak_bytes.tolist()
    if any(peak_bytes):
        return peak_bytes
    counted = {
        counter.rank: int(counter.value.max(initial=0))
        for counter in side.timeline.counters
        if (counter.name, counter.unit) == ("memory", "bytes")
    }
    known = all(rank in counted for rank in range(metrics.ranks))
    return [counted[rank] for rank in range(metrics.ranks)] if known else []


_LEAST_VARIATION = 0.002
"""The share of a recorded step by which a further step differs at least, where no further step was recorded."""
TOLERANCE = 0.02
"""The default relative tolerance of lengths of steps and medians of kinds."""


class StepDiff(Pair, frozen=True, kw_only=True):
    """Differences of two sides; figures have deviations where a side has several steps."""

    names: tuple[str, str]
    """The sides."""
    tolerance: float
    """The relative difference up to which times count as equal."""
    steps: tuple[Computations, Computations]
    """The computations; backwards of first stages are merged where only one side splits them."""
    folded: tuple[int, ...]
    """The stages whose backwards are merged."""
    metrics: tuple[Metrics, Metrics]
    """The metrics of both steps."""
    changed: Int64s
    """The pairs of computations that changed beyond noise, the largest change first."""
    deviations_ns: Int64s
    """Shape (pairs,): the standard deviation of each change from step to step."""
    within_noise: int
    """The number of changed actions within noise."""
    divergence: Divergence | None
    """The first action that ends early or late; None where none does."""
    causes: tuple[Cause, ...]
    """The causes: slow or fast kinds, ranks, stages and links, and outliers, the largest effect first."""
    remarks: tuple[Cause, ...]
    """The same with little effect on the length of the step."""
    paths_differ: PathsDiffer | None
    """The last difference of the critical paths; None where they are equal."""
    spans_ns: tuple[tuple[int, ...], tuple[int, ...]]
    """The spans of the computations of all steps."""
    pools: tuple[bool, bool]
    """Whether the times of a side are medians over all its steps."""
    memory: tuple[RankMemory, ...]
    """Memory by rank; empty where ranks differ in number, or bytes are unknown and activations are equal."""
    least_uncertainty_ns: int
    """The uncertainty of lengths that a recording has even if steps do not vary: of its clocks, and of a single
    step; 0 for two simulations."""
    partial: str
    """What the recordings lack; empty where nothing is missing."""
    one_sided: bool
    """Whether a side lacks ranks or actions that the other has."""

    @property
    def change(self) -> float:
        """The relative change of the length of the step."""
        first, second = self.step_ns
        return second.value / first.value - 1 if first.value else 0.0

    @property
    def uncertainty_ns(self) -> int:
        """The change of the length of the step that is within the variation of steps and the bounds of clocks."""
        return max(self.least_uncertainty_ns, round(SIGMAS * (self.step_ns.change.deviation or 0)))

    @property
    def changes(self) -> tuple[Change, ...]:
        """The actions that changed beyond noise, the largest change first."""
        return self.largest_changes(len(self.changed))

    def largest_changes(self, top: int) -> tuple[Change, ...]:
        """Return the first ``top`` of :attr:`changes`."""
        first, second = self.steps
        rows = []
        for pair in self.changed[:top].tolist():
            i, j = int(self.matched.first[pair]), int(self.matched.second[pair])
            first_ns, second_ns = int(first.duration_ns[i]), int(second.duration_ns[j])
            change_ns = Figure(second_ns - first_ns, int(self.deviations_ns[pair]) or None)
            rows.append(Change(
                rank=int(second.rank[j]), action=second.action(j), first_ns=first_ns, second_ns=second_ns,
                change_ns=change_ns, start_ns=int(second.start_ns[j]),
            ))  # fmt: skip
        return tuple(rows)

    @property
    def varies(self) -> bool:
        """Whether a side has several steps."""
        return any(len(spans) > 1 for spans in self.spans_ns)

    @property
    def same(self) -> bool:
        """Whether lengths, medians and orders are equal within the tolerance."""
        return (
            abs(self.change) <= self.tolerance
            and all(row.is_equal(self.tolerance) for row in self.kinds.values())
            and not self.orders
            and not self.incomparable_reason
            and not self.one_sided
        )

    @property
    def incomparable_reason(self) -> str:
        """The reason why actions cannot be compared; empty where they can."""
        if has_same_stages(*self.steps):
            return ""
        first, second = (step.placement.stages for step in self.steps)
        return f"{first} and {second} stages are not the same parts of the model"

    @property
    def groups_ns(self) -> Mapping[str, Sides]:
        """Communication of tensor-, context- and expert-parallel groups, and its hidden part; sums over ranks."""
        times = [
            {name: int(time.sum()) for group in metrics.groups if group.stream.is_group
             for name, time in ((group.name, group.total_ns), (f"{group.name}, hidden", group.hidden_ns))}
            for metrics in self.metrics
        ]  # fmt: skip
        return {name: Sides(*(Figure(side.get(name, 0)) for side in times)) for name in times[0] | times[1]}

    @property
    def ranks(self) -> tuple[int, int]:
        """The number of ranks of both sides."""
        first, second = (metrics.ranks for metrics in self.metrics)
        return first, second


def diff(
    a: Side,
    b: Side,
    tolerance: float = TOLERANCE,
    simulations: tuple[Resimulation | None, Resimulation | None] = (None, None),
) -> StepDiff:
    """Compare two steps action by action; ``simulations`` reproduce the steps where both are simulated."""
    sides = (a, b)
    *steps, folded = fold_first_stages(a.computations, b.computations)
    first, second = steps
    step_lists = [[step.folded(folded) for step in side.step_computations] for side in sides]
    partial = any(step.partial for step in steps)
    compared_a, compared_b = (
        [
            ComparedStep(
                step=step, metrics=analysis.metrics, parts_ns=analysis.parts_ns, simulation=simulation,
                partial=partial, microbatches=step_microbatches(side.timeline), slices=side.slices,
            )
            for step, analysis in zip((chosen, *side_steps), (side.analysis, *side.analyses), strict=True)
        ]
        for side, chosen, side_steps, simulation in zip(sides, steps, step_lists, simulations, strict=True)
    )  # fmt: skip
    # Index 0 is the compared step of a side; the single steps of a side with several follow.
    single_step_pairs = (
        [compare_pair(step, compared_b[0], tolerance) for step in compared_a[1:]] if len(a.steps) > 1 else [],
        [compare_pair(compared_a[0], step, tolerance) for step in compared_b[1:]] if len(b.steps) > 1 else [],
    )
    pair = _add_deviations(compare_pair(compared_a[0], compared_b[0], tolerance), single_step_pairs, sides)
    deviations_ns, end_deviations_ns = (
        _deviations(sides, (first, second), step_lists, pair.matched, column)
        for column in ("duration_ns", "end_ns")
    )
    changed, within_noise = rank_changes(first, second, pair.matched, deviations_ns)
    changes = [
        *candidates(
            pair.blame,
            clock_uncertainty_ns(sides, steps),
            pair.links,
            tolerance,
            [single.blame for single in single_step_pairs[1]] if b.pools else (),
        ),
        *spikes(first, second, pair.matched, tolerance, deviations_ns),
        *(late_hosts(first, second, pair.matched, tolerance) if a.measured or b.measured else ()),
    ]
    causes, remarks = rank_causes(changes, pair.step_ns, _effects_of(compared_b[0]) if changes else None)
    metrics = compared_a[0].metrics, compared_b[0].metrics
    return StepDiff(
        **asdict(pair),
        names=(a.name, b.name), tolerance=tolerance, steps=(first, second), folded=folded, metrics=metrics,
        changed=changed, deviations_ns=deviations_ns, within_noise=within_noise,
        divergence=first_divergence(
            first, second, pair.matched, compared_b[0].releases, tolerance, end_deviations_ns
        ),
        causes=causes, remarks=remarks,
        paths_differ=paths_differ(first, second, pair.chains),
        spans_ns=(a.spans_ns, b.spans_ns), pools=(a.pools, b.pools), memory=compare_memory(sides, metrics),
        least_uncertainty_ns=_least_uncertainty_ns(sides, pair), partial=partial_data(sides),
        one_sided=a.missing_ranks != b.missing_ranks or (partial and a.actions_of_ranks != b.actions_of_ranks),
    )  # fmt: skip


def _least_uncertainty_ns(sides: Sequence[Side], pair: Pair) -> int:
    """Return :attr:`StepDiff.least_uncertainty_ns`."""
    clocks = [clock for side in sides if side.measurement is not None for clock in side.measurement.clocks]
    is_single = any(side.measured for side in sides) and all(len(side.steps) == 1 for side in sides)
    least_ns = _LEAST_VARIATION * pair.step_ns.second.value if is_single else 0
    return max(round(least_ns), *(clock.bound_ns for clock in clocks), 0)


def _effects_of(
    compared: ComparedStep,
) -> Callable[[Sequence[Candidate], Sequence[Candidate]], list[float]] | None:
    """Return a function from candidates and those taken before them to their effects; None without replays."""
    if compared.partial:
        return None
    step, replay, simulation = compared.step, compared.replay, compared.simulation

    def span_ns(changed: Computations, *, replayed: bool) -> int:
        if simulation is not None and not replayed:
            return simulation.span_ns(changed.times())
        return replay.span_ns(changed.times(with_late=True))

    def effects_ns(changes: Sequence[Candidate], taken: Sequence[Candidate]) -> list[float]:
        before = step
        for cause in taken:
            before = cause.without(before)
        before_ns = {
            replayed: span_ns(before, replayed=replayed)
            for replayed in {candidate.only_replayed for candidate in changes}
        }
        return [
            before_ns[candidate.only_replayed]
            - span_ns(candidate.without(before), replayed=candidate.only_replayed)
            for candidate in changes
        ]

    try:
        replay.span_ns(step.times(with_late=True))
    except ScheduleError:
        return None
    return effects_ns


def _add_deviations(pair: Pair, groups: Sequence[Sequence[Pair]], sides: Sequence[Side]) -> Pair:
    """Return a pair with deviations; parts and paths have deviations of single steps even if steps are pooled."""
    factors = [median_deviation_factor(len(side.steps)) if side.pools else 1.0 for side in sides]
    single = with_deviations(pair, *groups)
    return replace(
        with_deviations(pair, *groups, factors=factors), parts_ns=single.parts_ns, paths_ns=single.paths_ns
    )


def _deviations(
    sides: tuple[Side, Side],
    steps: tuple[Computations, Computations],
    step_lists: Sequence[Sequence[Computations]],
    matched: MatchedActions,
    column: str,
) -> Int64s:
    """Return the standard deviation of a column over the steps of both sides, shape (pairs,)."""
    first, second = (
        standard_deviations(
            step, side.other_steps(side_steps), column, pooled=side.pools and column == "duration_ns"
        )
        for side, step, side_steps in zip(sides, steps, step_lists, strict=True)
    )
    deviations: Int64s = np.hypot(first[matched.first], second[matched.second]).astype(np.int64)
    return deviations
