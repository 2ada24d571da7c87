"""Simulated step, error and memory of each measured step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pptrace.plugin import simulate_many

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pptrace.plugin import SimulatedStep
    from pptrace_accuracy.records import Case

__all__ = ["COLUMNS", "run_cases"]

COLUMNS = (
    "line", "source", "model", "gpu", "n_gpus", "precision", "tp", "pp", "cp", "ep", "vp", "dp", "mbs", "gbs",
    "seq", "kind", "measured_s", "simulated_s", "error_pct", "measured_memory", "memory_gib", "memory_error_pct",
    "device_gib", "skipped",
)  # fmt: skip
"""Columns of the result, one row per measured step."""

_GIB = 2**30
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def run_cases(
    cases: Sequence[Case],
    *,
    executor: str = "processes",
    workers: int = 0,
    journal: Path | None = None,
    fresh: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Return a row of :data:`COLUMNS` per case, in the order of the cases.

    Args:
        cases: measured steps.
        executor: name and options of an executor, as for a sweep.
        workers: cases that run at once; 0 for as many as this machine has cores.
        journal: a file that keeps finished cases, so that an interrupted call can go on. The caller removes it.
        fresh: whether to ignore the cases that the journal holds.
        progress: called with the number of finished cases and the number of all.

    Raises:
        OutputError: the journal cannot be written.
        PluginError: no plugin offers the executor.
    """
    configured = [case for case in cases if not case.skipped]
    skipped = len(cases) - len(configured)

    def report(finished: int, total: int) -> None:
        if progress is not None:
            progress(finished + skipped, total + skipped)

    simulated = simulate_many(
        [case.settings for case in configured], _figures, executor=executor, workers=workers, journal=journal,
        fresh=fresh, progress=report,
    )  # fmt: skip
    by_line = {case.line: figures for case, figures in zip(configured, simulated, strict=True)}
    return [_row(case, by_line.get(case.line, {})) for case in cases]


def _figures(run: SimulatedStep) -> dict[str, Any]:
    metrics, memory = run.metrics, run.metrics.memory
    settings = {key: value for key, value, _ in run.prepared.resolved.explain()}
    return {
        "kind": "moe" if settings.get("model.num_experts") else "dense",
        "simulated_s": metrics.step_ns / 1e9,
        "model_flops": metrics.model_flops,
        "memory_gib": round(int(memory.peak_bytes.max(initial=0)) / _GIB, 2),
        "device_gib": round(memory.capacity_bytes / _GIB, 2),
    }


def _row(case: Case, figures: Mapping[str, Any]) -> dict[str, Any]:
    simulated = figures.get("simulated_s")
    measured = case.measured_s
    if not measured and case.measured_flops and simulated:
        measured = figures["model_flops"] / case.measured_flops
    error = 100 * (simulated / measured - 1) if simulated and measured else None
    printed, memory = _largest_number(case.row.get("mem_gib", "")), figures.get("memory_gib")
    memory_error = round(100 * (memory / printed - 1), 3) if printed and memory else None
    return {
        **{name: case.row.get(name, "") for name in COLUMNS},
        "line": case.line, "kind": figures.get("kind"), "measured_s": measured or None,
        "simulated_s": simulated, "error_pct": None if error is None else round(error, 3),
        "measured_memory": case.row.get("mem_gib", ""), "memory_gib": memory, "memory_error_pct": memory_error,
        "device_gib": figures.get("device_gib"), "skipped": case.skipped or figures.get("error") or "",
    }  # fmt: skip


def _largest_number(text: str) -> float:
    """Return the largest number of a cell, such as that of the fullest of several stages; 0 without any."""
    return max(map(float, _NUMBER.findall(text)), default=0.0)
