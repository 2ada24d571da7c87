"""Calibration: costs and network figures fitted to a measured step.

Computations and times of the host are fitted by means. Means include stalls, which a step waits for; medians omit
them and are too short. Latency and bandwidth come from the median slope between several message sizes (H. Theil,
1950; P. K. Sen, 1968). A single size gives only the total time, its mean.

The time of the host is fitted per kind of action. Between two actions it posts messages (:class:`HostFit`). In the
simulation of a fit this time follows the arrival of a message. In a run it passes while the receiver waits, so the
fitted latency is shorter by it. Inside an action, before its first and after its last operator, the host's time
does not depend on the layers of the stage. Runs with several numbers of stages measure this part: the
actions of two half stages are longer than the action of the whole stage by it.

A check simulates the fit. Where ranks share processors, memory or power, durations depend on the number of ranks
that compute at once, so means do not hold for other schedules. A least-squares fit relates logarithms of durations
to that number, with a mean per kind and stage. The variation between steps comes from the bootstrap (B. Efron,
1979): steps with durations drawn from the recorded ones of the same kind and stage.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.measured.computations import Transfers, extract_computations, group_quantiles
from pptrace.measured.dependencies import follow_chain
from pptrace.measured.replay import Resimulation, nearest_policy
from pptrace.report.numbers import Figure, mean_of, median_of
from pptrace.sanitize import shell_word
from pptrace.steps.kinds import PASSES, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from pptrace.measured.computations import Computations
    from pptrace.plugins.registry import Registry
    from pptrace.steps.columns import Int64s
    from pptrace.steps.message_calls import Policy
    from pptrace.timeline.measurement import BySize

_FEWEST, _FAR = 3, 3


class ActionFit(Struct, frozen=True, kw_only=True):
    """One kind of action on one stage."""

    kind: str
    stage: int
    count: int
    """The number of measured actions."""
    mean_ns: Figure
    """The mean of their durations."""
    median_ns: int
    """The median of their durations."""
    in_overlapped_pairs: bool
    """Whether all of them are members of overlapped pairs, whose share of the pair is unknown."""


class HostFit(Struct, frozen=True, kw_only=True):
    """Host time around one kind of action; it does not depend on the number of layers."""

    kind: str
    count: int
    """The number of known gaps before it; 0 for a kind that has the mean of the other kinds."""
    gap_ns: int
    """Mean time between the previous action of its rank and this one, in which the host posts messages."""
    fixed_ns: int
    """The part of its duration that does not depend on the layers of its stage."""


class LinkFit(Struct, frozen=True, kw_only=True):
    """Messages between ranks."""

    count: int
    """The number of observed messages."""
    sizes: tuple[int, ...]
    """Their sizes in bytes."""
    median_ns: Figure
    """The median of their transfer times."""
    mean_ns: int
    """The mean of their transfer times."""
    latency_ns: int | None
    """The time of an empty message; None for messages of one size."""
    bytes_per_s: float | None
    """The rate; None for messages of one size, and where larger messages are no slower."""
    residual_ns: int
    """The median error of the fit."""


class LinkTime(Struct, frozen=True, kw_only=True):
    """Messages from one rank to another."""

    source: int
    target: int
    median_ns: int
    """The median of their transfer times."""


class Calibration(Struct, frozen=True, kw_only=True):
    """Costs and network of measured steps."""

    ranks: int
    """Pipeline ranks."""
    stages: int
    microbatches: int
    steps: int
    slices: int
    """Slices of each microbatch's sequence; measured actions are those of slices."""
    fitted: tuple[ActionFit, ...]
    """Per stage and kind."""
    hosts: tuple[HostFit, ...]
    """Per kind of forwards and backwards."""
    overhead_ns: int
    """Mean time of the host between two actions of a rank."""
    overhead_deviation_ns: int
    """Standard deviation of these times."""
    gaps: int
    """The number of known times."""
    link: LinkFit | None
    """Messages, between nodes where nodes are known; None without observed ones."""
    node_ranks: int
    """Consecutive ranks per node; 0 where unknown."""
    node_link: LinkFit | None
    """Messages within nodes; None without observed ones, or where nodes are unknown."""
    uneven: tuple[LinkTime, ...]
    """The fastest and the slowest link between ranks, where they differ too much for one kind of link."""
    boundary_bytes: int
    """Size of a message between stages; 0 where unknown."""
    empty_input_gradient: bool = False
    """Whether the first stage has no input gradients, as in PyTorch, so that its weight gradients take the whole
    backward."""
    split_run: str = ""
    """The other run of the same stages in which input and weight gradients were measured apart; empty for none."""
    stage_counts: tuple[int, ...] = ()
    """Numbers of stages of the runs that the fixed parts are fitted to; empty where a single run gave them."""
    run_shares: tuple[float, ...] = ()
    """Shape (stages,): the shares of input gradients in backwards in that run."""

    def wire_ns(self, size_bytes: Int64s) -> Int64s:
        """Return transfer times of messages by size; 0 where no message was observed."""
        link = self.link or self.node_link
        if link is None:
            return np.zeros_like(size_bytes)
        if link.latency_ns is None or link.bytes_per_s is None:
            return np.full_like(size_bytes, self.exposed(link.mean_ns))
        times_ns: Int64s = (self.exposed(link.latency_ns) + size_bytes * (1e9 / link.bytes_per_s)).astype(np.int64)
        return times_ns

    def exposed(self, latency_ns: int) -> int:
        """Return the part of a latency that exceeds the host's mean time before the consumer."""
        gaps_ns = [self.host(kind).gap_ns for kind in (Kind.F, Kind.B)]
        return max(latency_ns - sum(gaps_ns) // len(gaps_ns), 0)

    def host(self, kind: Kind) -> HostFit:
        """Return the host's time around a kind of forwards or backwards."""
        return next(host for host in self.hosts if host.kind == kind.name)

    def proportional_ns(self, kind: Kind, stage: int) -> int | None:
        """Return the mean duration without its fixed part; None where it was not measured."""
        fitted = self.of(kind, stage)
        return None if fitted is None else max(round(fitted.mean_ns.value) - self.host(kind).fixed_ns, 0)

    def of(self, kind: Kind, stage: int) -> ActionFit | None:
        """Return the fit of one kind on one stage; None where it was not measured."""
        return next((fit for fit in self.fitted if (fit.kind, fit.stage) == (kind.name, stage)), None)

    def median_ns(self, stage: int, kind: Kind) -> int | None:
        """Return the median duration of one kind on one stage; None where it was not measured."""
        fitted = self.of(kind, stage)
        return None if fitted is None else fitted.median_ns

    def backward_ns(self, stage: int) -> int | None:
        """Return the time of a whole backward, or of its two gradients, without their fixed parts.

        None where neither was measured.
        """
        whole, first, second = (self.proportional_ns(kind, stage) for kind in (Kind.B, Kind.I, Kind.W))
        if whole is not None:
            return whole
        return None if first is None or second is None else first + second

    def input_gradient_ns(self, stage: int) -> int | None:
        """Return the time of an input gradient without its fixed part, at most that of the whole backward.

        Where both ran, stalls can make the part longer than the whole. None where it was not measured.
        """
        first, whole = self.proportional_ns(Kind.I, stage), self.backward_ns(stage)
        return first if first is None or whole is None else min(first, whole)

    @property
    def measured_shares(self) -> tuple[float, ...]:
        """Shape (stages,): the shares of input gradients in backwards; the median where a stage has none.

        Empty where no input gradient was measured.
        """
        shares = {
            stage: first_ns / total_ns
            for stage in range(self.stages)
            if (first_ns := self.input_gradient_ns(stage)) is not None and (total_ns := self.backward_ns(stage))
        }
        middle = sorted(shares.values())[len(shares) // 2] if shares else 0.0
        return tuple(shares.get(stage, middle) for stage in range(self.stages)) if shares else ()

    def with_shares_of(self, other: Calibration, run: str) -> Calibration:
        """Return the fit with the shares of another fit of the same stages, unless it has shares itself.

        ``run`` is the name of the other fit's run.
        """
        if self.measured_shares or self.run_shares or self.stages != other.stages or not other.measured_shares:
            return self
        return replace(
            self, split_run=run, run_shares=other.measured_shares,
            empty_input_gradient=self.empty_input_gradient or other.empty_input_gradient,
        )  # fmt: skip


def calibrate(
    steps: Sequence[Computations], node_ranks: int = 0, *, slices: int = 1, empty_input_gradient: bool = False
) -> Calibration:
    """Fit the pooled steps of one pipeline.

    Args:
        steps: the measured steps.
        node_ranks: consecutive ranks per node, for a separate fit of messages within nodes; 0 if unknown.
        slices: slices of each microbatch's sequence, which the steps have as microbatches.
        empty_input_gradient: whether the first stage has no input gradients.

    Raises:
        ValueError: there are no steps, or steps of different sizes.
    """
    sizes = {(step.placement.ranks, step.placement.stages, step.placement.microbatches) for step in steps}
    if len(sizes) != 1:
        msg = "steps of one size are fitted together"
        raise ValueError(msg)
    ranks, stages, microbatches = sizes.pop()
    (gaps,), fitted = _pooled(steps, "host_gaps_ns"), tuple(_fit_actions(steps, stages))
    (sent,) = _pooled([step.transfers for step in steps], "size_bytes")
    seen = _observed_messages(steps)
    near = seen.source // node_ranks == seen.target // node_ranks if node_ranks else np.zeros(len(seen), bool)
    return Calibration(
        ranks=ranks, stages=stages, microbatches=microbatches // slices, steps=len(steps), slices=slices,
        fitted=fitted, hosts=tuple(_fit_hosts(steps, fitted, empty_input_gradient=empty_input_gradient)),
        overhead_ns=round(float(gaps.mean())) if gaps.size else 0,
        overhead_deviation_ns=round(float(gaps.std())) if gaps.size else 0, gaps=gaps.size,
        link=_fit_messages(seen, ~near), node_ranks=node_ranks, node_link=_fit_messages(seen, near),
        uneven=() if node_ranks else _extreme_links(seen),
        boundary_bytes=int(np.median(sent[sent > 0])) if (sent > 0).any() else 0,
        empty_input_gradient=empty_input_gradient,
    )  # fmt: skip


def extend_to_pipeline(fit: Calibration, step: Computations, numbers: Sequence[int], ranks: int) -> Calibration:
    """Extend a fit of some ranks to the whole pipeline, where their stages match a looped or a V placement.

    Times of unrecorded stages stay unknown. Another placement returns the fit unchanged.

    Args:
        fit: the fit of the recorded ranks.
        step: one of its steps, with the rank numbers of the pipeline.
        numbers: the number of each recorded rank in the pipeline.
        ranks: the number of ranks of the pipeline.
    """
    stages_by_rank = [set(step.stage[step.rank == number].tolist()) for number in numbers]
    chunks = len(stages_by_rank[0])
    looped = [set(range(number, ranks * chunks, ranks)) for number in numbers]
    v_shaped = [
        {chunk * ranks + (ranks - 1 - number if chunk % 2 else number) for chunk in range(chunks)}
        for number in numbers
    ]
    return replace(fit, ranks=ranks, stages=ranks * chunks) if stages_by_rank in (looped, v_shaped) else fit


def _pooled(steps: Sequence[Computations | Transfers], *names: str) -> list[NDArray[Any]]:
    """Return columns of all steps."""
    return [np.concatenate([getattr(step, name) for step in steps]) for name in names]


def _fit_actions(steps: Sequence[Computations], stages: int) -> Iterator[ActionFit]:
    """Yield the fit of each kind on each stage, from actions outside overlapped pairs where there are any."""
    kinds, stage_of, pair, duration_ns = _pooled(steps, "kind", "stage", "pair", "duration_ns")
    for stage, kind in product(range(stages), sorted(PASSES)):
        actions = (kinds == kind) & (stage_of == stage)
        unpaired = actions & (pair < 0)
        times_ns = duration_ns[unpaired if unpaired.any() else actions]
        if times_ns.size:
            yield ActionFit(
                kind=kind.name, stage=stage, count=times_ns.size, mean_ns=mean_of(times_ns),
                median_ns=int(np.median(times_ns)),
                in_overlapped_pairs=not unpaired.any(),
            )  # fmt: skip


def _fit_hosts(
    steps: Sequence[Computations], fitted: Sequence[ActionFit], *, empty_input_gradient: bool
) -> Iterator[HostFit]:
    """Yield the host's time around each kind of forwards and backwards.

    A kind with few known gaps has the mean of all kinds. An empty input gradient, which is no action of a step,
    waits for its message before the backward that has its weight gradient.
    """
    kinds, stage, issued_ns, host_ns, pair = _pooled(steps, "kind", "stage", "issued_ns", "host_ns", "pair")
    if empty_input_gradient and (kinds == Kind.I).any():
        issued_ns = np.where((kinds == Kind.B) & (stage == 0), -1, issued_ns)
    known_ns = issued_ns[issued_ns >= 0]
    measured_ns = {
        kind: float(host_ns[chosen].mean())
        for kind in sorted(PASSES)
        if (chosen := (kinds == kind) & (host_ns >= 0) & (pair < 0)).any()
    }
    fixed_ns = _complete_fixed_parts(measured_ns, {Kind[action.kind] for action in fitted})
    for kind in sorted(PASSES):
        gaps_ns = issued_ns[(kinds == kind) & (issued_ns >= 0)]
        usual_ns = gaps_ns if gaps_ns.size >= _FEWEST else known_ns
        yield HostFit(
            kind=kind.name, count=gaps_ns.size,
            gap_ns=round(float(usual_ns.mean())) if usual_ns.size else 0, fixed_ns=fixed_ns[kind],
        )  # fmt: skip


def _complete_fixed_parts(measured_ns: Mapping[Kind, float], kinds: Collection[Kind]) -> dict[Kind, int]:
    """Return the fixed part of every kind, with estimates for kinds that did not run.

    A whole backward enters the host once, and both of its gradients twice, as often as a further forward. A part
    of zero is that of a kind whose operators were not recorded.

    Args:
        measured_ns: the fixed parts of kinds with recorded operators.
        kinds: the kinds that ran.
    """
    forward, whole, first, second = (
        measured_ns.get(kind, 0.0 if kind in kinds else None) for kind in (Kind.F, Kind.B, Kind.I, Kind.W)
    )
    forward = forward or 0.0
    if whole is None:
        whole = max((first or 0.0) + (second or 0.0) - forward, first or 0.0, second or 0.0)
    half = max(whole / 2, min(forward, whole))
    parts_ns = {Kind.F: forward, Kind.B: whole, Kind.I: first, Kind.W: second}
    return {kind: round(half if part is None else part) for kind, part in parts_ns.items()}


def fit_stage_counts(fit: Calibration, other_fits: Sequence[Calibration]) -> Calibration:
    """Return a fit with the host's time that it has together with fits of other numbers of stages.

    The actions of two half stages are together longer than that of the whole stage by the fixed part. Gaps are
    means over all fits. Fits of other microbatches do not count.
    """
    alike = [fit, *(o for o in other_fits if (o.microbatches, o.slices) == (fit.microbatches, fit.slices))]
    counts = sorted({run.stages for run in alike})
    if len(counts) == 1:
        return fit
    fixed_ns = _fixed_parts_ns(fit, alike)
    hosts = []
    for host in fit.hosts:
        kind = Kind[host.kind]
        known = [run.host(kind) for run in alike if run.host(kind).count] or [host]
        weights = [max(times.count, 1) for times in known]
        gap_ns = round(float(np.average([times.gap_ns for times in known], weights=weights)))
        hosts.append(replace(host, count=sum(weights), gap_ns=gap_ns, fixed_ns=fixed_ns[kind]))
    return replace(fit, hosts=tuple(hosts), stage_counts=tuple(counts))


def _fixed_parts_ns(fit: Calibration, alike: Sequence[Calibration]) -> dict[Kind, int]:
    """Return the fixed part of each kind from runs with several numbers of stages, by default that of the fit.

    Medians are compared, because stalls of one run are no fixed part. Runs with whole and with split backwards are
    compared, too: both gradients together have more of the host's time than a whole backward, by as much as in the
    fit. If no two runs have a gradient, their fixed parts are in proportion to their times.
    """
    parts_ns = {kind: float(fit.host(kind).fixed_ns) for kind in PASSES}
    extra_ns = max(parts_ns[Kind.I] + parts_ns[Kind.W] - parts_ns[Kind.B], 0.0)

    def whole_ns(run: Calibration, stage: int) -> float | None:
        whole, first, second = (run.median_ns(stage, kind) for kind in (Kind.B, Kind.I, Kind.W))
        return whole if whole is not None or first is None or second is None else first + second - extra_ns

    def fixed_part_ns(time_ns: Callable[[Calibration, int], float | None]) -> float | None:
        known_ns = [part for pair in combinations(alike, 2) for part in _excess_ns(*pair, time_ns)]
        return max(float(np.mean(known_ns)), 0.0) if known_ns else None

    backward_ns = fixed_part_ns(whole_ns)
    gradients_ns = {
        kind: sum(action.median_ns for run in alike for action in run.fitted if action.kind == kind.name)
        for kind in (Kind.I, Kind.W)
    }
    for kind in PASSES:
        part_ns = backward_ns if kind is Kind.B else fixed_part_ns(partial(Calibration.median_ns, kind=kind))
        if part_ns is None and kind in gradients_ns and backward_ns is not None:
            total_ns = sum(gradients_ns.values())
            part_ns = (backward_ns + extra_ns) * (gradients_ns[kind] / total_ns if total_ns else 0.5)
        parts_ns[kind] = parts_ns[kind] if part_ns is None else part_ns
    return {kind: round(part_ns) for kind, part_ns in parts_ns.items()}


def _excess_ns(
    first: Calibration, second: Calibration, time_ns: Callable[[Calibration, int], float | None]
) -> Iterator[float]:
    """Yield the excess of the parts of each stage over the whole stage, per further part."""
    coarse, fine = sorted((first, second), key=lambda fit: fit.stages)
    parts = fine.stages // coarse.stages
    if parts == 1 or fine.stages % coarse.stages:
        return
    for stage in range(coarse.stages):
        whole_ns = time_ns(coarse, stage)
        known_ns = [ns for part in range(parts) if (ns := time_ns(fine, stage * parts + part)) is not None]
        if whole_ns is not None and len(known_ns) == parts:
            yield (sum(known_ns) - whole_ns) / (parts - 1)


def _observed_messages(steps: Sequence[Computations]) -> Transfers:
    names = Transfers.__struct_fields__
    columns = dict(zip(names, _pooled([step.transfers for step in steps], *names), strict=True))
    seen = columns["observed"] & (columns["duration_ns"] >= 0)
    return Transfers(**{name: values[seen] for name, values in columns.items()})


def _fit_messages(seen: Transfers, chosen: NDArray[np.bool_]) -> LinkFit | None:
    """Return the fit of the chosen messages, None without any."""
    return fit_link(seen.duration_ns[chosen], seen.size_bytes[chosen]) if chosen.any() else None


def _extreme_links(seen: Transfers) -> tuple[LinkTime, ...]:
    """Return the fastest and the slowest link, where their quartiles and medians differ clearly."""
    if not len(seen):
        return ()
    size = np.unique(seen.size_bytes, return_inverse=True)[1]
    common = size == np.bincount(size).argmax()
    ends, link = np.unique(np.stack([seen.source, seen.target])[:, common], axis=1, return_inverse=True)
    link = link.reshape(-1)
    lower_ns, median_ns, upper_ns = group_quantiles(seen.duration_ns[common], link, shares=(0.25, 0.5, 0.75))
    known = np.flatnonzero(np.bincount(link) >= _FEWEST)
    if known.size <= 1:
        return ()
    fast, slow = known[median_ns[known].argmin()], known[median_ns[known].argmax()]
    if lower_ns[slow] <= upper_ns[fast] or median_ns[slow] < _FAR * median_ns[fast]:
        return ()
    return tuple(
        LinkTime(source=int(ends[0, index]), target=int(ends[1, index]), median_ns=int(median_ns[index]))
        for index in (fast, slow)
    )


def fit_link(times_ns: Int64s, size_bytes: Int64s) -> LinkFit:
    """Fit latency and bandwidth to transfer times and sizes of at least one message.

    The fit is the median line through the medians of the sizes.
    """
    sizes = [int(size) for size in np.unique(size_bytes[size_bytes > 0]) if (size_bytes == size).sum() >= _FEWEST]
    medians = [float(np.median(times_ns[size_bytes == size])) for size in sizes]
    slopes = [
        (after - before) / (b - a) for (a, before), (b, after) in combinations(zip(sizes, medians, strict=True), 2)
    ]
    slope = float(np.median(slopes)) if slopes else 0.0
    latency_ns, bytes_per_s, residual_ns = None, None, times_ns - np.median(times_ns)
    if slope > 0:
        known = np.isin(size_bytes, sizes)
        latency = max(float(np.median(times_ns[known] - slope * size_bytes[known])), 0.0)
        latency_ns, bytes_per_s = round(latency), 1e9 / slope
        residual_ns = times_ns[known] - latency - slope * size_bytes[known]
    return LinkFit(
        count=times_ns.size, sizes=tuple(np.unique(size_bytes).tolist()), median_ns=median_of(times_ns),
        mean_ns=round(float(times_ns.mean())), latency_ns=latency_ns, bytes_per_s=bytes_per_s,
        residual_ns=int(np.median(np.abs(residual_ns))),
    )  # fmt: skip


_SLOWEST = 1000
"""Bytes per second, the smallest rate of a configuration."""


class OperationFit(Struct, frozen=True, kw_only=True):
    """The fit of one kind of operations."""

    what: str
    messages: bool
    """Whether they are messages between two ranks; false for collectives."""
    link: LinkFit
    """Their fit; for collectives the rate of the link of one rank."""


def fit_network(groups: Sequence[BySize]) -> tuple[OperationFit, ...]:
    """Fit each kind of operations."""
    return tuple(
        OperationFit(what=group.what, messages=group.messages, link=fit_link(group.took_ns, group.size_bytes))
        for group in groups
        if group.took_ns.size
    )


def choose_network(fits: Sequence[OperationFit]) -> OperationFit | None:
    """Return the slowest messages with a known rate, else the slowest collective, else None."""
    known = [fit for fit in fits if (fit.link.bytes_per_s or 0) >= _SLOWEST]
    return min(known, key=lambda fit: (not fit.messages, fit.link.bytes_per_s), default=None)


_ERRORS = 2
"""Standard errors by which the slope must exceed the threshold."""
_CLEAR = 0.1
"""The smallest reported slowdown between few and many computing ranks."""


class Sharing(Struct, frozen=True, kw_only=True):
    """The slowdown of actions by other computing ranks."""

    few: float
    """The 5 % quantile over actions of the number of concurrently computing ranks, including the action's rank."""
    many: float
    """The 95 % quantile."""
    ratio: float
    """The durations with ``many`` computing ranks over those with ``few``."""
    at_most: float
    """The relative slowdown of the mean action if all ranks computed all the time."""


def estimate_sharing(steps: Sequence[Computations]) -> Sharing | None:
    """Return the slowdown by other ranks; None where it is not significantly above 10 %, or ranks are missing.

    Args:
        steps: recorded steps of one order, at least one.
    """
    if any(step.lacks_ranks for step in steps):
        return None
    (duration_ns,) = _pooled(steps, "duration_ns")
    ranks = np.concatenate([concurrent_ranks(step) for step in steps])
    valid = (duration_ns > 0) & (ranks > 0)
    ranks, times = ranks[valid], np.log(duration_ns[valid])
    groups = np.unique(_action_groups(steps)[valid], return_inverse=True)[1]
    count = np.bincount(groups)
    rank_deviation, time_deviation = (
        values - (np.bincount(groups, values) / count)[groups] for values in (ranks, times)
    )
    spread = float((rank_deviation**2).sum())
    degrees_of_freedom = ranks.size - count.size - 1
    if not spread or degrees_of_freedom < 1:
        return None
    slope = float((rank_deviation * time_deviation).sum()) / spread
    residual = time_deviation - slope * rank_deviation
    error = float(np.sqrt((residual**2).sum() / degrees_of_freedom / spread))
    few, many = (float(quantile) for quantile in np.percentile(ranks, [5, 95]))
    if (slope - _ERRORS * error) * (many - few) < math.log1p(_CLEAR):
        return None
    idle_ranks = steps[0].placement.ranks - float(ranks.mean())
    at_most = math.expm1(slope * idle_ranks)
    return Sharing(few=few, many=many, ratio=math.exp(slope * (many - few)), at_most=at_most)


def concurrent_ranks(step: Computations) -> NDArray[np.float64]:
    """Return the mean number of computing ranks during each action; 0 for an empty action."""
    # Actions of a rank do not overlap, so each running action is a computing rank.
    times, index = np.unique(np.concatenate([step.start_ns, step.end_ns]), return_inverse=True)
    change = np.repeat([1.0, -1.0], len(step))
    ranks = np.cumsum(np.bincount(index.reshape(-1), change))
    integral = np.concatenate([[0.0], np.cumsum(ranks[:-1] * np.diff(times))])
    duration_ns = step.end_ns - step.start_ns
    rank_ns = np.interp(step.end_ns, times, integral) - np.interp(step.start_ns, times, integral)
    return np.where(duration_ns > 0, rank_ns / np.maximum(duration_ns, 1), 0.0)


_CONFIDENCE = 0.9
"""The share of steps within the interval."""
_LARGEST_ERROR = 0.05
"""The error of the simulation of the calibrated step above which a warning is printed."""
_MOST_PARTS = 6
"""Computations of a rank per microbatch: forward, input and weight gradient of two chunks."""
_SPLIT_DEVIATION = 1 / 6
"""The largest deviation of the share of the input gradient from a half, where it was not measured."""
_FEW_GAPS = 0.25
"""The share of known host gaps below which a warning is printed."""


class CalibrationCheck(Struct, frozen=True, kw_only=True):
    """A calibration compared with the steps that it is fitted to."""

    policy: str
    """The message policy that the run names, else the nearest one to the steps."""
    policy_options: Mapping[str, Any]
    """Its options, where the run names it."""
    step_ns: int
    """The mean span of the computations of the steps."""
    simulated_ns: int
    """The span of a simulation with the fit in the measured order."""
    interval: float | None
    """The relative error of predictions of other orders in nine of ten cases; None where ranks are missing.

    Errors of the fit add up along the critical path. Other orders have up to six actions in a row per
    microbatch: forward, input and weight gradient of two chunks. The interval is the sum of

    - the error of the simulation per action of its critical path, for that many actions;
    - per action, once more the host's time between actions, or, if larger, the mean delay of messages beyond the
      fit, for the share of actions with unknown times;
    - per action, once more the mean fixed part of the kinds, unless runs with several numbers of stages gave it;
    - per action, the host's time a second time where each rank has one stage, as the host was not measured with
      more messages;
    - the deviation from step to step: the larger of measurement and bootstrap, with that of the fit;
    - the slowdown if every rank computed all the time, where actions slow each other down.
    """
    split_interval: float | None
    """The interval for orders with split backwards, where input and weight gradients were not measured apart.

    The gradients are then assumed to take half of the backward each. A share of the input gradient between a third
    and two thirds changes the fill and drain of an order by twice the difference from a half, on every stage but
    one. None where the gradients were measured, or :attr:`interval` is None.
    """
    split_advice: str
    """The step that would measure the gradients apart; empty where they were."""
    sharing: Sharing | None
    """The slowdown of actions by other ranks; None where none is measurable."""
    warnings: tuple[str, ...]
    """Reasons for doubt."""

    @property
    def error(self) -> float:
        """The relative error of the simulated length."""
        return self.simulated_ns / self.step_ns - 1 if self.step_ns else 0.0


def check_calibration(
    fit: Calibration, steps: Sequence[Computations], registry: Registry, *, measured: bool = True,
    source: str = "run", p2p: Mapping[str, Any] | None = None,
) -> CalibrationCheck:  # fmt: skip
    """Simulate a fit and estimate its errors.

    Args:
        fit: the fit.
        steps: its steps, at least one.
        registry: the plugins with the message policies.
        measured: false for steps of the trace of a simulation.
        source: the path of the run, for advice.
        p2p: the policy that the run names, as :attr:`Measurement.p2p`.
    """
    nearest = nearest_policy(steps[0], registry, measured=measured, p2p=p2p)
    policy = nearest.policy
    simulated = [_simulate(fit, step, policy) for step in steps]
    step_ns, simulated_ns = (
        round(float(np.mean([step.span_ns for step in spanned]))) for spanned in (steps, simulated)
    )
    error = abs(simulated_ns / step_ns - 1) if step_ns else 0.0
    shared = estimate_sharing(steps) if measured else None
    interval = _interval(
        fit, steps, follow_chain(simulated[0]).positions.size, abs(simulated_ns - step_ns), step_ns, policy
    )
    if interval is not None and shared is not None:
        interval += shared.at_most
    is_split = not measured or bool(fit.measured_shares or fit.run_shares)
    split_interval = None if is_split or interval is None else interval + _split_error(fit, steps[0])
    return CalibrationCheck(
        policy=policy.label, policy_options=nearest.options, step_ns=step_ns,
        simulated_ns=simulated_ns, interval=interval,
        split_interval=split_interval, split_advice="" if is_split else _split_advice(steps[0], source),
        sharing=shared,
        warnings=tuple(_warnings(fit, steps, error, shared, measured=measured)),
    )  # fmt: skip


def _interval(
    fit: Calibration, steps: Sequence[Computations], path: int, error_ns: int, step_ns: int, policy: Policy
) -> float | None:
    """Return :attr:`CalibrationCheck.interval`.

    ``path`` is the number of actions on the critical path, ``error_ns`` the error of the simulation.
    """
    if any(step.partial for step in steps) or not step_ns:
        return None
    host_ns = max(fit.overhead_ns, _late_ns(fit, steps))
    cut_ns = fit.overhead_ns if fit.stages == fit.ranks else 0
    fixed_ns = 0.0 if fit.stage_counts else float(np.mean([host.fixed_ns for host in fit.hosts]))
    most = [int(np.bincount(step.rank).max()) for step in steps]
    actions = max(_MOST_PARTS * fit.microbatches * fit.slices, path, *most)
    return (
        actions * (error_ns / max(path, 1) + host_ns + cut_ns + fixed_ns) + _deviation_ns(steps, policy)
    ) / step_ns


def _split_error(fit: Calibration, step: Computations) -> float:
    """Return the relative error of an order with split backwards by the unknown share of the input gradient.

    No order is shorter than the computations of the busiest rank.
    """
    backwards_ns = [fit.backward_ns(stage) or 0 for stage in range(fit.stages)]
    busiest_ns = float(np.bincount(step.rank, step.duration_ns).max())
    return 2 * _SPLIT_DEVIATION * (sum(backwards_ns) - min(backwards_ns)) / max(busiest_ns, 1.0)


def _split_advice(step: Computations, source: str) -> str:
    """Return the advice to run one step with the same stages and split backwards."""
    placement = step.placement
    chunks = placement.stages // placement.ranks
    is_v = chunks > 1 and placement.rank_of(placement.ranks, 0) == placement.ranks - 1
    name = "zb-h1" if chunks == 1 else "zb-v" if is_v else "interleaved-zb"
    options = f" --set parallel.vp={chunks}" if chunks > 1 else ""
    run = Path(source.rstrip("/"))
    folder = run.with_name(f"{run.name.partition('.')[0] if run.is_file() else run.name}-split")
    words = f"--costs {shell_word(str(run))}{options} --steps 1 -o {shell_word(str(folder))}"
    command = f"pptrace torch run {name} {words}"
    return f"to measure them, run one step with split backwards, such as {command}"


def _deviation_ns(steps: Sequence[Computations], policy: Policy) -> float:
    """Return the deviation of another step from a fit of these steps."""
    spans_ns = bootstrap_spans_ns(steps, policy)
    deviation_ns = float(np.quantile(np.abs(spans_ns - spans_ns.mean()), _CONFIDENCE))
    if len(steps) > 1:
        deviation_ns = max(deviation_ns, float(np.std([step.span_ns for step in steps], ddof=1)))
    return deviation_ns * math.sqrt(1 + 1 / len(steps))


def _late_ns(fit: Calibration, steps: Sequence[Computations]) -> float:
    """Return the mean delay of messages beyond the fit, times the share of actions with unknown host gaps.

    A late host is a gap before an action that waits for no message. Otherwise it delays the message.
    """
    observed = _observed_messages(steps)
    late_ns = observed.duration_ns - fit.wire_ns(observed.size_bytes)
    unknown_share = 1 - fit.gaps / max(sum(map(len, steps)), 1)
    return unknown_share * max(float(late_ns.mean()), 0.0) if late_ns.size else 0.0


def _simulate(fit: Calibration, step: Computations, policy: Policy) -> Computations:
    """Simulate a step with the times of a fit; waits for unrecorded computations keep their length."""
    duration = step.duration_ns.copy()
    for action in fit.fitted:
        duration[(step.kind == Kind[action.kind]) & (step.stage == action.stage)] = round(action.mean_ns.value)
    transfers = replace(step.transfers, duration_ns=fit.wire_ns(step.transfers.size_bytes))
    gap = np.where(step.outside, step.gap_ns, 0)
    for host in fit.hosts:
        gap[(step.kind == Kind[host.kind]) & ~step.outside] = host.gap_ns
    times = replace(step, duration_ns=duration, gap_ns=gap, transfers=transfers).times(with_blocked=False)
    return extract_computations(Resimulation.of_order(step.order, policy, partial=step.partial).run(times))


def _warnings(
    fit: Calibration, steps: Sequence[Computations], error: float, shared: Sharing | None, *, measured: bool
) -> Iterator[str]:
    actions = sum(len(step) for step in steps)
    if any(step.partial for step in steps):
        yield (
            f"ranks or actions are missing: the fit assumes {fit.stages} stages on {fit.ranks} ranks (change this "
            "with --layout pp=N), and the mean of the recorded stages for each unrecorded one"
        )
    if error > _LARGEST_ERROR:
        yield f"a simulation of the measured step with this fit is off by {error:.1%}: predictions are uncertain"
    if shared is not None:
        yield (
            f"actions take {shared.ratio:.1f} times as long while {shared.many:.1f} ranks compute as while "
            f"{shared.few:.1f} do: they share processors, memory or power, and schedules that keep more or fewer "
            "of them computing at once take longer or shorter than predicted"
        )
    if measured and fit.gaps < _FEW_GAPS * actions:
        yield (
            f"only {fit.gaps} of {actions} actions waited for no message, so few host gaps are known: predictions "
            "for schedules with fewer waits are too short"
        )
    if fit.link is None and fit.node_link is None and any(len(step.transfers) for step in steps):
        yield "no arrival of a message was observed: messages take no time in this fit"


_DRAWS = 20
"""The number of bootstrap steps."""


def bootstrap_spans_ns(steps: Sequence[Computations], policy: Policy) -> Int64s:
    """Return the spans of bootstrap steps, shape (draws,).

    Durations are drawn by kind, stage and overlap, transfer times by size, and host gaps from all known gaps.

    Args:
        steps: complete recorded steps of one order, at least one.
        policy: the message policy.
    """
    random = np.random.default_rng(0)
    first = steps[0]
    action_groups = _action_groups(steps)
    durations, gaps = _pooled(steps, "duration_ns", "host_gaps_ns")
    size_groups = _group_columns([step.transfers.size_bytes[None] for step in steps])
    transfer_ns, observed = _pooled([step.transfers for step in steps], "duration_ns", "observed")
    observed = observed & (transfer_ns >= 0)
    every = np.ones(durations.size, dtype=np.bool_)
    replay, spans = Resimulation.of_order(first.order, policy), []
    for _ in range(_DRAWS):
        step = replace(
            first,
            duration_ns=_draw(durations, action_groups, every, random)[: len(first)],
            gap_ns=random.choice(gaps, len(first)) if gaps.size else np.zeros(len(first), dtype=np.int64),
            transfers=replace(
                first.transfers,
                duration_ns=_draw(transfer_ns, size_groups, observed, random)[: len(first.transfers)],
            ),
        )
        spans.append(replay.span_ns(step.times(with_blocked=False)))
    return np.array(spans, dtype=np.int64)


def _action_groups(steps: Sequence[Computations]) -> Int64s:
    return _group_columns([np.stack([step.kind, step.stage, step.pair >= 0]) for step in steps])


def _group_columns(columns: Sequence[NDArray[Any]]) -> Int64s:
    """Return the index of each column among the distinct columns, over all steps."""
    groups: Int64s = np.unique(np.concatenate(columns, axis=1), axis=1, return_inverse=True)[1].reshape(-1)
    return groups


def _draw(values: Int64s, groups: Int64s, known: NDArray[np.bool_], random: np.random.Generator) -> Int64s:
    """Replace each value by a random known value of its group; groups without known values do not change."""
    drawn = values.copy()
    for group in np.unique(groups):
        members = groups == group
        pool = values[members & known]
        if pool.size:
            drawn[members] = random.choice(pool, int(members.sum()))
    return drawn
