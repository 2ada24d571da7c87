"""Attributes by which pptrace knows its own Perfetto traces, as JSON in ``TraceAttributes``.

Viewers from v55 on list them; older ones skip them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.export.perfetto.layout import Layout
from pptrace.export.perfetto.wire import Cell
from pptrace.model.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.export.perfetto.layout import Run
    from pptrace.timeline.routes import Routes
    from pptrace.timeline.timeline import Timeline

__all__ = [
    "FORMAT_KEY",
    "PROVENANCE_KEY",
    "STEP_KEY",
    "TITLE_KEY",
    "VERSION",
    "layout_of",
    "placement_of",
    "provenance_json",
    "renamed",
    "step_json",
]

FORMAT_KEY = "pptrace.format"
PROVENANCE_KEY = "pptrace.provenance"
TITLE_KEY = "pptrace.title"
STEP_KEY = "pptrace.step"

VERSION = 2
"""Grows when older readers could not read what newer writers write."""

_FORMER = {"unit": "microbatch", "braid": "pair", "microbatch": "correlation"}
"""Today's names of cells that format 1 named otherwise."""


def provenance_json(provenance: Mapping[str, Any]) -> str:
    """Return the provenance as JSON."""
    return json.dumps(provenance, default=_plain, ensure_ascii=False)


def step_json(
    timeline: Timeline,
    lane_tracks: Sequence[int],
    counter_tracks: Sequence[int],
    runs: Sequence[Run],
    first_row: int,
) -> str:
    """Return all that slices and counters do not say, and the runs of records behind."""
    placement = timeline.placement
    return json.dumps(
        {
            "slices": len(timeline),
            "first_row": first_row,
            "placement": {
                "ranks": placement.ranks,
                "stages": placement.stages,
                "stage_rank": placement.stage_rank.ravel().tolist(),
                "microbatch_route": placement.microbatch_route.tolist(),
                "edges": placement.edges.tolist(),
            },
            "lanes": [
                timeline.lane_rank.tolist(),
                timeline.lane_stream.tolist(),
                timeline.lane_peer.tolist(),
                list(lane_tracks),
            ],
            "counters": [
                [counter.rank, counter.name, counter.unit, track, counter.at_ns.size]
                for counter, track in zip(timeline.counters, counter_tracks, strict=True)
            ],
            **_routes(timeline.routes),
            **({} if timeline.parts is None else {"segments": timeline.parts.names}),
            "runs": [_run(run) for run in runs],
        },
        separators=(",", ":"),
    )


def _routes(routes: Routes | None) -> dict[str, Any]:
    if routes is None:
        return {}
    return {"routes": [routes.name, routes.rate_kbps.tolist(), routes.link.size]}


def placement_of(step: Mapping[str, Any]) -> Placement:
    """Undo the placement's part of :func:`step_json`."""
    placement = step["placement"]
    return Placement(
        ranks=placement["ranks"],
        stage_rank=np.array(placement["stage_rank"], dtype=np.int32).reshape(-1, placement["stages"]),
        microbatch_route=np.array(placement["microbatch_route"], dtype=np.int32),
        edges=np.array(placement["edges"], dtype=np.int32).reshape(-1, 2),
    )


def renamed(step: dict[str, Any]) -> dict[str, Any]:
    """Return what :func:`step_json` says today, where it may be what it said in format 1."""
    placement = step["placement"]
    if "unit_route" in placement:
        placement["microbatch_route"] = placement.pop("unit_route")
        for part in (part for run in step["runs"] for part in run["parts"] if not isinstance(part, str)):
            part[0] = _FORMER.get(part[0], part[0])
    return step


def layout_of(parts: Sequence[Any]) -> Layout:
    """Undo the layouts' part of :func:`step_json`."""
    return Layout(tuple(bytes.fromhex(part) if isinstance(part, str) else Cell(*part) for part in parts))


def _run(run: Run) -> dict[str, Any]:
    found = {"records": run.rows.size, "parts": [*map(_part, run.layout.parts)]}
    return found if run.segment < 0 else {**found, "segment": run.segment}


def _part(part: bytes | Cell) -> str | list[Any]:
    if isinstance(part, bytes):
        return part.hex()
    return [part.name, part.number, part.size, part.fixed, part.optional]


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    msg = f"provenance holds a {type(value).__name__}, which is no JSON value"
    raise TypeError(msg)
