"""Requests for schedules, whose costs are computed on demand."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import PptraceError, ScheduleError
from pptrace.network.contract import transfer_ns
from pptrace.plugins.construction import build_schedule, checked_options
from pptrace.plugins.requests import PlayedTable, ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pptrace.config.resolution import Resolved
    from pptrace.network.contract import Network
    from pptrace.plugins.registry import Registry
    from pptrace.plugins.requests import TableSimulator
    from pptrace.run.inputs import Assembly, Prepared
    from pptrace.steps.columns import Int64s
    from pptrace.steps.schedule import Schedule
    from pptrace.steps.text_forms import TableFile
    from pptrace.steps.workload import Workload

__all__ = ["CHUNKS", "LazyRequest", "OtherTables", "table_file", "times"]


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
    buffers[:edges] += 2 * workload.boundary_bytes[:edges]
    buffers[1 : edges + 1] += 2 * workload.boundary_bytes[:edges]
    return buffers


class OtherTables:
    """A configuration while its schedule is built; see :class:`~pptrace.plugins.requests.TableSimulator`."""

    def __init__(
        self,
        registry: Registry,
        resolved: Resolved,
        request: ScheduleRequest,
        ask: Callable[[int], dict[str, Any]],
        around: Callable[[Schedule], Prepared],
    ) -> None:
        self._registry, self._resolved, self._request = registry, resolved, request
        self._ask, self._around = ask, around

    def play(self, table: Schedule) -> PlayedTable:
        """Return what the simulator says of a table in this configuration.

        Raises:
            PptraceError: the table cannot run.
        """
        prepared = self.prepared(table)
        reduction = prepared.resolved.experiment.data_parallel
        timeline = simulate(
            prepared.schedule, prepared.workload, prepared.network, prepared.policy,
            contention=prepared.contention, overlap_reduction=reduction.overlaps,
            stage_replicas=reduction.stage_replicas,
        )  # fmt: skip
        metrics = measure(timeline, prepared.workload)
        memory, work = metrics.memory, prepared.workload
        room = np.maximum(memory.room_bytes - memory.static_bytes, 0)
        return PlayedTable(
            step_ns=int(metrics.step_ns),
            peak_bytes=tuple(memory.peak_bytes.tolist()),
            activation_bytes=tuple((memory.peak_bytes - memory.static_bytes).tolist()),
            room_bytes=tuple(room.tolist()) if work.capacity_bytes else (),
            work_ns=work.total_ns((Kind.F, Kind.I, Kind.W), table.microbatches),
        )

    def prepared(self, table: Schedule) -> Prepared:
        """Return the configuration with a table, made ready to run.

        Raises:
            PptraceError: the table cannot run.
        """
        return self._around(table)

    def others(self) -> Iterator[tuple[str, Schedule, ScheduleRequest]]:
        """Yield name, table and request of each other schedule that takes these sizes."""
        for name in sorted(self._registry.schedules):
            if name != self._resolved.experiment.schedule.name:
                with suppress(PptraceError):
                    yield name, *self._made(name)

    def _made(self, name: str) -> tuple[Schedule, ScheduleRequest]:
        """Return what a schedule makes of the request, with as many chunks as it likes where nobody wrote any."""
        provided = self._registry.schedules[name]
        offer = provided.offer
        request = replace(self._request, options=checked_options(provided, {}, "schedule.options"))
        if offer.chunks is not None and CHUNKS not in self._resolved.positions:
            request = replace(request, chunks=offer.chunks(request))
        table = build_schedule(provided, self._lazy(request))
        # Some, as Hanayo by its waves, say themselves how many stages there are.
        if table.stages != request.stages and CHUNKS in self._resolved.positions:
            raise ScheduleError(f"{name} has {table.stages} stages, not {request.stages}")
        return table, self._lazy(replace(request, chunks=table.stages // table.ranks))

    def _lazy(self, request: ScheduleRequest) -> ScheduleRequest:
        return LazyRequest.of(request, lambda: self._ask(request.stages))


CHUNKS = "parallel.vp"
"""The key of chunks per rank."""


def table_file(work: Assembly) -> tuple[Assembly, TableFile | None]:
    """Return the file of a schedule that is a table, and take its sizes."""
    schedule = work.experiment.schedule
    if schedule.kind != "table":
        return work, None
    from pptrace.steps.text_forms import load_table

    work, _ = work.options("schedule", None)
    file = load_table(Path(schedule.name))
    return work.at(_sized(work.resolved, file.schedule)), file


def _sized(resolved: Resolved, table: Schedule) -> Resolved:
    """Take ranks, chunks and microbatches from a table file; what the configuration says must agree."""
    experiment = resolved.experiment
    uneven = table.stages % table.ranks
    chunks = 1 if uneven else table.stages // table.ranks
    asked_chunks = None if uneven or CHUNKS not in resolved.positions else experiment.parallel.vp
    for key, asked, there, what in (
        ("parallel.pp", experiment.parallel.pp, table.ranks, "rows"),
        (CHUNKS, asked_chunks, chunks, "stages per row"),
        ("batch.microbatches", experiment.batch.microbatches, table.microbatches, "microbatches"),
    ):
        if asked is not None and asked != there:
            raise resolved.error(
                key, f"{experiment.schedule.name} has {there} {what}, not {asked}: remove the key"
            )
    origin = f"table {Path(experiment.schedule.name).name}"
    step = experiment.parallel.dp * experiment.batch.micro
    parallel = experiment.parallel.model_copy(update={"pp": table.ranks, "vp": chunks})
    batch = experiment.batch.model_copy(
        update={"microbatches": table.microbatches, "global_batch": table.microbatches * step}
    )
    sized = ("parallel.pp", CHUNKS, "batch.microbatches", "batch.global")
    origins = {**resolved.origins, **dict.fromkeys(sized, origin)}
    return replace(
        resolved, experiment=experiment.model_copy(update={"parallel": parallel, "batch": batch}), origins=origins
    )
