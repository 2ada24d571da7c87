"""First places that lie nearer to each other than a simulation can tell apart."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.study.plan.candidate import Candidate

__all__ = ["MARGIN", "tied"]

MARGIN = Fraction(2, 100)
"""Leads up to this say little: of published steps of one model on the same GPUs, two whose simulated steps are as
near come in the measured order 22 of 37 times (``pptrace accuracy`` counts them; docs/plan.md)."""


def tied(ranked: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the first places that are within :data:`MARGIN` of the first, the first among them.

    Args:
        ranked: candidates that were simulated and fit, the best first.
    """
    if not ranked:
        return ()
    *before, best = ranked[0].worth
    return tuple(one for one in ranked if [*one.worth[:-1]] == before and one.worth[-1] <= best * (1 + MARGIN))
