"""Environment variables that raise or lower a limit."""

from __future__ import annotations

import os
import re

from pptrace.errors import ConfigError

__all__ = ["EVENTS", "MEMORY", "UNPACKED", "most_events", "most_unpacked", "size_of"]

UNPACKED = "PPTRACE_MOST_UNPACKED"
"""Bytes that one file may have, unpacked: 16 GiB unless set."""
EVENTS = "PPTRACE_MOST_EVENTS"
"""Events that one file may have: 20,000,000 unless set."""
MEMORY = "PPTRACE_MOST_MEMORY"
"""Bytes of memory that a step or a trace may take: four fifths of what the machine has to spare unless set."""

_UNPACKED, _EVENTS = 16 << 30, 20_000_000
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"\s*(\d{1,18})\s*([KMGT]IB|B|)\s*", re.IGNORECASE)


def most_unpacked() -> int:
    """Return the bytes that one file may have, unpacked; raises what :func:`size_of` does."""
    return size_of(UNPACKED) or _UNPACKED


def most_events() -> int:
    """Return the events that one file may have; raises what :func:`size_of` does."""
    return size_of(EVENTS) or _EVENTS


def size_of(variable: str) -> int | None:
    """Return the number that a variable holds, None where it is not set or empty.

    Raises:
        ConfigError: it is no number, or of no unit of KiB, MiB, GiB and TiB.
    """
    text = os.environ.get(variable, "")
    if not text.strip():
        return None
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ConfigError(f"is {text!r}: write a number, or a size such as 64 GiB", key=variable)
    return int(found[1]) * _UNITS[found[2].upper()]
