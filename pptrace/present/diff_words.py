"""Figures of a diff as words, for the terminal and the report alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.analysis.diff.replicates import SIGMAS, deviation, within_noise
from pptrace.analysis.steps.words import MARK, ms
from pptrace.config.quantity import format_size

if TYPE_CHECKING:
    from pptrace.analysis.diff.culprits import Culprit
    from pptrace.analysis.diff.divergence import Divergence
    from pptrace.analysis.diff.findings import KindRow, Way
    from pptrace.analysis.diff.step_diff import StepDiff

__all__ = [
    "change_ms",
    "kind_rows",
    "memory_rows",
    "memory_title",
    "parting_words",
    "path_rows",
    "ratio",
    "several",
    "share",
    "verdict",
    "way_sizes",
]

_BARELY_NS = 500
"""A time that is shown as 0.000 ms."""


def change_ms(time_ns: float, spread_ns: float | None = None) -> str:
    """Return a change in milliseconds, marked where it lies within the steps' own noise.

    >>> change_ms(1_500_000, 20_000), change_ms(50_000, 20_000)
    ('+1.500 ±0.020 ms', '+0.050 ±0.020 ms ~')
    """
    quiet = MARK if within_noise(time_ns, spread_ns) and spread_ns else ""
    return f"{ms(time_ns, spread_ns, sign=True)}{quiet}"


def verdict(found: StepDiff) -> str:
    """Return whether the steps are the same, and what makes them different where their lengths do not."""
    if found.same:
        return f"the same, to {found.tolerance:.1%}"
    if abs(found.change) > found.tolerance:
        quiet = found.change_varies_ns and within_noise(
            found.step_ns[1] - found.step_ns[0], found.change_varies_ns
        )
        return f"different{', but no more than steps of one side do' if quiet else ''}"
    reasons = [f"{len(found.orders)} rank{'s' * (len(found.orders) > 1)} in order"] if found.orders else []
    off = [row for row in found.kinds if row.ratio is None or abs(row.ratio - 1) > found.tolerance]
    if off:
        more = f" and {len(off) - _NAMED} more" if len(off) > _NAMED else ""
        reasons.append(f"times of {', '.join(f'{row.stage}{row.kind}' for row in off[:_NAMED])}{more}")
    if found.unlike:
        reasons.append("number of stages")
    return f"different: {' and '.join(reasons)}"


_NAMED = 4
"""Kinds of stages that a verdict names."""


def several(found: StepDiff) -> list[str]:
    """Return what there is to say of sides with several steps."""
    lines = []
    for name, spans, pools in zip(found.names, found.spans_ns, found.pools, strict=True):
        if len(spans) > 1:
            middle = sorted(spans)[(len(spans) - 1) // 2]
            used = "; actions and messages are medians over all" if pools else ""
            lines.append(
                f"{name}: {len(spans)} steps, {ms(min(spans))} to {ms(max(spans))}, median {ms(middle)}{used}"
            )
    if found.varies:
        pooled = ", of medians over the steps where those are compared" if any(found.pools) else ""
        lines.append(f"± is one standard deviation from step to step{pooled}; ~ is noise: within {SIGMAS} of them")
    return lines


def ratio(row: KindRow) -> str:
    """Return a kind's ratio with what it varies by, marked where that is noise."""
    shown = f"{row.ratio:.3f}"
    if row.ratio is None or row.ratio_varies is None:
        return shown
    quiet = MARK if row.ratio_varies and within_noise(row.ratio - 1, row.ratio_varies) else ""
    return f"{shown} ±{row.ratio_varies:.3f}{quiet}"


def parting_words(one: Divergence) -> str:
    """Return where the steps part, in a sentence."""
    late = "late" if one.late_ns > 0 else "early"
    varies = one.late_varies_ns or None
    parts = [
        (one.own_ns, "its own time"),
        (one.message_ns, f"its input's way from rank {one.source}"),
        (one.idle_ns, "until it was begun"),
        (one.released_ns, "from what released it"),
    ]
    told = ", ".join(f"{ms(time, sign=True)} {what}" for time, what in parts if abs(time) >= _BARELY_NS)
    ends = f"ends {ms(abs(one.late_ns), varies)} {late}"
    order = f"; it comes behind {one.behind[0]} there, behind {one.behind[1]} here" if any(one.behind) else ""
    return f"at {ms(one.at_ns)}: rank {one.rank}, {one.action} {ends}{told and f': {told}'}{order}"


def share(one: Culprit) -> str:
    """Return by which share a culprit is slower or faster, with what that varies by."""
    varies = "" if one.share_varies is None else f" ±{one.share_varies:.1%}"
    return f"{one.share:+.1%}{varies}"


def kind_rows(found: StepDiff) -> list[tuple[str, ...]]:
    """Return a row per kind and stage, that which changed most first: how many, medians, and their spread."""
    rows = sorted(found.kinds, key=lambda row: -abs(row.median_ns[1] - row.median_ns[0]))
    return [
        (
            f"{row.stage}{row.kind}", f"{row.count[0]}, {row.count[1]}", ms(row.median_ns[0], row.varies_ns[0]),
            ms(row.median_ns[1], row.varies_ns[1]), *(ms(spread) for spread in row.spread_ns),
        )
        for row in rows
    ]  # fmt: skip


def way_sizes(way: Way) -> str:
    """Return the mean size of a way's messages, of both sides where they differ."""
    sizes = [size // max(count, 1) for size, count in zip(way.size_bytes, way.count, strict=True)]
    known = dict.fromkeys(format_size(size) if size else "?" for size in sizes)
    return "" if set(known) == {"?"} else ", ".join(known)


def path_rows(found: StepDiff) -> list[tuple[str, str, str, str]]:
    """Return a row per kind of what both critical paths consist of."""
    (first, second), (vary, varies) = (chain.by_kind_ns for chain in found.chains), found.paths_vary_ns
    rows = []
    for kind in dict.fromkeys([*first, *second]):
        one, other = first.get(kind, 0), second.get(kind, 0)
        change = change_ms(other - one, deviation(vary.get(kind), varies.get(kind)))
        rows.append((kind, ms(one, vary.get(kind)), ms(other, varies.get(kind)), change))
    return rows


def memory_rows(found: StepDiff) -> list[tuple[str, str, str, str]]:
    """Return a row per rank: bytes where both sides know them, else how many microbatches' activations."""
    rows = []
    for one in found.memory:
        if one.peak_bytes is not None:
            first, second = one.peak_bytes
            change = f"{'+' if second >= first else '-'}{format_size(abs(second - first))}"
            rows.append((f"rank {one.rank}", format_size(first), format_size(second), change))
        else:
            held = one.activations
            rows.append((f"rank {one.rank}", str(held[0]), str(held[1]), f"{held[1] - held[0]:+}"))
    return rows


def memory_title(found: StepDiff) -> str:
    """Return what :func:`memory_rows` are."""
    if not any(one.peak_bytes is not None for one in found.memory):
        return "microbatches whose activations are held, at most"
    room = {metrics.memory.capacity_bytes for metrics in found.metrics} - {0}
    devices = f" (a device has {format_size(room.pop())})" if len(room) == 1 else ""
    return f"memory at its peak{devices}"
