"""Numbers as foreign files write them, or nothing where they are none."""

from __future__ import annotations

import math

__all__ = ["microseconds", "whole"]

_LARGEST = 2**62
_LARGEST_US = 2**51
"""71 years: a time since 1970 is below, and the sum of two in nanoseconds below 2**63."""
_DIGITS = 19
"""Of the largest; text of more is not made a number."""


def whole(value: object, absent: int) -> int:
    """Return a whole number of at most 62 bits, ``absent`` for anything else.

    >>> whole(7, -1), whole("7", -1), whole(7.5, -1), whole(2**70, -1), whole(True, -1)
    (7, 7, -1, -1, -1)
    """
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdecimal() and len(value) <= _DIGITS else None
    if not isinstance(value, int) or isinstance(value, bool):
        return absent
    return value if -_LARGEST < value < _LARGEST else absent


def microseconds(value: object) -> int | None:
    """Return microseconds as nanoseconds, None for what is no time; whole and fraction are converted apart.

    >>> microseconds(1.5), microseconds("2.001"), microseconds(float("nan")), microseconds(None)
    (1500, 2001, None, None)
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if abs(value) >= _LARGEST_US:
        return None
    floor = math.floor(value)
    return floor * 1000 + round((value - floor) * 1000)
