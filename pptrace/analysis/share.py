"""A share as users write it."""

from __future__ import annotations

import math

from pptrace.errors import ConfigError

__all__ = ["share_of"]


def share_of(value: object, key: str) -> float:
    """Return a share of 1.

    Args:
        value: ``"2%"``, ``"0.02"`` or ``0.02``.
        key: what to call it in an error.

    Raises:
        ConfigError: it is no finite share, or negative.

    >>> share_of("2%", "tolerance"), share_of(0.02, "tolerance")
    (0.02, 0.02)
    """
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if isinstance(value, bool) or not 0 <= share < math.inf:
        raise ConfigError(f"{text!r} is no share: write such as 2% or 0.02", key=key)
    return share
