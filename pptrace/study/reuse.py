"""Rows that an earlier start of a sweep finished, where they are of this very configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.places import key_text
from pptrace.errors import OutputError, PptraceError
from pptrace.experiment.prepare import prepare
from pptrace.study.basis import Basis
from pptrace.study.journal import Journal, journal_path
from pptrace.study.point import inputs_of
from pptrace.study.results import ADVICE, TABLES, read_table
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.config.resolve import Resolved
    from pptrace.hooks.registry import Registry
    from pptrace.study.grid import Grid, Point
    from pptrace.study.row import Row

__all__ = ["earlier_rows"]

_DERIVED = ("derived", "table ", "schedule ", "cluster")
"""How origins of values begin that follow from other keys, swept ones among them."""
_WORDS = "its keys are written in other words"


def earlier_rows(grid: Grid, registry: Registry, outputs: Sequence[Path]) -> dict[str, Row]:
    """Return finished rows by their point, from the tables among a sweep's outputs and from journals beside them.

    Rows of failed points are left out, so that these are tried again.

    Raises:
        OutputError: a file is no sweep's, or one of another configuration or of other versions.
    """
    rows: dict[Path, list[Row]] = {}
    fresh = False
    for path in map(journal_path, outputs):
        if path.exists():
            with Journal(path) as journal:
                rows[path] = journal.rows
                fresh |= journal.fresh
    if not fresh:
        tables = [path for path in outputs if path.suffix.lower() in TABLES and path.exists()]
        rows = {path: read_table(path) for path in tables} | rows
    found: dict[str, Row] = {}
    for path, there in rows.items():
        found |= _checked(grid, registry, path, there)
    return found


def _checked(grid: Grid, registry: Registry, path: Path, rows: Sequence[Row]) -> dict[str, Row]:
    versions = {provider.distribution: provider.version for provider in registry.providers}
    by_cells = {_cells(point): point for point in grid.points}
    found: dict[str, Row] = {}
    for row in rows:
        point = by_cells.get(tuple(str(row.get(key)) for key in grid.keys))
        if not row.get("configuration"):
            raise OutputError(f"is the journal of another command: {ADVICE}", file=path)
        if row["configuration"] != grid.configuration:
            raise _foreign(path, _difference(grid, registry, row, point))
        _check_versions(path, row, versions)
        if row.get("error"):
            continue
        if point is not None and point.identity != row["point"]:
            reason = _changed(grid, registry, row, point)
            if reason:
                raise _foreign(path, reason)
            row = row | {"point": point.identity}  # noqa: PLW2901 - the same point in other words
        found[str(row["point"])] = row
    return found


def _check_versions(path: Path, row: Row, versions: Mapping[str, str]) -> None:
    if row.get("pptrace") != __version__:
        raise _foreign(path, f"it is from pptrace {row.get('pptrace')}, and this is {__version__}")
    for plugin in filter(None, str(row.get("plugins") or "").split(", ")):
        name, _, version = plugin.partition(" ")
        if versions.get(name) != version:
            now = f"this is {versions[name]}" if name in versions else f"{name} takes no part now"
            raise _foreign(path, f"it is from {plugin}, and {now}")


def _file_of(identity: object) -> str:
    return str(identity).partition("-")[2]


def _foreign(path: Path, reason: str) -> OutputError:
    return OutputError(f"is from another configuration: {reason}; {ADVICE}", file=path)


def _difference(grid: Grid, registry: Registry, row: Row, point: Point | None) -> str:
    """Say in what a row's configuration differs from this one's; ``point`` has the same values, if any has."""
    then, now = sorted(str(row.get("over") or "").split(", ")), sorted(grid.keys)
    if then != now:
        return f"it was swept over {', '.join(then)}, and this is over {', '.join(now)}"
    if point is not None:
        return _changed(grid, registry, row, point) or _WORDS
    swept = {key_text(path) for axis in grid.axes for path in axis.paths}
    resolved = _resolved(grid, registry, grid.points[0])
    constant = [key for key in inputs_of(resolved) if not resolved.origin(key).startswith(_DERIVED)]
    return _first(row, resolved, [key for key in constant if key not in swept]) or _WORDS


def _changed(grid: Grid, registry: Registry, row: Row, point: Point) -> str:
    """Say in what a row differs from a point with the same values; nothing where it does not."""
    resolved = _resolved(grid, registry, point)
    changed = _first(row, resolved, list(inputs_of(resolved)))
    if not changed and _file_of(row["point"]) != _file_of(point.identity):
        return f"{row.get('schedule.name')} was another file then"
    return changed


def _first(row: Row, resolved: Resolved, keys: Sequence[str]) -> str:
    values = inputs_of(resolved)
    differing = next((key for key in keys if str(row.get(key)) != str(values[key])), None)
    return f"{differing} was {_shown(row.get(differing))} and is {_shown(values[differing])}" if differing else ""


def _resolved(grid: Grid, registry: Registry, point: Point) -> Resolved:
    base = grid.base
    basis = Basis(file=base.document, sets=base.sets, flags=base.flags, registry=registry)
    resolved = basis.resolve(point.entry)
    try:
        return prepare(resolved, registry, loose=not point.entry.sets("parallel.vp")).resolved
    except PptraceError:
        return resolved


def _cells(point: Point) -> tuple[str, ...]:
    return tuple(str(value.cell) for value in point.values)


def _shown(value: object) -> str:
    return "absent" if value is None else str(value)
