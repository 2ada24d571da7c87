"""Tables by schedule and sizes, shared by all candidates, with the errors of refused sizes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError, PptraceError
from pptrace.plugins.construction import build_schedule
from pptrace.plugins.guards import call_plugin
from pptrace.plugins.requests import ScheduleRequest
from pptrace.run.inputs import Inputs
from pptrace.run.preparation import message_policy, too_large
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
"""Tables in the cache; layouts with the same tables are consecutive."""
_MOST_ACTIONS = 2**24
"""Largest number of actions of a candidate's step."""
_TIMES: dict[str, Any] = {
    "f_ns": (), "b_ns": (), "i_ns": (), "w_ns": (), "transfer_ns": 0, "activation_bytes": (), "offload_ns": (),
    "reload_ns": (), "memory_limit_bytes": 0, "weight_activation_bytes": (), "stage_bytes": (), "device_bytes": 0,
    "rank_bytes": (),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTable:
    """The table of a schedule for given sizes."""

    request: ScheduleRequest
    """The request of the schedule."""
    table: Schedule | None
    """The table; None where it depends on times, as :meth:`TableCache.timed` builds it."""
    digest: str
    """Digest of the table; empty without one."""
    chunks: int
    """Chunks per rank."""


class TableCache:
    """The tables of a plan."""

    def __init__(self, problem: PlanProblem, entries: Sequence[Entry]) -> None:
        """Read the options of all schedules.

        Raises:
            PptraceError: an invalid option, or an unknown schedule.
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
            inputs = Inputs(resolved=resolved, registry=self.registry)
            self._options[entry.label] = inputs.fill_options("schedule", offered)

    def refusal(self, entry: Entry, layout: Layout, chunks: int | None) -> PptraceError | None:
        """Return the error by which a schedule refuses sizes before it builds a table; None without one."""
        key = (entry.label, layout.pp, layout.microbatches, chunks)
        if key not in self._refusals:
            self._refusals[key] = self._refused(entry, layout, chunks)
        return self._refusals[key]

    def of(self, entry: Entry, layout: Layout, chunks: int | None) -> CachedTable:
        """Return the table of a schedule on a layout's ranks and microbatches.

        Args:
            entry: the schedule, with its own settings.
            layout: the layout.
            chunks: chunks per rank; None for the default of the schedule.

        Raises:
            PptraceError: refused sizes, or a failing plugin.
        """
        key = (entry.label, layout.pp, layout.microbatches, chunks)
        if key not in self._found:
            self._found[key] = self._build(entry, self._request(entry, layout, chunks))
            if len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return self._found[key]

    def timed(self, entry: Entry, cached: CachedTable, times: Mapping[str, Any]) -> CachedTable:
        """Return the table that a schedule builds from times and memory.

        Raises:
            PptraceError: refused times or memory.
        """
        request = replace(cached.request, **times)
        table = build_schedule(self.registry.schedules[entry.name], request)
        return replace(cached, request=request, table=table, digest=_digest(table))

    def check_policy(self, resolved: Resolved, cached: CachedTable) -> None:
        """Refuse a table that the message policy does not accept.

        Raises:
            PptraceError: the error of the policy.
        """
        p2p = resolved.experiment.p2p
        key = (p2p.policy, str(p2p.options), cached.digest)
        if key not in self._policies and cached.table is not None:
            try:
                message_policy(Inputs(resolved=resolved, registry=self.registry), cached.table)
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
        reason = too_large(request.ranks, request.chunks, request.microbatches) or _too_long(request)
        if reason:
            raise ConfigError(reason, key="batch.microbatches")
        return request

    def _build(self, entry: Entry, request: ScheduleRequest) -> CachedTable:
        reads: list[bool] = []

        def read_times() -> dict[str, Any]:
            reads.append(True)
            return _TIMES

        table = build_schedule(self.registry.schedules[entry.name], LazyRequest.of(request, read_times))
        chunks = table.stages // table.ranks
        if reads:
            return CachedTable(request=request, table=None, digest="", chunks=chunks)
        return CachedTable(request=request, table=table, digest=_digest(table), chunks=chunks)


def _too_long(request: ScheduleRequest) -> str:
    """Return why a step is too large for a plan; empty where it is not."""
    actions = 2 * request.ranks * request.chunks * request.microbatches
    if actions <= _MOST_ACTIONS:
        return ""
    return (
        f"{actions:,} actions in a step, and the most in a plan is {_MOST_ACTIONS:,}: name fewer sequences "
        "(--global) or larger microbatches (--vary micro=8)"
    )


def _digest(table: Schedule) -> str:
    """Return a digest of the content of a table."""
    digest = hashlib.sha256()
    placement = table.placement
    for column in (
        table.row_ptr, *table.cells, placement.stage_rank, placement.microbatch_route, placement.edges,
        *table.waits,
    ):  # fmt: skip
        digest.update(column.tobytes())
        digest.update(b"|")
    digest.update(repr((sorted(table.interleave.items()), table.recompute_waits)).encode())
    return digest.hexdigest()[:16]
