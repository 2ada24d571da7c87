"""The exporter and the importers of Chakra execution traces; light to import."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pptrace.plugin import deferred, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pptrace.plugin import ExporterOffer, ImporterOffer

__all__ = ["pptrace_exporters", "pptrace_importers"]

_METADATA = re.compile(rb"[\x80-\xff]{0,4}[\x00-\x7f]\n.\d+\.\d+\.\d+", re.DOTALL)
"""GlobalMetadata: its length, then field 1, the version of the schema."""
_MARK = b"pptrace.format"
_WITHIN = 64
_HOST_TRACE = re.compile(rb'\s*\{[^\[]*"schema"\s*:\s*"\d+\.\d+\.\d+-chakra\.')
"""A trace of PyTorch's ExecutionTraceObserver, linked or not."""


@hookimpl
def pptrace_exporters() -> Iterable[ExporterOffer]:
    """Yield the writer of Chakra traces."""
    from pptrace.plugin import ExporterOffer

    yield ExporterOffer(
        name="chakra",
        summary="Chakra execution traces for simulators such as ASTRA-sim, a file per rank.",
        suffixes=(".et",),
        write=deferred("pptrace_chakra.step_files:write"),
        takes_rank=True,
        file_per_rank=True,
    )


@hookimpl
def pptrace_importers() -> Iterable[ImporterOffer]:
    """Yield the readers of pptrace's Chakra traces and of PyTorch's linked traces."""
    from pptrace.plugin import ImporterOffer

    yield ImporterOffer(
        name="chakra",
        summary="Chakra traces that pptrace wrote.",
        recognises=is_step,
        read=deferred("pptrace_chakra.step_files:read"),
    )
    yield ImporterOffer(
        name="chakra-linked",
        summary="PyTorch's execution traces, linked with Kineto by chakra_trace_link.",
        recognises=is_linked,
        measure=deferred("pptrace_chakra.linked:measure_linked"),
    )


def is_step(path: Path, head: bytes) -> bool:
    """Return whether a file is a Chakra trace that pptrace wrote."""
    del path
    return bool(_METADATA.match(head)) and _MARK in head[:_WITHIN]


def is_linked(path: Path, head: bytes) -> bool:
    """Return whether a file is a Chakra trace of another program: JSON of PyTorch, or protobuf."""
    return bool(_HOST_TRACE.match(head)) or (bool(_METADATA.match(head)) and not is_step(path, head))
