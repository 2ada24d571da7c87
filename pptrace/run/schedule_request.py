"""Requests for schedules, whose costs are computed on demand."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from pptrace.errors import PptraceError, ScheduleError
from pptrace.network.contract import transfer_ns
from pptrace.plugins.construction import build_schedule, checked_options
from pptrace.plugins.requests import ScheduleRequest
from pptrace.steps.placement import branch_edges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pptrace.network.contract import Network
    from pptrace.plugins.requests import TableSimulator
    from pptrace.run.inputs import Preparation, StepInputs
    from pptrace.steps.columns import Int32s, Int64s
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
        for name in ("ranks", "microbatches", "chunks", "encoder_stages", "layers", "options", "causal_share"):
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


def times(workload: Workload, network: Network, ranks: int, branches: Sequence[int] = ()) -> dict[str, Any]:
    """Return the costs in a schedule's request: times per stage and of a message, and memory limits.

    ``branches`` are ranks of encoders that run side by side. The stages are then those of the longest path; see
    :func:`along_path`.
    """
    transfer, following = 0, branch_edges(branches, workload.stages)[:, 1]
    if ranks > 1 and workload.boundary_bytes.size:
        paths = network.paths(np.zeros(1, dtype=np.int32), following[:1])
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
    values = {
        **per_stage, "transfer_ns": transfer, "memory_limit_bytes": limit,
        "stage_bytes": tuple((_state(workload) + _buffers(workload, following)).tolist()),
        "device_bytes": max(int(fits.min()), 0),
        "rank_bytes": tuple(np.maximum(fits, 0).tolist()) if workload.rank_capacity_bytes.size else (),
    }  # fmt: skip
    return along_path(values, branches) if branches else values


def along_path(values: Mapping[str, Any], branches: Sequence[int]) -> dict[str, Any]:
    """Return the times of :func:`times` for the stages of the longest path through encoders and decoder.

    A stage of the path has the largest times and sizes of the encoders' stages with its number. ``values`` are
    those of one stage per rank, ``branches`` the ranks of each encoder.

    >>> along_path({"f_ns": (3, 4, 5, 6), "transfer_ns": 7}, [1, 2])
    {'f_ns': (4, 5, 6), 'transfer_ns': 7}
    """
    ends = np.cumsum(branches).tolist()

    def of_path(name: str, value: tuple[int, ...]) -> tuple[int, ...]:
        of_encoders = [value[end - count : end] for end, count in zip(ends, branches, strict=True)]
        worst = min if name == "rank_bytes" else max
        stages = zip_longest(*of_encoders)
        return (*(worst(v for v in stage if v is not None) for stage in stages), *value[ends[-1] :])

    return {
        name: of_path(name, value) if isinstance(value, tuple) and value else value
        for name, value in values.items()
    }


def _state(workload: Workload) -> Int64s:
    """Return the most that each stage's weights, gradients and optimizer state take, gathered and not reduced."""
    total: Int64s = workload.static_bytes + workload.gathered_bytes + workload.unreduced_bytes
    return total


def _buffers(workload: Workload, following: Int32s) -> Int64s:
    """Return the bytes of each stage's buffers where its neighbours are on other ranks: two for each.

    ``following`` is the stage after each stage but the last.
    """
    buffers = np.zeros(workload.stages, dtype=np.int64)
    edges = min(workload.boundary_bytes.size, workload.stages - 1)
    sent, received = 2 * workload.buffer_bytes[:, :edges]
    buffers[:edges] += sent
    np.add.at(buffers, following[:edges], received)
    return buffers


class OtherTables(Struct, frozen=True):
    """A configuration while its schedule is built; see :class:`~pptrace.plugins.requests.TableSimulator`."""

    inputs: Preparation
    """The configuration and the plugins."""
    request: ScheduleRequest
    """The sizes, without options."""
    compute_times: Callable[[int], dict[str, Any]]
    """Returns the times in a request, by the number of stages."""
    prepared: Callable[[Schedule], StepInputs]
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
