"""Calibration: costs and network figures fitted to a measured step.

Computations and host gaps are fitted by means. Means include stalls, which a step waits for; medians omit them
and are too short. A host gap is known only before an action that waits for no message. Messages are fitted by
medians, because late messages are mostly late hosts, which the gaps include. Latency and bandwidth come from the
median slope between several message sizes (H. Theil, 1950; P. K. Sen, 1968). A single size gives only the total
time.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import combinations, product
from typing import TYPE_CHECKING

import numpy as np

from pptrace.measured.computations import Transfers
from pptrace.report.numbers import Figure, mean_of, median_of
from pptrace.steps.kinds import PASSES, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from pptrace.measured.computations import Computations
    from pptrace.steps.columns import Int64s
    from pptrace.timeline.measurement import BySize

_FEWEST, _FAR = 3, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFit:
    """One kind of action on one stage."""

    kind: str
    """The kind."""
    stage: int
    """The stage."""
    count: int
    """The number of measured actions."""
    mean_ns: Figure
    """The mean of their durations."""
    in_overlapped_pairs: bool
    """Whether all of them are members of overlapped pairs, whose share of the pair is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFit:
    """Messages between ranks."""

    count: int
    """The number of observed messages."""
    sizes: tuple[int, ...]
    """Their sizes in bytes."""
    median_ns: Figure
    """The median of their transfer times."""
    latency_ns: int | None
    """The time of an empty message; None for messages of one size."""
    bytes_per_s: float | None
    """The rate; None for messages of one size, and where larger messages are no slower."""
    residual_ns: int
    """The median error of the fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTime:
    """Messages from one rank to another."""

    source: int
    """The sender."""
    target: int
    """The receiver."""
    median_ns: int
    """The median of their transfer times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Costs and network of measured steps."""

    ranks: int
    """Pipeline ranks."""
    stages: int
    """Stages."""
    microbatches: int
    """Microbatches."""
    steps: int
    """The number of steps."""
    fitted: tuple[ActionFit, ...]
    """Per stage and kind."""
    overhead_ns: int
    """Mean host gap before an action whose rank and inputs were ready."""
    overhead_deviation_ns: int
    """Standard deviation of these gaps."""
    gaps: int
    """The number of known gaps."""
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

    def wire_ns(self, size_bytes: Int64s) -> Int64s:
        """Return transfer times of messages by size; 0 where no message was observed."""
        link = self.link or self.node_link
        if link is None:
            return np.zeros_like(size_bytes)
        if link.latency_ns is None or link.bytes_per_s is None:
            return np.full_like(size_bytes, link.median_ns.value)
        times_ns: Int64s = (link.latency_ns + size_bytes * (1e9 / link.bytes_per_s)).astype(np.int64)
        return times_ns

    def of(self, kind: Kind, stage: int) -> ActionFit | None:
        """Return the fit of one kind on one stage; None where it was not measured."""
        return next((fit for fit in self.fitted if (fit.kind, fit.stage) == (kind.name, stage)), None)


def calibrate(steps: Sequence[Computations], node_ranks: int = 0) -> Calibration:
    """Fit the pooled steps of one pipeline.

    Args:
        steps: the measured steps.
        node_ranks: consecutive ranks per node, for a separate fit of messages within nodes; 0 if unknown.

    Raises:
        ValueError: there are no steps, or steps of different sizes.
    """
    sizes = {(step.placement.ranks, step.placement.stages, step.placement.microbatches) for step in steps}
    if len(sizes) != 1:
        msg = "steps of one size are fitted together"
        raise ValueError(msg)
    ranks, stages, microbatches = sizes.pop()
    gaps = np.concatenate([step.host_gaps_ns for step in steps])
    sent = np.concatenate([step.transfers.size_bytes for step in steps])
    seen = _observed_messages(steps)
    near = seen.source // node_ranks == seen.target // node_ranks if node_ranks else np.zeros(len(seen), bool)
    return Calibration(
        ranks=ranks, stages=stages, microbatches=microbatches, steps=len(steps),
        fitted=tuple(_fit_actions(steps, stages)),
        overhead_ns=round(float(gaps.mean())) if gaps.size else 0,
        overhead_deviation_ns=round(float(gaps.std())) if gaps.size else 0, gaps=gaps.size,
        link=_fit_messages(seen, ~near), node_ranks=node_ranks, node_link=_fit_messages(seen, near),
        uneven=() if node_ranks else _extreme_links(seen),
        boundary_bytes=int(np.median(sent[sent > 0])) if (sent > 0).any() else 0,
    )  # fmt: skip


def extend_to_pipeline(fit: Calibration, step: Computations, numbers: Sequence[int], ranks: int) -> Calibration:
    """Extend a fit of some ranks to the whole pipeline, where their stages match a looped or a V placement.

    Times of unrecorded stages stay unknown. Another placement returns the fit unchanged.

    Args:
        fit: the fit of the recorded ranks.
        step: one of its steps.
        numbers: the number of each recorded rank in the pipeline.
        ranks: the number of ranks of the pipeline.
    """
    stages_by_rank = [set(step.stage[step.rank == rank].tolist()) for rank in range(len(numbers))]
    chunks = len(stages_by_rank[0])
    looped = [set(range(number, ranks * chunks, ranks)) for number in numbers]
    v_shaped = [
        {chunk * ranks + (ranks - 1 - number if chunk % 2 else number) for chunk in range(chunks)}
        for number in numbers
    ]
    return replace(fit, ranks=ranks, stages=ranks * chunks) if stages_by_rank in (looped, v_shaped) else fit


def _fit_actions(steps: Sequence[Computations], stages: int) -> Iterator[ActionFit]:
    """Yield the fit of each kind on each stage, from actions outside overlapped pairs where there are any."""
    kinds, stage_of, pair, duration_ns = (
        np.concatenate([getattr(step, name) for step in steps])
        for name in ("kind", "stage", "pair", "duration_ns")
    )
    for stage, kind in product(range(stages), sorted(PASSES)):
        actions = (kinds == kind) & (stage_of == stage)
        unpaired = actions & (pair < 0)
        times_ns = duration_ns[unpaired if unpaired.any() else actions]
        if times_ns.size:
            yield ActionFit(
                kind=kind.name, stage=stage, count=times_ns.size, mean_ns=mean_of(times_ns),
                in_overlapped_pairs=not unpaired.any(),
            )  # fmt: skip


def _observed_messages(steps: Sequence[Computations]) -> Transfers:
    """Return the observed messages of all steps."""
    masks = [step.transfers.observed & (step.transfers.duration_ns >= 0) for step in steps]
    columns = {
        field.name: [getattr(step.transfers, field.name)[mask] for step, mask in zip(steps, masks, strict=True)]
        for field in fields(Transfers)
    }
    return Transfers(**{name: np.concatenate(parts) for name, parts in columns.items()})


def _fit_messages(seen: Transfers, chosen: NDArray[np.bool_]) -> LinkFit | None:
    """Return the fit of the chosen messages, None without any."""
    return fit_link(seen.duration_ns[chosen], seen.size_bytes[chosen]) if chosen.any() else None


def _extreme_links(seen: Transfers) -> tuple[LinkTime, ...]:
    """Return the fastest and the slowest link, where their quartiles and medians differ clearly."""
    if not len(seen):
        return ()
    common = np.bincount(np.unique(seen.size_bytes, return_inverse=True)[1]).argmax()
    of_size = seen.size_bytes == np.unique(seen.size_bytes)[common]
    links = sorted(set(zip(seen.source[of_size].tolist(), seen.target[of_size].tolist(), strict=True)))
    times = {
        link: seen.duration_ns[of_size & (seen.source == link[0]) & (seen.target == link[1])] for link in links
    }
    known = {link: times_ns for link, times_ns in times.items() if times_ns.size >= _FEWEST}
    if len(known) <= 1:
        return ()
    slow = max(known, key=lambda link: float(np.median(known[link])))
    fast = min(known, key=lambda link: float(np.median(known[link])))
    apart = np.percentile(known[slow], 25) > np.percentile(known[fast], 75)
    if not apart or np.median(known[slow]) < _FAR * np.median(known[fast]):
        return ()
    return tuple(
        LinkTime(source=link[0], target=link[1], median_ns=int(np.median(known[link]))) for link in (fast, slow)
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
        latency_ns=latency_ns, bytes_per_s=bytes_per_s, residual_ns=int(np.median(np.abs(residual_ns))),
    )  # fmt: skip


_SLOWEST = 1000
"""Bytes per second, the smallest rate of a configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFit:
    """The fit of one kind of operations."""

    what: str
    """The kind."""
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
