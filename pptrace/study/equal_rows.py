"""The figures of schedules on equal memory, a row each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.study.equal_shortage import shortage
from pptrace.study.stand_in import policy_text
from pptrace.timeline.hidden import hidden_ns

if TYPE_CHECKING:
    from pptrace.experiment.run import Run
    from pptrace.study.equal_schedule import EqualSchedule
    from pptrace.study.row import Row

__all__ = ["equal_row"]


def equal_row(row: EqualSchedule, limit_bytes: int) -> Row:
    """Return everything as one row of a tidy table: times in ns, sizes in bytes, memory of the fullest rank."""
    cells: Row = {"schedule": row.entry.label, "rank": row.rank}
    if row.fits and row.forms is not None and row.forms.run is not None:
        cells |= {
            "form": row.form,
            "arguments": row.arguments,
            "alike_step_ns": row.alike_ns,
            "alike_arguments": row.arguments_alike or None,
            **_figures(row.forms.run, limit_bytes),
        }
    if row.forms is not None:
        own = row.forms.own
        cells |= {
            "configured_step_ns": own.step_ns,
            "configured_peak_memory_bytes": own.peak_bytes or None,
            "configured_fits": int(own.fits),
            "simulated": len(row.forms.tried),
        }
    return cells | {"refused": None if row.fits else shortage(row, limit_bytes)}


def _figures(run: Run, limit_bytes: int) -> Row:
    metrics, memory, schedule = run.metrics, run.metrics.memory, run.prepared.schedule
    fullest = memory.fullest
    peak = int(memory.peak_bytes[fullest])
    return {
        "pp": schedule.ranks,
        "vp": schedule.stages // schedule.ranks,
        "micro": run.prepared.resolved.experiment.batch.micro,
        "microbatches": run.prepared.request.microbatches,
        "policy": policy_text(run),
        "step_ns": metrics.step_ns,
        "tokens_per_s": metrics.tokens_per_s,
        "mfu": metrics.mfu,
        "bubble": float(metrics.bubble),
        "hidden_communication_ns": int(hidden_ns(run.timeline).sum()),
        "exposed_communication_ns": int(metrics.exposed_ns.sum()),
        "memory_limit_bytes": limit_bytes,
        "fullest_rank": fullest,
        "peak_memory_bytes": peak,
        "left_bytes": (memory.fullest_room_bytes or limit_bytes) - peak,
        "weights_bytes": int(memory.weights_bytes[fullest]),
        "gradients_bytes": int(memory.gradients_bytes[fullest]),
        "optimizer_bytes": int(memory.optimizer_bytes[fullest]),
        "buffer_bytes": int(memory.buffer_bytes[fullest]),
        "reserved_bytes": int(memory.reserved_bytes[fullest]),
        "activation_bytes": int(memory.peak_activation_bytes[fullest]),
    }
