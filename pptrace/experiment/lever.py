"""The largest lever: what takes most of the step beside the model's own computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.experiment.prices import contention_of, find_prices
from pptrace.record import dataclass
from pptrace.timeline.metrics import IdleCause

if TYPE_CHECKING:
    from pptrace.experiment.run import Run
    from pptrace.model.columns import Int64s
    from pptrace.timeline.metrics import Metrics

__all__ = ["Lever", "largest_lever", "overheads"]

_POLICY, _COLLECTIVES, _COMPUTE = "p2p policy", "collectives", "compute"

_UNEVEN = 1.05
"""The computation of the busiest rank over the mean from which stages count as uneven."""

_SMALL = 0.005
"""Below this part of the step nothing is worth a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """What takes most of a step beside the model's own computation; prints as the summary has it."""

    name: str
    """The overhead, as ``docs/metrics.md`` lists them; ``compute`` or ``none`` where there is none."""
    part: float | None = None
    """Its part of the step; None where it has none, as memory."""

    def __str__(self) -> str:
        if self.name == _COMPUTE:
            return "compute alone"
        return self.name if self.part is None else f"{self.name} {self.part:.1%}"


def largest_lever(run: Run) -> Lever:
    """Return the largest overhead with its part of the step.

    Memory comes first where a rank has too little; a line of its own says how much. Policy and network are
    priced by simulating the step without them; what is idle then is the schedule's. Nobody can switch such
    prices off: what can be changed is :mod:`pptrace.experiment.advice`'s to find.
    """
    if run.metrics.over_capacity is not None:
        return Lever(name="memory")
    if not run.metrics.step_ns:
        return Lever(name="none")
    parts = dict(overheads(run))
    name = max(parts, key=lambda name: parts[name])
    if parts[name] < _SMALL:
        return Lever(name=_COMPUTE)
    return Lever(name=name, part=parts[name])


def overheads(run: Run) -> list[tuple[str, float]]:
    """Return the part of the step, or of ranks x step for what not all ranks share, that each overhead takes.

    The largest comes first.
    """
    return sorted(_parts(run).items(), key=lambda item: -item[1])


def _parts(run: Run) -> dict[str, float]:
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
        "slower replicas": int(idle[IdleCause.SLOWER_REPLICA]),
        _COLLECTIVES: int(metrics.collective_ns.sum()),
    }
    return {name: part / whole for name, part in parts.items()}


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
