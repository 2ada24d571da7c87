"""Files that no importer reads, and what to record or convert instead.

Sources: Megatron-LM's megatron/core/timers.py, DeepSpeed's profiling/flops_profiler/profiler.py, and PyTorch's
ExecutionTraceObserver. NVIDIA publishes no description of Nsight Systems' reports, so their names decide.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pptrace.plugin import TraceError, UnpackedFile

if TYPE_CHECKING:
    from pathlib import Path

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
"""Patterns in a file's first bytes, and the sentence for each."""


def advise(path: Path) -> str:
    """Return what a file is and what to do instead; empty for an unknown file."""
    if path.name.lower().endswith(_REPORTS):
        return _REPORT.format(path.name)
    try:
        with UnpackedFile.open(path) as file:
            content = file.read(_LOOKED_BYTES)
    except TraceError:
        return ""
    return next((text for pattern, text in _ADVICE if re.search(pattern, content)), "")
