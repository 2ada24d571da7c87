"""Overheads of a step, and upper bounds of their savings by re-simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.config.choices import PolicyName, Sharing
from pptrace.errors import DeadlockError
from pptrace.network.links import ideal
from pptrace.plugins.guarded_network import GuardedNetwork
from pptrace.run.heterogeneous_replicas import changed
from pptrace.sim.rate_sharing import Contention
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.network.contract import Network
    from pptrace.run.simulated_step import Run
    from pptrace.steps.columns import Int64s
    from pptrace.timeline.metrics import Metrics

__all__ = ["Lever", "Prices", "contention_of", "find_prices", "largest_lever", "metrics_under", "overheads"]

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
    prices off: what can be changed is :mod:`pptrace.run.advice`'s to find.
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


MOST_ACTIONS = 2_000_000
"""Actions of a step that is simulated again, those of replicas that differ too: about a second each time."""

MOST_CONTENDED = 100_000
"""The same where messages share links or slow computation, which takes an order of magnitude longer."""

_NONE = Contention(links=Sharing.NONE)
"""Nothing is shared, nothing slowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """By how much a step gets shorter; these and the length of ``rest`` sum to it."""

    policy_ns: int
    """Under ``async`` instead of its policy."""
    contention_ns: int
    """Then with nothing shared and nothing slowed."""
    transfer_ns: int
    """Then on an ideal network."""
    rest: Metrics
    """What is left then."""


def find_prices(run: Run) -> Prices | None:
    """Return the prices in a run's step; None where it is too large to be simulated again."""
    issued = metrics_under(run, Policy())
    alone = contention_of(run) == _NONE
    apart = issued if alone else metrics_under(run, Policy(), contention=_NONE)
    free = _unguarded(run.prepared.network) == ideal()
    rest = apart if free else metrics_under(run, Policy(), contention=_NONE, network=ideal())
    if issued is None or apart is None or rest is None:
        return None
    return Prices(
        policy_ns=run.metrics.step_ns - issued.step_ns,
        contention_ns=issued.step_ns - apart.step_ns,
        transfer_ns=apart.step_ns - rest.step_ns,
        rest=rest,
    )


def metrics_under(
    run: Run, policy: Policy, *, contention: Contention | None = None, network: Network | None = None
) -> Metrics | None:
    """Return a run's step with messages issued otherwise; None where it is too large, or deadlocks.

    Contention and network are the run's unless given. Nothing is simulated where nothing changes.
    """
    prepared, reduction = run.prepared, run.prepared.resolved.experiment.data_parallel
    own = contention_of(run)
    contention, network = contention or own, network or prepared.network
    if (
        _same(policy, prepared.policy)
        and contention == own
        and _unguarded(network) == _unguarded(prepared.network)
    ):
        return run.metrics
    steps = 1 if prepared.differing is None else 1 + prepared.differing.kinds
    if steps * len(prepared.schedule) > (MOST_ACTIONS if contention == _NONE else MOST_CONTENDED):
        return None
    try:
        prepared = changed(prepared, policy=policy, contention=contention, network=network)
        timeline = simulate(
            prepared.schedule, prepared.workload, network, policy, contention=contention,
            overlap_reduction=reduction.overlaps, stage_replicas=reduction.stage_replicas,
        )  # fmt: skip
    except DeadlockError:
        return None
    return measure(timeline, prepared.workload)


def _same(one: Policy, other: Policy) -> bool:
    return one == other or one.name is other.name is PolicyName.ASYNC


def _unguarded(network: Network) -> Network:
    """Return a network to compare: what guards it tells who offers it, which does not change a step."""
    return network.network if isinstance(network, GuardedNetwork) else network


def contention_of(run: Run) -> Contention:
    """Return what a run's messages do to each other, where they meet at all."""
    prepared = run.prepared
    own: Contention = prepared.contention
    return own if len(prepared.network.links) or own.slows else _NONE
