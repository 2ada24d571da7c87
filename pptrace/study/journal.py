"""The journal of a sweep: every row that is finished, written at once, until the tables are."""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pptrace.errors import OutputError

if TYPE_CHECKING:
    from types import TracebackType

    from pptrace.study.row import Row

__all__ = ["Journal", "JournalContent", "journal_path", "read_journal"]

_HEADER = b'{"pptrace-sweep":1}\n'
_FRESH = b'{"pptrace-sweep":1,"fresh":true}\n'
_SYNC_EVERY_S = 5.0


def journal_path(output: str | Path) -> Path:
    """Return where the journal of a sweep with this first output is.

    >>> str(journal_path("out/results.csv"))
    'out/results.csv.journal'
    """
    return Path(f"{output}.journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContent:
    """What a journal holds."""

    rows: list[Row]
    """Finished rows, up to the first that is torn."""
    fresh: bool
    """Whether the sweep replaces the tables that were there, so that their rows do not count."""
    size: int
    """Bytes up to the torn end."""


def read_journal(path: Path) -> JournalContent:
    """Read a journal; the sweep may have ended at any byte of it.

    Raises:
        OutputError: the file is something else.
    """
    try:
        return _content_of(path, path.read_bytes())
    except OSError as error:
        raise OutputError(f"cannot be read: {error.strerror}", file=path) from error


class Journal:
    """A journal that is being written, behind what an earlier start wrote unless ``fresh``."""

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        self.path = path
        self._rows = 0
        self._synced_s = time.monotonic()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _failed(path, error) from error
        try:
            self._begin(fresh=fresh)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Keep what is there, for the tables may fail to be written; a journal without a row goes."""
        with suppress(OSError):
            os.fsync(self._file)
        if not self._rows:
            self.path.unlink(missing_ok=True)
        os.close(self._file)

    def append(self, row: Row) -> None:
        """Write a row whole, and every few seconds to the disk itself.

        Raises:
            OutputError: it cannot be written.
        """
        line = json.dumps(row, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        self._write(f"{line}\n".encode())
        self._rows += 1
        now = time.monotonic()
        if now - self._synced_s > _SYNC_EVERY_S:
            os.fsync(self._file)
            self._synced_s = now

    def _begin(self, *, fresh: bool) -> None:
        """Take the file for this process alone, drop a torn end, and go on behind it."""
        try:
            # A lock of the process, not of the open file, so that workers forked from it do not hold it.
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = "another sweep is writing here: wait for it, or name another file with -o"
            raise OutputError(message, file=self.path) from error
        noted = _content_of(self.path, os.pread(self._file, os.fstat(self._file).st_size, 0))
        size = 0 if fresh else noted.size
        self._rows = 0 if fresh else len(noted.rows)
        os.ftruncate(self._file, size)
        os.lseek(self._file, size, os.SEEK_SET)
        if not size:
            self._write(_FRESH if fresh else _HEADER)

    def _write(self, line: bytes) -> None:
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except OSError as error:
            raise _failed(self.path, error) from error


def _content_of(path: Path, content: bytes) -> JournalContent:
    header = next((each for each in (_HEADER, _FRESH) if content.startswith(each)), b"")
    if not header and not any(each.startswith(content) for each in (_HEADER, _FRESH)):
        raise OutputError("is no journal of pptrace sweep: move it away, or name another file with -o", file=path)
    rows: list[Row] = []
    size = len(header)
    while size:
        end = content.find(b"\n", size)
        row = _row(content[size:end]) if end >= 0 else None
        if row is None:
            break
        rows.append(row)
        size = end + 1
    return JournalContent(rows=rows, fresh=header == _FRESH, size=size)


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.get("point") else None


def _failed(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot be written: {error.strerror or error}", file=path)
