"""Ranges of a numeric key, and bisection on them."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from math import isqrt
from typing import TYPE_CHECKING, TypeAlias

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


@dataclass(frozen=True, slots=True)
class IntegerScale:
    """Counts, such as microbatches."""

    whole: bool = True
    """Each integer counts."""

    def parse(self, text: str) -> int:
        """Return a whole number.

        Raises:
            ConfigError: there is none.
        """
        if not re.fullmatch(r"[0-9]{1,18}", text):
            raise ConfigError(f"{text!r} is no whole number")
        return int(text)

    def exact(self, value: int) -> str:
        """Return the digits."""
        return str(value)

    def shown(self, value: int) -> str:
        """Return the digits."""
        return str(value)


@dataclass(frozen=True, slots=True)
class DecimalScale:
    """Numbers with decimals, such as efficiencies, counted in billionths."""

    whole: bool = False
    """Integers stand for points of a continuous axis."""

    def parse(self, text: str) -> int:
        """Return the nearest number of billionths.

        Raises:
            ConfigError: it is no number.
        """
        if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?", text):
            raise ConfigError(f"{text!r} is no number")
        return round(Decimal(text) * _NANO)

    def exact(self, value: int) -> str:
        """Return a decimal number."""
        whole, rest = divmod(value, _NANO)
        return f"{whole}.{rest:09d}".rstrip("0").removesuffix(".")

    def shown(self, value: int) -> str:
        """Return six digits."""
        return f"{Decimal(self.exact(value)):.{_SCALE_DIGITS}g}"


@dataclass(frozen=True, slots=True)
class Quantity:
    """Sizes, rates, times and compute rates, in their base units."""

    dimension: Dimension
    """Which of them."""
    whole: bool = False
    """As above."""

    def parse(self, text: str) -> int:
        """Return base units.

        Raises:
            ConfigError: it is no quantity of this dimension.
        """
        return self.dimension.parse(text)

    def exact(self, value: int) -> str:
        """Return the quantity without loss."""
        return self.dimension.exact(value)

    def shown(self, value: int) -> str:
        """Return six digits in the largest unit that the value fills."""
        units = {unit: self.dimension.written[unit] for unit in self.dimension.rounded_to}
        unit = max((unit for unit in units if units[unit] <= value), key=units.__getitem__, default="")
        if not unit:
            return self.dimension.exact(value)
        return f"{float(Decimal(value) / units[unit]):.{_SCALE_DIGITS}g} {unit}"


Scale: TypeAlias = "IntegerScale | DecimalScale | Quantity"
"""``whole`` tells whether each integer is a value of its own, or stands for a point of a continuous axis."""

_DIMENSIONS = (SIZE, RATE, DURATION, FLOPS)


def scale_of(value: object) -> Scale | None:
    """Return the scale of a value as a configuration holds it; None where it is no number.

    >>> scale_of("50 GB/s").shown(2_500_000_000), scale_of(3), scale_of(True)
    ('2.5 GB/s', IntegerScale(whole=True), None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return IntegerScale()
    if isinstance(value, float):
        return DecimalScale()
    if not isinstance(value, str):
        return None
    scales: list[Scale] = [IntegerScale(), DecimalScale(), *map(Quantity, _DIMENSIONS)]
    for scale in scales:
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
    """How its values are read and written."""
    low: int
    """The first value."""
    high: int
    """The last value, above the first."""

    @property
    def is_count(self) -> bool:
        """Whether its values are whole numbers."""
        return self.key.startswith(_COUNTS)

    def assign(self, value: int) -> Assignment:
        """Return what sets the key to a value."""
        return assignment(self.key, self.scale.exact(value), f"--over {self.word}")

    def shown(self, value: int) -> str:
        """Return a value for people."""
        return self.scale.shown(value)


def parse_span(text: str, basis: Basis, entries: Sequence[Entry]) -> Span:
    """Read ``KEY`` or ``KEY=LOW..HIGH``; what a range is without one, :func:`_default` says.

    Args:
        text: such as ``microbatches=8..256``, ``bandwidth`` or ``costs.forward``.
        basis: the configuration whose key it is.
        entries: the schedules that are run.

    Raises:
        ConfigError: an unknown key, one that holds no number or that an entry sets, or a range that is none.
    """
    word, equals, range_text = (part.strip() for part in text.partition("="))
    if not word:
        raise ConfigError("no key: write what varies, such as microbatches=8..256", file="--over")
    source = f"--over {word}"
    ends = _ends(range_text, source) if equals else None
    key = _key(word, basis, entries, ends)
    for entry in entries:
        if entry.sets(key):
            raise ConfigError(f"{entry.label} sets what is to vary: remove it there", key=key, file=source)
    known = _values(basis, entries, key, ends)
    scale = _scale(known.get(key), key, ends)
    if scale is None or key.partition(".")[0] not in Experiment.model_fields:
        raise _no_number(key, known, source)
    low, high = _read(scale, ends, key, source) if ends else _default(scale, key, known, source)
    return Span(key=key, word=word, scale=scale, low=low, high=high)


def _ends(text: str, source: str) -> tuple[str, str]:
    low, dots, high = (part.strip() for part in text.partition(".."))
    if not dots or not low or not high:
        raise ConfigError(f"{text!r} is no range: write LOW..HIGH, such as 8..256", file=source)
    return low, high


def _key(word: str, basis: Basis, entries: Sequence[Entry], ends: tuple[str, str] | None) -> str:
    if word in _NETWORK:
        cluster = _loaded(basis, entries[0], _MICROBATCHES, ends).experiment.cluster
        return f"network.{word}" if cluster is None else f"cluster.fabric.{word}"
    return key_of(word)


def _loaded(basis: Basis, entry: Entry, key: str, ends: tuple[str, str] | None) -> Resolved:
    """Return the configuration, with a value for the key only where there is no configuration without."""
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
    """Return every value of the configuration, those of plugins' options as far as an entry can be prepared."""
    loaded = [_loaded(basis, entry, key, ends) for entry in entries]
    for entry, resolved in zip(entries, loaded, strict=True):
        basis.check(entry, resolved)
    known = loaded[0].explain()
    for resolved in loaded:
        # Sizes that a schedule cannot take say nothing about the key.
        with suppress(PptraceError):
            known = prepare(resolved, basis.registry).resolved.explain()
            break
    return {name: value for name, value, _ in known}


def _scale(value: object, key: str, ends: tuple[str, str] | None) -> Scale | None:
    """Return the scale of a key's value, or of its range where that says more: no value, or decimals."""
    own, written = scale_of(value), [scale_of(end) for end in ends or ()]
    if value is None:
        return DecimalScale() if DecimalScale() in written else next(iter(written), None)
    return (
        DecimalScale()
        if own == IntegerScale() and DecimalScale() in written and not key.startswith(_COUNTS)
        else own
    )


def _no_number(key: str, known: Mapping[str, object], source: str) -> ConfigError:
    if key in known:
        return ConfigError(f"{known[key]!r} is no number to move", key=key, file=source)
    numbers = [name for name, value in known.items() if scale_of(value) is not None]
    section = [name for name in numbers if name.partition(".")[0] == key.partition(".")[0]]
    advice = "; one that has no value yet needs a range, KEY=LOW..HIGH" if section else ""
    return ConfigError(f"no number here has this key{nearest(key, section or numbers)}{advice}", file=source)


def _read(scale: Scale, ends: tuple[str, str], key: str, source: str) -> tuple[int, int]:
    try:
        low, high = (scale.parse(end) for end in ends)
    except ConfigError as error:
        raise ConfigError(error.message, key=key, file=source) from None
    if low == high:
        raise ConfigError(f"the range {' .. '.join(ends)} holds one value: nothing can flip", key=key, file=source)
    if low > high:
        raise ConfigError(f"the range is reversed: write {ends[1]}..{ends[0]}", key=key, file=source)
    return low, high


def _default(scale: Scale, key: str, known: Mapping[str, object], source: str) -> tuple[int, int]:
    """Return 1 to 1024 for microbatches, else three decades around the configured value."""
    if key == _MICROBATCHES:
        return 1, _MOST_MICROBATCHES
    value = scale.parse(str(known[key]))
    if not value:
        message = f"{known[key]} has no decades around it: write a range, such as {key}=LOW..HIGH"
        raise ConfigError(message, key=key, file=source)
    low = rounded(value * _HUNDREDTHS // _HALF_RANGE, _RANGE_DIGITS)
    return max(1, low), rounded(value * _HALF_RANGE // _HUNDREDTHS, _RANGE_DIGITS)


_REACH = 4096
"""Integers that are tried around one that has no sign."""

_BISECTION_DIGITS = 4
"""Significant digits of the values that are tried where an axis is continuous, while they tell values apart."""

_DECADES = 1000
"""Where a range begins at 0, its grid's first positive value is this part of its last."""


@dataclass(slots=True, kw_only=True)
class Bisection:
    """A search for the changes of a sign.

    >>> search = Bisection(sign=lambda x: (x > 40) - (x < 40), whole=True)
    >>> search.changes(geometric(1, 100, 5))
    [(39, 40), (40, 41)]
    """

    sign: Callable[[int], int | None]
    """The sign at a value: -1, 0 or 1; None where there is none. Called once per value."""
    whole: bool
    """Whether the axis holds whole numbers, each of which counts, or stands for a continuous one."""
    tolerance: float = 0.01
    """Continuous: how far apart the two sides of a change may be, in parts of the upper one."""
    signs: dict[int, int | None] = field(default_factory=dict)
    """What has been asked so far."""

    def changes(self, grid: list[int]) -> list[tuple[int, int]]:
        """Return the two sides of every change that the grid shows, in order.

        Of whole numbers both sides are neighbours among those that have a sign. Two changes between one pair
        of the grid's points undo each other and are not seen.
        """
        points = self._with_sign(grid)
        return [change for low, high in pairwise(points) for change in self._between(low, high)]

    def sign_at(self, value: int) -> int | None:
        """Return the sign at a value."""
        if value not in self.signs:
            self.signs[value] = self.sign(value)
        return self.signs[value]

    def _with_sign(self, grid: list[int]) -> list[int]:
        """Return the grid with each point that has no sign moved to the nearest that has one, or left out."""
        found: list[int] = []
        for index, value in enumerate(grid):
            after = grid[index - 1] if index else value - 1
            before = grid[index + 1] if index + 1 < len(grid) else value + 1
            near = self._nearest(value, max(after, found[-1] if found else after), before)
            if near is not None:
                found.append(near)
        return found

    def _between(self, low: int, high: int) -> list[tuple[int, int]]:
        if self.sign_at(low) == self.sign_at(high):
            return []
        middle = None if self._is_close(low, high) else self._nearest(self._middle(low, high), low, high)
        if middle is None:
            return [(low, high)]
        return [*self._between(low, middle), *self._between(middle, high)]

    def _nearest(self, value: int, after: int, before: int) -> int | None:
        """Return the value with a sign that is nearest, strictly between two others."""
        tried = _outward(value, after, before) if self.whole else iter([value])
        return next((near for near in tried if self.sign_at(near) is not None), None)

    def _is_close(self, low: int, high: int) -> bool:
        return high - low <= (1 if self.whole else max(1, self.tolerance * high))

    def _middle(self, low: int, high: int) -> int:
        if self.whole:
            return (low + high) // 2
        middle = isqrt(low * high) if low else high // 2
        short = rounded(middle, _BISECTION_DIGITS)
        return short if low < short < high else (middle if low < middle < high else (low + high) // 2)


def geometric(low: int, high: int, points: int) -> list[int]:
    """Return integers from ``low`` to ``high`` whose ratios are about the same, each once.

    >>> geometric(1, 1000, 4), geometric(0, 1000, 3), geometric(3, 5, 9)
    ([1, 10, 100, 1000], [0, 1, 1000], [3, 4, 5])
    """
    if low == 0:
        return [0, *geometric(max(1, high // _DECADES), high, points - 1)] if high else [0]
    ratio = (high / low) ** (1 / max(1, points - 1))
    inner = {rounded(round(low * ratio**step), _BISECTION_DIGITS) for step in range(1, points - 1)}
    return sorted({low, high, *(value for value in inner if low < value < high)})


def rounded(value: int, digits: int) -> int:
    """Return an integer rounded to so many significant digits, exactly.

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
