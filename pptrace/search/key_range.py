"""Ranges of a numeric key, and bisection on them."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING

from pptrace.config.flags import key_of
from pptrace.config.overrides import Assignment, assignment
from pptrace.config.quantities import DURATION, FLOPS, RATE, SIZE
from pptrace.config.schema import Experiment
from pptrace.errors import ConfigError, PptraceError, nearest
from pptrace.run.preparation import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pptrace.config.quantities import Dimension
    from pptrace.config.resolution import Resolved
    from pptrace.search.basis import Basis, Entry

_SCALE_DIGITS = 6
_NANO = 10**9
_INTEGER = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]{1,9}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class Scale:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
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

    Args:
        text: such as ``microbatches=8..256``, ``bandwidth`` or ``costs.forward``.
        basis: the configuration.
        entries: the schedules.

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
    return ConfigError(
        f"not a key of the configuration with a number{nearest(key, section or numbers)}{advice}", file=source
    )


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


@dataclass(slots=True, kw_only=True)
class Bisection:
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
            before = grid[index + 1] if index + 1 < len(grid) else value + 1
            near = self._nearest(value, max(after, points[-1] if points else after), before)
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

    def _nearest(self, value: int, after: int, before: int) -> int | None:
        """Return the nearest value with a sign, strictly between two bounds."""
        candidates = _outward(value, after, before) if self.is_discrete else iter([value])
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


def _outward(value: int, after: int, before: int) -> Iterator[int]:
    for distance in range(min(max(value - after, before - value), _REACH)):
        for near in dict.fromkeys((value - distance, value + distance)):
            if after < near < before:
                yield near
