"""Spans of OpenTelemetry in files: the SDK's JSON, one object per line or over several, and the collector's lines.

Sources: opentelemetry-sdk's ``ReadableSpan.to_json`` (what its console exporter writes, NeMo Lens one span per
line), the OTLP/JSON encoding (what the collector's file exporter writes), and the line that NeMo Lens' page on
backends writes by an exporter of one's own. Lines of the program itself and of metrics may stand between.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from pptrace.plugin import TraceError, check_events, open_unpacked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["Span", "SpanFile", "read_spans"]

_LONGEST_LINE = 16 << 20
_BATCH = 1 << 12
"""Lines between two looks at how many there are."""
_LATEST_NS = 2**62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECODER = msgspec.json.Decoder(dict[str, Any])
_VALUES = ("intValue", "stringValue", "doubleValue", "boolValue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span."""

    name: str
    """Its name."""
    start_ns: int
    """When it started, since the Unix epoch."""
    end_ns: int
    """When it ended."""
    attributes: Mapping[str, Any]
    """Its own attributes."""
    resource: Mapping[str, Any]
    """Those of its process; empty where the line does not say."""


@dataclass(slots=True)
class SpanFile:
    """What a file holds."""

    spans: list[Span]
    """Spans whose names begin as wanted."""
    untimed: int = 0
    """Such spans without times, or with times that cannot be."""
    others: int = 0
    """Lines that are no JSON."""


def read_spans(path: Path, prefix: str) -> SpanFile:
    """Read the spans of a file whose names begin with ``prefix``.

    Raises:
        TraceError: it cannot be read, or holds more spans than may be held.
    """
    found = SpanFile([])
    for text in _objects(path):
        try:
            record = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found.others += 1
            continue
        for fields, resource in _spans(record):
            if not str(fields.get("name", "")).startswith(prefix):
                continue
            span = _span(fields, resource)
            if span is None:
                found.untimed += 1
                continue
            found.spans.append(span)
            check_events(len(found.spans), path)
    return found


def _objects(path: Path) -> Iterator[bytes]:
    """Yield what may be an object: a line, or the lines from one that opens a brace to one that closes it."""
    parts: list[bytes] = []
    held = 0
    with open_unpacked(path) as file:
        for number in count(1):
            line = file.readline(_LONGEST_LINE + 1)
            if not line:
                return
            if number % _BATCH == 0:
                file.expect(number, (b"\n",))
            held += len(line)
            if held > _LONGEST_LINE:
                raise TraceError(f"has a line, or an object, of more than {_LONGEST_LINE >> 20} MiB", file=path)
            if parts or line.rstrip() == b"{":
                parts.append(line)
                if not line.startswith(b"}"):
                    continue
                line = b"".join(parts)
            if line.strip():
                yield line
            parts, held = [], 0


def _spans(record: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the spans of a line with the attributes of their process."""
    if "resourceSpans" not in record:
        resource = record.get("resource")
        yield record, _mapping(resource.get("attributes") if isinstance(resource, dict) else None)
        return
    for process in _list(record["resourceSpans"]):
        own = process.get("resource")
        resource = _mapping(own.get("attributes") if isinstance(own, dict) else None)
        for scope in _list(process.get("scopeSpans")):
            yield from ((span, resource) for span in _list(scope.get("spans")))


def _list(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    """Return attributes, which OTLP writes as a list of keys and typed values."""
    if isinstance(value, dict):
        return value
    return {str(one.get("key")): _plain(one.get("value")) for one in _list(value)}


def _plain(value: object) -> Any:
    if not isinstance(value, dict):
        return None
    return next((value[name] for name in _VALUES if name in value), None)


def _span(fields: Mapping[str, Any], resource: Mapping[str, Any]) -> Span | None:
    start = _time(fields, "start_time", "start_time_unix_nano", "startTimeUnixNano")
    end = _time(fields, "end_time", "end_time_unix_nano", "endTimeUnixNano")
    if not 0 < start <= end:
        return None
    return Span(
        name=str(fields["name"]), start_ns=start, end_ns=end, attributes=_mapping(fields.get("attributes")),
        resource=resource,
    )  # fmt: skip


def _time(fields: Mapping[str, Any], *names: str) -> int:
    """Return nanoseconds since the epoch, 0 for what is no time."""
    value = next((fields[name] for name in names if name in fields), None)
    try:
        if isinstance(value, str) and not value.isdecimal():
            since = datetime.fromisoformat(value) - _EPOCH
            return (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1_000
        at = int(value) if isinstance(value, (int, str)) else 0
    except (ValueError, TypeError):
        return 0
    return at if at < _LATEST_NS else 0
