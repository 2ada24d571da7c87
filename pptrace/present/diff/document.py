"""A diff as a document: both lengths and the verdict, then sections in the order in which a reader asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pptrace.analysis.figure import SIGMAS
from pptrace.present.diff import tables
from pptrace.present.diff.blame import blame, culprits, order_share
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


def diff_document(findings: StepDiff, top: int = 10, notes: Iterable[str] = ()) -> Document:
    """Return what tells two steps apart, little where nothing does; ``top`` bounds the actions that are listed."""
    first, second = findings.steps
    equal = not findings.step_ns.change.value and first.equals(second)
    return Document(
        title=f"{findings.names[0]} and {findings.names[1]}",
        lead=tuple(_lead(findings)) + ((Line(text=_nothing(findings)),) if equal else ()),
        sections=() if equal else tuple(_sections(findings, top)), notes=tuple(notes),
        values=_values(findings, top, tuple(notes)),
    )  # fmt: skip


def verdict(findings: StepDiff) -> str:
    """Return whether the steps are the same, and what makes them different where their lengths do not."""
    if findings.same:
        return f"the same, to {findings.tolerance:.1%}"
    if abs(findings.change) > findings.tolerance:
        quiet = findings.step_ns.change.deviation and findings.step_ns.change.is_noise
        return f"different{', but no more than steps of one side do' if quiet else ''}"
    reasons = (
        [f"{len(findings.orders)} rank{'s' * (len(findings.orders) > 1)} in order"] if findings.orders else []
    )
    off = [
        row
        for row in findings.kinds.values()
        if row.ratio is None or abs(row.ratio.value - 1) > findings.tolerance
    ]
    if off:
        more = f" and {len(off) - _NAMED} more" if len(off) > _NAMED else ""
        reasons.append(f"times of {', '.join(f'{row.stage}{row.kind}' for row in off[:_NAMED])}{more}")
    if findings.unlike:
        reasons.append("number of stages")
    return f"different: {' and '.join(reasons)}"


def _lead(findings: StepDiff) -> Iterator[Block]:
    changes = "", f"{change(findings.step_ns.change)} ({findings.change:+.2%})"
    yield Table(rows=tuple(zip(findings.names, map(ms, findings.step_ns), changes, strict=True)))
    yield Line(text=verdict(findings), tone="same" if findings.same else "different")
    if findings.ranks[0] != findings.ranks[1]:
        yield Line(text=f"the first has {findings.ranks[0]} ranks, the second {findings.ranks[1]}")
    for name, spans, pools in zip(findings.names, findings.spans_ns, findings.pools, strict=True):
        if len(spans) > 1:
            used = "; actions and messages are medians over all" if pools else ""
            yield Line(text=f"{name}: {several_steps(spans)}{used}", tone="soft")
    if findings.varies:
        pooled = ", of medians over the steps where those are compared" if any(findings.pools) else ""
        meaning = f"± is one standard deviation from step to step{pooled}; ~ is noise: within {SIGMAS} of them"
        yield Line(text=meaning, tone="soft")
    yield Line(text=_matched(findings), tone="soft")


def _nothing(findings: StepDiff) -> str:
    step = findings.steps[0]
    return f"no difference: {len(step)} actions in the same order, {len(step.transfers)} messages, all times equal"


def _matched(findings: StepDiff) -> str:
    pairs = findings.matched
    if findings.unlike:
        return f"actions are not compared: {findings.unlike}"
    parts = [
        f"matched {len(pairs)} actions{f', {pairs.by_order} of them by order alone' if pairs.by_order else ''}"
    ]
    if pairs.only_first.size or pairs.only_second.size:
        parts.append(f"{pairs.only_first.size} are in the first step only, {pairs.only_second.size} in the second")
    if findings.folded:
        parts.append(
            f"stage {', '.join(map(str, findings.folded))}: input and weight gradient taken as one backward"
        )
    return "; ".join(parts)


def _sections(findings: StepDiff, top: int) -> Iterator[Section]:
    ladder = Picture(draw=lambda: waterfall(findings), instead=tables.ladder(findings))
    yield Section(
        title="what changes it, one after another",
        about="The first step is replayed with the second's durations, then its order, its transfers, its host "
        "gaps. Together they are the whole difference.",
        blocks=(ladder if findings.ladder else Line(text=f"no ladder: {findings.no_ladder}"),),
    )
    yield Section(
        title="what the difference goes back to, since orders differ",
        about="The first's order was run with the second's times and network: what the second step takes beyond "
        "that is its order's, the rest that of times.",
        blocks=order_share(findings), leads=3,
    )  # fmt: skip
    bars, keys = part_bars(findings)
    yield Section(
        title="parts of the step, mean over ranks", about="Each side's parts sum to its step.",
        blocks=(Picture(draw=bars, keys=keys), tables.parts(findings)),
    )  # fmt: skip
    yield Section(
        title="communication in ranks' own groups, all ranks",
        about="Collectives and exchanges of tokens, and the part of them beside which their rank computed.",
        blocks=tables.groups(findings),
    )  # fmt: skip
    yield Section(
        title="time of an action, second over first, by stage",
        about="Ratio of the medians by kind and stage: red is slower, green is faster.",
        blocks=tables.ratios(findings),
    )
    yield Section(title="times of actions by stage and kind", blocks=tables.kinds(findings))
    picture, left_out = strips(findings)
    yield Section(
        title="both steps by rank and time",
        about="The first above, the second below, aligned where they start; numbers are microbatches, outlined "
        f"actions are the critical path, and the red frame is the first difference.{left_out}",
        blocks=(picture,),
    )
    yield Section(title="first difference", blocks=tables.divergence(findings), leads=1)
    yield Section(
        title="slow or fast throughout, and what stands out", about=blame(findings),
        blocks=culprits(findings), leads=2,
    )  # fmt: skip
    changed = f"actions that changed most, of {len(findings.changes)}" if findings.changes else "no action changed"
    yield Section(title=changed, blocks=tables.changes(findings, top))
    yield Section(title="order differs", blocks=tables.orders(findings))
    yield Section(
        title="messages between ranks", about="From when both ends were ready until it was there.",
        blocks=tables.messages(findings),
    )  # fmt: skip
    yield Section(title="critical path: computations, and what lies between", blocks=tables.paths(findings))
    yield Section(title=tables.memory_title(findings), blocks=tables.memory(findings))


def _values(findings: StepDiff, top: int, notes: tuple[str, ...]) -> dict[str, Any]:
    pairs = findings.matched
    return {
        "sides": findings.names,
        "same": findings.same,
        "tolerance": findings.tolerance,
        "step_ns": findings.step_ns,
        "change": findings.change,
        "matched": {
            "actions": len(pairs), "by_order": pairs.by_order,
            "only_first": int(pairs.only_first.size), "only_second": int(pairs.only_second.size),
            "folded_stages": findings.folded,
        },
        "ladder": findings.ladder,
        "no_ladder": findings.no_ladder or None,
        "order_and_times": findings.order_share,
        "parts_ns": findings.parts_ns,
        "groups_ns": findings.groups_ns,
        "kinds": tuple(findings.kinds.values()),
        "actions": findings.changes[:top],
        "actions_changed": len(findings.changes),
        "actions_within_noise": findings.noise,
        "divergence": findings.divergence,
        "culprits": findings.culprits,
        "orders": findings.orders,
        "messages": tuple(findings.ways.values()),
        "critical_path_ns": findings.paths_ns,
        "paths_differ": findings.paths_differ,
        "memory": findings.memory,
        "spans_ns": findings.spans_ns,
        "medians_over_steps": findings.pools,
        "notes": notes,
    }  # fmt: skip
