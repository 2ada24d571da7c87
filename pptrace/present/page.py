"""The whole report: sections in the order in which a reader asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.present import sections
from pptrace.present.elements import Markup, element, joined
from pptrace.present.pictures.heat_map import heat_map
from pptrace.present.pictures.part_bars import part_bars
from pptrace.present.pictures.strips import strips
from pptrace.present.pictures.waterfall import waterfall
from pptrace.present.style import STYLE
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = ["report"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is fetched and no script runs, whatever a name may hold."""


def report(found: StepDiff, top: int = 10, notes: Iterable[str] = ()) -> str:
    """Return the report as an HTML document."""
    title = f"{found.names[0]} and {found.names[1]}"
    shown = joined(_sections(found, top, list(notes)))
    body = [
        element("h1", "Two steps, action by action"),
        sections.head(found),
        shown,
        element("footer", f"pptrace {__version__}. A time is the second's less the first's where it has a sign."),
    ]
    document = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
            element("title", title),
            element("style", Markup(STYLE)),
        ),
        element("body", *body),
        lang="en",
    )
    return f"<!DOCTYPE html>\n{document}\n"


def _sections(found: StepDiff, top: int, notes: list[str]) -> Iterator[Markup]:
    ladder = waterfall(found) if found.rungs else element("p", f"No ladder: {found.no_ladder}.")
    yield _section(
        "What changes it",
        "The first step is replayed with the second's durations, then its order, its transfers, its gaps of the "
        "host. The rungs sum to the whole difference.",
        ladder,
    )
    yield _section("Parts of the step", "Mean over ranks; each side's parts sum to its step.", part_bars(found))
    yield _section(
        "Time of an action, second over first",
        "Ratio of the medians by kind and stage: red is slower, green is faster.",
        joined([heat_map(found), sections.kinds(found)]),
    )
    framed = " The red frame is where they part." if found.divergence is not None else ""
    yield _section(
        "Both steps by rank and time",
        f"The first above, the second below, aligned where they start; numbers are microbatches, and outlined "
        f"actions are the critical path.{framed}",
        strips(found),
    )
    yield _section("Where they part", "", sections.parting(found))
    yield _section("Who is to blame", "", sections.blame(found))
    yield _section("Actions that changed most", "", sections.top_actions(found, top))
    yield _section("Messages", "From when both ends were ready until it was there.", sections.messages(found))
    yield _section("Orders", "", sections.orders(found))
    yield _section("Critical path", "Computations, and what lies between them.", sections.paths(found))
    memory = sections.memory(found)
    if memory is not None:
        yield _section("Memory", "", memory)
    if notes:
        yield _section("Notes", "", element("ul", *(element("li", note) for note in notes), class_="plain"))


def _section(title: str, about: str, shown: Markup) -> Markup:
    told = [element("p", about, class_="soft")] if about else []
    return element("section", element("h2", title), *told, shown)
