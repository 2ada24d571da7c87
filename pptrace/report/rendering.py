"""Documents as text, JSON and HTML."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from pptrace.errors import OutputError
from pptrace.report.document import Document, Line, Picture
from pptrace.report.numbers import MARK, Figure
from pptrace.report.text_table import GAP, table_lines
from pptrace.sanitize import printable, printable_line
from pptrace.steps.actions import Action
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pptrace.report.document import Block, Table

_DEFAULT_WIDTH = 120
"""The width of tables that split, outside terminals."""


def text_of(document: Document, width: int | None = None) -> str:
    """Return the text of a document, wrapped to ``width`` columns if given."""
    lines = [*_blocks(document.lead, width, indent=0), ""]
    for section in document.sections:
        if inner := list(_blocks(section.blocks, width, indent=GAP)):
            lines += [printable_line(section.title), *inner, ""]
    return "\n".join(
        [
            *lines[:-1],
            *(line for note in document.notes for line in _wrap(printable_line(f"note: {note}"), width)),
        ]
    )


def _blocks(blocks: Iterable[Block], width: int | None, indent: int) -> Iterator[str]:
    inner = None if width is None else max(width - indent, 1)
    for block in blocks:
        content = block.instead if isinstance(block, Picture) else block
        if isinstance(content, Line):
            lines = _wrap(printable_line(content.text), inner)
        else:
            lines = [] if content is None else _table(content, inner)
        yield from (f"{'':{indent}}{line}".rstrip() for line in lines)


def _wrap(text: str, width: int | None) -> list[str]:
    if width is None or len(text) <= width:
        return [text]
    return wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _table(table: Table, width: int | None) -> list[str]:
    rows = [tuple(printable_line(str(cell)) for cell in row) for row in (table.head, *table.rows) if row]
    columns = list(zip(*rows, strict=True))
    parts = _parts(columns, width or _DEFAULT_WIDTH) if table.splits else [columns]
    lines = []
    for part in parts:
        cells = zip(*map(_align_marks, part), strict=True)
        lines += table_lines(list(cells), range(table.words), width)
    return lines


def _parts(columns: Sequence[Sequence[str]], width: int) -> Iterator[Sequence[Sequence[str]]]:
    """Yield groups of columns that fit, each with the first column."""
    part = [columns[0]]
    for column in columns[1:]:
        if len(part) > 1 and sum(map(_width_of, (*part, column))) > width + GAP:
            yield part
            part = [columns[0]]
        part.append(column)
    yield part


def _width_of(column: Sequence[str]) -> int:
    return max(map(len, column)) + GAP


def _align_marks(column: Sequence[str]) -> list[str]:
    """Pad figures without a mark where a figure of the column has a mark."""
    marked = any(cell.endswith(MARK) for cell in column)
    return [f"{cell}{' ' * len(MARK)}" if marked and not cell.endswith(MARK) else cell for cell in column]


def check_targets(targets: Sequence[str | Path], suffixes: Sequence[str], subject: str) -> None:
    """Check the names of output files.

    Args:
        targets: the files.
        suffixes: the suffixes of supported formats.
        subject: what is written, such as ``a diff``.

    Raises:
        OutputError: a file has another suffix, or two targets are the same file.
    """
    paths = set()
    for target in targets:
        if not str(target).lower().endswith(tuple(suffixes)):
            raise OutputError(f"no such format; {subject} is written as {', '.join(suffixes)}", file=target)
        path = os.path.realpath(target)
        if path in paths:
            raise OutputError("two outputs are this file; name each file once", file=target)
        paths.add(path)


def write_page(path: Path, document: Document) -> None:
    """Write the page of a document.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(page_of(document), encoding="utf-8", errors="replace", newline="\n")


_FIGURE_ATTRIBUTES = ("deviation", "spread")


def json_of(documents: Document | Sequence[Document]) -> str:
    """Return the values of a document as JSON, or a list for several documents."""
    return json.dumps(plain(documents), indent=2)


def plain(value: Any) -> Any:
    """Return plain JSON values of a value or a document; unknown figures are null."""
    if isinstance(value, Document):
        return _plain_by_name(value.values.items()) if isinstance(value.values, Mapping) else plain(value.values)
    if isinstance(value, Figure):
        value = value.value
    if isinstance(value, Action):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _plain_by_name(
            (field.metadata.get("json", field.name), getattr(value, field.name)) for field in fields(value)
        )
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _plain_by_name(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return plain values by name, with known deviations and spreads under separate names."""
    values: dict[str, Any] = {}
    for name, value in items:
        values[name] = plain(value)
        for attribute in _FIGURE_ATTRIBUTES:
            if _any(known := _figure_attribute(value, attribute)):
                values[f"{name}_{attribute}"] = known
    return values


def _figure_attribute(value: Any, name: str) -> Any:
    """Return a value with the deviation or spread of each figure in its place; None without figures."""
    if isinstance(value, Figure):
        return getattr(value, name)
    if isinstance(value, Mapping):
        return {key: _figure_attribute(part, name) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_figure_attribute(part, name) for part in value]
    return None


def _any(known: Any) -> bool:
    parts = known.values() if isinstance(known, dict) else known if isinstance(known, list) else None
    return known is not None if parts is None else any(map(_any, parts))


def page_of(document: Document) -> str:
    """Return a document as an HTML page with its pictures."""
    return render(Path(__file__).parent / "page.html", document=document)


def render(template: Path, **values: Any) -> str:
    """Return the text of a template with values; control characters of text that is not markup are removed."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(template.parent), autoescape=True, undefined=StrictUndefined,
        keep_trailing_newline=True, finalize=lambda value: printable(value) if type(value) is str else value,
    )  # fmt: skip
    return templates.get_template(template.name).render(version=__version__, **values)
