"""Both steps of a diff in one trace, and the archive of a diff.

Both steps start at the same time in the trace. A rank has three threads: its first step, its second step, and
slices and a counter with the delay of each action of the second step. The ladder is above the ranks. Its first
track has the shorter length and the difference; each further track has the change by one part.

The archive has recorded traces unchanged, with their original times, and simulated steps at the time of the
measured steps. Its manifest is https://perfetto.dev/docs/reference/perfetto-manifest, version 1, for trace
processors from v57. They reject compressed entries, so files are decompressed.
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import tempfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.config.limits import UnpackedFile
from pptrace.report.numbers import BARELY_NS, change, ms
from pptrace.sanitize import printable
from pptrace.timeline.timeline import Timeline
from pptrace.traces.perfetto.columns import Column, Names, Records
from pptrace.traces.perfetto.descriptors import (
    CATEGORY_NUMBERS,
    TITLE_KEY,
    Tracks,
    write_attributes,
    write_descriptor,
    write_names,
    write_slice,
)
from pptrace.traces.perfetto.wire import Cell, RecordRun
from pptrace.traces.perfetto.writer import Slices, columns_of, point_run, tracks_of, write, write_packets
from pptrace.traces.scene import Scene
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    from pptrace.measured.diff import StepDiff
    from pptrace.measured.sides import Side
    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.measurement import Source

_TRACKS_PER_RANK = 3


def write_diff_trace(path: Path, findings: StepDiff, sides: Sequence[Side]) -> None:
    """Write both steps of a diff as one trace.

    Raises:
        OSError: the file cannot be written.
    """
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

    head = Trace()
    steps, start_ns = _align([side.numbered_timeline for side in sides], findings)
    texts: list[str] = []
    runs: list[RecordRun] = []
    write_attributes(head, _attributes(findings))
    write_descriptor(head)
    tracks_of_steps: list[Tracks] = []
    first_row = 0
    for place, (step, label) in enumerate(zip(steps, labels(sides), strict=True)):
        scene = Scene(timeline=step, first_row=first_row)
        tracks = Tracks(
            scene, head, suffix=f" · {place + 1} {label}", place=place, tracks_per_rank=_TRACKS_PER_RANK,
            earlier=tracks_of_steps[-1] if place else None,
        )  # fmt: skip
        tracks.write()
        tracks_of_steps.append(tracks)
        names = Names.of(scene)
        names = replace(names, name=names.name + np.int32(len(texts)))
        texts += names.names
        slices = Slices(scene, np.array(tracks.lanes, dtype=np.int32), names)
        slices.columns["cause"] = Column.of(np.where(step.cause < 0, -1, step.cause + first_row))
        runs += slices.runs()
        first_row += len(step)
    late = lateness(findings)
    differences, counters = _difference_tracks(tracks, max(step.placement.ranks for step in findings.steps))
    _write_ladder(head, tracks, findings, start_ns - findings.steps[0].begin_ns)
    delays, difference_runs = _differences(findings, late, start_ns, differences, len(texts) + 1)
    runs += [*difference_runs, _lateness_run(late, start_ns, counters)]
    write_names(head, [*texts, *delays], ["difference"], names.correlations)
    write_packets(path, head.SerializeToString(), sorted(runs, key=lambda run: run.place))


def labels(sides: Sequence[Side]) -> tuple[str, str]:
    """Return one word per side: measured or simulated, else first and second."""
    if sides[0].measured == sides[1].measured:
        return "first", "second"
    return ("measured", "simulated") if sides[0].measured else ("simulated", "measured")


def _align(timelines: Sequence[Timeline], findings: StepDiff) -> tuple[list[Timeline], int]:
    """Return both steps with their first computations at the same time, and that time."""
    begins = [step.begin_ns for step in findings.steps]
    plain = [replace(step, counters=(), routes=None, why=None) for step in timelines]
    start = max(begin - earliest_ns(step) for begin, step in zip(begins, plain, strict=True))
    return [shifted(step, start - begin) for step, begin in zip(plain, begins, strict=True)], start


def _attributes(findings: StepDiff) -> dict[str, str | int]:
    first, second = map(printable, findings.names)
    return {
        TITLE_KEY: f"{first} and {second}",
        "pptrace.version": __version__,
        "pptrace.first": first,
        "pptrace.second": second,
        "pptrace.first_ns": int(findings.step_ns.first.value),
        "pptrace.second_ns": int(findings.step_ns.second.value),
    }


def _difference_tracks(tracks: Tracks, ranks: int) -> tuple[dict[int, int], dict[int, int]]:
    """Describe the difference track and the counter of each rank; return their ids by rank."""
    digits = len(str(ranks - 1))
    differences, counters = {}, {}
    for rank in range(ranks):
        top = tracks.thread(f"rank {rank:0{digits}} · difference", rank * _TRACKS_PER_RANK + 2)
        differences[rank], counters[rank] = top.uuid, tracks.counter(top, "lateness", "ms", 0, "lateness")
    return differences, counters


_DOUBLE_COUNTER_VALUE = 44
"""A field of TrackEvent, in perfetto/trace/track_event/track_event.proto."""
_VALUE_SIZE = 10
"""A tag of two bytes and a double."""
_AFTER_ACTIONS = 6


class Lateness(Struct, frozen=True, kw_only=True):
    """One value per matched computation, by rank, then start in the second step; both steps start at 0."""

    rank: Int32s
    """The second step's rank."""
    start_ns: Int64s
    """Its start in the second step."""
    end_ns: Int64s
    """Its end in the second step."""
    late_ns: Int64s
    """The delay of its end against the first step; negative for earlier."""
    row: Int64s
    """Its position among the second step's computations."""


def lateness(findings: StepDiff) -> Lateness:
    """Return the delay of each matched computation."""
    first, second = findings.steps
    i, j = findings.matched.first, findings.matched.second
    order = np.lexsort((second.start_ns[j], second.rank[j]))
    i, j = i[order], j[order]
    end_ns = second.end_ns[j] - second.begin_ns
    return Lateness(
        rank=second.rank[j], start_ns=second.start_ns[j] - second.begin_ns, end_ns=end_ns,
        late_ns=end_ns - (first.end_ns[i] - first.begin_ns), row=j,
    )  # fmt: skip


def _differences(
    findings: StepDiff, late: Lateness, shift_ns: int, tracks: Mapping[int, int], first_name: int
) -> tuple[list[str], list[RecordRun]]:
    """Return the names of the slices of delays, numbered from ``first_name``, and their runs.

    The steps start at ``shift_ns``; ``tracks`` has a track for each rank.
    """
    chosen = (np.abs(late.late_ns) >= BARELY_NS) & (late.end_ns > late.start_ns)
    micros, name = np.unique((late.late_ns[chosen] + 500) // 1000, return_inverse=True)
    step, rows, rank = findings.steps[1], late.row[chosen], late.rank[chosen]
    columns = columns_of({
        "start": late.start_ns[chosen] + shift_ns, "end": late.end_ns[chosen] + shift_ns,
        "track": tracks_of(rank, tracks), "name": name.astype(np.int64) + first_name,
        "category": np.full(rank.size, CATEGORY_NUMBERS["difference"], dtype=np.int8),
        "kind": step.kind[rows], "rank": rank, "stage": step.stage[rows], "microbatch": step.microbatch[rows],
    })  # fmt: skip
    runs = list(Records(columns).runs(np.arange(rank.size, dtype=np.int32), _AFTER_ACTIONS))
    return [f"{value / 1000:+,.3f} ms" for value in micros.tolist()], runs


def _lateness_run(late: Lateness, shift_ns: int, tracks: Mapping[int, int]) -> RecordRun:
    """Return the counter of delays in milliseconds: 0 at the start, then one value per end of an action."""
    ranks = np.unique(late.rank)
    return point_run(
        np.concatenate([np.zeros(ranks.size, dtype=np.int64), late.end_ns]) + shift_ns,
        tracks_of(np.concatenate([ranks, late.rank]), tracks),
        np.concatenate([np.zeros(ranks.size), late.late_ns / 1e6]).view(np.int64),
        Cell("value", _DOUBLE_COUNTER_VALUE, _VALUE_SIZE, fixed=True),
    )


_LADDER = "ladder"
_ABOVE_THE_RANKS = -1


def _write_ladder(head: Trace, tracks: Tracks, findings: StepDiff, start_ns: int) -> None:
    """Write the ladder's tracks and slices, if there is a ladder; the first step starts at ``start_ns``."""
    if not findings.ladder:
        return
    first_ns, second_ns = (int(side.value) for side in findings.step_ns)
    top = tracks.thread(_LADDER, _ABOVE_THE_RANKS)
    shorter_ns, longer_ns = sorted((first_ns, second_ns))
    shorter_name = f"{'first' if first_ns <= second_ns else 'second'} step {ms(shorter_ns)}"
    write_slice(head, top.uuid, (start_ns, start_ns + shorter_ns), shorter_name, _LADDER)
    if first_ns != second_ns:
        change_name = change(findings.step_ns.change)
        write_slice(head, top.uuid, (start_ns + shorter_ns, start_ns + longer_ns), change_name, _LADDER)
    before_ns = first_ns
    for place, rung in enumerate(findings.ladder):
        if rung.reached_ns != before_ns:
            track = tracks.child(top, rung.name, place)
            low_ns, high_ns = sorted((start_ns + before_ns, start_ns + rung.reached_ns))
            write_slice(head, track.uuid, (low_ns, high_ns), f"{rung.name} {change(rung.change_ns)}", _LADDER)
        before_ns = rung.reached_ns


def shifted(timeline: Timeline, by_ns: int) -> Timeline:
    """Return a step with all times, including counters, moved by ``by_ns``."""
    times = {name: getattr(timeline, name) + by_ns for name in ("enter_ns", "start_ns", "end_ns")}
    counters = tuple(replace(counter, at_ns=counter.at_ns + by_ns) for counter in timeline.counters)
    why = None if timeline.why is None else timeline.why.shifted(by_ns)
    return replace(timeline, counters=counters, why=why, **times)


def earliest_ns(timeline: Timeline) -> int:
    """Return the first time of a step, or 0 if that is earlier."""
    counter_starts_ns = [int(counter.at_ns.min(initial=0)) for counter in timeline.counters]
    return min([0, int(timeline.enter_ns.min(initial=0)), *counter_starts_ns])


NAME = "perfetto_manifest.json"
_CLOCK = "BOOTTIME"
"""The default clock of packets in Perfetto traces."""


_MODE = 0o644


class _Member(Struct, frozen=True, kw_only=True):
    """One trace of the archive."""

    path: str
    """Its name in the archive."""
    machine: str
    """Its machine; files of the same machine share processes."""
    offset_ns: int
    has_clock: bool
    """Whether the file names its clock, as in Perfetto's format; false for Chrome JSON."""
    content: Path | Timeline
    """An existing file, or a step to write."""


def write_bundle(path: Path, findings: StepDiff, sides: Sequence[Side]) -> None:
    """Write the traces of both sides into a tar file.

    Raises:
        OSError: a file cannot be read or written.
    """
    members = sorted(_members(findings, sides), key=lambda member: member.path)
    first, second = findings.names
    about = {"pptrace.first": first, "pptrace.second": second, "pptrace.version": __version__}
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
        _add(archive, NAME, io.BytesIO(_manifest(members, about).encode()))
        for member in members:
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                content = Path(folder) / "content"
                _write_content(content, member.content)
                with content.open("rb") as file:
                    _add(archive, member.path, file)


def _manifest(members: Sequence[_Member], attributes: Mapping[str, str]) -> str:
    """Return the text of the manifest; its reference is the first trace with a clock, else the first trace."""
    reference = next((member for member in members if member.has_clock), members[0])
    clock = {"clock": _CLOCK} if reference.has_clock else {}
    files: list[dict[str, Any]] = []
    for member in members:
        files.append({"path": member.path, "machine": {"name": member.machine}})
        if member is not reference:
            files[-1]["clocks"] = {
                **({"clock": _CLOCK} if member.has_clock else {}),
                "sync_to": {"file": reference.path, **clock},
                "offset_ns": member.offset_ns - reference.offset_ns,
            }
    trace_time = {"trace_time": {**clock, "file": reference.path}} if clock else {}
    # Trace processors recognize a manifest by its first key.
    document = {"version": 1, **trace_time, "files": files, "attributes": dict(attributes)}
    return json.dumps({"perfetto_manifest": document}, indent=1) + "\n"


def _members(findings: StepDiff, sides: Sequence[Side]) -> Iterator[_Member]:
    """Yield all files, with offsets that align the first computations of both steps."""
    contents = [
        None if _sources(side) else side.run.traced() if side.run is not None else side.timeline for side in sides
    ]
    begins_ns = [step.begin_ns for step in findings.steps]
    # The earliest start of a side's computations; a recorded side is at the time of its files.
    starts_ns = [
        begin_ns - earliest_ns(content)
        if content is not None
        else side.steps[side.chosen].begins_ns + begin_ns - _earliest_zero_ns(side)
        for side, content, begin_ns in zip(sides, contents, begins_ns, strict=True)
    ]
    start_ns = max(0, *starts_ns)
    for index, (side, label, content) in enumerate(zip(sides, labels(sides), contents, strict=True)):
        if content is not None:
            step = shifted(content, start_ns - begins_ns[index])
            yield _Member(path=f"{label}.pftrace", machine=label, offset_ns=0, has_clock=True, content=step)
        else:
            yield from _recorded_members(side, label, start_ns - starts_ns[index])


def _recorded_members(side: Side, label: str, later_ns: int) -> Iterator[_Member]:
    """Yield the files of a measured side, each once."""
    sources, offsets_ns = _sources(side), side.clock_offsets_ns
    zero = _earliest_zero_ns(side)
    names = _names([source.path for source in sources])
    shared = len(names) < len(sources)
    for source in sources:
        if source.path not in names:
            continue
        yield _Member(
            path=f"{label}/{names.pop(source.path)}", machine=label if shared else f"{label} rank {source.rank}",
            offset_ns=source.origin_ns + offsets_ns.get(source.rank, 0) - zero + later_ns,
            has_clock=source.has_clock, content=source.path,
        )  # fmt: skip


def _sources(side: Side) -> tuple[Source, ...]:
    return side.measurement.sources if side.measured and side.measurement is not None else ()


def _earliest_zero_ns(side: Side) -> int:
    """Return the earliest time 0 of the files of a side, in time of rank 0."""
    offsets_ns = side.clock_offsets_ns
    return min(source.origin_ns + offsets_ns.get(source.rank, 0) for source in _sources(side))


def _names(paths: Iterable[Path]) -> dict[Path, str]:
    """Return unique names in the archive, without ``.gz`` and leading dots; Perfetto skips hidden files."""
    distinct = list(dict.fromkeys(paths))
    plain = [
        path.name.removesuffix(".gz").lstrip(".").encode(errors="replace").decode() or "trace" for path in distinct
    ]
    if len(set(plain)) < len(plain):
        plain = [f"{number}-{name}" for number, name in enumerate(plain)]
    return dict(zip(distinct, plain, strict=True))


def _write_content(path: Path, content: Path | Timeline) -> None:
    """Write a step, or the unpacked content of a file."""
    if isinstance(content, Timeline):
        write(content, path, {})
        return
    # A truncated file was read up to its end before.
    with path.open("wb") as file, content.open("rb") as raw, suppress(EOFError, zlib.error):
        shutil.copyfileobj(UnpackedFile(content, raw), file, 1 << 20)


def _add(archive: tarfile.TarFile, name: str, file: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = file.seek(0, io.SEEK_END), _MODE
    file.seek(0)
    archive.addfile(entry, file)
