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
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Struct, field

from pptrace.plugin import TraceError, UnpackedFile, check_events
from pptrace_kernel import always_compiled, compiles, run
from pptrace_profilers import kernels
from pptrace_profilers.events import (
    LARGEST_NS,
    LARGEST_US,
    Arguments,
    Event,
    EventBuilder,
    Number,
    integers,
    numbered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.plugin import Int32s, Int64s
    from pptrace_profilers.events import Events

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


class Blocks(Struct):
    """Blocks of the events of a file; ``top`` and ``cut`` are final after the last block."""

    path: Path
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


class Keep(Struct, frozen=True, kw_only=True):
    """Filter of complete events."""

    categories: frozenset[str]
    """Categories to read."""
    prefixes: tuple[str, ...] = ()
    """Prefixes of names to read in any category."""
    without: frozenset[str] = frozenset()
    """Names to skip in all categories."""
    details: tuple[str, ...] = ()
    """Prefixes of names whose arguments are read."""


_SCANNED_BYTES, _DECODED_BYTES = 2 << 20, 512 << 10
"""Bytes of text that are scanned, or decoded, at a time."""
_ALWAYS = 2
_EVENTS_DECODER = msgspec.json.Decoder(list[Event])
_ARGUMENTS_DECODER = msgspec.json.Decoder(Arguments | None)
_ARGUMENTS_LIST_DECODER = msgspec.json.Decoder(list[Arguments | None])
_VALUES_DECODER = msgspec.json.Decoder(list[Number])
_NO_ARGUMENTS, _INVALID = Arguments(), Arguments()


def read_events(path: Path, keep: Keep) -> Events:
    """Read a file's complete events; threads scan a large file with a compiled kernel.

    Raises:
        TraceError: the file cannot be read or is no Chrome JSON.
    """
    blocks, builder = Blocks(path), EventBuilder()
    allocated: dict[int, int] = {}
    seen_count = 0
    for selection in _selections(blocks, keep):
        _add(builder, selection, keep.details, allocated)
        seen_count += selection.seen_count
        blocks.expect(seen_count, builder.bad)
        check_events(len(builder) + builder.bad, path, builder.held_bytes)
    base = blocks.top.get("baseTimeNanoseconds")
    base_ns = base if isinstance(base, int) and abs(base) < LARGEST_NS else 0
    table = builder.events(path, blocks.top, base_ns=base_ns, cut=blocks.cut)
    table.allocated = allocated
    return table


_LARGE_BYTES, _LARGE_PACKED_BYTES = 32 << 20, 2 << 20
"""Sizes of files, plain and packed, whose decoding takes longer than loading LLVM."""
_AHEAD = 2
"""Chunks that the thread scans before the events of the first are used."""


def _is_large(path: Path) -> bool:
    least = _LARGE_PACKED_BYTES if path.suffix == ".gz" else _LARGE_BYTES
    return path.is_file() and path.stat().st_size >= least


def _selections(blocks: Blocks, keep: Keep) -> Iterator[_Selection]:
    """Yield the kept events of a file in its order; a thread scans the text of a large file."""
    if not (_is_large(blocks.path) and compiles(_SCANNED_BYTES)):
        yield from (_decode(chunk, keep, blocks) for chunk in _chunks(blocks, _DECODED_BYTES))
        return
    pending: deque[tuple[list[bytes], Future[_Scan]]] = deque()
    with ThreadPoolExecutor(1) as thread:
        for chunk in _chunks(blocks, _SCANNED_BYTES):
            pending.append((chunk, thread.submit(scan_blocks, chunk)))
            if len(pending) > _AHEAD:
                yield from _kept(*pending.popleft(), keep, blocks)
        for submitted in pending:
            yield from _kept(*submitted, keep, blocks)


def _chunks(blocks: Blocks, chunk_bytes: int) -> Iterator[list[bytes]]:
    """Yield the blocks of a file, some at a time."""
    chunk, size = [], 0
    for block in blocks:
        chunk.append(block)
        size += len(block)
        if size >= chunk_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Selection(Struct, kw_only=True):
    """Events of a text that the filter keeps; columns have one value per event."""

    names: Sequence[str]
    """Names, in any order."""
    categories: Sequence[str]
    """Categories, in any order."""
    threads: Sequence[tuple[Number, Number]]
    """Pairs of process and thread id, in any order."""
    name: Int32s
    """Position of each event's name."""
    category: Int32s
    """Position of each event's category."""
    thread: Int32s
    """Position of each event's thread."""
    is_complete: NDArray[np.bool_]
    """Whether the phase is that of complete events."""
    start_us: NDArray[np.float64]
    """Start; NaN for none."""
    duration_us: NDArray[np.float64]
    """Duration; NaN for none."""
    correlation: Int64s
    """Correlation id; -1 for none."""
    stream: Int64s
    """Stream; -1 for none."""
    arguments: dict[int, Arguments]
    """Arguments by event, of events with details and of instants of memory."""
    seen_count: int
    """Number of valid events of the text, kept or not."""
    bad: int
    """Number of invalid events of the text."""


_ROW_BYTES = 32
"""Bytes of an event; blocks with many shorter events are decoded."""
_ROW_TYPES = kernels.Rows(
    phase="i4", category="i4", name="i4", pid="i4", tid="i4", start="i8", start_decimals="i1", duration="i8",
    duration_decimals="i1", arguments="i4", arguments_end="i4", correlation="i8", stream="i8", unread="?",
)  # fmt: skip
_TEXT_COLUMNS = 5
"""The first columns, which have numbers of texts."""
_MOST_TEXTS = 1 << 15
_TEXT_END = b'"\0'


class _Scan(NamedTuple):
    """The events of the first blocks of a chunk."""

    text: bytes
    """The blocks."""
    block_count: int
    """Number of blocks up to one that the kernel does not accept."""
    rows: kernels.Rows
    """Their events."""
    texts: kernels.Texts
    """Distinct values of fields."""


def scan_blocks(chunk: Sequence[bytes]) -> _Scan:
    """Scan blocks of events with the kernel."""
    text = b",".join([*chunk[:-1], chunk[-1] + _TEXT_END])
    ends = np.cumsum([len(block) + 1 for block in chunk]) - 1
    rows = kernels.Rows(*(np.empty(len(text) // _ROW_BYTES, dtype) for dtype in _ROW_TYPES))
    start, end = np.empty((2, _MOST_TEXTS), np.int32)
    slot, count = np.full(2 * _MOST_TEXTS, kernels.ABSENT, np.int32), np.zeros(1, np.int32)
    texts = kernels.Texts(start, end, slot, count)
    row_counts = np.zeros(len(chunk) + 1, np.int64)
    with always_compiled():
        inputs = np.frombuffer(text, np.uint8), ends, _typed_names()
        block_count = run(kernels.read_blocks, inputs, (texts, rows, row_counts), work=len(text))
    return _Scan(text, block_count, kernels.Rows(*(column[: row_counts[block_count]] for column in rows)), texts)


@cache
def _typed_names() -> kernels.Names:
    """Return the names of arguments whose values have a type, first those with columns."""
    names = [field.encode_name.encode() for field in msgspec.structs.fields(Arguments) if field.type == Number]
    return kernels.Names(np.frombuffer(b"".join(names), np.uint8), np.cumsum([0, *map(len, names)]))


def _kept(chunk: list[bytes], future: Future[_Scan], keep: Keep, blocks: Blocks) -> Iterator[_Selection]:
    """Yield the kept events of a chunk; decode blocks that the kernel does not accept."""
    scan = future.result()
    while (selection := _select(scan, keep)) is not None:
        yield selection
        rejected, chunk = chunk[scan.block_count :][:1], chunk[scan.block_count + 1 :]
        if rejected:
            yield _decode(rejected, keep, blocks)
        if not chunk:
            return
        scan = scan_blocks(chunk)
    yield _decode(chunk, keep, blocks)


def _select(scan: _Scan, keep: Keep) -> _Selection | None:
    """Return the kept events among scanned rows; None if a text cannot be decoded."""
    text, _, rows, texts = scan
    text_count = 1 + max(int(column.max(initial=kernels.ABSENT)) for column in rows[:_TEXT_COLUMNS])
    spans = zip(texts.start[:text_count].tolist(), texts.end[:text_count].tolist(), strict=True)
    try:
        values = _VALUES_DECODER.decode(b"[" + b",".join([text[start:end] for start, end in spans]) + b"]")
    except _UNDECODABLE:
        return None
    # The last element is the default, which has the number of absent texts.
    names, ids = [value if isinstance(value, str) else "" for value in (*values, "")], [*values, 0]
    marked = *keep.details, MEMORY
    decision = np.array(list(map(_decisions(keep), names)))[rows.name]
    in_category = np.array([name in keep.categories for name in names])[rows.category]
    kept = np.flatnonzero((decision == _ALWAYS) | ((decision > 0) & in_category))
    rows = kernels.Rows(*(column[kept] for column in rows))
    pairs, thread = np.unique(rows.pid % len(ids) * len(ids) + rows.tid % len(ids), return_inverse=True)
    has_details = np.array([name.startswith(marked) for name in names])[rows.name]
    unread = np.flatnonzero(has_details | rows.unread)
    spans = zip(rows.arguments[unread].tolist(), rows.arguments_end[unread].tolist(), strict=True)
    arguments = _decode_arguments([text[start:end] or b"null" for start, end in spans])
    rows.correlation[unread] = integers([decoded.correlation for decoded in arguments])
    rows.stream[unread] = integers([decoded.stream for decoded in arguments])
    is_valid = np.ones(kept.size, dtype=bool)
    is_valid[unread] = [decoded is not _INVALID for decoded in arguments]
    return _Selection(
        names=names, categories=names, name=rows.name, category=rows.category,
        threads=[(ids[pair // len(ids)], ids[pair % len(ids)]) for pair in pairs.tolist()],
        thread=thread.astype(np.int32),
        is_complete=is_valid & np.array([name == "X" for name in names])[rows.phase],
        start_us=_microseconds(rows.start, rows.start_decimals),
        duration_us=_microseconds(rows.duration, rows.duration_decimals),
        correlation=rows.correlation, stream=rows.stream,
        arguments={
            row: decoded for row, decoded in zip(unread.tolist(), arguments, strict=True) if has_details[row]
        },
        seen_count=decision.size, bad=int(np.count_nonzero(~is_valid)),
    )  # fmt: skip


_POWERS = np.array([10**decimals for decimals in range(19)] + [1])


def _microseconds(mantissa: Int64s, decimals: NDArray[np.int8]) -> NDArray[np.float64]:
    """Return the nearest doubles of decimal numbers, NaN for absent ones."""
    magnitude, scale = np.abs(mantissa), _POWERS[decimals]
    whole, rest = np.divmod(magnitude, scale)
    # A quotient of exact doubles is the nearest double. Larger numbers have few decimals, so doubles near their
    # fraction round to the same sum.
    nearest = np.where(magnitude <= kernels.EXACT, magnitude / scale, whole + rest / scale)
    return np.where(decimals < 0, np.nan, np.copysign(nearest, mantissa))


def _decode(chunk: Sequence[bytes], keep: Keep, blocks: Blocks) -> _Selection:
    """Return the kept events of blocks, decoded one by one where a block has invalid ones."""
    decision_on = _decisions(keep)
    kept: list[Event] = []
    seen_count = bad = 0
    for block in chunk:
        try:
            events = _EVENTS_DECODER.decode(b"[" + block + b"]")
        except _UNDECODABLE:
            events, empty_count, bad_count = _events_one_by_one(block, blocks)
            seen_count += empty_count
            bad += bad_count
        seen_count += len(events)
        kept += [
            e
            for e in events
            if (decision := decision_on(e.name)) and (decision == _ALWAYS or e.cat in keep.categories)
        ]
    names, name = numbered([e.name for e in kept])
    categories, category = numbered([e.cat for e in kept])
    threads, thread = numbered([(e.pid, e.tid) for e in kept])
    arguments = _decode_arguments([e.args for e in kept])
    is_valid = np.array([decoded is not _INVALID for decoded in arguments], dtype=bool)
    has_details = np.array([name.startswith((*keep.details, MEMORY)) for name in names], dtype=bool)[name]
    return _Selection(
        names=names, categories=categories, threads=threads, name=name, category=category, thread=thread,
        is_complete=is_valid & np.array([e.ph == "X" for e in kept], dtype=bool),
        start_us=_times([e.ts for e in kept]), duration_us=_times([e.dur for e in kept]),
        correlation=integers([decoded.correlation for decoded in arguments]),
        stream=integers([decoded.stream for decoded in arguments]),
        arguments={row: arguments[row] for row in np.flatnonzero(has_details & is_valid).tolist()},
        seen_count=seen_count, bad=bad + int(np.count_nonzero(~is_valid)),
    )  # fmt: skip


@cache
def _decisions(keep: Keep) -> Callable[[str], int]:
    """Return a function of names: 0 skips their events, 1 keeps those of the kept categories, 2 keeps all."""

    @cache
    def decision(name: str) -> int:
        return _ALWAYS if name.startswith(keep.prefixes) else int(name not in keep.without)

    return decision


def _events_one_by_one(block: bytes, blocks: Blocks) -> tuple[list[Event], int, int]:
    """Return the valid events of a block that cannot be decoded at once, and the numbers of empty and bad ones."""
    events: list[Event] = []
    empty_count = bad_count = 0
    for value in blocks.values(block):
        if value == {}:
            empty_count += 1
            continue
        try:
            if isinstance(value, dict) and "args" in value:
                value["args"] = msgspec.Raw(json.dumps(value["args"]).encode())
            events.append(msgspec.convert(value, Event))
        except (msgspec.ValidationError, UnicodeError, RecursionError):
            bad_count += 1
    return events, empty_count, bad_count


_LONGEST_US = 2**40
"""12 days; sums of many durations have at most 62 bits."""


def _add(
    builder: EventBuilder, selection: _Selection, details: tuple[str, ...], allocated: dict[int, int]
) -> None:
    """Append the complete events to a builder, and update the peak of allocated bytes by device type."""
    names = {row: selection.names[selection.name[row]] for row in selection.arguments}
    for marks in [marks for row, marks in selection.arguments.items() if names[row] == MEMORY]:
        total, device = marks.allocated, marks.device_type
        if isinstance(total, int) and isinstance(device, int) and 0 < total < 2 * LARGEST_NS:
            allocated[device] = max(allocated.get(device, 0), total)
    start, duration = selection.start_us, selection.duration_us
    good = selection.is_complete & (np.abs(start) < LARGEST_US) & (duration >= 0) & (duration < _LONGEST_US)
    builder.bad += selection.bad + int(np.count_nonzero(selection.is_complete & ~good))
    new_row, start_ns = np.cumsum(good) - 1, _nanoseconds(start[good])
    builder.extend(
        selection.names, selection.categories, selection.threads,
        selection.name[good], selection.category[good], selection.thread[good],
        start_ns, start_ns + _nanoseconds(duration[good]),
        selection.correlation[good], selection.stream[good],
        {
            int(new_row[row]): _detach(arguments)
            for row, arguments in selection.arguments.items()
            if good[row] and names[row].startswith(details)
        },
    )  # fmt: skip


def _decode_arguments(texts: Sequence[bytes]) -> list[Arguments]:
    """Return the arguments of events, ``_INVALID`` where they are invalid."""
    try:
        decoded = _ARGUMENTS_LIST_DECODER.decode(b"[" + b",".join(texts) + b"]")
    except _UNDECODABLE:
        return [_decode_argument(text) for text in texts]
    return [arguments or _NO_ARGUMENTS for arguments in decoded]


def _decode_argument(text: bytes) -> Arguments:
    for readable in (text, bytes(text).decode(errors="replace")):
        with suppress(*_UNDECODABLE):
            return _ARGUMENTS_DECODER.decode(readable) or _NO_ARGUMENTS
    return _INVALID


def _detach(arguments: Arguments) -> Arguments:
    """Copy the raw arguments, so that the event does not keep its block in memory."""
    for name in ("inputs", "input_dims", "input_type"):
        setattr(arguments, name, getattr(arguments, name).copy())
    return arguments


def _times(values: Sequence[Number]) -> NDArray[np.float64]:
    """Return microseconds, NaN for a value that is not a number."""
    times = np.array(values)
    if times.dtype.kind in "iuf":
        return times.astype(np.float64)
    return np.array([_time(value) for value in values], dtype=np.float64)


def _time(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _nanoseconds(times: NDArray[np.float64]) -> Int64s:
    floor = np.floor(times)
    nanoseconds: Int64s = floor.astype(np.int64) * 1000 + np.rint((times - floor) * 1000).astype(np.int64)
    return nanoseconds
