"""The memory that the machine has to spare, and what is refused because it would take more."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from pptrace.limits.keys import MEMORY, size_of

__all__ = ["gibibytes", "memory_key", "most_memory"]

_FIFTHS = 4, 5
_CGROUP = Path("/sys/fs/cgroup")


def most_memory() -> int:
    """Return the bytes of memory that may be taken: as the user says, else four fifths of what is to spare.

    Raises:
        ConfigError: :data:`~pptrace.limits.keys.MEMORY` is no size.
    """
    asked = size_of(MEMORY)
    return asked if asked is not None else _spare() * _FIFTHS[0] // _FIFTHS[1]


def memory_key() -> str:
    """Return how to allow more, as the end of a message."""
    return f"set {MEMORY} to allow more"


def gibibytes(size: int) -> str:
    """Return a size for people.

    >>> gibibytes(3 << 29), gibibytes(5 << 20)
    ('1.5 GiB', '5 MiB')
    """
    return f"{size / (1 << 30):,.1f} GiB" if size >= 1 << 30 else f"{size >> 20:,} MiB"


def _spare() -> int:
    """Return the bytes that are available: to the machine, to the control group, to the process."""
    found = [_available(), *_group()]
    with suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        found += [] if limit == resource.RLIM_INFINITY else [limit]
    return min(found)


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
