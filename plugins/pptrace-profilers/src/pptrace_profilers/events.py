"""Events of trace files in columns.

Source: the Trace Event Format (an object with ``traceEvents``, or a bare array whose end may be missing), and
Kineto's output_json.cpp, which writes metadata before and after the events.

Whole and fractional microseconds are converted separately: a double cannot hold nanoseconds since the epoch.

Times are microseconds, in the three generations that PyTorch wrote: whole numbers since the Unix epoch, fractions
since the epoch, and fractions since ``baseTimeNanoseconds`` (Kineto's output_json.cpp).
"""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from pptrace.plugin import TraceError, check_events, open_unpacked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Int32s, Int64s, UnpackedFile

_BLOCK = 96 << 10  # larger ones leave the processor's cache, and at 128 KiB malloc maps each anew
MOST_EVENT_BYTES = 16 << 20
"""Bytes within which an event must end, and which the part before the events may have."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\{\s*"(?:ph|name|cat|args|ts|pid|tid|dur|id|bp|s|tts|tdur|sf|cname)"\s*:')
_EMPTY = re.compile(rb"(?:\s*\{\s*\}\s*,){16}")
_BLANK = b" \t\r\n"
_MARKS = (b'"ph"',)
_MOST_BROKEN = 100_000
"""Invalid events that a file may have if most of its events are invalid."""
_LONGEST_KEY, _MOST_BLANKS = 4096, 256
"""Bytes before an event's first key is whole, and blanks between two events, where a block is cut."""


@dataclass(slots=True)
class Blocks:
    """The events of a file in blocks; ``top`` and ``cut`` are final after the last block."""

    path: Path
    """The file."""
    top: dict[str, Any] = field(default_factory=dict)
    """Metadata of the file."""
    cut: bool = False
    """Whether the file ends in the middle."""
    size: int = 0
    """Bytes read, unpacked."""
    file: UnpackedFile | None = None
    """The open file during iteration."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield texts of whole events with commas between, without brackets.

        The last may hold the array's end and metadata; :meth:`values` reads it.

        Raises:
            TraceError: the file cannot be read, is no Chrome JSON, or unfolds without end.
        """
        with open_unpacked(self.path) as self.file:
            yield from self._split(self.file)

    def expect(self, events: int, bad: int) -> None:
        """Check how many events there were, whole and broken, and how many will be.

        Raises:
            TraceError: there are more than a trace may have, or most are broken.
        """
        if self.file is not None:
            self.file.expect(events + bad, _MARKS)
        if bad > max(events, _MOST_BROKEN):
            raise TraceError(f"holds {bad:,} broken events and {events:,} whole ones: not a trace", file=self.path)

    def values(self, block: bytes) -> Iterator[Any]:
        """Yield the values of a block one by one: of one that holds the array's end, or broken events."""
        text, position, decoder = block.decode("utf-8", errors="replace"), 0, json.JSONDecoder()
        while True:
            while position < len(text) and text[position] in " \t\r\n,":
                position += 1
            if position == len(text):
                return
            if text[position] == "]":
                self._ended(text[position + 1 :].encode(errors="replace"))
                return
            try:
                value, position = decoder.raw_decode(text, position)
            except (ValueError, RecursionError):
                self.cut = True
                return
            yield value

    def _ended(self, rest: bytes) -> None:
        """Read the metadata after the array's end."""
        text = rest.strip(_BLANK).removeprefix(b",").strip(_BLANK)
        if text in {b"", b"}"}:
            return
        try:
            self.top |= json.loads(b"{" + text)
        except ValueError:
            self.cut = True

    def _split(self, file: UnpackedFile) -> Iterator[bytes]:
        held, searched = self._begin(file), 0
        while True:
            part = self._part(file, len(held))
            held += part
            if not part:
                break
            at, end = _last_start(held, searched)
            searched = len(held) - at
            if at > 0:
                yield held[:end]
                held = held[at:]
            elif len(held) > MOST_EVENT_BYTES:
                what = "all events are empty" if _EMPTY.match(held) else "no event ends"
                raise TraceError(f"{what} within {MOST_EVENT_BYTES >> 20} MiB: not a trace", file=self.path)
        # The end is decoded event by event, which is slow. So it holds the last event alone.
        at, end = _last_start(held)
        if at > 0:
            yield held[:end]
        if held[at:].strip(_BLANK):
            yield held[at:]

    def _begin(self, file: UnpackedFile) -> bytes:
        """Read up to the first event, and return what was read of the events."""
        held = b""
        while len(held) <= MOST_EVENT_BYTES:
            part = self._part(file, len(held))
            held += part
            text = held.lstrip(b"\xef\xbb\xbf" + _BLANK)
            if text.startswith(b"["):
                return text[1:]
            if text[:1] not in {b"{", b""}:
                break
            array = _ARRAY.search(held)
            if array:
                self._describe(held[: array.start()])
                return held[array.end() :]
            if not part:
                break
        if not held.strip(_BLANK):
            raise TraceError("is empty", file=self.path)
        raise TraceError("is no Chrome JSON: there are no traceEvents", file=self.path)

    def _describe(self, head: bytes) -> None:
        try:
            self.top |= json.loads(head.strip(b"\xef\xbb\xbf" + _BLANK).removesuffix(b",") + b"}")
        except (ValueError, RecursionError) as error:
            raise TraceError(f"cannot be read before its events: {error}", file=self.path) from None

    def _part(self, file: UnpackedFile, held: int) -> bytes:
        """Return the next bytes, as many as are held where that is much: an event's end is soon found or never."""
        try:
            part = file.read(max(_BLOCK, held))
        except (EOFError, zlib.error):
            if not self.size:
                raise
            self.cut = True
            return b""
        self.size += len(part)
        return part


def _last_start(text: bytes, searched: int = 0) -> tuple[int, int]:
    """Return where the last event starts that another one comes before, and where that one ends; 0, 0 for none.

    Args:
        text: the text.
        searched: how much of its beginning was, in vain.
    """
    at, first = len(text), max(searched - _LONGEST_KEY, 0)
    while (at := text.rfind(b"{", first, at)) > 0:
        before = text[max(at - _MOST_BLANKS, 0) : at].rstrip(_BLANK)
        comma = max(at - _MOST_BLANKS, 0) + len(before) - 1
        closed = before.endswith(b",") and before[:-1].rstrip(_BLANK).endswith(b"}")
        if closed and _FIRST_KEY.match(text, at):
            return at, comma
    return 0, 0


Number: TypeAlias = "int | float | str | None"


MEMORY = "[memory]"
"""The name of an instant at which PyTorch's allocator says how much it holds."""


class Marks(msgspec.Struct, gc=False):
    """The arguments that importers read of every event."""

    correlation: Number = None
    stream: Number = None
    name: Number = None
    labels: Number = None
    allocated: Number = msgspec.field(name="Total Allocated", default=None)
    device_type: Number = msgspec.field(name="Device Type", default=None)


class Arguments(Marks, gc=False):
    """All arguments that importers read, in the profilers' spelling."""

    collective: Number = msgspec.field(name="Collective name", default=None)
    in_elements: Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: Number = msgspec.field(name="Out msg nelems", default=None)
    dtype: Number = None
    group: Number = msgspec.field(name="Process Group Name", default=None)
    group_description: Number = msgspec.field(name="Process Group Description", default=None)
    target: Number = msgspec.field(name="Dst Rank", default=None)
    source: Number = msgspec.field(name="Src Rank", default=None)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw())
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    sequence_number: Number = msgspec.field(name="Sequence number", default=None)
    forward_thread: Number = msgspec.field(name="Fwd thread id", default=None)


class Event(msgspec.Struct, gc=False):
    """One event with the arguments that importers read of every event."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number = 0
    tid: Number = 0
    ts: Number = None
    dur: Number = None
    args: Marks | None = None


class Detailed(Event, gc=False):
    """One event with all arguments."""

    args: Arguments | None = None


NO_ARGUMENTS = Marks()
"""The arguments of an event without arguments."""


def detached(event: Detailed) -> Detailed:
    """Copy the raw arguments, so that the event does not keep its block in memory."""
    if event.args is not None:
        for name in ("inputs", "input_dims", "input_type"):
            setattr(event.args, name, getattr(event.args, name).copy())
    return event


_LARGEST_US, _LONGEST_US = 2**51, 2**40
"""71 years, so that a time since 1970 is one, and 12 days, so that sums of many lengths fit 62 bits."""
_LARGEST_ID, _LONGEST_ID = 2**63, 19
_COLUMNS = 7
_MOST_THREADS = 1 << 31
_ENTRY = 120
"""Bytes that an entry of a dictionary takes beside its key, about."""


@dataclass(slots=True, kw_only=True)
class Columns:
    """Columns as they grow, block by block."""

    bad: int = 0
    """Events that are none."""
    names: dict[str, int] = field(default_factory=dict)
    """Numbers of names."""
    categories: dict[str, int] = field(default_factory=dict)
    """Numbers of categories."""
    processes: dict[Number, int] = field(default_factory=dict)
    """Numbers of processes."""
    arguments: dict[int, Arguments] = field(default_factory=dict)
    """Arguments by event."""
    labels: dict[Number, dict[str, None]] = field(default_factory=dict)
    """What processes are called, each name once."""
    held: int = 0
    """Bytes of texts and of arguments that are kept beside the columns, about."""
    allocated: dict[int, int] = field(default_factory=dict)
    """Most bytes that were allocated at once, by type of device."""
    blocks: list[tuple[NDArray[Any], ...]] = field(default_factory=list)
    """The columns' parts."""
    count: int = 0
    """Events so far."""
    threads_of: dict[int, int] = field(default_factory=dict)
    """Numbers of pairs of a process and a thread."""
    _tids: dict[Number, int] = field(default_factory=dict)

    def add(self, events: Sequence[Event]) -> None:
        """Append events; those with wanted arguments are :class:`Detailed`."""
        for event in [e for e in events if e.ph == "M"]:
            self._label(event)
        for marks in [e.args for e in events if e.name == MEMORY and e.args is not None]:
            self._allocated(marks)
        events = [e for e in events if e.ph == "X"]
        names = self._interned(self.names, [e.name for e in events])
        categories = self._interned(self.categories, [e.cat for e in events])
        start, length = _times([e.ts for e in events]), _times([e.dur for e in events], absent=0.0)
        good = (np.abs(start) < _LARGEST_US) & (length >= 0) & (length < _LONGEST_US)
        self.bad += len(events) - int(good.sum())
        start_ns = _nanoseconds(np.where(good, start, 0.0))
        arguments = [e.args or NO_ARGUMENTS for e in events]
        processes = self._interned(self.processes, [e.pid for e in events])
        block: tuple[NDArray[Any], ...] = (
            names, categories, self._threads(processes, [e.tid for e in events]), start_ns,
            start_ns + _nanoseconds(np.where(good, length, 0.0)), _ids([a.correlation for a in arguments]),
            _ids([a.stream for a in arguments]),
        )  # fmt: skip
        if not good.all():
            arguments = [arguments[index] for index in np.flatnonzero(good).tolist()]
            block = tuple(column[good] for column in block)
        self.blocks.append(block)
        detailed = {
            self.count + index: given for index, given in enumerate(arguments) if isinstance(given, Arguments)
        }
        self.arguments |= detailed
        self.held += sum(map(_size, detailed.values()))
        self.count += len(arguments)

    def _threads(self, processes: Int32s, tids: Sequence[Number]) -> Int32s:
        """Return the numbers of pairs of a process and a thread of it."""
        pairs, index = np.unique(
            processes.astype(np.int64) * _MOST_THREADS + self._interned(self._tids, tids), return_inverse=True
        )
        return self._interned(self.threads_of, pairs.tolist())[index]

    def _interned(self, known: dict[Any, int], values: Sequence[Any]) -> Int32s:
        """Return the numbers of values; new ones take the next."""
        for value in [value for value in dict.fromkeys(values) if value not in known]:
            known[value] = len(known)
            self.held += sys.getsizeof(value) + _ENTRY
        return np.fromiter(map(known.__getitem__, values), dtype=np.int32, count=len(values))

    @property
    def threads(self) -> list[tuple[Number, Number]]:
        """Return process and thread of each thread's number."""
        processes, tids = list(self.processes), list(self._tids)
        return [(processes[pair // _MOST_THREADS], tids[pair % _MOST_THREADS]) for pair in self.threads_of]

    def _label(self, event: Event) -> None:
        if event.name in {"process_name", "process_labels"} and event.args is not None:
            labels = self.labels.setdefault(event.pid, {})
            text = str(event.args.name or event.args.labels or "")
            if text not in labels:
                labels[text] = None
                self.held += sys.getsizeof(text) + _ENTRY

    def _allocated(self, marks: Marks) -> None:
        total, device = marks.allocated, marks.device_type
        if isinstance(total, int) and isinstance(device, int) and 0 < total < _LARGEST_ID:
            self.allocated[device] = max(self.allocated.get(device, 0), total)

    def arrays(self) -> list[NDArray[Any]]:
        """Return names, categories, threads, starts, ends, correlations and streams."""
        if not self.blocks:
            return [np.zeros(0, dtype=np.int64)] * _COLUMNS
        return [np.concatenate(parts) for parts in zip(*self.blocks, strict=True)]


def _size(arguments: Arguments) -> int:
    """Return the memory that an event's arguments take, about."""
    values = [getattr(arguments, name) for name in Arguments.__struct_fields__]
    raw = sum(len(value) for value in values if isinstance(value, msgspec.Raw))  # without a size in Python
    texts = sum(sys.getsizeof(value) for value in values if isinstance(value, str))
    return sys.getsizeof(arguments) + _ENTRY + raw + texts


def _times(values: Sequence[Any], absent: float = math.nan) -> NDArray[np.float64]:
    """Return microseconds, NaN for a value that is not a number."""
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
    """Return ids, -1 for an invalid id."""
    plain = [-1 if value is None else value if value.__class__ is int else _id(value) for value in values]
    try:
        return np.array(plain, dtype=np.int64)
    except OverflowError:
        return np.array([value if abs(value) < _LARGEST_ID else -1 for value in plain], dtype=np.int64)


def _id(value: Number) -> int:
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < _LONGEST_ID else -1


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
    """Metadata of the file."""
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
    """Filter of wanted events; decides once per name."""

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
    """Return an event without its detailed arguments."""
    marks = event.args and Marks(**{name: getattr(event.args, name) for name in Marks.__struct_fields__})
    return Event(event.ph, event.cat, event.name, event.pid, event.tid, event.ts, event.dur, marks)


def _events_one_by_one(block: bytes, blocks: Blocks, columns: Columns) -> tuple[list[Detailed], int]:
    """Return the valid events of a block that cannot be decoded at once, and the number of empty ones."""
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


_ONE = msgspec.json.Decoder(Detailed)
_ALL = msgspec.json.Decoder(list[Detailed])


def detailed_events(block: bytes, events: Sequence[Event]) -> list[Detailed]:
    """Return some events of a block with all their arguments, in the same order.

    Args:
        block: text of whole events.
        events: those of them that are wanted, in the order of the text.
    """
    detailed: list[Detailed] = []
    position = 0
    for event in events:
        with_arguments, position = _next(block, event, position)
        if with_arguments is None:
            return _among_all(block, events)
        detailed.append(with_arguments)
    return detailed


def _next(block: bytes, event: Event, at: int) -> tuple[Detailed | None, int]:
    """Return an event that is written with ``ph`` first and plain values before its name, and where to go on."""
    name = msgspec.json.encode(event.name)
    while (at := block.find(name, at)) >= 0:
        start, stop = block.rfind(b"{", 0, at), block.find(b'"ph"', at)
        at += len(name)
        text = block[start : stop if stop >= 0 else len(block)]
        if stop >= 0:
            text = text.rstrip().removesuffix(b"{").rstrip().removesuffix(b",")
        try:
            detailed = _ONE.decode(text)
        except msgspec.DecodeError:
            continue
        if (detailed.pid, *_identity(detailed)) == (event.pid, *_identity(event)):
            return detached(detailed), at
    return None, at


def _among_all(block: bytes, events: Sequence[Event]) -> list[Detailed]:
    """Return the detailed events of a block of any key order by decoding all of it."""
    rest = iter(_ALL.decode(b"[" + block + b"]"))
    return [next(detached(e) for e in rest if _identity(e) == _identity(event)) for event in events]


def _identity(event: Event) -> tuple[str, Number, Number]:
    return event.name, event.ts, event.tid
