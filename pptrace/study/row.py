"""One run as one row of a tidy table: every figure a column, units in the names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pptrace.study.levels import Levels

__all__ = ["Cell", "Row", "metrics_row"]

Cell: TypeAlias = "int | float | str | None"
Row: TypeAlias = "dict[str, Cell]"


def metrics_row(levels: Levels) -> Row:
    """Return a run's figures: times in ns, sizes in bytes, shares as fractions of 1; None where unknown."""
    metrics = levels.run.metrics
    whole = metrics.ranks * metrics.step_ns
    return {
        "step_ns": metrics.step_ns,
        "formula_bubble": None if levels.formula is None else float(levels.formula),
        "table_bubble": float(levels.table),
        "idle": float(metrics.bubble),
        **{
            f"idle_{cause.replace('-', '_')}": time / whole if whole else 0.0
            for cause, time in metrics.idle_by_cause_ns.items()
        },
        "exposed_communication_ns": int(metrics.exposed_ns.sum()),
        "tokens_per_s": metrics.tokens_per_s,
        "mfu": metrics.mfu,
        "peak_memory_bytes": int(metrics.memory.peak_bytes.max(initial=0)),
        "device_memory_bytes": metrics.memory.capacity_bytes or None,
        "peak_activation_bytes": int(metrics.memory.peak_activation_bytes.max(initial=0)),
        "peak_activations": int(metrics.memory.peak_activations.max(initial=0)),
    }
