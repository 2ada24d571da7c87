"""A small document of sections and tables, which text, JSON and pages are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup

__all__ = ["Block", "Cell", "Document", "Line", "Picture", "Section", "Table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A sentence."""

    text: str
    """The sentence."""
    tone: str = ""
    """How a page shows it: ``soft``, ``same`` or ``different``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of which a page says more."""

    text: str
    """What is shown."""
    title: str = ""
    """What the pointer on it shows."""
    shade: float = 0.0
    """From -1, green, over 0 to 1, red."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of as many cells."""

    rows: tuple[tuple[str | Cell, ...], ...]
    """The cells."""
    head: tuple[str, ...] = ()
    """A title per column; none for rows that speak for themselves."""
    words: int = 1
    """How many columns, from the left, are words; the others are figures."""
    splits: bool = False
    """Whether text may set columns that do not fit below the others, each time behind the first."""
    unchanged: frozenset[int] = frozenset()
    """Places of rows that a page folds, since nothing changes in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A drawing, which pages show."""

    draw: Callable[[], Markup]
    """Makes it."""
    keys: tuple[tuple[str, str], ...] = ()
    """Classes of colours, and what they mean."""
    instead: Table | None = None
    """What text shows for it."""


Block: TypeAlias = Line | Table | Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What belongs together."""

    title: str
    """Its title, which a page begins with a capital letter."""
    about: str = ""
    """What it shows and how to read it, for pages."""
    blocks: tuple[Block, ...]
    """What it consists of; without any it is left out."""
    leads: int = 0
    """Pages begin with the sections that have the largest; text has them in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a command found."""

    title: str
    """What it is about."""
    lead: tuple[Block, ...]
    """What comes first."""
    sections: tuple[Section, ...] = ()
    """The rest."""
    notes: tuple[str, ...] = ()
    """What is not known."""
    values: object = None
    """Everything as values, for JSON: a dataclass, values by name, or a list of those."""
