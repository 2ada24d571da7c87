"""Simulate measured steps, several at once, and keep each result the moment it is there."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from pptrace.config.resolution import document_of, load
from pptrace.errors import PptraceError
from pptrace.plugins.guards import one_line
from pptrace.plugins.registry import Registry
from pptrace.run.simulated_step import simulate
from pptrace.search.execution import Journal, choose, journal_path, run_all
from pptrace.version import __version__
from pptrace_kernel import many_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pptrace.run.figures import Row
    from pptrace.search.accuracy.records import Case

__all__ = ["COLUMNS", "run_cases"]

COLUMNS = (
    "line", "source", "model", "gpu", "n_gpus", "precision", "tp", "pp", "cp", "ep", "vp", "dp", "mbs", "gbs",
    "seq", "kind", "measured_s", "simulated_s", "error_pct", "measured_memory", "memory_gib", "memory_error_pct",
    "device_gib", "skipped",
)  # fmt: skip
"""Columns of the result, one row per measured step."""

_AHEAD = 4
_ACTIONS = 10_000
"""Of a published step, about."""
_GIB = 2**30
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def run_cases(
    cases: Sequence[Case],
    *,
    executor: str = "processes",
    workers: int = 0,
    output: Path | None = None,
    fresh: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Return each case with its simulated step, error and memory, in their order.

    Args:
        cases: measured steps.
        executor: what they run on, as for a sweep.
        workers: how many run at once; 0 for as many as this machine has cores.
        output: the file that the rows are for; finished ones are kept in the journal beside it till then.
        fresh: take over no finished row.
        progress: told how many are finished, and of how many.

    Raises:
        OutputError: the journal cannot be written.
        PluginError: no plugin offers the executor.
    """
    registry = Registry.load(warn=lambda _: None)
    chosen = choose(executor, registry, workers or _cores())
    points = {case.line: _identity(case.settings, registry) for case in cases}
    report = progress or _no_progress
    found: dict[int, Row] = {}
    waiting = []
    with Journal(journal_path(output), fresh=fresh) if output else nullcontext() as journal:
        known = {str(row["point"]): row for row in journal.rows} if journal else {}
        for case in cases:
            if case.skipped:
                found[case.line] = {"skipped": case.skipped}
            elif points[case.line] in known:
                found[case.line] = known[points[case.line]]
            else:
                waiting.append(case)
        own = registry if chosen.in_process else None
        call = partial(_simulated, registry=own, rows=_ACTIONS * len(waiting) // chosen.request.workers)
        report(len(found), len(cases))
        for case, row in run_all(waiting, call, chosen.start, ahead=_AHEAD * chosen.request.workers):
            found[case.line] = row
            if journal is not None and not row.get("skipped"):
                journal.append({**row, "point": points[case.line]})
            report(len(found), len(cases))
    return [_row(case, found[case.line]) for case in cases]


def _simulated(case: Case, *, registry: Registry | None, rows: int) -> Row:
    """Simulate one step, out of work of ``rows`` of each kernel; what cannot be simulated says why."""
    try:
        with many_runs(rows):
            run = simulate(load(document_of(dict(case.settings)), (), {}), registry or _installed())
    except PptraceError as error:
        return {"skipped": " ".join(str(error).removeprefix("config: ").split())}
    except Exception as error:  # noqa: BLE001 - one row that fails costs no other
        return {"skipped": f"{one_line(error)} (a bug)"}
    memory = run.metrics.memory
    rate = case.measured_flops
    measured = case.measured_s or (run.metrics.model_flops / rate if rate else 0.0)
    experts = next((value for key, value, _ in run.prepared.resolved.explain() if key == "model.num_experts"), 0)
    return {
        "kind": "moe" if experts else "dense",
        "measured_s": measured or None,
        "simulated_s": run.metrics.step_ns / 1e9,
        "memory_gib": round(int(memory.peak_bytes.max(initial=0)) / _GIB, 2),
        "device_gib": round(memory.capacity_bytes / _GIB, 2),
    }


def _row(case: Case, found: Mapping[str, Any]) -> Row:
    given = {name: case.row.get(name, "") for name in COLUMNS}
    simulated = found.get("simulated_s")
    measured = found.get("measured_s") or case.measured_s
    error = 100 * (simulated / measured - 1) if simulated and measured else None
    printed, memory = _fullest(case.row.get("mem_gib", "")), found.get("memory_gib")
    memory_error = round(100 * (memory / printed - 1), 3) if printed and memory else None
    return {
        **given, "line": case.line, "kind": found.get("kind"), "measured_s": measured or None,
        "simulated_s": simulated, "error_pct": None if error is None else round(error, 3),
        "measured_memory": case.row.get("mem_gib", ""), "memory_gib": memory, "memory_error_pct": memory_error,
        "device_gib": found.get("device_gib"), "skipped": found.get("skipped") or found.get("error") or "",
    }  # fmt: skip


def _fullest(text: str) -> float:
    """Return the largest of the numbers that a cell prints, such as those of first and last stage; 0 for none."""
    return max(map(float, _NUMBER.findall(text)), default=0.0)


def _identity(settings: Mapping[str, Any], registry: Registry) -> str:
    plugins = sorted((name, str(p.provider)) for name, p in registry.cost_models.items())
    text = json.dumps([__version__, plugins, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _installed() -> Registry:
    return Registry.load(warn=lambda _: None)


def _no_progress(done: int, total: int) -> None:
    del done, total


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
