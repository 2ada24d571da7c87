"""The report's lists and tables: where the steps part, who is to blame, what changed most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.analysis.steps.words import ms
from pptrace.config.quantity import format_rate
from pptrace.present.diff_words import (
    change_ms,
    kind_rows,
    memory_rows,
    memory_title,
    parting_words,
    path_rows,
    several,
    share,
    verdict,
)
from pptrace.present.elements import Markup, element, joined, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.analysis.diff.findings import Way
    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = [
    "blame",
    "head",
    "kinds",
    "matched_line",
    "memory",
    "messages",
    "orders",
    "parting",
    "paths",
    "top_actions",
]

_MOST_ROWS = _MOST_RANKS = 32
"""Ranks and ways that are told one by one."""


def head(found: StepDiff) -> Markup:
    """Return both steps' lengths, the verdict, and what was matched."""
    first, second = found.step_ns
    changes = ("", change_ms(second - first, found.change_varies_ns))
    cells = [
        cell
        for side, word in enumerate(("first", "second"))
        for cell in (
            element("span", element("i", class_=f"key {('one', 'two')[side]}"), word),
            element("span", found.names[side], class_="name"),
            element("b", ms(found.step_ns[side], found.step_varies_ns[side])),
            element("b", changes[side]),
        )
    ]
    told = verdict(found) if found.same else f"{found.change:+.2%}: {verdict(found)}"
    return joined([
        element("div", *cells, class_="sides"),
        *(element("p", line, class_="soft") for line in several(found)),
        element("p", told, class_=f"verdict {'same' if found.same else 'different'}"),
        element("p", matched_line(found), class_="soft"),
    ])  # fmt: skip


def parting(found: StepDiff) -> Markup:
    """Return the first action that is off, and what led to it, the oldest first."""
    one = found.divergence
    if one is None:
        return element("p", "Every action ends in time.")
    told = f"A{parting_words(one)[1:]}."
    links = [*reversed(one.chain), f"rank {one.rank}: {one.action}"]
    chain = element("ol", *(element("li", link) for link in links), class_="chain")
    return joined([element("p", told), element("p", "What released it, one after another:", class_="soft"), chain])


def blame(found: StepDiff) -> Markup:
    """Return what is slow or fast throughout, and what stands out."""
    if not found.culprits:
        return element("p", "Nothing is slower or faster throughout by more than the tolerance.")
    rows = [
        (one.sort, one.what, share(one) if one.share else "", ms(one.total_ns, sign=True))
        for one in found.culprits
    ]
    return table(("what", "which", "its times", "in sum"), rows, words=2)


def kinds(found: StepDiff) -> Markup:
    """Return how many actions of each kind and stage there are, their medians and spread."""
    rows = kind_rows(found)
    more = len(rows) - _MOST_ROWS
    told = [element("p", f"and {more} further, whose medians changed less", class_="soft")] if more > 0 else []
    titles = ("action", "how many", "median, first", "second", "spread, first", "second")
    return joined([table(titles, rows[:_MOST_ROWS]), *told])


def top_actions(found: StepDiff, top: int) -> Markup:
    """Return the actions that changed most."""
    noise = f"{found.noise} more lie within the steps' own noise." if found.noise else ""
    if not found.changes:
        return element("p", f"No action took another time. {noise}".strip())
    varies = any(one.noise_ns for one in found.changes)
    rows = [
        (
            f"rank {one.rank}", str(one.action), ms(one.at_ns), ms(one.first_ns), ms(one.second_ns),
            change_ms(one.change_ns, one.noise_ns if varies else None),
        )
        for one in found.changes[:top]
    ]  # fmt: skip
    told = f"{min(top, len(found.changes))} of {len(found.changes)} that changed. {noise}".strip()
    titles = ("rank", "action", "starts at", "first", "second", "change")
    return joined([element("p", told, class_="soft"), table(titles, rows, words=2)])


def messages(found: StepDiff) -> Markup:
    """Return messages by sender and receiver."""
    if not found.ways:
        return element("p", "No messages between ranks.")
    rows = [
        (
            f"rank {way.source} to rank {way.target}", f"{way.count[0]}, {way.count[1]}",
            _bytes(way, 0), _bytes(way, 1), _took(way, 0), _took(way, 1), _rate(way, 0), _rate(way, 1),
        )
        for way in _changed_most(found.ways)
    ]  # fmt: skip
    titles = ("way", "how many", "bytes, first", "second", "median, first", "second", "rate, first", "second")
    more = len(found.ways) - len(rows)
    told = [element("p", f"and {more} further ways, whose medians changed less", class_="soft")] if more else []
    return joined([table(titles, rows), *told])


def orders(found: StepDiff) -> Markup:
    """Return where the ranks' orders part."""
    if not found.orders:
        return element("p", "Every rank computes in the same order.")
    rows = [
        (f"rank {one.rank}", one.first or "nothing", one.second or "nothing", f"{one.position}")
        for one in found.orders[:_MOST_ROWS]
    ]
    more = len(found.orders) - _MOST_ROWS
    told = [element("p", f"and {more} further ranks", class_="soft")] if more > 0 else []
    return joined([table(("rank", "first has", "second has", "behind so many actions"), rows, words=3), *told])


def paths(found: StepDiff) -> Markup:
    """Return the critical paths by kind, and where they part."""
    rows = path_rows(found)
    shown = table(("kind", "first", "second", "change"), rows)
    one = found.parted
    if one is None:
        return shown
    told = f"{one.first or 'its beginning'} in the first, {one.second or 'its beginning'} in the second"
    return joined([shown, element("p", f"They part {one.common} computations before the end: {told}.")])


def memory(found: StepDiff) -> Markup | None:
    """Return both peaks by rank; None where nothing is known that differs."""
    rows = memory_rows(found)
    if not rows:
        return None
    more = len(rows) - _MOST_RANKS
    told = [element("p", f"and {more} further ranks", class_="soft")] if more > 0 else []
    title = memory_title(found)
    about = element("p", f"{title[0].upper()}{title[1:]}.", class_="soft")
    return joined([about, table(("rank", "first", "second", "change"), rows[:_MOST_RANKS]), *told])


def matched_line(found: StepDiff) -> str:
    """Return what was matched with what, in a sentence."""
    pairs = found.matched
    if found.unlike:
        return f"Actions are not compared: {found.unlike}."
    parts = [f"{len(pairs)} actions matched"]
    if pairs.by_order:
        parts.append(f"{pairs.by_order} of them by order alone")
    if pairs.only_first.size or pairs.only_second.size:
        parts.append(f"{pairs.only_first.size} are in the first only, {pairs.only_second.size} in the second only")
    if found.folded:
        parts.append(f"stage {', '.join(map(str, found.folded))}: input and weight gradient taken as one backward")
    return "; ".join(parts) + "."


def _changed_most(ways: Sequence[Way]) -> list[Way]:
    """Return the ways to show, in their order: all, or those whose medians changed most."""
    order = sorted(range(len(ways)), key=lambda at: (-abs(ways[at].median_ns[1] - ways[at].median_ns[0]), at))
    return [ways[at] for at in sorted(order[:_MOST_ROWS])]


def _bytes(way: Way, side: int) -> str:
    return f"{way.size_bytes[side]:,}" if way.count[side] else ""


def _took(way: Way, side: int) -> str:
    return ms(way.median_ns[side], way.varies_ns[side]) if way.median_ns[side] >= 0 else "not seen"


def _rate(way: Way, side: int) -> str:
    rate = way.rate(side)
    return format_rate(round(rate)) if rate else ""
