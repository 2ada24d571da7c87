"""Where along an axis the ranking of two schedules by step time flips."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pptrace.errors import ConfigError, PptraceError, ScheduleError
from pptrace.experiment.sizes import check_size
from pptrace.experiment.summary import job_text, setting_text
from pptrace.printable import Printed
from pptrace.study.bisection import Bisection, geometric
from pptrace.study.compare_text import options_notes, work_note
from pptrace.study.elsewhere import Elsewhere
from pptrace.study.reason import short_reason
from pptrace.study.span import parse_span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pptrace.experiment.run import Run
    from pptrace.study.basis import Basis
    from pptrace.study.entry import Entry
    from pptrace.study.executor import ExecutorChoice
    from pptrace.study.row import Row
    from pptrace.study.span import Span

__all__ = ["Crossover", "Flip", "Point", "Skipped", "crossover"]

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
        from pptrace.study.crossover_text import crossover_lines

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
        over: what varies, as for :func:`~pptrace.study.span.parse_span`.
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
