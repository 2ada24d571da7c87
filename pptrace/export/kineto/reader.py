"""Read our own Chrome JSON back: one file for all ranks, or one per rank, into one timeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pptrace.errors import TraceError
from pptrace.export.damage import DAMAGE, checked_timeline, named_damage
from pptrace.export.kineto.columns import Part, joined
from pptrace.export.kineto.header import FORMAT
from pptrace.limits.memory import gibibytes, memory_key
from pptrace.limits.reading import check_events, most_parsed, open_unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pptrace.limits.reading import UnpackedFile
    from pptrace.timeline.timeline import Timeline

__all__ = ["read"]

_EVENTS = b'"traceEvents": [\n'
_END = b"]}\n"
_BLOCK, _LONGEST_LINE = 4 << 20, 64 << 20
_TELLING = (
    b'{"ph":"X","cat":"kernel"',
    b'{"ph":"X","cat":"gpu_memcpy"',
    b'{"ph":"X","cat":"cuda_runtime"',
    b'{"ph":"X","cat":"link"',
    b'{"ph":"C"',
)
"""How the lines begin that a timeline is made of."""
_MARKS = [b"\n" + start for start in _TELLING]


def read(paths: Sequence[Path]) -> Timeline:
    """Return the timeline that was written to ``paths``, compressed or not.

    Rows whose rank is in none of the files are missing, and a ``cause`` among them becomes -1.

    Raises:
        TraceError: a file cannot be read, is not ours, or does not belong with the others.
    """
    parts = [(path, _read_one(path)) for path in paths]
    with named_damage(paths):
        return checked_timeline(joined(parts), paths[0])


def _read_one(path: Path) -> Part:
    try:
        with open_unpacked(path) as file:
            top, batches = _events(file, path)
            return Part.of(top["metadata"]["pptrace"], batches)
    except json.JSONDecodeError as error:
        raise TraceError(f"{error}; was it cut short?", file=path) from None
    except RecursionError:
        raise TraceError("nests its values too deeply to be a trace that pptrace wrote", file=path) from None
    except DAMAGE as error:
        raise TraceError(f"not a trace that pptrace wrote: {type(error).__name__} {error}", file=path) from None


def _events(file: UnpackedFile, path: Path) -> tuple[dict[str, Any], Iterable[list[dict[str, Any]]]]:
    """Return what stands before the events, and the events in batches, so that memory stays bounded.

    A file that some tool laid out anew is read at one go.
    """
    first = file.readline(most_parsed())
    if first.endswith(_EVENTS):
        top = json.loads(first + _END)
        batches: Iterable[list[dict[str, Any]]] = _batches(file, path)
    else:
        top = json.loads(first + _rest(file, len(first), path))
        check_events(len(top["traceEvents"]), path)
        batches = [top["traceEvents"]]
    if top.get("pptraceFormat") not in range(1, FORMAT + 1):
        msg = f"format {top.get('pptraceFormat')}, and this version reads up to {FORMAT}"
        raise ValueError(msg)
    return top, batches


def _rest(file: UnpackedFile, held: int, path: Path) -> bytes:
    """Return what is left of a file that is read whole."""
    parts, most = [], most_parsed()
    while part := file.read(_BLOCK):
        parts.append(part)
        held += len(part)
        if held > most:
            message = f"is larger than {gibibytes(most)} and not laid out as pptrace writes it: {memory_key()}"
            raise TraceError(message, file=path)
    return b"".join(parts)


def _batches(file: UnpackedFile, path: Path) -> Iterator[list[dict[str, Any]]]:
    held, last, count = b"", b"", 0
    while True:
        part = file.read(_BLOCK)
        end = part.rfind(b"\n") + 1
        if not end and part:
            held += part
            if len(held) > _LONGEST_LINE:
                raise TraceError(f"a line is longer than {gibibytes(_LONGEST_LINE)}: not a trace", file=path)
            continue
        lines = (held + part[:end]).splitlines(keepends=True)
        held = part[end:]
        telling = [line for line in lines if line.startswith(_TELLING)]
        count += len(telling)
        check_events(count, path)
        file.expect(count, _MARKS)
        yield json.loads(b"[" + b"".join(telling).rstrip().rstrip(b",") + b"]")
        last = lines[-1] if lines else last
        if not part:
            break
    if last != _END:
        msg = "cannot be read: the end is missing"
        raise TraceError(msg, file=path)
