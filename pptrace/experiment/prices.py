"""What policy, contention and network cost a step: it is simulated again without one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.errors import DeadlockError
from pptrace.experiment.unlike import changed
from pptrace.hooks.guarded_network import GuardedNetwork
from pptrace.network.flat import ideal
from pptrace.record import dataclass
from pptrace.schedule.policy import Policy, PolicyName
from pptrace.sim.contention import Contention, Sharing
from pptrace.sim.simulate import simulate
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.experiment.run import Run
    from pptrace.network.contract import Network
    from pptrace.timeline.metrics import Metrics

__all__ = ["Prices", "contention_of", "find_prices", "metrics_under"]

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
