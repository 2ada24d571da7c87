"""Atomic replacement of output files, written in the background and compressed."""

from __future__ import annotations

import errno
import gzip
import os
import secrets
import shutil
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pptrace.errors import OutputError
from pptrace.sanitize import csv_written, printable_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

_LEVEL = 6
_ADVICE = {
    errno.ENOENT: "the folder does not exist; create it first",
    errno.ENOTDIR: "its folder is a file; choose another path",
    errno.EEXIST: "its folder is a file; choose another path",
    errno.EISDIR: "it is a folder; name a file in it",
    errno.EACCES: "permission denied; choose a folder that you may write to",
    errno.EPERM: "permission denied; choose a folder that you may write to",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOSPC: "no space left; free some, or choose another disk",
    errno.EDQUOT: "the disk quota is used up; free some space, or choose another disk",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a path in a temporary folder beside ``path``; what the block writes there replaces ``path``.

    The new file has the mode of the one that it replaces, and a symbolic link stays. Whatever the block raises,
    Ctrl-C included, the temporary folder goes and the old file stays. No other user can read that folder.

    Raises:
        OutputError: the file cannot be written; says why and what to do.
    """
    target = Path(os.path.realpath(path))
    folder = target.with_name(f".pptrace.{secrets.token_hex(4)}.tmp")
    try:
        _check(target)
        folder.mkdir(mode=0o700)
        temporary = folder / target.name
        yield temporary
        if target.exists():
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except OSError as error:
        raise OutputError(advice(error), file=path) from error
    finally:
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:  # once more where a signal ended the first attempt
            shutil.rmtree(folder, ignore_errors=True)


def compress(source: Path, target: Path) -> None:
    """Write ``source`` to ``target`` with gzip; equal bytes give equal bytes, for no name or time is kept."""
    with (
        source.open("rb") as plain,
        target.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as packed,
    ):
        shutil.copyfileobj(plain, packed, 1 << 20)


@contextmanager
def make_folders(path: Path) -> Iterator[None]:
    """Make the folders above ``path`` that are missing; if the block fails, they go again."""
    missing: list[Path] = []
    try:
        try:
            missing = [folder for folder in path.parents if not folder.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(advice(error), file=path) from error
        yield
    except BaseException:
        for folder in missing:
            with suppress(OSError):
                folder.rmdir()
        raise


def _check(target: Path) -> None:
    """Refuse what a file must not replace: folders, and devices such as ``/dev/null``."""
    if target.is_dir():
        raise OSError(errno.EISDIR, "")
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file; name another one")


def advice(error: OSError) -> str:
    """Return why a file cannot be written, and what to do."""
    reason = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
    return f"cannot be written: {reason}"


def check_targets(targets: Sequence[str | Path], suffixes: Sequence[str], subject: str) -> None:
    """Check the names of output files.

    Args:
        targets: the files.
        suffixes: the suffixes of supported formats.
        subject: what is written, such as ``a diff``.

    Raises:
        OutputError: a file has another suffix, or two targets are the same file.
    """
    for target in targets:
        if not str(target).lower().endswith(tuple(suffixes)):
            raise OutputError(f"no such format; {subject} is written as {', '.join(suffixes)}", file=target)
    check_distinct(targets)


def check_distinct(paths: Iterable[str | Path]) -> None:
    """Check that no two outputs are the same file.

    Raises:
        OutputError: two are.
    """
    files = set()
    for path in paths:
        file = os.path.realpath(path)
        if file in files:
            raise OutputError("two outputs are this file; name each file once", file=path)
        files.add(file)


def print_or_write(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file and say so on standard error.

    Raises:
        OutputError: the file cannot be written.
    """
    if output is None:
        sys.stdout.write(text)
        return
    with replace_file(output) as temporary:
        temporary.write_text(text, encoding="utf-8")
    sys.stderr.write(f"wrote {printable_line(str(output))}\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write one or more rows of the same columns as CSV; None is an empty cell.

    Raises:
        OutputError: the file cannot be written.
    """
    import csv

    with replace_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: csv_written(cell) if isinstance(cell, str) else cell for key, cell in row.items()}
            )


def write_behind(file: BinaryIO, pieces: Iterable[bytes | memoryview], *, waiting: int) -> None:
    """Write pieces in order; all but the last ``waiting`` are done with when the next one is asked for.

    Raises:
        OSError: the file cannot be written.
    """
    with ThreadPoolExecutor(max_workers=1) as writer:
        pending: deque[Future[int]] = deque()
        for piece in pieces:
            pending.append(writer.submit(file.write, piece))
            if len(pending) > waiting:
                pending.popleft().result()
        for future in pending:
            future.result()
