"""Every configuration that was tried for advice, as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.quantity import format_size
from pptrace.experiment.summary import time_text

if TYPE_CHECKING:
    from pptrace.experiment.run import Run
    from pptrace.experiment.tried import Tried

__all__ = ["advice_lines", "advice_rows"]


def advice_lines(run: Run) -> list[str]:
    """Return the configuration's own step and all others simulated, the shortest first, with their arguments."""
    advice = run.advice
    ran = _ran(run)
    rows = [("step", "peak", "pptrace simulate ..."), *advice_rows(run)]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{row[0]:>{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]}" for row in rows]
    lines += [f"cannot run: {one.change.arguments}: {one.reason}" for one in advice.tried if one.step_ns is None]
    over = [] if all(one.fits for one in ran) else ["!: more than the device has"]
    return [
        *lines,
        *over,
        f"simulated {len(ran)} of {advice.estimated} candidates, the likeliest by their estimates",
    ]


def advice_rows(run: Run) -> list[tuple[str, str, str]]:
    """Return step, peak memory and arguments of the configuration and of each other one, the shortest first."""
    metrics = run.metrics
    own = _cells(run, metrics.step_ns, metrics.memory.fullest_bytes, fits=metrics.over_capacity is None)
    return [(*own, "as it is"), *(_row(run, one) for one in _ran(run))]


def _ran(run: Run) -> list[Tried]:
    return sorted((one for one in run.advice.tried if one.step_ns is not None), key=lambda one: one.step_ns or 0)


def _row(run: Run, tried: Tried) -> tuple[str, str, str]:
    return (*_cells(run, tried.step_ns or 0, tried.peak_bytes, fits=tried.fits), tried.change.arguments)


def _cells(run: Run, step_ns: int, peak_bytes: int, *, fits: bool) -> tuple[str, str]:
    peak = format_size(peak_bytes) if peak_bytes else "-"
    return time_text(run, step_ns), f"{peak}{'' if fits else ' !'}"
