"""A diff as a document: both lengths and the verdict, then sections in the order in which a reader asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.analysis.figure import SIGMAS
from pptrace.present.diff import tables
from pptrace.present.diff.part_bars import part_bars
from pptrace.present.diff.strips import strips
from pptrace.present.diff.waterfall import waterfall
from pptrace.present.document import Document, Line, Picture, Section, Table
from pptrace.present.figures import change, ms, several_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pptrace.analysis.diff.step_diff import StepDiff
    from pptrace.present.document import Block

__all__ = ["diff_document", "verdict"]

_NAMED = 4
"""Kinds of stages that a verdict names."""


def diff_document(found: StepDiff, top: int = 10, notes: Iterable[str] = ()) -> Document:
    """Return what tells two steps apart, little where nothing does; ``top`` bounds the actions that are listed."""
    first, second = found.steps
    equal = not found.step_ns.change.value and first.equals(second)
    return Document(
        title=f"{found.names[0]} and {found.names[1]}",
        lead=tuple(_lead(found)) + ((Line(text=_nothing(found)),) if equal else ()),
        sections=() if equal else tuple(_sections(found, top)), notes=tuple(notes),
        values=_values(found, top, tuple(notes)),
    )  # fmt: skip


def verdict(found: StepDiff) -> str:
    """Return whether the steps are the same, and what makes them different where their lengths do not."""
    if found.same:
        return f"the same, to {found.tolerance:.1%}"
    if abs(found.change) > found.tolerance:
        quiet = found.step_ns.change.deviation and found.step_ns.change.is_noise
        return f"different{', but no more than steps of one side do' if quiet else ''}"
    reasons = [f"{len(found.orders)} rank{'s' * (len(found.orders) > 1)} in order"] if found.orders else []
    off = [row for row in found.kinds.values() if row.ratio is None or abs(row.ratio.value - 1) > found.tolerance]
    if off:
        more = f" and {len(off) - _NAMED} more" if len(off) > _NAMED else ""
        reasons.append(f"times of {', '.join(f'{row.stage}{row.kind}' for row in off[:_NAMED])}{more}")
    if found.unlike:
        reasons.append("number of stages")
    return f"different: {' and '.join(reasons)}"


def _lead(found: StepDiff) -> Iterator[Block]:
    changes = "", f"{change(found.step_ns.change)} ({found.change:+.2%})"
    yield Table(rows=tuple(zip(found.names, map(ms, found.step_ns), changes, strict=True)))
    yield Line(text=verdict(found), tone="same" if found.same else "different")
    if found.ranks[0] != found.ranks[1]:
        yield Line(text=f"the first has {found.ranks[0]} ranks, the second {found.ranks[1]}")
    for name, spans, pools in zip(found.names, found.spans_ns, found.pools, strict=True):
        if len(spans) > 1:
            used = "; actions and messages are medians over all" if pools else ""
            yield Line(text=f"{name}: {several_steps(spans)}{used}", tone="soft")
    if found.varies:
        pooled = ", of medians over the steps where those are compared" if any(found.pools) else ""
        meaning = f"± is one standard deviation from step to step{pooled}; ~ is noise: within {SIGMAS} of them"
        yield Line(text=meaning, tone="soft")
    yield Line(text=_matched(found), tone="soft")


def _nothing(found: StepDiff) -> str:
    step = found.steps[0]
    return f"no difference: {len(step)} actions in the same order, {len(step.transfers)} messages, all times equal"


def _matched(found: StepDiff) -> str:
    pairs = found.matched
    if found.unlike:
        return f"actions are not compared: {found.unlike}"
    parts = [
        f"matched {len(pairs)} actions{f', {pairs.by_order} of them by order alone' if pairs.by_order else ''}"
    ]
    if pairs.only_first.size or pairs.only_second.size:
        parts.append(f"{pairs.only_first.size} are in the first step only, {pairs.only_second.size} in the second")
    if found.folded:
        parts.append(f"stage {', '.join(map(str, found.folded))}: input and weight gradient taken as one backward")
    return "; ".join(parts)


def _sections(found: StepDiff, top: int) -> Iterator[Section]:
    ladder = Picture(draw=lambda: waterfall(found), instead=tables.ladder(found))
    yield Section(
        title="what changes it, one after another",
        about="The first step is replayed with the second's durations, then its order, its transfers, its host "
        "gaps. Together they are the whole difference.",
        blocks=(ladder if found.ladder else Line(text=f"no ladder: {found.no_ladder}"),),
    )
    bars, keys = part_bars(found)
    yield Section(
        title="parts of the step, mean over ranks", about="Each side's parts sum to its step.",
        blocks=(Picture(draw=bars, keys=keys), tables.parts(found)),
    )  # fmt: skip
    yield Section(
        title="time of an action, second over first, by stage",
        about="Ratio of the medians by kind and stage: red is slower, green is faster.",
        blocks=tables.ratios(found),
    )
    yield Section(title="times of actions by stage and kind", blocks=tables.kinds(found))
    yield Section(
        title="both steps by rank and time",
        about="The first above, the second below, aligned where they start; numbers are microbatches, outlined "
        "actions are the critical path, and the red frame is the first difference.",
        blocks=strips(found),
    )
    yield Section(title="first difference", blocks=tables.divergence(found))
    yield Section(title="slow or fast throughout, and what stands out", blocks=tables.culprits(found))
    changed = f"actions that changed most, of {len(found.changes)}" if found.changes else "no action changed"
    yield Section(title=changed, blocks=tables.changes(found, top))
    yield Section(title="order differs", blocks=tables.orders(found))
    yield Section(
        title="messages between ranks", about="From when both ends were ready until it was there.",
        blocks=tables.messages(found),
    )  # fmt: skip
    yield Section(title="critical path: computations, and what lies between", blocks=tables.paths(found))
    yield Section(title=tables.memory_title(found), blocks=tables.memory(found))


def _values(found: StepDiff, top: int, notes: tuple[str, ...]) -> dict[str, Any]:
    pairs = found.matched
    return {
        "sides": found.names,
        "same": found.same,
        "tolerance": found.tolerance,
        "step_ns": found.step_ns,
        "change": found.change,
        "matched": {
            "actions": len(pairs), "by_order": pairs.by_order,
            "only_first": int(pairs.only_first.size), "only_second": int(pairs.only_second.size),
            "folded_stages": found.folded,
        },
        "ladder": found.ladder,
        "no_ladder": found.no_ladder or None,
        "parts_ns": found.parts_ns,
        "kinds": tuple(found.kinds.values()),
        "actions": found.changes[:top],
        "actions_changed": len(found.changes),
        "actions_within_noise": found.noise,
        "divergence": found.divergence,
        "culprits": found.culprits,
        "orders": found.orders,
        "messages": tuple(found.ways.values()),
        "critical_path_ns": found.paths_ns,
        "paths_differ": found.paths_differ,
        "memory": found.memory,
        "spans_ns": found.spans_ns,
        "medians_over_steps": found.pools,
        "notes": notes,
    }  # fmt: skip
