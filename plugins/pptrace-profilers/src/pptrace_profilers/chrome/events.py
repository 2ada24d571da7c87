"""Events of a Chrome JSON file in columns: names interned, times in integer nanoseconds.

Times are microseconds, in the three generations that PyTorch wrote: whole numbers since the Unix epoch, fractions
since the epoch, and fractions since ``baseTimeNanoseconds`` (Kineto's output_json.cpp). Whole and fraction are
converted apart: a double holds no nanoseconds of this century.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from pptrace_profilers.chrome.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s, Int64s

__all__ = ["Arguments", "Events", "Keep", "read_events"]

Number: TypeAlias = "int | float | str | None"
_LARGEST_US = 2**53


class Arguments(msgspec.Struct, gc=False):
    """The arguments of an event that importers read, in the profilers' spelling."""

    external: Number = msgspec.field(name="External id", default=None)
    device: Number = None
    stream: Number = None
    correlation: Number = None
    bytes: Number = None
    collective: Number = msgspec.field(name="Collective name", default=None)
    in_elements: Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: Number = msgspec.field(name="Out msg nelems", default=None)
    group_size: Number = msgspec.field(name="Group size", default=None)
    dtype: Number = None
    group: Number = msgspec.field(name="Process Group Name", default=None)
    group_description: Number = msgspec.field(name="Process Group Description", default=None)
    group_ranks: msgspec.Raw = msgspec.field(name="Process Group Ranks", default=msgspec.Raw())
    target: Number = msgspec.field(name="Dst Rank", default=None)
    source: Number = msgspec.field(name="Src Rank", default=None)
    sequence: Number = msgspec.field(name="Seq", default=None)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw())
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    name: Number = None
    labels: Number = None


class Event(msgspec.Struct, gc=False):
    """One event as it is written."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number = 0
    tid: Number = 0
    ts: Number = None
    dur: Number = None
    args: Arguments | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Which complete events are wanted."""

    categories: frozenset[str]
    """Categories of which all are."""
    prefixes: tuple[str, ...] = ()
    """Beginnings of names that are, whatever their category."""
    details: tuple[str, ...] = ()
    """Beginnings of names whose arguments are."""


_DECODER = msgspec.json.Decoder(list[Event])


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
    process: Int32s
    """Number of each event's process among ``processes``."""
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
    processes: list[Number]
    """Process ids, each once."""
    threads: list[tuple[Number, Number]]
    """Process and thread ids, each pair once."""
    labels: dict[Number, list[str]] = field(default_factory=dict)
    """What the file calls each process."""
    size: int = 0
    """Bytes of the file, unpacked."""
    cut: bool = False
    """Whether the file ends in the middle; its whole events are here."""
    bad: int = 0
    """Events that are none: no time, a negative or endless one, fields of another type."""

    def __len__(self) -> int:
        return int(self.name.size)

    def of(self, categories: Collection[str]) -> NDArray[np.bool_]:
        """Return which events are of some categories, shape (events,)."""
        wanted = np.array([name in categories for name in self.categories], dtype=bool)
        found: NDArray[np.bool_] = wanted[self.category] if wanted.size else np.zeros(len(self), dtype=bool)
        return found

    def named(self, event: int) -> str:
        """Return an event's name."""
        return self.names[int(self.name[event])]


def read_events(path: Path, keep: Keep) -> Events:
    """Read a file's complete events.

    Raises:
        TraceError: the file cannot be read or is no Chrome JSON.
    """
    blocks = Blocks(path)
    found = _Columns(keep=keep)
    for block in blocks:
        try:
            found.add(_DECODER.decode(b"[" + block + b"]"))
        except (msgspec.DecodeError, RecursionError):
            found.add(_one_by_one(block, blocks, found))
    base = blocks.top.get("baseTimeNanoseconds")
    return found.whole(blocks, base if isinstance(base, int) else 0)


def _one_by_one(block: bytes, blocks: Blocks, found: _Columns) -> list[Event]:
    """Read a block that holds the array's end, broken events, or events of other types."""
    text, at = block.decode("utf-8", errors="replace"), 0
    events: list[Event] = []
    decoder = json.JSONDecoder()
    while True:
        at += len(text[at:]) - len(text[at:].lstrip(" \t\r\n,"))
        if at >= len(text):
            return events
        if text[at] == "]":
            blocks.ended(text[at + 1 :].encode())
            return events
        try:
            event, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            blocks.cut = True
            return events
        if event == {}:
            continue
        try:
            events.append(msgspec.convert(_plain(event), Event))
        except (msgspec.ValidationError, RecursionError):
            found.bad += 1


def _plain(event: Any) -> Any:
    """Return an event whose raw arguments are text again."""
    arguments = event.get("args") if isinstance(event, dict) else None
    if not isinstance(arguments, dict):
        return event
    raw = ("Process Group Ranks", "Concrete Inputs", "Input Dims", "Input type")
    written = {key: msgspec.Raw(json.dumps(arguments[key]).encode()) for key in raw if key in arguments}
    return {**event, "args": {**arguments, **written}}


@dataclass(slots=True)
class _Columns:
    """Columns as they grow, block by block."""

    keep: Keep
    bad: int = 0
    blocks: list[tuple[np.ndarray[Any, Any], ...]] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    categories: dict[str, int] = field(default_factory=dict)
    processes: dict[Number, int] = field(default_factory=dict)
    threads: dict[tuple[Number, Number], int] = field(default_factory=dict)
    arguments: dict[int, Arguments] = field(default_factory=dict)
    labels: dict[Number, list[str]] = field(default_factory=dict)
    count: int = 0

    def add(self, events: Sequence[Event]) -> None:
        """Take a block's events."""
        categories, prefixes = {*self.keep.categories, ""}, self.keep.prefixes  # what names processes has none
        kept = [e for e in events if e.cat in categories or e.name.startswith(prefixes)]
        for event in [e for e in kept if e.ph == "M"]:
            self._label(event)
        kept = [e for e in kept if e.ph == "X"]
        start, length = _times([e.ts for e in kept]), _times([e.dur for e in kept], absent=0.0)
        good = (np.abs(start) < _LARGEST_US) & (length >= 0) & (length < _LARGEST_US)
        if not good.all():
            self.bad += len(kept) - int(good.sum())
            kept, start, length = [kept[i] for i in np.flatnonzero(good)], start[good], length[good]
        given = [e.args or _NO_ARGUMENTS for e in kept]
        self.blocks.append((
            _interned(self.names, [e.name for e in kept]),
            _interned(self.categories, [e.cat for e in kept]),
            _interned(self.processes, [e.pid for e in kept]),
            _interned(self.threads, [(e.pid, e.tid) for e in kept]),
            start_ns := _nanoseconds(start),
            start_ns + _nanoseconds(length),
            _ids([a.correlation for a in given]),
            _ids([a.stream for a in given]),
        ))  # fmt: skip
        details = self.keep.details
        for number in [i for i, e in enumerate(kept) if e.name.startswith(details)]:
            self.arguments[self.count + number] = given[number]
        self.count += len(kept)

    def _label(self, event: Event) -> None:
        if event.name in {"process_name", "process_labels"} and event.args is not None:
            said = self.labels.setdefault(event.pid, [])
            text = str(event.args.name or event.args.labels or "")
            if text not in said:
                said.append(text)

    def whole(self, blocks: Blocks, base_ns: int) -> Events:
        """Return the columns."""
        none = np.zeros(0, dtype=np.int64)
        columns = [np.concatenate(parts) for parts in zip(*self.blocks, strict=True)] or [none] * 8
        return Events(
            path=blocks.path, top=blocks.top, names=list(self.names), categories=list(self.categories),
            name=columns[0], category=columns[1], process=columns[2], thread=columns[3],
            start_ns=columns[4] + base_ns, end_ns=columns[5] + base_ns,
            correlation=columns[6], stream=columns[7],
            arguments=self.arguments, processes=list(self.processes), threads=list(self.threads),
            labels=self.labels, size=blocks.size, cut=blocks.cut, bad=self.bad,
        )  # fmt: skip


def _interned(known: dict[Any, int], values: Sequence[Any]) -> Int32s:
    """Return the numbers of values; new ones take the next."""
    for value in [one for one in dict.fromkeys(values) if one not in known]:
        known[value] = len(known)
    return np.fromiter(map(known.__getitem__, values), dtype=np.int32, count=len(values))


def _times(values: Sequence[Any], absent: float = math.nan) -> NDArray[np.float64]:
    """Return microseconds; what is no number is not one here either."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_time(value, absent) for value in values], dtype=np.float64)


def _time(value: Number, absent: float) -> float:
    if value is None:
        return absent
    return math.nan if isinstance(value, str) or abs(value) > _LARGEST_US else float(value)


def _nanoseconds(times: NDArray[np.float64]) -> Int64s:
    whole = np.floor(times)
    nanoseconds: Int64s = whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)
    return nanoseconds


def _ids(values: Sequence[Number]) -> Int64s:
    """Return ids, -1 for what is none."""
    return np.array(
        [-1 if value is None else value if value.__class__ is int else _id(value) for value in values],
        dtype=np.int64,
    )


def _id(value: Number) -> int:
    return int(value) if isinstance(value, str) and value.isdecimal() else -1


_NO_ARGUMENTS = Arguments()
