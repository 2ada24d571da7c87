"""Text of configurations: sizes, rates per direction, durations, compute rates, and plain scalars of YAML 1.2."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Struct

from pptrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core.core_schema import CoreSchema, ValidationInfo

BARE_NUMBER = "bare_number"
"""Pydantic's error type of a number without a unit, which only presets may have."""

QUANTITY_ERRORS = (BARE_NUMBER, "quantity")
"""Pydantic's error types of values that are no quantities."""

_NUMBER = r"([0-9]{1,24}(?:\.[0-9]{1,24})?(?:[eE][+-]?[0-9]{1,2})?)"
_LARGEST = 2**62
_THOUSANDS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_BYTES = {f"{prefix}B": scale for prefix, scale in _THOUSANDS.items()} | {
    f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTPE", 1)
}


class Dimension(Struct, frozen=True, kw_only=True, eq=False):
    """A kind of quantity: its units, and its parser and formatters.

    In an annotation it makes pydantic read such text: ``memory: Annotated[int, SIZE]``, spelt ``Size``.
    """

    name: str
    """Its name in messages."""
    units: Mapping[str, Fraction]
    """Spelling of each accepted unit, and its number of base units."""
    written: Mapping[str, int]
    """Units that exact text uses, smallest first, in base units."""
    rounded_to: tuple[str, ...]
    """Units that rounded text uses, smallest first."""
    examples: tuple[str, ...]
    """Examples in messages and editors."""
    step: int = 1000
    """Count of a unit at which rounded text changes to the next unit."""
    positive: bool = False
    """Whether zero is refused."""

    def parse(self, text: object) -> int:
        """Read text such as ``1.5 GB``, rounded to the nearest base unit.

        Raises:
            ConfigError: no such text; zero where :attr:`positive`; out of range.
        """
        if not isinstance(text, str):
            raise ConfigError(self._bare(text))
        return _base_units(self, text)

    def exact(self, value: int) -> str:
        """Write a number of base units without loss: the shortest text, with the largest unit if several tie.

        >>> SIZE.exact(3 * 2**29), SIZE.exact(22_270 * 2**20)
        ('1.5 GiB', '22270 MiB')
        """
        return _shortest_text(self, value)

    def rounded(self, value: int) -> str:
        """Write a number of base units with three significant digits."""
        for unit in self.rounded_to:
            digits = _three_digits(Decimal(abs(value)) / self.written[unit])
            if digits < self.step:
                break
        return f"{'-' if value < 0 else ''}{digits:f} {unit}"

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(self.exact, when_used="json")
        return core_schema.with_info_before_validator_function(
            self._validated, core_schema.int_schema(), serialization=written
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        units = "|".join(re.escape(unit).replace(r"\ ", " ") for unit in self.units)
        number = _NUMBER.replace("(?:", "(")
        return {"type": "string", "pattern": f"^{number} *({units})$", "examples": list(self.examples)}

    def _validated(self, value: object, info: ValidationInfo) -> int:
        bare = isinstance(value, int | float) and not isinstance(value, bool)
        if bare and isinstance(value, int) and (info.context or {}).get("integers"):
            return value
        try:
            return self.parse(value)
        except ConfigError as error:
            from pydantic_core import PydanticCustomError

            kind = QUANTITY_ERRORS[not bare]
            raise PydanticCustomError(kind, "{reason}", {"reason": error.message}) from None

    def parse_text(self, text: str) -> int:
        """Read text as :meth:`parse`, which keeps recent results."""
        match = re.fullmatch(_NUMBER + r"\s*(\S*)", text.strip())
        if match is None:
            raise ConfigError(f"{_shown(text)} is not a {self.name}; {self._forms()}")
        number, unit = match.groups()
        if not unit:
            raise ConfigError(self._bare(number))
        if unit not in self.units:
            raise ConfigError(self._unknown(unit))
        return self._whole(Fraction(number) * self.units[unit], text)

    def _whole(self, exact: Fraction, text: str) -> int:
        value = round(exact)
        if self.positive and not exact:
            raise ConfigError(f"{text!r}: a {self.name} must be above zero")
        if exact and not value:
            raise ConfigError(
                f"{text!r} is less than half of the smallest {self.name}, 1 {next(iter(self.written))}"
            )
        if value > _LARGEST:
            raise ConfigError(f"{text!r} is too large; the largest {self.name} is {self.rounded(_LARGEST)}")
        return value

    def _unknown(self, unit: str) -> str:
        close = [f"'{known}'" for known in self.units if known.casefold() == unit.casefold()]
        guess = f" (did you mean {' or '.join(close)}?)" if close else ""
        return f"unknown unit {_shown(unit)}{guess}; {self._forms()}"

    def _bare(self, value: object) -> str:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return f"{_shown(str(value)).strip(chr(39))} has no unit; {self._forms()}"
        return f"must be a {self.name} in text; {self._forms()}"

    def _forms(self) -> str:
        return f"write a {self.name} as " + ", ".join(f"'{example}'" for example in self.examples)


_base_units = lru_cache(Dimension.parse_text)


@lru_cache
def _shortest_text(dimension: Dimension, value: int) -> str:
    base, *larger = dimension.written.items()
    units = [base, *(unit for unit in larger if unit[1] <= value)]
    return min((f"{Decimal(value) / scale:f} {unit}" for unit, scale in reversed(units)), key=len)


def parse_share(value: object, key: str) -> float:
    """Read a share such as ``2%`` or ``0.02``, or one that is a number already.

    Raises:
        ConfigError: no such share.

    >>> parse_share("2%", "tolerance")
    0.02
    """
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if isinstance(value, bool) or not 0 <= share < float("inf"):
        raise ConfigError(f"{text!r} is not a share, such as 2% or 0.02", key=key)
    return share


def _scaled(units: Mapping[str, int], *, per: int = 1) -> dict[str, Fraction]:
    return {unit: Fraction(scale, per) for unit, scale in units.items()}


def _three_digits(value: Decimal) -> Decimal:
    places = max(0, 2 - value.adjusted()) if value else 0
    digits = round(value, places)
    return digits.normalize() if digits != digits.to_integral_value() else digits.quantize(Decimal(1))


def _shown(text: str) -> str:
    longest = 40
    return repr(text if len(text) <= longest else text[:longest] + "…")


_SECONDS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_BITS = {f"{prefix}{bit}": scale for prefix, scale in _THOUSANDS.items() for bit in ("b/s", "bit/s", "bps")}

SIZE = Dimension(
    name="size",
    units=_scaled(_BYTES | {"KB": 1000}),
    written=dict(sorted(_BYTES.items(), key=lambda unit: unit[1])),
    rounded_to=("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"),
    step=1024,
    examples=("80 GiB", "64 MiB", "33.6 MB", "4096 B"),
)
RATE = Dimension(
    name="rate",
    units=_scaled({f"{unit}/s": scale for unit, scale in (_BYTES | {"KB": 1000}).items()}) | _scaled(_BITS, per=8),
    written={f"{prefix}B/s": scale for prefix, scale in _THOUSANDS.items()},
    rounded_to=tuple(f"{prefix}B/s" for prefix in _THOUSANDS),
    examples=("50 GB/s", "400 Gb/s", "1.2 TB/s"),
    positive=True,
)
DURATION = Dimension(
    name="time",
    units=_scaled(_SECONDS | {"\u00b5s": 10**3, "\u03bcs": 10**3}),
    written=_SECONDS,
    rounded_to=tuple(_SECONDS),
    examples=("5 us", "12 ms", "500 ns", "1.5 s"),
)
FLOPS = Dimension(
    name="compute rate",
    units=_scaled({f"{p}{unit}": scale for p, scale in _THOUSANDS.items() for unit in ("FLOP/s", "FLOPS")}),
    written={f"{prefix}FLOP/s": scale for prefix, scale in _THOUSANDS.items()},
    rounded_to=tuple(f"{prefix}FLOP/s" for prefix in _THOUSANDS),
    examples=("989 TFLOP/s", "1 PFLOP/s"),
    positive=True,
)
POWER = Dimension(
    name="power", units=_scaled({"W": 1, "kW": 1000}), written={"W": 1}, rounded_to=("W",),
    examples=("500 W", "1.2 kW"), positive=True,
)  # fmt: skip

Size: TypeAlias = Annotated[int, SIZE]
"""Bytes, written as a size."""
Rate: TypeAlias = Annotated[int, RATE]
"""Bytes per second and direction, written as a rate; never zero."""
Duration: TypeAlias = Annotated[int, DURATION]
"""Nanoseconds, written as a time."""
Flops: TypeAlias = Annotated[int, FLOPS]
"""Floating-point operations per second, written as a compute rate; never zero."""
Power: TypeAlias = Annotated[int, POWER]
"""Watts, written as a power; never zero."""

parse_size = SIZE.parse
"""``parse_size('64 KiB') == 65536``."""
format_size = SIZE.rounded
"""``format_size(123456) == '121 KiB'``."""
exact_size = SIZE.exact
"""``exact_size(65536) == '64 KiB'``."""
format_rate, format_duration = RATE.rounded, DURATION.rounded
"""``format_rate(50 * 10**9) == '50 GB/s'``, ``format_duration(12_345_678) == '12.3 ms'``."""


MOST_DIGITS = 40
"""Characters of a number."""

_PLAIN_SCALARS = {
    "null": re.compile(r"null|Null|NULL|~|"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    ),
}
"""The core schema of YAML 1.2.2, section 10.3.2, in the order in which it is tried."""

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_one_word(text: str) -> bool:
    """Return whether a whole document is surely one plain scalar, and no number that is too long.

    >>> is_one_word("zb-h1"), is_one_word("a: 1"), is_one_word("[1]")
    (True, False, False)
    """
    return len(text) <= MOST_DIGITS and _WORD.fullmatch(text) is not None


def tag_of(text: str) -> str:
    """Return the type of a plain scalar, the last part of its tag.

    >>> [tag_of(text) for text in ("null", "true", "0x10", "1e3", "no")]
    ['null', 'bool', 'int', 'float', 'str']
    """
    return next((tag for tag, pattern in _PLAIN_SCALARS.items() if pattern.fullmatch(text)), "str")


def is_of(tag: str, text: str) -> bool:
    """Return whether a text is a plain scalar of a type other than text."""
    pattern = _PLAIN_SCALARS.get(tag)
    return pattern is not None and pattern.fullmatch(text) is not None


def value_of(tag: str, text: str) -> str | float | bool | None:
    """Return the value of a plain scalar of a type.

    >>> value_of("int", "0x10"), value_of("float", "-.inf"), value_of("str", "no")
    (16, -inf, 'no')
    """
    if tag == "null":
        return None
    if tag == "bool":
        return text.lower() == "true"
    if tag == "int":
        base = {"0o": 8, "0x": 16}.get(text[:2])
        return int(text[2:], base) if base else int(text)
    if tag == "float":
        return float(text.replace(".", "", 1) if text.lower().endswith((".inf", ".nan")) else text)
    return text
