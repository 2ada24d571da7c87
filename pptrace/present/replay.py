"""Replays as a document: how much of each step they give back."""

from __future__ import annotations

from statistics import mean, stdev
from typing import TYPE_CHECKING

from pptrace.present.document import Document, Line
from pptrace.present.explanation import UNRECORDED
from pptrace.present.figures import ms

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.analysis.steps.replay import Replayed

__all__ = ["replay_document"]


def replay_document(replays: Mapping[str, Replayed]) -> Document:
    """Return a line per step, and one over all."""
    shares = [one.explained for one in replays.values()]
    lines = [
        f"{label}: measured {ms(one.step.span_ns)}{_of_step(one)}, replayed {ms(one.replayed_ns)}: "
        f"{one.explained:.2%} explained"
        for label, one in replays.items()
    ]
    waits = max(int((one.step.gap_ns - one.step.host_gap_ns).sum()) for one in replays.values())
    if waits:
        lines.append(UNRECORDED.format(f"at most {ms(waits)}"))
    if len(shares) > 1:
        lines.append(f"{len(shares)} steps: {mean(shares):.2%} ±{stdev(shares):.2%} explained")
    return Document(
        title="replays", lead=tuple(Line(text=line) for line in lines),
        values=[
            {
                "step": label, "step_ns": one.step_ns, "measured_ns": one.step.span_ns,
                "replayed_ns": one.replayed_ns, "explained": one.explained,
            }
            for label, one in replays.items()
        ],
    )  # fmt: skip


def _of_step(one: Replayed) -> str:
    """Say of which step the computations are, where more belongs to it."""
    return f" from the first computation to the last, of a step of {ms(one.step_ns)}" if one.has_more else ""
