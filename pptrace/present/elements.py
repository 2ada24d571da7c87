"""HTML and SVG elements whose texts are escaped, unless they are elements themselves."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Markup", "element", "joined", "legend", "number", "rectangle", "table", "text"]

_EMPTY = frozenset({"meta", "rect", "line"})


class Markup(str):
    """Text that is markup already, made by this module alone."""

    __slots__ = ()


def element(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """Return an element; ``class_`` is the attribute ``class``, ``text_anchor`` is ``text-anchor``.

    >>> element("b", "a < b", class_="own")
    '<b class="own">a &lt; b</b>'
    """
    given = "".join(f' {_name(key)}="{escape(_value(value))}"' for key, value in attributes.items())
    if name in _EMPTY and not children:
        return Markup(f"<{name}{given}/>")
    return Markup(f"<{name}{given}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Markup:
    """Return children one after another, those escaped that are no markup."""
    return Markup("".join(one if isinstance(one, Markup) else escape(one) for one in children))


def number(value: float) -> str:
    """Return a coordinate with two digits behind the point, and none that are 0.

    >>> number(12.5), number(3.0), number(-0.001)
    ('12.5', '3', '0')
    """
    shown = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if shown == "-0" else shown


def rectangle(x: float, y: float, width: float, height: float, class_: str, title: str = "") -> Markup:
    """Return an SVG rectangle; its title shows where the pointer rests on it."""
    shown = element("rect", x=x, y=y, width=width, height=height, class_=class_)
    return element("g", element("title", title), shown) if title else shown


def text(x: float, y: float, shown: str, class_: str = "", anchor: str = "start") -> Markup:
    """Return an SVG text."""
    return element("text", shown, x=x, y=y, class_=class_ or "label", text_anchor=anchor)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> Markup:
    """Return a table whose first ``words`` columns are words, the others numbers."""

    def cells(name: str, row: Sequence[str]) -> list[Markup]:
        return [element(name, cell, class_="word" if at < words else "figure") for at, cell in enumerate(row)]

    body = [element("tr", *cells("td", row)) for row in rows]
    titles = element("thead", element("tr", *cells("th", head)))
    return element("div", element("table", titles, element("tbody", *body)), class_="wide")


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Return a line that says which class of colours means what."""
    shown = [element("span", element("i", class_=f"key {class_}"), meaning) for class_, meaning in entries]
    return element("p", *shown, class_="legend")


def _name(key: str) -> str:
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return value if isinstance(value, str) else number(value)
