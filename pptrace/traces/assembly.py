"""Assembly of timelines from columns of files, with checks for damaged and forged files."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from pptrace.config.limits import exceeds_host_memory, gibibytes, memory_key
from pptrace.errors import TraceError
from pptrace.sim.streams import MOST_RANKS
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Parts, Routes, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from pptrace.steps.columns import Int32s, Int64s
    from pptrace.timeline.timeline import Counter


class StepPart(Struct, frozen=True, kw_only=True):
    """Content of a file; rows have their numbers in the full step."""

    path: Path
    step: Mapping[str, Any]
    """Description of the step: ``placement``, and ``routes`` and ``segments`` if the step has any."""
    provenance: Mapping[str, Any]
    lanes: Int64s
    """Shape (lanes, 4): rank, stream, peer, and number of slices, in order."""
    columns: dict[str, NDArray[Any]]
    """Columns of the timeline, ``row``, ``segment`` and ``segment_number``; causes are row numbers."""
    counters: tuple[Counter, ...]
    """Counters in the order of display."""
    links: tuple[tuple[str, ...], tuple[int, ...]] | None
    """Names and capacities of all links; None where no routes are known."""
    hops: Int64s
    """Shape (hops, 3): a message's row, the index along its route, and the link there."""


def links_of(step: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """Return names and capacities of the links that a file describes."""
    if "routes" not in step:
        return None
    names, rates_kbps, _ = step["routes"]
    return tuple(map(str, names)), tuple(map(int, rates_kbps))


_SHARED = ("placement", "segments")


def join_parts(parts: Sequence[StepPart]) -> Timeline:
    """Return the timeline of files that were written together; a cause outside the files becomes -1.

    Raises:
        TraceError: there is no file, files are of different runs or have a common rank, or routes are damaged.
    """
    if not parts:
        raise TraceError("no trace file was given")
    with named_damage(parts[0].path):
        _check_run(parts)
        timeline = _timeline(parts)
        _check_timeline(timeline, parts[0].path)
    return timeline


def _check_run(parts: Sequence[StepPart]) -> None:
    """Check that files are of the same run and have disjoint ranks."""
    first = parts[0]
    seen: set[int] = set()
    for part in parts:
        ranks = set(part.lanes[:, 0].tolist())
        same = all(part.step.get(key) == first.step.get(key) for key in _SHARED)
        if not same or part.provenance != first.provenance or part.links != first.links:
            raise TraceError(f"is not of the same run as {first.path}; read them separately", file=part.path)
        if seen & ranks:
            raise TraceError(f"rank {min(seen & ranks)} is in another of the files too", file=part.path)
        seen |= ranks


def _timeline(parts: Sequence[StepPart]) -> Timeline:
    parts = sorted(parts, key=lambda part: part.columns["row"][:1].tolist())
    first = parts[0]
    columns: dict[str, Any] = {
        name: _concatenate([part.columns[name] for part in parts]) for name in first.columns
    }
    if (np.diff(columns["row"]) <= 0).any():
        order = np.argsort(columns["row"], kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        if (np.diff(columns["row"]) == 0).any():
            message = "a slice occurs twice"
            raise ValueError(message)
    row, number, name = (columns.pop(name) for name in ("row", "segment_number", "segment"))
    columns["cause"] = _indices(row, columns["cause"])
    segments = first.step.get("segments")
    lanes = np.concatenate([part.lanes for part in parts])
    lanes = lanes[np.argsort(lanes[:, 0], kind="stable")]
    return Timeline(
        placement=_placement(first.step["placement"]),
        lane_rank=lanes[:, 0],
        lane_stream=lanes[:, 1],
        lane_peer=lanes[:, 2],
        lane_ptr=np.concatenate([[0], np.cumsum(lanes[:, 3])]),
        counters=tuple(sorted((c for part in parts for c in part.counters), key=lambda counter: counter.rank)),
        routes=_routes(parts, row),
        parts=None if segments is None else Parts(number=number, name=name, names=tuple(map(str, segments))),
        provenance=first.provenance,
        **columns,
    )


def _concatenate(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate arrays, without a copy of a single one."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def placement_values(placement: Placement) -> dict[str, Any]:
    """Return a placement as the JSON values from which :func:`join_parts` builds it."""
    return {
        "ranks": placement.ranks,
        "stages": placement.stages,
        "stage_rank": placement.stage_rank.ravel().tolist(),
        "microbatch_route": placement.microbatch_route.tolist(),
        "edges": placement.edges.tolist(),
        **({"backward_rank": placement.backward_rank.ravel().tolist()} if placement.backward_rank.size else {}),
    }


def _placement(placement: Mapping[str, Any]) -> Placement:
    stage_rank = np.array(placement["stage_rank"], dtype=np.int32)
    stages = placement.get("stages", stage_rank.shape[-1])
    return Placement(
        ranks=placement["ranks"],
        stage_rank=stage_rank.reshape(-1, stages),
        backward_rank=np.array(placement.get("backward_rank", []), dtype=np.int32).reshape(-1, stages),
        microbatch_route=np.array(placement["microbatch_route"], dtype=np.int32),
        edges=np.array(placement["edges"], dtype=np.int32).reshape(-1, 2),
    )


def _routes(parts: Sequence[StepPart], row: Int64s) -> Routes | None:
    if parts[0].links is None:
        return None
    name, rate_kbps = parts[0].links
    transfer, place, link = _concatenate([part.hops for part in parts]).T
    columns = join_hops(row.size, _indices(row, transfer), place, link)
    if columns is None or not np.isin(link, np.arange(len(name))).all():
        raise TraceError("slices on links lead nowhere; was it edited?", file=parts[0].path)
    return Routes(name=name, rate_kbps=np.array(rate_kbps, dtype=np.int64), ptr=columns[0], link=columns[1])


def join_hops(rows: int, row: Int64s, place: Int64s, link: Int64s) -> tuple[Int32s, Int32s] | None:
    """Return ``ptr`` and ``link`` of routes from hops in any order; None where hops are missing."""
    if row.size and not 0 <= row.min() <= row.max() < rows:
        return None
    order = np.lexsort((place, row))
    length = np.bincount(row, minlength=rows)
    ptr = np.concatenate([[0], np.cumsum(length)])
    complete = np.array_equal(place[order], np.arange(row.size) - np.repeat(ptr[:-1], length))
    return (ptr.astype(np.int32), link[order].astype(np.int32)) if complete else None


def _indices(rows: Int64s, wanted: Int64s) -> Int64s:
    """Return the index of each wanted row in ``rows``, which ascend; -1 for none."""
    if not rows.size:
        return np.full_like(wanted, -1)
    if rows[-1] - rows[0] + 1 == rows.size:  # no row is missing
        if not rows[0] and -1 <= wanted.min(initial=-1) <= wanted.max(initial=-1) < rows.size:
            return wanted
        index: Int64s = wanted - rows[0]
        index[(index < 0) | (index >= rows.size)] = -1
        return index
    index = np.minimum(np.searchsorted(rows, wanted), rows.size - 1)
    return np.where(rows[index] == wanted, index, -1)


DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RecursionError)
"""Exceptions of JSON and arrays on damaged files."""
_LATEST_NS = 2**62
_MOST_PEERS = 2**20
_CELL_BYTES = 40
"""Upper bound of the memory per stage or edge and microbatch in the analyses of a step."""
_LEAST_MICROBATCHES = 32
"""Number of microbatches with the memory of a stage's costs."""
_BASE_CELLS, _CELLS_PER_SLICE = 1 << 22, 256
"""Limit of stages and edges times microbatches in a trace, and its increase per slice."""
_MAPPINGS = ("configuration", "trimmed", "recorded")
"""Optional parts of a provenance that are mappings."""


@contextmanager
def named_damage(path: Path) -> Iterator[None]:
    """Run a block that decodes a file.

    Raises:
        TraceError: the block raised an exception of :data:`DAMAGE`.
    """
    try:
        yield
    except DAMAGE as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise TraceError(f"is damaged ({text:.200}); write it again", file=path) from None


def _check_timeline(timeline: Timeline, path: Path) -> None:
    """Check that the columns of a timeline refer to ranks, stages, rows and times that exist.

    Raises:
        TraceError: an index of its stages and microbatches would take more memory than the limit.
        ValueError: a rank, stage, microbatch, kind, stream, cause or time is out of range, or the provenance
            is not a mapping.
    """
    provenance = timeline.provenance
    if not isinstance(provenance, dict) or not all(isinstance(provenance.get(key, {}), dict) for key in _MAPPINGS):
        raise ValueError("its provenance is not a mapping")
    placement, rows = timeline.placement, len(timeline)
    for name, values, low, limit in (
        ("rank of a stage", np.concatenate(placement.pass_ranks), -1, placement.ranks),
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
    _check_size(timeline, path)
    if not 0 <= placement.ranks <= MOST_RANKS:
        message = f"{placement.ranks:,} ranks: a pipeline has at most {MOST_RANKS:,}"
        raise ValueError(message)
    if (timeline.end_ns < timeline.start_ns).any():
        row = int(np.argmax(timeline.end_ns < timeline.start_ns))
        message = f"slice {row} ends before it starts"
        raise ValueError(message)


def _check_size(timeline: Timeline, path: Path) -> None:
    """Check the number of stages and microbatches against the number of slices and the memory limit.

    A trimmed step has the stages and microbatches of the full step, so the number of slices does not limit them.
    """
    placement = timeline.placement
    stages, microbatches = placement.stages, max(placement.microbatches, placement.routes)
    cells = (stages + len(placement.edges)) * max(microbatches, _LEAST_MICROBATCHES)
    if cells > _BASE_CELLS + _CELLS_PER_SLICE * len(timeline) and "trimmed" not in timeline.provenance:
        message = f"{len(timeline):,} slices cannot fill {stages:,} stages x {microbatches:,} microbatches"
        raise ValueError(message)
    needed = cells * _CELL_BYTES
    if exceeds_host_memory(needed):
        message = f"needs {gibibytes(needed)} of memory for {stages:,} stages x {microbatches:,} microbatches"
        raise TraceError(f"{message}: {memory_key()}", file=path)


def _check_range(name: str, values: NDArray[Any], low: int, limit: int) -> None:
    wrong = (values < low) | (values >= limit)
    if wrong.any():
        message = f"{name} {int(values[wrong][0])} is not in {low} to {limit - 1}"
        raise ValueError(message)
