"""Both steps of a diff in one trace, and the archive of a diff.

A rank has three threads, in this order: its first step, its second, and slices as long as the second's actions
that say by how much those end later or earlier, with that lateness as a counter below. Both steps start at once.
Above the ranks stands the ladder.

On the first track stands the shorter step's length, and behind it what the other has more. Below, a track per sort
of time holds the stretch by which it moves the end of the step, from where the one above left it.

Format: https://perfetto.dev/docs/reference/perfetto-manifest, version 1, which trace processors from v57 on heed.
They refuse an entry for a packed file, which is an archive to them, so files stand in the archive unpacked.

What was measured is there as the profiler wrote it; what was simulated is a trace of ours. Every measured file
keeps its own times; a simulated step is written at the time of the measured one.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from pptrace.config.limits import UnpackedFile
from pptrace.report.numbers import change, ms
from pptrace.sanitize import printable
from pptrace.timeline.timeline import Timeline
from pptrace.traces.link_slices import Hops
from pptrace.traces.perfetto.columns import CATEGORIES, DIFFERENCE_CATEGORY, Names, PlainColumn, Records
from pptrace.traces.perfetto.descriptors import TITLE_KEY, Tracks, descriptor_set
from pptrace.traces.perfetto.wire import BEGIN, COUNTER, END, SEQUENCE, Cell, Layout, Run, cell_size, packet
from pptrace.traces.perfetto.writer import Slices, begin_place, write, write_packets
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from pptrace.measured.diff import StepDiff
    from pptrace.measured.sides import Side
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.measurement import Source

__all__ = [
    "NAME",
    "Lateness",
    "Member",
    "counter_run",
    "difference_runs",
    "earliest_ns",
    "labels",
    "lateness",
    "manifest_json",
    "shifted",
    "write_bundle",
    "write_diff_trace",
    "write_rungs",
]

_ABREAST = 3
_STATE_CLEARED = 1
_SHARED_AXIS = "lateness"


def write_diff_trace(path: Path, findings: StepDiff, sides: Sequence[Side]) -> None:
    """Write both steps of a diff as one trace.

    Raises:
        OSError: the file cannot be written.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    head, uuids = Trace(), count(1)
    steps, start_ns = _aligned([side.timeline for side in sides], findings)
    named = [Names.of(step) for step in steps]
    texts = [*named[0].names, *named[1].names]
    named[1] = replace(named[1], name=named[1].name + np.int32(len(named[0].names)))
    runs: list[Run] = []
    _write_attributes(head, findings, segments=any(step.parts is not None for step in steps))
    first_row = process = 0
    for place, (step, names, label) in enumerate(zip(steps, named, labels(sides), strict=True)):
        tracks = Tracks(
            step, head, Hops.of(step), suffix=f" · {place + 1} {label}", place=place, abreast=_ABREAST,
            process=process, uuids=uuids,
        )  # fmt: skip
        tracks.write(set())
        process = tracks.process
        slices = Slices(step, np.array(tracks.lanes, dtype=np.int32), names, first_row)
        slices.columns["cause"] = PlainColumn(np.where(step.cause < 0, -1, step.cause + first_row))
        runs += slices.runs()
        first_row += len(step)
    late = lateness(findings)
    differences, counters = _more_tracks(tracks, max(step.placement.ranks for step in findings.steps))
    begins_ns = int(findings.steps[0].start_ns.min()) if len(findings.steps[0]) else 0
    write_rungs(head, tracks, findings, start_ns - begins_ns)
    spelt, slices_of_differences = difference_runs(findings, late, start_ns, differences, len(texts) + 1)
    runs += [*slices_of_differences, counter_run(late, start_ns, counters)]
    _write_interned(head, [*texts, *spelt])
    write_packets(path, head.SerializeToString(), sorted(runs, key=lambda run: run.place))


def labels(sides: Sequence[Side]) -> tuple[str, str]:
    """Return what tells two sides apart in a word: how they came about, else their order."""
    if sides[0].measured == sides[1].measured:
        return "first", "second"
    return ("measured", "simulated") if sides[0].measured else ("simulated", "measured")


def _aligned(timelines: Sequence[Timeline], findings: StepDiff) -> tuple[list[Timeline], int]:
    """Return both steps with their first computations at one time, and that time."""
    begins = [int(step.start_ns.min()) if len(step) else 0 for step in findings.steps]
    plain = [replace(one, counters=(), routes=None, why=None) for one in timelines]
    start = max(begin - earliest_ns(one) for begin, one in zip(begins, plain, strict=True))
    return [shifted(one, start - begin) for one, begin in zip(plain, begins, strict=True)], start


def _write_attributes(head: Trace, findings: StepDiff, *, segments: bool) -> None:
    attributes = head.packet.add().trace_attributes.attribute
    first, second = map(printable, findings.names)
    attributes.add(key=TITLE_KEY, string_value=f"{first} and {second}")
    attributes.add(key="pptrace.version", string_value=__version__)
    attributes.add(key="pptrace.first", string_value=first)
    attributes.add(key="pptrace.second", string_value=second)
    attributes.add(key="pptrace.first_ns", long_value=int(findings.step_ns.first.value))
    attributes.add(key="pptrace.second_ns", long_value=int(findings.step_ns.second.value))
    embedded = head.packet.add().extension_descriptor.extension_set
    embedded.ParseFromString(descriptor_set(links=False, segments=segments, why=False).SerializeToString())


def _more_tracks(tracks: Tracks, ranks: int) -> tuple[dict[int, int], dict[int, int]]:
    """Describe each rank's track of differences and its counter; return their numbers by rank."""
    digits = len(str(ranks - 1))
    differences, counters = {}, {}
    for rank in range(ranks):
        top = tracks.thread(f"rank {rank:0{digits}} · difference", rank * _ABREAST + 2)
        below = tracks.child(top, "lateness", 0)
        below.counter.unit_name = "ms"
        below.counter.y_axis_share_key = _SHARED_AXIS
        differences[rank], counters[rank] = top.uuid, below.uuid
    return differences, counters


def _write_interned(head: Trace, texts: Sequence[str]) -> None:
    packet = head.packet.add(trusted_packet_sequence_id=SEQUENCE, sequence_flags=_STATE_CLEARED)
    for iid, category in enumerate(CATEGORIES, 1):
        packet.interned_data.event_categories.add(iid=iid, name=category)
    packet.interned_data.event_categories.add(iid=DIFFERENCE_CATEGORY, name="difference")
    for iid, text in enumerate(texts, 1):
        packet.interned_data.event_names.add(iid=iid, name=printable(text))


_TIMESTAMP, _TRACK_UUID, _DOUBLE_COUNTER_VALUE = 8, 11, 44
"""Fields of TracePacket and TrackEvent, in perfetto/trace/track_event/track_event.proto."""
_VALUE_SIZE = 10
"""A tag of two bytes and a double."""
_BARELY_NS = 500
"""What is shown as 0.000 ms is no difference."""
_BEHIND_THE_REST, _BEHIND_SLICES = 6, 1 << 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """One value per matched computation, rank by rank in the second step's time; both steps start at 0."""

    rank: Int32s
    """The second step's rank."""
    start_ns: Int64s
    """When it starts in the second step."""
    end_ns: Int64s
    """When it ends there."""
    late_ns: Int64s
    """How much later it ends there than in the first; negative for earlier."""
    row: Int64s
    """Its position among the second step's computations."""

    def __len__(self) -> int:
        return int(self.rank.size)


def lateness(findings: StepDiff) -> Lateness:
    """Return how late each matched computation ends."""
    first, second = findings.steps
    i, j = findings.matched.first, findings.matched.second
    order = np.lexsort((second.start_ns[j], second.rank[j]))
    i, j = i[order], j[order]
    begins = [int(step.start_ns.min()) if len(step) else 0 for step in findings.steps]
    end = second.end_ns[j] - begins[1]
    return Lateness(
        rank=second.rank[j], start_ns=second.start_ns[j] - begins[1], end_ns=end,
        late_ns=end - (first.end_ns[i] - begins[0]), row=j,
    )  # fmt: skip


def difference_runs(
    findings: StepDiff, late: Lateness, shift_ns: int, tracks: Mapping[int, int], first_name: int
) -> tuple[list[str], list[Run]]:
    """Return the names of the slices that say how much later or earlier an action ends, and their runs.

    Args:
        findings: the diff.
        late: its lateness.
        shift_ns: when the steps start in the trace.
        tracks: the track of each rank's slices.
        first_name: the number of the first name.
    """
    chosen = (np.abs(late.late_ns) >= _BARELY_NS) & (late.end_ns > late.start_ns)
    micros, name = np.unique((late.late_ns[chosen] + 500) // 1000, return_inverse=True)
    names = [f"{value / 1000:+,.3f} ms" for value in micros.tolist()]
    step, rows = findings.steps[1], late.row[chosen]
    rank = late.rank[chosen]
    columns: dict[str, NDArray[np.integer[Any]]] = {
        "start": late.start_ns[chosen] + shift_ns,
        "end": late.end_ns[chosen] + shift_ns,
        "track": _numbers(rank, tracks),
        "name": name.astype(np.int64) + first_name,
        "category": np.full(rank.size, DIFFERENCE_CATEGORY, dtype=np.int8),
        "kind": step.kind[rows], "rank": rank, "stage": step.stage[rows], "microbatch": step.microbatch[rows],
    }  # fmt: skip
    if not rank.size:
        return [], []
    records = Records({key: PlainColumn(values) for key, values in columns.items()})
    every = np.arange(rank.size, dtype=np.int32)
    return names, [
        Run(place=0, layout=Layout(tuple(records.end())), rows=every, values=records.values),
        Run(
            place=begin_place(_BEHIND_THE_REST, lasting=True),
            layout=Layout(tuple(records.begin(every, leaving=0, ending=0))), rows=every, values=records.values,
        ),
    ]  # fmt: skip


def counter_run(late: Lateness, shift_ns: int, tracks: Mapping[int, int]) -> Run:
    """Return each rank's lateness in milliseconds, 0 at first and then as of the end of each action."""
    ranks = np.unique(late.rank)
    columns = {
        "at": np.concatenate([np.zeros(ranks.size, dtype=np.int64), late.end_ns]) + shift_ns,
        "track": _numbers(np.concatenate([ranks, late.rank]), tracks),
        "value": np.concatenate([np.zeros(ranks.size), late.late_ns / 1e6]).view(np.int64),
    }
    cells = [
        Cell("track", _TRACK_UUID, cell_size(1, int(columns["track"].max(initial=0)))),
        Cell("value", _DOUBLE_COUNTER_VALUE, _VALUE_SIZE, fixed=True),
    ]
    when = Cell("at", _TIMESTAMP, cell_size(1, int(columns["at"].max(initial=0))))

    def values(_layout: Layout, rows: Int32s) -> dict[str, Int64s]:
        return {name: column[rows] for name, column in columns.items()}

    return Run(
        place=_BEHIND_SLICES, layout=Layout(tuple(packet(COUNTER, when, cells))),
        rows=np.arange(columns["at"].size, dtype=np.int32), values=values,
    )  # fmt: skip


def _numbers(ranks: Int32s, tracks: Mapping[int, int]) -> Int64s:
    known, place = np.unique(ranks, return_inverse=True)
    return np.array([tracks[int(rank)] for rank in known], dtype=np.int64)[place]


_CATEGORY = "ladder"
_ABOVE_THE_RANKS = -1


def write_rungs(head: Trace, tracks: Tracks, findings: StepDiff, start_ns: int) -> None:
    """Write the ladder's tracks and slices, if there is a ladder.

    Args:
        head: the trace.
        tracks: hands out tracks.
        findings: the diff.
        start_ns: when the first step begins in the trace.
    """
    if not findings.ladder:
        return
    first_ns, second_ns = (int(side.value) for side in findings.step_ns)
    top = tracks.thread("ladder", _ABOVE_THE_RANKS)
    whole = f"{'first' if first_ns <= second_ns else 'second'} step {ms(min(first_ns, second_ns))}"
    _write_slice(head, top.uuid, [start_ns, start_ns + min(first_ns, second_ns)], whole)
    if first_ns != second_ns:
        more = change(findings.step_ns.change)
        _write_slice(head, top.uuid, sorted((start_ns + first_ns, start_ns + second_ns)), more)
    before_ns = first_ns
    for place, rung in enumerate(findings.ladder):
        if rung.reached_ns != before_ns:
            track = tracks.child(top, rung.name, place)
            ends = sorted((start_ns + before_ns, start_ns + rung.reached_ns))
            _write_slice(head, track.uuid, ends, f"{rung.name} {change(rung.change_ns)}")
        before_ns = rung.reached_ns


def _write_slice(head: Trace, track: int, ends_ns: Sequence[int], name: str) -> None:
    start_ns, end_ns = ends_ns
    begin = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=start_ns)
    begin.track_event.type, begin.track_event.track_uuid = BEGIN, track
    begin.track_event.name = printable(name)
    begin.track_event.categories.append(_CATEGORY)
    end = head.packet.add(trusted_packet_sequence_id=SEQUENCE, timestamp=end_ns)
    end.track_event.type, end.track_event.track_uuid = END, track


def shifted(timeline: Timeline, by_ns: int) -> Timeline:
    """Return a step with all its times later, its counters' too."""
    times = {name: getattr(timeline, name) + by_ns for name in ("enter_ns", "start_ns", "end_ns")}
    counters = tuple(replace(counter, at_ns=counter.at_ns + by_ns) for counter in timeline.counters)
    why = None if timeline.why is None else timeline.why.shifted(by_ns)
    return replace(timeline, counters=counters, why=why, **times)


def earliest_ns(timeline: Timeline) -> int:
    """Return the first time that a step holds, 0 at most."""
    counted = [int(counter.at_ns.min(initial=0)) for counter in timeline.counters]
    return min([0, int(timeline.enter_ns.min(initial=0)), *counted])


NAME = "perfetto_manifest.json"
_CLOCK = "BOOTTIME"
"""The clock of a Perfetto trace whose packets name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One trace of the archive."""

    path: str
    """Its name in the archive."""
    machine: str
    """Whose it is: files of one machine share processes."""
    offset_ns: int
    """What is added to its times."""
    has_clock: bool
    """Whether it has a clock of its own, as Perfetto's format does and Chrome JSON does not."""


def manifest_json(members: Sequence[Member], attributes: Mapping[str, str]) -> str:
    """Return the manifest's text.

    The first trace with a clock is what the others are placed against, else the first of all.
    """
    reference = next((one for one in members if one.has_clock), members[0])
    document: dict[str, Any] = {"version": 1}
    if reference.has_clock:
        document["trace_time"] = {"clock": _CLOCK, "file": reference.path}
    document["files"] = [_entry(one, reference) for one in members]
    document["attributes"] = dict(attributes)
    # A trace processor knows a manifest by how it begins.
    return json.dumps({"perfetto_manifest": document}, indent=1) + "\n"


def _entry(one: Member, reference: Member) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": one.path, "machine": {"name": one.machine}}
    if one is reference:
        return entry
    clocks: dict[str, Any] = {"clock": _CLOCK} if one.has_clock else {}
    clocks["sync_to"] = {"file": reference.path, **({"clock": _CLOCK} if reference.has_clock else {})}
    clocks["offset_ns"] = one.offset_ns - reference.offset_ns
    return {**entry, "clocks": clocks}


_MODE = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A file of the archive, and where it comes from."""

    member: Member
    """What the manifest says of it."""
    content: Path | Timeline
    """A file that is there, or a step that is written."""


def write_bundle(path: Path, findings: StepDiff, sides: Sequence[Side]) -> None:
    """Write both sides' traces as one tar.

    Raises:
        OSError: a file cannot be read or written.
    """
    parts = sorted(_parts(findings, sides), key=lambda part: part.member.path)
    first, second = findings.names
    about = {"pptrace.first": first, "pptrace.second": second, "pptrace.version": __version__}
    text = manifest_json([part.member for part in parts], about).encode()
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, NAME, io.BytesIO(text))
        for part in parts:
            with tempfile.TemporaryFile(dir=path.parent) as file:
                _fill(file, part.content, path)
                _add(archive, part.member.path, file)


def _parts(findings: StepDiff, sides: Sequence[Side]) -> Iterator[_Part]:
    """Yield all files, placed so that both steps' first computations coincide."""
    begins = [int(step.start_ns.min()) if len(step) else 0 for step in findings.steps]
    given = [_sources(side) for side in sides]
    # When, in its files' own times, each step begins; of a step that is written, it may be put anywhere.
    starts = [
        side.steps[side.chosen].begins_ns + begin - _earliest_zero_ns(side) if sources else None
        for side, sources, begin in zip(sides, given, begins, strict=True)
    ]
    steps = [_traced(side) if not sources else None for side, sources in zip(sides, given, strict=True)]
    needed = [begin - earliest_ns(step) for step, begin in zip(steps, begins, strict=True) if step is not None]
    start = max([*(one for one in starts if one is not None), *needed, 0])
    for number, (side, label) in enumerate(zip(sides, labels(sides), strict=True)):
        step, own = steps[number], starts[number]
        if step is not None:
            content = shifted(step, start - begins[number])
            member = Member(path=f"{label}.pftrace", machine=label, offset_ns=0, has_clock=True)
            yield _Part(member=member, content=content)
        elif own is not None:
            yield from _recorded(side, label, start - own)


def _recorded(side: Side, label: str, later_ns: int) -> Iterator[_Part]:
    """Yield a measured side's files, each once."""
    sources = _sources(side)
    zero = _earliest_zero_ns(side)
    names = _names([one.path for one in sources])
    shared = len(names) < len(sources)
    for one in sources:
        if one.path not in names:
            continue
        member = Member(
            path=f"{label}/{names.pop(one.path)}", machine=label if shared else f"{label} rank {one.rank}",
            offset_ns=one.origin_ns + _clock(side, one.rank) - zero + later_ns, has_clock=one.has_clock,
        )  # fmt: skip
        yield _Part(member=member, content=one.path)


def _sources(side: Side) -> tuple[Source, ...]:
    return side.measurement.sources if side.measured and side.measurement is not None else ()


def _clock(side: Side, rank: int) -> int:
    clocks = side.measurement.clocks if side.measurement is not None else ()
    return next((clock.offset_ns for clock in clocks if clock.rank == rank), 0)


def _earliest_zero_ns(side: Side) -> int:
    """Return the earliest time 0 of the side's files, by rank 0's clock: no file has to be put earlier then."""
    return min(one.origin_ns + _clock(side, one.rank) for one in _sources(side))


def _traced(side: Side) -> Timeline:
    return side.run.traced() if side.run is not None else side.timeline


def _names(paths: Iterable[Path]) -> dict[Path, str]:
    """Return each file's name in the archive: unpacked, not hidden (Perfetto skips those), and no two alike."""
    distinct = list(dict.fromkeys(paths))
    plain = [
        path.name.removesuffix(".gz").lstrip(".").encode(errors="replace").decode() or "trace" for path in distinct
    ]
    if len(set(plain)) < len(plain):
        plain = [f"{number}-{name}" for number, name in enumerate(plain)]
    return dict(zip(distinct, plain, strict=True))


def _fill(file: IO[bytes], content: Path | Timeline, beside: Path) -> None:
    if isinstance(content, Timeline):
        trace = beside.with_suffix(".step")
        try:
            write(content, trace, {})
            with trace.open("rb") as written:
                shutil.copyfileobj(written, file, 1 << 20)
        finally:
            trace.unlink(missing_ok=True)
        return
    # Of a file that ends in the middle, what could be read was read before.
    with content.open("rb") as raw, suppress(EOFError, zlib.error):
        shutil.copyfileobj(UnpackedFile(content, raw), file, 1 << 20)


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes]) -> None:
    """Add a member that tells nothing of who wrote it and when."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = file.seek(0, io.SEEK_END), _MODE
    file.seek(0)
    archive.addfile(entry, file)
