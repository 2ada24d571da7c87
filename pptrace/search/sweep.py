"""Sweeps over axes, their reuse of rows, their text, and their tables as CSV and Parquet."""

from __future__ import annotations

import csv
import re
from collections import Counter
from contextlib import ExitStack, suppress
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel

from pptrace.config.flags import names_arguments
from pptrace.config.places import key_text
from pptrace.config.quantities import DURATION, SIZE
from pptrace.config.schema import Experiment
from pptrace.errors import OutputError, PptraceError
from pptrace.files import check_distinct, replace_file
from pptrace.report.charts import check_picture
from pptrace.report.document import Column, Document, Printed, Section, table_of
from pptrace.report.numbers import unique_names
from pptrace.run.preparation import prepare
from pptrace.sanitize import csv_text, csv_written
from pptrace.search.ranking import share_text
from pptrace.search.runner import Journal, Runner, choose, inputs_of, journal_path, run_point
from pptrace.search.sweep_charts import Picture, save_picture
from pptrace.version import __version__
from pptrace_kernel import COMPILE_FROM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pptrace.config.resolution import Resolved
    from pptrace.plugins.registry import Registry
    from pptrace.run.figures import Cell, Row
    from pptrace.search.basis import BaseConfiguration
    from pptrace.search.grid import Grid, Point

PICTURES = (".png", ".svg", ".pdf")
"""Suffixes of pictures."""

_SIMULATED = 2
"""Simulations per point: with its costs, and without messages for its bubble."""


class Sweep(Printed, Struct, frozen=True, kw_only=True):
    """The table of a sweep; prints as the output of the command line."""

    over: tuple[str, ...]
    """The swept keys, which are the first columns."""
    rows: tuple[Row, ...]
    """One per point in grid order, with all columns; missing values are None."""
    others: tuple[Row, ...] = ()
    """Earlier rows of the same configuration with values that are not requested."""

    @property
    def failed(self) -> tuple[Row, ...]:
        """Return the rows of points without figures; ``error`` has the reason."""
        return tuple(row for row in self.rows if row["error"])

    def document(self) -> Document:
        """Return a table with a row per point, and the messages of failed points."""
        table = rows_document(self)
        return replace(table, sections=failures_document(self).sections) if self.failed else table

    def to_dict(self) -> dict[str, Any]:
        """Return the swept keys and all rows as plain JSON values."""
        return {"over": list(self.over), "rows": [dict(row) for row in self.rows]}

    @names_arguments
    def save(
        self, *targets: str | Path, plot: str = "lines", x: str | None = None, y: str | Sequence[str] = "step_ns"
    ) -> list[Path]:
        """Write tables (.csv, .parquet), then pictures (.png, .svg, .pdf).

        Args:
            targets: files; the suffix determines the format.
            plot: ``lines``, ``winners`` or ``difference``.
            x: the key along the horizontal axis; the first with numbers by default.
            y: the figure that is drawn, or several of one unit.

        Raises:
            OutputError: a file cannot be written.
            PptraceError: the axes do not allow this picture, or a package is missing.
        """
        paths = [Path(target) for target in targets]
        check_outputs(paths)
        self.write(paths, Picture(plot=plot, x=x, y=(y,) if isinstance(y, str) else tuple(y)))
        return paths

    def write(self, paths: Sequence[Path], picture: Picture) -> None:
        """Write tables (.csv, .parquet), then pictures (.png, .svg, .pdf), as :meth:`save`."""
        with ExitStack() as pending:
            for path in paths:
                if path.suffix.lower() in TABLES:
                    temporary = pending.enter_context(replace_file(path))
                    rows = [*self.rows, *self.others]
                    write_table(path, temporary, list(rows[0]), rows)
        for path in paths:
            if path.suffix.lower() not in TABLES:
                save_picture(self.over, self.rows, picture, path)


_KNOWN = ".csv or .parquet for tables, .png, .svg or .pdf for pictures"


def check_outputs(paths: Sequence[Path], other_suffixes: tuple[str, ...] = (), known: str = _KNOWN) -> None:
    """Check the output files before anything runs.

    They are tables, pictures, or have one of the other suffixes; ``known`` has all suffixes in words.

    Raises:
        OutputError: two outputs are one file, a folder is missing, or a suffix is unknown.
        PptraceError: a package is missing.
    """
    check_distinct(paths)
    for path in paths:
        suffix = path.suffix.lower()
        if suffix == ".parquet":
            _pyarrow(path)
        elif suffix in PICTURES:
            check_picture(path)
        elif suffix not in (*TABLES, *other_suffixes):
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
    """Simulate the points of a grid without finished rows; the arguments are those of the API.

    Finished rows of the outputs are reused, and the journal next to the first one stores new rows. After writing
    the files, the caller removes it by :func:`end_journals`. Other processes do not have a shared registry.

    Raises:
        OutputError: an output of another kind or configuration, or a journal that cannot be written.
        PluginError: no plugin offers the executor.
        ConfigError: a caller's registry with an executor in other processes, or an invalid option.
    """
    chosen = choose(executor, registry, workers, shared=shares_registry)
    rows = {} if fresh else earlier_rows(grid, registry, outputs)
    missing = [point for point in grid.points if point.identity not in rows]
    done = len(grid.points) - len(missing)
    report = progress or (lambda _done, _total: None)
    report(done, len(grid.points))
    journal = journal_path(outputs[0]) if outputs and missing else None
    with Runner(registry, chosen, journal, fresh=fresh) as runner:
        for key, row in _run(grid, missing, runner):
            rows[key] = row
            done += 1
            report(done, len(grid.points))
    requested = [rows.pop(point.identity) for point in grid.points]
    all_rows = _rows_of_all_columns(grid.keys, [*requested, *rows.values()])
    return Sweep(over=grid.keys, rows=tuple(all_rows[: len(requested)]), others=tuple(all_rows[len(requested) :]))


def end_journals(outputs: Sequence[Path]) -> None:
    """Remove the journals of written outputs."""
    for path in map(journal_path, outputs):
        path.unlink(missing_ok=True)


def _run(grid: Grid, points: Sequence[Point], runner: Runner) -> Iterator[tuple[str, Row]]:
    """Yield the keys of points with their rows; large points start first, to balance the load."""
    actions = _SIMULATED * sum(point.actions for point in points)
    items = {point.identity: point for point in sorted(points, key=lambda point: -point.actions)}
    common: Row = {
        "pptrace": __version__, "configuration": grid.configuration, "over": ", ".join(grid.keys),
    }  # fmt: skip
    labels = {
        point.identity: cells | common for point, cells in zip(grid.points, grid.cells(), strict=True)
    }  # fmt: skip
    call = partial(_run_point, base=grid.base, actions=actions)
    warms = actions >= COMPILE_FROM and not runner.chosen.in_process
    return runner.run(items, call, labels, warms=warms)


def _run_point(point: Point, *, base: BaseConfiguration, actions: int, registry: Registry | None) -> Row:
    return (
        {"error": point.refused}
        if point.refused
        else run_point(point.entry, base=base, registry=registry, actions=actions)
    )


def _rows_of_all_columns(axes: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Return rows with all columns; a column of integers and floats becomes a column of floats."""
    columns = columns_of(axes, rows)
    empty: Row = dict.fromkeys(columns)
    axes_cell: Row = {"over": ", ".join(axes)}
    table = [empty | row | axes_cell for row in rows]
    for column in columns:
        if {*map(type, map(itemgetter(column), table))} - {type(None)} == {int, float}:
            for row in table:
                value = row[column]
                row[column] = float(value) if isinstance(value, int) else value
    return table


class _DiscardFile(Exception):  # noqa: N818 - no error: it discards the file of a check
    pass


def _check_writable(path: Path) -> None:
    with suppress(_DiscardFile), replace_file(path) as temporary:
        temporary.touch()
        raise _DiscardFile


_DERIVED = ("derived", "table ", "schedule ", "cluster")
"""Prefixes of the origins of values that follow from other keys, which may be swept."""
_WORDS = "its keys are written in other words"


def earlier_rows(grid: Grid, registry: Registry, outputs: Sequence[Path]) -> dict[str, Row]:
    """Return finished rows by point, from the tables of a sweep's outputs and from their journals.

    Rows of failed points are omitted, so these points are simulated again. A table of only such rows is replaced.

    Raises:
        OutputError: a file is not of a sweep, or is of another configuration or other versions.
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
    finished: dict[str, Row] = {}
    for path, file_rows in rows.items():
        finished |= _check_rows(grid, registry, path, file_rows)
    return finished


def _check_rows(grid: Grid, registry: Registry, path: Path, rows: Sequence[Row]) -> dict[str, Row]:
    versions = {provider.distribution: provider.version for provider in registry.providers}
    by_cells = {tuple(str(value.cell) for value in point.values): point for point in grid.points}
    finished: dict[str, Row] = {}
    for row in rows:
        point = by_cells.get(tuple(str(row.get(key)) for key in grid.keys))
        if not row.get("configuration"):
            raise OutputError(f"is the journal of another command: {ADVICE}", file=path)
        if row.get("error"):
            continue
        if row["configuration"] != grid.configuration:
            raise _foreign(path, _difference(grid, registry, row, point))
        _check_versions(path, row, versions)
        if point is not None and point.identity != row["point"]:
            reason = _changed(grid, registry, row, point)
            if reason:
                raise _foreign(path, reason)
            row = row | {"point": point.identity}  # noqa: PLW2901 - the same point with other spellings
        finished[str(row["point"])] = row
    return finished


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
    """Return the difference of a row's configuration; ``point`` is the point with the same values, if any."""
    then, now = sorted(str(row.get("over") or "").split(", ")), sorted(grid.keys)
    if then != now:
        return f"it was swept over {', '.join(then)}, and this is over {', '.join(now)}"
    if point is not None:
        return _changed(grid, registry, row, point) or _WORDS
    swept = {key_text(path) for axis in grid.axes for path in axis.paths}
    resolved = _resolved(grid, registry, grid.points[0])
    constant = [key for key in inputs_of(resolved) if not resolved.origin(key).startswith(_DERIVED)]
    return _first_difference(row, resolved, [key for key in constant if key not in swept]) or _WORDS


def _changed(grid: Grid, registry: Registry, row: Row, point: Point) -> str:
    """Return the difference of a row from a point with the same values; empty if there is none."""
    resolved = _resolved(grid, registry, point)
    changed = _first_difference(row, resolved, list(inputs_of(resolved)))
    if not changed and _file_of(row["point"]) != _file_of(point.identity):
        return f"{row.get('schedule.name')} was another file then"
    return changed


def _first_difference(row: Row, resolved: Resolved, keys: Sequence[str]) -> str:
    values = inputs_of(resolved)
    for key in keys:
        then, now = ("absent" if value is None else str(value) for value in (row.get(key), values[key]))
        if then != now:
            return f"{key} was {then} and is {now}"
    return ""


def _resolved(grid: Grid, registry: Registry, point: Point) -> Resolved:
    resolved = grid.base.resolve(point.entry)
    try:
        return prepare(resolved, registry, may_drop_chunks=not point.entry.sets("parallel.vp")).resolved
    except PptraceError:
        return resolved


_MOST_ROWS = 100
_MOST_MESSAGES = 20
_LONGEST = 60


def rows_document(sweep: Sweep) -> Document:
    """Return a row per point with its values of the axes and its main figures."""
    rows = [(row, _brief(str(row["error"] or ""))) for row in sweep.rows[:_MOST_ROWS]]
    omitted = len(sweep.rows) - _MOST_ROWS
    more = [f"and {omitted:,} more: write them with -o results.csv"] if omitted > 0 else []
    return Document(title="sweep", lead=[table_of(_columns(sweep), rows, len(sweep.over)), *more])


def _columns(sweep: Sweep) -> list[Column]:
    """Return the columns: axes, GPUs if they differ, figures, and rates if they are known."""

    def axis(key: str) -> Column:
        names = unique_names([str(row[key]) for row in sweep.rows], _LONGEST)
        return Column(key, (key,), lambda value: names[str(value)], is_words=True)

    def is_known(key: str) -> bool:
        return any(row.get(key) is not None for row in sweep.rows)

    return [
        *map(axis, sweep.over),
        Column("GPUs", ("gpus",), _count, len({row.get("gpus") for row in sweep.rows if not row["error"]}) > 1),
        Column("step", ("step_ns",), DURATION.rounded),
        Column("formula", ("formula_bubble",), share_text),
        Column("table", ("table_bubble",), share_text),
        Column("idle", ("idle",), share_text),
        Column(
            "memory", ("peak_memory_bytes", "fits"),
            lambda size, fits: f"{SIZE.rounded(size)}{' !' if fits is False else ''}",
        ),
        Column("tok/s/GPU", ("tokens_per_s_per_gpu",), _count, is_known("tokens_per_s_per_gpu")),
        Column("MFU", ("mfu",), share_text, is_known("mfu")),
    ]  # fmt: skip


def _count(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def failures_document(sweep: Sweep) -> Document:
    """Return each error message once with its points."""
    groups: dict[str, list[Row]] = {}
    for row in sweep.failed:
        groups.setdefault(str(row["error"]), []).append(row)
    lines = []
    for message, rows in list(groups.items())[:_MOST_MESSAGES]:
        first = " ".join(f"{key}={rows[0][key]}" for key in sweep.over)
        more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        lines.append(f"{first}{more}: {message}")
    omitted = len(groups) - _MOST_MESSAGES
    lines += [f"and {omitted:,} more messages, in the column error"] * (omitted > 0)
    title = f"{len(sweep.failed):,} of {len(sweep.rows):,} points failed:"
    return Document(title="failed points", lead=(), sections=(Section(title=title, blocks=tuple(lines)),))


def _brief(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


IDENTITY = ("error", "pptrace", "plugins", "over", "configuration", "point")
"""The last columns: the error, versions, the swept keys, and digests of configuration and point."""

TABLES = (".csv", ".parquet")
"""Suffixes of tables."""

ADVICE = "name another file with -o, or replace it with --fresh"
"""Advice where the rows of an existing table cannot be reused."""

_INTEGER, _FLOAT = re.compile(r"-?\d+"), re.compile(r"-?\d+(\.\d+)?(e[+-]\d+)?")
_BOOLEANS = {"true": True, "false": False}
_PARQUET = "Parquet needs pyarrow: pip install pyarrow, or name a .csv"


def columns_of(axes: Sequence[str], rows: Iterable[Row]) -> list[str]:
    """Return the columns: axes, inputs in the order of configurations, figures, and :data:`IDENTITY`."""
    seen: Row = {}
    for row in rows:
        seen |= row
    other = [key for key in seen if key not in {*axes, *IDENTITY}]
    inputs = sorted((key for key in other if is_input(key)), key=_place_of_input())
    return [*axes, *inputs, *(key for key in other if not is_input(key)), *IDENTITY]


def is_input(column: str) -> bool:
    """Return whether a column is a key of the configuration, not a figure."""
    return "." in column


def write_table(path: Path, temporary: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows under a temporary name, in the format of ``path``'s suffix; equal rows give equal bytes."""
    if path.suffix.lower() == ".csv":
        # The writer itself writes numbers as :func:`_written` does.
        texts: dict[type, Callable[[Any], str]] = {str: cache(csv_written), bool: _written}
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            for row in rows:
                cells = map(row.get, columns)
                writer.writerow([texts[type(cell)](cell) if type(cell) in texts else cell for cell in cells])
        return
    pa, pq = _pyarrow(path)
    arrays = [_array(pa, column, [row.get(column) for row in rows]) for column in columns]
    pq.write_table(pa.Table.from_arrays(arrays, names=list(columns)), temporary, compression="zstd")


def read_table(path: Path) -> list[Row]:
    """Return the rows of a table that :func:`write_table` wrote, each with every column.

    Raises:
        OutputError: another table, or a repeated column.
    """
    rows = list(_csv_rows(path) if path.suffix.lower() == ".csv" else _parquet_rows(path))
    if not all(row.get("point") and row.get("configuration") for row in rows):
        raise _no_table(path)
    return rows


def _csv_rows(path: Path) -> Iterator[Row]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, restkey="", strict=True)
            names = reader.fieldnames or ()
            if not {*IDENTITY} <= {*names}:
                raise _no_table(path)
            _check_columns(path, names)
            for row in reader:
                if None in row.values() or "" in row:
                    raise _no_table(path)
                yield {key: _read(key, text) for key, text in row.items()}
    except (csv.Error, UnicodeDecodeError):
        raise _no_table(path) from None


def _parquet_rows(path: Path) -> list[Row]:
    pa, pq = _pyarrow(path)
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (pa.ArrowException, OSError):
        raise _no_table(path) from None
    _check_columns(path, table.column_names)
    return cast("list[Row]", table.to_pylist())


def _check_columns(path: Path, names: Sequence[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise OutputError(f"has the column {twice[0]} twice: {ADVICE}", file=path)


def _no_table(path: Path) -> OutputError:
    return OutputError(f"is not a table of pptrace sweep: {ADVICE}", file=path)


def _written(cell: Cell) -> str:
    if isinstance(cell, bool):
        return str(cell).lower()
    return "" if cell is None else repr(cell) if isinstance(cell, float) else str(cell)


def _read(column: str, text: str) -> Cell:
    """Return the value of a text; a number only where writing it gives the same text."""
    text = csv_text(text)
    if column in IDENTITY:
        return text or None
    if _INTEGER.fullmatch(text) and str(int(text)) == text:
        return int(text)
    if _FLOAT.fullmatch(text) and repr(float(text)) == text:
        return float(text)
    return _BOOLEANS.get(text, text or None)


def _array(pa: Any, column: str, cells: list[Cell]) -> Any:
    """Return a typed column: integers, floats and booleans where all cells are, else text."""
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds == {bool}:
        return pa.array(cells, pa.bool_())
    if kinds == {int} or (not kinds and column.endswith(("_ns", "_bytes"))):
        return pa.array(cells, pa.int64())
    if kinds and kinds <= {int, float}:
        return pa.array([None if cell is None else float(cell) for cell in cells], pa.float64())
    if not kinds and not is_input(column) and column not in IDENTITY:
        return pa.array(cells, pa.float64())
    return pa.array([None if cell is None else _written(cell) for cell in cells], pa.string())


def _pyarrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise PptraceError(f"{path}: {_PARQUET}") from error
    return pa, pq


def _place_of_input() -> Any:
    """Return the sort key of input columns: schema order, then options of plugins by name."""
    order = {key: place for place, key in enumerate(_keys(Experiment))}
    sections = {key: place for place, key in enumerate(Experiment.model_fields)}

    def place(key: str) -> tuple[int, int, str]:
        return sections.get(key.partition(".")[0], len(sections)), order.get(key, len(order)), key

    return place


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    fields: Mapping[str, Any] = model.model_fields
    for name, field in fields.items():
        key = f"{prefix}{field.alias or name}"
        parts = (field.annotation, *getattr(field.annotation, "__args__", ()))
        below = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        yield from _keys(below[0], f"{key}.") if below else (key,)
