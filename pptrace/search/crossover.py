"""Crossovers: where the faster of two configurations changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from pptrace.config.resolution import document_of
from pptrace.errors import ConfigError, PptraceError, ScheduleError
from pptrace.run.preparation import check_size
from pptrace.run.summary import job_text, setting_text
from pptrace.sanitize import Printed
from pptrace.search.basis import short_reason
from pptrace.search.compare import options_notes, work_note
from pptrace.search.execution import Kept, choose, run_all
from pptrace.search.grid import Base
from pptrace.search.key_range import Bisection, geometric, parse_span
from pptrace.search.runner import run_point
from pptrace.search.sweep import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from pptrace.config.overrides import Assignment
    from pptrace.plugins.registry import Registry
    from pptrace.run.figures import Row
    from pptrace.run.run import Run
    from pptrace.search.basis import Basis, Entry
    from pptrace.search.execution import ExecutorChoice
    from pptrace.search.key_range import Span

__all__ = [
    "Crossover",
    "Elsewhere",
    "Flip",
    "Point",
    "Skipped",
    "chosen_for_search",
    "crossover",
    "crossover_lines",
]


@dataclass(slots=True, kw_only=True)
class Elsewhere:
    """An executor for the steps of one search, as a context."""

    base: Base
    """What the steps have in common."""
    chosen: ExecutorChoice
    """What they run on."""
    registry: Registry | None
    """The plugins, where steps run in this process."""
    kept: Kept
    """The executor, once it runs."""
    found: dict[tuple[int, int], tuple[int, bool] | None] = field(default_factory=dict)
    """Step and whether it fits, by value and place among the entries; None where it cannot run."""

    @classmethod
    def of(cls, basis: Basis, chosen: ExecutorChoice) -> Self:
        """Return an executor for the steps of a basis, which is read once."""
        base = Base(document=document_of(basis.file), sets=basis.sets, flags=basis.flags)
        own = basis.registry if chosen.in_process else None
        return cls(base=base, chosen=chosen, registry=own, kept=Kept(chosen.start))

    def __enter__(self) -> Self:
        self.kept.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kept.__exit__(kind, error, trace)

    def simulate(self, entries: tuple[Entry, Entry], values: dict[int, Assignment]) -> None:
        """Simulate both entries at values that were not asked for yet."""
        asked = [
            (value, place, replace(entry, varied=(one, *entry.varied)))
            for value, one in values.items()
            for place, entry in enumerate(entries)
            if (value, place) not in self.found
        ]
        call = partial(_call, self.base, registry=self.registry)
        for (value, place, _), row in run_all(asked, call, self.kept, ahead=2 * self.chosen.request.workers):
            step = row.get("step_ns")
            self.found[value, place] = (step, bool(row["fits"])) if isinstance(step, int) else None


def chosen_for_search(
    registry: Registry, executor: str | Mapping[str, Any] | None, workers: int | None
) -> ExecutorChoice | None:
    """Return what a search runs on: processes where only their number is given, None where nothing is.

    Raises:
        PluginError: no plugin offers the executor.
        ConfigError: an option that it does not take.
    """
    if executor is None and workers is None:
        return None
    return choose(executor or "processes", registry, workers or cores())


def _call(base: Base, asked: tuple[int, int, Entry], *, registry: Registry | None) -> Row:
    return run_point(base, asked[2], registry)


_PAIR = 2
_CHUNKS = "parallel.vp"
_LARGEST_CERTAIN = 10**6
"""Beyond it, a count that cannot be is too large, and not merely no multiple of what it has to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Both schedules at one value of the axis."""

    value: int
    """The value: a count, or base units (bytes/s, ns, bytes, FLOP/s; billionths of plain numbers)."""
    text: str
    """The value for people."""
    step_ns: tuple[int, int]
    """The step time of each."""
    fits: tuple[bool, bool]
    """Whether each fits its device's memory; true where that is unknown."""

    @property
    def sign(self) -> int:
        """-1 where the first schedule is faster, 1 where the second is, 0 for a tie."""
        first, second = self.step_ns
        return (first > second) - (first < second)

    @property
    def margin(self) -> float:
        """How much longer the slower step is, as a part of the faster one."""
        return max(self.step_ns) / min(self.step_ns) - 1 if min(self.step_ns) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A change of who is faster."""

    below: Point
    """The last value that was found on the one side."""
    above: Point
    """The first value that was found on the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A value that a schedule cannot take."""

    value: int
    """As in :class:`Point`."""
    text: str
    """The value for people."""
    schedule: str
    """Which schedule, by its label."""
    reason: str
    """Why, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover(Printed):
    """Two schedules along an axis; prints as what the command line prints."""

    span: Span
    """What was varied, and over which range."""
    between: tuple[Entry, Entry]
    """The schedules."""
    points: tuple[Point, ...]
    """Every value at which both ran, in order."""
    flips: tuple[Flip, ...]
    """Where who is faster changes, in order; into a tie and out of it are two."""
    skipped: tuple[Skipped, ...]
    """Values that were tried and that a schedule cannot take, in order."""
    heading: tuple[str, ...] = ()
    """What was simulated, for people."""
    notes: tuple[str, ...] = ()
    """What to keep in mind about it, one sentence each."""

    def table(self) -> list[Row]:
        """Return one row per point; takes well to pandas."""
        first, second = (entry.label for entry in self.between)
        return [
            {
                self.span.key: point.value, f"{first}_step_ns": point.step_ns[0],
                f"{second}_step_ns": point.step_ns[1], "faster": self.name(point),
            }
            for point in self.points
        ]  # fmt: skip

    def name(self, point: Point) -> str | None:
        """Return who is faster at a point; None for a tie."""
        return {-1: self.between[0].label, 1: self.between[1].label}.get(point.sign)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        from pptrace.version import __version__

        span = self.span
        return {
            "pptrace": __version__,
            "key": span.key,
            "range": [span.scale.exact(span.low), span.scale.exact(span.high)],
            "between": [entry.label for entry in self.between],
            "flips": [{"below": self._plain(flip.below), "above": self._plain(flip.above)} for flip in self.flips],
            "points": [self._plain(point) for point in self.points],
            "skipped": [
                {"value": span.scale.exact(one.value), "schedule": one.schedule, "reason": one.reason}
                for one in self.skipped
            ],
            "notes": list(self.notes),
        }

    def summary(self) -> str:
        """Return what the command line prints, as plain text."""
        return "\n".join(crossover_lines(self))

    def _plain(self, point: Point) -> dict[str, Any]:
        return {
            "value": self.span.scale.exact(point.value), "step_ns": list(point.step_ns),
            "faster": self.name(point), "margin": point.margin, "fits": list(point.fits),
        }  # fmt: skip


def crossover(
    basis: Basis,
    between: Sequence[Entry],
    over: str,
    *,
    points: int = 12,
    tolerance: float = 0.01,
    watch: Callable[[str], None] | None = None,
    chosen: ExecutorChoice | None = None,
) -> Crossover:
    """Find every value at which another schedule of two becomes the faster one.

    Both are run at ``points`` values with about equal ratios; inside every change of who is faster, bisection
    goes on: to neighbouring values that both take where values are counts, else to ``tolerance``.

    Args:
        basis: what the runs have in common.
        between: the two schedules.
        over: what varies, as for :func:`~pptrace.search.key_range.parse_span`.
        points: values of the first scan, at least 2.
        tolerance: how far apart the sides of a flip may be, in parts of its value.
        watch: told what runs next.
        chosen: what steps are simulated on, the first scan's all at once; one after the other here unless given.

    Raises:
        PptraceError: what cannot be used; or no value in the range that both schedules can run.
    """
    if len(between) != _PAIR:
        raise ConfigError(f"{len(between)} is no pair: name two, such as gpipe,1f1b", file="--between")
    if points < _PAIR or not 0 < tolerance < 1:
        raise ConfigError("a search needs two points or more, and a tolerance between 0 and 1")
    for entry in between:
        basis.find(entry)
    span = parse_span(over, basis, between)
    _check_last(basis, between, span)
    trial = _Trial(basis=basis, between=(between[0], between[1]), span=span, watch=watch)
    search = Bisection(sign=trial.sign, whole=span.scale.whole, tolerance=tolerance)
    grid = geometric(span.low, span.high, points)
    if chosen is None or span.key == _CHUNKS:  # which an entry would seem to set itself
        changes = search.changes(grid)
    else:
        with Elsewhere.of(basis, chosen) as trial.elsewhere:
            trial.ahead(grid)
            changes = search.changes(grid)
    if not trial.points:
        raise trial.refusal()
    found = trial.points
    return Crossover(
        span=span, between=trial.between, points=tuple(found[value] for value in sorted(found)),
        flips=tuple(Flip(below=found[low], above=found[high]) for low, high in changes),
        skipped=tuple(sorted(trial.skipped, key=lambda one: one.value)),
        heading=trial.heading, notes=trial.notes,
    )  # fmt: skip


def _check_last(basis: Basis, between: Sequence[Entry], span: Span) -> None:
    """Check before anything runs that the range's last value can be run at all; others are smaller."""
    for entry in between:
        try:
            resolved = basis.resolve(entry, [span.at(span.high)])
        except ConfigError as error:
            if error.key == span.key and span.is_count and span.high > _LARGEST_CERTAIN:
                raise
            continue  # the search says so, and goes on with other values
        check_size(resolved)


@dataclass(slots=True, kw_only=True)
class _Trial:
    """Runs both schedules where the search asks, and keeps what came of it."""

    basis: Basis
    between: tuple[Entry, Entry]
    span: Span
    watch: Callable[[str], None] | None
    elsewhere: Elsewhere | None = None
    points: dict[int, Point] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    heading: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def ahead(self, values: Sequence[int]) -> None:
        """Simulate both schedules at values on the executor, where there is one."""
        if self.elsewhere is not None:
            if self.watch is not None:
                self.watch(f"{self.span.word} {', '.join(map(self.span.shown, values))}: both")
            self.elsewhere.simulate(self.between, {value: self.span.at(value) for value in values})

    def sign(self, value: int) -> int | None:
        """Return who is faster at a value, None where one cannot run there."""
        text = self.span.shown(value)
        known = self._known(value)
        if known is not None:
            (first, one_fits), (second, other_fits) = known
            return self._noted(Point(value=value, text=text, step_ns=(first, second), fits=(one_fits, other_fits)))
        runs: list[Run] = []
        for entry in self.between:
            if self.watch is not None:
                self.watch(f"{self.span.word} {text}: {entry.label}")
            try:
                runs.append(self.basis.run(entry, [self.span.at(value)]))
            except (ConfigError, ScheduleError) as error:
                if isinstance(error, ConfigError) and error.key != self.span.key:
                    raise
                reason = short_reason(error)
                self.skipped.append(Skipped(value=value, text=text, schedule=entry.label, reason=reason))
                return None
        if not self.heading:
            self._describe(runs)
        steps, fits = [run.metrics.step_ns for run in runs], [run.metrics.over_capacity is None for run in runs]
        return self._noted(Point(value=value, text=text, step_ns=(steps[0], steps[1]), fits=(fits[0], fits[1])))

    def _known(self, value: int) -> list[tuple[int, bool]] | None:
        """Return both steps as the executor has them; None where one cannot run, and for what is described."""
        if self.elsewhere is None or not self.heading:
            return None
        self.ahead([value])
        both = [one for place in range(_PAIR) if (one := self.elsewhere.found[value, place]) is not None]
        return both if len(both) == _PAIR else None

    def _noted(self, point: Point) -> int:
        self.points[point.value] = point
        return point.sign

    def refusal(self) -> PptraceError:
        """Return the error of a range in which nothing runs."""
        ends = f"{self.span.shown(self.span.low)} to {self.span.shown(self.span.high)}"
        last = self.skipped[-1]
        return ConfigError(
            f"no value tried from {ends} can be run by both; at {last.text}, {last.schedule}: {last.reason}",
            key=self.span.key, file=f"--over {self.span.word}",
        )  # fmt: skip

    def _describe(self, runs: Sequence[Run]) -> None:
        settings = {setting_text(run) for run in runs}
        named = settings if len(settings) == 1 and not self.span.key.startswith("parallel.") else ()
        self.heading = (job_text(runs[0]), *named)
        labels = [entry.label for entry in self.between]
        named_runs = list(zip(labels, runs, strict=True))
        self.notes = (*options_notes(named_runs), *work_note(named_runs))


_SECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_SHOWN = 6
"""Runs of skipped values that are listed."""

_FINE = 0.1
"""The percentage below which a margin has two significant digits instead of two decimals."""


def crossover_lines(found: Crossover) -> list[str]:
    """Return the lines: what was asked, both sides of every flip and both ends, who is faster where."""
    first, second = (entry.label for entry in found.between)
    ends = f"{found.span.shown(found.span.low)} to {found.span.shown(found.span.high)}"
    flips = f"{len(found.flips) or 'no'} flip{'s' if len(found.flips) != 1 else ''}"
    stretches = [list(points) for _, points in groupby(found.points, key=lambda point: point.sign)]
    return [
        *found.heading,
        f"{first} against {second} over {found.span.key}, {ends}: {flips}",
        "",
        *_table(found, stretches),
        "",
        _sentence(found, stretches),
        f"ran at {len(found.points)} values; flips that undo each other between two of them take more --points",
        *_skipped(found),
        *_memory(found),
        *found.notes,
    ]


def _table(found: Crossover, stretches: Sequence[Sequence[Point]]) -> list[str]:
    """Return both ends of every stretch that one schedule wins, with a rule where the ranking flips."""
    first, second = (entry.label for entry in found.between)
    rows = [(found.span.word, first, second, "faster")]
    rules = set()
    for stretch in stretches:
        ends = (stretch[0], stretch[-1])[: len(stretch)]
        rows += [_row(found, point) for point in ends]
        rules.add(len(rows) - 1)
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = []
    for index, row in enumerate(rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(row, widths, strict=False)]
        lines.append(f"{'  '.join(cells)}  {row[3]}")
        if index in rules and index + 1 < len(rows):
            lines.append(f"{'-' * (sum(widths) + 4)}  flip")
    return lines


def _row(found: Crossover, point: Point) -> tuple[str, str, str, str]:
    steps = [f"{_time(step)}{'' if fits else ' !'}" for step, fits in zip(point.step_ns, point.fits, strict=True)]
    name = found.name(point)
    return point.text, steps[0], steps[1], f"{name} by {_margin(point)}" if name else "tie"


def _sentence(found: Crossover, stretches: Sequence[Sequence[Point]]) -> str:
    if len(stretches) == 1:
        (stretch,) = stretches
        name = found.name(stretch[0])
        if len(stretch) == 1:
            return f"{name or 'a tie'} at {stretch[0].text}, the only value that both take"
        if name is None:
            return "a tie throughout"
        sides = [f"by {_margin(point)} at {point.text}" for point in (stretch[0], stretch[-1])]
        return f"{name} is faster throughout: {', '.join(sides)}"
    return "faster: " + ", ".join(
        f"{found.name(stretch[0]) or 'a tie'} {_extent(stretch, index, len(stretches))}"
        for index, stretch in enumerate(stretches)
    )


def _extent(stretch: Sequence[Point], index: int, count: int) -> str:
    low, high = stretch[0].text, stretch[-1].text
    if index == 0:
        return f"up to {high}"
    if index == count - 1:
        return f"from {low}"
    return f"at {low}" if low == high else f"from {low} to {high}"


def _skipped(found: Crossover) -> list[str]:
    """Return a line per schedule that could not take some of the values."""
    lines = []
    for entry in found.between:
        own = [one for one in found.skipped if one.schedule == entry.label]
        if own:
            runs = _runs(own, whole=found.span.scale.whole)
            shown = ", ".join(runs[:_SHOWN]) + (", …" if len(runs) > _SHOWN else "")
            lines.append(f"skipped, for {entry.label} cannot take them: {shown} ({own[0].reason})")
    return lines


def _runs(skipped: Sequence[Skipped], *, whole: bool) -> list[str]:
    """Return values as texts, neighbouring whole numbers joined: ``1 to 3``."""
    if not whole:
        return [one.text for one in skipped]
    values = [one.value for one in skipped]
    joined = groupby(enumerate(values), key=lambda pair: pair[1] - pair[0])
    ends = [(group[0][1], group[-1][1]) for _, pairs in joined if (group := list(pairs))]
    return [str(low) if low == high else f"{low} to {high}" for low, high in ends]


def _memory(found: Crossover) -> list[str]:
    over = [
        entry.label
        for index, entry in enumerate(found.between)
        if not all(point.fits[index] for point in found.points)
    ]
    need = "need" if len(over) > 1 else "needs"
    return [f"!: {' and '.join(over)} {need} more memory than the device has"] if over else []


def _time(step_ns: int) -> str:
    """Return a time with digits enough to tell neighbours apart."""
    unit = next((unit for unit, scale in _SECONDS.items() if step_ns >= scale), "ns")
    return f"{step_ns / _SECONDS[unit]:.6g} {unit}"


def _margin(point: Point) -> str:
    percent = 100 * point.margin
    return f"{percent:.2f}%" if percent >= _FINE else f"{percent:.2g}%"
