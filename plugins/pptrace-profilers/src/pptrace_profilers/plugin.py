"""Importers of measured traces, and the annotate command; light to import.

Formats are recognised by their first bytes, exactly enough for a folder of mixed formats. The reader of a format
is imported on first use.
"""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pptrace.plugin import CommandOffer, deferred, hookimpl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from pptrace.plugin import ImporterOffer, ImportRequest, Measurement
    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Recording

__all__ = ["pptrace_commands", "pptrace_importers"]


@hookimpl
def pptrace_importers() -> Iterable[ImporterOffer]:
    """Yield the importers, the general one last; the first importer that recognises a file reads it."""
    kineto = "Traces of PyTorch's profiler (Kineto), one file per rank."
    otel = "Spans of Megatron-LM (NeMo Lens): JSON lines, or OTLP's."
    yield _offer("pytorch", kineto, is_kineto, measure_kineto)
    yield _offer("nccl-profiler", "Files of NCCL's example profiler plugin.", is_nccl, measure_nccl)
    yield _offer("nccl-inspector", "Lines of NCCL Inspector.", is_inspector, measure_inspector)
    yield _offer("nsys", "SQLite exports of Nsight Systems.", is_nsys, measure_nsys)
    yield _offer("rocprofv3", "JSON output of rocprofv3.", is_rocprofv3, measure_rocprofv3)
    yield _offer("opentelemetry", otel, is_otel, measure_otel)
    yield _offer("xplane", "XPlane files of JAX and TensorFlow.", is_xplane, measure_xplane)
    yield _offer("pytorch-perfetto", "Perfetto traces of PyTorch's profiler.", is_pftrace, measure_pftrace)
    yield replace(_offer("chrome", "Any Chrome JSON, by --rules.", is_chrome, measure_chrome), advise=advise)


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Yield the command that prints a module of annotations."""
    yield CommandOffer(
        name="annotate",
        summary="Print a module that marks a pipeline's actions in PyTorch's profiler.",
        load=lambda: import_module("pptrace_profilers.annotation").command,
    )


_REPORTS = (".nsys-rep", ".qdrep")
_LOOKED_BYTES = 16 << 20
_TIMERS = (
    "is a log with Megatron-LM's timers, which are sums over iterations without actions: record a profile instead;"
    " pptrace annotate --framework megatron marks its actions"
)
_FLOPS = (
    "is the text of DeepSpeed's flops profiler, which is of one step without actions: record train_batch on every "
    "rank with torch.profiler.profile instead, and export_chrome_trace"
)
_OPERATORS = (
    "is an execution trace of PyTorch, whose operators have no times: give the trace of torch.profiler that was "
    "recorded beside it"
)
_REPORT = "is a report of Nsight Systems: nsys export --type sqlite {} makes the .sqlite file that is read"
_ADVICE = (
    (rb"times? across ranks \(ms\):", _TIMERS),
    (rb"DeepSpeed Flops Profiler -", _FLOPS),
    (rb'\A\s*\{\s*"schema"\s*:\s*"[\d.]+', _OPERATORS),
)
"""Patterns in a file's first bytes, and the sentence for each.

Sources: Megatron-LM's megatron/core/timers.py, DeepSpeed's profiling/flops_profiler/profiler.py, and PyTorch's
ExecutionTraceObserver. NVIDIA publishes no description of Nsight Systems' reports, so their names decide.
"""


def advise(path: Path) -> str:
    """Return what an unreadable file is and what to record or convert instead; empty for other files."""
    from pptrace.plugin import TraceError, UnpackedFile

    if path.name.lower().endswith(_REPORTS):
        return _REPORT.format(path.name)
    try:
        with UnpackedFile.open(path) as file:
            content = file.read(_LOOKED_BYTES)
    except TraceError:
        return ""
    return next((text for pattern, text in _ADVICE if re.search(pattern, content)), "")


def _offer(
    name: str, summary: str, recognises: Callable[[bytes], bool],
    measure: Callable[[Sequence[Path], ImportRequest], Measurement],
) -> ImporterOffer:  # fmt: skip
    from pptrace.plugin import ImporterOffer

    return ImporterOffer(name=name, summary=summary, recognises=lambda _, head: recognises(head), measure=measure)


_OURS = rb'\s*\{\s*"pptraceFormat"'
_EVENT = rb'\{\s*"(?:ph|name|cat|args|ts|pid|tid|dur|id)"\s*:'
_EVENTS = rb'"traceEvents"\s*:\s*\['
_PHASE = rb'"ph"\s*:\s*"'
_KINETO = rb'"(?:distributedInfo|deviceProperties)"\s*:'
_SCHEMA = rb'"schemaVersion"\s*:\s*\d'
_CATEGORY = (
    rb'"cat"\s*:\s*"(?:cpu_op|user_annotation|gpu_user_annotation|kernel|gpu_memcpy|cuda_runtime|cuda_driver|'
    rb'python_function|ac2g|Operator|Kernel|Runtime|Trace)"'
)
_NCCL = (
    rb'"cat"\s*:\s*"(?:GROUP_API|KERNEL_LAUNCH|COLL_API|P2P_API|COLL|P2P|PROXY|GROUP|CE_COLL)"\s*,'
    rb'\s*"ph"\s*:\s*"[be]"'
)
_INSPECTOR = rb'\{\s*"(?:header|dump_stats)"\s*:\s*\{'
_OTLP = rb'(?m)^\s*\{\s*"resource(?:Spans|Metrics|_metrics)"\s*:'
_SPAN = rb'(?m)^\s*\{\s*"name"\s*:'
_TRACE = rb'"(?:trace_id|traceId)"\s*:\s*"(?:0x)?[0-9a-f]{32}"'
_ROCPROFV3 = rb'\{\s*"rocprofiler-sdk-tool"\s*:\s*\['
_PLANE = rb"(?:\x08.{1,10})?\x12.{1,2}(?:/(?:host|device):|Task Environment)"
"""First fields of a plane: an id and a name."""
_NSYS = b"SQLite format 3\x00"
_PACKET_FIELDS = frozenset({1, 2, 3, 6, 8, 10, 11, 12, 13, 33, 35, 36, 41, 42, 58, 59, 60, 79, 89, 126})
"""First fields of packets (perfetto's trace_packet.proto)."""
_PPTRACE_WITHIN = 64
_PRINTABLE = 0x20
"""The first byte after the control characters."""


def is_kineto(head: bytes) -> bool:
    """Return whether a file is Chrome JSON of PyTorch's profiler."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith((b"{", b"[")) or re.match(_OURS, text) or is_nccl(head):
        return False
    if text.startswith(b"["):
        return bool(re.match(_EVENT, text[1:].lstrip()) and re.search(_CATEGORY, text))
    marks = (_SCHEMA, _KINETO, _CATEGORY)
    if re.search(_EVENTS, text):
        return any(re.search(mark, text) for mark in marks)
    return bool(re.search(_SCHEMA, text) and re.search(_KINETO, text))


def is_nccl(head: bytes) -> bool:
    """Return whether a file is of NCCL's example profiler plugin: a list of events with its categories."""
    return head.lstrip().startswith(b"[") and bool(re.search(_NCCL, head))


def is_inspector(head: bytes) -> bool:
    """Return whether a file has NCCL Inspector's lines."""
    marks = (b'"inspector_output_format_version"', b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')
    return bool(re.match(_INSPECTOR, head.lstrip())) and any(mark in head for mark in marks)


def is_nsys(head: bytes) -> bool:
    """Return whether a file is an SQLite database; the reader checks its tables."""
    return head.startswith(_NSYS)


def is_otel(head: bytes) -> bool:
    """Return whether a file has spans or metrics of OpenTelemetry; lines of a program may precede them."""
    return bool(re.search(_OTLP, head) or (re.search(_SPAN, head) and re.search(_TRACE, head)))


def is_pftrace(head: bytes) -> bool:
    """Return whether a file is a Perfetto trace from another program than pptrace."""
    if b"pptrace.format" in head[:_PPTRACE_WITHIN] or is_xplane(head):
        return False
    from pptrace.traces.perfetto.wire import read_varint

    packet = _first_message(head)
    if not packet:
        return False
    tag, _ = read_varint(head, packet)
    return tag >> 3 in _PACKET_FIELDS or head[1:2] == b"\x00"


def is_xplane(head: bytes) -> bool:
    """Return whether a file is of XPlane: a first plane that begins with an id and a name."""
    plane = _first_message(head)
    return bool(plane and re.match(_PLANE, head[plane:], re.DOTALL))


def _first_message(head: bytes) -> int:
    """Return the position of the content of a file's first message, which is in field 1; 0 for another file."""
    if head[:1] != b"\n" or _is_text(head[:256]):
        return 0
    from pptrace.traces.perfetto.wire import read_varint

    _, position = read_varint(head, 1)
    return position if 0 < position < len(head) else 0


def is_rocprofv3(head: bytes) -> bool:
    """Return whether a file is JSON of rocprofv3."""
    return bool(re.match(_ROCPROFV3, head.lstrip()))


def _is_text(head: bytes) -> bool:
    return not any(byte < _PRINTABLE and byte not in b"\t\r\n" for byte in head)


def is_chrome(head: bytes) -> bool:
    """Return whether a file is any other Chrome JSON, for a user's rules."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if re.match(_OURS, text) or is_kineto(head) or is_nccl(head):
        return False
    if text.startswith(b"["):
        return bool(re.match(_EVENT, text[1:].lstrip()) and re.search(_PHASE, text))
    return text.startswith(b"{") and bool(re.search(_EVENTS, text))


def measure_kineto(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the files of PyTorch's profiler, one per process; raises as ``measure_files``."""
    read = partial(deferred("pptrace_profilers.pytorch_process:read_kineto"), operators=request.operators)
    return _measure_files(read, paths, request, "PyTorch's profiler")


def measure_xplane(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read XPlane files, one per host; raises as ``measure_files``.

    Ranks are counted host after host, in the order of the files.
    """
    from pptrace_profilers.xplane import read_xplane

    ranks = 0

    def read(path: Path, rules: Rules) -> list[Recording]:
        nonlocal ranks
        recordings = read_xplane(path, rules, ranks)
        ranks = recordings[-1].rank + 1
        return recordings

    return _measure_files(read, paths, request, "XPlane")


def measure_nccl(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the files of NCCL's example profiler plugin, which have no actions; raises as ``read_nccl``."""
    from pptrace_profilers.measurement import measure_recordings
    from pptrace_profilers.nccl_profiler import read_nccl

    recordings, notes = read_nccl(paths)
    return measure_recordings(recordings, request, notes)


def measure_inspector(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read NCCL Inspector's lines, which have no actions; raises as ``read_inspector_run``."""
    from pptrace_profilers.measurement import measure_recordings
    from pptrace_profilers.nccl_inspector import read_inspector_run

    recordings, sizes, notes = read_inspector_run(paths)
    return replace(measure_recordings(recordings, request, notes), by_size=sizes)


def measure_otel(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read spans of Megatron-LM, with the job's layout from their attributes; raises as ``read_megatron``."""
    from pptrace_profilers.measurement import measure_recordings
    from pptrace_profilers.megatron_spans import read_megatron

    recordings, layout, notes = read_megatron(paths)
    return measure_recordings(recordings, replace(request, layout=request.layout or layout), notes)


_measure_files: Callable[..., Measurement] = deferred("pptrace_profilers.measurement:measure_files")
measure_chrome = partial(_measure_files, deferred("pptrace_profilers.chrome:read_chrome"))
measure_nsys = partial(_measure_files, deferred("pptrace_profilers.nsys:read_nsys"), profiler="Nsight Systems")
measure_pftrace = partial(
    _measure_files, deferred("pptrace_profilers.torch_perfetto:read_pftrace"), profiler="PyTorch's profiler"
)
measure_rocprofv3 = partial(
    _measure_files, deferred("pptrace_profilers.rocprofv3:read_rocprofv3"), profiler="rocprofv3"
)
