"""Limits of input size and memory."""

from __future__ import annotations

import gzip
import os
import re
import stat
import zlib
from contextlib import contextmanager, suppress
from importlib import import_module
from io import RawIOBase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pptrace.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import BufferedIOBase, BufferedReader

MOST_RATIO, RATIO_FROM = 100, 32 << 20
"""Limit of the compression ratio, and the unpacked size from which it applies; traces have ratios of 5 to 40."""
EVENT_BYTES = 350
"""Approximate memory of an event while it is read."""
_TWICE = 2
"""Copies of names and arguments in memory while the result is built."""
_HELD = 4
"""Memory of a file that is read whole, in multiples of its size."""
_PARSED = 8
"""Memory of parsed JSON, in multiples of its text."""
_PART, _PACKED_PART = 1 << 20, 1 << 16
_WINDOW, _FRACTION = 1 << 18, 64
"""Least part of a file from which its events are estimated: in bytes, and as a divisor of its size."""
_GZIP = b"\x1f\x8b"


class UnpackedFile:
    """A file, plain or gzip, read in parts; checks its unpacked size."""

    def __init__(self, path: Path, raw: BufferedReader) -> None:
        """Wrap a file that is open at its beginning."""
        self._path, self._raw = path, raw
        self._packed = raw.read(2) == _GZIP
        raw.seek(0)
        self._file, self._damage = _gzip_reader(raw) if self._packed else (raw, ())
        self._most = most_unpacked()
        self._whole = os.fstat(raw.fileno()).st_size
        self._looked, self._before = 0, 0
        self.plain_bytes = 0 if self._packed else self._whole
        """Size of the file; 0 where it is packed."""
        self.size = 0
        """Bytes that were read."""

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[Self]:
        """Open a file, and close it.

        Raises:
            TraceError: it cannot be opened, read or unpacked.
        """
        check_regular(path)
        try:
            with path.open("rb") as raw:
                yield cls(path, raw)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(f"cannot be unpacked: {error}", file=path) from None
        except OSError as error:
            raise TraceError(f"cannot be read: {error.strerror or error}", file=path) from None

    @classmethod
    def read_whole(cls, path: Path) -> bytes:
        """Return all of a file.

        Raises:
            TraceError: as :meth:`open` says, or it is more than memory may hold.
        """
        parts, most = [], min(most_unpacked(), most_memory() // _HELD)
        with cls.open(path) as file:
            part_bytes = max(_PART, min(file.plain_bytes, most) + 1)  # a single part is not copied
            while part := file.read(part_bytes):
                parts.append(part)
                if file.size > most:
                    message = f"is larger than {gibibytes(most)}, unpacked, and read whole: {memory_key()}"
                    raise TraceError(message, file=path)
        return b"".join(parts)

    @classmethod
    def read_pages(cls, path: Path) -> memoryview:
        """Return all of a file, in huge pages if it is not packed; reading into them takes half the time.

        Raises:
            TraceError: as :meth:`read_whole` says.
        """
        import numpy as np

        with cls.open(path) as file:
            if not 0 < file.plain_bytes <= min(most_unpacked(), most_memory() // _HELD):
                return memoryview(cls.read_whole(path))
            pages = np.empty(file.plain_bytes, dtype=np.uint8).data  # numpy asks for huge pages
            return pages[: file.fill(pages)]

    def read(self, most: int = _PART, /) -> bytes:
        """Return the next bytes, as many as asked or fewer; none at the end.

        Raises:
            TraceError: it unfolds without end, or is larger than may be.
            OSError, EOFError, zlib.error: it cannot be read or unpacked, as :meth:`open` says.
        """
        return self._counted(self._unpack("read", most))

    def fill(self, buffer: memoryview) -> int:
        """Read a plain file into a buffer; return the number of bytes."""
        return self._raw.readinto(buffer)

    def readline(self, most: int) -> bytes:
        """Return the next line up to ``most`` bytes; raises as :meth:`read`, before the line is in memory."""
        parts = []
        while most and (part := self._counted(self._unpack("readline", min(most, _PART)))):
            parts.append(part)
            most -= len(part)
            if part.endswith(b"\n"):
                break
        return b"".join(parts)

    def expect(self, events: int, marks: Sequence[bytes]) -> None:
        """Check that a trace has no more events than the limit, from the events that were read so far.

        Where an estimate for the rest of the file is above the limit, events are counted without parsing them.
        Each event has one of the texts ``marks``.

        Raises:
            TraceError: there are more than the limit.
        """
        most = most_events()
        if events > most:
            raise _too_many(most, self._path)
        if self._raw.closed:  # all of it was read
            return
        position = self._raw.tell()
        window = position - self._looked
        if self._looked == self._whole or window < max(_WINDOW, self._whole // _FRACTION):
            return
        rest = (events - self._before) * max(self._whole - position, 0) // window
        self._looked, self._before = position, events
        if events + rest > most:
            self._looked = self._whole  # once is enough: what is counted is the whole file
            self._count(marks, most)

    def _count(self, marks: Sequence[bytes], most: int) -> None:
        """Count a file's events and raise as :meth:`expect` does; the caller reports a damaged file."""
        events = 0
        with suppress(EOFError, zlib.error, OSError), self._path.open("rb") as raw:
            whole = UnpackedFile(self._path, raw)
            while part := whole.read():
                events += sum(map(part.count, marks))
                if events > most:
                    raise _too_many(most, self._path)

    def _unpack(self, method: str, most: int) -> bytes:
        """Return the result of a method of the reader.

        At damage, continue with Python's reader, which returns more of the bytes before it.
        """
        try:
            part: bytes = getattr(self._file, method)(most)
        except self._damage:
            self._raw.seek(0)
            self._file, self._damage = gzip.GzipFile(fileobj=self._raw), ()
            self._file.seek(self.size)
            part = getattr(self._file, method)(most)
        return part

    def _counted(self, part: bytes) -> bytes:
        self.size += len(part)
        if self._packed and self.size > max(RATIO_FROM, MOST_RATIO * self._raw.tell()):
            message = f"unpacks to more than {MOST_RATIO} times its size: unpack it first if it is a trace"
            raise TraceError(message, file=self._path)
        if self.size > self._most:
            message = f"is larger than {gibibytes(self._most)}, unpacked: set {UNPACKED} to allow more"
            raise TraceError(message, file=self._path)
        return part


class _Packed(RawIOBase):
    """A packed file in small parts, so that its position is near that of the unpacked bytes."""

    def __init__(self, raw: BufferedReader) -> None:
        self._raw = raw

    def readinto(self, buffer: Any, /) -> int:
        return self._raw.readinto(memoryview(buffer)[:_PACKED_PART])


def _gzip_reader(raw: BufferedReader) -> tuple[BufferedIOBase, tuple[type[Exception], ...]]:
    """Return the fastest reader of a gzip file, and its exceptions after which Python's reader continues.

    Intel's ISA-L unpacks three times as fast as zlib. It is a dependency of pptrace-profilers.
    """
    try:
        igzip: Any = import_module("isal.igzip")
    except ImportError:
        return gzip.GzipFile(fileobj=raw), ()
    return igzip.IGzipFile(fileobj=_Packed(raw), mode="rb"), (EOFError, OSError, igzip.isal_zlib.error)


def most_parsed() -> int:
    """Return the limit in bytes of JSON that is parsed at once."""
    return min(most_unpacked(), most_memory() // _HELD // _PARSED)


def check_events(count: int, path: Path | str, held: int = 0) -> None:
    """Check the number of a file's events before they are in memory; ``held`` are bytes of names and arguments.

    Raises:
        TraceError: there are more than the limit, or than memory holds.
    """
    if count > most_events():
        raise _too_many(most_events(), path)
    needed = count * EVENT_BYTES + held * _TWICE
    if exceeds_host_memory(needed):
        size = gibibytes(needed)
        raise TraceError(f"holds more events than memory does ({size}): {memory_key()}", file=path)


def _too_many(most: int, path: Path | str) -> TraceError:
    return TraceError(f"holds more than {most:,} events: set {EVENTS} to allow more", file=path)


def check_regular(path: Path) -> None:
    """Check that a file is no pipe or device, so that opening it does not wait for a writer.

    Raises:
        TraceError: it is a pipe or a device.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # whoever opens it says so
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise TraceError("is not a regular file: save its contents to one first", file=path)


def is_named_pipe(path: Path) -> bool:
    """Return whether a file is a named pipe; pipes of a shell under ``/dev`` and ``/proc`` do not count."""
    try:
        named = stat.S_ISFIFO(path.stat().st_mode)
    except (OSError, ValueError):
        return False
    return named and path.absolute().parts[1:2] not in {("dev",), ("proc",)}


_FIFTHS = 4, 5
_CGROUP = Path("/sys/fs/cgroup")


def most_memory() -> int:
    """Return the memory limit in bytes: the user's setting, by default four fifths of the available memory.

    Raises:
        ConfigError: :data:`~pptrace.config.limits.MEMORY` is not a size.
    """
    limit = size_of(MEMORY)
    return limit if limit is not None else _spare() * _FIFTHS[0] // _FIFTHS[1]


_SMALL = 2**24
"""Bytes that any machine has to spare: a smaller need reads no files of the operating system."""


def exceeds_host_memory(needed_bytes: int) -> bool:
    """Return whether a need is above :func:`most_memory`; raises as it does."""
    is_small = size_of(MEMORY) is None and needed_bytes <= _SMALL
    return not is_small and needed_bytes > most_memory()


def memory_key() -> str:
    """Return the end of a message that names the setting of the memory limit."""
    return f"set {MEMORY} to allow more"


def gibibytes(size: int) -> str:
    """Format a size in GiB or MiB.

    >>> gibibytes(3 << 29), gibibytes(5 << 20)
    ('1.5 GiB', '5 MiB')
    """
    return f"{size / (1 << 30):,.1f} GiB" if size >= 1 << 30 else f"{size >> 20:,} MiB"


def _spare() -> int:
    """Return the available bytes: the minimum over machine, control group and process limit."""
    limits = [_available(), *_group()]
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [] if limit == resource.RLIM_INFINITY else [limit]
    return min(limits)


def _available() -> int:
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text("ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group() -> list[int]:
    with suppress(OSError, ValueError):
        most = int((_CGROUP / "memory.max").read_text("ascii"))
        return [max(most - int((_CGROUP / "memory.current").read_text("ascii")), most // 8)]
    return []


UNPACKED = "PPTRACE_MOST_UNPACKED"
"""Limit of the unpacked bytes of a file: 16 GiB unless set."""
EVENTS = "PPTRACE_MOST_EVENTS"
"""Limit of the events of a file: 20,000,000 unless set."""
MEMORY = "PPTRACE_MOST_MEMORY"
"""Limit of the memory of a step or trace in bytes: four fifths of the available memory unless set."""

_UNPACKED, _EVENTS = 16 << 30, 20_000_000
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = r"\s*(\d{1,18})\s*([KMGT]IB|B|)\s*"


def most_unpacked() -> int:
    """Return the limit of a file's unpacked bytes; raises as :func:`size_of`."""
    return size_of(UNPACKED) or _UNPACKED


def most_events() -> int:
    """Return the limit of a file's events; raises as :func:`size_of`."""
    return size_of(EVENTS) or _EVENTS


def size_of(variable: str) -> int | None:
    """Return the number in an environment variable; None where it is not set or empty.

    Raises:
        ConfigError: it is not a number, or of no unit of KiB, MiB, GiB and TiB.
    """
    text = os.environ.get(variable, "")
    if not text.strip():
        return None
    match = re.fullmatch(_SIZE, text, re.IGNORECASE)
    if match is None or not int(match[1]):
        raise ConfigError(f"is {text!r}: write a number, or a size such as 64 GiB", key=variable)
    return int(match[1]) * _UNITS[match[2].upper()]
