"""A document as one HTML page that needs nothing else: opens from disk, runs no script, prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pptrace.printable import printable
from pptrace.version import __version__

if TYPE_CHECKING:
    from pptrace.present.document import Document

__all__ = ["page_of"]


def page_of(document: Document) -> str:
    """Return a document's page, with its pictures."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        keep_trailing_newline=True, finalize=_finalized,
    )  # fmt: skip
    return templates.get_template("page.html").render(document=document, version=__version__)


def _finalized(value: object) -> object:
    """Return what stands in the page for a value: text that is no markup loses its control characters."""
    return printable(value) if type(value) is str else value
