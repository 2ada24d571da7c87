"""Pairs of small steps to compare, and their diffs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from pptrace.config.choices import PolicyName
from pptrace.measured.computations import extract_computations
from pptrace.measured.diff import diff
from pptrace.measured.replay import Resimulation
from pptrace.measured.sides import Side
from pptrace.network.contract import Flat
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.timeline.measurement import Step
from pptrace.timeline.timeline import ROW_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.measured.diff import StepDiff
    from pptrace.timeline.timeline import Timeline

__all__ = ["MS", "ROWS", "compared", "one_step", "side_of_step", "slower_way", "stretched", "without_row"]

MS = 1_000_000
ROWS = [
    ["0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"],
    ["1F0", "1F1", "1B0", "1F2", "1B1", "1F3", "1B2", "1B3"],
    ["2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "2F3", "2B3"],
]


def one_step(
    rows: Sequence[Sequence[str]] = ROWS, slow: Mapping[int, float] | None = None, rate_kbps: int = 1_000_000
) -> Timeline:
    """Simulate a table; ``slow`` are factors by stage."""
    schedule = Schedule.from_rows(rows)
    factor = np.array([(slow or {}).get(stage, 1.0) for stage in range(schedule.stages)])
    costs = Workload.uniform(
        schedule.stages, f_ns=(10 * MS * factor).astype(np.int64), b_ns=(20 * MS * factor).astype(np.int64),
        boundary_bytes=1_000_000,
    )  # fmt: skip
    network = Flat(rate_kbps=rate_kbps, latency_ns=50_000)
    return simulate(schedule, costs, network, Policy(name=PolicyName.ASYNC))


def side_of_step(timeline: Timeline, name: str = "step", *, measured: bool = False) -> Side:
    """Return a side of one step."""
    step = Step(label=name, timeline=timeline, gap_ns=np.zeros(len(timeline), dtype=np.int64))
    nothing = Workload.uniform(timeline.placement.stages, f_ns=0, b_ns=0)
    return Side(name=name, measured=measured, steps=(step,), chosen=0, workload=nothing)


def stretched(timeline: Timeline, action: str, by_ns: int) -> Timeline:
    """Return a step in which one action takes longer, and what waits for it comes later."""
    result = extract_computations(timeline)
    at = next(i for i in range(len(result)) if str(timeline[int(result.row[i])].action) == action)
    duration = result.duration_ns.copy()
    duration[at] += by_ns
    longer = replace(result, duration_ns=duration)
    return Resimulation.of_order(longer.order).run(longer.times())


def slower_way(timeline: Timeline, source: int, target: int, factor: float) -> Timeline:
    """Return a step in which messages from one rank to another take so much longer."""
    own = extract_computations(timeline)
    way = (own.transfers.source == source) & (own.transfers.target == target)
    took = np.where(way, (own.transfers.duration_ns * factor).astype(np.int64), own.transfers.duration_ns)
    return Resimulation.of_order(own.order).run(
        replace(own, transfers=replace(own.transfers, duration_ns=took)).times()
    )


def without_row(timeline: Timeline, row: int) -> Timeline:
    """Return a step as it would be recorded with one slice lost."""
    columns = {name: np.delete(getattr(timeline, name), row) for name in ROW_COLUMNS}
    cause = columns["cause"]
    columns["cause"] = np.where(cause == row, -1, cause - (cause > row))
    return replace(timeline, lane_ptr=timeline.lane_ptr - (timeline.lane_ptr > row), **columns)


def compared(
    first: Timeline | None = None, second: Timeline | None = None, names: tuple[str, str] = ("plan", "run")
) -> tuple[StepDiff, list[Side]]:
    """Return the diff of two steps, by default a simulated one and a measured one with a slow stage."""
    sides = [
        side_of_step(first if first is not None else one_step(), names[0]),
        side_of_step(second if second is not None else one_step(slow={1: 1.25}), names[1], measured=True),
    ]
    return diff(*sides), sides
