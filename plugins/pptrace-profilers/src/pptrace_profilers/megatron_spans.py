"""Spans of Megatron-LM, exported by OpenTelemetry.

Source: Megatron-LM, docs/user-guide/observability and the decorated functions (``forward_step``,
``backward_step``, ``P2PCommunicator``). A span covers a call on the host. Attributes number the microbatches. By
default, microbatches are numbered in the order of their forwards and backwards, as in plain 1F1B. The combined
send and receive calls of the steady state have no spans: they last from one computation to the next.

Sources: opentelemetry-sdk's ``ReadableSpan.to_json`` (what its console exporter writes, NeMo Lens one span per
line), the OTLP/JSON encoding (of the collector's file exporter), and the lines of the custom exporter on NeMo
Lens' page on backends. The file may also contain metrics and lines that the program prints.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import Action, Kind, TraceError, Unattributed, check_events, kinds
from pptrace_profilers.events import parse_integer
from pptrace_profilers.gpu_spans import window_around
from pptrace_profilers.json_events import MOST_EVENT_BYTES, read_lines
from pptrace_profilers.recording import MOST_RANKS, NO_STAGE, Executions, MessageEnds, Recording, read_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

_PREFIX = "megatron."
_STEPS = ("megatron.train.iteration", "megatron.train_step")
"""Span of a step, as named in Megatron-LM's code and documentation."""
_ACTIONS = {"megatron.microbatch.forward": Kind.F, "megatron.microbatch.backward": Kind.B}
_MESSAGE = re.compile(r"megatron\.p2p\.(send|recv)_(forward|backward)")
_OTHER_WORK = re.compile(r"megatron\.(?:grad_sync|activation|optimizer)")
_NUMBERS = ("megatron.microbatch_id", "dl.microbatch_id")
_RANK_NAME = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
_GROUPS = "MEGATRON_OTEL_SPAN_GROUPS=step,microbatch,communication"


def read_megatron(paths: Sequence[Path]) -> tuple[list[Recording], str, list[str]]:
    """Read the files of a job, each of one or several ranks, or of a part of the time.

    Returns:
        The recordings by rank, the layout of the job (empty if the spans do not have it), and notes.

    Raises:
        TraceError: no file can be read, or the files have no span of a step or of a microbatch.
    """
    files, notes = read_files(paths, _read_spans)
    by_rank: dict[int, list[Span]] = defaultdict(list)
    origin: dict[int, Path] = {}
    for path, (spans, untimed) in files.items():
        if untimed:
            notes.append(f"{path.name}: {untimed:,} spans have no time or an invalid one: skipped")
        for span in spans:
            rank = _rank(span.resource, path)
            by_rank[rank].append(span)
            origin.setdefault(rank, path)
    names = {span.name for spans in by_rank.values() for span in spans}
    for wanted, what in ((_STEPS, "a step"), (_ACTIONS, "a microbatch")):
        if names.isdisjoint(wanted):
            raise TraceError(f"has no span of {what}: Megatron-LM writes them with {_GROUPS}", file=paths[0])
    sizes = dict(_sizes(next(iter(by_rank.values()))[0].resource))
    if not sizes and set(by_rank) == set(range(len(by_rank))):
        sizes = dict.fromkeys(("pp", "world"), len(by_rank))
    layout, world = _layout(sizes, by_rank), sizes.get("world", 0)
    if not world:
        notes.append("spans lack the number of ranks of the job: give the layout, such as --layout pp=4")
    if len(by_rank) < world:
        notes.append(
            f"spans of {len(by_rank)} of {world} ranks: Megatron-LM writes those of its last rank alone unless "
            "MEGATRON_OTEL_RANK_STRATEGY=all_ranks"
        )
    ranks_per_stage = world // sizes.get("pp", 1)
    recordings = [
        _recording(
            origin[rank], rank, by_rank[rank], rank // ranks_per_stage if layout else NO_STAGE, sizes.get("pp", 1)
        )
        for rank in sorted(by_rank)
    ]
    return recordings, layout, notes


def _layout(sizes: Mapping[str, int], ranks: Collection[int]) -> str:
    """Return the layout of a job if its spans have the sizes; the stage is the slowest axis of ranks."""
    world, known = sizes.get("world", 0), {axis: sizes.get(axis, 1) for axis in ("pp", "tp", "dp")}
    known_ranks = known["pp"] * known["tp"] * known["dp"]
    if not world or world % known_ranks or not all(0 <= rank < world for rank in ranks):
        return ""
    return ",".join(f"{axis}={size}" for axis, size in {**known, "cp": world // known_ranks}.items())


def _sizes(resource: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    for axis, name in (
        ("pp", "dl.pipeline_parallel.size"), ("tp", "dl.tensor_parallel.size"), ("dp", "dl.data_parallel.size"),
        ("world", "dl.world_size"),
    ):  # fmt: skip
        size = parse_integer(resource.get(name), 0)
        if 0 < size < MOST_RANKS:
            yield axis, size


def _rank(resource: Mapping[str, object], path: Path) -> int:
    """Return the global rank of a span, from its process or the file name; -1 if neither has it."""
    rank = parse_integer(resource.get("dl.rank"), -1)
    named = _RANK_NAME.search(str(resource.get("service.instance.id", ""))) or _RANK_NAME.search(path.name)
    rank = rank if rank >= 0 else int(named[1]) if named else -1
    return rank if rank < MOST_RANKS else -1


def _recording(path: Path, rank: int, spans: Sequence[Span], stage: int, stages: int) -> Recording:
    spans = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    steps = [span for span in spans if span.name in _STEPS]
    windows = tuple(
        (f"step {parse_integer(span.attributes.get('megatron.iteration'), number)}", span.start_ns, span.end_ns)
        for number, span in enumerate(steps)
    )
    acting = [span for span in spans if span.name in _ACTIONS or _MESSAGE.fullmatch(span.name)]
    step_spans_ns = [(start, end) for _, start, end in windows]
    starts_ns = [span.start_ns for span in acting]
    step_of_span = window_around(step_spans_ns, starts_ns).tolist() if windows else [-1] * len(acting)
    executions, ends = [Executions()], [MessageEnds()]
    for step in range(len(windows)):
        step_spans = [span for span, number in zip(acting, step_of_span, strict=True) if number == step]
        executions.append(_executions(step_spans, stage))
        if stage != NO_STAGE:
            ends.append(_ends(step_spans, executions[-1], stages))
    outside = sum(number < 0 for number in step_of_span)
    sums = Counter[str]()
    for span in spans:
        if _OTHER_WORK.match(span.name):
            sums[span.name] += span.end_ns - span.start_ns
    counts = Counter(span.name for span in spans)
    return Recording(
        path=path, rank=rank, world=parse_integer(spans[0].resource.get("dl.world_size"), 0), windows=windows,
        executions=Executions.concatenate(executions), ends=MessageEnds.concatenate(ends),
        notes=(f"rank {rank}: {outside:,} spans outside of all steps: skipped",) if outside else (),
        unattributed=tuple(
            Unattributed(rank=max(rank, 0), what=name, count=counts[name], total_ns=total)
            for name, total in sums.items()
        ),
    )  # fmt: skip


def _executions(spans: Sequence[Span], stage: int) -> Executions:
    """Return the computations of a step; forwards and backwards without a number are counted separately."""
    counted: Counter[Kind] = Counter()
    rows = []
    for span in spans:
        kind = _ACTIONS.get(span.name)
        if kind is None:
            continue
        recorded = next(
            (parse_integer(span.attributes[name], -1) for name in _NUMBERS if name in span.attributes), -1
        )
        action = Action(kind=kind, stage=stage, microbatch=recorded if recorded >= 0 else counted[kind])
        rows.append((action, span.start_ns, span.end_ns))
        counted[kind] += 1
    return Executions.from_rows(("action", "start_ns", "end_ns"), rows)


def _ends(spans: Sequence[Span], executions: Executions, stages: int) -> MessageEnds:
    """Return ends of messages: a receive feeds the next computation of its direction, a send follows the last."""
    actions, starts_ns, ends_ns = executions.action, executions.start_ns.tolist(), executions.end_ns.tolist()
    rows = []
    named = set()
    for span in spans:
        match = _MESSAGE.fullmatch(span.name)
        if match is None:
            continue
        sends, same_kind = match[1] == "send", executions.kind == (Kind.F if match[2] == "forward" else Kind.B)
        if sends:
            fitting = np.flatnonzero(same_kind & (executions.end_ns <= span.start_ns))[-1:]
        else:
            fitting = np.flatnonzero(same_kind & (executions.start_ns >= span.end_ns))[:1]
        for action in actions[fitting]:
            named.add((sends, action))
            rows.append(_end(action, span.start_ns, span.end_ns, sends=sends))
    for index, (action, start_ns, end_ns) in enumerate(zip(actions, starts_ns, ends_ns, strict=True)):
        previous_end_ns = ends_ns[index - 1] if index else start_ns
        next_start_ns = starts_ns[index + 1] if index + 1 < len(starts_ns) else end_ns
        stage_change = 1 if action.kind is Kind.F else -1
        if 0 <= action.stage - stage_change < stages and (False, action) not in named:
            rows.append(_end(action, min(previous_end_ns, start_ns), start_ns, sends=False))
        if 0 <= action.stage + stage_change < stages and (True, action) not in named:
            rows.append(_end(action, end_ns, max(next_start_ns, end_ns), sends=True))
    return MessageEnds.from_rows(("action", "start_ns", "end_ns", "sends"), rows)


def _end(computed: Action, start_ns: int, end_ns: int, *, sends: bool) -> tuple[Action, int, int, bool]:
    """Return the action, start, end and direction of an end of a message that a computation receives or sends."""
    kind = kinds.message_kind(sends=sends, forward=computed.kind is Kind.F)
    return replace(computed, kind=kind), start_ns, end_ns, sends


_LATEST_NS = 2**62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DECODER = msgspec.json.Decoder(dict[str, Any])
_VALUES = ("intValue", "stringValue", "doubleValue", "boolValue")


class Span(Struct, frozen=True, kw_only=True):
    """A span of a call on the host."""

    name: str
    start_ns: int
    """Start, since the Unix epoch."""
    end_ns: int
    """End, since the Unix epoch."""
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    """Attributes of its process; empty if the line has none."""


def _read_spans(path: Path) -> tuple[list[Span], int]:
    """Read the spans of Megatron-LM in a file, and the number of those without valid times.

    Raises:
        TraceError: the file cannot be read, or has more spans than a trace may have events.
    """
    spans: list[Span] = []
    untimed = 0
    for text in _objects(path):
        try:
            record = _DECODER.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for fields, resource in _spans(record):
            if not str(fields.get("name", "")).startswith(_PREFIX):
                continue
            span = _span(fields, resource)
            if span is None:
                untimed += 1
                continue
            spans.append(span)
            check_events(len(spans), path)
    return spans, untimed


def _objects(path: Path) -> Iterator[bytes]:
    """Yield possible objects: single lines, or lines from an opening to a closing brace."""
    parts: list[bytes] = []
    size_bytes = 0
    for line in read_lines(path):
        size_bytes += len(line)
        if size_bytes > MOST_EVENT_BYTES:
            raise TraceError(f"has a line, or an object, of more than {MOST_EVENT_BYTES >> 20} MiB", file=path)
        parts.append(line)
        if parts[0].rstrip() == b"{" and not line.startswith(b"}"):
            continue
        yield b"".join(parts)
        parts, size_bytes = [], 0


def _spans(record: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the spans of a line with the attributes of their process."""
    if "resourceSpans" not in record:
        resource = record.get("resource")
        yield record, _mapping(resource.get("attributes") if isinstance(resource, dict) else None)
        return
    for process in _list(record["resourceSpans"]):
        described = process.get("resource")
        resource = _mapping(described.get("attributes") if isinstance(described, dict) else None)
        for scope in _list(process.get("scopeSpans")):
            yield from ((span, resource) for span in _list(scope.get("spans")))


def _list(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    """Return attributes; OTLP lists keys and typed values."""
    if isinstance(value, dict):
        return value
    return {str(entry.get("key")): _plain(entry.get("value")) for entry in _list(value)}


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
    """Return nanoseconds since the epoch, 0 for an invalid time."""
    value = next((fields[name] for name in names if name in fields), None)
    try:
        if isinstance(value, str) and not value.isdecimal():
            elapsed = datetime.fromisoformat(value) - _EPOCH
            return (elapsed.days * 86_400 + elapsed.seconds) * 10**9 + elapsed.microseconds * 1_000
        time_ns = int(value) if isinstance(value, (int, str)) else 0
    except (ValueError, TypeError):
        return 0
    return time_ns if time_ns < _LATEST_NS else 0
