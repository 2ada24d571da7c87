"""Perfetto's native format: typed fields, flows, counters; opens in ui.perfetto.dev."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

__all__ = ["read", "recognises", "write"]

_PACKET = b"\n"
_MARK = b"pptrace.format"
_WITHIN = 64


def write(timeline: Timeline, path: Path, options: Mapping[str, Any]) -> None:
    """Write ``timeline`` to ``path``; see :func:`pptrace.export.perfetto_write.write`."""
    from pptrace.export import perfetto_write

    perfetto_write.write(timeline, path, options)


def read(paths: Sequence[Path]) -> Timeline:
    """Read what :func:`write` wrote; see :func:`pptrace.export.perfetto_read.read`."""
    from pptrace.export import perfetto_read

    return perfetto_read.read(paths)


def recognises(path: Path, head: bytes) -> bool:  # noqa: ARG001 - the importers' signature
    """Say whether a file is a Perfetto trace that pptrace wrote."""
    return head.startswith(_PACKET) and _MARK in head[:_WITHIN]
