"""Rows that an earlier start of a sweep finished, where they are of this very configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.experiment import ScheduleChoice
from pptrace.config.places import key_text
from pptrace.errors import OutputError, PptraceError
from pptrace.experiment.prepare import prepare
from pptrace.study.basis import Basis
from pptrace.study.journal import journal_path, read_journal
from pptrace.study.point import inputs_of
from pptrace.study.results import TABLES, is_input, read_table
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.hooks.registry import Registry
    from pptrace.study.grid import Grid, Point
    from pptrace.study.row import Row

__all__ = ["earlier_rows"]

_ADVICE = "name another file with -o, or replace it with --fresh"
_DERIVED = ("derived", "table ", "schedule ", "cluster")
"""How origins of values begin that follow from other keys, swept ones among them."""


def earlier_rows(grid: Grid, registry: Registry, outputs: Sequence[Path]) -> dict[str, Row]:
    """Return finished rows by their point, from the tables among a sweep's outputs and from journals beside them.

    Rows of failed points are left out, so that these are tried again.

    Raises:
        OutputError: a file is no sweep's, or one of another configuration or of other versions.
    """
    journals = {path: read_journal(path) for path in map(journal_path, outputs) if path.exists()}
    rows = {path: noted.rows for path, noted in journals.items()}
    if not any(noted.fresh for noted in journals.values()):
        tables = [path for path in outputs if path.suffix.lower() in TABLES and path.exists()]
        rows = {path: read_table(path) for path in tables} | rows
    found: dict[str, Row] = {}
    for path, there in rows.items():
        found |= _checked(grid, registry, path, there)
    return found


def _checked(grid: Grid, registry: Registry, path: Path, rows: Sequence[Row]) -> dict[str, Row]:
    versions = {provider.distribution: provider.version for provider in registry.providers}
    by_place = {_cells(point): point for point in grid.points}
    for row in rows:
        if row["configuration"] != grid.configuration:
            raise _foreign(path, _difference(grid, registry, row))
        if row.get("pptrace") != __version__:
            raise _foreign(path, f"it is from pptrace {row.get('pptrace')}, and this is {__version__}")
        for plugin in filter(None, str(row.get("plugins") or "").split(", ")):
            name, _, version = plugin.partition(" ")
            if versions.get(name) != version:
                raise _foreign(path, f"it is from {plugin}, and {_now(name, versions.get(name))}")
        point = by_place.get(tuple(str(row.get(key)) for key in grid.keys))
        if point is not None and point.identity != row["point"] and _is_file(row.get("schedule.name")):
            raise _foreign(path, f"{row['schedule.name']} was another file then")
    return {str(row["point"]): row for row in rows if not row.get("error")}


def _is_file(schedule: object) -> bool:
    return bool(schedule) and ScheduleChoice(name=str(schedule)).kind != "plugin"


def _now(name: str, version: str | None) -> str:
    return f"this is {version}" if version else f"{name} takes no part now"


def _foreign(path: Path, reason: str) -> OutputError:
    return OutputError(f"is from another configuration: {reason}; {_ADVICE}", file=path)


def _difference(grid: Grid, registry: Registry, row: Row) -> str:
    """Say in which key a row's configuration differs from this one's."""
    then, now = sorted(str(row.get("over") or "").split(", ")), sorted(grid.keys)
    if then != now:
        return f"it was swept over {', '.join(then)}, and this is over {', '.join(now)}"
    cells = tuple(str(row.get(key)) for key in grid.keys)
    same = [point for point in grid.points if _cells(point) == cells]
    for key, value, derived in _inputs(grid, registry, (same or grid.points)[0]):
        if (same or not derived) and str(row.get(key)) != str(value):
            return f"{key} was {_shown(row.get(key))} and is {_shown(value)}"
    return "its keys are written in other words"


def _inputs(grid: Grid, registry: Registry, point: Point) -> list[tuple[str, object, bool]]:
    """Return a point's keys that are not swept, with their values and whether they follow from others."""
    base = grid.base
    basis = Basis(file=base.document, sets=base.sets, flags=base.flags, registry=registry)
    try:
        resolved = prepare(basis.resolve(point.entry), registry).resolved
    except PptraceError:
        resolved = basis.resolve(point.entry)
    swept = {key_text(path) for axis in grid.axes for path in axis.paths}
    return [
        (key, value, resolved.origin(key).startswith(_DERIVED))
        for key, value in inputs_of(resolved).items()
        if is_input(key) and key not in swept
    ]


def _cells(point: Point) -> tuple[str, ...]:
    return tuple(str(value.cell) for value in point.values)


def _shown(value: object) -> str:
    return "absent" if value is None else str(value)
