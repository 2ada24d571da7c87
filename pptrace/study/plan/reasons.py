"""Why a configuration is behind the first: in what its mean rank spends more of its step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.quantity import DURATION

if TYPE_CHECKING:
    from pptrace.study.plan.candidate import Candidate

__all__ = ["PARTS", "differences_ns", "why_behind"]

PARTS = {
    "mean_compute_ns": "compute",
    "mean_collectives_ns": "collectives",
    "mean_waiting_ns": "waiting",
    "mean_messages_ns": "messages",
    "mean_reduction_ns": "reduction",
}
"""Columns whose parts sum to the step, with what they are called."""

_NAMED = 0.001
"""Parts of the first's step from which a difference is named."""


def differences_ns(first: Candidate, other: Candidate) -> dict[str, int]:
    """Return by how much each part of another's step is longer than the first's, for as many sequences.

    They sum to how much longer its step is.
    """
    share = first.layout.sequences / other.layout.sequences
    return {
        name: round(float(other.row[column] or 0) * share - float(first.row[column] or 0))
        for column, name in PARTS.items()
    }


def why_behind(first: Candidate, other: Candidate) -> str:
    """Return in words what another's step has more than the first's, the largest part first."""
    if first is other:
        return ""
    step = float(first.row["step_ns"] or 0)
    differences = differences_ns(first, other)
    named = sorted(
        ((time, name) for name, time in differences.items() if abs(time) >= _NAMED * step),
        key=lambda one: (-one[0], one[1]),
    )
    more = [(time, name) for time, name in named if time > 0]
    less = [(time, name) for time, name in named if time < 0][-1:]
    return ", ".join(
        f"{name} {'+' if time > 0 else '-'}{DURATION.rounded(abs(time))}" for time, name in [*more[:2], *less]
    )
