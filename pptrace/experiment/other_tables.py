"""What a schedule that searches may ask while it is built: the simulator, and the tables of other schedules."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import PptraceError, ScheduleError
from pptrace.experiment.asked import LazyRequest
from pptrace.experiment.table_file import CHUNKS
from pptrace.hooks.build import build_schedule, checked_options
from pptrace.model.kinds import Kind
from pptrace.model.request import PlayedTable
from pptrace.sim.simulate import simulate
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pptrace.config.resolve import Resolved
    from pptrace.experiment.prepare import Prepared
    from pptrace.hooks.registry import Registry
    from pptrace.model.request import ScheduleRequest
    from pptrace.schedule.table import Schedule

__all__ = ["OtherTables"]


class OtherTables:
    """A configuration while its schedule is built; see :class:`~pptrace.model.request.TableSimulator`."""

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
