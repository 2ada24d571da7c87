"""Run every point of a grid, keep each row the moment it is finished, and make one tidy table of them."""

from __future__ import annotations

import os
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.errors import OutputError
from pptrace.export.output import replace_file
from pptrace.export.picture import check_picture
from pptrace.kernel import COMPILE_FROM
from pptrace.study.executor import ExecutorChoice, choose
from pptrace.study.journal import Journal, journal_path
from pptrace.study.point import run_point
from pptrace.study.pool import run_all
from pptrace.study.results import TABLES, check_table, columns_of, write_table
from pptrace.study.reuse import earlier_rows
from pptrace.study.sweep_plots import Picture, save_picture
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pptrace.hooks.registry import Registry
    from pptrace.study.grid import Base, Grid, Point
    from pptrace.study.row import Cell, Row

__all__ = ["Sweep", "check_outputs", "cores", "end_journals", "sweep"]

_AHEAD = 4
"""Calls per worker that are handed over before one is finished, so that none waits for this process."""

_SIMULATED = 2
"""How often a point's table is simulated at least: with its costs, and for its bubble without messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The table of a sweep."""

    over: tuple[str, ...]
    """The swept keys, which are the first columns."""
    rows: tuple[Row, ...]
    """One per point in grid order, each with every column; what a row has not is None."""
    others: tuple[Row, ...] = ()
    """Rows of the same configuration that were finished before, with values that were not asked for now."""

    @property
    def failed(self) -> tuple[Row, ...]:
        """Return the rows of points that have no figures; ``error`` says why."""
        return tuple(row for row in self.rows if row["error"])

    def save(
        self, *targets: str | Path, plot: str = "lines", x: str | None = None, y: str | Sequence[str] = "step_ns"
    ) -> list[Path]:
        """Write tables (.csv, .parquet), then pictures (.png, .svg, .pdf).

        Args:
            targets: files; the suffix says what.
            plot: ``lines``, ``winners`` or ``difference``.
            x: the key along the horizontal axis; the first with numbers by default.
            y: the figure that is drawn, or several of one unit.

        Raises:
            OutputError: a file that cannot be written.
            PptraceError: pictures that these axes do not give, or a package that is missing.
        """
        paths = [Path(target) for target in targets]
        check_outputs(paths)
        picture = Picture(plot=plot, x=x, y=(y,) if isinstance(y, str) else tuple(y))
        with ExitStack() as pending:
            for path in paths:
                if path.suffix.lower() in TABLES:
                    temporary = pending.enter_context(replace_file(path))
                    rows = [*self.rows, *self.others]
                    write_table(path, temporary, list(rows[0]), rows)
        for path in paths:
            if path.suffix.lower() not in TABLES:
                save_picture(self.over, self.rows, picture, path)
        return paths


def check_outputs(paths: Sequence[Path]) -> None:
    """Refuse, before anything runs, files that could not be written in the end.

    Raises:
        OutputError: two are one file, a folder that is missing, or a suffix that is neither table nor picture.
        PptraceError: a package that is missing.
    """
    for index, path in enumerate(paths):
        if os.path.realpath(path) in map(os.path.realpath, paths[:index]):
            raise OutputError("two outputs are this file; name each file once", file=path)
        if path.suffix.lower() in TABLES:
            check_table(path)
        elif path.suffix.lower() in {".png", ".svg", ".pdf"}:
            check_picture(path)
        else:
            known = ".csv or .parquet for tables, .png, .svg or .pdf for pictures"
            raise OutputError(f"no such format; write {known}", file=path)
        _check_writable(path)


def sweep(
    grid: Grid,
    registry: Registry,
    *,
    executor: str | Mapping[str, Any] = "processes",
    workers: int = 0,
    outputs: Sequence[Path] = (),
    fresh: bool = False,
    shares_registry: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Run the points of a grid that no earlier start has finished.

    Args:
        grid: the points.
        registry: the plugins.
        executor: the name of an executor that a plugin offers, with options as :func:`choose` reads them.
        workers: how many points run at once; 0 for as many as this machine has cores.
        outputs: the files that the sweep is for. Finished rows in them are taken over, and each new one is noted
            in the journal beside the first; who writes the files then ends it with :func:`end_journals`.
        fresh: take over no finished row.
        shares_registry: whether ``registry`` is one of the caller's own making, which other processes do not have.
        progress: told how many points are finished, and of how many.

    Raises:
        OutputError: an output is no sweep's, or one of another configuration, or the journal cannot be written.
        PluginError: no plugin offers the executor.
        ConfigError: a registry of the caller's own with an executor that would not have it, or one of its options.
    """
    chosen = choose(executor, registry, workers or cores())
    chosen.check_registry(shared=shares_registry)
    rows = {} if fresh else earlier_rows(grid, registry, outputs)
    missing = [point for point in grid.points if point.identity not in rows]
    done = len(grid.points) - len(missing)
    report = progress or _no_progress
    report(done, len(grid.points))
    with Journal(journal_path(outputs[0]), fresh=fresh) if outputs and missing else nullcontext() as journal:
        for point, found in _run(grid, missing, registry, chosen):
            row = rows[point.identity] = _labelled(grid, point, found)
            if journal is not None and not row.get("error"):
                journal.append(row)
            done += 1
            report(done, len(grid.points))
    own = [rows.pop(point.identity) for point in grid.points]
    tidied = _rows_of_all_columns(grid.keys, [*own, *rows.values()])
    return Sweep(over=grid.keys, rows=tuple(tidied[: len(own)]), others=tuple(tidied[len(own) :]))


def end_journals(outputs: Sequence[Path]) -> None:
    """Remove the journals beside outputs that are written."""
    for path in map(journal_path, outputs):
        path.unlink(missing_ok=True)


def _run(
    grid: Grid, points: Sequence[Point], registry: Registry, chosen: ExecutorChoice
) -> Iterator[tuple[Point, Row]]:
    """Yield points with their rows as they finish; large ones begin first, so that no worker is left with one."""
    rows = _SIMULATED * sum(point.actions for point in points)
    own = registry if chosen.in_process else None
    call = partial(_call, grid.base, registry=own, rows=rows)
    waiting = sorted(points, key=lambda point: -point.actions)
    if rows >= COMPILE_FROM and not chosen.in_process:
        smallest = waiting.pop()  # loads or compiles once, for all workers, before they start
        yield smallest, _call(grid.base, smallest, registry=registry, rows=rows)
    yield from run_all(waiting, call, chosen.start, ahead=_AHEAD * chosen.request.workers)


def _call(base: Base, point: Point, *, registry: Registry | None, rows: int) -> Row:
    if point.refused:
        return {"error": point.refused, "pptrace": __version__}
    return run_point(base, point.entry, registry, rows=rows)


def _labelled(grid: Grid, point: Point, row: Row) -> Row:
    cells = {key: row.get(key, value.cell) for key, value in zip(grid.keys, point.values, strict=True)}
    which: Row = {"configuration": grid.configuration, "point": point.identity, "over": ", ".join(grid.keys)}
    return cells | row | {"pptrace": __version__} | which


def _rows_of_all_columns(axes: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Return rows that all have all columns; a column of integers and other numbers is one of floats."""
    columns = columns_of(axes, rows)
    kinds = {column: {type(row.get(column)) for row in rows} - {type(None)} for column in columns}
    mixed = {column for column, found in kinds.items() if found == {int, float}}
    over: Row = {"over": ", ".join(axes)}

    def cell(row: Row, column: str) -> Cell:
        value = row.get(column)
        return float(value) if column in mixed and isinstance(value, int) else value

    return [{column: cell(row | over, column) for column in columns} for row in rows]


class _WritingTried(Exception):  # noqa: N818 - no error: it undoes what was written to see whether it can be
    pass


def _check_writable(path: Path) -> None:
    with suppress(_WritingTried), replace_file(path) as temporary:
        temporary.touch()
        raise _WritingTried


def _no_progress(done: int, total: int) -> None:
    del done, total


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
