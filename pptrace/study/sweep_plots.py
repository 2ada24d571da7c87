"""Pictures of a sweep: lines over an axis, which schedule wins where, how far the others are from the first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError, nearest
from pptrace.export.picture import CYCLE, INK, MUTED, write_picture
from pptrace.study.plot_data import figure_of, number_of, panels_of, roles_of
from pptrace.study.row import FIGURES
from pptrace.study.winners_plot import draw_winners, winners_size

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.study.plot_data import Figure, Panel, Roles
    from pptrace.study.row import Row

__all__ = ["PLOTS", "Picture", "check_axes", "check_choice", "save_picture"]

PLOTS = ("lines", "winners", "difference")
"""Sorts of pictures."""

_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_MARKERS = "osD^vPX*"
_COLUMNS = 3
_DOUBLING = 6
"""From which ratio of the largest to the smallest x on the axis is logarithmic."""
_DECADES = 50
"""The same of y."""
_MOST_TICKS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What is drawn of a sweep."""

    plot: str = "lines"
    """``lines``, ``winners`` or ``difference``."""
    x: str | None = None
    """The axis along x; the first with numbers unless given."""
    y: tuple[str, ...] = ("step_ns",)
    """Columns of figures; more than one, of one unit, for lines alone."""


def check_choice(picture: Picture) -> None:
    """Refuse what no sweep can be drawn as.

    Raises:
        ConfigError: no such sort of picture, no such figure, or more figures than it shows.
    """
    if picture.plot not in PLOTS:
        raise ConfigError(f"no such picture{nearest(picture.plot, PLOTS)}", file=f"--plot {picture.plot}")
    if not picture.y:
        raise ConfigError("missing: name a figure, such as step_ns", file="--y")
    for column in picture.y:
        if column not in FIGURES:
            raise ConfigError(f"{column}: no such figure{nearest(column, FIGURES)}", file="--y")
    most = len(_DASHES) if picture.plot == "lines" else 1
    if len(picture.y) > most:
        raise ConfigError(f"{len(picture.y)} figures; {picture.plot} show {most} at most", file="--y")


def check_axes(picture: Picture, over: Sequence[str], rows: Sequence[Row]) -> Roles:
    """Refuse axes that give no such picture; ``rows`` may have cells of axes alone.

    Raises:
        ConfigError: nothing to lie along x, nothing to compare, or more panels than a page holds.
    """
    roles = roles_of(over, rows, picture.x, numbers=picture.plot != "winners")
    if picture.plot != "lines" and len(_values(rows, roles.lines)) <= 1:
        raise ConfigError("there is nothing to compare: sweep two schedules or more", file="--plot")
    panels_of(roles.panels[1:] if picture.plot == "winners" else roles.panels, rows)
    return roles


def save_picture(over: Sequence[str], rows: Sequence[Row], picture: Picture, path: Path) -> None:
    """Draw a sweep's rows into a .png, .svg or .pdf file; equal rows give equal bytes.

    Raises:
        ConfigError: these axes or figures give no such picture.
        OutputError: the file cannot be written.
        PptraceError: matplotlib is not installed.
    """
    check_choice(picture)
    rows = [row for row in rows if not row["error"]]
    figures = [figure_of(column, rows) for column in picture.y]
    if len({figure.unit for figure in figures}) > 1:
        units = ", ".join(f"{figure.column} in {figure.unit or 'no unit'}" for figure in figures)
        raise ConfigError(f"figures of one picture have one unit, not {units}", file="--y")
    roles = check_axes(picture, over, rows)
    if picture.plot == "winners":
        beside, *further = roles.panels or (None,)
        panels = panels_of(further, rows)
        size = winners_size(roles.x, beside, rows, len(panels))
        write_picture(path, size, lambda drawn: draw_winners(drawn, roles, beside, figures[0], panels))
        return
    panels = panels_of(roles.panels, rows)
    columns = min(len(panels), _COLUMNS)
    size = 1.4 + 3.9 * max(columns, 1.4), 1.5 + 2.9 * -(-len(panels) // columns)
    draw = _draw_lines if picture.plot == "lines" else _draw_difference
    write_picture(path, size, lambda drawn: draw(drawn, roles, figures, panels))


def _draw_lines(drawn: Any, roles: Roles, figures: Sequence[Figure], panels: Sequence[Panel]) -> None:
    names = _names(panels, roles)
    for axes, panel in zip(_axes(drawn, panels), panels, strict=True):
        for place, name in enumerate(names):
            for figure, dashes in zip(figures, _DASHES, strict=False):
                points = [(_at(row, roles), figure.of(row)) for row in panel.rows if _is(row, roles, name)]
                _plot(axes, points, place, dashes)
        _finish(axes, panel, roles)
    unit = f" [{figures[0].unit}]" if figures[0].unit else ""
    _label(drawn, roles, f"{' and '.join(figure.title for figure in figures)}{unit}")
    values = [value for panel in panels for row in panel.rows for f in figures if (value := f.of(row))]
    if values and min(values) > 0 and max(values) / min(values) >= _DECADES:
        _decades(drawn.axes[0])
    else:
        drawn.axes[0].set_ylim(0, 1.06 * max(values, default=1))
    _legend(drawn, names, figures)


def _draw_difference(drawn: Any, roles: Roles, figures: Sequence[Figure], panels: Sequence[Panel]) -> None:
    names, (figure,) = _names(panels, roles), figures
    for axes, panel in zip(_axes(drawn, panels), panels, strict=True):
        first = {_at(row, roles): figure.of(row) for row in panel.rows if _is(row, roles, names[0])}
        axes.axhline(0, color=CYCLE[0], lw=2)
        for place, name in enumerate(names[1:], 1):
            points = [
                (_at(row, roles), _percent(figure.of(row), first.get(_at(row, roles))))
                for row in panel.rows
                if _is(row, roles, name)
            ]
            _plot(axes, points, place, "-")
        _finish(axes, panel, roles)
    drawn.axes[0].yaxis.set_major_formatter("{x:+g}")
    _label(drawn, roles, f"{figure.title}, difference to {names[0]} [%]")
    _legend(drawn, names, figures, base=True)


def _axes(drawn: Any, panels: Sequence[Panel]) -> list[Any]:
    columns = min(len(panels), _COLUMNS)
    grid = drawn.subplots(-(-len(panels) // columns), columns, sharex=True, sharey=True, squeeze=False)
    for spare in grid.flat[len(panels) :]:
        spare.set_visible(False)
        grid.flat[spare.get_subplotspec().num1 - columns].xaxis.set_tick_params(labelbottom=True)
    return list(grid.flat[: len(panels)])


def _plot(axes: Any, points: Sequence[tuple[float, float | None]], place: int, dashes: Any) -> None:
    """Draw a line; the first ones are wider, so that a line on the same points does not hide them."""
    points = sorted((x, value) for x, value in points if value is not None)
    axes.plot(
        [x for x, _ in points], [value for _, value in points], ls=dashes, zorder=2 + 0.01 * place,
        **_line_style(place),
    )  # fmt: skip


def _line_style(place: int) -> dict[str, Any]:
    color, wide = CYCLE[place % len(CYCLE)], max(3 - place, 0)
    return {
        "color": color, "lw": 1.4 + 0.6 * wide, "marker": _MARKERS[place % len(_MARKERS)],
        "ms": 4.5 + 1.4 * wide, "mfc": "white" if wide else color, "mew": 1.3,
    }  # fmt: skip


def _finish(axes: Any, panel: Panel, roles: Roles) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
    axes.grid(color="#eaeef2", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(labelsize=8, color=MUTED, labelcolor=INK)
    ticks = {_at(row, roles): str(row[roles.x]) for row in panel.rows}
    at = sorted(ticks)
    if at[0] > 0 and at[-1] / at[0] >= _DOUBLING:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
    every = -(-len(at) // _MOST_TICKS)
    shown = at[::-every][::-1]
    axes.set_xticks(shown, [ticks[x] for x in shown])


def _decades(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.minorticks_off()


def _label(drawn: Any, roles: Roles, y: str) -> None:
    drawn.supxlabel(roles.x, fontsize=9, color=INK)
    drawn.supylabel(y, fontsize=9, color=INK)


def _legend(drawn: Any, names: Sequence[str], figures: Sequence[Figure], *, base: bool = False) -> None:
    """Name the lines, the first of them a ``base`` that all others are measured by, and what dashes mean."""
    from matplotlib.lines import Line2D

    handles = []
    if len(names) > 1:
        for place, name in enumerate(names):
            look = {"color": CYCLE[0], "lw": 2} if base and not place else _line_style(place)
            handles.append(Line2D([], [], label=name, **look))
    if len(figures) > 1:
        for figure, dashes in zip(figures, _DASHES, strict=False):
            handles.append(Line2D([], [], color=MUTED, lw=2, ls=dashes, label=figure.title))
    if handles:
        drawn.legend(
            handles=handles, loc="outside upper left", ncols=min(len(handles), 6), fontsize=9, frameon=False
        )


def _names(panels: Sequence[Panel], roles: Roles) -> list[str]:
    return _values([row for panel in panels for row in panel.rows], roles.lines)


def _values(rows: Sequence[Row], key: str | None) -> list[str]:
    return list(dict.fromkeys(str(row[key]) for row in rows)) if key is not None else [""]


def _is(row: Row, roles: Roles, name: str) -> bool:
    return roles.lines is None or str(row[roles.lines]) == name


def _at(row: Row, roles: Roles) -> float:
    return number_of(row[roles.x]) or 0.0


def _percent(value: float | None, first: float | None) -> float | None:
    if value is None or not first:
        return None
    return math.nan if math.isinf(value) else 100 * (value / first - 1)
