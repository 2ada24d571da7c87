"""A file's bytes, unpacked where it is a gzip file, which may not unfold without end."""

from __future__ import annotations

import gzip
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pptrace.plugin import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader
    from pathlib import Path

__all__ = ["UnpackedFile", "open_unpacked"]

MOST_RATIO, RATIO_FROM = 300, 256 << 20
"""How far a file may unfold, and from which size on that is looked at; traces unfold 10 to 40 times."""


class UnpackedFile:
    """The bytes, one part after another."""

    def __init__(self, path: Path, raw: BufferedReader) -> None:
        """Take an open file, at its beginning."""
        self._path, self._raw = path, raw
        self._packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        self._file = gzip.GzipFile(fileobj=raw) if self._packed else raw
        self.size = 0
        """Bytes that were read."""

    def read(self, most: int) -> bytes:
        """Return the next bytes, none at the end.

        Raises:
            TraceError: it unfolds without end.
            OSError, EOFError, zlib.error: it cannot be read or unpacked, as :func:`open_unpacked` says.
        """
        return self._counted(self._file.read(most))

    def readline(self, most: int) -> bytes:
        """Return the next line, or its first bytes; raises what :meth:`read` does."""
        return self._counted(self._file.readline(most))

    def _counted(self, part: bytes) -> bytes:
        self.size += len(part)
        if self._packed and self.size > max(RATIO_FROM, MOST_RATIO * self._raw.tell()):
            message = f"unfolds more than {MOST_RATIO} times: unpack it first if it really is a trace"
            raise TraceError(message, file=self._path)
        return part


@contextmanager
def open_unpacked(path: Path) -> Iterator[UnpackedFile]:
    """Open a file, and close it.

    Raises:
        TraceError: it cannot be opened, read or unpacked.
    """
    try:
        with path.open("rb") as raw:
            yield UnpackedFile(path, raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"cannot be unpacked: {error}", file=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", file=path) from None
