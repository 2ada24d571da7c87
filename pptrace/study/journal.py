"""The journal of a sweep: finished rows in an SQLite database, until the tables are written."""

from __future__ import annotations

import json
import sqlite3
import warnings
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pptrace.errors import OutputError

if TYPE_CHECKING:
    from types import TracebackType

    from pptrace.study.row import Row

__all__ = ["Journal", "journal_path"]

_ROWS = "CREATE TABLE finished (content BLOB, digest BLOB)"
_FRESH = "CREATE TABLE fresh (unused)"
"""Marks the journal of a fresh sweep."""
_OUTSIDE = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
"""SQLite's errors that have other causes than a damaged database."""


def journal_path(output: str | Path) -> Path:
    """Return where the journal of a sweep with this first output is.

    >>> str(journal_path("out/results.csv"))
    'out/results.csv.journal'
    """
    return Path(f"{output}.journal")


class Journal:
    """An open journal; no other process can open it at the same time.

    A row whose checksum differs is dropped, and so is content that is no row. A database that is damaged as a
    whole is replaced, with a warning.
    """

    rows: list[Row]
    """The rows that earlier starts of the sweep finished."""
    fresh: bool
    """Whether the sweep replaces the tables that were there, so that their rows do not count."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Open a journal, or create it.

        Args:
            path: the database.
            fresh: whether the rows in it and in the tables do not count.

        Raises:
            OutputError: another process has it open, or it cannot be read or written.
        """
        self.path = path
        try:
            path.open("ab").close()  # the system's reason says more than SQLite's
            try:
                self._open(fresh=fresh)
            except sqlite3.Error as error:
                if _code(error) in _OUTSIDE:
                    raise
                message = f"{path}: is damaged and replaced: its rows run again"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
                path.unlink()
                self._open(fresh=fresh)
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error
        self._is_empty = not self.rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the journal and keep it, since the tables may fail to be written; one without rows is removed."""
        self._database.close()
        if self._is_empty:
            self.path.unlink(missing_ok=True)

    def append(self, row: Row) -> None:
        """Write a row in a transaction of its own.

        Raises:
            OutputError: it cannot be written.
        """
        content = _content(row)
        try:
            self._database.execute("INSERT INTO finished VALUES (?, ?)", (content, _digest(content)))
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self._is_empty = False

    def _open(self, *, fresh: bool) -> None:
        self._database = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        try:
            self._read(fresh=fresh)
        except BaseException:
            self._database.close()
            raise

    def _read(self, *, fresh: bool) -> None:
        """Take the database for this process alone, check its structure and read its rows."""
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = NORMAL")
        tables = {sql for (sql,) in execute("SELECT sql FROM sqlite_master")}
        if not tables <= {_ROWS, _FRESH} or execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError
        if _ROWS not in tables:
            execute(_ROWS)
        if fresh:
            execute("DELETE FROM finished")
        if fresh and _FRESH not in tables:
            execute(_FRESH)
        self.fresh = fresh or _FRESH in tables
        entries = execute("SELECT CAST(content AS BLOB), CAST(digest AS BLOB) FROM finished")
        found = (_row(content) for content, digest in entries if _digest(content or b"") == digest)
        self.rows = [row for row in found if row is not None]

    def _failed(self, error: sqlite3.Error | OSError) -> OutputError:
        if isinstance(error, sqlite3.Error) and _code(error) == sqlite3.SQLITE_BUSY:
            return OutputError(
                "another sweep is writing here: wait for it, or name another file with -o", file=self.path
            )
        return OutputError(f"cannot be written: {getattr(error, 'strerror', '') or error}", file=self.path)


def _row(content: bytes) -> Row | None:
    """Return the row that :meth:`Journal.append` wrote as this content; None where it wrote no such content."""
    try:
        row = json.loads(content)
        _content(row)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("point"), str) else None


def _content(row: Row) -> bytes:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _digest(content: bytes) -> bytes:
    return sha256(content).digest()


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary error code; errors that Python's module finds itself have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
