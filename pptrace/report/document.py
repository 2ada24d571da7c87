"""Documents of sections and tables, and their text, JSON, HTML and Markdown."""

from __future__ import annotations

import math
import re
import shlex
from abc import abstractmethod
from collections.abc import Mapping
from itertools import islice, zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict

from pptrace.report.numbers import MARK, Figure
from pptrace.sanitize import printable, printable_line
from pptrace.steps.actions import Action
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Sequence

    from markupsafe import Markup


class Line(Struct, frozen=True):
    """A sentence with a style."""

    text: str
    """The sentence."""
    tone: str = ""
    """The style in pages: ``soft``, ``same`` or ``different``."""


class Cell(NamedTuple):
    """A cell with a tooltip and a shade in pages."""

    text: str
    """The text."""
    title: str = ""
    """The tooltip."""
    shade: float | None = None
    """From -1, green, over 0 to 1, red; None for a cell without a shade."""

    def __str__(self) -> str:
        return self.text


class Table(Struct, frozen=True):
    """Rows of cells."""

    rows: tuple[tuple[str | Cell, ...], ...]
    """The cells; the last cell of a shorter row spans the remaining columns."""
    head: tuple[str, ...] = ()
    """A title per column; empty for tables without titles."""
    words: int = 1
    """The number of columns of words, to the left of columns of figures."""
    left: tuple[int, ...] = ()
    """Indices of further columns of words."""
    splits: bool = False
    """Whether text fits a wide table into lines outside terminals too, and splits its columns of figures into
    several tables, each with the first column."""
    unchanged: frozenset[int] = frozenset()
    """Indices of rows that pages and Markdown fold, such as rows without changes."""
    fold: str = "unchanged"
    """The description of folded rows."""
    cards: bool = False
    """Whether pages show each row, a name and a value, as a card."""


class Code(NamedTuple):
    """Lines for a shell, which no output wraps."""

    lines: tuple[str, ...]


class Picture(NamedTuple):
    """A drawing in pages."""

    draw: Callable[[], Markup]
    """Returns the drawing."""
    keys: tuple[tuple[str, str], ...] = ()
    """CSS classes or colors, and their meanings."""
    instead: Table | None = None
    """The table that replaces it in text and Markdown."""


class Column(Struct, frozen=True):
    """A column of a table whose rows are figures by key."""

    heading: str
    """Its title."""
    keys: tuple[str, ...]
    """The figures of a row that it shows."""
    text: Callable[..., str]
    """Returns the text of these figures."""
    is_shown: bool = True
    """Whether the table has it."""
    is_words: bool = False
    """Whether it has words, which are on the left."""
    group: str = ""
    """The title above its own, of the columns from here on."""


def table_of(columns: Iterable[Column], rows: Iterable[tuple[Mapping[str, Any], str]], labels: int = 1) -> Table:
    """Return the table of rows, each with the reason why it has no figures; empty for rows with figures.

    The reason replaces all columns after the first ``labels``.
    """
    shown = [column for column in columns if column.is_shown]
    heads = [tuple(column.group for column in shown), tuple(column.heading for column in shown)]
    cells = []
    for row, reason in rows:
        texts = (column.text(*map(row.get, column.keys)) for column in shown)
        cells.append((*islice(texts, labels), reason) if reason else tuple(texts))
    first = 0 if any(heads[0]) else 1
    left = tuple(index for index, column in enumerate(shown) if column.is_words)
    return Table(head=heads[first], rows=(*heads[first + 1 :], *cells), words=0, left=left)


PARTIAL_MARK = "*"
"""The mark of tables of partial data."""

Block: TypeAlias = str | Line | Code | Table | Picture
"""A part of a section; a string is a sentence without a style."""


class Section(NamedTuple):
    """A titled part of a document."""

    title: str
    """Its title; pages capitalize it."""
    blocks: tuple[Block, ...]
    """Its contents; a section without contents is omitted."""
    about: str = ""
    """Its explanation, in pages and Markdown."""
    priority: int = 0
    """The order of sections in pages and Markdown, the largest first; text has them in document order."""


class Document(Struct, frozen=True, kw_only=True):
    """The result of a command; prints as its text."""

    title: str
    """Its title."""
    lead: Sequence[Block]
    """Its first blocks, before the sections."""
    sections: tuple[Section, ...] = ()
    """Its sections."""
    notes: tuple[str, ...] = ()
    """Warnings and assumptions."""
    partial: str = ""
    """What the data lack; then the titles of its sections have a mark, and this is its footnote."""
    values: object = None
    """The values for JSON: a dataclass, a mapping, or a list of those."""

    @property
    def footnote(self) -> str:
        """The meaning of the mark of partial data; empty where nothing is missing."""
        return f"{PARTIAL_MARK} partial data: {self.partial}" if self.partial else ""

    @property
    def by_priority(self) -> list[Section]:
        """The sections in the order of their priorities."""
        return sorted(self.sections, key=lambda section: -section.priority)

    def title_of(self, section: Section) -> str:
        """Return the title of a section, with a mark where its data are partial."""
        return f"{section.title} {PARTIAL_MARK}" if self.partial else section.title

    def __str__(self) -> str:
        return text_of(self)


class Printed:
    """Mixin that prints the text of :meth:`document`, also in a notebook."""

    __slots__ = ()

    @abstractmethod
    def document(self) -> Document:
        """Return the output of the command line as a document."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""

    def summary(self) -> str:
        """Return the output of the command line as plain text."""
        return str(self.document())

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        notebook = Path(__file__).parent / "notebook.html"
        return render(notebook, document=self.document(), picture=self._picture())

    def _picture(self) -> str:
        """Return a drawing below the document in a notebook; empty for none."""
        return ""


_LINE_LENGTH = 100


def command_lines(words: Sequence[str], width: int = _LINE_LENGTH) -> list[str]:
    r"""Return a command for a shell, in lines that end in a backslash.

    An option and its value share a line.

    Args:
        words: the words of the command.
        width: columns of a line, without the backslash.

    >>> command_lines(["pptrace", "simulate", "step.yaml", "--set", "model.layers=[8, 8]"])
    ["pptrace simulate step.yaml --set 'model.layers=[8, 8]'"]
    """
    groups: list[str] = []
    for word in map(shlex.quote, words):
        if groups and (not word.startswith("-") or not groups[-1]):
            groups[-1] += f" {word}"
        else:
            groups.append(word)
    lines = [""]
    for group in groups:
        if lines[-1] and len(lines[-1]) + len(group) > width:
            lines[-1] += " \\"
            lines.append(f"  {group}")
        else:
            lines[-1] = f"{lines[-1]} {group}" if lines[-1] else group
    return lines


GAP = 2
"""Spaces between columns."""
NO_BREAK = "\N{NO-BREAK SPACE}"
"""A space at which no line is wrapped."""
_NARROWEST = 20
"""The least width of a wrapped column."""
_DEFAULT_WIDTH = 120
"""The width of tables that split, outside terminals."""


def text_of(document: Document, width: int | None = None) -> str:
    """Return the text of a document, wrapped to ``width`` columns if given."""
    lead = list(_blocks(document.lead, width, indent=0))
    sections = [
        (document.title_of(section), list(_blocks(section.blocks, width, indent=GAP)))
        for section in document.sections
    ]
    parts = [lead, *([printable_line(title), *lines] for title, lines in sections if lines)]
    lines = [line for part in parts if part for line in ("", *part)]
    footnotes = [*([document.footnote] if document.partial else []), *(f"note: {note}" for note in document.notes)]
    return "\n".join([*lines[1:], *_blocks(footnotes, width, indent=0)])


def _blocks(blocks: Iterable[Block], width: int | None, indent: int) -> Iterator[str]:
    inner = None if width is None else max(width - indent, 1)
    for block in blocks:
        content = block.instead if isinstance(block, Picture) else block
        if isinstance(content, Code):
            lines = [printable_line(line) for line in content.lines]
        elif isinstance(content, str | Line):
            text = content if isinstance(content, str) else content.text
            lines = _wrap(printable_line(text), inner, subsequent_indent="  ", break_long_words=False)
        else:
            lines = [] if content is None else _table(content, inner)
        yield from (f"{'':{indent}}{line}".rstrip() for line in lines)


def _wrap(text: str, width: int | None, **options: Any) -> list[str]:
    fits = width is None or len(text) <= width
    lines = [text] if fits else wrap(text, width or 0, break_on_hyphens=False, **options)
    return [line.replace(NO_BREAK, " ") for line in lines]


def _table(table: Table, width: int | None) -> list[str]:
    rows = [tuple(printable_line(str(cell)) for cell in row) for row in (table.head, *table.rows) if row]
    left = {*range(table.words), *table.left}
    if len({*map(len, rows)}) != 1:
        return _lines(rows, left, width)
    columns = list(zip(*rows, strict=True))
    parts: Iterable[Sequence[int]] = [range(len(columns))]
    if table.splits:
        width = width or _DEFAULT_WIDTH
        parts = _parts(columns, width)
    lines = []
    for part in parts:
        cells = zip(*(_align_marks(columns[index]) for index in part), strict=True)
        lines += _lines(list(cells), {place for place, index in enumerate(part) if index in left}, width)
    return lines


def _parts(columns: Sequence[Sequence[str]], width: int) -> Iterator[Sequence[int]]:
    """Yield the indices of groups of columns that fit, each with the first column."""
    part, widths = [0], [max(map(len, column)) + GAP for column in columns]
    for index in range(1, len(columns)):
        if len(part) > 1 and sum(widths[each] for each in (*part, index)) > width + GAP:
            yield part
            part = [0]
        part.append(index)
    yield part


def _align_marks(column: Sequence[str]) -> list[str]:
    """Pad figures without a mark where a figure of the column has a mark."""
    marked = any(cell.endswith(MARK) for cell in column)
    return [f"{cell}{' ' * len(MARK)}" if marked and not cell.endswith(MARK) else cell for cell in column]


def _lines(rows: Sequence[Sequence[str]], left: Container[int] = (0,), width: int | None = None) -> list[str]:
    """Return rows as lines of aligned columns.

    Args:
        rows: cells, the heading first. The last cell of a shorter row spans the remaining columns.
        left: columns with text on the left; all other columns have it on the right.
        width: the width into which columns on the left are wrapped; None for no limit. Words of the last column
            stay whole, so that commands can be copied.

    >>> _lines([("schedule", "step"), ("1f1b", "8 ms"), ("zb-v", "12 ms")])
    ['schedule   step', '1f1b       8 ms', 'zb-v      12 ms']
    """
    count = max(map(len, rows), default=0)
    aligned = [row if len(row) == count else row[:-1] for row in rows]
    widths = [max(len(row[column]) for row in aligned if column < len(row)) for column in range(count)]
    if width is not None:
        _narrow(widths, left, width)
    lines = []
    for row, cells in zip(rows, aligned, strict=True):
        wrapped = [
            _wrap(cell, size, break_long_words=column < count - 1)
            for column, (cell, size) in enumerate(zip(cells, widths, strict=False))
        ]
        for parts in zip_longest(*wrapped, fillvalue=""):
            texts = [
                part.ljust(size) if column in left else part.rjust(size)
                for column, (part, size) in enumerate(zip(parts, widths, strict=False))
            ]
            lines.append((" " * GAP).join(texts))
        if len(cells) < len(row):
            lines[-1] = (" " * GAP).join([lines[-1], row[-1]])
    return [line.rstrip() for line in lines]


def _narrow(widths: list[int], left: Container[int], width: int) -> None:
    """Reduce the widest columns on the left until all columns fit the width."""
    words = [column for column in range(len(widths)) if column in left]
    while words and sum(widths) + GAP * (len(widths) - 1) > width:
        widest = max(words, key=lambda column: widths[column])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


_FIGURE_ATTRIBUTES = ("deviation", "spread")


def plain(value: Any) -> Any:
    """Return plain JSON values of a value or a document; unknown figures are null."""
    if isinstance(value, Document):
        return _plain_by_name(value.values.items()) if isinstance(value.values, Mapping) else plain(value.values)
    if isinstance(value, Figure):
        value = value.value
    if isinstance(value, Action):
        return str(value)
    if isinstance(value, Struct):
        return _plain_by_name(asdict(value).items())
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


_MARKUP = re.compile(r"[\\`*_~<>\[\]|&$]|^[-+#](?=[# ])")
"""Characters with a meaning in Markdown."""


def markdown_of(document: Document) -> str:
    """Return a document as Markdown of GitHub."""
    parts = [f"# {_escaped(document.title)}", *_markdown(document.lead)]
    for section in document.by_priority:
        if blocks := list(_markdown(section.blocks)):
            parts += [f"## {_escaped(document.title_of(section))}", *_markdown([section.about]), *blocks]
    notes = "\n".join(f"- {_escaped(note)}" for note in document.notes)
    return "\n\n".join([*parts, *_markdown([document.footnote]), *([notes] if notes else [])]) + "\n"


def _markdown(blocks: Iterable[Block]) -> Iterator[str]:
    for block in blocks:
        content = block.instead if isinstance(block, Picture) else block
        if isinstance(content, Code):
            text = "\n".join(map(printable_line, content.lines))
            fence = max(["``", *re.findall("``+", text)], key=len) + "`"
            yield f"{fence}\n{text}\n{fence}"
        elif isinstance(content, Table):
            folded = [content.rows[index] for index in sorted(content.unchanged)]
            if shown := [row for index, row in enumerate(content.rows) if index not in content.unchanged]:
                yield _markdown_table(content, shown)
            if folded:
                summary = f"<summary>{len(folded)} {content.fold}</summary>"
                yield f"<details>{summary}\n\n{_markdown_table(content, folded)}\n\n</details>"
        elif content is not None and (text := content if isinstance(content, str) else content.text):
            yield _escaped(text)


def _markdown_table(table: Table, rows: Sequence[Sequence[str | Cell]]) -> str:
    count = max(map(len, (table.head, *rows)))
    rule = ["---" if column < table.words or column in table.left else "---:" for column in range(count)]
    lines = [[_escaped(str(cell)) for cell in row] for row in (table.head, *rows)]
    lines.insert(1, rule)
    return "\n".join(f"| {' | '.join([*line, *[''] * (count - len(line))])} |" for line in lines)


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", printable_line(text).replace(NO_BREAK, " ").strip())


PAGES = {".html": page_of, ".md": markdown_of}
"""Functions that return the text of a document's page, by suffix."""


def write_page(path: Path, suffix: str, document: Document) -> None:
    """Write a document in the format of a suffix of :data:`PAGES`.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(PAGES[suffix](document), encoding="utf-8", errors="replace", newline="\n")
