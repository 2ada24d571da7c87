"""A step after workers failed: the microbatches of each go to the data-parallel replicas of its stages.

Source: Gandhi et al., ReCycle: Resilient Training of Large DNNs using Pipeline Adaptation, SOSP 2024, section 3:
a failed worker's forwards and backwards are re-routed to its peers, which hold the same weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ConfigError, ScheduleError
from pptrace.model.kinds import Kind
from pptrace.model.placement import Placement
from pptrace.schedule.list_scheduler import InFlight, list_schedule
from pptrace.sim.simulate import simulate
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.experiment.run import Run
    from pptrace.model.columns import Int32s
    from pptrace.model.workload import Workload

__all__ = ["rerouted", "step_without"]

_MOST_ACTIONS = 400_000
_FILE = "--lost"


def step_without(run: Run, lost: int) -> int:
    """Return the step of all replicas of a pipeline, some of whose workers are lost.

    Workers are lost from the last rank of the first replica on, replica by replica. The other replicas start a
    backward before a forward, and hold as many activations as before. A worker is a pipeline rank with all of its
    GPUs. Messages are ``async``: frameworks' programs know no such order. On a cluster each replica's ranks are
    its own GPUs, whose messages share links as they come.

    Args:
        run: the step before; of one pipeline.
        lost: how many workers fail.

    Raises:
        ConfigError: a rank without a replica left, or a step that is not re-routed here.
    """
    prepared = run.prepared
    table, replicas = prepared.schedule, prepared.resolved.experiment.parallel.dp
    if table.placement.routes > 1 or table.microbatches != prepared.request.microbatches:
        raise ConfigError("microbatches are re-routed where all take one way, not parts or several", file=_FILE)
    if len(table) * replicas > _MOST_ACTIONS:
        count = len(table) * replicas
        raise ConfigError(f"{count:,} actions of all replicas; the most is {_MOST_ACTIONS:,}", file=_FILE)
    placement = rerouted(table.placement.stage_rank[0], table.ranks, replicas, table.microbatches, lost)
    held = np.tile(run.metrics.memory.peak_activations, replicas)
    workload = prepared.workload
    own = {Kind.F: workload.f_ns, Kind.B: workload.b_ns}
    durations = {kind: np.broadcast_to(times, (workload.stages,)) for kind, times in own.items()}
    try:
        order = list_schedule(placement, durations, in_flight=InFlight(rank=held))
    except ScheduleError:
        order = list_schedule(placement, durations)
    network = prepared.network if prepared.job is None else replace(prepared.job.hops, apart=True)
    timeline = simulate(
        order, _plain(workload), network,
        overlap_reduction=prepared.resolved.experiment.data_parallel.overlaps, stage_replicas=False,
    )  # fmt: skip
    return measure(timeline, workload).step_ns


def rerouted(stage_rank: Int32s, ranks: int, replicas: int, microbatches: int, lost: int) -> Placement:
    """Return where the stages of all replicas' microbatches are; rank ``r`` of replica ``d`` is ``d ranks + r``.

    Args:
        stage_rank: shape (stages,), the rank of each stage in one pipeline.
        ranks: of one pipeline.
        replicas: pipelines.
        microbatches: of one pipeline.
        lost: workers that fail.

    Raises:
        ConfigError: a rank that no replica is left of.
    """
    by_rank = [(replica, rank) for replica in range(replicas) for rank in reversed(range(ranks))]
    gone = set(by_rank[:lost])
    left = {rank: [one for one in range(replicas) if (one, rank) not in gone] for rank in range(ranks)}
    if len(gone) < lost or not all(left.values()):
        most = ranks * (replicas - 1)
        without = f"{lost} worker{'s' * (lost > 1)} lost: a stage is left without a replica"
        bear = (
            f"{replicas} replicas bear at most {most}" if most else "there is one replica alone: raise parallel.dp"
        )
        raise ConfigError(f"{without}; {bear}", file=_FILE)
    turn = dict.fromkeys(range(ranks), 0)
    ways = np.zeros((replicas * microbatches, stage_rank.size), dtype=np.int32)
    for number in range(replicas * microbatches):
        replica = number % replicas
        where = dict.fromkeys(range(ranks), replica)
        for rank in range(ranks):
            if (replica, rank) in gone:
                where[rank] = left[rank][turn[rank] % len(left[rank])]
                turn[rank] += 1
        ways[number] = [where[int(rank)] * ranks + int(rank) for rank in stage_rank]
    routes, route = np.unique(ways, axis=0, return_inverse=True)
    chain = np.stack([np.arange(stage_rank.size - 1), np.arange(1, stage_rank.size)], axis=1)
    return Placement(
        ranks=replicas * ranks, stage_rank=routes, microbatch_route=route.reshape(-1).astype(np.int32),
        edges=chain.astype(np.int32),
    )  # fmt: skip


def _plain(workload: Workload) -> Workload:
    """Return costs whose microbatches are all alike, for more of them."""
    return replace(workload, classes=(), microbatch_class=np.zeros(0, dtype=np.int32))
