"""The step that a viewer is to begin with, where PyTorch's profiler marked several in a Chrome JSON trace."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING

from pptrace.errors import TraceError
from pptrace.limits.reading import open_unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["marked_step"]

_MARK = re.compile(rb'"ProfilerStep#\d+"')
_WORD = b'"ProfilerStep#'
_EVENT_BYTES = 2048
"""How far an event's text goes before and behind its name at most; a longer one marks nothing here."""
_CHUNK_BYTES = 1 << 20
_MOST_MARKS = 50_000
"""Marks that are looked at: a profiler keeps some hundreds of steps at most, on as many ranks as a file has."""
_NS_PER_US = 1000
_MOST_US = 2**63 // _NS_PER_US
"""Times beyond that have no place in a trace processor's columns."""
_DECODER = json.JSONDecoder(parse_float=Decimal)
"""Times since 1970 have more digits than floats."""


def marked_step(path: Path) -> tuple[int, int] | None:
    """Return when the marked step of median length begins and ends, by the file's own clock, in nanoseconds.

    Marks of one name, on several ranks or on a device as well, are one step. None where nothing is marked or
    the file cannot be read to its end.
    """
    steps: dict[str, tuple[int, int]] = {}
    with suppress(TraceError):
        for name, begin, end in _marks(path):
            first, last = steps.get(name, (begin, end))
            steps[name] = min(first, begin), max(last, end)
        by_length = sorted(steps.values(), key=lambda step: step[1] - step[0])
        return by_length[(len(by_length) - 1) // 2] if by_length else None
    return None


def _marks(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield each mark's name, beginning and end; one that lies where two parts of the file meet comes twice."""
    with open_unpacked(path) as file:
        window, left = b"", _MOST_MARKS
        while left > 0 and (part := file.read(_CHUNK_BYTES)):
            window = window[-3 * _EVENT_BYTES :] + part
            places = [place.start() for place in islice(_MARK.finditer(window), left)] if _WORD in window else []
            left -= len(places)
            yield from (mark for place in places if (mark := _mark(window, place)))


def _mark(window: bytes, place: int) -> tuple[str, int, int] | None:
    """Return what the event around a name says, None where it is no whole event of some length."""
    brace = window.rfind(b"{", max(0, place - _EVENT_BYTES), place)
    if brace < 0:
        return None
    try:
        text = window[brace : place + _EVENT_BYTES].decode(errors="replace")
        event, _ = _DECODER.raw_decode(text)
        begin_us, took_us, name = event["ts"], event["dur"], str(event["name"])
        if not (0 <= begin_us < _MOST_US and 0 < took_us < _MOST_US):
            return None
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        return None
    # a view that leaves the trace by a nanosecond is refused, so round inwards
    begin, took = begin_us * _NS_PER_US, took_us * _NS_PER_US
    return name, math.ceil(begin), math.floor(begin) + math.floor(took)
