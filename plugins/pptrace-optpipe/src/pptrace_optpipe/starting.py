"""Schedules to start from: the best of a grid of rules, with copies where memory asks for them.

Without copies, ranks run as far ahead as memory lets them. With copies, they first run as far ahead as some
larger memory would let them, and then activations go to the host, or are computed again, until the true limit
holds; of all these, the fastest that fits is taken. One microbatch after another is last: whatever fits at all,
fits so.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from pptrace_optpipe.again import with_recompute
from pptrace_optpipe.copies import with_copies, with_either
from pptrace_optpipe.listing import Rule, list_rows, serial_rows
from pptrace_optpipe.offloading import offloaded_rows
from pptrace_optpipe.playing import Played, play
from pptrace_optpipe.problem import NO_LIMIT, Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pptrace_optpipe.problem import Problem, Rows

__all__ = ["Schedule", "better", "fitted", "flights", "start", "started"]

_AHEAD = (Fraction(1), Fraction(9, 8), Fraction(5, 4), Fraction(3, 2), Fraction(7, 4), Fraction(2), Fraction(5, 2),
          Fraction(3), Fraction(4), Fraction(6))  # fmt: skip
"""By how much more memory ranks run ahead before copies are put in."""


class Schedule(NamedTuple):
    """Rows with what playing them gives."""

    rows: Rows
    played: Played

    @property
    def copied(self) -> int:
        """How many activations go to the host, or are computed again."""
        return sum(op.part in (Part.O, Part.C) for row in self.rows for op in row)


_PARTS = (Fraction(1), Fraction(11, 12), Fraction(5, 6))
"""Of a rank's memory, what its stages' activations in flight share; the rest is for weight gradients that wait."""


def better(one: Schedule, other: Schedule | None) -> bool:
    """Return whether a schedule is shorter than another, or as short with fewer copies and then less memory."""
    if other is None:
        return True
    keys = [(each.played.step, each.copied, sum(each.played.peak)) for each in (one, other)]
    return keys[0] < keys[1]


def start(
    problem: Problem,
    enough: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[Schedule], None] = lambda _: None,
) -> Schedule | None:
    """Return the best schedule of the grid; None where nothing fits.

    Args:
        problem: what to schedule.
        enough: a lower bound of the step; what reaches it is taken at once.
        stopped: asked between rules; true ends the search with the best so far.
        tell: told of every better schedule.
    """
    best: Schedule | None = None
    for found in started(problem):
        if better(found, best):
            best = found
            tell(best)
        if best is not None and (best.played.step <= enough or stopped()):
            break
    return best


def started(problem: Problem) -> Iterator[Schedule]:
    """Yield the schedules of the grid that fit, rule by rule."""
    for tried in _tried(problem):
        played = play(problem, tried)
        if played is None:
            continue
        yield from fitted(problem, tried, played)


def fitted(problem: Problem, rows: Rows, played: Played) -> Iterator[Schedule]:
    """Yield rows that fit as they are, or with activations on the host, computed again, or either by rank."""
    if played.fits(problem):
        yield Schedule(rows, played)
        return
    copied = with_copies(problem, rows, played) if problem.copies else None
    made = [copied]
    if problem.recomputes:
        made += [with_recompute(problem, rows), with_either(problem, rows, played) if problem.copies else None]
    for one in made:
        fitted = None if one is None else play(problem, one)
        if one is not None and fitted is not None and fitted.fits(problem):
            yield Schedule(one, fitted)


def _tried(problem: Problem) -> Iterator[Rows]:
    """Yield rows rule by rule, the likeliest first, and soon some that fit whenever anything does."""
    rules = list(_rules(problem))
    made = [partial(list_rows, problem, rule) for rule in rules]
    if problem.copies:
        kept = range(_most_kept(problem) + 1)
        offloaded = [
            partial(offloaded_rows, problem, most, patient=patient, late=late)
            for patient, most, late in product((True, False), kept, (False, True))
        ]
        patient = 2 * len(kept)
        made = [made[0], *offloaded[:patient], *made[1:], *offloaded[patient:]]
    for place, make in enumerate(made):
        if place == 1:
            yield serial_rows(problem, copied=problem.copies)
        rows = make()
        if rows is not None:
            yield rows


def _most_kept(problem: Problem) -> int:
    """Return the most activations that any limited rank has room for."""
    return max(
        limit // max(min(problem.activation[stage] for stage in stages), 1)
        for limit, stages in zip(problem.limit, problem.stages_of, strict=True)
    )


def _rules(problem: Problem) -> Iterator[Rule]:
    """Yield rules for as much memory as there is, for more, and for some activations in flight."""
    for per_stage in _by_round_trips(problem):
        yield Rule(limit=problem.limit, per_stage=per_stage)
    for more in _AHEAD if problem.copies or problem.recomputes else _AHEAD[:1]:
        limit = tuple(NO_LIMIT if one == NO_LIMIT else int(one * more) for one in problem.limit)
        for patient, weights_first in product((True, False), (False, True)):
            yield Rule(limit=limit, patient=patient, weights_first=weights_first)
    for most in flights(problem):
        yield Rule(limit=(NO_LIMIT,) * problem.ranks, in_flight=most)


def _by_round_trips(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield how many activations each stage may have in flight where ranks have several.

    In a steady state, an activation is there for a round trip from its stage and some more, so a rank's memory, or
    a part of it, is shared in the ratio of those. What is left over goes to the last stage, or to the first.
    """
    if problem.stages == problem.ranks or NO_LIMIT in problem.limit:
        return
    work = [sum(times[stage] for times in (problem.f, problem.i, problem.w)) for stage in range(problem.stages)]
    for last, more, part in product((True, False), (0, 2), _PARTS):
        trips = [problem.round_trip(stage) + more * work[stage] for stage in range(problem.stages)]
        shares = [0] * problem.stages
        for stages, limit in zip(problem.stages_of, problem.limit, strict=True):
            left = room = int(limit * part)
            taken = sum(trips[stage] * problem.activation[stage] for stage in stages) or 1
            for stage in stages:
                shares[stage] = max(1, room * trips[stage] // taken)
                left -= shares[stage] * problem.activation[stage]
            own = stages[-1 if last else 0]
            shares[own] += max(left // max(problem.activation[own], 1), 0)
        yield tuple(shares)


def flights(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield bounds of activations in flight: as 1F1B has them, and up to twice as many."""
    ranks = problem.ranks
    for ahead in range(ranks):
        per_stage = tuple(ranks - rank + min(ahead, ranks - 1 - rank) for rank in range(ranks))
        yield tuple(one * len(stages) for one, stages in zip(per_stage, problem.stages_of, strict=True))
