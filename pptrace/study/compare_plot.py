"""A comparison as a picture: the ranks at the three levels, beside the bubbles that they come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.experiment.summary import time_text
from pptrace.export.picture import CYCLE, INK, MUTED, write_picture
from pptrace.study.compare_text import comparison_heading, slower_text
from pptrace.study.stand_in import POLICY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.study.compare import ComparedSchedule, Comparison

__all__ = ["save_plot"]

_LEVELS = ("formula", "table", "simulated")

_SHADES = ("#c6dbef", "#6baed6", "#08519c")
"""Of the levels, light to dark: told apart without their hue (ColorBrewer's Blues, https://colorbrewer2.org)."""

_BAR = 0.25
"""Height of one of three bars in a row of height 1."""

_LONGEST = 28
"""Letters of a schedule's name that are written."""


def save_plot(comparison: Comparison, path: str | Path) -> Path:
    """Draw a comparison into a .png, .svg or .pdf file; the same comparison gives the same bytes.

    Raises:
        OutputError: another suffix, or a file that cannot be written.
        PptraceError: matplotlib is not installed.
    """
    rows = sorted((row for row in comparison.rows if row.levels is not None), key=_simulated)
    refused = [f"{row.entry.label} cannot run: {row.reason}" for row in comparison.rows if row.levels is None]

    def draw(figure: Any) -> None:
        ranks, bubbles = figure.subplots(1, 2, sharey=True, width_ratios=(1.0, 1.7))
        _draw_ranks(ranks, rows)
        _draw_bubbles(bubbles, rows)
        figure.suptitle("\n".join(comparison_heading(comparison)), x=0.01, ha="left", fontsize=11, color=INK)
        if refused:
            figure.supxlabel("\n".join(map(_cut, refused)), x=0.01, ha="left", fontsize=8, color=INK)

    write_picture(Path(path), (11.0, 2.2 + 0.62 * len(rows) + 0.18 * len(refused)), draw)
    return Path(path)


def _simulated(row: ComparedSchedule) -> tuple[int, str]:
    return row.simulated_rank or 0, row.entry.label


def _draw_ranks(axes: Any, rows: Sequence[ComparedSchedule]) -> None:
    """Draw a line per schedule through its places; the simulated ones are the rows of the bubbles beside."""
    columns = [[_rank(row, level) for row in rows] for level in range(len(_LEVELS))]
    places = [_places(ranks) for ranks in columns]
    for level, ranks in enumerate(columns):
        _draw_ties(axes, level, ranks, places[level])
    for index, row in enumerate(rows):
        color = CYCLE[index % len(CYCLE)]
        known = [
            (level, places[level][index]) for level in range(len(_LEVELS)) if places[level][index] is not None
        ]
        style = ("-", (0, (4, 1.5)))[index // len(CYCLE) % 2]
        axes.plot(*zip(*known, strict=True), color=color, lw=2.6, ls=style, zorder=2, solid_capstyle="round")
        for level, place in known:
            axes.plot(level, place, "o", ms=17, mfc="white", mec=color, mew=2.2, zorder=3)
            tilde = "~" if level == 0 and not row.formula_is_exact else ""
            text = f"{tilde}{_rank(row, level)}"
            axes.text(level, place, text, ha="center", va="center_baseline", fontsize=9, color=INK, zorder=4)
    axes.set(xlim=(-0.35, len(_LEVELS) - 0.65), xticks=range(len(_LEVELS)), xticklabels=_LEVELS)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=10, labelcolor=INK, labelleft=False)
    axes.spines[:].set_visible(False)
    axes.set_title("rank", loc="left", fontsize=10, fontweight="bold", color=INK, pad=22)


def _draw_ties(axes: Any, level: int, ranks: Sequence[int | None], places: Sequence[int | None]) -> None:
    """Join the places of schedules that share a rank."""
    for rank in sorted({rank for rank in ranks if rank is not None and ranks.count(rank) > 1}):
        tied = [place for place, own in zip(places, ranks, strict=True) if own == rank and place is not None]
        axes.plot([level] * 2, [min(tied), max(tied)], color="#e1e5ea", lw=24, solid_capstyle="round", zorder=1)


def _draw_bubbles(axes: Any, rows: Sequence[ComparedSchedule]) -> None:
    for level, (name, shade) in enumerate(zip(_LEVELS, _SHADES, strict=True)):
        values = [_bubble(row, level) for row in rows]
        at = [index + (level - 1) * _BAR for index in range(len(rows))]
        axes.barh(at, [100 * (value or 0) for value in values], _BAR * 0.92, color=shade, label=name)
    most = max(_bubble(row, level) or 0 for row in rows for level in range(len(_LEVELS))) or 1
    least = min(row.levels.run.metrics.step_ns for row in rows if row.levels is not None)
    for index, row in enumerate(rows):
        end = max(_bubble(row, level) or 0 for level in range(len(_LEVELS)))
        axes.text(100 * end + 1.2 * most, index, _step(row, least), va="center", fontsize=9, color=INK)
    axes.set(
        xlim=(0, 100 * most * 1.32), ylim=(len(rows) - 0.45, -0.55), yticks=range(len(rows)),
        yticklabels=[_name(row) for row in rows],
    )  # fmt: skip
    axes.tick_params(axis="y", length=0, labelsize=10, labelcolor=INK, labelleft=True)
    axes.tick_params(axis="x", labelsize=8, color=MUTED, labelcolor=INK)
    axes.set_xlabel("% of all ranks' time", fontsize=9, color=INK)
    axes.grid(axis="x", color="#eaeef2", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.set_title(
        "bubble, and idle time in the simulation", loc="left", fontsize=10, fontweight="bold", color=INK, pad=22
    )
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.01, 0.985), ncols=3, fontsize=9, frameon=False, borderaxespad=0
    )


def _rank(row: ComparedSchedule, level: int) -> int | None:
    return (row.formula_rank, row.table_rank, row.simulated_rank)[level]


def _bubble(row: ComparedSchedule, level: int) -> float | None:
    if row.levels is None:
        return None
    value = (row.levels.formula, row.levels.table, row.levels.run.metrics.bubble)[level]
    return None if value is None else float(value)


def _places(ranks: Sequence[int | None]) -> list[int | None]:
    """Return a place of its own for each that has a rank, tied ones in the order in which they stand."""
    order = sorted((rank, index) for index, rank in enumerate(ranks) if rank is not None)
    place = {index: at for at, (_, index) in enumerate(order)}
    return [place.get(index) for index in range(len(ranks))]


def _step(row: ComparedSchedule, least_ns: int) -> str:
    if row.levels is None:
        return ""
    run = row.levels.run
    slower = slower_text(run.metrics.step_ns, least_ns)
    text = f"{time_text(run, run.metrics.step_ns)}{'' if slower == '-' else f'  {slower}'}"
    return f"{text}\nover its memory" if run.metrics.over_capacity else text


def _name(row: ComparedSchedule) -> str:
    label = row.entry.label
    name = label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}…"
    policy = row.messages.get(POLICY)
    return f"{name}\np2p {policy}" if policy else name


def _cut(line: str) -> str:
    longest = 150
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
