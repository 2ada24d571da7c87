"""What a step may amount to: no sum of times or sizes passes 2**62, and no table of ranks outgrows memory."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import CostError, ScheduleError
from pptrace.sim.kernels.rules import BYTE

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s
    from pptrace.model.workload import Workload
    from pptrace.schedule.table import Schedule

__all__ = ["MOST_RANKS", "check_costs", "check_total"]

LARGEST = 2**62
"""Sums of times and of sizes stay below this, so that no integer overflows."""

MOST_RANKS = 4096
"""Lanes are counted for each pair of ranks."""


def check_costs(schedule: Schedule, workload: Workload) -> None:
    """Check that the costs are this schedule's, and that what they add up to can be counted.

    Raises:
        ScheduleError: too many ranks, other stages or boundaries.
        CostError: a cost below zero or too large.
    """
    if schedule.ranks > MOST_RANKS:
        raise ScheduleError(f"{schedule.ranks} pipeline ranks: at most {MOST_RANKS} are simulated")
    if workload.stages != schedule.stages:
        raise ScheduleError(f"the costs are for {workload.stages} stages, the schedule has {schedule.stages}")
    boundaries = schedule.placement.edges.shape[0]
    if workload.boundary_bytes.size != boundaries:
        raise ScheduleError(
            f"the costs know {workload.boundary_bytes.size} boundaries between stages, "
            f"the schedule has {boundaries}"
        )
    widest = int(schedule.span.max(initial=1))
    for field in fields(workload):
        values = getattr(workload, field.name)
        if isinstance(values, np.ndarray) and values.size:
            _check_column(field.name, values, widest)
    message = int(workload.edge_bytes.max(initial=0)) * widest
    if message * BYTE >= LARGEST:
        raise CostError(f"a message of {message} bytes is too large")
    if _most_bytes(schedule, workload) >= LARGEST:
        raise CostError("a rank's memory could pass 2**62 bytes (4 EiB)")


def check_total(ranks: int, *columns: Int64s) -> None:
    """Check that all ranks' times in one window can be added.

    Raises:
        CostError: they could pass 2**62 ns.
    """
    if sum(int(column.max(initial=0)) * column.size for column in columns) * ranks < LARGEST:
        return  # most often, and sooner known
    total = sum(float(column.sum(dtype=np.float64)) for column in columns)
    if total * ranks >= LARGEST:
        raise CostError(f"the step's times on {ranks} ranks sum to more than 2**62 ns (146 years)")


def _check_column(name: str, values: Int64s, widest: int) -> None:
    low, high = int(np.argmin(values)), int(np.argmax(values))
    if int(values[low]) >= 0 and int(values[high]) * widest < LARGEST:
        return
    row, fault = (low, "below zero") if values[low] < 0 else (high, "too large")
    of = "boundary" if name.startswith("boundary") else "rank" if name.startswith("rank") else "stage"
    raise CostError(f"{name} of {of} {row} is {fault} ({values[row]})")


def _most_bytes(schedule: Schedule, workload: Workload) -> int:
    """Return a bound of what a rank holds if it holds all stages of all microbatches."""
    placement = schedule.placement
    columns = (workload.weights_bytes, workload.gradients_bytes, workload.optimizer_bytes)
    static = sum(sum(map(int, column)) for column in columns) + workload.reserved_bytes
    buffers = 4 * placement.routes * sum(map(int, workload.boundary_bytes))
    return static + buffers + placement.microbatches * sum(map(int, workload.activation_bytes))
