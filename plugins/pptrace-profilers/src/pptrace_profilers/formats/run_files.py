"""Several files of one run: one that cannot be read costs itself alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from pptrace.plugin import TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["read_files"]

T = TypeVar("T")


def read_files(paths: Sequence[Path], read: Callable[[Path], T]) -> tuple[dict[Path, T], list[str]]:
    """Return what is read from each file, and a line on each that cannot be read.

    Raises:
        TraceError: no file can be read.
    """
    contents: dict[Path, T] = {}
    unread: list[str] = []
    for path in paths:
        try:
            contents[path] = read(path)
        except TraceError as error:
            if len(paths) == 1:
                raise
            unread.append(str(error))
    if not contents:
        raise TraceError(f"none of {len(paths)} files can be read: {unread[0]}", file=paths[0].parent)
    return contents, unread
