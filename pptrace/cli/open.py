"""``pptrace open``: open a trace, or a part of it, in the Perfetto UI."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import sys
import zlib
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, cast

import click
from msgspec import Struct
from msgspec.structs import replace

from pptrace.cli import viewer
from pptrace.cli.viewer import HOST, PUBLIC_PORT, PUBLIC_UI, Server, Site
from pptrace.config.limits import UnpackedFile
from pptrace.errors import PptraceError, TraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pptrace.network.cluster import Layout
    from pptrace.run.simulated_step import Replicas
    from pptrace.timeline.timeline import Timeline

_MEGABYTE = 1_000_000
_HEAD_BYTES = 4096
_EXAMPLES = """\b
pptrace open step.pftrace
pptrace open run/
pptrace open job.pftrace --gpu 12345
pptrace open job.pftrace --only ranks=0,7 --only microbatches=0:32
pptrace open step.json.gz --ui perfetto/ui/out/dist
"""


@click.command("open", epilog=_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--ui", type=click.Path(path_type=Path), metavar="DIR", help="Folder of a built Perfetto UI.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PUBLIC_PORT,
    show_default=True,
    help=f"Port to serve on; other than {PUBLIC_PORT} only with --ui, 0 for any free one.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="Give up after this long without a request.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option(
    "--only",
    metavar="PART",
    multiple=True,
    help="Show a part of a trace that pptrace wrote: ranks=0,7 or microbatches=0:32.",
)
@click.option("--gpu", type=click.IntRange(min=0), metavar="N", help="The rank that is GPU N, and its peers.")
@click.option("--replica", type=click.IntRange(min=0), metavar="N", help="Replica N, where replicas differ.")
@click.option(
    "--overview/--whole", default=None, help="Utilisation of ranks over time; the default for large traces."
)
def command(file: Path, ui: Path | None, port: int, timeout_s: int, *, no_browser: bool, **part: Any) -> None:
    """Open FILE, a Perfetto (.pftrace) or Chrome JSON trace, also with .gz, in the Perfetto UI.

    Serves this file, to this machine only, until the UI has fetched it or Ctrl-C is pressed. The address has a
    secret token. The traces in a folder, one per rank, open as one trace of the median step.
    """
    with open_part(file, PartRequest(**part), _say) as trace:
        check(trace)
        _check_ui(ui, port)
        is_pptrace_trace = _is_pptrace_trace(trace)
        # a trace of pptrace is one step, which fills the default view
        view = None if is_pptrace_trace else marked_step(trace)
        site = Site(trace=trace, ui=ui, arranged=is_pptrace_trace, view=view)
        _serve(file, site, port, timeout_s, no_browser=no_browser)


def _serve(file: Path, site: Site, port: int, timeout_s: int, *, no_browser: bool) -> None:
    """Serve a site until the UI has fetched ``file``."""
    ui = site.ui
    with Server(site, port) as server:
        address = site.page(server.port)
        click.echo(address)
        sys.stdout.flush()
        _say(f"serving {file} on {HOST}:{server.port} until fetched, or {timeout_s} s without a request")
        _show(address, server.port, public=ui is None, no_browser=no_browser)
        if not server.run(timeout_s):
            message = (
                f"{file}: nothing fetched it in {timeout_s} s; run again and open the address, or raise --timeout"
            )
            if ui is None:
                message += f" (allow {PUBLIC_UI} to reach this device where the browser asks;"
                message += " Safari refuses, except with --ui)"
            raise PptraceError(message)
        _say(f"fetched {file} ({site.trace.stat().st_size / _MEGABYTE:,.1f} MB); stopped serving it")


def _check_ui(ui: Path | None, port: int) -> None:
    if ui is None and port != PUBLIC_PORT:
        raise PptraceError(
            f"--port {port} needs --ui DIR: {PUBLIC_UI} may fetch from port {PUBLIC_PORT} of this machine only"
        )
    if ui is not None and not (ui / "index.html").is_file():
        raise PptraceError(f"{ui}: there is no index.html; --ui takes the folder of a built Perfetto UI")


def _show(address: str, port: int, *, public: bool, no_browser: bool) -> None:
    def explain() -> None:
        _say("open the address above in a browser here; from another machine, first run there:")
        _say(f"  {viewer.forward_command(port)}")

    if no_browser or not viewer.has_display(os.environ):
        explain()
        return
    viewer.open_browser(address, explain)
    if public:
        _say(f"if the browser asks whether {PUBLIC_UI} may reach this device, allow it")


def _say(line: str) -> None:
    click.echo(line, err=True)


_LARGE_BYTES = 300_000_000
"""Size above which the UI opens a trace slowly or not at all."""
_GZIP_RATIO = 6
"""Approximate compression ratio of gzip for a trace."""
_FEW = 8
_REPLICAS = 64
"""Maximum number of different replicas in an overview."""


class PartRequest(Struct, frozen=True, kw_only=True):
    """The requested part of a trace."""

    only: tuple[str, ...] = ()
    """Ranks and microbatches in the syntax of ``--only``."""
    gpu: int | None = None
    """A GPU of the job; the part is its rank and the ranks that exchange messages with it."""
    replica: int | None = None
    """A replica of a job whose replicas differ, from 0; None for the GPU's replica, or the trace's replica."""
    overview: bool | None = None
    """Whether to open an overview; None to open it only for a large trace."""

    @property
    def is_whole_trace(self) -> bool:
        """Whether no part is requested."""
        return not self.only and self.gpu is None and self.replica is None and not self.overview


@contextmanager
def open_part(file: Path, request: PartRequest, say: Callable[[str], None]) -> Iterator[Path]:
    """Yield a temporary trace with the requested part of a file, or of a folder with a trace per rank.

    Raises:
        PptraceError: the trace cannot be read, or does not have the requested part.
    """
    if not file.is_dir():
        if request.overview is None and request.is_whole_trace and _is_large(file) and _is_pptrace_trace(file):
            megabytes = file.stat().st_size / 1e6
            say(f"{file} has {megabytes:,.0f} MB: here is its overview; --only ranks=0,1 shows ranks,"
                " --whole all of it")  # fmt: skip
        elif request.is_whole_trace:
            yield file
            return
    timeline = _read(file)
    with TemporaryDirectory() as folder:
        trace = Path(folder, f"{file.resolve().name.split('.')[0]}.pftrace")
        _write(timeline, trace, file, request, say)
        yield trace


def _write(timeline: Timeline, trace: Path, file: Path, request: PartRequest, say: Callable[[str], None]) -> None:
    from pptrace.timeline.trim import parse_only, trim
    from pptrace.traces import perfetto

    title = file.resolve().name
    kept = parse_only([part for text in request.only for part in text.split()])
    ranks = kept.ranks
    job = _replicas(timeline, file)
    timeline = _select_replica(timeline, job, request, file, say)
    if request.gpu is not None:
        rank, description = _rank_of_gpu(timeline, request.gpu, file, job)
        title = f"{title}: {description}"
        say(description)
        ranks = tuple(sorted({rank, *_partners(timeline, rank), *(ranks or ())}))
    if request.only or request.gpu is not None:
        perfetto.write(trim(timeline, ranks, kept.microbatches), trace, {"title": title})
        return
    if request.overview or (request.replica is None and not file.is_dir()):
        from pptrace.traces.perfetto.writer import write_overview

        write_overview(timeline, trace, f"{title}: overview", _rank_descriptions(timeline), _named_replicas(job))
        return
    perfetto.write(timeline, trace, {"title": title})


def _replicas(timeline: Timeline, file: Path) -> Replicas | None:
    """Return the replicas of the job's configuration; None where replicas are equal or measured."""
    configuration = timeline.provenance.get("configuration")
    if not isinstance(configuration, dict) or _layout(timeline) is None:
        return None
    from pptrace.run.simulated_step import replicas_of

    try:
        return replicas_of(configuration)
    except PptraceError as error:
        message = f"{file}: its replicas differ, and its configuration cannot be simulated here: {error}"
        raise PptraceError(" ".join(message.split())) from error


def _select_replica(
    timeline: Timeline, job: Replicas | None, request: PartRequest, file: Path, say: Callable[[str], None]
) -> Timeline:
    """Return the re-simulated requested replica; the trace itself if no replica is requested."""
    replica, layout = request.replica, _layout(timeline)
    if job is None:
        if replica is not None:
            raise PptraceError(f"{file}: --replica {replica}: its replicas do not differ; leave it out")
        return timeline
    if request.gpu is not None and layout is not None and request.gpu < layout.gpus:
        of_gpu = layout.place(request.gpu)["dp"]
        if replica not in {None, of_gpu}:
            raise PptraceError(f"--replica {replica}: GPU {request.gpu} is in replica {of_gpu}; name one of them")
        replica = of_gpu
    if replica is None:
        return timeline
    if replica >= len(job.kind_of):
        raise PptraceError(f"--replica {replica}: the job has replicas 0 to {len(job.kind_of) - 1}")
    run = job.run(replica)
    say(run.prepared.workload.notes[-1])
    return run.traced()


def _named_replicas(job: Replicas | None) -> Iterator[tuple[str, Timeline]]:
    """Yield the titles and timelines of an overview's replicas; equal replicas share a timeline."""
    from pptrace.timeline.critical_path import why

    for numbers, run in job.runs(_REPLICAS) if job else ():
        yield (
            f"replica{'s' * (len(numbers) != 1)} {_format_numbers(numbers)}",
            replace(run.timeline, why=why(run.timeline)),
        )


def _format_numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_FEW])) + (f", … {numbers[-1]}" if len(numbers) > _FEW else "")


def _is_large(file: Path) -> bool:
    is_compressed = file.suffix == ".gz"
    return file.is_file() and file.stat().st_size * (_GZIP_RATIO if is_compressed else 1) > _LARGE_BYTES


def _is_pptrace_trace(file: Path) -> bool:
    from pptrace.traces import perfetto

    with UnpackedFile.open(file) as content:
        return perfetto.recognises(file, content.read(_HEAD_BYTES))


def _read(file: Path) -> Timeline:
    from pptrace.cli.options import read
    from pptrace.measured.dependencies import explain_waits
    from pptrace.measured.sides import measured_side
    from pptrace.timeline.measurement import ImportRequest

    measurement, measured = read([file], ImportRequest())
    return explain_waits(measured_side(measurement, str(file), "median", measured=measured).numbered_timeline)


def _layout(timeline: Timeline) -> Layout | None:
    """Return the layout in the trace's configuration; None if it has no valid layout."""
    from pptrace.config.schema import Parallel
    from pptrace.run.inputs import parallel_layout

    configuration = timeline.provenance.get("configuration")
    parallel = configuration.get("parallel") if isinstance(configuration, dict) else None
    if not isinstance(parallel, dict) or parallel.get("pp") != timeline.placement.ranks:
        return None
    with suppress(TypeError, ValueError):  # a trace may have invalid values
        return parallel_layout(Parallel.model_validate(parallel))
    return None


def _rank_of_gpu(timeline: Timeline, gpu: int, file: Path, job: Replicas | None) -> tuple[int, str]:
    layout = _layout(timeline)
    if layout is None:
        raise PptraceError(f"{file}: does not contain the GPUs of its ranks; name one that pptrace simulate wrote")
    if not 0 <= gpu < layout.gpus:
        raise PptraceError(f"--gpu {gpu}: the job has the GPUs 0 to {layout.gpus - 1}")
    process = layout.place(gpu)
    rank = process["pp"]
    replicas = layout.rank_grid(rank).size
    if job is not None:
        replicas = replicas // layout.dp * int((job.kind_of == job.kind_of[process["dp"]]).sum())
    position = ", ".join(f"{axis} {index}" for axis, index in process.items())
    text = f"GPU {gpu} is {position}: rank {rank}"
    return rank, f"{text}, which represents {replicas:,} GPUs that do the same" if replicas > 1 else text


def _partners(timeline: Timeline, rank: int) -> set[int]:
    """Return the ranks with which a rank exchanges messages."""
    edges = timeline.placement.edges.tolist()
    hosts = [row for ranks in timeline.placement.pass_ranks for row in ranks.tolist()]
    partners = {
        row[stage] for row in hosts for edge in edges for stage in edge if rank in (row[edge[0]], row[edge[1]])
    }
    return partners & set(timeline.lane_rank.tolist())


def _rank_descriptions(timeline: Timeline) -> Mapping[int, str]:
    layout = _layout(timeline)
    descriptions = {}
    for rank in sorted(set(timeline.lane_rank.tolist())):
        stages = timeline.placement.stages_of(rank)
        descriptions[rank] = f"stage{'s' * (len(stages) != 1)} {', '.join(map(str, stages))}"
        if layout is not None:
            members, module = sorted(layout.rank_grid(rank).ravel().tolist()), ""
            if rank < layout.first_rank:
                module = f" of the {layout.module(rank).name}"
            descriptions[rank] += f"{module}; {len(members):,} GPUs: {_format_numbers(members)}"
    return descriptions


_ACCEPTED = "a Perfetto trace (.pftrace) or a Chrome JSON trace (.json), either also with .gz"
_BOM = b"\xef\xbb\xbf"
_CHUNK_BYTES = 1 << 20
_EVENTS = b'"traceEvents"'
_PHASE = b'"ph"'
"""Key of every Chrome event, in an object or in a bare array."""
_PACKET = 0x0A
"""The tag of ``Trace.packet``, the only field of Perfetto's outermost message."""
_WIRE_TYPES = (0, 1, 2, 5)


def check(path: Path) -> None:
    """Check that the UI can open a trace.

    Raises:
        TraceError: the file is missing, not a regular file, unreadable, empty, damaged or not a trace.
    """
    try:
        _require_file(path)
        with path.open("rb") as stream:
            file = cast("IO[bytes]", UnpackedFile(path, stream))
            head = file.read(_CHUNK_BYTES)
            if not head:
                raise TraceError(f"is empty; expected {_ACCEPTED}", file=path)
            if not (_is_perfetto(head) or _is_chrome_json(head, file)):
                raise TraceError(f"is not a trace; expected {_ACCEPTED}", file=path)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError("is a truncated or damaged gzip file; write it again", file=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read: {error.strerror or error}", file=path) from None


def _require_file(path: Path) -> None:
    if path.is_dir():
        raise TraceError("is a folder; name a file in it", file=path)
    if not path.exists():
        raise TraceError("no such file", file=path)
    if not path.is_file():
        raise TraceError("is not a regular file; save it to one first", file=path)


def _is_perfetto(head: bytes) -> bool:
    """Return whether ``head`` consists of packets, of which the last may be truncated."""
    from pptrace.traces.perfetto.wire import read_varint

    offset = 0
    while offset < len(head):
        if head[offset] != _PACKET:
            return False
        size, start = read_varint(head, offset + 1)
        if start == 0:
            return offset > 0 and len(head) == _CHUNK_BYTES
        if size and start < len(head) and (head[start] & 7 not in _WIRE_TYPES or head[start] < 1 << 3):
            return False  # no tag of a field
        offset = start + size
    return offset == len(head) or len(head) == _CHUNK_BYTES


def _is_chrome_json(head: bytes, rest: IO[bytes]) -> bool:
    text = head.removeprefix(_BOM).lstrip()
    if text.startswith(b"["):
        return text[1:].lstrip().startswith(b"{") and _PHASE in text
    window = head if text.startswith(b"{") else b""
    while window and _EVENTS not in window:  # a profiler may write megabytes about its job before the events
        chunk = rest.read(_CHUNK_BYTES)
        window = window[1 - len(_EVENTS) :] + chunk if chunk else b""
    return bool(window)


_MARK = re.compile(rb'"ProfilerStep#\d+"')
_WORD = b'"ProfilerStep#'
_EVENT_BYTES = 2048
"""Maximum length of an event's text before and after its name; longer events are not marks."""
_MOST_MARKS = 50_000
"""Maximum number of marks: a profiler keeps some hundreds of steps at most, on each rank of a file."""
_NS_PER_US = 1000
_MOST_US = 2**63 // _NS_PER_US
"""Upper bound of times in a trace processor's columns."""
_DECODER = json.JSONDecoder(parse_float=Decimal)
"""Decodes times as decimals: times since 1970 have more digits than floats."""


def marked_step(path: Path) -> tuple[int, int] | None:
    """Return begin and end of the marked step of median length, in nanoseconds of the file's clock.

    Marks of one name, on several ranks or on a device, are one step. Returns None if the file has no marks or
    cannot be read to its end.
    """
    steps: dict[str, tuple[int, int]] = {}
    with suppress(TraceError):
        for name, begin, end in _marks(path):
            first, last = steps.get(name, (begin, end))
            steps[name] = min(first, begin), max(last, end)
        by_length = sorted(steps.values(), key=lambda step: step[1] - step[0])
        return by_length[(len(by_length) - 1) // 2] if by_length else None
    return None


def _marks(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield each mark's name, begin and end in ns; a mark at the boundary of two chunks may occur twice."""
    with UnpackedFile.open(path) as file:
        window, remaining = b"", _MOST_MARKS
        while remaining > 0 and (chunk := file.read(_CHUNK_BYTES)):
            window = window[-3 * _EVENT_BYTES :] + chunk
            matches = [*islice(_MARK.finditer(window), remaining)] if _WORD in window else []
            remaining -= len(matches)
            yield from (mark for match in matches if (mark := _mark(window, match.start())))


def _mark(window: bytes, offset: int) -> tuple[str, int, int] | None:
    """Return name, begin and end in ns of the event around a name; None unless it is complete with a duration."""
    brace = window.rfind(b"{", max(0, offset - _EVENT_BYTES), offset)
    if brace < 0:
        return None
    try:
        text = window[brace : offset + _EVENT_BYTES].decode(errors="replace")
        event, _ = _DECODER.raw_decode(text)
        begin_us, duration_us, name = event["ts"], event["dur"], str(event["name"])
        if not (0 <= begin_us < _MOST_US and 0 < duration_us < _MOST_US):
            return None
    except (ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        return None
    # a view that leaves the trace by a nanosecond is refused, so round inwards
    begin_ns, duration_ns = begin_us * _NS_PER_US, duration_us * _NS_PER_US
    return name, math.ceil(begin_ns), math.floor(begin_ns) + math.floor(duration_ns)
