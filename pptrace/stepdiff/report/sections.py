"""The report's lists and tables: where the steps part, who is to blame, what changed most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.stepdiff.report.elements import Markup, element, joined, table
from pptrace.stepdiff.text import ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.stepdiff.diff import StepDiff
    from pptrace.stepdiff.findings import Way

__all__ = ["blame", "head", "matched_line", "memory", "messages", "orders", "parting", "paths", "top_actions"]

_MOST_ROWS = 32
"""Ranks and ways that are told one by one."""


def head(found: StepDiff) -> Markup:
    """Return both steps' lengths, the verdict, and what was matched."""
    first, second = found.step_ns
    changes = ("", ms(second - first, sign=True))
    cells = [
        cell
        for side, word in enumerate(("first", "second"))
        for cell in (
            element("span", element("i", class_=f"key {('one', 'two')[side]}"), word),
            element("span", found.names[side], class_="name"),
            element("b", ms(found.step_ns[side])),
            element("b", changes[side]),
        )
    ]
    verdict = f"the same, to {found.tolerance:.1%}" if found.same else f"different: {found.change:+.2%}"
    return joined([
        element("div", *cells, class_="sides"),
        *(element("p", line, class_="soft") for line in _several(found)),
        element("p", verdict, class_=f"verdict {'same' if found.same else 'different'}"),
        element("p", matched_line(found), class_="soft"),
    ])  # fmt: skip


def parting(found: StepDiff) -> Markup:
    """Return the first action that is off, and what led to it, the oldest first."""
    one = found.divergence
    if one is None:
        return element("p", "Every action ends in time.")
    late = "late" if one.late_ns > 0 else "early"
    told = (
        f"At {ms(one.at_ns)}: rank {one.rank}, {one.action} ends {ms(abs(one.late_ns))} {late}, "
        f"{ms(one.own_ns, sign=True)} of it its own."
    )
    links = [*reversed(one.chain), f"rank {one.rank}: {one.action}"]
    chain = element("ol", *(element("li", link) for link in links), class_="chain")
    return joined([element("p", told), element("p", "What released it, one after another:", class_="soft"), chain])


def blame(found: StepDiff) -> Markup:
    """Return what is slow or fast throughout, and what stands out."""
    if not found.culprits:
        return element("p", "Nothing is slower or faster throughout by more than the tolerance.")
    rows = [
        (one.sort, one.what, f"{one.share:+.1%}" if one.share else "", ms(one.total_ns, sign=True))
        for one in found.culprits
    ]
    return table(("what", "which", "its times", "in sum"), rows, words=2)


def top_actions(found: StepDiff, top: int) -> Markup:
    """Return the actions that changed most."""
    noise = f"{found.noise} more lie within the steps' own noise." if found.noise else ""
    if not found.changes:
        return element("p", f"No action took another time. {noise}".strip())
    varies = any(one.noise_ns for one in found.changes)
    rows = [
        (
            f"rank {one.rank}", str(one.action), ms(one.at_ns), ms(one.first_ns), ms(one.second_ns),
            ms(one.change_ns, sign=True), *([ms(one.noise_ns)] if varies else []),
        )
        for one in found.changes[:top]
    ]  # fmt: skip
    told = f"{min(top, len(found.changes))} of {len(found.changes)} that changed. {noise}".strip()
    titles = ("rank", "action", "starts at", "first", "second", "change", *(["varies by"] if varies else []))
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
    first, second = (chain.by_kind_ns for chain in found.chains)
    pairs = [(kind, first.get(kind, 0), second.get(kind, 0)) for kind in dict.fromkeys([*first, *second])]
    rows = [(kind, ms(before), ms(after), ms(after - before, sign=True)) for kind, before, after in pairs]
    shown = table(("kind", "first", "second", "change"), rows)
    one = found.parted
    if one is None:
        return shown
    told = f"{one.first or 'its beginning'} in the first, {one.second or 'its beginning'} in the second"
    return joined([shown, element("p", f"They part {one.common} computations before the end: {told}.")])


def memory(found: StepDiff) -> Markup | None:
    """Return both peaks of activations; None where a side knows none."""
    peaks = [int(metrics.memory.peak_activation_bytes.max(initial=0)) for metrics in found.metrics]
    if not all(peaks):
        return None
    return element("p", f"Peak of activations: {peaks[0] / 2**30:.3g} GiB, {peaks[1] / 2**30:.3g} GiB.")


def matched_line(found: StepDiff) -> str:
    """Return what was matched with what, in a sentence."""
    pairs = found.matched
    parts = [f"{len(pairs)} actions matched"]
    if pairs.by_order:
        parts.append(f"{pairs.by_order} of them by order alone")
    if pairs.only_first.size or pairs.only_second.size:
        parts.append(f"{pairs.only_first.size} are in the first only, {pairs.only_second.size} in the second only")
    if found.folded:
        parts.append(f"stage {', '.join(map(str, found.folded))}: input and weight gradient taken as one backward")
    return "; ".join(parts) + "."


def _several(found: StepDiff) -> Iterator[str]:
    """Yield what there is to say of sides with several steps."""
    for name, spans in zip(found.names, found.spans_ns, strict=True):
        if len(spans) > 1:
            middle = sorted(spans)[(len(spans) - 1) // 2]
            yield f"{name}: {len(spans)} steps, {ms(min(spans))} to {ms(max(spans))}, median {ms(middle)}."


def _changed_most(ways: Sequence[Way]) -> list[Way]:
    """Return the ways to show, in their order: all, or those whose medians changed most."""
    order = sorted(range(len(ways)), key=lambda at: (-abs(ways[at].median_ns[1] - ways[at].median_ns[0]), at))
    return [ways[at] for at in sorted(order[:_MOST_ROWS])]


def _bytes(way: Way, side: int) -> str:
    return f"{way.size_bytes[side]:,}" if way.count[side] else ""


def _took(way: Way, side: int) -> str:
    return ms(way.median_ns[side]) if way.median_ns[side] >= 0 else "not seen"


def _rate(way: Way, side: int) -> str:
    rate = way.rate(side)
    return f"{rate / 1e9:.3g} GB/s" if rate else ""
