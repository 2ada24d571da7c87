"""What a schedule is asked for, with times that are computed when the schedule reads them, since few do."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.model.request import ScheduleRequest
from pptrace.network.contract import transfer_ns

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.model.columns import Int64s
    from pptrace.model.request import TableSimulator
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network

__all__ = ["LazyRequest", "times"]


class LazyRequest(ScheduleRequest):
    """A request without times, which asks for them once one is read."""

    @classmethod
    def of(
        cls, request: ScheduleRequest, ask: Callable[[], dict[str, Any]], simulator: TableSimulator | None = None
    ) -> LazyRequest:
        """Return a request with the sizes and options of another, and the times that ``ask`` gives."""
        lazy = object.__new__(cls)
        object.__setattr__(lazy, "_ask", ask)
        object.__setattr__(lazy, "simulator", simulator)
        for name in ("ranks", "microbatches", "chunks", "options", "causal_share"):
            object.__setattr__(lazy, name, getattr(request, name))
        return lazy

    def __getattr__(self, name: str) -> Any:
        """Fill in all times where one is read before it is known."""
        if name not in {field.name for field in fields(ScheduleRequest)}:
            raise AttributeError(name)
        for known, value in self._ask().items():
            object.__setattr__(self, known, value)
        return getattr(self, name)


def times(workload: Workload, network: Network, ranks: int) -> dict[str, Any]:
    """Return what a schedule may know of costs: times per stage, of a message, and room for activations."""
    transfer = 0
    if ranks > 1 and workload.boundary_bytes.size:
        paths = network.paths(np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int32))
        message = transfer_ns(workload.boundary_bytes[:1], paths.overhead_ns, paths.rate_kbps)
        transfer = int(message[0] + paths.latency_ns[0])
    static = np.bincount(np.arange(workload.stages) % ranks, weights=_state(workload), minlength=ranks)
    reserved = workload.reserved_bytes
    fits = (workload.capacities(ranks) - reserved) * 1000 // (1000 + workload.reserved_permille)
    room = int((fits - static.astype(np.int64)).min())
    per_stage: dict[str, Any] = {
        name: () if workload.unit_time_ns else tuple(getattr(workload, name).tolist())
        for name in (
            "f_ns",
            "b_ns",
            "i_ns",
            "w_ns",
            "activation_bytes",
            "weight_activation_bytes",
            "offload_ns",
            "reload_ns",
            "recompute_ns",
            "checkpoint_bytes",
        )
    }
    limit = max(room, 0) if workload.capacity_bytes else 0
    return {
        **per_stage, "transfer_ns": transfer, "memory_limit_bytes": limit,
        "stage_bytes": tuple((_state(workload) + _buffers(workload)).tolist()),
        "device_bytes": max(int(fits.min()), 0),
        "rank_bytes": tuple(np.maximum(fits, 0).tolist()) if workload.rank_capacity_bytes.size else (),
    }  # fmt: skip


def _state(workload: Workload) -> Int64s:
    """Return the most that each stage's weights, gradients and optimizer state take, gathered and not reduced."""
    total: Int64s = workload.static_bytes + workload.gathered_bytes + workload.unreduced_bytes
    return total


def _buffers(workload: Workload) -> Int64s:
    """Return the bytes of each stage's buffers where both its neighbours are on other ranks: two for each."""
    buffers = np.zeros(workload.stages, dtype=np.int64)
    edges = min(workload.boundary_bytes.size, workload.stages - 1)
    buffers[:edges] += 2 * workload.boundary_bytes[:edges]
    buffers[1 : edges + 1] += 2 * workload.boundary_bytes[:edges]
    return buffers
