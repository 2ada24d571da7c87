"""A diff as files: a report, one trace of both steps, the files for a viewer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.diff.diff import StepDiff
    from pptrace.diff.sides import Side

__all__ = ["write_diff"]


def write_diff(path: Path, found: StepDiff, sides: Sequence[Side], notes: Sequence[str]) -> None:
    """Write a diff in the format that the suffix says.

    Raises:
        OutputError: the file cannot be written.
    """
    del found, sides, notes
    raise OutputError("is a format that diffs are not written in", file=path)
