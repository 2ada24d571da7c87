"""Overheads of a step, and upper bounds of their savings by re-simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.config.choices import PolicyName, Sharing
from pptrace.errors import DeadlockError
from pptrace.network.contract import Flat
from pptrace.plugins.construction import GuardedNetwork
from pptrace.run.reinforcement_learning import simulate_step
from pptrace.run.replicas import changed
from pptrace.sim.engines import Contention
from pptrace.steps.message_calls import Policy
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.network.contract import Network
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.timeline.metrics import Metrics

_POLICY, _COLLECTIVES, _COMPUTE = "p2p policy", "collectives", "compute"

_UNEVEN = 1.05
"""Stages are uneven above this ratio of the busiest rank's computation to the mean."""

_SMALL = 0.005
"""Overheads below this share of the step are not named."""


class Bottleneck(NamedTuple):
    """The largest overhead of a step; prints as in the summary."""

    name: str
    """The overhead, as in ``docs/metrics.md``; ``compute`` or ``none`` without one."""
    share: float | None = None
    """Its share of the step; None for memory."""

    def __str__(self) -> str:
        if self.name == _COMPUTE:
            return "compute alone"
        return self.name if self.share is None else f"{self.name} {self.share:.1%}"


def find_bottleneck(run: SimulatedStep) -> Bottleneck:
    """Return the largest overhead with its share of the step.

    Insufficient memory comes first. The savings of policy and network are upper bounds by re-simulation without
    them; the remaining idle time is the schedule's. :mod:`pptrace.run.advice` finds changes that users can make.
    """
    if run.metrics.memory.over_capacity is not None:
        return Bottleneck(name="memory")
    if not run.metrics.step_ns:
        return Bottleneck(name="none")
    name, share = overheads(run)[0]
    return Bottleneck(name=_COMPUTE) if share < _SMALL else Bottleneck(name=name, share=share)


def overheads(run: SimulatedStep) -> list[tuple[str, float]]:
    """Return each overhead's share, the largest first.

    Shares are of the step; those of idle time are of ranks x step.
    """
    metrics = run.metrics
    # Without contention for computation, savings are at most the idle time.
    is_compute_bound = not contention_of(run).slows and metrics.collective_ns.sum() >= metrics.idle_ns.sum()
    savings = None if is_compute_bound else find_savings(run)
    if savings is None:
        shares = _idle_shares(run, metrics)
    else:
        saved_ns = {
            _POLICY: savings.policy_ns, "contention": savings.contention_ns, "transfer": savings.transfer_ns,
        }  # fmt: skip
        shares = _idle_shares(run, savings.rest)
        shares |= {name: time_ns / metrics.step_ns for name, time_ns in saved_ns.items()}
    return sorted(shares.items(), key=lambda item: -item[1])


def _idle_shares(run: SimulatedStep, metrics: Metrics) -> dict[str, float]:
    idle, rank_time_ns = metrics.idle_ns.sum(axis=0), run.metrics.ranks * run.metrics.step_ns
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
    return {name: part / rank_time_ns for name, part in parts.items()}


def _uneven_ns(run: SimulatedStep) -> int:
    """Return the sum over ranks of the wait for the rank with the most computation; 0 for equal ranks."""
    workload, placement = run.prepared.workload, run.prepared.schedule.placement
    microbatches = np.bincount(placement.microbatch_route, minlength=placement.routes)
    work_ns = np.zeros(placement.ranks, dtype=np.int64)
    for ranks, time_ns in zip(placement.pass_ranks, (workload.f_ns, workload.b_ns), strict=True):
        placed = ranks >= 0
        np.add.at(work_ns, ranks[placed], (time_ns * microbatches[:, None])[placed])
    longest_ns, total_ns = int(work_ns.max()) * work_ns.size, int(work_ns.sum())
    return longest_ns - total_ns if longest_ns > _UNEVEN * total_ns else 0


MOST_ACTIONS = 2_000_000
"""Limit of actions for re-simulation, over all replicas that differ: about a second each time."""

MOST_CONTENDED = 100_000
"""The same limit with contention, where simulation takes ten times as long."""

_NONE = Contention(links=Sharing.NONE)
"""No contention."""


class Savings(NamedTuple):
    """Upper bounds of savings by re-simulation; these and the length of ``rest`` sum to the step."""

    policy_ns: int
    """Saving of ``async`` instead of the step's policy."""
    contention_ns: int
    """Further saving without contention."""
    transfer_ns: int
    """Further saving on an ideal network."""
    rest: Metrics
    """The step without these overheads."""


def find_savings(run: SimulatedStep) -> Savings | None:
    """Return the savings in a step; None if it is too large for re-simulation."""
    with_async = metrics_under(run, Policy())
    is_uncontended = contention_of(run) == _NONE
    without_contention = with_async if is_uncontended else metrics_under(run, Policy(), contention=_NONE)
    is_ideal = _unguarded(run.prepared.network) == Flat()
    rest = without_contention if is_ideal else metrics_under(run, Policy(), contention=_NONE, network=Flat())
    if with_async is None or without_contention is None or rest is None:
        return None
    return Savings(
        policy_ns=run.metrics.step_ns - with_async.step_ns,
        contention_ns=with_async.step_ns - without_contention.step_ns,
        transfer_ns=without_contention.step_ns - rest.step_ns,
        rest=rest,
    )


def metrics_under(
    run: SimulatedStep, policy: Policy, *, contention: Contention | None = None, network: Network | None = None
) -> Metrics | None:
    """Return the metrics of a step under another policy; None where it is too large or deadlocks.

    Contention and network default to the step's. Without any change, nothing is simulated.
    """
    prepared, configured = run.prepared, contention_of(run)
    contention, network = contention or configured, network or prepared.network
    same_policy = policy == prepared.policy or policy.name is prepared.policy.name is PolicyName.ASYNC
    if same_policy and contention == configured and _unguarded(network) == _unguarded(prepared.network):
        return run.metrics
    steps = 1 if prepared.differing is None else 1 + prepared.differing.kinds
    if steps * len(prepared.schedule) > (MOST_ACTIONS if contention == _NONE else MOST_CONTENDED):
        return None
    try:
        prepared = changed(prepared, policy=policy, contention=contention, network=network)
        timeline = simulate_step(prepared).timeline
    except DeadlockError:
        return None
    return measure(timeline, prepared.workload)


def _unguarded(network: Network) -> Network:
    """Return the plugin's network without its checks, for comparisons."""
    return network.network if isinstance(network, GuardedNetwork) else network


def contention_of(run: SimulatedStep) -> Contention:
    """Return the contention of a step; none where messages share no link and slow no computation."""
    contention: Contention = run.prepared.contention
    return contention if len(run.prepared.network.links) or contention.slows else _NONE
