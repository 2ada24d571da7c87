"""What a damaged or forged file of our own formats may raise, and what a timeline read from one must hold."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.errors import TraceError
from pptrace.model.kinds import Kind, Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.timeline.timeline import Timeline

__all__ = ["DAMAGE", "checked_timeline", "named_damage"]

DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError)
"""What JSON and arrays raise where a file was tampered with."""
_LATEST_NS = 2**62
_MOST_RANKS = 2**20
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


def checked_timeline(timeline: Timeline) -> Timeline:
    """Return a timeline whose every column was found to point at something that is there.

    Raises:
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
        ("edge", placement.edges, 0, placement.stages),
        ("slices of a lane", np.diff(timeline.lane_ptr), 0, rows + 1),
        ("rank", timeline.lane_rank, 0, placement.ranks),
        ("peer", timeline.lane_peer, -1, _MOST_RANKS),
        ("stream", timeline.lane_stream, 0, max(Stream) + 1),
        ("kind", timeline.kind, 0, max(Kind) + 1),
        ("stage", timeline.stage, -1, placement.stages),
        ("microbatch", timeline.microbatch, -1, max(placement.microbatches, 1)),
        ("cause", timeline.cause, -1, rows),
        ("start", timeline.start_ns, -_LATEST_NS, _LATEST_NS),
        ("end", timeline.end_ns, -_LATEST_NS, _LATEST_NS),
    ):
        _check_range(name, values, low, limit)
    if not 0 <= placement.ranks <= _MOST_RANKS:
        message = f"{placement.ranks} ranks"
        raise ValueError(message)
    if (timeline.end_ns < timeline.start_ns).any():
        row = int(np.argmax(timeline.end_ns < timeline.start_ns))
        message = f"slice {row} ends before it starts"
        raise ValueError(message)
    return timeline


def _check_range(name: str, values: NDArray[Any], low: int, limit: int) -> None:
    wrong = (values < low) | (values >= limit)
    if wrong.any():
        message = f"{name} {int(values[wrong][0])} is not in {low} to {limit - 1}"
        raise ValueError(message)
