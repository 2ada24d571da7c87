"""The one place where text leaves for a terminal: whatever it holds, it only shows there."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

from pptrace.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["plain_streams", "raw"]


class _Printable:
    """A stream of text in which control characters are spelt out."""

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream

    def write(self, text: str) -> int:
        """Write text, and return how much of it there was."""
        self.raw.write(printable(text))
        return len(text)

    def writelines(self, parts: Any) -> None:
        """Write texts."""
        for part in parts:
            self.write(part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.raw, name)


@contextmanager
def plain_streams() -> Iterator[None]:
    """While the block runs, spell out control characters on the standard error, and on a terminal's output.

    Output for a file or another program stays as it is, but for what has no UTF-8.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (io.StringIO() if stream is None else stream for stream in before)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stdout.isatty():
        sys.stdout = cast("TextIO", _Printable(sys.stdout))
    sys.stderr = cast("TextIO", _Printable(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def raw(stream: TextIO) -> TextIO:
    """Return what lies under a stream, for those who draw: whatever they show, they make printable themselves."""
    return stream.raw if isinstance(stream, _Printable) else stream
