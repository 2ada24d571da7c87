"""A diff as text: what a terminal shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.analysis.diff.replicates import deviation
from pptrace.analysis.steps.words import aligned, ms
from pptrace.config.quantity import format_rate
from pptrace.model.action import Kind
from pptrace.present.diff_words import (
    change_ms,
    kind_rows,
    memory_rows,
    memory_title,
    parting_words,
    path_rows,
    ratio,
    several,
    share,
    verdict,
    way_sizes,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.analysis.diff.findings import KindRow
    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = ["diff_lines"]

_BARELY_NS = 500
"""A time that is shown as 0.000 ms."""


def diff_lines(found: StepDiff, top: int = 10, notes: Iterable[str] = ()) -> list[str]:
    """Return the report's lines, few where nothing differs; ``top`` bounds the actions that are listed."""
    first, second = found.steps
    if found.step_ns[0] == found.step_ns[1] and first.equals(second):
        sections = [_head(found), [_nothing(found)]]
    else:
        sections = [
            _head(found), _ladder(found), _parts(found), _kinds(found), _where(found), _changes(found, top),
            _orders(found), _ways(found), _paths(found), _memory(found), _matched(found),
        ]  # fmt: skip
    lines = [line for section in sections if section for line in (*section, "")]
    return [*lines[:-1], *(f"note: {note}" for note in notes)]


def _nothing(found: StepDiff) -> str:
    step = found.steps[0]
    return f"no difference: {len(step)} actions in the same order, {len(step.transfers)} messages, all times equal"


def _head(found: StepDiff) -> list[str]:
    first, second = found.step_ns
    width = max(map(len, found.names))
    lengths = [ms(length, varies) for length, varies in zip(found.step_ns, found.step_varies_ns, strict=True)]
    wide = max(14, *map(len, lengths))
    change = f"{change_ms(second - first, found.change_varies_ns)} ({found.change:+.2%})"
    lines = [
        f"{found.names[0]:<{width}}  {lengths[0]:>{wide}}",
        f"{found.names[1]:<{width}}  {lengths[1]:>{wide}}  {change}: {verdict(found)}",
    ]
    if found.ranks[0] != found.ranks[1]:
        lines.append(f"the first has {found.ranks[0]} ranks, the second {found.ranks[1]}")
    return [*lines, *several(found)]


def _ladder(found: StepDiff) -> list[str]:
    if not found.rungs:
        return [f"no ladder: {found.no_ladder}"]
    rows = [(rung.name, change_ms(rung.change_ns, rung.spread_ns), ms(rung.reached_ns)) for rung in found.rungs]
    return ["what changes it, one after another", *aligned(rows)]


def _parts(found: StepDiff) -> list[str]:
    rows = []
    for name, (first, second) in found.parts.items():
        if first or second:
            varies = found.parts_vary_ns[name]
            change = change_ms(second - first, deviation(*varies))
            rows.append((name, ms(first, varies[0]), ms(second, varies[1]), change))
    return ["parts of the step, mean over ranks", *aligned(rows)]


def _kinds(found: StepDiff) -> list[str]:
    """Return a map of the ratios of medians, a line per kind and a column per stage."""
    if not found.kinds:
        return []
    stages = sorted({row.stage for row in found.kinds})
    by = {(row.kind, row.stage): row for row in found.kinds}
    names = [kind.name for kind in Kind if any((kind.name, stage) in by for stage in stages)]
    lines = ["time of an action, second over first, by stage"]
    columns = _COLUMNS // 2 if found.varies else _COLUMNS
    for low in range(0, len(stages), columns):
        shown = stages[low : low + columns]
        rows = [("", *(str(stage) for stage in shown))]
        rows += [(name, *(_ratio(by.get((name, stage))) for stage in shown)) for name in names]
        lines += aligned(rows)
    lone = [row for row in found.kinds if not all(row.count)]
    if lone:
        lines.append(f"  !: on one side only ({', '.join(f'{row.stage}{row.kind}' for row in lone[:8])})")
    rows = [("", "how many", "median, first", "second", "spread, first", "second"), *kind_rows(found)]
    more = len(rows) - 1 - _MOST_KINDS
    lines += ["", *aligned(rows[: _MOST_KINDS + 1])]
    return [*lines, f"  and {more} further, whose medians changed less"] if more > 0 else lines


_MOST_KINDS = 12
"""Kinds of stages that are told one by one."""
_COLUMNS = 16
"""Stages beside each other."""


def _ratio(row: KindRow | None) -> str:
    if row is None:
        return "-"
    return "!" if row.ratio is None else ratio(row)


def _where(found: StepDiff) -> list[str]:
    lines = [] if found.divergence is None else [f"parts {parting_words(found.divergence)}"]
    if found.divergence is not None and found.divergence.chain:
        lines.append(f"  released by {', '.join(found.divergence.chain)}")
    lines += [
        f"{one.sort}: {one.what}{f' {share(one)}' if one.share else ''}, {ms(one.total_ns, sign=True)} in sum"
        for one in found.culprits
    ]
    return lines


def _changes(found: StepDiff, top: int) -> list[str]:
    noise = f"{found.noise} more lie within the steps' own noise" if found.noise else ""
    if not found.changes:
        return [f"no action changed beyond the steps' own noise: {found.noise} lie within it"] if noise else []
    rows = [
        (
            f"rank {one.rank}", str(one.action), ms(one.first_ns), ms(one.second_ns),
            change_ms(one.change_ns, one.noise_ns or None),
        )
        for one in found.changes[:top]
        if abs(one.change_ns) > _BARELY_NS or one is found.changes[0]
    ]  # fmt: skip
    return [f"actions that changed most, of {len(found.changes)}{noise and f'; {noise}'}", *aligned(rows)]


def _orders(found: StepDiff) -> list[str]:
    return [
        f"order of rank {one.rank} parts behind {one.position} action{'s' * (one.position != 1)}: "
        f"{one.first or 'nothing'} there, {one.second or 'nothing'} here"
        for one in found.orders
    ]


def _ways(found: StepDiff) -> list[str]:
    rows = []
    for way in found.ways:
        cells = []
        for side in (0, 1):
            rate = way.rate(side)
            took = ms(way.median_ns[side], way.varies_ns[side]) if way.median_ns[side] >= 0 else "not seen"
            cells += [took, format_rate(round(rate)) if rate else ""]
        rows.append((f"{way.source} to {way.target}", f"{way.count[0]}, {way.count[1]}", way_sizes(way), *cells))
    return ["messages between ranks: how many, their size, median time and rate", *aligned(rows)] if rows else []


def _paths(found: StepDiff) -> list[str]:
    lines = ["critical path: computations, and what lies between", *aligned(path_rows(found))]
    if found.parted is not None:
        one = found.parted
        before = f"{one.first or 'its beginning'} there, {one.second or 'its beginning'} here"
        lines.append(f"  parts {one.common} computations before the end: {before}")
    return lines


def _memory(found: StepDiff) -> list[str]:
    rows = memory_rows(found)
    more = [f"  and {len(rows) - _MOST_RANKS} further ranks"] if len(rows) > _MOST_RANKS else []
    return [f"{memory_title(found)}, by rank", *aligned(rows[:_MOST_RANKS]), *more] if rows else []


_MOST_RANKS = 16
"""Ranks whose memory is listed."""


def _matched(found: StepDiff) -> list[str]:
    pairs = found.matched
    alone = (pairs.only_first.size, pairs.only_second.size)
    if found.unlike:
        return [f"actions are not compared: {found.unlike}"]
    line = f"matched {len(pairs)} actions"
    if pairs.by_order:
        line += f", {pairs.by_order} of them by order alone"
    if any(alone):
        line += f"; {alone[0]} are in the first step only, {alone[1]} in the second"
    if found.folded:
        stages = ", ".join(map(str, found.folded))
        line += f"; stage {stages}: input and weight gradient taken as one backward"
    return [line]
