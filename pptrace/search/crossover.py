"""Crossovers: where the faster of two configurations changes, by bisection on the range of a numeric key."""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from functools import partial
from itertools import chain, groupby, pairwise
from math import isqrt
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.config.flags import key_of
from pptrace.config.overrides import Assignment, assignment
from pptrace.config.quantities import DURATION, FLOPS, RATE, SIZE
from pptrace.config.schema import Experiment
from pptrace.errors import ConfigError, PptraceError, ScheduleError, nearest
from pptrace.report.document import Document, Printed, Table
from pptrace.run.preparation import check_size, prepare
from pptrace.run.summary import job_text, setting_text
from pptrace.search.basis import BaseConfiguration, short_reason
from pptrace.search.compare import options_notes, work_note
from pptrace.search.runner import Runner, run_point
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pptrace.config.quantities import Dimension
    from pptrace.config.resolution import Resolved
    from pptrace.report.document import Block
    from pptrace.run.figures import Row
    from pptrace.run.run import Run
    from pptrace.search.basis import Basis, Entry
    from pptrace.search.runner import ExecutorChoice


_SCALE_DIGITS = 6
_NANO = 10**9
_INTEGER = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?")


class Scale(Struct, frozen=True):
    """The integer encoding of a key's values: counts, billionths, or base units of a dimension."""

    dimension: Dimension | None = None
    """The dimension of sizes, rates, times and compute rates; None for plain numbers."""
    is_count: bool = False
    """Whether values are counts, each of which matters; other integers are points of a continuous axis."""

    def parse(self, text: str) -> int:
        """Return the integer of a value.

        Raises:
            ConfigError: the text is not a value of this scale.
        """
        if self.dimension is not None:
            return self.dimension.parse(text)
        if not (_INTEGER if self.is_count else _DECIMAL).fullmatch(text):
            raise ConfigError(f"{text!r} is not a {'whole ' if self.is_count else ''}number")
        return int(text) if self.is_count else round(Decimal(text) * _NANO)

    def exact(self, value: int) -> str:
        """Return a value without loss."""
        if self.dimension is not None:
            return self.dimension.exact(value)
        if self.is_count:
            return str(value)
        integer, billionths = divmod(value, _NANO)
        return f"{integer}.{billionths:09d}".rstrip("0").removesuffix(".")

    def shown(self, value: int) -> str:
        """Return a count, or six digits with the largest unit that the value fills."""
        if self.is_count:
            return str(value)
        if self.dimension is None:
            return f"{Decimal(self.exact(value)):.{_SCALE_DIGITS}g}"
        units = {unit: self.dimension.written[unit] for unit in self.dimension.rounded_to}
        unit = max((unit for unit in units if units[unit] <= value), key=units.__getitem__, default="")
        if not unit:
            return self.dimension.exact(value)
        return f"{float(Decimal(value) / units[unit]):.{_SCALE_DIGITS}g} {unit}"


_COUNT, _NUMBER = Scale(is_count=True), Scale()
_DIMENSIONS = (SIZE, RATE, DURATION, FLOPS)


def scale_of(value: object) -> Scale | None:
    """Return the scale of a configured value; None where it is not a number.

    >>> scale_of("50 GB/s").shown(2_500_000_000), scale_of(3), scale_of(True)
    ('2.5 GB/s', Scale(dimension=None, is_count=True), None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return _COUNT
    if isinstance(value, float):
        return _NUMBER
    if not isinstance(value, str):
        return None
    for scale in (_COUNT, _NUMBER, *map(Scale, _DIMENSIONS)):
        try:
            scale.parse(value)
        except ConfigError:
            continue
        return scale
    return None


_MICROBATCHES = "batch.microbatches"
_MOST_MICROBATCHES = 1024

_COUNTS = ("parallel.", "batch.")
"""Sections whose numbers are all whole."""

_NETWORK = ("bandwidth", "latency")
"""Words for a key of the network, or of the cluster's fabric."""

_HALF_RANGE, _HUNDREDTHS = 3162, 100
"""A range of three decades ends at 31.62 times its middle, and begins at that part of it."""

_RANGE_DIGITS = 3


class Span(Struct, frozen=True, kw_only=True):
    """A numeric key and its range."""

    key: str
    """Its path, such as ``network.bandwidth``."""
    word: str
    """As the user wrote it."""
    scale: Scale
    """The format of its values."""
    low: int
    """The first value."""
    high: int
    """The last value, above the first."""

    @property
    def is_count(self) -> bool:
        """Whether its values are whole numbers."""
        return self.key.startswith(_COUNTS)

    def assign(self, value: int) -> Assignment:
        """Return the assignment of a value to the key."""
        return assignment(self.key, self.scale.exact(value), f"--over {self.word}")

    @property
    def ends(self) -> str:
        """Both ends for people."""
        return f"{self.scale.shown(self.low)} to {self.scale.shown(self.high)}"


def parse_span(text: str, basis: Basis, entries: Sequence[Entry]) -> Span:
    """Read ``KEY`` or ``KEY=LOW..HIGH``; :func:`_default` has the default range.

    Raises:
        ConfigError: a key that is unknown, not numeric or set by an entry; or an invalid range.
    """
    word, equals, range_text = (part.strip() for part in text.partition("="))
    if not word:
        raise ConfigError("no key: write one with a range, such as microbatches=8..256", file="--over")
    source = f"--over {word}"
    ends = _ends(range_text, source) if equals else None
    key = _key(word, basis, entries, ends)
    for entry in entries:
        if entry.sets(key):
            raise ConfigError(f"{entry.label} sets the key that varies: remove it there", key=key, file=source)
    known = _values(basis, entries, key, ends)
    scale = _scale(known.get(key), key, ends)
    if scale is None or key.partition(".")[0] not in Experiment.model_fields:
        raise _no_number(key, known, source)
    low, high = _read(scale, ends, key, source) if ends else _default(scale, key, known, source)
    return Span(key=key, word=word, scale=scale, low=low, high=high)


def _ends(text: str, source: str) -> tuple[str, str]:
    low, dots, high = (part.strip() for part in text.partition(".."))
    if not dots or not low or not high:
        raise ConfigError(f"{text!r} is not a range: write LOW..HIGH, such as 8..256", file=source)
    return low, high


def _key(word: str, basis: Basis, entries: Sequence[Entry], ends: tuple[str, str] | None) -> str:
    if word in _NETWORK:
        cluster = _loaded(basis, entries[0], _MICROBATCHES, ends).experiment.cluster
        return f"network.{word}" if cluster is None else f"cluster.fabric.{word}"
    return key_of(word)


def _loaded(basis: Basis, entry: Entry, key: str, ends: tuple[str, str] | None) -> Resolved:
    """Return the configuration, with a value of the key only where it is invalid without one."""
    try:
        return basis.resolve(entry)
    except ConfigError:
        if ends is None and key != _MICROBATCHES:
            raise
        value = ends[0] if ends and scale_of(ends[0]) else "1"
        return basis.resolve(entry, [assignment(key, value, f"--over {key}")])


def _values(
    basis: Basis, entries: Sequence[Entry], key: str, ends: tuple[str, str] | None
) -> Mapping[str, object]:
    """Return all configured values, with plugin options where an entry can be prepared."""
    loaded = [_loaded(basis, entry, key, ends) for entry in entries]
    for entry, resolved in zip(entries, loaded, strict=True):
        basis.check(entry, resolved)
    known = loaded[0].explain()
    for resolved in loaded:
        # A schedule may refuse the configured sizes, which the search overrides.
        with suppress(PptraceError):
            known = prepare(resolved, basis.registry).resolved.explain()
            break
    return {name: value for name, value, _ in known}


def _scale(value: object, key: str, ends: tuple[str, str] | None) -> Scale | None:
    """Return the scale of a key's value, or of its range where the value is absent or the range has decimals."""
    configured, written = scale_of(value), [scale_of(end) for end in ends or ()]
    if value is None:
        return _NUMBER if _NUMBER in written else next(iter(written), None)
    return _NUMBER if configured == _COUNT and _NUMBER in written and not key.startswith(_COUNTS) else configured


def _no_number(key: str, known: Mapping[str, object], source: str) -> ConfigError:
    if key in known:
        return ConfigError(f"{known[key]!r} is not a number", key=key, file=source)
    numbers = [name for name, value in known.items() if scale_of(value) is not None]
    section = [name for name in numbers if name.partition(".")[0] == key.partition(".")[0]]
    advice = "; a key without a value needs a range, KEY=LOW..HIGH" if section else ""
    message = f"{key} is no key of the configuration with a number{nearest(key, section or numbers)}{advice}"
    return ConfigError(message, file=source)


def _read(scale: Scale, ends: tuple[str, str], key: str, source: str) -> tuple[int, int]:
    try:
        low, high = (scale.parse(end) for end in ends)
    except ConfigError as error:
        raise ConfigError(error.message, key=key, file=source) from None
    if low == high:
        raise ConfigError(
            f"the range {' .. '.join(ends)} has one value: the ranking cannot change", key=key, file=source
        )
    if low > high:
        raise ConfigError(f"the range is reversed: write {ends[1]}..{ends[0]}", key=key, file=source)
    return low, high


def _default(scale: Scale, key: str, known: Mapping[str, object], source: str) -> tuple[int, int]:
    """Return 1 to 1024 for microbatches, else three decades around the configured value."""
    if key == _MICROBATCHES:
        return 1, _MOST_MICROBATCHES
    value = scale.parse(str(known[key]))
    if not value:
        message = f"{known[key]} has no default range: write a range, such as {key}=LOW..HIGH"
        raise ConfigError(message, key=key, file=source)
    low = rounded(value * _HUNDREDTHS // _HALF_RANGE, _RANGE_DIGITS)
    return max(1, low), rounded(value * _HALF_RANGE // _HUNDREDTHS, _RANGE_DIGITS)


_REACH = 4096
"""Largest distance of an integer that replaces one without a sign."""

_BISECTION_DIGITS = 4
"""Significant digits of values on a continuous axis, where they are distinct."""

_DECADES = 1000
"""Ratio of the last to the first positive value of a grid that begins at 0."""


class Bisection(Struct, kw_only=True):
    """A search for the changes of a sign.

    >>> search = Bisection(sign=lambda x: (x > 40) - (x < 40), is_discrete=True)
    >>> search.changes(geometric(1, 100, 5))
    [(39, 40), (40, 41)]
    """

    sign: Callable[[int], int | None]
    """Returns the sign at a value, -1, 0 or 1, or None. Called once per value."""
    is_discrete: bool
    """Whether the axis is discrete."""
    tolerance: float = 0.01
    """Largest distance of both sides of a change on a continuous axis, as a share of the upper one."""
    signs: dict[int, int | None] = field(default_factory=dict)
    """Known signs by value."""

    def changes(self, grid: list[int]) -> list[tuple[int, int]]:
        """Return both sides of every change between points of the grid, in order.

        On a discrete axis, both sides are neighbours among the values with a sign. Two changes between
        neighbouring points of the grid cancel and remain undetected.
        """
        points = self._with_sign(grid)
        return [change for low, high in pairwise(points) for change in self._between(low, high)]

    def sign_at(self, value: int) -> int | None:
        """Return the sign at a value."""
        if value not in self.signs:
            self.signs[value] = self.sign(value)
        return self.signs[value]

    def _with_sign(self, grid: list[int]) -> list[int]:
        """Return the grid; the nearest value with a sign replaces a point without one, if there is any."""
        points: list[int] = []
        for index, value in enumerate(grid):
            after = grid[index - 1] if index else value - 1
            end = grid[index + 1] if index + 1 < len(grid) else value + 1
            near = self._nearest(value, max(after, points[-1] if points else after), end)
            if near is not None:
                points.append(near)
        return points

    def _between(self, low: int, high: int) -> list[tuple[int, int]]:
        if self.sign_at(low) == self.sign_at(high):
            return []
        middle = None if self._is_close(low, high) else self._nearest(self._middle(low, high), low, high)
        if middle is None:
            return [(low, high)]
        return [*self._between(low, middle), *self._between(middle, high)]

    def _nearest(self, value: int, after: int, end: int) -> int | None:
        """Return the nearest value with a sign, strictly between two bounds."""
        candidates = _outward(value, after, end) if self.is_discrete else iter([value])
        return next((near for near in candidates if self.sign_at(near) is not None), None)

    def _is_close(self, low: int, high: int) -> bool:
        return high - low <= (1 if self.is_discrete else max(1, self.tolerance * high))

    def _middle(self, low: int, high: int) -> int:
        if self.is_discrete:
            return (low + high) // 2
        middle = isqrt(low * high) if low else high // 2
        short = rounded(middle, _BISECTION_DIGITS)
        return short if low < short < high else (middle if low < middle < high else (low + high) // 2)


def geometric(low: int, high: int, points: int) -> list[int]:
    """Return distinct integers from ``low`` to ``high`` with about equal ratios.

    >>> geometric(1, 1000, 4), geometric(0, 1000, 3), geometric(3, 5, 9)
    ([1, 10, 100, 1000], [0, 1, 1000], [3, 4, 5])
    """
    if low == 0:
        return [0, *geometric(max(1, high // _DECADES), high, points - 1)] if high else [0]
    ratio = (high / low) ** (1 / max(1, points - 1))
    inner = {rounded(round(low * ratio**step), _BISECTION_DIGITS) for step in range(1, points - 1)}
    return sorted({low, high, *(value for value in inner if low < value < high)})


def rounded(value: int, digits: int) -> int:
    """Return an integer rounded to a number of significant digits, exactly.

    >>> rounded(123_456, 3), rounded(7, 3)
    (123000, 7)
    """
    scale = 10 ** max(0, len(str(value)) - digits)
    return int((value + scale // 2) // scale * scale)


def _outward(value: int, after: int, end: int) -> Iterator[int]:
    for distance in range(min(max(value - after, end - value), _REACH)):
        for near in dict.fromkeys((value - distance, value + distance)):
            if after < near < end:
                yield near


_PAIR = 2
_CHUNKS = "parallel.vp"
_LARGEST_CERTAIN = 10**6
"""Smallest rejected count that is certainly too large; smaller counts may be indivisible."""


class ComparedValue(Struct, frozen=True, kw_only=True):
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


class FasterChange(Struct, frozen=True, kw_only=True):
    """A change of the faster schedule."""

    below: ComparedValue
    """The last simulated value before the change."""
    above: ComparedValue
    """The first simulated value after the change."""


class Skipped(Struct, frozen=True, kw_only=True):
    """A value that a schedule does not support."""

    value: int
    """As in :class:`ComparedValue`."""
    text: str
    """The value for people."""
    schedule: str
    """The label of the schedule."""
    reason: str
    """The reason in one line."""


class Crossover(Printed, Struct, frozen=True, kw_only=True):
    """Two schedules along an axis; prints as its summary."""

    span: Span
    """The key and its range."""
    between: tuple[Entry, Entry]
    """The schedules."""
    points: tuple[ComparedValue, ...]
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

    def name(self, point: ComparedValue) -> str | None:
        """Return the label of the faster schedule at a point; None for a tie."""
        return {-1: self.between[0].label, 1: self.between[1].label}.get(point.sign)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
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

    def _plain(self, point: ComparedValue) -> dict[str, Any]:
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
    """Find every value at which the faster of two schedules changes; the arguments are those of the API.

    The first scan has ``points`` values in a geometric sequence. Bisection refines each change: to neighbouring
    values that both schedules can run where values are counts, otherwise to ``tolerance``. Without a chosen
    executor, runs are sequential.

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
    pair = _Pair(basis=basis, between=(between[0], between[1]), span=span, watch=watch or (lambda _text: None))
    search = Bisection(sign=pair.sign, is_discrete=span.scale.is_count, tolerance=tolerance)
    grid = geometric(span.low, span.high, points)
    if chosen is None or span.key == _CHUNKS:  # chunks on an executor would count as settings of the entry
        changes = search.changes(grid)
    else:
        base = BaseConfiguration(document=basis.document, sets=basis.sets, flags=basis.flags)
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


class _Pair(Struct, kw_only=True):
    """Simulator of both schedules at values of the axis, with its results."""

    basis: Basis
    between: tuple[Entry, Entry]
    span: Span
    watch: Callable[[str], None]
    simulate: Callable[[Mapping[str, Entry]], Iterator[tuple[str, Row]]] | None = None
    """Yields the rows of entries from the executor; None without one."""
    prefetched: set[int] = field(default_factory=set)
    """Values that the executor simulated."""
    points: dict[int, ComparedValue] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    heading: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def prefetch(self, values: Sequence[int]) -> None:
        """Simulate both schedules at new values on the executor, if there is one."""
        values = [value for value in values if value not in self.prefetched]
        if self.simulate is None or not values:
            return
        self.watch(f"{self.span.word} {', '.join(map(self.span.scale.shown, values))}: both")
        items = {
            f"{value} {entry.label}": replace(entry, varied=(self.span.assign(value), *entry.varied))
            for value in values
            for entry in self.between
        }
        rows = dict(self.simulate(items))
        for value in values:
            pair = [rows[f"{value} {entry.label}"] for entry in self.between]
            steps = [(step, bool(row["fits"])) for row in pair if isinstance(step := row.get("step_ns"), int)]
            if len(steps) == _PAIR:
                self._add(value, *steps)
        self.prefetched.update(values)

    def sign(self, value: int) -> int | None:
        """Return the sign of the difference at a value; None if a schedule cannot run."""
        text = self.span.scale.shown(value)
        if self.heading:
            self.prefetch([value])
            if value in self.points:
                return self.points[value].sign
        runs: list[Run] = []
        for entry in self.between:
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

    def _add(self, value: int, first: tuple[int, bool], second: tuple[int, bool]) -> int:
        text = self.span.scale.shown(value)
        step_ns, fits = (first[0], second[0]), (first[1], second[1])
        self.points[value] = ComparedValue(value=value, text=text, step_ns=step_ns, fits=fits)
        return self.points[value].sign

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


def _table(result: Crossover, intervals: Sequence[Sequence[ComparedValue]]) -> Table:
    """Return both ends of every interval with one faster schedule, and a rule at every crossover."""
    head = (result.span.word, *(entry.label for entry in result.between), "faster")
    ends = [[_row(result, point) for point in (points[0], points[-1])[: len(points)]] for points in intervals]
    columns = list(zip(head, *chain(*ends), strict=True))
    rule = (*("-" * max(map(len, column)) for column in columns[:-1]), "crossover")
    rows = [row for rows in ends for row in (rule, *rows)]
    return Table(head=head, rows=tuple(rows[1:]), words=0, left=(3,))


def _row(result: Crossover, point: ComparedValue) -> tuple[str, str, str, str]:
    steps = [
        f"{_TIME.shown(step)}{'' if fits else ' !'}" for step, fits in zip(point.step_ns, point.fits, strict=True)
    ]
    name = result.name(point)
    return point.text, steps[0], steps[1], f"{name} by {_margin(point)}" if name else "tie"


def _sentence(result: Crossover, intervals: Sequence[Sequence[ComparedValue]]) -> str:
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


def _extent(interval: Sequence[ComparedValue], index: int, count: int) -> str:
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


def _margin(point: ComparedValue) -> str:
    percent = 100 * point.margin
    return f"{percent:.2f}%" if percent >= _FINE else f"{percent:.2g}%"
