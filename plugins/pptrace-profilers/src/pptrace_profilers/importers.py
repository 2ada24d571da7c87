"""Measurements from the formats of other profilers than PyTorch's own Chrome JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace_profilers.assembly.measurement import measure_files, measure_recordings
from pptrace_profilers.rules.file import read_rules

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pptrace.timeline.measurement import ImportRequest, Measurement

__all__ = ["measure_chrome", "measure_inspector", "measure_nccl", "measure_nsys", "measure_pftrace"]


def measure_chrome(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read any Chrome JSON by a file of rules; a file may hold one rank or several.

    Raises:
        TraceError: no file can be read, or what they hold is no pipeline's.
        ConfigError: a rule that cannot be.
    """
    from pptrace_profilers.formats.chrome import read_chrome

    rules = read_rules(request.rules)
    return measure_files(paths, request, lambda path: read_chrome(path, rules))


def measure_nsys(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read databases that Nsight Systems exported; one holds the processes of a node.

    Raises:
        TraceError: no file can be read, or what they hold is no pipeline's.
        ConfigError: a rule that cannot be.
    """
    from pptrace_profilers.formats.nsys import read_nsys

    rules = read_rules(request.rules)
    by_name = rules.by_name("Nsight Systems")
    return measure_files(paths, request, lambda path: rules.ranked(read_nsys(path, by_name)))


def measure_pftrace(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the Perfetto traces of PyTorch's profiler, one per process.

    Raises:
        TraceError: no file can be read, or what they hold is no pipeline's.
        ConfigError: a rule that cannot be.
    """
    from pptrace_profilers.formats.torch_perfetto import read_pftrace

    rules = read_rules(request.rules)
    by_name = rules.by_name("PyTorch's profiler")
    return measure_files(paths, request, lambda path: rules.ranked([read_pftrace(path, by_name)]))


def measure_nccl(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the files of NCCL's example profiler plugin, which know no actions.

    Raises:
        TraceError: no file can be read, or two are of the same rank.
    """
    from pptrace_profilers.formats.nccl_communicators import read_nccl

    recordings, notes = read_nccl(paths)
    return measure_recordings(recordings, request, notes)


def measure_inspector(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read NCCL Inspector's lines, which know no actions.

    Raises:
        TraceError: no file can be read, or two are of the same process.
    """
    from pptrace_profilers.formats.nccl_inspector_run import read_inspected

    recordings, sized, notes = read_inspected(paths)
    return replace(measure_recordings(recordings, request, notes), by_size=sized)
