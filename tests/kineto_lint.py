"""Check a Chrome JSON trace against what the viewers' importers drop, move or misread in silence."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["lint"]

_PHASES = frozenset("XMCstf")
_LARGEST_ID = 2**32 - 1
_FLOW = ("s", "t", "f")


def lint(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return a sentence for each event that Perfetto's importer or chrome://tracing would not take as meant.

    Phases other than X, M, C, s, t and f are named too: our dialect has none.
    """
    return [*_fields(events), *_crossings(events), *_flows(events)]


def _fields(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    for index, event in enumerate(events):
        phase = event.get("ph")
        if phase not in _PHASES:
            yield f"event {index}: phase {phase!r}"
        for key in ("pid",) if phase == "C" else ("pid", "tid"):
            if not isinstance(event.get(key), int) or not 1 <= event[key] <= _LARGEST_ID:
                yield f"event {index}: {key} {event.get(key)!r} is not an integer from 1 to 2**32 - 1"
        for key in ("ts", "dur") if phase == "X" else ("ts",):
            if not _on_grid(event.get(key)):
                yield f"event {index}: {key} {event.get(key)!r} is not on the nanosecond grid, or negative"
        if phase == "C" and not all(isinstance(value, int | float) for value in event["args"].values()):
            yield f"event {index}: a counter's value is not a number"


def _on_grid(microseconds: object) -> bool:
    if not isinstance(microseconds, int | float) or microseconds < 0:
        return False
    return float(microseconds) == round(microseconds * 1000) / 1000


def _crossings(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Name slices that begin within another one of their thread and end behind it."""
    open_ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"]):
        start, end = _ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])
        stack = open_ends[event["pid"], event["tid"]]
        while stack and stack[-1] <= start:
            stack.pop()
        if stack and end > stack[-1]:
            yield f"{event['name']!r} at {event['ts']} crosses the slice before it on thread {event['tid']}"
        stack.append(end)


def _flows(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Name flows that do not go from one ``s`` to one ``f``, and points on no slice."""
    slices: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    flows: dict[tuple[str, str, object], list[dict[str, Any]]] = defaultdict(list)
    for event in sorted(events, key=lambda e: e["ts"]):
        track = event["pid"], event.get("tid", 0)
        if event["ph"] == "X":
            slices[track].append((_ns(event["ts"]), _ns(event["ts"]) + _ns(event["dur"])))
        elif event["ph"] in _FLOW:
            flows[event["cat"], event["name"], event["id"]].append(event)
            at = _ns(event["ts"])
            if not any(start <= at <= end for start, end in reversed(slices[track])):
                yield f"flow {event['id']} of {event['cat']} touches no slice at {event['ts']}"
    for (category, _, flow), points in flows.items():
        phases = "".join(point["ph"] for point in points)
        if phases != "s" + "t" * (len(points) - 2) + "f":
            yield f"flow {flow} of {category} goes {phases!r}"
        if points[-1]["ph"] == "f" and points[-1].get("bp") != "e":
            yield f"flow {flow} of {category} ends at the slice that starts next"


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)
