"""Tables by schedule and sizes, made once for all configurations that share them, and what is refused of them."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError, PptraceError
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.guards import call_plugin
from pptrace.plugins.requests import ScheduleRequest
from pptrace.run.inputs import Assembly
from pptrace.run.preparation import policy_of, too_large
from pptrace.run.schedule_request import LazyRequest
from pptrace.search.problem import setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.search.basis import Entry
    from pptrace.search.problem import PlanProblem
    from pptrace.search.space import Layout
    from pptrace.steps.schedule import Schedule

_KEPT = 96
"""Tables that are kept at once; layouts with the same ones follow each other."""
_MOST_ACTIONS = 2**24
"""Actions of a step that a plan makes: some seconds each, of which there are thousands."""
_TIMES: dict[str, Any] = {
    "f_ns": (), "b_ns": (), "i_ns": (), "w_ns": (), "transfer_ns": 0, "activation_bytes": (), "offload_ns": (),
    "reload_ns": (), "memory_limit_bytes": 0, "weight_activation_bytes": (), "stage_bytes": (), "device_bytes": 0,
    "rank_bytes": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTable:
    """A schedule's table for some sizes."""

    request: ScheduleRequest
    """What the schedule was asked for."""
    table: Schedule | None
    """The table; None where it depends on times: :meth:`TableCache.timed` makes it."""
    digest: str
    """Tells the table from others; empty without one."""
    chunks: int
    """Chunks per rank."""


class TableCache:
    """The tables of a plan."""

    def __init__(self, problem: PlanProblem, entries: Sequence[Entry]) -> None:
        """Read the options of all schedules.

        Raises:
            PptraceError: an option that a schedule cannot take, or a schedule that nobody offers.
        """
        self.registry = problem.registry
        self._found: OrderedDict[Any, CachedTable] = OrderedDict()
        self._policies: dict[Any, PptraceError | None] = {}
        self._refusals: dict[Any, PptraceError | None] = {}
        self._options: dict[str, Mapping[str, Any]] = {}
        plain = [setting("parallel.pp", 1), setting("batch.global", 1)]
        for entry in entries:
            resolved = problem.resolved([*plain, *entry.varied])
            offered = self.registry.schedules[entry.name].offer.options
            assembly = Assembly(resolved=resolved, registry=self.registry)
            self._options[entry.label] = assembly.options("schedule", offered)[1]

    def refusal(self, entry: Entry, layout: Layout, chunks: int | None) -> PptraceError | None:
        """Return why a schedule does not take some sizes, as far as it says so before it makes a table."""
        key = (entry.label, layout.pp, layout.microbatches, chunks)
        if key not in self._refusals:
            self._refusals[key] = self._refused(entry, layout, chunks)
        return self._refusals[key]

    def of(self, entry: Entry, layout: Layout, chunks: int | None) -> CachedTable:
        """Return the table of a schedule on a layout's ranks and microbatches.

        Args:
            entry: the schedule, with its own settings.
            layout: the layout.
            chunks: per rank; None for as many as the schedule itself makes.

        Raises:
            PptraceError: sizes that the schedule cannot take, or a plugin that fails.
        """
        key = (entry.label, layout.pp, layout.microbatches, chunks)
        if key not in self._found:
            self._found[key] = self._made(entry, self._request(entry, layout, chunks))
            if len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return self._found[key]

    def timed(self, entry: Entry, cached: CachedTable, times: Mapping[str, Any]) -> CachedTable:
        """Return the table that a schedule makes of times and memory, where it reads them.

        Raises:
            PptraceError: times or memory that the schedule cannot take.
        """
        request = replace(cached.request, **times)
        table = build_schedule(self.registry.schedules[entry.name], request)
        return replace(cached, request=request, table=table, digest=_digest(table))

    def check_policy(self, resolved: Resolved, cached: CachedTable) -> None:
        """Refuse a table whose messages the configuration's policy cannot place.

        Raises:
            PptraceError: why.
        """
        p2p = resolved.experiment.p2p
        key = (p2p.policy, str(p2p.options), cached.digest)
        if key not in self._policies and cached.table is not None:
            try:
                policy_of(Assembly(resolved=resolved, registry=self.registry), cached.table)
                self._policies[key] = None
            except PptraceError as error:
                self._policies[key] = error
        refused = self._policies.get(key)
        if refused is not None:
            raise refused

    def _refused(self, entry: Entry, layout: Layout, chunks: int | None) -> PptraceError | None:
        provided = self.registry.schedules[entry.name]
        try:
            request = self._request(entry, layout, chunks)
            if provided.offer.check is not None:
                call_plugin(provided.provider, provided.offer.check, request)
        except PptraceError as error:
            return error
        return None

    def _request(self, entry: Entry, layout: Layout, chunks: int | None) -> ScheduleRequest:
        provided = self.registry.schedules[entry.name]
        request = ScheduleRequest(
            ranks=layout.pp,
            microbatches=layout.microbatches,
            chunks=chunks or 1,
            options=self._options[entry.label],
        )
        if chunks is None and provided.offer.chunks is not None:
            request = replace(request, chunks=call_plugin(provided.provider, provided.offer.chunks, request))
        told = too_large(request.ranks, request.chunks, request.microbatches) or _too_long(request)
        if told:
            raise ConfigError(told, key="batch.microbatches")
        return request

    def _made(self, entry: Entry, request: ScheduleRequest) -> CachedTable:
        asked: list[bool] = []

        def ask() -> dict[str, Any]:
            asked.append(True)
            return _TIMES

        table = build_schedule(self.registry.schedules[entry.name], LazyRequest.of(request, ask))
        chunks = table.stages // table.ranks
        if asked:
            return CachedTable(request=request, table=None, digest="", chunks=chunks)
        return CachedTable(request=request, table=table, digest=_digest(table), chunks=chunks)


def _too_long(request: ScheduleRequest) -> str:
    """Return why a step is too long to be one of many, empty where it is not."""
    actions = 2 * request.ranks * request.chunks * request.microbatches
    if actions <= _MOST_ACTIONS:
        return ""
    return (
        f"{actions:,} actions in a step, and the most in a plan is {_MOST_ACTIONS:,}: name fewer sequences "
        "(--global) or larger microbatches (--vary micro=8)"
    )


def _digest(table: Schedule) -> str:
    """Return a digest of all that a table says."""
    found = hashlib.sha256()
    placement = table.placement
    for column in (
        table.row_ptr, *table.cells, placement.stage_rank, placement.microbatch_route, placement.edges,
        *table.waits,
    ):  # fmt: skip
        found.update(column.tobytes())
        found.update(b"|")
    found.update(repr((sorted(table.interleave.items()), table.recompute_waits)).encode())
    return found.hexdigest()[:16]
