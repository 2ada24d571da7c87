"""Who is to blame: the order or the times, where orders differ, and who is slow throughout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.present.document import Table
from pptrace.present.figures import BARELY_NS, change, ms, share

if TYPE_CHECKING:
    from pptrace.analysis.diff.step_diff import StepDiff
    from pptrace.present.document import Block

__all__ = ["blame", "culprits", "order_share"]


def blame(findings: StepDiff) -> str:
    """Return who is to blame, in a sentence; empty where nobody is."""
    slow = [one for one in findings.culprits if one.total_ns > 0]
    if not slow:
        return ""
    first = slow[0]
    lead = "Of times, first to blame" if findings.order_share else "First to blame"
    times = f"its times are {share(first.share, sign=True)}, " if first.share.value else ""
    sort = first.sort if first.sort == "spikes" else f"a {first.sort}"
    return f"{lead}, {sort}: {first.what}; {times}{ms(first.total_ns, sign=True)} in sum."


def order_share(findings: StepDiff) -> tuple[Block, ...]:
    """Return how much of the difference the order and how much the times make, the larger first."""
    parts = findings.order_share
    if parts is None:
        return ()
    ranks = f"{len(findings.orders)} rank{'s' if len(findings.orders) > 1 else ''}"
    told = [
        (f"the order of {ranks}, with the second's times and network", parts.order_ns),
        ("times of actions and messages, in the first's order", parts.times_ns),
    ]
    told.sort(key=lambda one: -abs(one[1].value))
    if abs(parts.rest_ns.value) >= BARELY_NS:
        told.append(("neither: not explained by replays, before and behind the pipeline", parts.rest_ns))
    whole = findings.step_ns.change.value
    rows = tuple(
        (name, change(part), "" if abs(whole) < BARELY_NS else f"{part.value / whole + 0.0:.1%}")
        for name, part in told
    )
    return (Table(head=("", "changes the step by", "of the difference"), rows=rows),)


def culprits(findings: StepDiff) -> tuple[Block, ...]:
    """Return what is slow or fast throughout, and what stands out."""
    if not findings.culprits:
        return ()
    rows = tuple(
        (one.sort, one.what, share(one.share, sign=True) if one.share.value else "", ms(one.total_ns, sign=True))
        for one in findings.culprits
    )
    return (Table(head=("", "", "its times", "in sum"), rows=rows, words=2),)
