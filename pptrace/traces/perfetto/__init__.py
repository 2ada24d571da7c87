"""Perfetto's native format: typed fields, flows, counters; opens in ui.perfetto.dev."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.lazy import deferred

if TYPE_CHECKING:
    from pathlib import Path

_PACKET = b"\n"
_MARK = b"pptrace.format"
_WITHIN = 64


write = deferred("pptrace.traces.perfetto.writer:write")
read = deferred("pptrace.traces.perfetto.reader:read")


def recognises(path: Path, head: bytes) -> bool:  # noqa: ARG001 - the importers' signature
    """Whether a file is a Perfetto trace that pptrace wrote."""
    return head.startswith(_PACKET) and _MARK in head[:_WITHIN]
