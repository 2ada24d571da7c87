"""Tables that PyTorch's pipeline runtime executes as pptrace reads them.

Source: PyTorch 2.13, ``torch/distributed/pipelining/schedules.py``: ``_PipelineScheduleRuntime`` and its loader.
The loader reads the start of a cell only, ``0F5@0F4`` as ``0F5``, so a table with other cells is refused here.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import ConfigError, Kind, Registry, ScheduleError, kinds, load, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pptrace.plugin import Schedule

__all__ = ["check_table", "compute_only", "read_table", "require_torch"]

_COMPUTED = (Kind.F, Kind.B, Kind.I, Kind.W)
_INSERTED = (Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD)
"""Kinds that the runtime inserts into a table of computations."""

_LOWEST = (2, 13)
_INSTALL = "pip install 'pptrace-torch[torch]'"


def require_torch() -> None:
    """Check that PyTorch is installed and recent enough, without importing it.

    Raises:
        ConfigError: it is missing or too old.
    """
    try:
        installed = version("torch")
    except PackageNotFoundError:
        raise ConfigError(f"PyTorch is not installed: {_INSTALL}") from None
    if tuple(int(part) for part in installed.split(".")[:2]) < _LOWEST:
        lowest = ".".join(map(str, _LOWEST))
        raise ConfigError(f"PyTorch {installed} is too old, {lowest} or later runs tables: {_INSTALL}")


def read_table(file: Path) -> Schedule:
    """Return the table of a file.

    Raises:
        PptraceError: the file cannot be read, or holds no valid table.
    """
    return prepare(load(None, flags={"schedule": str(file)}), Registry.load()).schedule


def compute_only(table: Schedule) -> Schedule:
    """Return a table without the messages and the other actions that PyTorch inserts."""
    inserted = kinds.COMMUNICATION.mask(table.kind) | np.isin(table.kind, _INSERTED)
    return table.selected(np.flatnonzero(~inserted))


def check_table(table: Schedule) -> None:
    """Refuse a table that PyTorch would refuse, misread, or run with wrong gradients.

    Raises:
        ScheduleError: the first reason, and what to do.
    """
    for fault in _faults(table):
        raise ScheduleError(f"PyTorch cannot run this table: {fault}")


def _faults(table: Schedule) -> Iterator[str]:
    ranks = table.placement.stage_rank
    if (ranks != ranks[0]).any():
        stage = int(np.flatnonzero((ranks != ranks[0]).any(axis=0))[0])
        yield (
            f"stage {stage} is on several ranks, and PyTorch keeps each stage on one; take a schedule without "
            "replicated stages"
        )
    chain = np.arange(table.stages - 1)[:, None] + [0, 1]
    if not np.array_equal(np.unique(table.placement.edges, axis=0), chain):
        yield "its stages are not a chain, and PyTorch sends from each stage to the next only"
    if (table.span > 1).any():
        action = table.action(int(np.flatnonzero(table.span > 1)[0]))
        yield f"{action} is of several microbatches; write one action per microbatch"
    if table.awaited():
        yield "actions wait for others (@), which PyTorch's loader does not read; remove these waits"
    other = ~(np.isin(table.kind, (*_COMPUTED, *_INSERTED)) | kinds.COMMUNICATION.mask(table.kind))
    if other.any():
        action = table.action(int(np.flatnonzero(other)[0]))
        yield f"it has no action such as {action}; switch offloading and recomputation actions off"
    yield from _count_faults(table)
    last = table.microbatch[(table.stage == table.stages - 1) & (table.kind == Kind.F)]
    if not np.array_equal(last, np.arange(table.microbatches)):
        position = int(np.flatnonzero(last != np.arange(last.size))[0])
        yield (
            f"the last stage runs forward {last[position]} where {position} is next, and PyTorch takes losses in "
            "the order of forwards, so gradients would be wrong; run the last stage's forwards in order"
        )


def _count_faults(table: Schedule) -> Iterator[str]:
    """Yield stages that lack a pass of a microbatch, or have a pass twice."""
    shape = (table.stages, table.microbatches)
    count = {}
    for kind in _COMPUTED:
        rows = table.kind == kind
        count[kind] = np.zeros(shape, dtype=np.int64)
        np.add.at(count[kind], (table.stage[rows], table.microbatch[rows]), 1)
    wrong = {
        "forward": count[Kind.F] != 1,
        "backward, whole or as input and weight gradient": (count[Kind.B] + count[Kind.I] != 1)
        | (count[Kind.I] != count[Kind.W]),
    }
    for what, cells in wrong.items():
        if cells.any():
            stage, microbatch = map(int, np.argwhere(cells)[0])
            yield f"stage {stage} does not have exactly one {what} of microbatch {microbatch}"
