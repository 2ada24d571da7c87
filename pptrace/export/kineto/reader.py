"""Read our own Chrome JSON back: one file for all ranks, or one per rank, into one timeline."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from pptrace.errors import TraceError
from pptrace.export.damage import DAMAGE, checked_timeline, named_damage
from pptrace.export.kineto.columns import Part, joined
from pptrace.export.kineto.header import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from io import BufferedReader
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

BinaryFile: TypeAlias = "BufferedReader | gzip.GzipFile"

__all__ = ["read"]

_GZIP = b"\x1f\x8b"
_EVENTS = b'"traceEvents": [\n'
_END = b"]}\n"
_BATCH = 20_000
_TELLING = (
    b'{"ph":"X","cat":"kernel"',
    b'{"ph":"X","cat":"gpu_memcpy"',
    b'{"ph":"X","cat":"cuda_runtime"',
    b'{"ph":"X","cat":"link"',
    b'{"ph":"C"',
)
"""How the lines begin that a timeline is made of."""


def read(paths: Sequence[Path]) -> Timeline:
    """Return the timeline that was written to ``paths``, compressed or not.

    Rows whose rank is in none of the files are missing, and a ``cause`` among them becomes -1.

    Raises:
        TraceError: a file cannot be read, is not ours, or does not belong with the others.
    """
    parts = [(path, _read_one(path)) for path in paths]
    with named_damage(paths):
        return checked_timeline(joined(parts))


def _read_one(path: Path) -> Part:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
        with path.open("rb") as raw:
            top, batches = _events(gzip.GzipFile(fileobj=raw) if packed else raw)
            return Part.of(top["metadata"]["pptrace"], batches)
    except json.JSONDecodeError as error:
        raise TraceError(f"{error}; was it cut short?", file=path) from None
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"cannot be read: {getattr(error, 'strerror', None) or error}", file=path) from None
    except RecursionError:
        raise TraceError("nests its values too deeply to be a trace that pptrace wrote", file=path) from None
    except DAMAGE as error:
        raise TraceError(f"not a trace that pptrace wrote: {type(error).__name__} {error}", file=path) from None


def _events(file: BinaryFile) -> tuple[dict[str, Any], Iterable[list[dict[str, Any]]]]:
    """Return what stands before the events, and the events in batches, so that memory stays bounded.

    A file that some tool laid out anew is read at one go.
    """
    first = file.readline()
    if first.endswith(_EVENTS):
        top = json.loads(first + _END)
        batches: Iterable[list[dict[str, Any]]] = _batches(file)
    else:
        top = json.loads(first + file.read())
        batches = [top["traceEvents"]]
    if top.get("pptraceFormat") not in range(1, FORMAT + 1):
        msg = f"format {top.get('pptraceFormat')}, and this version reads up to {FORMAT}"
        raise ValueError(msg)
    return top, batches


def _batches(file: BinaryFile) -> Iterator[list[dict[str, Any]]]:
    last = b""
    while lines := list(islice(file, _BATCH)):
        last = lines[-1]
        text = b"".join(line for line in lines if line.startswith(_TELLING))
        yield json.loads(b"[" + text.rstrip().rstrip(b",") + b"]")
    if last != _END:
        msg = "the end is missing"
        raise EOFError(msg)
