"""Schedules from which a search starts.

Without copies, ranks run as far ahead as memory lets them. With copies, they first run as far ahead as some
larger memory would let them, and then activations go to the host, or are computed again, until the true limit
holds; of all these, the fastest that fits is taken. One microbatch after another is last: whatever fits at all,
fits so.

Some message policies take few orders of a pipeline, and none that a search under another policy finds; what they
take need not fit, so such orders are made to fit without a change of their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from pptrace.plugin import ConfigError, PptraceError, ScheduleError, load, prepare
from pptrace_optpipe.listing import Lister, OffloadingLister, Rule, serial_rows
from pptrace_optpipe.memory_repair import copied_row, recomputed_row, with_room, with_waits
from pptrace_optpipe.playback import Played, play
from pptrace_optpipe.problem import NO_LIMIT, ON_RANK, Part
from pptrace_optpipe.setting import pairs, rows_of_table, setting_in, simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from pptrace.plugin import Prepared, Registry, Schedule
    from pptrace_optpipe.problem import Problem, Rows
    from pptrace_optpipe.setting import SearchInput, Setting, Simulated

__all__ = [
    "AGAIN",
    "COPIED",
    "Rival",
    "StartSchedule",
    "fitted",
    "in_order",
    "is_as_much",
    "is_better",
    "rivals",
    "start",
    "started",
]

_AHEAD = (Fraction(1), Fraction(9, 8), Fraction(5, 4), Fraction(3, 2), Fraction(7, 4), Fraction(2), Fraction(5, 2),
          Fraction(3), Fraction(4), Fraction(6))  # fmt: skip
"""By how much more memory ranks run ahead before copies are put in."""


class StartSchedule(NamedTuple):
    """Rows with what playing them gives."""

    rows: Rows
    played: Played

    @property
    def rank_key(self) -> tuple[int, int, int]:
        """The step, the activations that are copied or computed again, and the memory: less is better."""
        given_up = sum(op.part in (Part.O, Part.C) for row in self.rows for op in row)
        return self.played.step, given_up, sum(self.played.peak)


_PARTS = (Fraction(1), Fraction(11, 12), Fraction(5, 6))
"""Of a rank's memory, what its stages' activations in flight share; the rest is for weight gradients that wait."""


def is_better(schedule: StartSchedule, best: StartSchedule | None) -> bool:
    """Return whether a schedule is shorter than another, or as short with fewer copies and then less memory."""
    return best is None or schedule.rank_key < best.rank_key


def start(
    problem: Problem,
    enough: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[StartSchedule], None] = lambda _: None,
) -> StartSchedule | None:
    """Return the best schedule of the grid; None where nothing fits.

    Args:
        problem: what to schedule.
        enough: a lower bound of the step; what reaches it is taken at once.
        stopped: asked between rules; true ends the search with the best so far.
        tell: called with every better schedule.
    """
    best: StartSchedule | None = None
    for schedule in started(problem):
        if is_better(schedule, best):
            best = schedule
            tell(best)
        if best is not None and (best.played.step <= enough or stopped()):
            break
    return best


def started(problem: Problem) -> Iterator[StartSchedule]:
    """Yield the schedules of the grid that fit, rule by rule."""
    for rows in _listed(problem):
        played = play(problem, rows)
        if played is not None:
            yield from fitted(problem, rows, played)


def fitted(problem: Problem, rows: Rows, played: Played) -> Iterator[StartSchedule]:
    """Yield rows that fit as they are, or with activations on the host, computed again, or either by rank."""
    if played.fits(problem):
        yield StartSchedule(rows, played)
        return
    copies, recomputes = (copied_row,) * problem.copies, (recomputed_row,) * problem.recomputes
    for ways in dict.fromkeys((copies, recomputes, (*copies, *recomputes))):
        fitting = with_room(problem, rows, played, ways)
        replayed = None if fitting is None else play(problem, fitting)
        if fitting is not None and replayed is not None and replayed.fits(problem):
            yield StartSchedule(fitting, replayed)


def _listed(problem: Problem) -> Iterator[Rows]:
    """Yield rows rule by rule, the likeliest first, and soon some that fit whenever anything does."""
    listers: list[Callable[[], Lister]] = [partial(Lister, problem, rule) for rule in _rules(problem)]
    if problem.copies:
        kept = range(_most_kept(problem) + 1)
        offloading = [
            partial(OffloadingLister, problem, most, patient=patient, late=late)
            for patient, most, late in product((True, False), kept, (False, True))
        ]
        patient = 2 * len(kept)
        listers = [listers[0], *offloading[:patient], *listers[1:], *offloading[patient:]]
    for place, lister in enumerate(listers):
        if place == 1:
            yield serial_rows(problem, copied=problem.copies)
        rows = lister().rows()
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
    a part of it, is shared in that ratio. The remainder goes to the last stage, or to the first.
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


COPIED = "+offload"
"""Behind the name of a schedule with copies to the host put into it."""
AGAIN = "+recompute"
"""Behind the name of one whose forwards are computed again."""

_OWN = "optpipe"
_LIMITS = ("device.memory", "costs.capacity")
"""Keys by which costs know what a device holds, and schedules through them."""
_ALIKE = 0.01
"""The part by which work may differ and be taken for the same."""
_OFFLOAD = "schedule.offload.gap=3"
"""What makes copies to the host part of a schedule, as PipeOffload chooses them."""
_AGAIN = "schedule.recompute.early=true"
"""What makes forwards computed again part of it, as early as ranks get there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A schedule of another plugin with its simulated figures."""

    name: str
    """As ``pptrace simulate --schedule`` takes it; with ``+offload`` where copies to the host are put into it, and
    ``+recompute`` where forwards are computed again."""
    table: Schedule
    """The table."""
    simulated: Simulated
    """Its step and memory."""
    fits: bool
    """Whether every rank keeps the limit of the search."""
    search_input: Callable[[], SearchInput]
    """Returns the input of a search in its placement.

    Raises:
        PptraceError: no search is possible there.
    """

    @property
    def peak_bytes(self) -> int:
        """The most that a rank uses."""
        return max(self.simulated.peak_bytes)

    def rows(self) -> Rows | None:
        """Return its rows; None where a search here cannot split them."""
        try:
            return rows_of_table(self.table)
        except ScheduleError:
            return None


def rivals(
    config: Path | None, sets: Sequence[str], registry: Registry, setting: Setting, memory: int = 0
) -> Iterator[Rival]:
    """Yield every schedule of other plugins that does a setting's work, made for a limit in bytes per rank.

    Those that take other sizes or compute more or less, as with another number of stages of the same costs, or are
    more than their tables say, are left out. Where activations can be copied to the host, each is there a second
    time, with those that there is time to copy; where forwards may be computed again, once more, with all of them.
    """
    problem, work = setting.problem(memory), _work(setting.prepared)
    limits = _limits(setting.prepared, memory) if memory else []
    ways = {"": [], COPIED: _copied_schedules(setting) * problem.copies, AGAIN: [_AGAIN] * problem.recomputes}
    for name in sorted(registry.schedules):
        for suffix, more in ways.items() if name != _OWN else ():
            if suffix and not more:
                continue
            prepared = _prepared(config, [*sets, *more], registry, name, limits)
            if prepared is None or not _is_a_table(prepared) or not is_as_much(_work(prepared), work):
                continue
            table = prepared.schedule
            try:
                figures = simulated(prepared, table)
            except PptraceError:
                continue
            yield Rival(
                name=f"{name}{suffix}", table=table, simulated=figures, fits=setting.fits(figures, memory),
                search_input=partial(_input_of, prepared, setting, memory),
            )  # fmt: skip


def _input_of(prepared: Prepared, setting: Setting, memory: int) -> SearchInput:
    """Return the input of a search in a rival's placement, with the choices of a setting."""
    own = setting_in(prepared, setting.remade, recompute=setting.recompute, shared=setting.shared)
    return own.search_input(memory)


def _limits(prepared: Prepared, memory: int) -> list[list[str]]:
    """Return settings of which the first that costs read limits every rank's memory."""
    device = prepared.resolved.experiment.device
    unlike = device.limited(memory) if device else {}
    if unlike:
        return [[f"{key}={value}" for key, value in unlike.items()]]
    return [[f"{key}={memory} B"] for key in _LIMITS]


def _copied_schedules(setting: Setting) -> list[str]:
    """Return what puts copies to the host into a schedule; none where channels are not what a schedule can say."""
    if not setting.shared:
        return [_OFFLOAD]
    return [_OFFLOAD, "schedule.offload.stream=pair"] if setting.shared == pairs(setting.placement.ranks) else []


def is_as_much(one: int, other: int) -> bool:
    """Return whether two schedules compute as much, but for rounding."""
    return abs(one - other) <= _ALIKE * other


def _is_a_table(prepared: Prepared) -> bool:
    """Return whether a schedule's table, written and read, is the same step."""
    table, batch = prepared.schedule, prepared.resolved.experiment.batch
    whole = not table.interleave and not table.recompute_waits
    return whole and table.microbatches == batch.known_microbatches


def _work(prepared: Prepared) -> int:
    """Return what all ranks compute together."""
    work = prepared.workload
    return int((work.f_ns + work.i_ns + work.w_ns).sum()) * prepared.schedule.microbatches


def _prepared(
    config: Path | None, sets: Sequence[str], registry: Registry, name: str, limits: Sequence[list[str]]
) -> Prepared | None:
    """Return the inputs of a schedule, with the memory limit if costs accept it. Return None if it cannot run."""
    for limit in [*limits, []]:
        try:
            return prepare(load(config, [*sets, *limit], {"schedule": name}), registry)
        except ConfigError as error:
            if not limit or not error.key.startswith(limit[0].partition(".")[0]):
                return None
        except PptraceError:
            return None
    return None


_EARLY = (1, 2, 3, 0, 5)
"""How many computations before its input gradient an activation begins to come back, where there is room."""


def in_order(problem: Problem, known: Iterable[Rows]) -> Iterator[StartSchedule]:
    """Yield schedules that fit, in the orders of some that need not, and with as much in flight as 1F1B or more.

    Args:
        problem: what to schedule.
        known: rows, with backwards split; of copies and what is computed again they keep nothing.
    """
    bare = [[[op for op in row if op.part in ON_RANK and op.part is not Part.C] for row in rows] for rows in known]
    for most, first in product(flights(problem), (True, False)):
        rule = Rule(limit=(NO_LIMIT,) * problem.ranks, in_flight=most, weights_first=first)
        listed = Lister(problem, rule).rows()
        if listed is not None:
            bare.append([[op for op in row if op.part in ON_RANK] for row in listed])
    seen: list[Rows] = []
    for early, rows in product(_EARLY if problem.copies else _EARLY[:1], bare):
        found = with_waits(problem, rows, early)
        if found is None or found in seen:
            continue
        seen.append(found)
        played = play(problem, found)
        if played is not None and played.fits(problem):
            yield StartSchedule(found, played)
