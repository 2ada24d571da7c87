"""What stands before the slices of a file: who wrote it, and the names of processes and streams."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pptrace.export.kineto.lanes import HOST, process_of
from pptrace.export.kineto.links import thread_names
from pptrace.export.kineto.why import WAITS, path_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pptrace.export.hops import Hops
    from pptrace.export.kineto.lanes import Lane
    from pptrace.timeline.routes import Routes
    from pptrace.timeline.timeline import Timeline

__all__ = ["FORMAT", "header", "named"]

FORMAT = 2
"""Version of what a file says beyond the dialect; 1 said ``unit_route`` and ``braid``."""


def header(timeline: Timeline, lanes: Sequence[Lane], rank: int | None) -> bytes:
    """Return everything up to the first event, on one line.

    ``distributedInfo`` comes first because Holistic Trace Analysis takes the first ``"rank": N``,
    and only with that blank.
    """
    ranks = list(range(timeline.ranks))
    distributed = {
        "rank": rank or 0,
        "world_size": len(ranks),
        "backend": "nccl",
        "pg_count": 1,
        "pg_config": [{"pg_name": "1", "pg_desc": "mesh_pp", "pg_size": len(ranks), "ranks": ranks}],
    }
    top = {
        "pptraceFormat": FORMAT,
        "distributedInfo": distributed,
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "simulated"}],
        "displayTimeUnit": "ms",
        "metadata": {"pptrace": _own(timeline, lanes)},
    }
    return json.dumps(top)[:-1].encode() + b', "traceEvents": [\n'


def named(timeline: Timeline, lanes: Sequence[Lane], hops: Hops) -> Iterator[dict[str, Any]]:
    """Yield the names and the order of processes and threads.

    Numbers are as wide as the last rank's, for viewers that sort by name.
    """
    width = len(str(timeline.ranks - 1))
    ranks = {lane.rank for lane in lanes} | {counter.rank for counter in timeline.counters}
    why = timeline.why
    waiting = set(why.waits.rank.tolist()) if why else set()
    for rank in sorted(ranks - {-1}):
        process = process_of(rank, timeline.ranks)
        yield from _name("process", process, HOST, f"rank {rank:0{width}}", rank)
        yield from _name("thread", process, HOST, "host", 0)
        if rank in waiting:
            yield from _name("thread", process, WAITS, f"why rank {rank} waits", WAITS)
    for lane in lanes:
        yield from _name("thread", process_of(lane.rank, timeline.ranks), lane.thread, lane.title, lane.thread)
    process = process_of(-1, timeline.ranks)
    if len(hops) or -1 in ranks:
        yield from _name("process", process, HOST, "links", timeline.ranks)
    for thread, name in thread_names(timeline, hops):
        yield from _name("thread", process, thread, name, thread)
    if why and len(why.path):
        process = path_process(timeline.ranks)
        yield from _name("process", process, HOST, "critical path", -1)
        yield from _name("thread", process, process + 1, "critical path", 0)


def _own(timeline: Timeline, lanes: Sequence[Lane]) -> dict[str, Any]:
    """Return what a reader needs beyond the events."""
    placement = timeline.placement
    return {
        "placement": {
            "ranks": placement.ranks,
            "stage_rank": placement.stage_rank.tolist(),
            "microbatch_route": placement.microbatch_route.tolist(),
            "edges": placement.edges.tolist(),
        },
        "lanes": [[lane.rank, lane.stream, lane.peer, lane.rows.stop - lane.rows.start] for lane in lanes],
        "counters": [[c.rank, c.name, c.unit] for c in timeline.counters],
        **_routes(timeline.routes),
        **({} if timeline.parts is None else {"segments": timeline.parts.names}),
        "provenance": dict(timeline.provenance),
    }


def _routes(routes: Routes | None) -> dict[str, Any]:
    if routes is None:
        return {}
    return {"routes": [routes.name, routes.rate_kbps.tolist(), routes.link.size]}


def _name(what: str, pid: int, tid: int, name: str, order: int) -> Iterator[dict[str, Any]]:
    for key, args in ((f"{what}_name", {"name": name}), (f"{what}_sort_index", {"sort_index": order})):
        yield {"ph": "M", "name": key, "pid": pid, "tid": tid, "ts": 0, "args": args}
