"""What a damaged or forged file of our own formats may raise, and what a timeline read from one must hold."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.config.limits import gibibytes, memory_key, most_memory
from pptrace.errors import TraceError
from pptrace.sim.streams import MOST_RANKS
from pptrace.steps.kinds import Kind, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.timeline.timeline import Timeline

__all__ = ["DAMAGE", "checked_timeline", "named_damage"]

DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError)
"""What JSON and arrays raise where a file was tampered with."""
_LATEST_NS = 2**62
_MOST_PEERS = 2**20
_CELL_BYTES = 40
"""Memory that each stage and each edge takes for each microbatch where a step is analysed, at most."""
_LEAST_MICROBATCHES = 32
"""Microbatches that take as much memory for each stage as its costs."""
_ROOM, _CELLS_PER_SLICE = 1 << 22, 256
"""Stages and edges, times microbatches, that a trace may have, and how many more for each of its slices."""
_MAPPINGS = ("configuration", "trimmed")
"""Parts of a provenance that are mappings where they are there."""


@contextmanager
def named_damage(paths: Sequence[Path]) -> Iterator[None]:
    """Run a block that joins what was read of files.

    Raises:
        TraceError: it raised any of :data:`DAMAGE`; names the first file.
    """
    try:
        yield
    except DAMAGE as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise TraceError(f"is damaged ({text:.200}); write it again", file=paths[0]) from None


def checked_timeline(timeline: Timeline, path: Path) -> Timeline:
    """Return a timeline whose every column was found to point at something that is there.

    Args:
        timeline: what was read.
        path: its first file.

    Raises:
        TraceError: an index of its stages and microbatches would take more memory than may be taken.
        ValueError: a rank, stage, microbatch, kind, stream, cause or time is out of its range, or what is said of
            how it came about is no mapping.
    """
    told = timeline.provenance
    if not isinstance(told, dict) or not all(isinstance(told.get(name, {}), dict) for name in _MAPPINGS):
        raise ValueError("its provenance is no mapping")
    placement, rows = timeline.placement, len(timeline)
    for name, values, low, limit in (
        ("rank of a stage", placement.stage_rank, -1, placement.ranks),
        ("route", placement.microbatch_route, 0, placement.routes),
        ("slices of a lane", np.diff(timeline.lane_ptr), 0, rows + 1),
        ("rank", timeline.lane_rank, 0, placement.ranks),
        ("peer", timeline.lane_peer, -1, _MOST_PEERS),
        ("stream", timeline.lane_stream, 0, max(Stream) + 1),
        ("kind", timeline.kind, 0, max(Kind) + 1),
        ("stage", timeline.stage, -1, placement.stages),
        ("microbatch", timeline.microbatch, -1, max(placement.microbatches, 1)),
        ("cause", timeline.cause, -1, rows),
        ("start", timeline.start_ns, -_LATEST_NS, _LATEST_NS),
        ("end", timeline.end_ns, -_LATEST_NS, _LATEST_NS),
    ):
        _check_range(name, values, low, limit)
    if placement.edge_fault:
        message = f"its {placement.edge_fault}"
        raise ValueError(message)
    _check_room(timeline, path)
    if not 0 <= placement.ranks <= MOST_RANKS:
        message = f"{placement.ranks:,} ranks: a pipeline has at most {MOST_RANKS:,}"
        raise ValueError(message)
    if (timeline.end_ns < timeline.start_ns).any():
        row = int(np.argmax(timeline.end_ns < timeline.start_ns))
        message = f"slice {row} ends before it starts"
        raise ValueError(message)
    return timeline


def _check_room(timeline: Timeline, path: Path) -> None:
    """Check that stages and microbatches are no more than slices can fill, and than memory can index.

    A part of a larger step has that step's stages and microbatches.
    """
    placement = timeline.placement
    stages, microbatches = placement.stages, max(placement.microbatches, placement.routes)
    cells = (stages + len(placement.edges)) * max(microbatches, _LEAST_MICROBATCHES)
    if cells > _ROOM + _CELLS_PER_SLICE * len(timeline) and "trimmed" not in timeline.provenance:
        message = f"{len(timeline):,} slices cannot fill {stages:,} stages x {microbatches:,} microbatches"
        raise ValueError(message)
    needed = cells * _CELL_BYTES
    if needed > most_memory():
        message = f"needs {gibibytes(needed)} of memory for {stages:,} stages x {microbatches:,} microbatches"
        raise TraceError(f"{message}: {memory_key()}", file=path)


def _check_range(name: str, values: NDArray[Any], low: int, limit: int) -> None:
    wrong = (values < low) | (values >= limit)
    if wrong.any():
        message = f"{name} {int(values[wrong][0])} is not in {low} to {limit - 1}"
        raise ValueError(message)
