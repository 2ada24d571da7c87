"""A comparison on equal memory as a picture: each schedule's step, beside its memory under the limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.config.quantity import format_size
from pptrace.experiment.summary import time_text
from pptrace.export.picture import INK, MUTED, write_picture
from pptrace.study.compare_text import slower_text
from pptrace.study.equal_shortage import shortage
from pptrace.study.equal_text import equal_heading
from pptrace.study.stand_in import POLICY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.experiment.run import Run
    from pptrace.study.equal import EqualComparison
    from pptrace.study.equal_schedule import EqualSchedule

__all__ = ["save_plot"]

_STEP, _STATE, _ACTIVATIONS, _LIMIT = "#6baed6", "#8c959f", "#e69f00", "#d55e00"
_GIB = 2**30
_LONGEST = 140
"""Letters of a line below that are written."""


def save_plot(comparison: EqualComparison, path: str | Path) -> Path:
    """Draw a comparison into a .png, .svg or .pdf file; the same comparison gives the same bytes.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
        PptraceError: matplotlib is not installed.
    """
    limit = comparison.limit_bytes
    rows = sorted((row for row in comparison.rows if row.fits), key=lambda row: (row.rank or 0, row.entry.label))
    runs = [row.forms.run for row in rows if row.forms and row.forms.run]
    refused = [f"{row.entry.label} {shortage(row, limit)}" for row in comparison.rows if not row.fits]

    def draw(figure: Any) -> None:
        steps, memory = figure.subplots(1, 2, sharey=True)
        _draw_steps(steps, rows, runs)
        _draw_memory(memory, runs, limit)
        heading = equal_heading(rows, limit)
        figure.suptitle("\n".join(heading), x=0.01, ha="left", fontsize=11, color=INK)
        if refused:
            figure.supxlabel("\n".join(map(_cut, refused)), x=0.01, ha="left", fontsize=8, color=INK)

    write_picture(Path(path), (11.0, 2.2 + 0.5 * len(rows) + 0.18 * len(refused)), draw)
    return Path(path)


def _draw_steps(axes: Any, rows: Sequence[EqualSchedule], runs: Sequence[Run]) -> None:
    steps = [run.metrics.step_ns for run in runs]
    axes.barh(range(len(rows)), [step / 1e9 for step in steps], 0.6, color=_STEP)
    for index, (run, step) in enumerate(zip(runs, steps, strict=True)):
        slower = slower_text(step, min(steps)).replace("-", "the shortest")
        text = f"{time_text(run, step)}, {slower}"
        axes.text(step / 1e9 + 0.02 * max(steps) / 1e9, index, text, va="center", fontsize=9, color=INK)
    axes.set(
        xlim=(0, max(steps) / 1e9 * 1.4 or 1), ylim=(len(rows) - 0.45, -0.55), yticks=range(len(rows)),
        yticklabels=[_label(row) for row in rows],
    )  # fmt: skip
    _dress(axes, "step", "s")


def _draw_memory(axes: Any, runs: Sequence[Run], limit_bytes: int) -> None:
    memories = [run.metrics.memory for run in runs]
    fullest = [memory.fullest for memory in memories]
    held = [int(memory.peak_activation_bytes[rank]) / _GIB for memory, rank in zip(memories, fullest, strict=True)]
    peaks = [int(memory.peak_bytes[rank]) / _GIB for memory, rank in zip(memories, fullest, strict=True)]
    state = [peak - own for peak, own in zip(peaks, held, strict=True)]
    axes.barh(range(len(runs)), state, 0.6, color=_STATE, label="state")
    axes.barh(range(len(runs)), held, 0.6, left=state, color=_ACTIVATIONS, label="activations")
    axes.axvline(limit_bytes / _GIB, color=_LIMIT, lw=1.6, label=f"limit, {format_size(limit_bytes)}")
    axes.set(xlim=(0, limit_bytes / _GIB * 1.08))
    _dress(axes, "memory of the fullest rank", "GiB")
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 0.985), ncols=3, fontsize=9, frameon=False, borderaxespad=0
    )


def _label(row: EqualSchedule) -> str:
    """Return a schedule's name above its form, with the policy where that is not the configuration's."""
    policy = row.messages.get(POLICY)
    form = ", ".join(filter(None, [row.form, policy and f"p2p {policy}"]))
    return f"{row.entry.label}\n{form}".rstrip()


def _dress(axes: Any, title: str, unit: str) -> None:
    axes.tick_params(axis="y", length=0, labelsize=9, labelcolor=INK)
    axes.tick_params(axis="x", labelsize=8, color=MUTED, labelcolor=INK)
    axes.set_xlabel(unit, fontsize=9, color=INK)
    axes.grid(axis="x", color="#eaeef2", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", color=INK, pad=22)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
