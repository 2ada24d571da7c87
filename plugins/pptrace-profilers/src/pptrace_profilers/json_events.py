"""Events of Chrome JSON files.

Source: the Trace Event Format (an object with ``traceEvents``, or a bare array whose end may be missing), and
Kineto's output_json.cpp, which writes metadata before and after the events.

Times are microseconds, in the three generations that PyTorch wrote: whole numbers since the Unix epoch, fractions
since the epoch, and fractions since ``baseTimeNanoseconds`` (Kineto's output_json.cpp). Whole and fractional
microseconds are converted separately: a double cannot hold nanoseconds since the epoch.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zlib
from collections import deque
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, count, pairwise
from mmap import mmap
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from pptrace.plugin import TraceError, UnpackedFile, check_events, second_process
from pptrace_profilers.events import LARGEST_NS, LARGEST_US, Arguments, Event, EventBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Executor
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Int64s
    from pptrace_profilers.events import Events, Number

_BLOCK = 96 << 10  # larger blocks exceed the processor's cache; from 128 KiB on, malloc maps each block
MOST_EVENT_BYTES = 16 << 20
"""Maximum bytes of an event, and of the text before the events."""
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\{\s*"(?:ph|name|cat|args|ts|pid|tid|dur|id|bp|s|tts|tdur|sf|cname)"\s*:')
_EMPTY = re.compile(rb"(?:\s*\{\s*\}\s*,){16}")
_BLANK = b" \t\r\n"
_MARKS = (b'"ph"',)
_MOST_BROKEN = 100_000
"""Invalid events that a file may have if most of its events are invalid."""
_LONGEST_KEY, _MOST_BLANKS = 4096, 256
"""Maximum bytes up to the end of an event's first key, and maximum blanks between two events."""


_DECODER = msgspec.json.Decoder(list[dict[str, Any]])
_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass(slots=True)
class Blocks:
    """Blocks of the events of a file; ``top`` and ``cut`` are final after the last block."""

    path: Path
    """The file."""
    top: dict[str, Any] = field(default_factory=dict)
    """Metadata of the file."""
    cut: bool = False
    """Whether the file ends in the middle."""
    size: int = 0
    """Bytes read, unpacked."""
    bad: int = 0
    """Number of values that are no objects, of plain events."""
    file: UnpackedFile | None = None
    """The open file during iteration."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield texts of whole events separated by commas, without brackets.

        The last text may include the end of the array and metadata; :meth:`values` reads it.

        Raises:
            TraceError: the file cannot be read, is no Chrome JSON, or unpacks to too many bytes.
        """
        with UnpackedFile.open(self.path) as self.file:
            yield from self._split(self.file)

    def plain_events(self, mend: Callable[[bytes], bytes] = bytes) -> Iterator[dict[str, Any]]:
        """Yield the events in the order of the file; ``mend`` repairs the writer's invalid JSON.

        An array without an end, a final empty object and extra commas are valid.

        Raises:
            TraceError: the file cannot be read, is no Chrome JSON, or unpacks to too many bytes.
        """
        value_count = 0
        for block in self:
            text = mend(block)
            try:
                values = events = _DECODER.decode(b"[" + text + b"]")
            except _UNDECODABLE:
                values = list(self.values(text))
                events = [value for value in values if isinstance(value, dict)]
                self.bad += len(values) - len(events)
            value_count += len(values)
            check_events(value_count, self.path)
            self.expect(value_count - self.bad, self.bad)
            yield from events

    def expect(self, events: int, bad: int) -> None:
        """Check the numbers of valid and invalid events so far, and the expected number.

        Raises:
            TraceError: there are more events than a trace may have, or most are invalid.
        """
        if self.file is not None:
            self.file.expect(events + bad, _MARKS)
        if bad > max(events, _MOST_BROKEN):
            raise TraceError(f"holds {bad:,} broken events and {events:,} whole ones: not a trace", file=self.path)

    def values(self, block: bytes) -> Iterator[Any]:
        """Yield the values of a block with the end of the array or with invalid events, one by one."""
        decoder = json.JSONDecoder(parse_constant=lambda _: None)  # NaN and infinities are no JSON
        text, position = block.decode("utf-8", errors="replace"), 0
        while True:
            while position < len(text) and text[position] in " \t\r\n,":
                position += 1
            if position == len(text):
                return
            if text[position] == "]":
                self._read_trailer(text[position + 1 :].encode(errors="replace"))
                return
            try:
                value, position = decoder.raw_decode(text, position)
            except (ValueError, RecursionError):
                self.cut = True
                return
            yield value

    def _read_trailer(self, rest: bytes) -> None:
        """Read the metadata after the end of the array."""
        text = rest.strip(_BLANK).removeprefix(b",").strip(_BLANK)
        if text in {b"", b"}"}:
            return
        try:
            self.top |= json.loads(b"{" + text)
        except ValueError:
            self.cut = True

    def _split(self, file: UnpackedFile) -> Iterator[bytes]:
        buffer, searched_bytes = self._begin(file), 0
        while True:
            part = self._read_part(file, len(buffer))
            buffer += part
            if not part:
                break
            start, end = _last_start(buffer, searched_bytes)
            searched_bytes = len(buffer) - start
            if start > 0:
                yield buffer[:end]
                buffer = buffer[start:]
            elif len(buffer) > MOST_EVENT_BYTES:
                what = "all events are empty" if _EMPTY.match(buffer) else "no event ends"
                raise TraceError(f"{what} within {MOST_EVENT_BYTES >> 20} MiB: not a trace", file=self.path)
        # The last block is decoded event by event, which is slow. So it has only the last event.
        start, end = _last_start(buffer)
        if start > 0:
            yield buffer[:end]
        if buffer[start:].strip(_BLANK):
            yield buffer[start:]

    def _begin(self, file: UnpackedFile) -> bytes:
        """Read up to the first event, and return the bytes of events that were read."""
        buffer = b""
        while len(buffer) <= MOST_EVENT_BYTES:
            part = self._read_part(file, len(buffer))
            buffer += part
            text = buffer.lstrip(b"\xef\xbb\xbf" + _BLANK)
            if text.startswith(b"["):
                return text[1:]
            if text[:1] not in {b"{", b""}:
                break
            array = _ARRAY.search(buffer)
            if array:
                self._describe(buffer[: array.start()])
                return buffer[array.end() :]
            if not part:
                break
        if not buffer.strip(_BLANK):
            raise TraceError("is empty", file=self.path)
        raise TraceError("is not a Chrome JSON trace: it has no traceEvents", file=self.path)

    def _describe(self, head: bytes) -> None:
        try:
            self.top |= json.loads(head.strip(b"\xef\xbb\xbf" + _BLANK).removesuffix(b",") + b"}")
        except (ValueError, RecursionError) as error:
            raise TraceError(f"cannot be read before its events: {error}", file=self.path) from None

    def _read_part(self, file: UnpackedFile, buffered_bytes: int) -> bytes:
        """Return the next bytes, at least as many as are buffered, to detect a missing end early."""
        try:
            part = file.read(max(_BLOCK, buffered_bytes))
        except (EOFError, zlib.error):
            if not self.size:
                raise
            self.cut = True
            return b""
        self.size += len(part)
        return part


def _last_start(text: bytes, searched_bytes: int = 0) -> tuple[int, int]:
    """Return the start of the last event that follows another event, and the end of that event; 0, 0 for none.

    Args:
        text: the text.
        searched_bytes: length of the beginning that was searched before without a result.
    """
    position, first = len(text), max(searched_bytes - _LONGEST_KEY, 0)
    while (position := text.rfind(b"{", first, position)) > 0:
        before = text[max(position - _MOST_BLANKS, 0) : position].rstrip(_BLANK)
        comma = max(position - _MOST_BLANKS, 0) + len(before) - 1
        closed = before.endswith(b",") and before[:-1].rstrip(_BLANK).endswith(b"}")
        if closed and _FIRST_KEY.match(text, position):
            return position, comma
    return 0, 0


_BATCH_LINES = 1 << 12
"""Lines between two checks of their number."""


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file.

    Raises:
        TraceError: the file cannot be read, a line is too long, or there are more lines than the limit of events.
    """
    with UnpackedFile.open(path) as file:
        for number in count(1):
            line = file.readline(MOST_EVENT_BYTES + 1)
            if not line:
                return
            if len(line) > MOST_EVENT_BYTES:
                raise TraceError(f"has a line, or an object, of more than {MOST_EVENT_BYTES >> 20} MiB", file=path)
            if number % _BATCH_LINES == 0:
                file.expect(number, (b"\n",))
            yield line


MEMORY = "[memory]"
"""Name of the instants with the allocated bytes of PyTorch's allocator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """Filter of complete events."""

    categories: frozenset[str]
    """Categories to read."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of names to read in any category."""
    without: frozenset[str] = frozenset()
    """Names to skip in all categories."""
    details: tuple[str, ...] = ()
    """Prefixes of names whose arguments are read."""


_BATCH, _CHUNK_BYTES = 1024, 4 << 20
"""Events that are converted to columns at a time, and bytes of text that a process parses at a time."""
_ALWAYS = 2
_EVENTS_DECODER = msgspec.json.Decoder(list[Event])
_ARGUMENTS_DECODER = msgspec.json.Decoder(Arguments | None)
_ARGUMENTS_LIST_DECODER = msgspec.json.Decoder(list[Arguments | None])
_NO_ARGUMENTS = Arguments()


def read_events(path: Path, keep: Keep) -> Events:
    """Read a file's complete events; a second process parses about half of a large file.

    Raises:
        TraceError: the file cannot be read or is no Chrome JSON.
    """
    blocks, builder = Blocks(path), EventBuilder()
    allocated: dict[int, int] = {}
    seen_count = 0
    with _second_process(path) as process:
        for piece in _pieces(_chunks(blocks), keep, blocks, process):
            builder.append(piece.builder)
            seen_count += piece.seen_count
            for device, size in piece.allocated.items():
                allocated[device] = max(allocated.get(device, 0), size)
            blocks.expect(seen_count, builder.bad)
            check_events(len(builder) + builder.bad, path, builder.held_bytes)
    base = blocks.top.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) and abs(base) < LARGEST_NS else 0
    table = builder.events(path, blocks.top, base_ns=base_ns, cut=blocks.cut)
    table.allocated = allocated
    return table


_LARGE_BYTES, _LARGE_PACKED_BYTES = 32 << 20, 2 << 20
"""Sizes of files, plain and packed, whose parsing takes longer than the start of a process."""
_AHEAD = 3
"""Chunks that the second process has: the one that it parses, and the next ones."""
_SLOT_BYTES = _CHUNK_BYTES + (1 << 20)
_SWITCH_S = 0.0005
"""Longest time for which the parsing thread keeps the thread waiting that receives results."""
_memory: list[mmap] = []
"""Memory that the second process shares: a slot for each chunk that it has. A pipe copies chunks more slowly."""


def _is_large(path: Path) -> bool:
    least = _LARGE_PACKED_BYTES if path.suffix == ".gz" else _LARGE_BYTES
    return path.is_file() and path.stat().st_size >= least


@contextmanager
def _second_process(path: Path) -> Iterator[Executor | None]:
    """Start a second process for a large file, with memory for its chunks."""
    if not _is_large(path):
        yield None
        return
    _memory[:] = [mmap(-1, _AHEAD * _SLOT_BYTES)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    try:
        with second_process() as process:
            yield process
    finally:
        sys.setswitchinterval(interval_s)
        _memory.clear()


@dataclass(slots=True)
class _Piece:
    """The complete events of a chunk."""

    builder: EventBuilder = field(default_factory=EventBuilder)
    """The kept events."""
    allocated: dict[int, int] = field(default_factory=dict)
    """Peak of allocated bytes by device type."""
    seen_count: int = 0
    """Number of valid events, kept or not."""


def _chunks(blocks: Blocks) -> Iterator[list[bytes]]:
    """Yield the blocks of a file, some at a time."""
    chunk, size = [], 0
    for block in blocks:
        chunk.append(block)
        size += len(block)
        if size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _pieces(
    chunks: Iterable[list[bytes]], keep: Keep, blocks: Blocks, process: Executor | None
) -> Iterator[_Piece]:
    """Yield the events of chunks in the order of the file; whichever process is free parses the next chunk."""
    pending: deque[_Piece | _Submitted] = deque()
    free_slots = list(range(_AHEAD))

    def parse(chunk: list[bytes]) -> _Piece:
        return _parse(chunk, keep, blocks) or _Piece()

    def finished(first: _Piece | _Submitted) -> _Piece:
        if isinstance(first, _Piece):
            return first
        free_slots.append(first.slot)
        try:
            return first.future.result() or parse(first.chunk)
        except BrokenExecutor:
            return parse(first.chunk)

    for chunk in chunks:
        while pending and (isinstance(pending[0], _Piece) or pending[0].future.done()):
            yield finished(pending.popleft())
        sizes = [len(block) for block in chunk]
        if process is not None and free_slots and sum(sizes) <= _SLOT_BYTES:
            slot = free_slots[-1]
            start = slot * _SLOT_BYTES
            _memory[0][start : start + sum(sizes)] = b"".join(chunk)
            with suppress(BrokenExecutor):
                pending.append(_Submitted(process.submit(_parse_slot, start, sizes, keep), chunk, slot))
                free_slots.pop()
                continue
        pending.append(parse(chunk))
    while pending:
        yield finished(pending.popleft())


class _Submitted(NamedTuple):
    """A chunk in the second process."""

    future: Future[_Piece | None]
    chunk: list[bytes]
    slot: int
    """The slot of the chunk in the memory that both processes share."""


def _parse_slot(start: int, sizes: list[int], keep: Keep) -> _Piece | None:
    """Return the events of a chunk in the shared memory, as :func:`_parse`."""
    ends = accumulate(sizes, initial=start)
    return _parse([_memory[0][begin:end] for begin, end in pairwise(ends)], keep)


def _parse(chunk: Sequence[bytes], keep: Keep, blocks: Blocks | None = None) -> _Piece | None:
    """Return the events of a chunk; without ``blocks``, None if a block cannot be decoded at once."""
    piece, pending = _Piece(), list[Event]()
    decisions, categories = _decisions(keep), keep.categories
    for block in chunk:
        try:
            events = _EVENTS_DECODER.decode(b"[" + block + b"]")
        except _UNDECODABLE:
            if blocks is None:
                return None
            events, empty_count = _events_one_by_one(block, blocks, piece.builder)
            piece.seen_count += empty_count
        piece.seen_count += len(events)
        pending += [
            e for e in events if (decision := decisions[e.name]) and (decision == _ALWAYS or e.cat in categories)
        ]
        if len(pending) >= _BATCH:
            _add(piece.builder, pending, keep.details, piece.allocated)
            pending = []
    _add(piece.builder, pending, keep.details, piece.allocated)
    return piece


class _Decisions(dict[str, int]):
    """Decision for each name: 0 to skip its events, 1 to keep those of the kept categories, 2 to keep all."""

    def __init__(self, keep: Keep) -> None:
        super().__init__()
        self.keep = keep

    def __missing__(self, name: str) -> int:
        always = name.startswith(self.keep.prefixes)
        decision = self[name] = _ALWAYS if always else name not in self.keep.without
        return decision


@cache
def _decisions(keep: Keep) -> _Decisions:
    """Return the decisions, which all chunks share."""
    return _Decisions(keep)


def _events_one_by_one(block: bytes, blocks: Blocks, builder: EventBuilder) -> tuple[list[Event], int]:
    """Return the valid events of a block that cannot be decoded at once, and the number of empty events."""
    events: list[Event] = []
    empty_count = 0
    for value in blocks.values(block):
        if value == {}:
            empty_count += 1
            continue
        try:
            if isinstance(value, dict) and "args" in value:
                value["args"] = msgspec.Raw(json.dumps(value["args"]).encode())
            events.append(msgspec.convert(value, Event))
        except (msgspec.ValidationError, UnicodeError, RecursionError):
            builder.bad += 1
    return events, empty_count


_LONGEST_US = 2**40
"""12 days; sums of many durations have at most 62 bits."""


def _add(
    builder: EventBuilder, events: Sequence[Event], details: tuple[str, ...], allocated: dict[int, int]
) -> None:
    """Append the complete events to a builder, and update the peak of allocated bytes by device type."""
    events, arguments = _decode_arguments(events, builder)
    for marks in [a for e, a in zip(events, arguments, strict=True) if e.name == MEMORY]:
        total, device = marks.allocated, marks.device_type
        if isinstance(total, int) and isinstance(device, int) and 0 < total < 2 * LARGEST_NS:
            allocated[device] = max(allocated.get(device, 0), total)
    rows = [row for row, e in enumerate(events) if e.ph == "X"]
    if len(rows) < len(events):
        events, arguments = [events[row] for row in rows], [arguments[row] for row in rows]
    start, duration = _times([e.ts for e in events]), _times([e.dur for e in events])
    good = (np.abs(start) < LARGEST_US) & (duration >= 0) & (duration < _LONGEST_US)
    if not good.all():
        rows = np.flatnonzero(good).tolist()
        builder.bad += len(events) - len(rows)
        events, arguments = [events[row] for row in rows], [arguments[row] for row in rows]
        start, duration = start[good], duration[good]
    start_ns = _nanoseconds(start)
    names = [e.name for e in events]
    detailed = {name for name in set(names) if name.startswith(details)}
    builder.extend(
        names, [e.cat for e in events], [(e.pid, e.tid) for e in events],
        start_ns, start_ns + _nanoseconds(duration),
        [a.correlation for a in arguments], [a.stream for a in arguments],
        [_detach(a) if name in detailed else None for name, a in zip(names, arguments, strict=True)],
    )  # fmt: skip


def _decode_arguments(events: Sequence[Event], builder: EventBuilder) -> tuple[Sequence[Event], list[Arguments]]:
    """Return the events and their arguments; events with invalid arguments are counted and dropped."""
    try:
        decoded = _ARGUMENTS_LIST_DECODER.decode(b"[" + b",".join([e.args for e in events]) + b"]")
        return events, [a or _NO_ARGUMENTS for a in decoded]
    except _UNDECODABLE:
        valid: list[Event] = []
        arguments: list[Arguments] = []
    for event in events:
        try:
            value = _ARGUMENTS_DECODER.decode(bytes(event.args).decode(errors="replace"))
        except _UNDECODABLE:
            builder.bad += 1
            continue
        valid.append(event)
        arguments.append(value or _NO_ARGUMENTS)
    return valid, arguments


def _detach(arguments: Arguments) -> Arguments:
    """Copy the raw arguments, so that the event does not keep its block in memory."""
    for name in ("inputs", "input_dims", "input_type"):
        setattr(arguments, name, getattr(arguments, name).copy())
    return arguments


def _times(values: Sequence[Number]) -> NDArray[np.float64]:
    """Return microseconds, NaN for a value that is not a number."""
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_time(value) for value in values], dtype=np.float64)


def _time(value: Number) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) <= LARGEST_US else math.nan


def _nanoseconds(times: NDArray[np.float64]) -> Int64s:
    floor = np.floor(times)
    nanoseconds: Int64s = floor.astype(np.int64) * 1000 + np.rint((times - floor) * 1000).astype(np.int64)
    return nanoseconds
