"""Schedules that PyTorch runs, and the order in which it runs them; needs no PyTorch."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pptrace.plugin import PptraceError, Registry, compute_only, load, prepare
from pptrace_torch.manifest import check_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import Schedule

NOT_RUN = {
    "bitpipe",
    "chimera",
    "dualpipe",
    "helixpipe",
    "optimus",
    "paci",
    "pipedream-2bw",
    "roundpipe",
    "vocab-1f1b",
}
"""Schedules with replicated stages, with stages that feed several stages, without flushes, or with passes
of a stage on several ranks."""


def runnable_tables(ranks: int, microbatches: int) -> dict[str, Schedule]:
    """Return the tables of all installed schedules that PyTorch runs, with two stages per rank where possible."""
    registry, tables = Registry.load(), {}
    for name in registry.schedules:
        for chunks in ({"vp": 2}, {}):
            with suppress(PptraceError):
                flags = {"schedule": name, "pp": ranks, "microbatches": microbatches, **chunks}
                table = compute_only(prepare(load(None, flags=flags), registry).schedule)
                check_table(table)
                tables[name] = table
                break
    return tables


def merged_gradients(rows: Iterable[Iterable[str]]) -> list[list[str]]:
    """Return rows in which stage 0 has whole backwards only: PyTorch skips its input gradients."""
    return [
        [cell.replace("0W", "0B") if cell.startswith("0W") else cell for cell in row if not cell.startswith("0I")]
        for row in rows
    ]
