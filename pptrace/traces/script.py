"""Text that a command makes for somebody else to run: printed, or written to a file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pptrace.files import replace_file
from pptrace.sanitize import printable_line

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["print_or_write"]


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
