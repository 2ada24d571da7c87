"""An explained step as files: a page, a heat map of its job's workers, the job's ideal step as a trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pptrace.errors import OutputError
from pptrace.export.output import replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.analysis.steps.sides import Side
    from pptrace.analysis.stragglers.what_if import Stragglers
    from pptrace.present.document import Document
    from pptrace.timeline.job import Job

__all__ = ["check_explained", "save_explained"]

_PAGE = ".html"
_PICTURES = (".png", ".svg", ".pdf")
_TRACES = (".pftrace", ".pftrace.gz", ".json", ".json.gz")


def check_explained(targets: Sequence[str]) -> None:
    """Check before anything is read that an explanation can be written as these files.

    Raises:
        OutputError: a file has another suffix, or two are the same.
        PptraceError: matplotlib is not installed, which pictures need.
    """
    places = [os.path.realpath(target) for target in targets]
    for target, place in zip(targets, places, strict=True):
        known = (_PAGE, *_PICTURES, *_TRACES)
        if not target.lower().endswith(known):
            raise OutputError(f"no such format; an explanation is written as {', '.join(known)}", file=target)
        if places.count(place) > 1:
            raise OutputError("two outputs are this file; name each file once", file=target)
        if target.lower().endswith(_PICTURES):
            from pptrace.export.picture import check_picture

            check_picture(Path(target))


def save_explained(
    targets: Sequence[str], documents: Sequence[Document], side: Side | None, job: Job | None,
    found: Stragglers | None,
) -> list[Path]:  # fmt: skip
    """Write what was explained in the formats that the suffixes say.

    Args:
        targets: the files.
        documents: the explained steps; a page shows the first.
        side: where they come from; None where no action was found.
        job: all replicas; None where there is one.
        found: what they lose; None likewise.

    Raises:
        OutputError: a file cannot be written, or needs replicas where there is one.
    """
    for target in targets:
        name = target.lower()
        if name.endswith(_PAGE):
            _save_page(Path(target), documents[0])
        elif job is None or side is None or found is None:
            raise OutputError("needs a job of several replicas, which these steps are not of", file=target)
        elif name.endswith(_PICTURES):
            from pptrace.present.stragglers import write_heat

            write_heat(Path(target), found)
        else:
            _save_trace(target, side, job)
    return [Path(target) for target in targets]


def _save_page(path: Path, document: Document) -> None:
    from pptrace.present.page import page_of

    with replace_file(path) as temporary:
        temporary.write_text(page_of(document), encoding="utf-8", errors="replace", newline="\n")


def _save_trace(target: str, side: Side, job: Job) -> None:
    from pptrace.analysis.stragglers.ideal import ideal_timeline
    from pptrace.export.output import save
    from pptrace.hooks.registry import Registry

    exporters = {name: provided.offer for name, provided in Registry.load().exporters.items()}
    save(ideal_timeline(job, side.timeline.placement), [target], exporters, {})
