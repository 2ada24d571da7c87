"""Chrome JSON that we wrote gives back the timeline that it was written from."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from drawn_parts import drawn_parts
from drawn_routes import cluster_counters, drawn_routes
from hypothesis import given
from hypothesis import strategies as st
from kineto_lint import lint
from msgspec.structs import replace

from pptrace.errors import ConfigError, TraceError
from pptrace.steps.actions import Action
from pptrace.steps.kinds import PER_STAGE, Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.timeline import Counter, Slice, Timeline
from pptrace.traces.kineto import read, recognises, write

if TYPE_CHECKING:
    from pathlib import Path

LONG = 10**14


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Draw any timeline: lanes in order, each without overlap, all else arbitrary."""
    ranks, microbatches = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    stages = ranks * draw(st.integers(1, 2))
    coarse = draw(st.sampled_from([1, 1000]))
    slices: list[Slice] = []
    lanes = st.tuples(st.integers(0, ranks - 1), st.sampled_from(Stream), st.integers(-1, ranks - 1))
    for rank, stream, peer in draw(st.sets(lanes, max_size=5)):
        now = 0
        for _ in range(draw(st.integers(0, 5))):
            now += coarse * draw(st.integers(0, 10) | st.integers(0, LONG // 1000))
            slices.append(draw(_slices(rank, stream, peer, now, stages, microbatches, coarse)))
            now = slices[-1].end_ns
    timeline = Timeline.from_slices(slices, Placement.looped(ranks, microbatches, stages // ranks))
    cause = st.lists(st.integers(-1, len(slices) - 1), min_size=len(slices), max_size=len(slices))
    return replace(
        timeline,
        cause=np.array(draw(cause), dtype=np.int32),
        counters=(
            *draw(cluster_counters()),
            *(draw(_counters(rank, name)) for rank in range(ranks) for name in draw(NAMES)),
        ),
        routes=draw(drawn_routes(len(slices))),
        parts=draw(drawn_parts(len(slices))),
        provenance=draw(st.dictionaries(st.text(), JSON, max_size=2)),
    )


NAMES = st.sampled_from([(), ("memory",), ("memory", 'in "flight"')])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children, max_size=2) | st.dictionaries(st.text(), children, max_size=2),
    max_leaves=4,
)


@st.composite
def _slices(
    draw: st.DrawFn, rank: int, stream: Stream, peer: int, now: int, stages: int, microbatches: int, coarse: int
) -> Slice:
    kind = draw(st.sampled_from(Kind))
    microbatch = -1 if kind in PER_STAGE else draw(st.integers(0, microbatches - 1))
    dur = coarse * draw(st.integers(0, 3) | st.integers(0, LONG // 1000))
    number = st.sampled_from([0, 0, 1, 12345])
    return Slice(
        rank=rank,
        stream=stream,
        peer=peer,
        action=Action(
            kind=kind,
            stage=draw(st.integers(0, stages - 1)),
            microbatch=microbatch,
            span=1 if microbatch < 0 else draw(st.sampled_from([1, microbatches - microbatch])),
        ),
        start_ns=now,
        end_ns=now + dur,
        enter_ns=draw(st.sampled_from([now, 0, now // 2])),
        lag_ns=draw(number),
        uncontended_ns=draw(st.sampled_from([dur, dur // 2])),
        collective_ns=draw(number),
        size_bytes=draw(number),
        pair=draw(st.sampled_from([-1, -1, 0, 7])),
    )


@st.composite
def _counters(draw: st.DrawFn, rank: int, name: str) -> Counter:
    at = sorted(draw(st.sets(st.integers(0, LONG), max_size=4)))
    values = draw(st.lists(st.integers(-(2**62), 2**62), min_size=len(at), max_size=len(at)))
    return Counter(
        rank=rank,
        name=name,
        unit="bytes",
        at_ns=np.array(at, dtype=np.int64),
        value=np.array(values, dtype=np.int64),
    )


def _assert_same(found: Timeline, wanted: Timeline) -> None:
    assert found.difference(wanted) == ""
    assert dict(found.provenance) == dict(wanted.provenance)
    assert found.counters == wanted.counters


@given(timeline=timelines(), color=st.sampled_from(["kind", "microbatch"]))
def test_one_file_for_all_ranks_gives_the_timeline_back(timeline: Timeline, color: str, tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    write(timeline, path, {"color": color})
    _assert_same(read([path]), timeline)


@given(timeline=timelines())
def test_a_file_per_rank_gives_the_timeline_back(timeline: Timeline, tmp_path: Path) -> None:
    ranks = sorted(set(timeline.lane_rank.tolist()))
    timeline = replace(timeline, counters=tuple(c for c in timeline.counters if c.rank in {-1, *ranks}))
    paths = [tmp_path / f"{rank}.json" for rank in ranks]
    for rank, path in zip(ranks, paths, strict=True):
        write(timeline, path, {"rank": rank})
    if paths:
        _assert_same(read(paths[::-1]), timeline)


@given(timeline=timelines())
def test_no_viewer_drops_or_misreads_an_event(timeline: Timeline, tmp_path: Path) -> None:
    for rank in (None, *sorted(set(timeline.lane_rank.tolist()))):
        path = tmp_path / "any.json"
        write(timeline, path, {} if rank is None else {"rank": rank})
        assert lint(json.loads(path.read_text())["traceEvents"]) == []


@pytest.fixture
def timeline() -> Timeline:
    def compute(rank: int, start: int) -> Slice:
        action = Action(kind=Kind.F, stage=rank, microbatch=0)
        return Slice(rank=rank, stream=Stream.COMPUTE, action=action, start_ns=start, end_ns=start + 10)

    made = Timeline.from_slices([compute(0, 0), compute(1, 20)], Placement.looped(2, 1))
    return replace(made, cause=np.array([-1, 0], dtype=np.int32))


def test_a_file_laid_out_anew_or_compressed_reads_the_same(timeline: Timeline, tmp_path: Path) -> None:
    plain, pretty, packed = (tmp_path / name for name in ("a.json", "b.json", "c.json.gz"))
    write(timeline, plain, {})
    pretty.write_text(json.dumps(json.loads(plain.read_text()), indent=1))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    for path in (pretty, packed):
        _assert_same(read([path]), timeline)


def test_a_cause_on_a_rank_that_was_not_read_is_unknown(timeline: Timeline, tmp_path: Path) -> None:
    write(timeline, tmp_path / "1.json", {"rank": 1})
    result = read([tmp_path / "1.json"])
    assert (len(result), result[0].rank, result[0].cause) == (1, 1, -1)


def test_the_same_timeline_gives_the_same_bytes(timeline: Timeline, tmp_path: Path) -> None:
    write(timeline, tmp_path / "a.json", {})
    write(timeline, tmp_path / "b.json", {})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_our_files_are_recognised_and_a_profilers_are_not(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(timeline, path, {})
    assert recognises(path, path.read_bytes()[:4096])
    assert recognises(path, json.dumps(json.loads(path.read_text()), indent=2).encode()[:4096])
    assert not recognises(path, b'{"schemaVersion": 1, "traceEvents": []}')
    assert not recognises(path, b"")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "cut short|cannot be read|slices are missing"),
        (lambda text: text[: text.rindex("]}")], "the end is missing"),
        (lambda text: text.replace('Format": 2', 'Format": 9'), "format 9, and this version reads 2"),
        (lambda text: text.replace('"correlation"', '"corr"'), "not a trace that pptrace wrote"),
        (lambda text: text.replace('"cat":"cuda_runtime"', '"cat":"other"'), "not a trace that pptrace wrote"),
        (lambda text: text.replace('"kind":"F"', '"kind":"X"'), "not a trace that pptrace wrote"),
        (lambda text: re.sub('"provenance": [{].*?[}]', '"provenance": 3', text), "provenance is not a mapping"),
        (lambda text: re.sub('"provenance": [{].*?[}]', '"provenance": {"configuration": 3}', text),
         "provenance is not a mapping"),
        (lambda _: '{"pptraceFormat": 1}', "not a trace that pptrace wrote"),
        (lambda _: "[]", "not a trace that pptrace wrote"),
        (lambda _: "", "was it cut short"),
        (lambda _: "\x1f", "was it cut short"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_with_its_fault(
    timeline: Timeline, tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "a.json"
    write(timeline, path, {})
    path.write_text(change(path.read_text()))
    with pytest.raises(TraceError, match=f"a.json: .*{message}") as caught:
        read([path])
    assert "\n" not in str(caught.value)


def test_a_kernel_line_that_went_is_missed(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(timeline, path, {})
    lines = [line for line in path.read_text().splitlines(keepends=True) if '"cat":"kernel"' not in line]
    path.write_text("".join(lines))
    with pytest.raises(TraceError, match="slices are missing"):
        read([path])


def test_a_broken_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"{}" * 1000)[:-9])
    with pytest.raises(TraceError, match=r"a\.json\.gz: "):
        read([path])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read: No such file"):
        read([tmp_path / "none.json"])


def test_no_file_at_all_is_an_error() -> None:
    with pytest.raises(TraceError, match="no trace file"):
        read([])


def test_files_of_two_runs_are_not_mixed(timeline: Timeline, tmp_path: Path) -> None:
    write(timeline, tmp_path / "0.json", {"rank": 0})
    write(replace(timeline, provenance={"run": 2}), tmp_path / "1.json", {"rank": 1})
    with pytest.raises(TraceError, match="not of the same run"):
        read([tmp_path / "0.json", tmp_path / "1.json"])


def test_a_rank_in_two_files_is_an_error(timeline: Timeline, tmp_path: Path) -> None:
    write(timeline, tmp_path / "0.json", {"rank": 0})
    write(timeline, tmp_path / "all.json", {})
    with pytest.raises(TraceError, match="rank 0 is in another"):
        read([tmp_path / "0.json", tmp_path / "all.json"])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"rank": 5}, "the timeline has no rank 5"), ({"color": "stage"}, "'stage' is none of kind, microbatch")],
)
def test_an_option_without_meaning_is_refused(
    timeline: Timeline, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        write(timeline, tmp_path / "a.json", options)
