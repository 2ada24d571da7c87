"""PyTorch's profiler: one Chrome JSON file per process, as libkineto writes it.

Source: libkineto/src/output_json.cpp and PyTorch's record_function ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace_profilers.events.records import MEMORY
from pptrace_profilers.events.table import Keep, read_events
from pptrace_profilers.pytorch.operations import GPU, IDLE_CALLS, LAUNCHES
from pptrace_profilers.pytorch.process import recording_of

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace_profilers.recording.recording import Recording
    from pptrace_profilers.rules.actions import Rules

__all__ = ["read_kineto"]

_KEEP = Keep(
    categories=frozenset({*GPU, *LAUNCHES, "user_annotation"}),
    prefixes=("c10d::", "nccl:", MEMORY),
    without=IDLE_CALLS,
    details=("c10d::", "gloo:", "nccl"),
)


def read_kineto(path: Path, rules: Rules) -> Recording:
    """Read one process's file.

    Raises:
        TraceError: it cannot be read, or is no such file.
    """
    return recording_of(read_events(path, _KEEP), rules)
