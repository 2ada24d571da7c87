"""A diff as files: a report, both steps as one trace, all traces in one archive."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pptrace.errors import OutputError
from pptrace.export.output import compress, replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.analysis.diff.step_diff import StepDiff
    from pptrace.analysis.steps.sides import Side

__all__ = ["check_targets", "write_diff"]

_SUFFIXES = (".html", ".pftrace", ".pftrace.gz", ".tar")


def check_targets(targets: Sequence[str | Path]) -> None:
    """Check before anything is read that a diff can be written as these files.

    Raises:
        OutputError: a file has another suffix, or two are the same.
    """
    seen = set()
    for target in targets:
        if not str(target).lower().endswith(_SUFFIXES):
            raise OutputError(f"no such format; a diff is written as {', '.join(_SUFFIXES)}", file=target)
        place = os.path.realpath(target)
        if place in seen:
            raise OutputError("two outputs are this file; name each file once", file=target)
        seen.add(place)


def write_diff(
    targets: Sequence[str | Path], findings: StepDiff, sides: Sequence[Side], notes: Sequence[str], top: int = 10
) -> list[Path]:
    """Write a diff in the formats that the suffixes say; where one fails, every old file stays.

    Raises:
        OutputError: a file cannot be written.
    """
    check_targets(targets)
    paths = [Path(target) for target in targets]
    with ExitStack() as pending:
        for path in paths:
            temporary = pending.enter_context(replace_file(path))
            _write(path.name.lower(), temporary, findings, sides, notes, top)
    return paths


def _write(
    name: str, path: Path, findings: StepDiff, sides: Sequence[Side], notes: Sequence[str], top: int
) -> None:
    if name.endswith(".html"):
        from pptrace.present.diff.document import diff_document
        from pptrace.present.page import page_of

        path.write_text(
            page_of(diff_document(findings, top, notes)), encoding="utf-8", errors="replace", newline="\n"
        )
        return
    if name.endswith(".tar"):
        from pptrace.present.traces.bundle import write_bundle

        write_bundle(path, findings, sides)
        return
    from pptrace.present.traces.together import write_together

    if not name.endswith(".gz"):
        write_together(path, findings, sides)
        return
    plain = path.with_suffix(".plain")
    try:
        write_together(plain, findings, sides)
        compress(plain, path)
    finally:
        plain.unlink(missing_ok=True)
