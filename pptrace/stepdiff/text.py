"""A diff as text: what a terminal shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.model.action import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.stepdiff.diff import StepDiff
    from pptrace.stepdiff.findings import KindRow

__all__ = ["aligned", "diff_lines", "ms"]

_BARELY_NS = 500
"""A time that is shown as 0.000 ms."""


def ms(time_ns: float, *, sign: bool = False) -> str:
    """Return a time in milliseconds.

    >>> ms(1_500_000), ms(-250_000, sign=True)
    ('1.500 ms', '-0.250 ms')
    """
    return f"{time_ns / 1e6:{'+' if sign else ''},.3f} ms"


def diff_lines(found: StepDiff, top: int = 10, notes: Iterable[str] = ()) -> list[str]:
    """Return the report's lines; ``top`` bounds the actions that are listed."""
    sections = [
        _head(found), _ladder(found), _parts(found), _kinds(found), _where(found), _changes(found, top),
        _orders(found), _ways(found), _paths(found), _memory(found), _matched(found),
    ]  # fmt: skip
    lines = [line for section in sections if section for line in (*section, "")]
    return [*lines[:-1], *(f"note: {note}" for note in notes)]


def _head(found: StepDiff) -> list[str]:
    first, second = found.step_ns
    width = max(map(len, found.names))
    change = f"{ms(second - first, sign=True)} ({found.change:+.2%})"
    verdict = f"the same, to {found.tolerance:.1%}" if found.same else "different"
    lines = [
        f"{found.names[0]:<{width}}  {ms(first):>14}",
        f"{found.names[1]:<{width}}  {ms(second):>14}  {change}: {verdict}",
    ]
    for name, spans in zip(found.names, found.spans_ns, strict=True):
        if len(spans) > 1:
            middle = sorted(spans)[(len(spans) - 1) // 2]
            lines.append(f"{name}: {len(spans)} steps, {ms(min(spans))} to {ms(max(spans))}, median {ms(middle)}")
    return lines


def _ladder(found: StepDiff) -> list[str]:
    if not found.rungs:
        return [f"no ladder: {found.no_ladder}"]
    rows = [(rung.name, ms(rung.change_ns, sign=True), ms(rung.reached_ns)) for rung in found.rungs]
    return ["what changes it, one after another", *aligned(rows)]


def _parts(found: StepDiff) -> list[str]:
    rows = [
        (name, ms(first), ms(second), ms(second - first, sign=True))
        for name, (first, second) in found.parts.items()
        if first or second
    ]
    return ["parts of the step, mean over ranks", *aligned(rows)]


def _kinds(found: StepDiff) -> list[str]:
    """Return a map of the ratios of medians, a line per kind and a column per stage."""
    stages = sorted({row.stage for row in found.kinds})
    by = {(row.kind, row.stage): row for row in found.kinds}
    names = [kind.name for kind in Kind if any((kind.name, stage) in by for stage in stages)]
    lines = ["time of an action, second over first, by stage"]
    for low in range(0, len(stages), _COLUMNS):
        shown = stages[low : low + _COLUMNS]
        rows = [("", *(str(stage) for stage in shown))]
        for name in names:
            cells = [by.get((name, stage)) for stage in shown]
            rows.append((name, *map(_ratio, cells)))
        lines += aligned(rows)
    lone = [row for row in found.kinds if not all(row.count)]
    if lone:
        lines.append(f"  !: on one side only ({', '.join(f'{row.stage}{row.kind}' for row in lone[:8])})")
    return lines


_COLUMNS = 16
"""Stages beside each other."""


def _ratio(row: KindRow | None) -> str:
    if row is None:
        return "-"
    return "!" if row.ratio is None else f"{row.ratio:.3f}"


def _where(found: StepDiff) -> list[str]:
    lines = []
    if found.divergence is not None:
        one = found.divergence
        late = "late" if one.late_ns > 0 else "early"
        lines.append(
            f"parts at {ms(one.at_ns)}: rank {one.rank}, {one.action} ends {ms(abs(one.late_ns))} {late}, "
            f"{ms(one.own_ns, sign=True)} of it its own"
        )
        if one.chain:
            lines.append(f"  released by {', '.join(one.chain)}")
    for culprit in found.culprits:
        share = f" {culprit.share:+.1%}" if culprit.share else ""
        lines.append(f"{culprit.sort}: {culprit.what}{share}, {ms(culprit.total_ns, sign=True)} in sum")
    return lines


def _changes(found: StepDiff, top: int) -> list[str]:
    if not found.changes:
        return []
    rows = [
        (f"rank {one.rank}", str(one.action), ms(one.first_ns), ms(one.second_ns), ms(one.change_ns, sign=True))
        for one in found.changes[:top]
        if abs(one.change_ns) > _BARELY_NS or one is found.changes[0]
    ]
    noise = f"; {found.noise} more lie within the steps' own noise" if found.noise else ""
    return [f"actions that changed most, of {len(found.changes)}{noise}", *aligned(rows)]


def _orders(found: StepDiff) -> list[str]:
    return [
        f"order of rank {one.rank} parts behind {one.position} actions: {one.first or 'nothing'} there, "
        f"{one.second or 'nothing'} here"
        for one in found.orders
    ]


def _ways(found: StepDiff) -> list[str]:
    rows = []
    for way in found.ways:
        cells = []
        for side in (0, 1):
            rate = way.rate(side)
            took = ms(way.median_ns[side]) if way.median_ns[side] >= 0 else "not seen"
            cells.append(f"{took}{f' ({rate / 1e9:.3g} GB/s)' if rate else ''}")
        rows.append((f"{way.source} to {way.target}", f"{way.count[0]}, {way.count[1]}", *cells))
    return ["messages between ranks: how many, median time", *aligned(rows)] if rows else []


def _paths(found: StepDiff) -> list[str]:
    first, second = (chain.by_kind_ns for chain in found.chains)
    rows = [
        (
            kind,
            ms(first.get(kind, 0)),
            ms(second.get(kind, 0)),
            ms(second.get(kind, 0) - first.get(kind, 0), sign=True),
        )
        for kind in dict.fromkeys([*first, *second])
    ]
    lines = ["critical path: computations, and what lies between", *aligned(rows)]
    if found.parted is not None:
        one = found.parted
        before = f"{one.first or 'its beginning'} there, {one.second or 'its beginning'} here"
        lines.append(f"  parts {one.common} computations before the end: {before}")
    return lines


def _memory(found: StepDiff) -> list[str]:
    first, second = (int(metrics.memory.peak_activation_bytes.max(initial=0)) for metrics in found.metrics)
    if not (first and second):
        return []
    return [f"peak activations: {first / 2**30:.3g} GiB, {second / 2**30:.3g} GiB"]


def _matched(found: StepDiff) -> list[str]:
    pairs = found.matched
    alone = (pairs.only_first.size, pairs.only_second.size)
    line = f"matched {len(pairs)} actions"
    if pairs.by_order:
        line += f", {pairs.by_order} of them by order alone"
    if any(alone):
        line += f"; {alone[0]} are in the first step only, {alone[1]} in the second"
    if found.folded:
        stages = ", ".join(map(str, found.folded))
        line += f"; stage {stages}: input and weight gradient taken as one backward"
    return [line]


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return rows with aligned columns, the first to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    lines = []
    for row in rows:
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join(["", row[0].ljust(len(first)), *others]))
    return lines
