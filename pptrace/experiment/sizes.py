"""What a step will take of memory, estimated before any of it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.limits.memory import gibibytes, memory_key, most_memory

if TYPE_CHECKING:
    from pptrace.config.resolve import Resolved

__all__ = ["ACTION_BYTES", "check_size"]

ACTION_BYTES = 250
"""What an action takes at least, from the table to the metrics: 270 to 460 were measured, of 1F1B."""
_PASSES = 2


def check_size(resolved: Resolved) -> None:
    """Check that the machine has the memory for a step of this size; a table in a file is there already.

    Raises:
        ConfigError: forward and backward of every stage and microbatch would take more.
    """
    experiment = resolved.experiment
    ranks, microbatches = experiment.parallel.pp or 1, experiment.batch.microbatches or 1
    actions = _PASSES * ranks * (experiment.parallel.vp or 1) * microbatches
    size, most = actions * ACTION_BYTES, most_memory()
    if size <= most or experiment.schedule.kind == "table":
        return
    message = (
        f"{actions:,} actions on {ranks:,} ranks would take about {gibibytes(size)} of memory, and "
        f"{gibibytes(most)} are to spare: take fewer microbatches, or {memory_key()}"
    )
    raise resolved.error("batch.microbatches", message)
