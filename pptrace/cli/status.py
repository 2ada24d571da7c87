"""A line on the terminal that says what runs; nothing where nobody looks."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pptrace.cli.terminal import raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["status"]


@contextmanager
def status(first: str) -> Iterator[Callable[[str], None] | None]:
    """Show a line on the standard error while the block runs, and yield what changes it; None off a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    from pptrace.printable import printable_line

    with Console(file=raw(sys.stderr)).status(first) as shown:
        yield lambda text: shown.update(escape(printable_line(text)))
