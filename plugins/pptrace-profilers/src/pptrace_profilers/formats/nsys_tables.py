"""What tables and columns an export of Nsight Systems has, looked up: both differ from version to version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.plugin import TraceError, check_events

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["Tables"]

_BATCH = 1 << 8
"""Rows between two looks at how many there are, and how long their texts."""
_MOST_TEXT, _LEAST_TEXT = 4, 64 << 20
"""How many times a database's bytes its texts may have together, and what they always may."""
_TEXTS = frozenset({str, bytes})


class Tables:
    """A database's tables by name; columns of other versions are None."""

    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        """Look up what there is.

        Raises:
            TraceError: it is no export of Nsight Systems.
        """
        self._path, self._database, self._read, self._text = path, database, 0, 0
        self._most_text = max(_MOST_TEXT * path.stat().st_size, _LEAST_TEXT)
        # What has no page of its own is made up when it is read, without end if its author wants.
        stored = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        names = [str(name) for (name,) in stored]
        self._columns = {
            name: {str(row[1]) for row in database.execute(f"PRAGMA table_info({_quoted(name)})")}
            for name in names
        }
        if "StringIds" not in self._columns:
            known = ", ".join(sorted(names)[:4]) or "none"
            message = f"has no table StringIds, so is no export of Nsight Systems; its tables: {known}"
            raise TraceError(message, file=path)

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def rows(self, table: str, needed: Sequence[str], wanted: Sequence[str] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield a table's rows; none where there is no such table.

        Args:
            table: its name.
            needed: columns that it must have.
            wanted: columns that are None where it has them not.

        Raises:
            TraceError: a needed column is missing, or all tables have more rows than a trace may have events, or
                more text than their file: a column's default is stored once, and is every row's.
        """
        if table not in self._columns:
            return
        missing = next((column for column in needed if column not in self._columns[table]), None)
        if missing is not None:
            message = f"table {table} has no column {missing}: exported by a version that is not known here"
            raise TraceError(message, file=self._path)
        chosen = [*needed, *(column if column in self._columns[table] else None for column in wanted)]
        columns = ", ".join("NULL" if column is None else _quoted(column) for column in chosen)
        found = self._database.execute(f"SELECT {columns} FROM {_quoted(table)}")  # noqa: S608 - names cannot be bound; quoted
        while part := found.fetchmany(_BATCH):
            self._read += len(part)
            check_events(self._read, self._path)
            self._text += sum([len(value) for row in part for value in row if value.__class__ in _TEXTS])
            if self._text > self._most_text:
                message = f"table {table} has more text than its file: export it again"
                raise TraceError(message, file=self._path)
            yield from part

    def first(self, table: str, column: str) -> int | None:
        """Return a whole number from a table's first row, None where there is none."""
        if column not in self._columns.get(table, set()):
            return None
        row = next(self.rows(table, (column,)), (None,))
        return row[0] if isinstance(row[0], int) else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
