"""Measurements from files of each format; the reader of a format is imported on first use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace.plugin import TraceError
from pptrace_profilers.measurement import measure_recordings
from pptrace_profilers.naming_rules import read_rules
from pptrace_profilers.recording import read_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pptrace.plugin import ImportRequest, Measurement
    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Recording


def measure_kineto(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the files of PyTorch's profiler, one per process; raises what :func:`measure_chrome` does."""
    from pptrace_profilers.pytorch_process import read_kineto

    return _by_name(paths, request, "PyTorch's profiler", lambda path, rules: [read_kineto(path, rules)])


def measure_pftrace(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the Perfetto traces of PyTorch's profiler, one per process; raises what :func:`measure_chrome` does."""
    from pptrace_profilers.torch_perfetto import read_pftrace

    return _by_name(paths, request, "PyTorch's profiler", lambda path, rules: [read_pftrace(path, rules)])


def measure_nsys(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read databases of Nsight Systems, which hold a node's processes; raises what :func:`measure_chrome` does."""
    from pptrace_profilers.nsys import read_nsys

    return _by_name(paths, request, "Nsight Systems", read_nsys)


def measure_chrome(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read any Chrome JSON by a file of rules; a file may hold one rank or several.

    Raises:
        TraceError: no file can be read, or what they hold is no pipeline's.
        ConfigError: a rule, layout or replica that cannot be, or a rule not for these files.
    """
    from pptrace_profilers.chrome import read_chrome

    rules = read_rules(request.rules)
    return _measure(paths, request, lambda path: read_chrome(path, rules))


def measure_nccl(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the files of NCCL's example profiler plugin, which know no actions.

    Raises:
        TraceError: no file can be read, or two are of the same rank.
    """
    from pptrace_profilers.nccl_profiler import read_nccl

    recordings, notes = read_nccl(paths)
    return measure_recordings(recordings, request, notes)


def measure_inspector(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read NCCL Inspector's lines, which know no actions.

    Raises:
        TraceError: no file can be read, or two are of the same process.
    """
    from pptrace_profilers.nccl_inspector import read_inspector_run

    recordings, sizes, notes = read_inspector_run(paths)
    return replace(measure_recordings(recordings, request, notes), by_size=sizes)


def measure_otel(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read spans of Megatron-LM; their processes say the job's layout.

    Raises:
        TraceError: no file can be read, or what they hold is no pipeline's.
        ConfigError: a layout or replica that cannot be.
    """
    from pptrace_profilers.megatron_spans import read_megatron

    recordings, layout, notes = read_megatron(paths)
    return measure_recordings(recordings, replace(request, layout=request.layout or layout), notes)


def _by_name(
    paths: Sequence[Path], request: ImportRequest, profiler: str,
    read: Callable[[Path, Rules], Sequence[Recording]],
) -> Measurement:  # fmt: skip
    """Read files of a profiler that names actions only in annotations."""
    rules = read_rules(request.rules)
    names = rules.by_name(profiler)
    return _measure(paths, request, lambda path: rules.ranked(read(path, names)))


def _measure(
    paths: Sequence[Path], request: ImportRequest, read: Callable[[Path], Sequence[Recording]]
) -> Measurement:
    """Read files by the reader of a format; unreadable files are noted."""
    files, unread = read_files(paths, read)
    recordings = [recording for contents in files.values() for recording in contents]
    if not recordings:
        raise TraceError("holds nothing of any rank", file=paths[0])
    return measure_recordings(recordings, request, unread)
