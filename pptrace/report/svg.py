"""SVG and HTML elements; text that is not markup is escaped."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from markupsafe import Markup, escape

from pptrace.report.document import Picture
from pptrace.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_EMPTY = frozenset({"line", "path", "rect"})
_FAMILY = "Helvetica, Arial, sans-serif"

_PAGE = b"""#set document(date: none)
#set page(width: auto, height: auto, margin: 0pt)
#image(bytes(sys.inputs.svg), format: "svg")"""
"""The page of a drawing, in Typst's language."""
_SIZE = re.compile(r'width="([\d.]+)" height="([\d.]+)"')
_PER_INCH, _ENLARGED = 96, 1.5
"""SVG pixels per inch, and PNG pixels per SVG pixel."""
_MOST_PIXELS = 30_000_000
"""The most pixels of PNG; larger drawings are reduced."""


def element(name: str, /, *children: str, **attributes: str | float) -> Markup:
    """Return an element; ``class_`` is the attribute ``class``, ``text_anchor`` is ``text-anchor``.

    >>> element("b", "a < b", class_="key")
    Markup('<b class="key">a &lt; b</b>')
    """
    pairs = "".join(f' {_name(key)}="{escape(_value(value))}"' for key, value in attributes.items())
    if name in _EMPTY and not children:
        return Markup(f"<{name}{pairs}/>")  # noqa: S704 - escaped above
    return Markup(f"<{name}{pairs}>{Markup().join(map(_child, children))}</{name}>")  # noqa: S704 - as above


def number(value: float) -> str:
    """Return a coordinate with at most two decimals.

    >>> number(12.5), number(3.0), number(-0.001)
    ('12.5', '3', '0')
    """
    digits = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if digits == "-0" else digits


def drawing(width: float, height: float, label: str, *children: str, least: float = 0) -> Markup:
    """Return a drawing that scales with the page; its minimum width is ``least`` pixels."""
    style = {"style": f"min-width:{number(least)}px"} if least else {}
    box = f"0 0 {number(width)} {number(height)}"
    return element("svg", *children, viewBox=box, role="img", aria_label=label, **style)


def lines(parts: Iterable[str]) -> Markup:
    """Return elements on separate lines, as children of another element."""
    return Markup("\n").join(["", *parts, ""])


def document(width: float, height: float, ink: str, *parts: str) -> str:
    """Return the text of an SVG file with a white background; ``ink`` is the color of text."""
    background = element("rect", width="100%", height="100%", fill="#ffffff")
    svg = element(
        "svg", lines([background, *parts]), xmlns="http://www.w3.org/2000/svg", width=width, height=height,
        font_family=_FAMILY, font_size=12, fill=ink,
    )  # fmt: skip
    return f"{svg}\n"


def write_drawing(path: Path, suffix: str, svg: str) -> None:
    """Write an SVG document as ``.svg``, or convert it to ``.png`` or ``.pdf``; equal drawings give equal bytes.

    Raises:
        OSError: the file cannot be written.
    """
    if suffix == ".svg":
        path.write_text(svg, encoding="utf-8")
    else:
        path.write_bytes(_convert(svg, "png" if suffix == ".png" else "pdf"))


def _convert(svg: str, extension: Literal["png", "pdf"]) -> bytes:
    """Return an SVG document as PNG or PDF, with a font of matplotlib instead of the system's."""
    import matplotlib as mpl
    import typst

    width, height = map(float, _SIZE.findall(svg)[0])
    converted: bytes = typst.compile(
        _PAGE,
        format=extension,
        ppi=_PER_INCH * min(_ENLARGED, math.sqrt(_MOST_PIXELS / (width * height))),
        sys_inputs={"svg": svg.replace(_FAMILY, "DejaVu Sans")},
        font_paths=[f"{mpl.get_data_path()}/fonts/ttf"],
        ignore_system_fonts=True,
    )
    return converted


def darker(color: str) -> str:
    """Return a darker color, for every other chunk of a rank.

    >>> darker("#ffffff")
    '#d6d6d6'
    """
    return "#" + "".join(f"{round(int(color[start : start + 2], 16) * 0.84):02x}" for start in (1, 3, 5))


def rectangle(x: float, y: float, width: float, height: float, class_: str, title: str = "") -> Markup:
    """Return a rectangle with a tooltip."""
    shown = element("rect", x=x, y=y, width=width, height=height, class_=class_)
    return element("g", element("title", title), shown) if title else shown


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Return a line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def text(x: float, y: float, shown: str, class_: str = "label", anchor: str = "start") -> Markup:
    """Return a text."""
    return element("text", shown, x=x, y=y, class_=class_, text_anchor=anchor)


class Bar(NamedTuple):
    """A bar of parts, one after another."""

    label: str
    """The text on the left."""
    parts: Sequence[tuple[str, float, str]]
    """The name, the length and the tooltip of each part."""
    total: str
    """The text on the right."""


_WIDTH, _LEFT, _RIGHT, _ROW, _THICKNESS = 1020, 66, 130, 18, 15


def stacked_bars(
    label: str, rows: Sequence[Bar], colors: Mapping[str, str], longest: float, limit: float = 0
) -> Picture:
    """Return horizontal bars, with a legend of the drawn parts.

    Args:
        label: the name of the drawing.
        rows: the bars, from top to bottom.
        colors: the color of each part.
        longest: the length of the whole width.
        limit: the length at which a line is drawn; 0 for none.
    """
    drawn = {name for bar in rows for name, length, _ in bar.parts if length > 0}
    scale = (_WIDTH - _LEFT - _RIGHT) / max(longest, 1)
    marks = [line(_LEFT + limit * scale, 0, _LEFT + limit * scale, _ROW * len(rows), "limit")] if limit else []

    def draw() -> Markup:
        bars = [part for row, bar in enumerate(rows) for part in _bar(row * _ROW, bar, colors, scale)]
        return drawing(_WIDTH, _ROW * len(rows), label, *bars, *marks)

    return Picture(draw=draw, keys=tuple((color, name) for name, color in colors.items() if name in drawn))


def _bar(y: float, bar: Bar, colors: Mapping[str, str], scale: float) -> Iterator[Markup]:
    yield text(_LEFT - 10, y + 12, bar.label, "soft", anchor="end")
    yield rectangle(_LEFT, y, _WIDTH - _LEFT - _RIGHT, _THICKNESS, "row")
    x = float(_LEFT)
    for name, length, title in bar.parts:
        if length > 0:
            yield element("g", element("title", title), element(
                "rect", x=x, y=y, width=length * scale, height=_THICKNESS, fill=colors[name],
            ))  # fmt: skip
        x += length * scale
    yield text(_WIDTH - _RIGHT + 10, y + 12, bar.total, "soft")


def _name(key: str) -> str:
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def _child(child: str) -> str:
    return child if isinstance(child, Markup) else printable(child)


def _value(value: str | float) -> str:
    return printable(value) if isinstance(value, str) else number(value)
