"""Chrome JSON as PyTorch's profiler (Kineto) writes it: Perfetto, chrome://tracing and HTA read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.lazy import deferred

if TYPE_CHECKING:
    from pathlib import Path

_MARK = b'{"pptraceFormat"'


write = deferred("pptrace.traces.kineto.writer:write")
read = deferred("pptrace.traces.kineto.reader:read")


def recognises(path: Path, head: bytes) -> bool:
    """Whether pptrace wrote a file, by its first key; blanks around it are ignored.

    >>> from pathlib import Path
    >>> recognises(Path("step.json"), b'{"pptraceFormat": 1, "distributedInfo": {"rank": 0')
    True
    """
    del path
    return b"".join(head.split(maxsplit=2)).startswith(_MARK)
