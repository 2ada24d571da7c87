"""Crossovers: where the faster of two configurations changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from pptrace.config.quantities import DURATION
from pptrace.config.resolution import document_of
from pptrace.errors import ConfigError, PptraceError, ScheduleError
from pptrace.report.document import Document, Printed, Table
from pptrace.run.preparation import check_size
from pptrace.run.summary import job_text, setting_text
from pptrace.search.basis import short_reason
from pptrace.search.compare import options_notes, work_note
from pptrace.search.grid import Base
from pptrace.search.key_range import Bisection, Scale, geometric, parse_span
from pptrace.search.runner import Runner, choose, run_point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pptrace.plugins.registry import Registry
    from pptrace.report.document import Block
    from pptrace.run.figures import Row
    from pptrace.run.run import Run
    from pptrace.search.basis import Basis, Entry
    from pptrace.search.key_range import Span
    from pptrace.search.runner import ExecutorChoice


def choose_executor(
    registry: Registry, executor: str | Mapping[str, Any] | None, workers: int | None, *, shared: bool = False
) -> ExecutorChoice | None:
    """Return the executor of a search: processes if only ``workers`` is given, None without either.

    Raises:
        PptraceError: as for :func:`~pptrace.search.runner.choose`.
    """
    if executor is None and workers is None:
        return None
    return choose(executor or "processes", registry, workers or 0, shared=shared)


_PAIR = 2
_CHUNKS = "parallel.vp"
_LARGEST_CERTAIN = 10**6
"""Smallest rejected count that is certainly too large; smaller counts may be indivisible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The steps of both schedules at one value of the axis."""

    value: int
    """The value: a count, or base units (bytes/s, ns, bytes, FLOP/s; billionths of plain numbers)."""
    text: str
    """The value for people."""
    step_ns: tuple[int, int]
    """The step time of each schedule."""
    fits: tuple[bool, bool]
    """Whether each schedule fits its device's memory; true where unknown."""

    @property
    def sign(self) -> int:
        """-1 if the first schedule is faster, 1 if the second is faster, 0 for a tie."""
        first, second = self.step_ns
        return (first > second) - (first < second)

    @property
    def margin(self) -> float:
        """The difference of the steps, as a share of the faster one."""
        return max(self.step_ns) / min(self.step_ns) - 1 if min(self.step_ns) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FasterChange:
    """A change of the faster schedule."""

    below: Point
    """The last simulated value before the change."""
    above: Point
    """The first simulated value after the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A value that a schedule does not support."""

    value: int
    """As in :class:`Point`."""
    text: str
    """The value for people."""
    schedule: str
    """The label of the schedule."""
    reason: str
    """The reason in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossover(Printed):
    """Two schedules along an axis; prints as its summary."""

    span: Span
    """The key and its range."""
    between: tuple[Entry, Entry]
    """The schedules."""
    points: tuple[Point, ...]
    """Every value that both schedules can run, in order."""
    crossovers: tuple[FasterChange, ...]
    """Changes of the faster schedule, in order; a tie has a change on either side."""
    skipped: tuple[Skipped, ...]
    """Values that a schedule does not support, in order."""
    heading: tuple[str, ...] = ()
    """The job and its settings."""
    notes: tuple[str, ...] = ()
    """Remarks, one sentence each."""

    def table(self) -> list[Row]:
        """Return one row per point, for pandas."""
        first, second = (entry.label for entry in self.between)
        return [
            {
                self.span.key: point.value, f"{first}_step_ns": point.step_ns[0],
                f"{second}_step_ns": point.step_ns[1], "faster": self.name(point),
            }
            for point in self.points
        ]  # fmt: skip

    def name(self, point: Point) -> str | None:
        """Return the label of the faster schedule at a point; None for a tie."""
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
            "crossovers": [
                {"below": self._plain(each.below), "above": self._plain(each.above)} for each in self.crossovers
            ],
            "points": [self._plain(point) for point in self.points],
            "skipped": [
                {"value": span.scale.exact(skip.value), "schedule": skip.schedule, "reason": skip.reason}
                for skip in self.skipped
            ],
            "notes": list(self.notes),
        }

    def document(self) -> Document:
        """Return the table and the crossovers that the command line prints."""
        first, second = (entry.label for entry in self.between)
        count = f"{len(self.crossovers) or 'no'} crossover{'s' if len(self.crossovers) != 1 else ''}"
        intervals = [list(points) for _, points in groupby(self.points, key=attrgetter("sign"))]
        lead: tuple[Block, ...] = (
            *self.heading,
            f"{first} against {second} over {self.span.key}, {self.span.ends}: {count}",
            "",
            _table(self, intervals),
            "",
            _sentence(self, intervals),
            f"simulated at {len(self.points)} values; more --points can find further crossovers between them",
            *_skipped(self),
            *_memory(self),
            *self.notes,
        )
        return Document(title="crossover", lead=lead)

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
    """Find every value at which the faster of two schedules changes.

    The first scan has ``points`` values in a geometric sequence. Bisection refines each change: to neighbouring
    values that both schedules can run where values are counts, otherwise to ``tolerance``.

    Args:
        basis: the common configuration.
        between: the two schedules.
        over: the key and its range, as for :func:`~pptrace.search.key_range.parse_span`.
        points: values of the first scan, at least 2.
        tolerance: the largest distance of both sides of a crossover, as a share of its value.
        watch: receives the name of each run before it starts.
        chosen: the executor, which runs the first scan in parallel; without one, runs are sequential.

    Raises:
        PptraceError: invalid input, or no value in the range that both schedules can run.
    """
    if len(between) != _PAIR:
        raise ConfigError(f"{len(between)} is not a pair: name two, such as gpipe,1f1b", file="--between")
    if points < _PAIR or not 0 < tolerance < 1:
        raise ConfigError("a search needs two points or more, and a tolerance between 0 and 1")
    for entry in between:
        basis.find(entry)
    span = parse_span(over, basis, between)
    _check_largest(basis, between, span)
    pair = _Pair(basis=basis, between=(between[0], between[1]), span=span, watch=watch)
    search = Bisection(sign=pair.sign, is_discrete=span.scale.is_count, tolerance=tolerance)
    grid = geometric(span.low, span.high, points)
    if chosen is None or span.key == _CHUNKS:  # chunks on an executor would count as settings of the entry
        changes = search.changes(grid)
    else:
        base = Base(document=document_of(basis.file), sets=basis.sets, flags=basis.flags)
        with Runner(basis.registry, chosen) as runner:
            pair.simulate = partial(runner.run, call=partial(run_point, base=base))
            pair.prefetch(grid)
            changes = search.changes(grid)
    if not pair.points:
        raise pair.no_value_error()
    simulated = pair.points
    return Crossover(
        span=span, between=pair.between, points=tuple(simulated[value] for value in sorted(simulated)),
        crossovers=tuple(FasterChange(below=simulated[low], above=simulated[high]) for low, high in changes),
        skipped=tuple(sorted(pair.skipped, key=attrgetter("value"))),
        heading=pair.heading, notes=pair.notes,
    )  # fmt: skip


def _check_largest(basis: Basis, between: Sequence[Entry], span: Span) -> None:
    """Check the size of the last value, the largest one, before anything runs."""
    for entry in between:
        try:
            resolved = basis.resolve(entry, [span.assign(span.high)])
        except ConfigError as error:
            if error.key == span.key and span.is_count and span.high > _LARGEST_CERTAIN:
                raise
            continue  # the search reports it and continues with other values
        check_size(resolved)


@dataclass(slots=True, kw_only=True)
class _Pair:
    """Simulator of both schedules at values of the axis, with its results."""

    basis: Basis
    between: tuple[Entry, Entry]
    span: Span
    watch: Callable[[str], None] | None
    simulate: Callable[[Mapping[str, Entry]], Iterator[tuple[str, Row]]] | None = None
    """Yields the rows of entries from the executor; None without one."""
    steps: dict[str, tuple[int, bool] | None] = field(default_factory=dict)
    """Prefetched steps, and whether they fit, by value and label; None where the schedule cannot run."""
    points: dict[int, Point] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    heading: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def prefetch(self, values: Sequence[int]) -> None:
        """Simulate both schedules at new values on the executor."""
        if self.simulate is None:
            return
        if self.watch is not None:
            self.watch(f"{self.span.word} {', '.join(map(self.span.scale.shown, values))}: both")
        items = {
            f"{value} {entry.label}": replace(entry, varied=(self.span.assign(value), *entry.varied))
            for value in values
            for entry in self.between
        }
        missing = {key: entry for key, entry in items.items() if key not in self.steps}
        for key, row in self.simulate(missing):
            step = row.get("step_ns")
            self.steps[key] = (step, bool(row["fits"])) if isinstance(step, int) else None

    def sign(self, value: int) -> int | None:
        """Return the sign of the difference at a value; None if a schedule cannot run."""
        text = self.span.scale.shown(value)
        steps = self._prefetched(value)
        if steps is not None:
            return self._add(value, *steps)
        runs: list[Run] = []
        for entry in self.between:
            if self.watch is not None:
                self.watch(f"{self.span.word} {text}: {entry.label}")
            try:
                runs.append(self.basis.run(entry, [self.span.assign(value)]))
            except (ConfigError, ScheduleError) as error:
                if isinstance(error, ConfigError) and error.key != self.span.key:
                    raise
                reason = short_reason(error)
                self.skipped.append(Skipped(value=value, text=text, schedule=entry.label, reason=reason))
                return None
        if not self.heading:
            self._describe(runs)
        return self._add(value, *((run.metrics.step_ns, run.metrics.memory.over_capacity is None) for run in runs))

    def _prefetched(self, value: int) -> list[tuple[int, bool]] | None:
        """Return both steps of the executor; None if a schedule cannot run, or before the heading exists."""
        if self.simulate is None or not self.heading:
            return None
        self.prefetch([value])
        steps = [step for entry in self.between if (step := self.steps[f"{value} {entry.label}"]) is not None]
        return steps if len(steps) == _PAIR else None

    def _add(self, value: int, first: tuple[int, bool], second: tuple[int, bool]) -> int:
        point = Point(
            value=value,
            text=self.span.scale.shown(value),
            step_ns=(first[0], second[0]),
            fits=(first[1], second[1]),
        )
        self.points[value] = point
        return point.sign

    def no_value_error(self) -> PptraceError:
        """Return the error of a range without a value that both schedules can run."""
        last = self.skipped[-1]
        return ConfigError(
            f"no simulated value from {self.span.ends} can be run by both; "
            f"at {last.text}, {last.schedule}: {last.reason}",
            key=self.span.key, file=f"--over {self.span.word}",
        )  # fmt: skip

    def _describe(self, runs: Sequence[Run]) -> None:
        settings = {setting_text(run) for run in runs}
        common_settings = settings if len(settings) == 1 and not self.span.key.startswith("parallel.") else ()
        self.heading = (job_text(runs[0]), *common_settings)
        labels = [entry.label for entry in self.between]
        named_runs = list(zip(labels, runs, strict=True))
        self.notes = (*options_notes(named_runs), *work_note(named_runs))


_TIME = Scale(dimension=DURATION)
_SHOWN = 6
"""Maximum number of listed ranges of skipped values."""

_FINE = 0.1
"""Percentage below which a margin has two significant digits instead of two decimals."""


def _table(result: Crossover, intervals: Sequence[Sequence[Point]]) -> Table:
    """Return both ends of every interval with one faster schedule, and a rule at every crossover."""
    head = (result.span.word, *(entry.label for entry in result.between), "faster")
    ends = [[_row(result, point) for point in (points[0], points[-1])[: len(points)]] for points in intervals]
    columns = list(zip(head, *chain(*ends), strict=True))
    rule = (*("-" * max(map(len, column)) for column in columns[:-1]), "crossover")
    rows = [row for rows in ends for row in (rule, *rows)]
    return Table(head=head, rows=tuple(rows[1:]), words=0, left=(3,))


def _row(result: Crossover, point: Point) -> tuple[str, str, str, str]:
    steps = [
        f"{_TIME.shown(step)}{'' if fits else ' !'}" for step, fits in zip(point.step_ns, point.fits, strict=True)
    ]
    name = result.name(point)
    return point.text, steps[0], steps[1], f"{name} by {_margin(point)}" if name else "tie"


def _sentence(result: Crossover, intervals: Sequence[Sequence[Point]]) -> str:
    if len(intervals) == 1:
        (interval,) = intervals
        name = result.name(interval[0])
        if len(interval) == 1:
            return f"{name or 'a tie'} at {interval[0].text}, the only value that both support"
        if name is None:
            return "a tie throughout"
        sides = [f"by {_margin(point)} at {point.text}" for point in (interval[0], interval[-1])]
        return f"{name} is faster throughout: {', '.join(sides)}"
    return "faster: " + ", ".join(
        f"{result.name(interval[0]) or 'a tie'} {_extent(interval, index, len(intervals))}"
        for index, interval in enumerate(intervals)
    )


def _extent(interval: Sequence[Point], index: int, count: int) -> str:
    low, high = interval[0].text, interval[-1].text
    if index == 0:
        return f"up to {high}"
    if index == count - 1:
        return f"from {low}"
    return f"at {low}" if low == high else f"from {low} to {high}"


def _skipped(result: Crossover) -> list[str]:
    """Return a line per schedule that does not support some values."""
    lines = []
    for entry in result.between:
        skipped = [skip for skip in result.skipped if skip.schedule == entry.label]
        if skipped:
            ranges = _format_values(skipped, is_count=result.span.scale.is_count)
            listed = ", ".join(ranges[:_SHOWN]) + (", …" if len(ranges) > _SHOWN else "")
            lines.append(f"skipped, because {entry.label} does not support them: {listed} ({skipped[0].reason})")
    return lines


def _format_values(skipped: Sequence[Skipped], *, is_count: bool) -> list[str]:
    """Return skipped values as texts; consecutive whole numbers become a range, ``1 to 3``."""
    if not is_count:
        return [skip.text for skip in skipped]
    values = [skip.value for skip in skipped]
    ranges = groupby(enumerate(values), key=lambda pair: pair[1] - pair[0])
    ends = [(group[0][1], group[-1][1]) for _, pairs in ranges if (group := list(pairs))]
    return [str(low) if low == high else f"{low} to {high}" for low, high in ends]


def _memory(result: Crossover) -> list[str]:
    too_large = [
        entry.label
        for index, entry in enumerate(result.between)
        if not all(point.fits[index] for point in result.points)
    ]
    need = "need" if len(too_large) > 1 else "needs"
    return [f"!: {' and '.join(too_large)} {need} more memory than the device has"] if too_large else []


def _margin(point: Point) -> str:
    percent = 100 * point.margin
    return f"{percent:.2f}%" if percent >= _FINE else f"{percent:.2g}%"
