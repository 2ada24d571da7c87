"""Write schedule tables to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pptrace.errors import OutputError
from pptrace.files import replace_file
from pptrace.steps.actions import Form
from pptrace.steps.text_forms import table_text

if TYPE_CHECKING:
    from pptrace.steps.schedule import Schedule

__all__ = ["TABLE_SUFFIXES", "write_table"]

TABLE_SUFFIXES = {".csv": Form.CSV, ".txt": Form.TEXT}
"""What the end of a table's name says about its form."""


def write_table(schedule: Schedule, path: Path | str) -> None:
    """Write a schedule as it stands, as CSV or text, as the suffix says.

    Raises:
        OutputError: the suffix is another, or the file cannot be written.
    """
    path = Path(path)
    form = TABLE_SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise OutputError(f"a table ends in {' or '.join(TABLE_SUFFIXES)}", file=path)
    with replace_file(path) as temporary:
        temporary.write_text(table_text(schedule, form), encoding="utf-8", newline="\n")
