"""What a picture of a sweep shows: figures with units, an axis along x, lines, a panel for each other value."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from pptrace.config.flags import key_of
from pptrace.config.quantity import DURATION, FLOPS, RATE, SIZE
from pptrace.errors import ConfigError, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.study.row import Cell, Row

__all__ = ["Figure", "Panel", "Roles", "figure_of", "number_of", "panels_of", "roles_of"]

_SCHEDULES = ("schedule", "schedule.name")
_MOST_PANELS = 24
_MORE_IS_BETTER = {"tokens_per_s", "mfu"}
_TITLES = {
    "step_ns": "step time",
    "formula_bubble": "formula bubble",
    "table_bubble": "table bubble",
    "idle": "simulated idle time",
    "tokens_per_s": "tokens per second",
    "mfu": "MFU",
}
_TIME = ((10**9, "s"), (10**6, "ms"), (10**3, "µs"), (1, "ns"))
_SIZE = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A column that is drawn."""

    column: str
    """Its name."""
    title: str
    """As people call it."""
    unit: str
    """As behind numbers; nothing for counts."""
    scale: float
    """How many of the column's units one of these is."""

    @property
    def more_is_better(self) -> bool:
        """Whether the best value is the largest."""
        return self.column in _MORE_IS_BETTER

    def of(self, row: Row) -> float | None:
        """Return a row's value in this unit; None where there is none."""
        value = row.get(self.column)
        return float(value) / self.scale if isinstance(value, int | float) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What each axis of a sweep does in a picture."""

    x: str
    """The axis along x."""
    lines: str | None
    """The axis whose values are lines, or compete for cells; None where x is the only one."""
    panels: tuple[str, ...]
    """The others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One drawing within a picture."""

    title: str
    """The values that it stands for."""
    rows: tuple[Row, ...]
    """What it shows."""


def figure_of(column: str, rows: Sequence[Row]) -> Figure:
    """Return how a column is drawn, in a unit that suits its values.

    Raises:
        ConfigError: no run has a value in the column.
    """
    values = [abs(value) for row in rows if isinstance(value := row.get(column), int | float)]
    if not values:
        raise ConfigError(f"{column}: no run has a value to draw", file="--y")
    title = _TITLES.get(column) or column.removesuffix("_ns").removesuffix("_bytes").replace("_", " ")
    for suffix, units in (("_ns", _TIME), ("_bytes", _SIZE)):
        if column.endswith(suffix):
            scale, unit = next((each for each in units if max(values) >= each[0]), units[-1])
            return Figure(column=column, title=title, unit=unit, scale=scale)
    share = column.startswith("idle") or column.endswith("bubble") or column == "mfu"
    return Figure(column=column, title=title, unit="%" if share else "", scale=0.01 if share else 1)


def roles_of(over: Sequence[str], rows: Sequence[Row], x: str | None, *, numbers: bool) -> Roles:
    """Return what each axis does: schedules are lines, ``x`` or the first axis with numbers lies along x.

    Args:
        over: the axes.
        rows: the runs.
        x: what the user asked for.
        numbers: whether what lies along x has to be numbers.

    Raises:
        ConfigError: no such axis, or none whose values are numbers.
    """
    numeric = [key for key in over if all(number_of(row.get(key)) is not None for row in rows)]
    able = numeric if numbers else [*numeric, *(key for key in over if key not in numeric)]
    if x is not None:
        alike = [key for key in over if x in {key, key_of(key)}]
        if not alike:
            raise ConfigError(f"{x} is no axis of this sweep{nearest(x, over)}", file="--x")
        if alike[0] not in able:
            raise ConfigError(f"the values of {x} are no numbers: draw winners, or take another axis", file="--x")
        chosen = alike[0]
    else:
        free = [key for key in able if key not in _SCHEDULES]
        if not free:
            raise ConfigError("no axis has numbers to draw along: sweep one, such as microbatches", file="--plot")
        chosen = free[0]
    rest = [key for key in over if key != chosen]
    lines = next((key for key in rest if key in _SCHEDULES), rest[0] if rest else None)
    return Roles(x=chosen, lines=lines, panels=tuple(key for key in rest if key != lines))


def panels_of(keys: Sequence[str], rows: Sequence[Row]) -> list[Panel]:
    """Return a panel for each combination of these axes' values, in the order of the sweep.

    Raises:
        ConfigError: more than a page holds.
    """
    values = [list(dict.fromkeys(row[key] for row in rows)) for key in keys]
    panels = []
    for cells in product(*values):
        within = [row for row in rows if all(row[key] == cell for key, cell in zip(keys, cells, strict=True))]
        title = ", ".join(f"{key} {cell}" for key, cell in zip(keys, cells, strict=True))
        panels += [Panel(title=title, rows=tuple(within))] * bool(within)
    if len(panels) > _MOST_PANELS:
        what = " x ".join(keys)
        message = f"{len(panels)} panels for {what}; the most is {_MOST_PANELS}: sweep fewer values for a picture"
        raise ConfigError(message, file="--plot")
    return panels


def number_of(cell: Cell) -> float | None:
    """Return the number that a cell stands for, in base units; None where it is none.

    >>> number_of("50 GB/s"), number_of(8), number_of("1f1b")
    (50000000000.0, 8.0, None)
    """
    if isinstance(cell, bool) or cell is None:
        return None
    if isinstance(cell, int | float):
        return float(cell)
    for dimension in (RATE, SIZE, DURATION, FLOPS):
        try:
            return float(dimension.parse(cell))
        except ConfigError:
            continue
    return None
