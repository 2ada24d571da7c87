"""Events of a Chrome JSON file in columns: names interned, times in integer nanoseconds.

Times are microseconds, in the three generations that PyTorch wrote: whole numbers since the Unix epoch, fractions
since the epoch, and fractions since ``baseTimeNanoseconds`` (Kineto's output_json.cpp).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pptrace.plugin import check_events
from pptrace_profilers.events.blocks import Blocks
from pptrace_profilers.events.columns import Columns
from pptrace_profilers.events.details import detailed_events
from pptrace_profilers.events.records import Arguments, Detailed, Event, Marks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Int32s, Int64s
    from pptrace_profilers.events.records import Number

__all__ = ["Arguments", "Events", "Keep", "read_events"]

_LARGEST_NS = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Which complete events are wanted."""

    categories: frozenset[str]
    """Categories of which all are."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of names that are, whatever their category."""
    without: frozenset[str] = frozenset()
    """Names that are not, whatever their category."""
    details: tuple[str, ...] = ()
    """Beginnings of names whose arguments are."""


_BATCH, _BATCH_BYTES = 1024, 4 << 20
"""Events, and bytes of text, that are made columns at once."""
_ALWAYS = 2
_LEAN = msgspec.json.Decoder(list[Event])


@dataclass(slots=True, kw_only=True)
class Events:
    """The complete events of one file that were wanted; columns have one value per event, in file order."""

    path: Path
    """The file."""
    top: dict[str, Any]
    """What stands beside the events."""
    names: list[str]
    """Names, each once."""
    categories: list[str]
    """Categories, each once."""
    name: Int32s
    """Number of each event's name."""
    category: Int32s
    """Number of each event's category."""
    thread: Int32s
    """Number of each event's thread among ``threads``."""
    start_ns: Int64s
    """When it starts: since the epoch, or since whatever the file counts from."""
    end_ns: Int64s
    """When it ends."""
    correlation: Int64s
    """What a launch and its kernel share; -1 for none."""
    stream: Int64s
    """The GPU's stream; -1 for none."""
    arguments: dict[int, Arguments]
    """Arguments of the events that have any beside those, by event."""
    threads: list[tuple[Number, Number]]
    """Process and thread ids, each pair once."""
    labels: dict[Number, list[str]] = field(default_factory=dict)
    """What the file calls each process."""
    allocated: dict[int, int] = field(default_factory=dict)
    """Most bytes that were allocated at once, by type of device (0 is the host)."""
    cut: bool = False
    """Whether the file ends in the middle; its whole events are here."""
    bad: int = 0
    """Events that are none: no time, a negative or endless one, fields of another type."""

    def __len__(self) -> int:
        return int(self.name.size)

    def of(self, categories: Collection[str]) -> NDArray[np.bool_]:
        """Return which events are of some categories, shape (events,)."""
        wanted = np.array([name in categories for name in self.categories], dtype=bool)
        chosen: NDArray[np.bool_] = wanted[self.category] if wanted.size else np.zeros(len(self), dtype=bool)
        return chosen

    def named(self, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
        """Return which events have a name that is wanted, shape (events,)."""
        return np.isin(self.name, [number for number, name in enumerate(self.names) if wanted(name)])

    def by_start(self, chosen: NDArray[np.bool_]) -> Int64s:
        """Return the chosen events in the order in which they start."""
        rows = np.flatnonzero(chosen)
        return rows[np.argsort(self.start_ns[rows], kind="stable")]

    def name_of(self, event: int) -> str:
        """Return an event's name."""
        return self.names[int(self.name[event])]


def read_events(path: Path, keep: Keep) -> Events:
    """Read a file's complete events.

    Raises:
        TraceError: the file cannot be read or is no Chrome JSON.
    """
    blocks = Blocks(path)
    columns = Columns()
    choice = _Choice(keep)
    waiting: list[Event] = []
    seen, read = 0, 0
    for block in blocks:
        try:
            events = _LEAN.decode(b"[" + block + b"]")
            seen += len(events)
            waiting += choice.of(events, block)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            whole, empty = _events_one_by_one(block, blocks, columns)
            seen += len(whole) + empty
            waiting += choice.of(whole)
        blocks.expect(seen, columns.bad)
        read += len(block)
        if len(waiting) >= _BATCH or read >= _BATCH_BYTES:
            columns.add(waiting)
            check_events(columns.count + columns.bad, path, columns.held)
            waiting, read = [], 0
    columns.add(waiting)
    check_events(columns.count + columns.bad, path, columns.held)
    base = blocks.top.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) and abs(base) < _LARGEST_NS else 0
    name, category, thread, start, end, correlation, stream = columns.arrays()
    return Events(
        path=path, top=blocks.top, names=list(columns.names), categories=list(columns.categories),
        name=name, category=category, thread=thread, start_ns=start + base_ns,
        end_ns=end + base_ns, correlation=correlation, stream=stream, arguments=columns.arguments,
        threads=columns.threads, labels={process: list(labels) for process, labels in columns.labels.items()},
        allocated=columns.allocated, cut=blocks.cut, bad=columns.bad,
    )  # fmt: skip


class _Choice:
    """Tells wanted events from others; what a name says is found once for each."""

    def __init__(self, keep: Keep) -> None:
        self.categories = {*keep.categories, ""}  # what names processes has none
        self.by_name = _PerName(lambda name: _ALWAYS if _begins(name, keep.prefixes) else name not in keep.without)
        self.detailed = _PerName(lambda name: _begins(name, keep.details))

    def of(self, events: Sequence[Event], block: bytes = b"") -> list[Event]:
        """Return the wanted events, where those have details with all arguments, read from the block's text."""
        categories, by_name, has_details = self.categories, self.by_name, self.detailed
        kept = [e for e in events if (fate := by_name[e.name]) and (fate == _ALWAYS or e.cat in categories)]
        places = [index for index, e in enumerate(kept) if has_details[e.name]]
        if block:
            whole: Sequence[Event] = detailed_events(block, [kept[index] for index in places]) if places else ()
        else:
            whole = [kept[index] for index in places]
            kept = [_lean(e) for e in kept]
        for index, event in zip(places, whole, strict=True):
            kept[index] = event
        return kept


class _PerName(dict[str, int]):
    """A verdict about each name."""

    def __init__(self, decide: Callable[[str], int]) -> None:
        super().__init__()
        self.decide = decide

    def __missing__(self, name: str) -> int:
        verdict = self[name] = self.decide(name)
        return verdict


def _begins(name: str, beginnings: tuple[str, ...]) -> bool:
    return bool(beginnings) and name.startswith(beginnings)


def _lean(event: Event) -> Event:
    """Return an event with those arguments that every one is read for."""
    marks = event.args and Marks(**{name: getattr(event.args, name) for name in Marks.__struct_fields__})
    return Event(event.ph, event.cat, event.name, event.pid, event.tid, event.ts, event.dur, marks)


def _events_one_by_one(block: bytes, blocks: Blocks, columns: Columns) -> tuple[list[Detailed], int]:
    """Read a block that holds the array's end, broken events or others; and how many say nothing."""
    events: list[Detailed] = []
    empty = 0
    for value in blocks.values(block):
        if value == {}:
            empty += 1
            continue
        try:
            events.append(msgspec.convert(_with_raw_text(value), Detailed))
        except (msgspec.ValidationError, UnicodeError, RecursionError):
            columns.bad += 1
    return events, empty


def _with_raw_text(event: Any) -> Any:
    """Return an event whose raw arguments are text again."""
    arguments = event.get("args") if isinstance(event, dict) else None
    if not isinstance(arguments, dict):
        return event
    raw = ("Concrete Inputs", "Input Dims", "Input type")
    texts = {key: msgspec.Raw(json.dumps(arguments[key]).encode()) for key in raw if key in arguments}
    return {**event, "args": {**arguments, **texts}}
