"""Gathers of sharded weights and reductions of each microbatch, put into any table as a configuration asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.choices import Reshard
from pptrace.model.kinds import Kind
from pptrace.schedule.gathers import with_gathers, with_reductions

if TYPE_CHECKING:
    from pptrace.config.resolve import Resolved
    from pptrace.model.workload import Workload
    from pptrace.schedule.table import Schedule

__all__ = ["with_sharding"]

_SHARDS = "write costs.zero: 3, or remove the key"
_KEYS = ("reshard", "active_stages")
_USUAL = (None, Reshard.NEVER)
_ACTIVE = 3
"""Stages that PyTorch's runtime keeps gathered."""


def with_sharding(resolved: Resolved, table: Schedule, workload: Workload) -> Schedule:
    """Return a table with the gathers, and the reductions behind each backward, that costs and configuration need.

    Weights that are whole during the step, but sharded by its optimizer, are gathered once and never freed.

    Raises:
        ConfigError: a key without sharded weights, reductions that would not overlap or are the table's own, or
            of stages that several ranks hold.
    """
    asked = resolved.experiment.data_parallel
    if asked.reduce_each:
        _check_reductions(resolved, table)
        table = with_reductions(table, workload.reduce_ns > 0)
    replicas = resolved.experiment.parallel.dp * resolved.experiment.parallel.cp
    freed, gathered = workload.gathered_bytes > 0, workload.unshard_ns > 0
    written = [f"data_parallel.{key}" for key in _KEYS if getattr(asked, key) not in _USUAL]
    if written and replicas > 1 and not freed.any():
        raise resolved.error(written[0], f"no weights are gathered and freed: {_SHARDS}")
    if (table.kind == Kind.UNSHARD).any():
        if written:
            name = resolved.experiment.schedule.name
            raise resolved.error(written[0], f"{name} has gathers of its own: remove the key")
        return table
    if freed.any():
        reshard, active = asked.reshard or Reshard.NEVER, asked.active_stages or _ACTIVE
        return with_gathers(table, freed | gathered, reshard, active)
    return with_gathers(table, gathered, None) if gathered.any() else table


def _check_reductions(resolved: Resolved, table: Schedule) -> None:
    key, asked = "data_parallel.reduce_each", resolved.experiment.data_parallel
    if not asked.overlaps:
        raise resolved.error(key, "reductions behind each backward overlap: write data_parallel.overlap: true")
    if (table.kind == Kind.REDUCE_GRAD).any():
        name = resolved.experiment.schedule.name
        raise resolved.error(key, f"{name} has reductions of its own: remove the key")
    if asked.stage_replicas and (table.placement.copies().sum(axis=0) > 1).any():
        message = "stages that several ranks hold are reduced once: remove the key, or stage_replicas"
        raise resolved.error(key, message)
