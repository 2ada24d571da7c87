"""How robust a first place is: the contenders are simulated again on machines that differ from the costs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.study.plan.point import TRIALS
from pptrace.study.plan.ties import MARGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.study.plan.candidate import Candidate
    from pptrace.study.plan.question import Question, Worth
    from pptrace.study.plan.runner import Runner

__all__ = ["Robustness", "Verdict", "robustness_of"]

_CONTENDERS = 5
_NEAR = Fraction(11, 10)
"""How far behind the first a contender is at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the first place is worth on one other machine."""

    trial: str
    """The machine."""
    behind: float
    """By what part it is behind the best there; 0 where it stays first."""
    best: int
    """The place, from 0, of the best there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """The first place on all other machines."""

    contenders: int
    """How many were simulated on each, the first place among them."""
    verdicts: tuple[Verdict, ...]
    """One per machine."""

    @property
    def first(self) -> int:
        """On how many it stays the first."""
        return sum(one.behind <= 0 for one in self.verdicts)

    @property
    def near(self) -> int:
        """On how many it is first, or within 2 % of it."""
        return sum(one.behind <= MARGIN for one in self.verdicts)


def robustness_of(
    question: Question, ranked: Sequence[Candidate], runner: Runner, watch: Callable[[str], None] | None = None
) -> Robustness | None:
    """Simulate the first places on every other machine; None where there is nobody to compare with."""
    first = ranked[0]
    contenders = [one for one in ranked[:_CONTENDERS] if one.worth[-1] <= _NEAR * first.worth[-1]]
    if len(contenders) == 1:
        return None
    verdicts = []
    for number, trial in enumerate(TRIALS, 1):
        if watch is not None:
            watch(f"trying the first places on another machine, {number} of {len(TRIALS)}: {trial.name}")
        worths: list[Worth | None] = []
        for one, row in zip(contenders, runner.rows(contenders, trial), strict=True):
            step = None if row.get("error") or not row.get("fits") else int(row["step_ns"] or 0)
            layout = one.layout
            worths.append(None if step is None else question.worth(step, layout.sequences, layout.gpus))
        able = [(worth, at) for at, worth in enumerate(worths) if worth is not None]
        own = worths[0]
        if own is None or not able:
            continue
        best, at = min(able)
        behind = float(own[-1] / best[-1] - 1) if best[-1] else 0.0
        verdicts.append(Verdict(trial=trial.name, behind=max(behind, 0.0), best=at))
    return Robustness(contenders=len(contenders), verdicts=tuple(verdicts))
