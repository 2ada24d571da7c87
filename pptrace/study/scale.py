"""A scale reads, writes and shows the values of a numeric key as integers: counts, quantities, fractions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, TypeAlias

from pptrace.config.quantity import DURATION, FLOPS, RATE, SIZE
from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from pptrace.config.quantity import Dimension

__all__ = ["Quantity", "Real", "Scale", "Whole", "scale_of"]

_DIGITS = 6
_NANO = 10**9


@dataclass(frozen=True, slots=True)
class Whole:
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
class Real:
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
        return f"{Decimal(self.exact(value)):.{_DIGITS}g}"


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
        return f"{float(Decimal(value) / units[unit]):.{_DIGITS}g} {unit}"


Scale: TypeAlias = "Whole | Real | Quantity"
"""``whole`` tells whether each integer is a value of its own, or stands for a point of a continuous axis."""

_DIMENSIONS = (SIZE, RATE, DURATION, FLOPS)


def scale_of(value: object) -> Scale | None:
    """Return the scale of a value as a configuration holds it; None where it is no number.

    >>> scale_of("50 GB/s").shown(2_500_000_000), scale_of(3), scale_of(True)
    ('2.5 GB/s', Whole(whole=True), None)
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Whole()
    if isinstance(value, float):
        return Real()
    if not isinstance(value, str):
        return None
    scales: list[Scale] = [Whole(), Real(), *map(Quantity, _DIMENSIONS)]
    for scale in scales:
        try:
            scale.parse(value)
        except ConfigError:
            continue
        return scale
    return None
