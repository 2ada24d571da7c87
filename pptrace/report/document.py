"""Documents of sections and tables, the source of text, JSON and pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A sentence."""

    text: str
    """The sentence."""
    tone: str = ""
    """The style in pages: ``soft``, ``same`` or ``different``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell with a tooltip and a shade in pages."""

    text: str
    """The text."""
    title: str = ""
    """The tooltip."""
    shade: float = 0.0
    """From -1, green, over 0 to 1, red."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows with the same number of cells."""

    rows: tuple[tuple[str | Cell, ...], ...]
    """The cells."""
    head: tuple[str, ...] = ()
    """A title per column; empty for tables without titles."""
    words: int = 1
    """The number of columns of words, to the left of columns of figures."""
    splits: bool = False
    """Whether text splits a wide table into several, each with the first column."""
    unchanged: frozenset[int] = frozenset()
    """Indices of rows without changes, which pages fold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing in pages."""

    draw: Callable[[], Markup]
    """Returns the drawing."""
    keys: tuple[tuple[str, str], ...] = ()
    """CSS classes and their meanings."""
    instead: Table | None = None
    """The table that replaces it in text."""


Block: TypeAlias = Line | Table | Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled part of a document."""

    title: str
    """Its title; pages capitalize it."""
    about: str = ""
    """Its explanation, in pages only."""
    blocks: tuple[Block, ...]
    """Its contents; a section without contents is omitted."""
    priority: int = 0
    """The order of sections in pages, the largest first; text has them in document order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The result of a command."""

    title: str
    """Its title."""
    lead: tuple[Block, ...]
    """Its first blocks, before the sections."""
    sections: tuple[Section, ...] = ()
    """Its sections."""
    notes: tuple[str, ...] = ()
    """Warnings and assumptions."""
    values: object = None
    """The values for JSON: a dataclass, a mapping, or a list of those."""
