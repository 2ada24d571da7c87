"""Re-simulation of a step after single changes of costs, and after failures of workers.

Replicas without re-routed microbatches keep their order. In other replicas, backwards have priority over forwards
within the same limit of activations.

Source: Gandhi et al., ReCycle: Resilient Training of Large DNNs using Pipeline Adaptation, SOSP 2024, section 3:
a failed worker's forwards and backwards are re-routed to its peers, which hold the same weights.
"""

from __future__ import annotations

import json
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.choices import Sharing
from pptrace.config.quantities import format_duration, format_size
from pptrace.config.resolution import load
from pptrace.errors import ConfigError, DeadlockError, PptraceError, ScheduleError
from pptrace.network.contract import Flat
from pptrace.report.document import Document, Printed, Table
from pptrace.run.neighbourhood import value_of
from pptrace.run.replicas import changed
from pptrace.run.run import Run
from pptrace.run.speeds import PASS_COLUMNS, slowed, slowed_segments, times
from pptrace.run.summary import job_text, schedule_text, setting_text, time_text
from pptrace.run.table_changes import with_sharding
from pptrace.search.basis import short_reason
from pptrace.sim.engines import Contention
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import COPIES, SHARDING, Kind
from pptrace.steps.list_scheduler import InFlight, backward_first, list_schedule
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.network.contract import Links, Network, Paths
    from pptrace.run.inputs import StepInputs
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.steps.list_scheduler import Actions
    from pptrace.steps.segments import Segment
    from pptrace.steps.workload import Workload

_EVENED = tuple(f"{name}{part}_ns" for name in PASS_COLUMNS for part in ("", "_collective"))
_CLASSES = 8
"""Classes of microbatches with random times."""


def at_speeds(prepared: StepInputs, compute: float = 1, communication: float = 1) -> StepInputs:
    """Return inputs with scaled speeds of computation and communication.

    Communication has messages, collectives, reductions and copies to the host, latencies included.
    """
    network: Network = prepared.network if communication == 1 else _Faster(prepared.network, communication)
    return changed(prepared, lambda costs: slowed(costs, 1 / compute, 1 / communication), network=network)


def evened(workload: Workload) -> Workload:
    """Return costs with the mean computation of all stages on each; segments are scaled to it."""
    means: dict[str, Any] = {
        name: np.full(workload.stages, round(float(getattr(workload, name).mean())), dtype=np.int64)
        for name in _EVENED
    }
    classes = tuple(evened(each) for each in workload.classes)
    if not workload.segments:
        return replace(workload, classes=classes, **means)
    parts = {kind: _evened_segments(stages) for kind, stages in workload.segments.items()}
    return replace(workload, segments={}, classes=classes, **means).segmented(parts)


def _evened_segments(stages: Sequence[tuple[Segment, ...]]) -> list[tuple[Segment, ...]]:
    """Return segments scaled to the mean computation and communication of stages that have them."""
    totals_ns = np.array([
        [sum(each.duration_ns for each in segments if each.is_computation is is_computation)
         for is_computation in (True, False)]
        for segments in stages
    ], dtype=np.float64)  # fmt: skip
    some = totals_ns > 0
    means_ns = totals_ns.sum(axis=0) / np.maximum(some.sum(axis=0), 1)
    factors = np.where(some, means_ns / np.where(some, totals_ns, 1), 1)
    return [slowed_segments(segments, *pair) for segments, pair in zip(stages, factors.tolist(), strict=True)]


def jittered(prepared: StepInputs, seed: int, spread: float) -> StepInputs:
    """Return inputs with normally distributed factors of computations, with mean 1 and deviation ``spread``."""
    workload, microbatches = prepared.workload, prepared.schedule.microbatches
    if workload.classes:
        return prepared
    drawn = np.random.default_rng(seed)
    factors = np.clip(drawn.normal(1, spread, (_CLASSES, workload.stages)), 0.5, 2)
    classes = tuple(slowed(workload, factor, 1) for factor in factors)
    numbers = drawn.integers(1, _CLASSES + 1, microbatches).astype(np.int32)
    return replace(prepared, workload=replace(workload, classes=classes, microbatch_class=numbers))


class _Faster(Struct, frozen=True):
    """A network with scaled times."""

    network: Network
    factor: float

    @property
    def links(self) -> Links:
        links = self.network.links
        return replace(
            links, rate_kbps=times(links.rate_kbps, self.factor),
            flow_rate_kbps=times(links.flow_rate_kbps, self.factor),
            latency_ns=times(links.latency_ns, 1 / self.factor),
            overhead_ns=times(links.overhead_ns, 1 / self.factor),
        )  # fmt: skip

    def paths(self, src: Int32s, dst: Int32s) -> Paths:
        """Return scaled paths; paths without a limit or a route stay."""
        paths = self.network.paths(src, dst)
        rate = np.where(paths.rate_kbps > 0, times(paths.rate_kbps, self.factor), paths.rate_kbps)
        return replace(
            paths, rate_kbps=rate, latency_ns=times(paths.latency_ns, 1 / self.factor),
            overhead_ns=times(paths.overhead_ns, 1 / self.factor),
        )  # fmt: skip


_FREE = 1e9
"""Speed at which communication takes no time."""


class WhatIf(Struct, frozen=True, kw_only=True):
    """One change of a step."""

    name: str
    """The change."""
    step_ns: int | None
    """The step after the change, for the same number of sequences; None if it cannot be simulated."""
    saved_ns: int = 0
    """The saving of the change; negative if the step is longer."""
    note: str = ""
    """The reason why there is no step, or what else the step differs in."""


class WhatIfs(Printed, Struct, frozen=True, kw_only=True):
    """A step, and the saving of each change."""

    run: Run
    """The step."""
    rows: tuple[WhatIf, ...]
    """The changes; the first row names the bottleneck."""

    def to_dict(self) -> dict[str, Any]:
        """Return the step and its changes as plain JSON values, times in ns."""
        step = self.run.metrics.step_ns
        rows = [
            {"change": row.name, "step_ns": row.step_ns, "saved_ns": row.saved_ns,
             "saved": row.saved_ns / step if step else 0.0, "note": row.note or None}
            for row in self.rows
        ]  # fmt: skip
        return {
            "step_ns": step,
            "bottleneck": str(self.run.bottleneck),
            "changes": rows,
            "provenance": self.run.provenance,
        }

    def document(self) -> Document:
        """Return the table that the command line prints: a row per change with its step and saving."""
        run = self.run
        rows = tuple(_cells(self, row) for row in self.rows)
        table = Table(head=("what if", "step", "saves"), rows=rows, left=(2,))
        remarks = [f"{row.name}: {row.note}" for row in self.rows if row.note and row.step_ns is not None]
        heading = f"{job_text(run)}: {schedule_text(run)}, {run.prepared.schedule.step_microbatches} microbatches"
        setting = setting_text(run, chunks=run.prepared.chunks)
        return Document(title="what if", lead=(heading, setting, "", table, *remarks))


def whatif(run: Run, *, lost: int = 0, balance_experts: bool = False) -> WhatIfs:
    """Re-simulate a step with single changes.

    - Twice the bandwidth: all communication takes half its time, latencies included.
    - Free network: communication takes no time.
    - Half the bubble: twice as many microbatches of half the work each.
    - Even stages: every stage has the mean computation of all stages.
    - No stragglers: all devices have the same speed, if the costs have different speeds (``spread``).
    - One more microbatch: a step with one more microbatch, scaled to the original number of sequences.
    - Workers lost: their microbatches go to the replicas of their stages (Gandhi et al., ReCycle, SOSP 2024).
    - Balanced experts: each layer's experts have the placement that DeepSeek's EPLB computes, without and with
      replicas of full experts on each device; and all experts have equal numbers of tokens.

    Args:
        run: the simulated step.
        lost: number of failed workers; 0 by default.
        balance_experts: whether the changes include balanced experts.

    Raises:
        ConfigError: a stage is left without a replica, or experts have no loads.
    """
    changes: dict[str, Callable[[Run], int | None]] = {
        "bandwidth x2": _doubled_bandwidth,
        "free network": _free_network,
        "half the bubble": _half_bubble,
        "even stages": _even_stages,
        "no stragglers": _no_stragglers,
        "one more microbatch": _one_more_microbatch,
    }
    rows = [WhatIf(name=f"bottleneck: {run.bottleneck}", step_ns=run.metrics.step_ns)]
    rows += [_row(name, change, run) for name, change in changes.items()]
    rows += [_lost_row(run, lost)] if lost else []
    rows += _balance_rows(run) if balance_experts else []
    return WhatIfs(run=run, rows=tuple(rows))


def _lost_row(run: Run, lost: int) -> WhatIf:
    """Return the effect of lost workers.

    A framework's program has no order for re-routed microbatches; both steps then have asynchronous messages.
    """
    name, policy = f"{lost} worker{'s' * (lost > 1)} lost, re-routed", run.prepared.policy
    change = partial(step_without, lost=lost)
    if policy.program is None:
        return _row(name, change, run)
    intact = run.under(load(run.prepared.resolved.written, ["p2p=async"]))
    row = _row(name, change, intact)
    if row.step_ns is None:
        return row
    note = (
        f"simulated with p2p async ({time_text(run, intact.metrics.step_ns)} without losses): "
        f"{policy.title} has no order for re-routed microbatches"
    )
    return replace(row, note=note)


_REPLICAS = (0, 1, 2)
"""Replicas of experts on each device, beside the experts that are divided over the devices."""
_LOAD = "model.expert_load"


def _balance_rows(run: Run) -> list[WhatIf]:
    """Return the effects of balanced placements of experts, and of equal numbers of tokens as their bound."""
    resolved = run.prepared.resolved
    load_of_experts = value_of(resolved, _LOAD)
    if not load_of_experts:
        message = "missing, so that all experts have equal numbers of tokens; write a distribution or a file"
        raise resolved.error(_LOAD, message)
    step = load_of_experts["step"]
    plan = (
        f"the placement is planned for the loads of step {step - 1}"
        if step
        else "an upper bound, as the placement is planned for the loads of this step"
    )
    rows = []
    for count in _REPLICAS:
        redundant = count * resolved.experiment.parallel.ep
        balanced = {**load_of_experts, "placement": "balanced", "redundant": redundant}
        name = f"balanced experts, {count} replica{'s' * (count > 1)} per device" if count else "balanced experts"
        rows.append(_load_row(run, name, balanced, plan))
    return [*rows, _load_row(run, "even experts", None, "no placement can be faster")]


def _load_row(run: Run, name: str, load_of_experts: dict[str, Any] | None, note: str) -> WhatIf:
    peak_bytes = 0

    def change(run: Run) -> int:
        nonlocal peak_bytes
        value = json.dumps(load_of_experts) if load_of_experts else ""
        loaded = run.under(load(run.prepared.resolved.written, [f"{_LOAD}={value}"]))
        peak_bytes = loaded.memory.fullest_bytes
        return loaded.metrics.step_ns

    row = _row(name, change, run)
    if row.step_ns is None:
        return row
    peak = f"peak {format_size(peak_bytes)} in place of {format_size(run.memory.fullest_bytes)}"
    return replace(row, note=f"{note}; {peak}")


def _row(name: str, change: Callable[[Run], int | None], run: Run) -> WhatIf:
    try:
        step = change(run)
    except PptraceError as error:
        return WhatIf(name=name, step_ns=None, note=short_reason(error))
    if step is None:
        return WhatIf(name=name, step_ns=None, note="nothing to change")
    return WhatIf(name=name, step_ns=step, saved_ns=run.metrics.step_ns - step)


def _doubled_bandwidth(run: Run) -> int | None:
    return Run.of(at_speeds(run.prepared, communication=2), run.registry).metrics.step_ns


def _free_network(run: Run) -> int | None:
    free = at_speeds(run.prepared, communication=_FREE)
    free = changed(free, network=Flat(), contention=Contention(links=Sharing.NONE))
    return Run.of(free, run.registry).metrics.step_ns


def _half_bubble(run: Run) -> int | None:
    """Return the step of twice as many microbatches, each of half the work."""
    if run.prepared.schedule.ranks == 1 or run.prepared.table is not None:
        return None
    batch = run.prepared.resolved.experiment.batch
    doubled = run.under(_with_microbatches(run.prepared.resolved, 2 * batch.known_microbatches))
    halved = changed(doubled.prepared, lambda costs: costs.scaled(Fraction(1, 2)))
    return Run.of(halved, run.registry).metrics.step_ns


def _even_stages(run: Run) -> int | None:
    differing = run.prepared.differing
    workload = run.prepared.workload if differing is None else differing.costs
    even = evened(workload)
    if (even.f_ns == workload.f_ns).all() and (even.b_ns == workload.b_ns).all():
        return None
    return Run.of(changed(run.prepared, evened), run.registry).metrics.step_ns


def _no_stragglers(run: Run) -> int | None:
    resolved = run.prepared.resolved
    sets = ["costs.spread=0"] * bool(value_of(resolved, "costs.spread"))
    reduction = resolved.experiment.data_parallel
    sets += ["data_parallel.speeds="] * bool(reduction.speeds)
    sets += ["data_parallel.spread=0"] * bool(reduction.spread)
    return run.under(load(resolved.written, sets)).metrics.step_ns if sets else None


def _one_more_microbatch(run: Run) -> int | None:
    if run.prepared.table is not None:
        return None
    count = run.prepared.resolved.experiment.batch.known_microbatches
    larger = run.under(_with_microbatches(run.prepared.resolved, count + 1))
    return round(Fraction(larger.metrics.step_ns * count, count + 1))


def _with_microbatches(resolved: Resolved, count: int) -> Resolved:
    experiment = resolved.experiment
    total = count * experiment.parallel.dp * experiment.batch.micro
    written: Sequence[str] = [key for key in ("batch.microbatches", "batch.global") if key in resolved.positions]
    values = {"batch.microbatches": count, "batch.global": total}
    return load(resolved.written, [f"{key}={values[key]}" for key in written])


def _cells(result: WhatIfs, row: WhatIf) -> tuple[str, str, str]:
    if row.step_ns is None:
        return row.name, "-", row.note
    step = result.run.metrics.step_ns
    if row is result.rows[0]:
        return row.name, time_text(result.run, step), "-"
    share = row.saved_ns / step if step else 0.0
    saved = f"{share:.1%}" if round(share, 3) else "nothing"
    return row.name, time_text(result.run, row.step_ns), saved


_MOST_ACTIONS = 400_000
_FILE = "--lost"
_PASSES = (Kind.F, Kind.B, Kind.I, Kind.W)


def step_without(run: Run, lost: int) -> int:
    """Return the step of all replicas of a pipeline after the loss of workers; for ``lost=0``, the run's step.

    Workers are lost from the last rank of the first replica on, replica by replica. A worker is a pipeline rank
    with all of its GPUs. On a cluster, ranks of different replicas are different GPUs, whose messages share links.

    Raises:
        ConfigError: a rank is left without a replica, the step cannot be re-routed, or re-routed microbatches
            deadlock under the message policy.
    """
    _check_reroutable(run.prepared)
    replicated_ns, step_ns = _rerouted_step(run, 0), run.metrics.step_ns
    if replicated_ns != step_ns:
        steps = f"{format_duration(replicated_ns)} for {format_duration(step_ns)}"
        key = "network" if run.prepared.job is None else "cluster"
        message = f"replicas that share links have another step without losses, {steps}: take a hockney network"
        raise run.prepared.resolved.error(key, message)
    try:
        return _rerouted_step(run, lost)
    except DeadlockError:
        resolved = run.prepared.resolved
        message = f"re-routed microbatches deadlock under {resolved.experiment.p2p.policy}: take async"
        raise resolved.error("p2p.policy", message) from None


def _check_reroutable(prepared: StepInputs) -> None:
    """Reject steps that cannot be re-routed; the error names the setting."""
    resolved, table, replicas = prepared.resolved, prepared.schedule, prepared.resolved.experiment.parallel.dp
    placement = table.placement
    if placement.routes > 1 or not placement.is_chain or table.microbatches != prepared.request.microbatches:
        raise ConfigError("only microbatches of one route are re-routed, not parts of microbatches", file=_FILE)
    if len(table) * replicas > _MOST_ACTIONS:
        count = len(table) * replicas
        raise ConfigError(f"{count:,} actions of all replicas; the maximum is {_MOST_ACTIONS:,}", file=_FILE)
    is_unsupported = ~np.isin(table.kind, (*_PASSES, *SHARDING)) | (table.span > 1) | bool(table.waits)
    for key, mask, noun in (
        ("schedule.offload", COPIES.mask(table.kind), "copies to the host"),
        ("schedule.recompute", table.kind == Kind.RECOMPUTE, "recomputation actions"),
        ("data_parallel.reduce_each", table.kind == Kind.REDUCE_GRAD, "reductions after each backward"),
        ("schedule", table.pair >= 0, "overlapped pairs"),
        ("schedule", is_unsupported, "messages, waits and actions of several microbatches in a table"),
    ):
        if mask.any():
            raise resolved.error(key, f"{noun} are not re-routed")
    if prepared.job is None and len(prepared.network.links):
        message = "its links are between the ranks of one pipeline: take a hockney network, or describe a cluster"
        raise resolved.error("network", message)
    if resolved.experiment.parallel.grids:
        raise resolved.error("parallel.encoder", "replicas of an encoder with other sizes are not re-routed")
    if prepared.differing is not None and prepared.differing.kinds > 1:
        key = "data_parallel" if prepared.differing.classes is None else "batch"
        raise resolved.error(key, "replicas that differ are not re-routed: make them equal")


def _rerouted_step(run: Run, lost: int) -> int:
    """Return the step of all replicas without some workers."""
    prepared = run.prepared
    table, experiment, workload = prepared.schedule, prepared.resolved.experiment, prepared.workload
    replicas = experiment.parallel.dp
    placement = reroute(table.placement.stage_rank[0], table.ranks, replicas, table.microbatches, lost)
    workload = replace(workload, microbatch_class=np.repeat(workload.microbatch_class, replicas))
    order = _order(prepared, placement, np.tile(run.metrics.memory.peak_activations, replicas))
    network = prepared.network if prepared.job is None else prepared.job._replace(all_replicas=True)
    timeline = simulate(
        with_sharding(prepared.resolved, order, workload, prepared.policy.lookahead), workload, network,
        prepared.policy, contention=prepared.contention, overlap_reduction=experiment.data_parallel.overlaps,
        stage_replicas=False,
    )  # fmt: skip
    return measure(timeline, workload).step_ns


def _order(prepared: StepInputs, placement: Placement, limits: Int64s) -> Schedule:
    """Return the order of all replicas' workers; replicas with re-routed microbatches have a new order.

    ``limits`` has the shape (workers,): the maximum activations of each worker.
    """
    table = prepared.schedule
    passes = table.selected(np.flatnonzero(np.isin(table.kind, _PASSES)))
    replicas = placement.microbatches // passes.microbatches
    replica = np.repeat(np.arange(replicas), len(passes))
    worker = np.tile(passes.rank_of_row(), replicas) + replica * passes.ranks
    microbatch = np.tile(passes.microbatch, replicas) * replicas + replica
    columns = np.stack([worker, np.tile(passes.kind, replicas), np.tile(passes.stage, replicas), microbatch])
    affected = _affected_replicas(placement, passes.ranks, replicas)
    if affected.size:
        new = _new_order(prepared, placement, limits)
        planned = np.stack([new.rank_of_row(), new.kind, new.stage, new.microbatch])
        columns = np.hstack([
            columns[:, ~np.isin(replica, affected)],
            planned[:, np.isin(planned[0] // passes.ranks, affected)],
        ])  # fmt: skip
    worker, *cells = columns[:, np.argsort(columns[0], kind="stable")]
    row_ptr = np.cumsum([0, *np.bincount(worker, minlength=placement.ranks)])
    return Schedule.from_columns(placement, row_ptr, *cells)


def _affected_replicas(placement: Placement, ranks: int, replicas: int) -> Int64s:
    """Return the replicas from which or to which microbatches are re-routed."""
    actual = placement.stage_rank[placement.microbatch_route] // ranks
    original = np.arange(placement.microbatches) % replicas
    is_rerouted = (actual != original[:, None]).any(axis=1)
    return np.union1d(actual[is_rerouted], original[is_rerouted])


def _new_order(prepared: StepInputs, placement: Placement, limits: Int64s) -> Schedule:
    """Return the order of a list schedule; without limits of activations if these cause a deadlock."""
    is_split = bool((prepared.schedule.kind == Kind.W).any())
    kinds = (Kind.F, Kind.I, Kind.W) if is_split else (Kind.F, Kind.B)
    durations = {kind: prepared.workload.duration_ns(kind) for kind in kinds}
    priority = _weights_last if is_split else backward_first
    try:
        return list_schedule(placement, durations, priority=priority, in_flight=InFlight(rank=limits))
    except ScheduleError:
        return list_schedule(placement, durations, priority=priority)


def _weights_last(actions: Actions) -> Sequence[Int64s | Int32s]:
    """Prefer all other actions to weight gradients, which have no dependents."""
    return [(actions.kind == Kind.W).astype(np.int32), *backward_first(actions)]


def reroute(stage_rank: Int32s, ranks: int, replicas: int, microbatches: int, lost: int) -> Placement:
    """Return the placement of all replicas' microbatches; rank ``r`` of replica ``d`` is ``d ranks + r``.

    ``stage_rank`` has the shape (stages,): the rank of each stage in one pipeline. Ranks and microbatches are
    those of one pipeline.

    Raises:
        ConfigError: a rank is left without a replica.
    """
    workers = [(replica, rank) for replica in range(replicas) for rank in reversed(range(ranks))]
    lost_workers = set(workers[:lost])
    remaining = {
        rank: [candidate for candidate in range(replicas) if (candidate, rank) not in lost_workers]
        for rank in range(ranks)
    }
    if len(lost_workers) < lost or not all(remaining.values()):
        max_lost = ranks * (replicas - 1)
        problem = f"{lost} worker{'s' * (lost > 1)} lost: a stage is left without a replica"
        limit = (
            f"{replicas} replicas can lose at most {max_lost}"
            if max_lost
            else "there is only one replica: raise parallel.dp"
        )
        raise ConfigError(f"{problem}; {limit}", file=_FILE)
    replica_of_rank = np.tile(np.arange(replicas), microbatches)[:, None].repeat(ranks, axis=1)
    for rank, kept in remaining.items():
        is_lost = ~np.isin(replica_of_rank[:, rank], kept)
        replica_of_rank[is_lost, rank] = np.resize(kept, is_lost.sum())
    worker = (replica_of_rank * ranks + np.arange(ranks)).astype(np.int32)
    routes, route = np.unique(worker[:, stage_rank], axis=0, return_inverse=True)
    return Placement(
        ranks=replicas * ranks, stage_rank=routes, microbatch_route=route.reshape(-1).astype(np.int32)
    )
