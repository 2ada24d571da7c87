"""What a command found, on standard output."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.present.document import Document

__all__ = ["echo_documents"]


def echo_documents(documents: Document | Sequence[Document], *, as_json: bool) -> None:
    """Print one document, or a list of several, as JSON or as text for the terminal's width."""
    from pptrace.present.document import Document
    from pptrace.present.text import text_of
    from pptrace.present.values import json_of

    if as_json:
        click.echo(json_of(documents))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    several = [documents] if isinstance(documents, Document) else documents
    click.echo("\n\n".join(text_of(document, width) for document in several))
