"""The Perfetto UI opens our traces, finds nothing wrong and counts what we count."""

from __future__ import annotations

import json
from collections import Counter as Tally
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shown_steps import STEPS, step

from pptrace.steps.kinds import Kind
from pptrace.timeline.messages import messages
from pptrace.timeline.metrics import phases
from pptrace.traces import kineto, perfetto
from pptrace.traces.scene import Hops

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.timeline.timeline import Timeline

pytestmark = pytest.mark.browser

ON_RANKS = "category NOT IN ('phase', 'link', 'wait', 'critical path')"
FORMATS: dict[str, tuple[Any, str, dict[str, str]]] = {
    "perfetto": (perfetto, "pftrace", {}),
    "perfetto-by-microbatch": (perfetto, "pftrace", {"color": "microbatch"}),
    "kineto": (kineto, "json", {}),
}

SHOWN = [
    *(("perfetto", name) for name in STEPS if name not in {"async", "ideal"}),  # "links" has all that "async" has
    ("perfetto-by-microbatch", "ideal"),  # another color, and else the same writer
    *(("kineto", name) for name in ("links", "blocking")),  # without receives and with them
]


@dataclass(frozen=True, kw_only=True)
class Written:
    """A trace in the UI."""

    name: str
    path: Path
    timeline: Timeline
    native: bool


@pytest.fixture(scope="module", params=SHOWN, ids="-".join)
def written(request: pytest.FixtureRequest, perfetto_ui: Any, tmp_path_factory: pytest.TempPathFactory) -> Written:
    form, name = request.param
    writer, suffix, options = FORMATS[form]
    timeline = step(name)
    path = tmp_path_factory.mktemp(f"{form}-{name}") / f"step.{suffix}"
    writer.write(timeline, path, options)
    perfetto_ui.load(path)
    return Written(name=f"{form}-{name}", path=path, timeline=timeline, native=writer is perfetto)


@pytest.fixture
def native(written: Written) -> Timeline:
    if not written.native:
        pytest.skip("the Chrome format has no typed fields")
    return written.timeline


def test_nothing_is_wrong(written: Written, perfetto_ui: Any) -> None:
    assert written.path
    assert findings(perfetto_ui) == []


def test_the_counts_are_those_of_the_file(written: Written, perfetto_ui: Any) -> None:
    expected = native_counts(written.timeline) if written.native else chrome_counts(written.path)
    assert counts(perfetto_ui) == expected


def test_nothing_overlaps_on_a_track(written: Written, perfetto_ui: Any) -> None:
    ours = "depth = 0" if written.native else "category IN ('kernel', 'gpu_memcpy', 'link')"
    overlaps = perfetto_ui.query(
        "WITH s AS (SELECT ts, lag(ts + dur) OVER (PARTITION BY track_id ORDER BY ts, dur) AS before"  # noqa: S608 - our words
        f" FROM slice WHERE {ours}) SELECT count() FROM s WHERE ts < before"
    )
    assert overlaps == [(0,)]
    if written.native:
        assert perfetto_ui.query("SELECT max(depth) FROM slice") == [(0,)]


def test_ranks_stand_in_order(written: Written, perfetto_ui: Any) -> None:
    names = [name for name, _ in perfetto_ui.tracks() if name.startswith("rank")]
    ranks = [int(name.split()[1]) for name in names]
    if not written.native:
        # Before v53 the UI sorts processes by their number of slices and heeds no sort index.
        ranks = sorted(ranks)
    assert ranks == list(range(written.timeline.ranks))


def test_a_picture_is_kept(written: Written, perfetto_ui: Any, screenshots: Path) -> None:
    path = screenshots / f"{written.name}.png"
    perfetto_ui.screenshot(path, expanded=True)
    assert path.stat().st_size > 20_000


def test_every_typed_field_adds_up(native: Timeline, perfetto_ui: Any) -> None:
    fields = {
        "rank": native.rank_of_row(),
        "stage": native.stage,
        "microbatch": np.maximum(native.microbatch, 0),
        "bytes": native.size_bytes,
        "lag_ns": native.lag_ns,
        "cause": np.maximum(native.cause, 0),
    }
    sums = ", ".join(f"total(EXTRACT_ARG(arg_set_id, '{name}'))" for name in fields)
    assert perfetto_ui.query(f"SELECT {sums} FROM slice WHERE {ON_RANKS}") == [  # noqa: S608 - our names
        tuple(float(values.sum()) for values in fields.values())
    ]


def test_kinds_are_words(native: Timeline, perfetto_ui: Any) -> None:
    result = perfetto_ui.query(
        f"SELECT EXTRACT_ARG(arg_set_id, 'kind') AS kind, count() FROM slice WHERE {ON_RANKS} GROUP BY 1"  # noqa: S608 - our words
    )
    assert dict(result) == Tally(Kind(int(kind)).name for kind in native.kind)


def test_flows_run_forward_in_time_from_producer_to_consumer(native: Timeline, perfetto_ui: Any) -> None:
    def named(alias: str) -> str:
        return f"iif({alias}.category = 'link', 'link ', '') || EXTRACT_ARG({alias}.arg_set_id, 'kind')"

    hops = perfetto_ui.query(
        f"SELECT {named('a')}, {named('b')}, min(b.ts - a.ts) >= 0"  # noqa: S608 - our words
        " FROM flow f JOIN slice a ON a.id = f.slice_out JOIN slice b ON b.id = f.slice_in GROUP BY 1, 2"
    )
    receives = bool((messages(native).recv >= 0).any())
    links = native.routes is not None
    chain = {
        way: (way, f"SEND_{way}", *[f"link SEND_{way}"] * 2 * links, *[f"RECV_{way}"] * receives, way)
        for way in "FB"
    }
    path = [] if native.why is None else list(dict.fromkeys(native.why.path.row.tolist()))
    along = pairwise(Kind(int(native.kind[row])).name for row in path)
    assert set(hops) == {(*hop, 1) for way in "FB" for hop in pairwise(chain[way])} | {(*hop, 1) for hop in along}


def test_standard_queries_find_ranks_as_threads_of_one_process(native: Timeline, perfetto_ui: Any) -> None:
    assert perfetto_ui.query("SELECT pid, name FROM process WHERE pid > 0") == [(1, "pipeline")]
    named = perfetto_ui.query("SELECT name FROM thread WHERE name GLOB 'rank*' ORDER BY tid")
    assert named == [(f"rank {rank:02}",) for rank in range(native.ranks)]
    # a slice of a rank is its thread's, whatever its stream
    result = perfetto_ui.query(
        "SELECT process_name, thread_name, count(), sum(dur), count(DISTINCT track_name) FROM thread_slice"  # noqa: S608 - our words
        f" WHERE {ON_RANKS} GROUP BY 1, 2 ORDER BY 2"
    )
    rank, took = native.rank_of_row(), native.end_ns - native.start_ns
    lanes = np.bincount(native.lane_rank[np.diff(native.lane_ptr) > 0])
    assert result == [
        (
            "pipeline",
            f"rank {index:02}",
            int((rank == index).sum()),
            int(took[rank == index].sum()),
            int(lanes[index]),
        )
        for index in range(native.ranks)
    ]
    tracks = "SELECT count() FROM thread_track JOIN thread USING (utid) JOIN process USING (upid) WHERE pid = 1"
    (threads,), *_ = perfetto_ui.query(tracks)
    assert threads >= native.lanes
    on_links = perfetto_ui.query("SELECT count(), count(upid) FROM process_slice")
    assert on_links == [(len(Hops.of(native)),) * 2]


@pytest.mark.parametrize("form", FORMATS)
def test_the_native_trace_processor_agrees(form: str, native_processor: Any, tmp_path: Path) -> None:
    writer, suffix, options = FORMATS[form]
    path, timeline = tmp_path / f"step.{suffix}", step("async")
    writer.write(timeline, path, options)
    processor = native_processor(path)
    try:
        assert findings(processor) == []
        assert counts(processor) == (native_counts(timeline) if writer is perfetto else chrome_counts(path))
    finally:
        processor.close()


def findings(engine: Any) -> list[Any]:
    """Return what the importer complains about, also where it does not call it an error."""
    sql = "SELECT name, severity, value FROM stats WHERE value > 0 AND (severity != 'info' OR name GLOB 'flow*')"
    return engine.query(sql)


def counts(engine: Any) -> dict[str, int]:
    """Count as the trace processor does."""
    asked = {
        "slices": "SELECT count() FROM slice",
        "time": "SELECT sum(dur) FROM slice",
        "slice tracks": "SELECT count(DISTINCT track_id) FROM slice",
        "flows": "SELECT count() FROM flow",
        "counter tracks": "SELECT count(DISTINCT track_id) FROM counter",
        "values": "SELECT count() FROM counter",
        "sum": "SELECT CAST(sum(value) AS INT) FROM counter",
    }
    return {name: int(engine.query(sql)[0][0]) for name, sql in asked.items()}


def native_counts(timeline: Timeline) -> dict[str, int]:
    """Count what a native trace of a timeline holds."""
    found, parts = messages(timeline), phases(timeline)
    known = np.stack([found.producer, found.send, found.recv, found.consumer]) >= 0
    took = timeline.end_ns - timeline.start_ns
    hops = Hops.of(timeline)
    lanes = int((np.diff(timeline.lane_ptr) > 0).sum()) + hops.lane_link.size
    why = timeline.why
    asides = [] if why is None else [why.waits, why.path]
    on_rank = np.zeros(0, dtype=np.int64) if why is None else timeline.rank_of_row()[why.path.row]
    return {
        "slices": len(timeline) + len(parts) + len(hops) + sum(map(len, asides)),
        "time": int(took.sum() + took[hops.row].sum()) + sum(part.end_ns - part.start_ns for part in parts)
        + sum(int((aside.end_ns - aside.start_ns).sum()) for aside in asides),
        "slice tracks": lanes + len({part.rank for part in parts})
        + (0 if why is None else np.unique(why.waits.rank).size + 1),
        "flows": int(np.maximum(known.sum(axis=0) - 1, 0).sum()) + len(hops)
        + (0 if why is None else np.unique(why.path.row).size - 1),
        "counter tracks": len(timeline.counters) + (why is not None),
        "values": sum(counter.at_ns.size for counter in timeline.counters) + on_rank.size,
        "sum": sum(int(counter.value.sum()) for counter in timeline.counters) + int(on_rank.sum()),
    }  # fmt: skip


def chrome_counts(path: Path) -> dict[str, int]:
    """Count what a Chrome trace holds."""
    events = json.loads(path.read_bytes())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    points = [event for event in events if event["ph"] == "C"]
    flows = Tally((event["cat"], event["name"], event["id"]) for event in events if event["ph"] in "stf")
    return {
        "slices": len(slices),
        "time": sum(round(event["dur"] * 1000) for event in slices),
        "slice tracks": len({(event["pid"], event["tid"]) for event in slices}),
        "flows": sum(count - 1 for count in flows.values()),
        "counter tracks": len({(event["pid"], event["name"]) for event in points}),
        "values": len(points),
        "sum": sum(int(value) for event in points for value in event["args"].values()),
    }
