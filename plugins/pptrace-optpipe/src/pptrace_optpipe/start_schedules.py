"""Schedules from which a search starts.

Without copies, list scheduling runs forwards as early as memory allows. With copies, list scheduling offloads
activations, or it uses a larger limit, and then activations are offloaded or recomputed until the true limit
holds. The result is the fastest schedule that fits. A further candidate runs one microbatch after another, which
fits if any schedule fits.

Some message policies accept only few orders, and these may differ from the orders that a search finds under
another policy. Accepted orders may exceed memory, so the search repairs them without a change of the order of
computations.
"""

from __future__ import annotations

import json
from fractions import Fraction
from functools import partial
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_origin

from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import ConfigError, Kind, PptraceError, ScheduleError, load, prepare, read_yaml
from pptrace_optpipe.bounds import bound
from pptrace_optpipe.listing import Lister, OffloadingLister, Rule, serial_rows
from pptrace_optpipe.memory_repair import evict
from pptrace_optpipe.model import WorkClock
from pptrace_optpipe.playback import Played, play
from pptrace_optpipe.problem import NO_LIMIT, ON_RANK, OpKind, joined_rows
from pptrace_optpipe.setting import pairs, rows_of_table, setting_in, simulated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from random import Random

    from pptrace.plugin import Placement, Registry, Schedule, StepInputs
    from pptrace_optpipe.model import Effort
    from pptrace_optpipe.problem import Problem, Rows
    from pptrace_optpipe.setting import SearchInput, Setting, Simulated


_AHEAD = (Fraction(1), Fraction(9, 8), Fraction(5, 4), Fraction(3, 2), Fraction(7, 4), Fraction(2), Fraction(5, 2),
          Fraction(3), Fraction(4), Fraction(6))  # fmt: skip
"""Memory limits of list scheduling relative to the true limit, before copies are added."""


class StartSchedule(NamedTuple):
    """Rows with their simulation."""

    rows: Rows
    played: Played

    @property
    def rank_key(self) -> tuple[int, int, int]:
        """Step, number of copied or recomputed activations, and total peak memory; lower is better."""
        evicted_count = sum(op.kind in (OpKind.O, OpKind.C) for row in self.rows for op in row)
        return self.played.step, evicted_count, sum(self.played.peak)


_PACES = (Fraction(9, 10), Fraction(19, 20), Fraction(1), Fraction(26, 25))
"""Intervals between forwards, relative to those of the lower bound."""
_DISTURBANCES = (0.0, 0.03, 0.1, 0.3)
"""The largest changes of times, as shares."""
_LOOKAHEADS = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of a weight gradient's time in which list scheduling looks ahead."""
_INTERVALS = (0.85, 1.1)
"""The least and the largest of these intervals for lists with disturbed times."""
_OFTEN, _SELDOM = 0.5, 0.3
"""Probabilities of random settings."""
_PARTS = (Fraction(1), Fraction(11, 12), Fraction(5, 6))
"""Shares of a rank's memory for activations in flight; the other part is for deferred weight gradients."""


def is_better(schedule: StartSchedule, best: StartSchedule | None) -> bool:
    """Return whether a schedule is shorter than another; fewer copies, then less memory, break ties."""
    return best is None or schedule.rank_key < best.rank_key


def start(
    problem: Problem,
    enough: int = 0,
    stopped: Callable[[], bool] = lambda: False,
    tell: Callable[[StartSchedule], None] = lambda _: None,
) -> StartSchedule | None:
    """Return the best schedule of all start rules; None if none fits.

    Args:
        problem: what to schedule.
        enough: a lower bound of the step; the search ends when a schedule reaches it.
        stopped: called between rules; true ends the search with the best so far.
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
    """Yield the schedules of all start rules that fit, with split and, if shorter, joined backwards.

    If messages take time, list scheduling also runs as if they took none. A short message then does not change the
    order of operations, which can be better if many forwards wait for memory.
    """
    lists = []
    for other in dict.fromkeys((problem, problem.without_transfers)):
        lists.append(_list_schedules(other))
        if other.joinable:
            lists.append(joined_rows(problem, rows) for rows in _list_schedules(other.joined))
    for rows in (rows for group in zip_longest(*lists) for rows in group if rows is not None):
        played = play(problem, rows)
        if played is not None:
            yield from fitted(problem, rows, played)


def disturbed(problem: Problem, random: Random) -> Iterator[Rows | None]:
    """Yield rows of list scheduling with disturbed times and random rules, without end; None for a deadlock.

    With other times, operations that compete for a rank have another order, which can be better for the true
    times: Storer, Wu and Vaccari, New search spaces for sequencing problems, Management Science 38, 1992.
    """
    interval = _forward_interval(problem)
    while True:
        is_joined = bool(problem.joinable) and random.random() < _OFTEN
        base = problem.joined if is_joined else problem
        base = base.without_transfers if random.random() < _OFTEN else base
        largest = random.choice(_DISTURBANCES)
        f, i, w = (
            tuple(int(time * random.uniform(1 - largest, 1 + largest)) for time in times)
            for times in (base.f, base.i, base.w)
        )
        other = replace(base, f=f, i=i, w=w)
        patient, second = random.random() < _SELDOM, random.random() < _OFTEN
        pace = int(interval * random.choice((0, random.uniform(*_INTERVALS))))
        if problem.copies:
            lister: Lister = OffloadingLister(
                other, random.randint(0, _most_kept(problem)), patient=patient, late=second
            )
        else:
            lookahead = random.choice((0, random.uniform(_LOOKAHEADS[0], 1)))
            by_arrival = random.random() < _OFTEN
            rule = Rule(
                limit=problem.limit, patient=patient, weights_first=second, pace=pace, lookahead=lookahead,
                by_arrival=by_arrival,
            )  # fmt: skip
            lister = Lister(other, rule)
        rows = lister.rows()
        yield joined_rows(problem, rows) if is_joined and rows is not None else rows


def fitted(problem: Problem, rows: Rows, played: Played) -> Iterator[StartSchedule]:
    """Yield rows if they fit, else rows that fit with offloads, and rows that fit with recomputation."""
    if played.fits(problem):
        yield StartSchedule(rows, played)
        return
    for kind in [OpKind.O] * problem.copies + [OpKind.C] * problem.recomputes:
        fitting = evict(problem, rows, [kind])
        replayed = play(problem, fitting)
        if replayed is not None and replayed.fits(problem):
            yield StartSchedule(fitting, replayed)


def _list_schedules(problem: Problem) -> Iterator[Rows]:
    """Yield rows rule by rule, the most promising rules first; the second rows fit if any schedule fits."""
    listers: list[Callable[[], Lister]] = [partial(Lister, problem, rule) for rule in _rules(problem)]
    if problem.copies:
        kept = range(_most_kept(problem) + 1)
        offloading = [
            partial(OffloadingLister, problem, kept_count, patient=patient, late=late)
            for kept_count, late, patient in product(kept, (True, False), (True, False))
        ]
        listers = [lister for pair in zip_longest(listers, offloading) for lister in pair if lister is not None]
    for place, lister in enumerate(listers):
        if place == 1:
            yield serial_rows(problem, copied=problem.copies)
        rows = lister().rows()
        if rows is not None:
            yield rows


def _most_kept(problem: Problem) -> int:
    """Return the most activations of a step that fit into the memory of any limited rank."""
    return max(
        min(
            problem.microbatches * len(stages), limit // max(min(problem.activation[stage] for stage in stages), 1)
        )
        for limit, stages in zip(problem.limit, problem.stages_of, strict=True)
    )


def _rules(problem: Problem) -> Iterator[Rule]:
    """Yield rules with the true memory limit, with larger limits, and with limits of activations in flight."""
    for per_stage in _by_round_trips(problem):
        yield Rule(limit=problem.limit, per_stage=per_stage)
    for factor in _AHEAD if problem.copies or problem.recomputes else _AHEAD[:1]:
        limit = tuple(NO_LIMIT if size == NO_LIMIT else int(size * factor) for size in problem.limit)
        for patient, weights_first in product((True, False), (False, True)):
            yield Rule(limit=limit, patient=patient, weights_first=weights_first)
    if not problem.copies and not problem.recomputes:
        interval = _forward_interval(problem)
        for share in _PACES:  # even intervals wait less for gradients on the same rank
            yield Rule(limit=problem.limit, patient=False, pace=int(interval * share))
        for lookahead, by_arrival in product(_LOOKAHEADS, (True, False)):
            yield Rule(limit=problem.limit, patient=False, lookahead=lookahead, by_arrival=by_arrival)
    for in_flight in flights(problem):
        yield Rule(limit=(NO_LIMIT,) * problem.ranks, in_flight=in_flight)


def _forward_interval(problem: Problem) -> int:
    """Return the mean time between forwards of the first stage in a step as short as the lower bound."""
    return max(bound(problem) - problem.round_trip(0), 0) // max(problem.microbatches - 1, 1)


def _by_round_trips(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield limits of activations in flight per stage, if ranks have several stages.

    In a steady state, an activation is in memory for about the round trip of its stage. A rank's memory, or a
    share of it, is therefore divided in the ratio of round trips. The remainder goes to the last or the first
    stage.
    """
    if problem.stages == problem.ranks or NO_LIMIT in problem.limit:
        return
    work = [sum(times[stage] for times in (problem.f, problem.i, problem.w)) for stage in range(problem.stages)]
    for last, extra_microbatches, share in product((True, False), (0, 2), _PARTS):
        trips = [problem.round_trip(stage) + extra_microbatches * work[stage] for stage in range(problem.stages)]
        shares = [0] * problem.stages
        for stages, limit in zip(problem.stages_of, problem.limit, strict=True):
            free_size = shared_size = int(limit * share)
            total = sum(trips[stage] * problem.activation[stage] for stage in stages) or 1
            for stage in stages:
                shares[stage] = max(1, shared_size * trips[stage] // total)
                free_size -= shares[stage] * problem.activation[stage]
            remainder_stage = stages[-1 if last else 0]
            shares[remainder_stage] += max(free_size // max(problem.activation[remainder_stage], 1), 0)
        yield tuple(shares)


def flights(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Yield limits of activations in flight: those of 1F1B, and up to twice as many."""
    ranks = problem.ranks
    for ahead in range(ranks):
        per_stage = tuple(ranks - rank + min(ahead, ranks - 1 - rank) for rank in range(ranks))
        yield tuple(count * len(stages) for count, stages in zip(per_stage, problem.stages_of, strict=True))


COPIED = "+offload"
"""Suffix of the name of a schedule with added offloads."""
AGAIN = "+recompute"
"""Suffix of the name of a schedule with added recomputation."""

_OPTPIPE = "optpipe"
_LIMITS = ("device.memory", "costs.capacity")
"""Configuration keys of the device memory; schedules read it through costs."""
_TOLERANCE = 0.01
"""The largest relative difference of equal work."""
_OFFLOAD = "schedule.offload.gap=3"
"""Setting that adds offloads to a schedule, selected as in PipeOffload."""
_AGAIN = "schedule.recompute.early=true"
"""Setting that adds recomputation to a schedule, as early as ranks allow."""


class Rival(Struct, frozen=True, kw_only=True):
    """A schedule of another plugin with its simulated figures."""

    name: str
    """Name as for ``pptrace compare --schedules``, such as ``zb-h1:shorten=step``; with the suffix ``+offload`` if
    offloads are added, and ``+recompute`` if recomputation is added."""
    table: Schedule
    simulated: Simulated
    """Simulated figures of the table."""
    fits: bool
    """Whether every rank keeps the limit of the search."""
    search_input: Callable[[], SearchInput]
    """Returns the input of a search in the placement of the table.

    Raises:
        PptraceError: no search is possible in this placement.
    """

    @property
    def peak_bytes(self) -> int:
        """The highest peak memory of a rank."""
        return max(self.simulated.peak_bytes)

    def rows(self) -> Rows | None:
        """Return the rows of the table; None if a search cannot split its backwards."""
        try:
            return rows_of_table(self.table)
        except ScheduleError:
            return None


def rivals(
    config: Path | None, sets: Sequence[str], registry: Registry, setting: Setting, memory: int = 0
) -> Iterator[Rival | None]:
    """Yield every schedule of other plugins with a setting's work, built for a limit in bytes per rank.

    Yield None for a schedule with other sizes, with more or less computation, or with behaviour that a table
    cannot represent, and for other placements if the setting keeps its own, so that a caller can check the time.
    If offloads are possible, each schedule appears a second time, with the offloads that fit in time. If
    recomputation is possible, it appears once more, with all forwards recomputed. A configuration's own schedule
    of slices comes first. Schedules with other values of enumerated options come last.
    """
    if setting.sliced is not None:
        name = setting.sliced.resolved.experiment.schedule.name
        yield _rival(name, setting.sliced, simulated(setting.sliced), setting, memory)
    problem, work = setting.problem(memory), _work_ns(setting.prepared)
    limits = _limits(setting.prepared, memory) if memory else []
    load_config = partial(load, None if config is None else read_yaml(config))
    names = sorted(set(registry.schedules) - {_OPTPIPE})
    schedules = [(name, "") for name in names]
    schedules += [(name, option) for name in names for option in _options(registry, name)]
    additions = {"": [], COPIED: _offload_settings(setting) * problem.copies, AGAIN: [_AGAIN] * problem.recomputes}
    for (name, option), (suffix, added) in product(schedules, additions.items()):
        if suffix and not added:
            continue
        option_sets = [f"schedule.options.{option}"] if option else []
        prepared = _prepare_rival(load_config, [*sets, *option_sets, *added], registry, name, limits)
        placement = setting.placement if setting.is_kept else None
        figures = None if prepared is None else rival_figures(prepared, work, placement)
        if prepared is None or figures is None:
            yield None
            continue
        yield _rival(f"{name}{f':{option}' if option else ''}{suffix}", prepared, figures, setting, memory)


def _options(registry: Registry, name: str) -> Iterator[str]:
    """Yield ``option=value`` for each value of a schedule's enumerated options, except the defaults."""
    try:
        model = registry.schedules[name].offer.options
    except PptraceError:
        return
    for option, field in model().model_fields.items() if model else ():
        values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        words = (
            value if isinstance(value, str) else json.dumps(value) for value in values if value != field.default
        )
        yield from (f"{option}={word}" for word in words)


def _rival(name: str, prepared: StepInputs, figures: Simulated, setting: Setting, memory: int) -> Rival:
    """Return a schedule with its figures; a search in its placement has the options of the setting."""

    def search_input() -> SearchInput:
        in_placement = setting_in(
            prepared, setting.prepare_table, recompute=setting.recompute, shared=setting.shared
        )  # fmt: skip
        return in_placement.search_input(memory)

    fits = setting.fits(figures, memory)
    return Rival(name=name, table=prepared.schedule, simulated=figures, fits=fits, search_input=search_input)


def _limits(prepared: StepInputs, memory: int) -> list[list[str]]:
    """Return alternative settings of the memory limit; the first that the costs accept applies."""
    device = prepared.resolved.experiment.device
    device_limits = device.limited(memory) if device else {}
    if device_limits:
        return [[f"{key}={value}" for key, value in device_limits.items()]]
    return [[f"{key}={memory} B"] for key in _LIMITS]


def _offload_settings(setting: Setting) -> list[str]:
    """Return the settings that add offloads to a schedule; none if a schedule cannot express the channels."""
    if not setting.shared:
        return [_OFFLOAD]
    return [_OFFLOAD, "schedule.offload.stream=pair"] if setting.shared == pairs(setting.placement.ranks) else []


def rival_figures(prepared: StepInputs, work_ns: int, placement: Placement | None) -> Simulated | None:
    """Return a schedule's simulated figures, or None if it cannot run or be compared with a search's result.

    Args:
        prepared: a configuration with the schedule.
        work_ns: the total work of all ranks; another schedule must have the same, except for rounding.
        placement: the placement that results keep; None for any.
    """
    table, batch = prepared.schedule, prepared.resolved.experiment.batch
    has_behaviour_outside_table = table.interleave or table.recompute_waits
    if has_behaviour_outside_table or table.microbatches != batch.known_microbatches:
        return None
    if placement is not None and table.placement != placement:
        return None
    if abs(_work_ns(prepared) - work_ns) > _TOLERANCE * work_ns:
        return None
    try:
        return simulated(prepared)
    except PptraceError:
        return None


def _work_ns(prepared: StepInputs) -> int:
    """Return the total work of all ranks."""
    return prepared.workload.total_ns((Kind.F, Kind.I, Kind.W), prepared.schedule.microbatches)


_SHARE = 0.25
"""Share of the time to build and simulate other plugins' schedules."""
_LEAST = 3.0
"""Seconds or units of work for these schedules in a short search; of a limit of time at most half."""


def within_share(rivals: Iterable[Rival | None], effort: Effort) -> tuple[list[Rival], Effort]:
    """Return the rivals that are built within a share of the time, and the effort that remains."""
    start, built = effort.clock(), list[Rival]()
    share = effort.seconds * _SHARE
    if isinstance(effort.clock, WorkClock):
        limit, charged = max(share, _LEAST), share
    else:
        limit = charged = max(share, min(_LEAST, effort.seconds / 2))
    for rival in rivals:
        if rival is not None:
            built.append(rival)
            effort.count(len(rival.table))
        if effort.stopped() or effort.clock() - start > limit:
            break
    return built, replace(effort, seconds=effort.seconds - min(effort.clock() - start, charged))


def _prepare_rival(
    load_config: Callable[..., Any], sets: Sequence[str], registry: Registry, name: str, limits: list[list[str]]
) -> StepInputs | None:
    """Return the inputs of a schedule, with the memory limit if costs accept it. Return None if it cannot run.

    A limit whose key is refused is removed from ``limits``: it is refused for every schedule.
    """
    for limit in [*limits, []]:
        try:
            return prepare(load_config([*sets, *limit], {"schedule": name}), registry)
        except ConfigError as error:
            if not limit or not error.key.startswith(limit[0].partition(".")[0]):
                return None
            if error.key in {text.partition("=")[0] for text in limit}:
                limits.remove(limit)
        except PptraceError:
            return None
    return None


def in_order(problem: Problem, known: Iterable[Rows]) -> Iterator[StartSchedule]:
    """Yield schedules that fit, in the orders of known rows and of list scheduling with 1F1B or larger limits.

    Args:
        problem: what to schedule.
        known: rows with split backwards, which may exceed memory; their copies and recomputation are dropped.
    """
    orders = [_computations(rows) for rows in known]
    for in_flight, weights_first in product(flights(problem), (True, False)):
        rule = Rule(limit=(NO_LIMIT,) * problem.ranks, in_flight=in_flight, weights_first=weights_first)
        listed = Lister(problem, rule).rows()
        if listed is not None:
            orders.append(_computations(listed))
    kinds = [OpKind.O] * problem.copies + [OpKind.C] * problem.recomputes
    seen: list[Rows] = []
    for rows in orders:
        fitting = evict(problem, rows, kinds)
        if fitting in seen or _computations(fitting) != rows:
            continue
        seen.append(fitting)
        played = play(problem, fitting)
        if played is not None and played.fits(problem):
            yield StartSchedule(fitting, played)


def _computations(rows: Rows) -> Rows:
    """Return rows without copies and recomputation."""
    return [[op for op in row if op.kind in ON_RANK and op.kind is not OpKind.C] for row in rows]
