"""JSON output of rocprofv3 (ROCprofiler-SDK): kernels, copies, HIP calls and ROCTx ranges of a process.

Source: ROCprofiler-SDK's rocprofv3-schema.json. Times are nanoseconds. The correlation id of a kernel is that of
its HIP call. A ROCTx range has its text under its correlation id. HIP copies and fills memory with kernels of its
own (``__amd_rocclr_copyBuffer``), too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pptrace.plugin import TraceError, UnpackedFile, check_events
from pptrace_profilers.events import EventBuilder
from pptrace_profilers.pytorch_process import recording_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Recording

_COPY = re.compile(r"__amd_rocclr_(?:copy|fill)|MEMORY_COPY")


class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = -1


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: int = -1


class _Dispatch(msgspec.Struct, frozen=True, gc=False):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = -1


class _Record(msgspec.Struct, gc=False):
    start_timestamp: int
    end_timestamp: int
    kind: int = -1
    operation: int = -1
    thread_id: int = -1
    correlation_id: _Correlation = _Correlation()
    dispatch_info: _Dispatch = _Dispatch()
    stream_id: _Handle = _Handle()
    dst_agent_id: _Handle = _Handle()
    src_agent_id: _Handle = _Handle()


class _Records(msgspec.Struct):
    kernel_dispatch: list[_Record] = []
    memory_copy: list[_Record] = []
    hip_api: list[_Record] = []
    marker_api: list[_Record] = []


class _Symbol(msgspec.Struct, gc=False):
    kernel_id: int
    demangled_kernel_name: str = ""
    formatted_kernel_name: str = ""


class _Kind(msgspec.Struct):
    kind: str = ""
    operations: list[str] = []


class _Text(msgspec.Struct, gc=False):
    key: int
    value: str = ""


class _Strings(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Text] = []


class _Process(msgspec.Struct):
    buffer_records: _Records = msgspec.field(default_factory=_Records)
    kernel_symbols: list[_Symbol] = []
    strings: _Strings = msgspec.field(default_factory=_Strings)


class _File(msgspec.Struct):
    processes: list[_Process] = msgspec.field(name="rocprofiler-sdk-tool")


def read_rocprofv3(path: Path, rules: Rules) -> list[Recording]:
    """Read one file.

    Returns:
        One recording per process with one GPU, whose rank is in the file's name. If there are several processes or
        GPUs, their ranks are counted in the order of the file.

    Raises:
        TraceError: the file cannot be read, has another format, or has neither a kernel nor a range.
    """
    try:
        processes = msgspec.json.decode(UnpackedFile.read_whole(path), type=_File).processes
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"is not a complete JSON file of rocprofv3: {error}", file=path) from None
    builders = [builder for process in processes for builder in _builders(process, path)]
    if not builders:
        raise TraceError("holds no kernel and no ROCTx range", file=path)
    recordings = []
    for number, builder in enumerate(builders):
        metadata = {"rank": number} if len(builders) > 1 else {}
        recording = recording_of(builder.events(path, {"distributedInfo": metadata}), rules)
        notes = recording.notes
        if len(builders) > 1:
            notes += (f"{path.name}: ranks of its {len(builders)} GPUs are counted in the order of the file",)
        recordings.append(replace(recording, origin_ns=None, notes=notes))
    return recordings


def _builders(process: _Process, path: Path) -> list[EventBuilder]:
    """Return the events of each GPU of a process, each with all events of the host."""
    records = process.buffer_records
    check_events(sum(len(getattr(records, name)) for name in records.__struct_fields__), path)
    kernels = {
        symbol.kernel_id: (symbol.demangled_kernel_name or symbol.formatted_kernel_name).removesuffix(".kd")
        for symbol in process.kernel_symbols
    }
    gpus = dict.fromkeys(kernel.dispatch_info.agent_id.handle for kernel in records.kernel_dispatch)
    builders = {gpu: EventBuilder() for gpu in gpus or (-1,)}
    for kernel in records.kernel_dispatch:
        dispatch = kernel.dispatch_info
        stream = kernel.stream_id.handle if kernel.stream_id.handle >= 0 else dispatch.queue_id.handle
        name = kernels.get(dispatch.kernel_id, "kernel")
        category = "gpu_memcpy" if _COPY.match(name) else "kernel"
        _add(builders[dispatch.agent_id.handle], kernel, name, category, stream)
    operations = process.strings.buffer_records
    for copy in records.memory_copy:
        for gpu in {copy.dst_agent_id.handle, copy.src_agent_id.handle} & builders.keys():
            _add(builders[gpu], copy, _operation_name(copy, operations), "gpu_memcpy", copy.stream_id.handle)
    texts = {text.key: text.value for text in process.strings.marker_api}
    for builder in builders.values():
        for call in records.hip_api:
            _add(builder, call, _operation_name(call, operations), "hip_runtime")
        for marker in records.marker_api:
            _add(builder, marker, texts.get(marker.correlation_id.internal, ""), "user_annotation")
    return [builder for builder in builders.values() if len(builder)]


def _operation_name(record: _Record, kinds: Sequence[_Kind]) -> str:
    if not 0 <= record.kind < len(kinds):
        return "operation"
    operations = kinds[record.kind].operations
    return operations[record.operation] if 0 <= record.operation < len(operations) else kinds[record.kind].kind


def _add(builder: EventBuilder, record: _Record, name: str, category: str, stream: int = -1) -> None:
    builder.add(
        name, category, (-1, record.thread_id), record.start_timestamp, record.end_timestamp,
        correlation=record.correlation_id.internal, stream=stream,
    )  # fmt: skip
