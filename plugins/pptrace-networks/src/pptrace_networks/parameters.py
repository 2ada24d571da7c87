"""What the networks' options have in common: their base, their types, and rates from shares of a line."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from pptrace.plugin import Duration, Rate

__all__ = ["Bandwidth", "Lanes", "Latency", "Options", "Share", "kbps"]

Bandwidth = Annotated[Rate, Field(ge=1_000, le=10**17)]
Latency = Annotated[Duration, Field(ge=0, le=10**12)]
Share = Annotated[float, Field(gt=0, le=1)]
Lanes = Annotated[int, Field(ge=1, le=16)]


class Options(BaseModel):
    """A frozen set of options, each described by its docstring."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def kbps(bytes_per_s: Fraction | int, share: Fraction | float = 1) -> int:
    """Return a share of a rate in kB/s, rounded to the nearest and at least 1.

    >>> kbps(50_000_000_000, 0.7)
    35000000
    """
    return max(1, round(bytes_per_s * Fraction(share) / 1000))
