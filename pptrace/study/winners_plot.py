"""Which schedule wins where: a heat map over two axes, each cell with its winner and the margin to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.export.picture import CYCLE, INK
from pptrace.study.names import told_apart
from pptrace.study.plot_data import number_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.study.plot_data import Figure, Panel, Roles
    from pptrace.study.row import Cell, Row

__all__ = ["draw_winners", "winners_size"]

_NONE, _TIE = "#ffffff", "#d9dde2"
_PALE = 0.5
"""How much white is in a winner's colour, so that text on it can be read."""
_LONGEST = 14


def winners_size(x: str, beside: str | None, rows: Sequence[Row], panels: int) -> tuple[float, float]:
    """Return inches for so many cells and panels, one above the other."""
    across, up = len(_values(rows, x)), len(_values(rows, beside))
    return 1.9 + max(1.05 * across, 3.2), 0.9 + panels * (0.75 + 0.55 * up)


def draw_winners(drawn: Any, roles: Roles, beside: str | None, figure: Figure, panels: Sequence[Panel]) -> None:
    """Draw a cell per value of ``roles.x`` and of ``beside``, coloured and named by the best there."""
    from matplotlib.patches import Rectangle

    every = [row for panel in panels for row in panel.rows]
    names = list(dict.fromkeys(str(row[str(roles.lines)]) for row in every))
    across, up = _values(every, roles.x), _values(every, beside)
    grid = drawn.subplots(len(panels), 1, squeeze=False, sharex=True)
    for axes, panel in zip(grid.flat, panels, strict=True):
        for column, value in enumerate(across):
            for line, other in enumerate(up):
                there = [row for row in panel.rows if row[roles.x] == value and _is(row, beside, other)]
                text, color = _cell(there, names, roles, figure)
                axes.add_patch(Rectangle((column - 0.5, line - 0.5), 1, 1, fc=color, ec="white", lw=2))
                axes.text(column, line, text, ha="center", va="center", fontsize=8, color=INK, linespacing=1.35)
        axes.set(
            xlim=(-0.5, len(across) - 0.5), ylim=(-0.5, len(up) - 0.5), xticks=range(len(across)),
            xticklabels=[str(value) for value in across], yticks=range(len(up)) if beside else [],
        )  # fmt: skip
        if beside:
            axes.set_yticklabels([str(value) for value in up])
            axes.set_ylabel(beside, fontsize=9, color=INK)
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0, labelsize=8, labelcolor=INK)
        axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
    best = "highest" if figure.more_is_better else "least"
    drawn.suptitle(
        f"{best} {figure.title}, and by how much the next is behind", x=0.01, ha="left", fontsize=10, color=INK
    )
    drawn.supxlabel(roles.x, fontsize=9, color=INK)


def _cell(rows: Sequence[Row], names: Sequence[str], roles: Roles, figure: Figure) -> tuple[str, str]:
    """Return a cell's text and colour; what is over its memory wins nothing."""
    ran = [row for row in rows if figure.of(row) is not None]
    fitting = [row for row in ran if row.get("fits") is not False]
    if not fitting:
        return "none fits" if ran else "-", _NONE
    known = [(value, str(row[str(roles.lines)])) for row in fitting if (value := figure.of(row)) is not None]
    short = told_apart(names, _LONGEST)
    known.sort(key=lambda each: -each[0] if figure.more_is_better else each[0])
    best, winner = known[0]
    tied = [name for value, name in known if value == best]
    if len(tied) > 1:
        return "\n".join(["tie", *(short[name] for name in tied[:2])]) if len(
            tied
        ) == 2 else f"tie of {len(tied)}", _TIE  # noqa: PLR2004 - two names fit
    color = _paler(CYCLE[names.index(winner) % len(CYCLE)])
    if len(known) == 1:
        return f"{short[winner]}\nalone", color
    return f"{short[winner]}\n{_margin(best, known[1][0])}", color


def _margin(best: float, second: float) -> str:
    if not best:
        return ""
    percent = 100 * abs(second / best - 1)
    return f"{percent:.2g} %" if percent < 10 else f"{percent:.0f} %"  # noqa: PLR2004 - two digits either way


def _paler(color: str) -> str:
    parts = [int(color[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * _PALE):02x}" for part in parts)


def _values(rows: Sequence[Row], key: str | None) -> list[Cell]:
    """Return an axis's values: numbers from small to large, else in the order of the sweep."""
    if key is None:
        return [None]
    values = list(dict.fromkeys(row[key] for row in rows))
    numbers = [number_of(value) for value in values]
    if any(number is None for number in numbers):
        return values
    return sorted(values, key=lambda value: number_of(value) or 0.0)


def _is(row: Row, key: str | None, value: Cell) -> bool:
    return key is None or row[key] == value
