"""A diff's tables and sentences: what changes it, where it begins, who is to blame, what changed most."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pptrace.analysis.figure import Figure
from pptrace.analysis.steps.path import BETWEEN
from pptrace.config.quantity import format_rate, format_size
from pptrace.model.kinds import Kind
from pptrace.present.document import Cell, Line, Table
from pptrace.present.figures import BARELY_NS, MARK, change, ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pptrace.analysis.diff.divergence import Divergence, Link
    from pptrace.analysis.diff.findings import KindRow, Way
    from pptrace.analysis.diff.step_diff import StepDiff
    from pptrace.analysis.figure import Sides
    from pptrace.present.document import Block

__all__ = [
    "changes",
    "divergence",
    "divergence_words",
    "groups",
    "kinds",
    "ladder",
    "memory",
    "memory_title",
    "messages",
    "orders",
    "parts",
    "paths",
    "ratios",
    "way_sizes",
]

_MOST = 32
"""Kinds, ranks and ways that are listed one by one."""
_FAINTEST_RANGE = math.log(1.1)
"""How large the largest ratio is at least taken for."""
_COMPARED = ("first", "second", "change")


def ladder(findings: StepDiff) -> Table:
    """Return what changes the step, one after another, and how long it is then."""
    rows = tuple((one.name, change(one.change_ns), ms(one.reached_ns)) for one in findings.ladder)
    return Table(rows=rows, unchanged=_places(_barely(one.change_ns.value) for one in findings.ladder))


def _places(unchanged: Iterable[bool]) -> frozenset[int]:
    return frozenset(place for place, same in enumerate(unchanged) if same)


def _barely(time_ns: float) -> bool:
    return abs(time_ns) < BARELY_NS


def parts(findings: StepDiff) -> Table:
    """Return the parts of both steps."""
    return _compared(findings.parts_ns)


def groups(findings: StepDiff) -> tuple[Block, ...]:
    """Return communication within ranks' own groups, and what computation hid of it; nothing without any."""
    return (_compared(findings.groups_ns),) if findings.groups_ns else ()


def _compared(times: Mapping[str, Sides]) -> Table:
    listed = {name: pair for name, pair in times.items() if any(one.value for one in pair) or name == BETWEEN}
    rows = tuple((name, ms(pair.first), ms(pair.second), change(pair.change)) for name, pair in listed.items())
    unchanged = _places(_barely(pair.change.value) for pair in listed.values())
    return Table(head=("", *_COMPARED), rows=rows, unchanged=unchanged)


def ratios(findings: StepDiff) -> tuple[Block, ...]:
    """Return a map of the ratios of medians, a row per kind and a column per stage."""
    if not findings.kinds:
        return ()
    stages = sorted({stage for _, stage in findings.kinds})
    names = [kind.name for kind in Kind if any((kind.name, stage) in findings.kinds for stage in stages)]
    known = [row.ratio.value for row in findings.kinds.values() if row.ratio is not None]
    reach = max(_FAINTEST_RANGE, *(abs(math.log(ratio)) for ratio in known), 0)
    rows = tuple((name, *(_ratio(findings.kinds.get((name, stage)), reach) for stage in stages)) for name in names)
    alone = [f"{row.stage}{row.kind}" for row in findings.kinds.values() if not all(row.count)]
    return (
        Table(head=("", *map(str, stages)), rows=rows, splits=True),
        *([Line(text=f"!: on one side only ({', '.join(alone)})")] if alone else []),
    )


def _ratio(row: KindRow | None, reach: float) -> str | Cell:
    if row is None:
        return "-"
    title = (
        f"{row.kind} of stage {row.stage}: {row.count[0]} and {row.count[1]} actions, "
        f"median {ms(row.median_ns.first)} and {ms(row.median_ns.second)}"
    )
    if row.ratio is None:
        return Cell(text="!", title=title)
    return Cell(text=_ratio_text(row.ratio), title=title, shade=math.log(row.ratio.value) / reach)


def _ratio_text(ratio: Figure) -> str:
    if ratio.deviation is None:
        return f"{ratio.value:.3f}"
    beyond = Figure(ratio.value - 1, ratio.deviation)
    return f"{ratio.value:.3f} ±{ratio.deviation:.3f}{MARK if ratio.deviation and beyond.is_noise else ''}"


def kinds(findings: StepDiff) -> tuple[Block, ...]:
    """Return how many actions of each kind and stage there are, medians and spread, what changed most first."""
    ordered = sorted(findings.kinds.values(), key=lambda row: -abs(row.median_ns.change.value))
    rows = [
        (
            f"{row.stage}{row.kind}", _counts(row.count), *map(ms, row.median_ns),
            *(ms(median.spread or 0) for median in row.median_ns),
        )
        for row in ordered
    ]  # fmt: skip
    return _bounded(
        ("", "how many", "median, first", "second", "spread, first", "second"),
        rows,
        "kinds, whose medians changed less",
        unchanged=_places(_equals(row, findings.tolerance) for row in ordered),
    )


def _equals(row: KindRow, tolerance: float) -> bool:
    return row.ratio is not None and abs(row.ratio.value - 1) <= tolerance


def divergence(findings: StepDiff) -> tuple[Block, ...]:
    """Return the first action that is off, and what released it."""
    one = findings.divergence
    if one is None:
        return ()
    links = ", ".join(map(_link, one.chain))
    return (Line(text=divergence_words(one)), *([Line(text=f"released by {links}")] if links else []))


def divergence_words(one: Divergence) -> str:
    """Return where the steps begin to differ, in a sentence."""
    late = "late" if one.late_ns.value > 0 else "early"
    times = [
        (one.own_ns, "its own time"),
        (one.message_ns, f"its input's way from rank {one.source}"),
        (one.idle_ns, "until it was begun"),
        (one.released_ns, "from what released it"),
    ]
    why = ", ".join(f"{ms(time, sign=True)} {what}" for time, what in times if abs(time) >= BARELY_NS)
    ends = f"ends {ms(Figure(abs(one.late_ns.value), one.late_ns.deviation))} {late}"
    order = f"; it comes behind {one.behind[0]} there, behind {one.behind[1]} here" if any(one.behind) else ""
    return f"at {ms(one.at_ns)}: rank {one.rank}, {one.action} {ends}{why and f': {why}'}{order}"


def _link(link: Link) -> str:
    late = "" if link.late_ns is None else f" {ms(link.late_ns, sign=True)}"
    return f"rank {link.rank}: {link.action}{late}"


def changes(findings: StepDiff, top: int) -> tuple[Block, ...]:
    """Return the actions that changed most."""
    noise = f"{findings.noise} more lie within the steps' own noise" if findings.noise else ""
    rows = tuple(
        (
            f"rank {one.rank}",
            str(one.action),
            ms(one.at_ns),
            ms(one.first_ns),
            ms(one.second_ns),
            change(one.change_ns),
        )
        for one in findings.changes[:top]
        if abs(one.change_ns.value) > BARELY_NS or one is findings.changes[0]
    )
    table = Table(head=("", "", "starts at", *_COMPARED), rows=rows, words=2)
    return (*([table] if rows else []), *([Line(text=noise, tone="soft")] if noise else []))


def orders(findings: StepDiff) -> tuple[Block, ...]:
    """Return where the ranks' orders differ."""
    rows = [
        (f"rank {one.rank}", one.first or "nothing", one.second or "nothing", str(one.position))
        for one in findings.orders
    ]
    return _bounded(("", "first has", "second has", "behind so many actions"), rows, "ranks", words=3)


def messages(findings: StepDiff) -> tuple[Block, ...]:
    """Return messages by sender and receiver: all ways, or those whose medians changed most."""
    most = sorted(findings.ways.values(), key=_way_change)[:_MOST]
    head = ("", "how many", "size", "median, first", "rate", "second", "rate")
    listed = sorted(most, key=lambda way: (way.source, way.target))
    rows = [(f"{way.source} to {way.target}", _counts(way.count), way_sizes(way), *_times(way)) for way in listed]
    rest = "ways, whose medians changed less"
    unchanged = _places(_same_way(way, findings.tolerance) for way in listed)
    return _bounded(head, rows, rest, all_of_them=len(findings.ways), unchanged=unchanged)


def _same_way(way: Way, tolerance: float) -> bool:
    first, second = way.median_ns
    return first.known and second.known and abs(way.median_ns.change.value) <= tolerance * first.value


def _way_change(way: Way) -> float:
    return -abs(way.median_ns.change.value) if way.median_ns.change.known else 0.0


def _times(way: Way) -> list[str]:
    cells = []
    for median, rate in zip(way.median_ns, way.bytes_per_s, strict=True):
        cells += [ms(median) if median.known else "not seen", format_rate(round(rate)) if rate else ""]
    return cells


def way_sizes(way: Way) -> str:
    """Return the mean size of a way's messages, of both sides where they differ."""
    sizes = [size // max(count, 1) for size, count in zip(way.size_bytes, way.count, strict=True)]
    known = dict.fromkeys(format_size(size) if size else "?" for size in sizes)
    return "" if set(known) == {"?"} else ", ".join(known)


def paths(findings: StepDiff) -> tuple[Block, ...]:
    """Return what both critical paths consist of, and where they differ."""
    one = findings.paths_differ
    if one is None:
        return (_compared(findings.paths_ns),)
    before = f"{one.first or 'its beginning'} there, {one.second or 'its beginning'} here"
    return (_compared(findings.paths_ns), Line(text=f"differs {one.common} computations before the end: {before}"))


def memory_title(findings: StepDiff) -> str:
    """Return what :func:`memory` lists."""
    if not any(one.peak_bytes is not None for one in findings.memory):
        return "microbatches whose activations are held, at most, by rank"
    room = {int(size) for metrics in findings.metrics for size in metrics.memory.room_bytes} - {0}
    devices = f" (a device has {format_size(room.pop())})" if len(room) == 1 else ""
    return f"memory at its peak{devices}, by rank"


def memory(findings: StepDiff) -> tuple[Block, ...]:
    """Return a row per rank: bytes where both sides know them, else how many microbatches' activations."""
    rows = []
    for one in findings.memory:
        if one.peak_bytes is not None:
            first, second = one.peak_bytes
            larger = f"{'+' if second >= first else '-'}{format_size(abs(second - first))}"
            rows.append((f"rank {one.rank}", format_size(first), format_size(second), larger))
        else:
            first, second = one.activations
            rows.append((f"rank {one.rank}", str(first), str(second), f"{second - first:+}"))
    unchanged = _places(row[1] == row[2] for row in rows)
    return _bounded(("", *_COMPARED), rows, "ranks", unchanged=unchanged)


def _counts(count: tuple[int, int]) -> str:
    return f"{count[0]}, {count[1]}"


def _bounded(
    head: tuple[str, ...],
    rows: Sequence[tuple[str, ...]],
    rest: str,
    *,
    words: int = 1,
    all_of_them: int = 0,
    unchanged: frozenset[int] = frozenset(),
) -> tuple[Block, ...]:
    """Return a table of as many rows as are listed, and how many are not; nothing for none."""
    more = max(all_of_them, len(rows)) - min(len(rows), _MOST)
    folded = frozenset(place for place in unchanged if place < _MOST)
    listed = Table(head=head, rows=tuple(rows[:_MOST]), words=words, unchanged=folded)
    return (*([listed] if rows else []), *([Line(text=f"and {more} further {rest}", tone="soft")] if more else []))
