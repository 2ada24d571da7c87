"""Requests for schedules, whose costs are computed on demand."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import PptraceError, ScheduleError
from pptrace.network.contract import transfer_ns
from pptrace.plugins.construction import build_schedule, checked_options
from pptrace.plugins.requests import ScheduleRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pptrace.network.contract import Network
    from pptrace.plugins.requests import TableSimulator
    from pptrace.run.inputs import Inputs, Prepared
    from pptrace.steps.columns import Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.workload import Workload

CHUNKS = "parallel.vp"
"""The key of chunks per rank."""


class LazyRequest(ScheduleRequest):
    """A request that computes its times when one is read first."""

    reads_costs: bool
    """Whether a time or the simulator was read, so that the answer depends on more than sizes and options."""

    @classmethod
    def of(
        cls,
        request: ScheduleRequest,
        compute_times: Callable[[], dict[str, Any]],
        simulator: TableSimulator | None = None,
    ) -> LazyRequest:
        """Return a lazy request with the sizes and options of another request."""
        lazy = object.__new__(cls)
        object.__setattr__(lazy, "_compute_times", compute_times)
        object.__setattr__(lazy, "_simulator", simulator)
        object.__setattr__(lazy, "reads_costs", False)
        for name in ("ranks", "microbatches", "chunks", "encoder_stages", "options", "causal_share"):
            object.__setattr__(lazy, name, getattr(request, name))
        return lazy

    def __getattr__(self, name: str) -> Any:
        """Compute all times at the first read of one."""
        if name not in {field.name for field in fields(ScheduleRequest)}:
            raise AttributeError(name)
        object.__setattr__(self, "reads_costs", True)
        if name == "simulator":
            return self._simulator
        for column, value in self._compute_times().items():
            object.__setattr__(self, column, value)
        return getattr(self, name)


def times(workload: Workload, network: Network, ranks: int) -> dict[str, Any]:
    """Return the costs in a schedule's request: times per stage and of a message, and memory limits."""
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
        name: tuple(getattr(workload, name).tolist())
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
    sent, received = 2 * workload.buffer_bytes[:, :edges]
    buffers[:edges] += sent
    buffers[1 : edges + 1] += received
    return buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherTables:
    """A configuration while its schedule is built; see :class:`~pptrace.plugins.requests.TableSimulator`."""

    inputs: Inputs
    """The configuration and the plugins."""
    request: ScheduleRequest
    """The sizes, without options."""
    compute_times: Callable[[int], dict[str, Any]]
    """Returns the times in a request, by the number of stages."""
    prepared: Callable[[Schedule], Prepared]
    """Returns the inputs of a step with a table."""

    def others(self) -> Iterator[tuple[str, Schedule, ScheduleRequest]]:
        """Yield name, table and request of each other schedule that takes these sizes."""
        for name in sorted(self.inputs.registry.schedules):
            if name != self.inputs.experiment.schedule.name:
                with suppress(PptraceError):
                    yield name, *self._build(name)

    def _build(self, name: str) -> tuple[Schedule, ScheduleRequest]:
        """Return a schedule's table and request, with its own default of chunks where none are written."""
        provided = self.inputs.registry.schedules[name]
        offer = provided.offer
        request = replace(self.request, options=checked_options(provided, {}, "schedule.options"))
        if offer.chunks is not None and CHUNKS not in self.inputs.resolved.positions:
            request = replace(request, chunks=offer.chunks(request))
        table = build_schedule(provided, self._lazy(request))
        # Options can set the number of stages, as Hanayo's waves.
        if table.stages != request.stages and CHUNKS in self.inputs.resolved.positions:
            raise ScheduleError(f"{name} has {table.stages} stages, not {request.stages}")
        return table, self._lazy(replace(request, chunks=table.stages // table.ranks))

    def _lazy(self, request: ScheduleRequest) -> ScheduleRequest:
        return LazyRequest.of(request, lambda: self.compute_times(request.stages))
