"""Perfetto's native format: typed fields, flows, counters; opens in ui.perfetto.dev."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

_PACKET = b"\n"
_MARK = b"pptrace.format"
_WITHIN = 64


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write ``timeline`` to ``path``; see :func:`pptrace.traces.perfetto.writer.write`."""
    from pptrace.traces.perfetto import writer

    writer.write(timeline, path, options)


def read(paths: Sequence[Path]) -> Timeline:
    """Read what :func:`write` wrote; see :func:`pptrace.traces.perfetto.reader.read`."""
    from pptrace.traces.perfetto import reader

    return reader.read(paths)


def recognises(path: Path, head: bytes) -> bool:  # noqa: ARG001 - the importers' signature
    """Whether a file is a Perfetto trace that pptrace wrote."""
    return head.startswith(_PACKET) and _MARK in head[:_WITHIN]
