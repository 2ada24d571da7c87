"""Chrome JSON as PyTorch's profiler (Kineto) writes it: Perfetto, chrome://tracing and HTA read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

_MARK = b'{"pptraceFormat"'


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write ``timeline`` to ``path``; see :func:`pptrace.traces.kineto.writer.write`."""
    from pptrace.traces.kineto import writer

    writer.write(timeline, path, options)


def read(paths: Sequence[Path]) -> Timeline:
    """Read what :func:`write` wrote; see :func:`pptrace.traces.kineto.reader.read`."""
    from pptrace.traces.kineto import reader

    return reader.read(paths)


def recognises(path: Path, head: bytes) -> bool:
    """Whether pptrace wrote a file, by its first key; blanks around it are ignored.

    >>> from pathlib import Path
    >>> recognises(Path("step.json"), b'{"pptraceFormat": 1, "distributedInfo": {"rank": 0')
    True
    """
    del path
    return b"".join(head.split(maxsplit=2)).startswith(_MARK)
