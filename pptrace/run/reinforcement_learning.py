"""Steps of reinforcement learning: generation, forward-only passes, then the training step.

A forward-only pass is a pipeline of the schedule's forwards in their order, for each microbatch of the step. Its
microbatches are numbered after those of training. It starts when all ranks and replicas have finished the pass
before it, because losses need the log-probabilities of all sequences. Its messages follow the rule of the message
policy. ``blocking`` replaces a policy that follows the calls of a framework's training loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pptrace.run.replicas import inputs_of_replicas
from pptrace.sim.simulation import Simulated, lower_step
from pptrace.steps.kinds import COMMUNICATION, COMPUTE, Kind, Stream
from pptrace.steps.message_calls import Policy
from pptrace.timeline.idle import WHOLE_KEY
from pptrace.timeline.timeline import Timeline, join

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.run.inputs import StepInputs
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload
    from pptrace.timeline.link_use import Traffic

_PARTS_OF_TRAINING = 3
"""A backward has twice the FLOPs of a forward."""


def with_forward_flops(resolved: Resolved, table: Schedule, workload: Workload) -> Workload:
    """Return costs whose model FLOPs include the forward-only passes.

    Raises:
        ConfigError: forward-only passes of a table that gathers weights.
    """
    rl = resolved.experiment.rl
    if rl is None or not rl.forward_passes:
        return workload
    if (table.kind == Kind.UNSHARD).any():
        message = "passes with gathered weights are not simulated: write costs.zero: 2, or 0 passes"
        raise resolved.error("rl.forward_passes", message)
    flops = workload.model_flops * (_PARTS_OF_TRAINING + rl.forward_passes) // _PARTS_OF_TRAINING
    return replace(workload, model_flops=flops)


def simulate_step(prepared: StepInputs) -> Simulated:
    """Simulate a step with its generation and forward-only passes.

    Raises:
        ScheduleError: the table cannot run.
        PluginError: the network fails.
    """
    training, rl = prepared.simulate(), prepared.resolved.experiment.rl
    if rl is None:
        return training
    phases: list[Simulated] = []
    start_ns = 0
    if rl.generation:
        phases.append(Simulated(timeline=_generation(prepared, rl.generation), traffic=None))
        start_ns = rl.generation
    if rl.forward_passes:
        alone = _forwards(prepared)
        replicas = inputs_of_replicas(prepared)
        passes = [alone] if prepared.differing is None else [_forwards(each) for each in replicas]
        pass_ns = max(int(each.timeline.end_ns.max()) for each in passes)
        for number in range(1, rl.forward_passes + 1):
            timeline = _numbered(alone.timeline, number * prepared.schedule.microbatches)
            phases.append(alone._replace(timeline=_after(timeline, phases, start_ns)))
            start_ns += pass_ns
    placement = training.timeline.placement
    routes = np.tile(placement.microbatch_route, 1 + rl.forward_passes)
    timeline = replace(training.timeline, placement=replace(placement, microbatch_route=routes))
    phases.append(training._replace(timeline=_after(timeline, phases, start_ns)))
    return _joined(phases)


def _generation(prepared: StepInputs, duration_ns: int) -> Timeline:
    """Return a slice on the compute stream of each rank."""
    ranks = prepared.schedule.ranks
    stage_of_rank = prepared.schedule.placement.copies().argmax(axis=1)
    zero, none = np.zeros(ranks, dtype=np.int64), np.full(ranks, -1, dtype=np.int64)
    columns = {
        "rank": np.arange(ranks), "stream": zero + Stream.COMPUTE, "peer": none, "kind": zero + Kind.GENERATION,
        "stage": stage_of_rank, "microbatch": none, "span": zero + 1, "pair": none, "enter_ns": zero,
        "start_ns": zero, "end_ns": zero + duration_ns, "lag_ns": zero, "uncontended_ns": zero + duration_ns,
        "collective_ns": zero, "size_bytes": zero, "cause": none,
    }  # fmt: skip
    return Timeline.from_columns(columns, prepared.schedule.placement)


def _forwards(prepared: StepInputs) -> Simulated:
    """Simulate the schedule's forwards alone."""
    table, zero = prepared.schedule, np.zeros(prepared.workload.stages, dtype=np.int64)
    forwards = table.selected(np.flatnonzero(table.kind == Kind.F))
    forwards = replace(forwards, pair=np.full(len(forwards), -1, dtype=np.int32), waits=())
    follows_loop = prepared.policy.program is not None or prepared.policy.lowering is not None
    policy = Policy.of("blocking") if follows_loop else prepared.policy
    workload = replace(
        prepared.workload, reduce_ns=zero, optimizer_ns=zero, sync_ns=0, released_ns=zero[:0], meeting_ns=zero[:0]
    )
    return lower_step(
        forwards, workload, prepared.network, policy, contention=prepared.contention, partial=True
    ).run()


def _numbered(timeline: Timeline, first: int) -> Timeline:
    """Return forwards as forward-only passes with microbatches from ``first`` on."""
    is_pass = COMPUTE.mask(timeline.kind)
    is_numbered = is_pass | COMMUNICATION.mask(timeline.kind)
    kind = np.where(is_pass, int(Kind.FORWARD_ONLY), timeline.kind)
    return replace(timeline, kind=kind, microbatch=timeline.microbatch + np.where(is_numbered, first, 0))


def _after(timeline: Timeline, phases: Sequence[Simulated], start_ns: int) -> Timeline:
    """Return a timeline that starts at a time."""
    times = {name: getattr(timeline, name) + start_ns for name in ("enter_ns", "start_ns", "end_ns")}
    provenance = dict(timeline.provenance)
    if WHOLE_KEY in provenance and phases:
        provenance[WHOLE_KEY] = [time_ns + start_ns for time_ns in provenance[WHOLE_KEY]]
    return replace(timeline, provenance=provenance, **times)


def _joined(phases: Sequence[Simulated]) -> Simulated:
    """Return phases as one step; the first slices of a phase start after the last slice of the phase before it."""
    timeline, numbers = join([phase.timeline for phase in phases])
    cause = timeline.cause.copy()
    for phase, rows, following in zip(phases[:-1], numbers[:-1], numbers[1:], strict=True):
        last = rows[int(np.argmax(phase.timeline.end_ns))]
        opens = timeline.start_ns[following] == timeline.start_ns[following].min()
        first = following[opens & (cause[following] < 0)]
        cause[first] = last
    timeline = replace(timeline, cause=cause)
    return Simulated(timeline=timeline, traffic=_traffic(phases, numbers))


def _traffic(phases: Sequence[Simulated], numbers: Sequence[Int32s]) -> Traffic | None:
    """Return the traffic of all phases on the paths of the last one, which has the messages of both directions."""
    training = phases[-1].traffic
    if training is None:
        return None
    pairs = list(zip(training.source.tolist(), training.target.tolist(), strict=True))
    place, per_pair = {pair: number for number, pair in enumerate(pairs)}, training.paths.per_pair
    path = np.full(sum(map(len, numbers)), -1, dtype=np.int32)
    changes: list[tuple[Int32s | Int64s, ...]] = []
    starts_ns = [int(phase.timeline.start_ns.min()) for phase in phases]
    for phase, rows, start_ns in zip(phases, numbers, starts_ns, strict=True):
        traffic = phase.traffic
        if traffic is None:
            continue
        phase_pairs = zip(traffic.source.tolist(), traffic.target.tolist(), strict=True)
        pair = np.array([place[each] for each in phase_pairs], dtype=np.int64)
        sent = np.flatnonzero(traffic.path >= 0)
        path[rows[sent]] = pair[traffic.path[sent] // per_pair] * per_pair + traffic.path[sent] % per_pair
        changes.append((rows[traffic.row], traffic.at_ns + start_ns, traffic.rate_kbps, traffic.limit))
    row, at_ns, rate, limit = (np.concatenate(column) for column in zip(*changes, strict=True))
    order = np.argsort(row, kind="stable")
    return replace(
        training, path=path, row=row[order].astype(np.int32), at_ns=at_ns[order], rate_kbps=rate[order],
        limit=limit[order],
    )  # fmt: skip
