"""Tidy tables of sweeps as CSV and Parquet: a row per run with axes, inputs and figures."""

from __future__ import annotations

import csv
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel

from pptrace.config.schema import Experiment
from pptrace.errors import OutputError, PptraceError
from pptrace.sanitize import csv_text, csv_written

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pptrace.run.figures import Cell, Row

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
    seen = dict.fromkeys(key for row in rows for key in row)
    other = [key for key in seen if key not in {*axes, *IDENTITY}]
    inputs = sorted((key for key in other if is_input(key)), key=_place_of_input())
    return [*axes, *inputs, *(key for key in other if not is_input(key)), *IDENTITY]


def is_input(column: str) -> bool:
    """Return whether a column is a key of the configuration, not a figure."""
    return "." in column


def check_table(path: Path) -> None:
    """Refuse a file name that is not a table's.

    Raises:
        OutputError: another suffix than .csv or .parquet.
        PptraceError: a Parquet file without pyarrow.
    """
    if path.suffix.lower() not in TABLES:
        raise OutputError(f"a table ends in {' or '.join(TABLES)}", file=path)
    if path.suffix.lower() == ".parquet":
        _pyarrow(path)


def write_table(path: Path, temporary: Path, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Write rows under a temporary name, in the format of ``path``'s suffix; equal rows give equal bytes."""
    if path.suffix.lower() == ".csv":
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows([csv_written(_written(row.get(column))) for column in columns] for row in rows)
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
        below = next(_models(field.annotation), None)
        yield from _keys(below, f"{key}.") if below else (key,)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    parts = (annotation, *getattr(annotation, "__args__", ()))
    return (part for part in parts if isinstance(part, type) and issubclass(part, BaseModel))
