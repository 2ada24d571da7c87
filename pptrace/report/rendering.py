"""Documents as text, JSON and HTML."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from io import StringIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from pptrace.errors import OutputError
from pptrace.report.document import Document, Line, Picture
from pptrace.report.numbers import MARK, Figure
from pptrace.sanitize import printable, printable_line
from pptrace.steps.actions import Action
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from pptrace.report.document import Block, Table

_GAP = 2
_NARROWEST = 20
"""The least width of a column of words."""
_USUAL = 120
"""The width of tables that split, outside terminals."""


def text_of(document: Document, width: int | None = None) -> str:
    """Return the text of a document, wrapped to ``width`` columns if given."""
    lines = [*_blocks(document.lead, width, indent=0), ""]
    for section in document.sections:
        if inner := list(_blocks(section.blocks, width, indent=_GAP)):
            lines += [printable_line(section.title), *inner, ""]
    return "\n".join(
        [
            *lines[:-1],
            *(line for note in document.notes for line in _wrapped(printable_line(f"note: {note}"), width)),
        ]
    )


def _blocks(blocks: Iterable[Block], width: int | None, indent: int) -> Iterator[str]:
    inner = None if width is None else max(width - indent, 1)
    for block in blocks:
        shown = block.instead if isinstance(block, Picture) else block
        if isinstance(shown, Line):
            lines = _wrapped(printable_line(shown.text), inner)
        else:
            lines = [] if shown is None else _table(shown, inner)
        yield from (f"{'':{indent}}{line}".rstrip() for line in lines)


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None or len(text) <= width:
        return [text]
    return wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _table(table: Table, width: int | None) -> list[str]:
    rows = [tuple(printable_line(str(cell)) for cell in row) for row in (table.head, *table.rows) if row]
    columns = list(zip(*rows, strict=True))
    parts = _parts(columns, width or _USUAL) if table.splits else [columns]
    return [line for part in parts for line in _aligned(part, table.words, width)]


def _parts(columns: Sequence[Sequence[str]], width: int) -> Iterator[Sequence[Sequence[str]]]:
    """Yield groups of columns that fit, each with the first column."""
    part = [columns[0]]
    for column in columns[1:]:
        if len(part) > 1 and sum(map(_width_of, (*part, column))) > width + _GAP:
            yield part
            part = [columns[0]]
        part.append(column)
    yield part


def _width_of(column: Sequence[str]) -> int:
    return max(map(len, column)) + _GAP


def _aligned(columns: Sequence[Sequence[str]], words: int, width: int | None) -> list[str]:
    """Return aligned lines: words to the left, wrapped if necessary; figures to the right, marks after them."""
    from rich.console import Console
    from rich.table import Table as Grid

    grid = Grid.grid(padding=(0, _GAP, 0, 0))
    for index in range(len(columns)):
        is_word = index < words
        grid.add_column(justify="left" if is_word else "right", no_wrap=not is_word, overflow="fold")
    for row in zip(*(_cells(column) for column in columns), strict=True):
        grid.add_row(*row)
    console = Console(file=StringIO(), width=1 << 16, color_system=None, legacy_windows=False)
    natural = console.measure(grid).maximum
    if width is not None and natural > width:
        spare = sum(max(_width_of(column) - _GAP - _NARROWEST, 0) for column in columns[:words])
        natural = max(width, natural - spare)
    lines = console.render_lines(grid, console.options.update_width(natural), pad=False)
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def _cells(column: Sequence[str]) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    marked = any(cell.endswith(MARK) for cell in column)
    for cell in column:
        padding = len(MARK) if marked and not cell.endswith(MARK) else 0
        yield Padding(Text(cell), (0, padding, 0, 0)) if padding else Text(cell)


def check_targets(targets: Sequence[str | Path], suffixes: Sequence[str], subject: str) -> None:
    """Check the names of output files.

    Args:
        targets: the files.
        suffixes: the suffixes of supported formats.
        subject: what is written, such as ``a diff``.

    Raises:
        OutputError: a file has another suffix, or two targets are one file.
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
        return _named(value.values.items()) if isinstance(value.values, Mapping) else plain(value.values)
    if isinstance(value, Figure):
        value = value.value
    if isinstance(value, Action):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _named(
            (field.metadata.get("json", field.name), getattr(value, field.name)) for field in fields(value)
        )
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _named(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return plain values by name, with known deviations and spreads under names of their own."""
    named: dict[str, Any] = {}
    for name, value in items:
        named[name] = plain(value)
        for attribute in _FIGURE_ATTRIBUTES:
            if _any(known := _figure_attribute(value, attribute)):
                named[f"{name}_{attribute}"] = known
    return named


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
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        keep_trailing_newline=True, finalize=_finalized,
    )  # fmt: skip
    return templates.get_template("page.html").render(document=document, version=__version__)


def _finalized(value: object) -> object:
    """Remove control characters from text that is not markup."""
    return printable(value) if type(value) is str else value
