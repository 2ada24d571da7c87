"""What a step will take of memory, estimated before any of it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.choices import PolicyName
from pptrace.limits.memory import gibibytes, memory_key, most_memory

if TYPE_CHECKING:
    from pptrace.config.resolve import Resolved

__all__ = ["ACTION_BYTES", "RECEIVING_BYTES", "check_size", "too_large"]

ACTION_BYTES, RECEIVING_BYTES = 270, 400
"""What an action takes, from the table to the metrics: where sends alone are rows too, and where receives are.

Measured of interleaved 1F1B on 16 ranks, between half a million actions and two million: 271 with ``async``,
381 to 385 with ``blocking``, ``ordered`` and ``torch``, 507 with ``megatron``.
"""
_SENDS_ALONE = frozenset({PolicyName.ASYNC.value, PolicyName.SENDER_BLOCKING.value})
_PASSES = 2


def check_size(resolved: Resolved) -> None:
    """Check that the machine has the memory for a step of this size; a table in a file is there already.

    Raises:
        ConfigError: forward and backward of every stage and microbatch would take more.
    """
    experiment = resolved.experiment
    each = ACTION_BYTES if experiment.p2p.policy in _SENDS_ALONE else RECEIVING_BYTES
    parallel = experiment.parallel
    told = too_large(parallel.pp or 1, parallel.vp or 1, experiment.batch.microbatches or 1, each)
    if told and experiment.schedule.kind != "table":
        raise resolved.error("batch.microbatches", told)


def too_large(ranks: int, chunks: int, microbatches: int, each: int = ACTION_BYTES) -> str:
    """Return why a step is too large for the machine, empty where it is not: an action takes ``each`` bytes."""
    actions = _PASSES * ranks * chunks * microbatches
    size, most = actions * each, most_memory()
    if size <= most:
        return ""
    return (
        f"{actions:,} actions on {ranks:,} ranks would take about {gibibytes(size)} of memory, and "
        f"{gibibytes(most)} are to spare: take fewer microbatches, or {memory_key()}"
    )
