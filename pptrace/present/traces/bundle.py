"""The files of both sides in one archive that Perfetto opens as one timeline.

What was measured is there as the profiler wrote it; what was simulated is a trace of ours. Every measured file
keeps its own times; a simulated step is written at the time of the measured one.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from pptrace.export.perfetto.writer import write
from pptrace.limits.reading import UnpackedFile
from pptrace.present.traces.manifest import NAME, Member, manifest_json
from pptrace.present.traces.shifted import earliest_ns, shifted
from pptrace.present.traces.together import labels
from pptrace.timeline.timeline import Timeline
from pptrace.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from pptrace.analysis.diff.step_diff import StepDiff
    from pptrace.analysis.steps.sides import Side
    from pptrace.timeline.measurement import Source

__all__ = ["write_bundle"]

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
