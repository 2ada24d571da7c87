"""Figures of a step as rows of tables, and their levels.

Source: Barley et al., A Tabular Schedule Abstraction for Communication-Aware Evaluation of Pipeline-Parallel LLM
Training (2026), which shows that rankings change between the three.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict

from pptrace.memo import memoized
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.workload import Workload
from pptrace.timeline.actions import actions_in_parts, communication
from pptrace.timeline.idle import IdleCause
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from fractions import Fraction

    from pptrace.run.neighbourhood import Advice
    from pptrace.run.overheads import Bottleneck
    from pptrace.run.simulated_step import SimulatedStep
    from pptrace.steps.schedule import Schedule
    from pptrace.timeline.metrics import Metrics
    from pptrace.timeline.timeline import Timeline

_MOST = 64
"""Limit of listed links, and of listed delays."""


def plain_values(run: SimulatedStep, bottleneck: Bottleneck, advice: Advice) -> dict[str, Any]:
    """Return everything measured and its provenance as plain JSON values: times in ns, sizes in bytes."""
    metrics, path = run.metrics, run.metrics.path
    over = metrics.memory.over_capacity
    return {
        "step_ns": metrics.step_ns,
        "pace_ns": metrics.pace_ns,
        "unit_time_ns": run.prepared.workload.unit_time_ns or None,
        "bubble": float(metrics.bubble),
        "tokens_per_s": metrics.tokens_per_s,
        "mfu": metrics.mfu,
        "plausible_mfu": metrics.plausible_mfu,
        "busy_ns": int(metrics.busy_ns.sum()),
        "idle_ns": int(metrics.idle_ns.sum()),
        "idle_by_cause_ns": metrics.idle_by_cause_ns,
        "exposed_communication_ns": int(metrics.exposed_ns.sum()),
        "communication": _communication(metrics),
        "reduction_ns": int(metrics.reduction_ns.max(initial=0)),
        "peak_memory_bytes": metrics.memory.fullest_bytes,
        "device_memory_bytes": metrics.memory.fullest_device_bytes or None,
        "over_memory": {"rank": over[0], "at_ns": over[1], "bytes": over[2]} if over else None,
        "critical_path": {
            "by_kind_ns": dict(path.by_kind_ns),
            "by_stage_ns": {str(stage): time for stage, time in path.by_stage_ns.items()},
            "slowest_stage": path.slowest_stage,
            "slices": int(path.rows.size),
        },
        "ranks": rank_rows(run),
        "links": _links(run),
        "contention": _contention(run),
        "formula": _closed_forms(run),
        "bottleneck": {"name": bottleneck.name, "part": bottleneck.share},
        "advice": advice.to_dict(),
        "notes": list(metrics.notes),
        "provenance": run.provenance,
    }


def rank_rows(run: SimulatedStep) -> list[dict[str, Any]]:
    """Return one row per rank."""
    metrics, memory = run.metrics, run.metrics.memory
    causes = [cause.name.lower() for cause in IdleCause]
    rows = []
    for rank in range(metrics.ranks):
        row: dict[str, Any] = {
            "rank": rank,
            "stages": run.prepared.schedule.placement.stages_of(rank),
            "busy_ns": int(metrics.busy_ns[rank]),
            "idle_ns": int(metrics.idle_ns[rank].sum()),
        }
        row |= {f"idle_{name}_ns": int(metrics.idle_ns[rank, cause]) for cause, name in enumerate(causes)}
        row["exposed_communication_ns"] = int(metrics.exposed_ns[rank])
        row |= {name: int(getattr(metrics, name)[rank]) for name in ("collective_ns", "reduction_ns")}
        row["peak_memory_bytes"] = int(memory.peak_bytes[rank])
        row |= {name: int(getattr(memory, name)[rank]) for name in _MEMORY_COLUMNS}
        if memory.devices_differ:
            row["device_memory_bytes"] = int(memory.device_bytes[rank])
        rows.append(row)
    return rows


_MEMORY_COLUMNS = (
    "peak_at_ns", "static_bytes", "weights_bytes", "gradients_bytes", "optimizer_bytes", "buffer_bytes",
    "reserved_bytes", "peak_activation_bytes", "peak_activations",
)  # fmt: skip


def member_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """Return start, end, computation, hidden and exposed time of each action with segments."""
    actions = actions_in_parts(timeline)
    names = ("rank", "start_ns", "end_ns", "busy_ns", "hidden_ns", "exposed_ns")
    columns = [getattr(actions, name).tolist() for name in names]
    return [
        {
            "action": str(actions.action(row)),
            "pair": int(actions.pair[row]),
            **dict(zip(names, values, strict=True)),
        }
        for row, values in enumerate(zip(*columns, strict=True))
    ]


def _communication(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """Return total and hidden communication of each group of ranks.

    Without segments, collectives inside actions are one entry without hidden time.
    """
    groups = communication(metrics.groups)
    if not any(group.stream.is_group for group in metrics.groups) and metrics.collective_ns.any():
        groups["inside-actions"] = {"total_ns": int(metrics.collective_ns.sum()), "hidden_ns": 0, "hidden": 0.0}
    return groups


def _links(run: SimulatedStep) -> list[dict[str, Any]] | None:
    """Return the busiest links with their figures; links with equal use are one entry."""
    if run.traffic is None:
        return None
    from pptrace.timeline.link_use import busiest_links

    return [
        {
            "link": use.names[0],
            "equal_links": list(use.names[1:]),
            "bytes_per_s": use.rate_kbps * 1000,
            "bytes": use.size_bytes,
            "utilisation": use.utilisation,
            "delay_ns": use.delay_ns,
            "from_ns": use.from_ns if use.delay_ns else None,
            "until_ns": use.until_ns if use.delay_ns else None,
            "hops": [list(hop) for hop in use.hops],
        }
        for use in busiest_links(run.timeline, run.traffic, run.metrics.step_ns)[:_MOST]
    ]


def _contention(run: SimulatedStep) -> list[dict[str, Any]] | None:
    """Return the delays by link and pair of ranks."""
    if run.traffic is None:
        return None
    from pptrace.timeline.link_use import delays

    return [asdict(delay) for delay in delays(run.timeline, run.traffic)[:_MOST]]


def _closed_forms(run: SimulatedStep) -> dict[str, Any] | None:
    """Return the schedule's own formulas, where it offers any."""
    choice = run.prepared.resolved.experiment.schedule
    if choice.kind == "table":
        return None
    offer, request = run.registry.schedules[choice.name].offer, run.prepared.request
    bubble = offer.bubble(request) if offer.bubble else None
    peaks = offer.peak_activations(request) if offer.peak_activations else None
    if bubble is None and peaks is None:
        return None
    return {
        "bubble": None if bubble is None else float(bubble),
        "peak_activations": None if peaks is None else [float(peak) for peak in peaks],
    }


Cell: TypeAlias = "int | float | str | None"
Row: TypeAlias = "dict[str, Cell]"


class Levels(Struct, frozen=True):
    """One schedule's bubble at each level; the simulated one is ``run.metrics.bubble``."""

    run: SimulatedStep
    """The simulated step."""
    formula: Fraction | None
    """The schedule's closed form; None where it offers none for these sizes."""
    table: Fraction | None
    """Idle over ranks times length, with a forward of 1, a backward of 2 and messages that take no time.

    None where it is not computed."""


def _idle_share(levels: Levels, cause: IdleCause) -> float:
    metrics = levels.run.metrics
    whole = metrics.ranks * metrics.step_ns
    return metrics.idle_by_cause_ns[cause.word] / whole if whole else 0.0


def _gpus(levels: Levels) -> int:
    return levels.run.prepared.resolved.experiment.parallel.processes


def _tokens_per_s_per_gpu(levels: Levels) -> float | None:
    rate = levels.run.metrics.tokens_per_s
    return None if rate is None else rate / _gpus(levels)


FIGURES: Mapping[str, Callable[[Levels], Cell]] = {
    "step_ns": lambda levels: levels.run.metrics.step_ns,
    "formula_bubble": lambda levels: None if levels.formula is None else float(levels.formula),
    "table_bubble": lambda levels: None if levels.table is None else float(levels.table),
    "idle": lambda levels: float(levels.run.metrics.bubble),
    **{f"idle_{cause.word.replace('-', '_')}": partial(_idle_share, cause=cause) for cause in IdleCause},
    "exposed_communication_ns": lambda levels: int(levels.run.metrics.exposed_ns.sum()),
    "tokens_per_s": lambda levels: levels.run.metrics.tokens_per_s,
    "gpus": _gpus,
    "tokens_per_s_per_gpu": _tokens_per_s_per_gpu,
    "mfu": lambda levels: levels.run.metrics.mfu,
    "plausible_mfu": lambda levels: levels.run.metrics.plausible_mfu,
    "peak_memory_bytes": lambda levels: levels.run.metrics.memory.fullest_bytes,
    "device_memory_bytes": lambda levels: levels.run.metrics.memory.fullest_device_bytes or None,
    "fits": lambda levels: levels.run.metrics.memory.over_capacity is None,
    "peak_activation_bytes": lambda levels: int(levels.run.metrics.memory.peak_activation_bytes.max(initial=0)),
    "peak_activations": lambda levels: int(levels.run.metrics.memory.peak_activations.max(initial=0)),
}
"""The figures of a step: times in ns, sizes in bytes, shares as fractions of 1; None where unknown."""


def metrics_row(levels: Levels) -> Row:
    """Return all figures of a step."""
    return {name: figure(levels) for name, figure in FIGURES.items()}


def figures_of(run: SimulatedStep) -> Row:
    """Return the figures of a simulated step alone: all but the bubbles of its formula and of its table."""
    figures = metrics_row(Levels(run=run, formula=None, table=None))
    return {name: value for name, value in figures.items() if name not in {"formula_bubble", "table_bubble"}}


def at_levels(run: SimulatedStep) -> Levels:
    """Return the bubble of a step's schedule at all three levels.

    The table is the schedule's table without times, which does not depend on costs.
    """
    choice = run.prepared.resolved.experiment.schedule
    if choice.kind == "table":
        return Levels(run=run, formula=None, table=_bubble(run.prepared.schedule))
    provided = run.registry.schedules[choice.name]
    sizes = run.prepared.request
    request = ScheduleRequest(
        ranks=sizes.ranks, microbatches=sizes.microbatches, chunks=sizes.chunks,
        encoder_stages=sizes.encoder_stages, layers=sizes.layers, options=sizes.options,
    )  # fmt: skip
    bubble = provided.offer.bubble

    def bubbles() -> tuple[Fraction | None, Fraction]:
        formula = bubble(request) if bubble else None
        return formula, _bubble(build_schedule(provided, request))

    formula, table = memoized(bubbles, ("bubbles", repr(request)), provided.offer)
    return Levels(run=run, formula=formula, table=table)


def _bubble(schedule: Schedule) -> Fraction:
    workload = Workload.uniform(schedule.stages, edges=len(schedule.placement.edges), f_ns=1, i_ns=1, w_ns=1)
    return measure(simulate(schedule, workload), workload).bubble
