"""The largest lever: what takes most of the step beside the model's own computation, and what moves it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.experiment.prices import contention_of, find_prices, metrics_under
from pptrace.sim.policy import PolicyName, StreamPer
from pptrace.timeline.metrics import IdleCause

if TYPE_CHECKING:
    from pptrace.experiment.run import Run
    from pptrace.model.columns import Int64s
    from pptrace.timeline.metrics import Metrics

__all__ = ["Lever", "largest_lever"]

_POLICY, _COLLECTIVES, _COMPUTE = "p2p policy", "collectives", "compute"

_ADVICE = {
    "bubble": "more microbatches",
    "uneven stages": "a more even split",
    "transfer": "a faster network",
    "contention": "less shared links",
    "head-of-line": "another p2p policy",
}

_UNEVEN = 1.05
"""The computation of the busiest rank over the mean from which stages count as uneven."""

_SMALL = 0.005
"""Below this part of the step nothing is worth a change."""

_AS_GOOD = 0.9
"""The part of what ``async`` saves from which a stream per direction is as good a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """What takes most of a step beside the model's own computation; prints as the summary has it."""

    name: str
    """The overhead, as ``docs/metrics.md`` lists them; ``compute`` or ``none`` where there is none."""
    part: float | None = None
    """Its part of the step; None where it has none, as memory."""
    advice: str = ""
    """What to try; nothing where there is nothing."""

    def __str__(self) -> str:
        if not self.advice:
            return "compute alone" if self.name == _COMPUTE else self.name
        part = "" if self.part is None else f" {self.part:.1%}"
        return f"{self.name}{part}, try {self.advice}"


def largest_lever(run: Run) -> Lever:
    """Return the largest overhead with its part of the step, and what to try.

    Memory comes first where a rank has too little; a line of its own says how much. Policy and network are
    priced by simulating the step without them; what is idle then is the schedule's.
    """
    over = run.metrics.over_capacity
    if over is not None:
        return Lever(name="memory", advice=_roomier(run, over[0]))
    if not run.metrics.step_ns:
        return Lever(name="none")
    parts = _parts(run)
    name = max(parts, key=lambda name: parts[name])
    if parts[name] < _SMALL:
        return Lever(name=_COMPUTE)
    if name == _POLICY:
        return _policy(run, parts[name])
    return Lever(name=name, part=parts[name], advice=_advice(run, name))


def _parts(run: Run) -> dict[str, float]:
    """Return the part of the step, or of ranks x step for what not all ranks share, that each overhead takes."""
    metrics = run.metrics
    # Where nothing slows computation, a step gets shorter by no more than its idle time.
    settled = not contention_of(run).slows and metrics.collective_ns.sum() >= metrics.idle_ns.sum()
    prices = None if settled else find_prices(run)
    if prices is None:
        return _idle_parts(run, metrics)
    priced = {
        _POLICY: prices.policy_ns, "contention": prices.contention_ns, "transfer": prices.transfer_ns,
    }  # fmt: skip
    return _idle_parts(run, prices.rest) | {name: part / metrics.step_ns for name, part in priced.items()}


def _idle_parts(run: Run, metrics: Metrics) -> dict[str, float]:
    idle, whole = metrics.idle_ns.sum(axis=0), run.metrics.ranks * run.metrics.step_ns
    bubble = int(idle[IdleCause.FILL] + idle[IdleCause.DRAIN] + idle[IdleCause.PEER_COMPUTE])
    uneven = min(_uneven_ns(run), bubble)
    parts = {
        "bubble": bubble - uneven,
        "uneven stages": uneven,
        "transfer": int(idle[IdleCause.TRANSFER]),
        "contention": int(idle[IdleCause.CONTENTION]),
        "head-of-line": int(idle[IdleCause.HEAD_OF_LINE]),
        "reduction": int(idle[IdleCause.REDUCTION]),
        _COLLECTIVES: int(metrics.collective_ns.sum()),
    }
    return {name: part / whole for name, part in parts.items()}


def _policy(run: Run, saved: float) -> Lever:
    """Return the lever of a policy without which the step is shorter by the part ``saved``."""
    policy, advice = run.prepared.policy, "p2p.policy=async"
    if policy.name is PolicyName.ORDERED and policy.stream is not StreamPer.DIRECTION:
        by_direction = metrics_under(run, replace(policy, stream=StreamPer.DIRECTION))
        share = 1 - by_direction.step_ns / run.metrics.step_ns if by_direction else 0
        if share >= _AS_GOOD * saved:
            saved, advice = share, "p2p.stream=direction"
    return Lever(name=_POLICY, part=saved, advice=advice)


def _advice(run: Run, name: str) -> str:
    if name == _COLLECTIVES:
        return _narrower(run)
    if name == "reduction":
        overlaps = run.prepared.resolved.experiment.data_parallel.overlap
        return "a higher data_parallel.bandwidth" if overlaps else "data_parallel.overlap=true"
    return _ADVICE[name]


def _uneven_ns(run: Run) -> int:
    """Return what all ranks together wait for the one with the most computation; 0 where all have the same."""
    work = _work_ns(run)
    spare = int(work.max()) * work.size - int(work.sum())
    return spare if int(work.max()) * work.size > _UNEVEN * int(work.sum()) else 0


def _work_ns(run: Run) -> Int64s:
    """Return the time of all forwards and backwards of each rank."""
    workload, placement = run.prepared.workload, run.prepared.schedule.placement
    microbatches = np.bincount(placement.microbatch_route, minlength=placement.routes)
    placed = placement.stage_rank >= 0
    time_ns = np.broadcast_to(workload.f_ns + workload.b_ns, placed.shape) * microbatches[:, None]
    work = np.zeros(placement.ranks, dtype=np.int64)
    np.add.at(work, placement.stage_rank[placed], time_ns[placed])
    return work


def _narrower(run: Run) -> str:
    """Return how to spend less on collectives: the axis, and how its memory comes back."""
    parallel, memory = run.prepared.resolved.experiment.parallel, run.metrics.memory
    axis = next((axis for axis in ("tp", "ep", "cp") if getattr(parallel, axis) > 1), "tp")
    full = memory.capacity_bytes and 2 * int(memory.peak_bytes.max(initial=0)) > memory.capacity_bytes
    return f"less {axis}, more pp" if full and axis == "tp" else f"less {axis}"


def _roomier(run: Run, rank: int) -> str:
    """Return what lets a rank that is over its device's memory fit."""
    experiment, memory = run.prepared.resolved.experiment, run.metrics.memory
    if memory.static_bytes[rank] > memory.capacity_bytes:
        return "more pp or tp"
    if experiment.batch.micro > 1:
        return "a smaller micro"
    if experiment.model is None:
        return "another schedule"
    recompute = experiment.model.values.get("recompute", "full")
    return "more tp" if recompute == "full" else "model.recompute=full"
