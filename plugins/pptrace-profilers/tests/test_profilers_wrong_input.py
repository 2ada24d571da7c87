"""Broken, odd, overlapping or missing files of PyTorch's profiler: one line each, and the rest is used."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.config import limits
from pptrace.errors import ConfigError, TraceError
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers import json_events as blocks
from pptrace_profilers import plugin as importers

if TYPE_CHECKING:
    from pathlib import Path

    from pptrace.timeline.measurement import Measurement


def span(name: str, ts: Any, dur: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur}


def written(folder: Path, *events: dict[str, Any], name: str = "rank0.json", **info: Any) -> Path:
    path = folder / name
    path.write_text(
        json.dumps({"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}), encoding="utf-8"
    )
    return path


def measured(*paths: Path, **request: Any) -> Measurement:
    return importers.measure_kineto(list(paths), ImportRequest(**request))


GOOD = (span("PP:0F0", 0, 5), span("PP:0B0", 10, 5))

CONTENT = {
    "empty": (b"", "is empty"),
    "blank": (b" \n ", "is empty"),
    "text": (b"hello", "is not a Chrome JSON trace: it has no traceEvents"),
    "no events": (b'{"schemaVersion": 1}', "is not a Chrome JSON trace: it has no traceEvents"),
    "an empty array": (b'{"schemaVersion": 1, "traceEvents": []}', "holds no action of a pipeline"),
    "binary": (bytes(range(256)) * 9, "is not a Chrome JSON"),
    "deep nesting": (b'{"traceEvents": [' + b"[" * 200_000, "holds no action of a pipeline"),
    "deep nesting before the events": (
        b'{"a": ' + b"[" * 200_000 + b', "traceEvents": [',
        "cannot be read before",
    ),
    "half a gzip file": (gzip.compress(b'{"traceEvents": [' * 9)[:12], "cannot be unpacked"),
    "bytes that are no text": (b'{"traceEvents": [{"ph": "X", "name": "\xff\xfe"}, 3]}', "holds no action"),
}


@pytest.mark.parametrize(("content", "message"), CONTENT.values(), ids=CONTENT.keys())
def test_a_file_that_is_no_trace_is_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)

    with pytest.raises(TraceError, match=re.escape(message)) as caught:
        measured(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_unfolds_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 6_000_000))
    monkeypatch.setattr(limits, "RATIO_FROM", 1 << 20)

    with pytest.raises(
        TraceError, match="unpacks to more than 100 times its size: unpack it first if it is a trace"
    ):
        measured(path)


BOMBS = {
    "pytorch-perfetto": (importers.measure_pftrace, b"\n\x00", 200_000),
    "nccl-inspector": (importers.measure_inspector, b"\n", 400_000),
    "nccl-profiler": (importers.measure_nccl, b"{},", 200_000),
}


@pytest.mark.parametrize(("measure", "unit", "count"), BOMBS.values(), ids=BOMBS.keys())
def test_no_format_unfolds_without_end(
    measure: Any, unit: bytes, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.gz"
    path.write_bytes(gzip.compress((b"[" if unit == b"{}," else b"") + unit * count))
    monkeypatch.setattr(limits, "RATIO_FROM", 1 << 17)

    with pytest.raises(TraceError, match="unpacks to more than 100 times"):
        measure([path], ImportRequest())


def test_an_event_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents": [{"name": "' + b"x" * 3_000_000)
    monkeypatch.setattr(blocks, "MOST_EVENT_BYTES", 1 << 20)

    with pytest.raises(TraceError, match="no event ends within"):
        measured(path)


def test_many_empty_events_are_refused_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(b'{"traceEvents": [' + b"{}," * 700_000 + b"{}]}")
    monkeypatch.setattr(blocks, "MOST_EVENT_BYTES", 1 << 20)

    with pytest.raises(TraceError, match="all events are empty within 1 MiB: not a trace"):
        measured(path)


TIMES = {
    "not a number": ("NaN", 5),
    "endless": ("Infinity", 5),
    "a negative length": (0, -1),
    "no time": (None, 5),
    "a word": ("soon", 5),
    "beyond 64 bits": (2**70, 5),
    "a length of 285 years": (0, 9e15),
    "285 years from now": (9e15, 5),
}


@pytest.mark.parametrize(("ts", "dur"), TIMES.values(), ids=TIMES.keys())
def test_events_without_a_time_are_counted_and_the_others_used(ts: Any, dur: Any, tmp_path: Path) -> None:
    path = written(tmp_path, *GOOD, span("PP:0F1", ts, dur), span("PP:0B1", 30, 1))
    path.write_text(path.read_text(encoding="utf-8").replace('"NaN"', "NaN").replace('"Infinity"', "Infinity"))

    result = measured(path)

    assert [len(step.timeline) for step in result.steps] == [3]
    assert result.notes[0].startswith("rank0.json: 1 events have no time")


@pytest.mark.parametrize("ts", [-5, -5.25])
def test_a_time_before_zero_is_one(ts: float, tmp_path: Path) -> None:
    result = measured(written(tmp_path, span("PP:0F0", ts, 5), span("PP:0B0", 10, 5)))

    assert result.steps[0].timeline.start_ns.tolist() == [0, round((10 - ts) * 1000)]


def test_computations_that_overlap_are_cut_and_counted(tmp_path: Path) -> None:
    result = measured(written(tmp_path, span("PP:0F0", 0, 8), span("PP:0F1", 5, 5), span("PP:0B0", 9, 9)))

    assert [len(step.timeline) for step in result.steps] == [3]
    assert result.steps[0].timeline.start_ns.tolist() == [0, 8000, 10_000]
    assert result.notes == (
        "rank0.json: 2 actions begin before another has ended, 0F1 first: each is moved to start at that end",
    )


ODD = {
    "a world without end": {"rank": 0, "world_size": 10**12},
    "a world that is not a number": {"rank": 0, "world_size": "four"},
    "a rank without end": {"rank": 10**30},
    "a negative rank": {"rank": -3},
    "groups that are none": {"rank": 0, "pg_config": 5},
    "groups of nothing": {"rank": 0, "pg_config": [None, {}, {"ranks": "[["}, {"ranks": [0, 0], "pg_desc": "pp"}]},
    "a nested group": {"rank": 0, "pg_config": [{"ranks": "[" * 100_000, "pg_desc": "pp"}]},
}


@pytest.mark.parametrize("info", ODD.values(), ids=ODD.keys())
def test_an_odd_description_of_the_job_does_not_matter(info: dict[str, Any], tmp_path: Path) -> None:
    assert len(measured(written(tmp_path, *GOOD, **info)).steps[0].timeline) == 2


NAMES = [
    "PP:0F99999999999",
    "PP:0F0+4000000",
    f"Forward {'9' * 5000}",
    "Forward 99999999999",
    "PP:",
    "PP:()OVERLAP_F_B",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_an_action_beyond_all_measure_is_none(name: str, tmp_path: Path) -> None:
    assert len(measured(written(tmp_path, *GOOD, span(name, 20, 5))).steps[0].timeline) == 2


@pytest.mark.parametrize("name", ["PP:0F9999999", "PP:9999999F0"])
def test_actions_that_make_no_pipeline_are_refused_with_the_file(name: str, tmp_path: Path) -> None:
    path = written(tmp_path, *GOOD, span(name, 20, 5))

    with pytest.raises(TraceError, match="its actions do not form a pipeline") as caught:
        measured(path)

    assert str(caught.value).startswith(f"{path}: ")


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    paths = [written(tmp_path, *GOOD, name=name, rank=0) for name in ("a.json", "b.json")]

    with pytest.raises(TraceError, match=r"b\.json: is of rank 0, as a\.json is: leave one out"):
        measured(*paths)


def test_files_of_unknown_ranks_are_refused(tmp_path: Path) -> None:
    paths = [written(tmp_path, *GOOD, name=name) for name in ("a.json", "b.json")]

    with pytest.raises(TraceError, match="has no rank: name the files rank0"):
        measured(*paths)


def test_a_missing_ranks_file_is_said_and_the_others_are_used(tmp_path: Path) -> None:
    outcome = measured(written(tmp_path, *GOOD, rank=0, world_size=40))

    result = ", ".join(str(rank) for rank in range(1, 17))
    assert outcome.notes == (f"no file of rank {result} and 23 others: only the recorded ranks are read",)
    assert len(outcome.steps) == 1


def test_a_file_may_say_that_there_are_millions_of_ranks_and_costs_no_memory_by_that(tmp_path: Path) -> None:
    path = written(tmp_path, *GOOD, rank=0, world_size=2**22 - 1)
    measured(path)

    tracemalloc.start()
    result = measured(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert f"and {2**22 - 18} others" in result.notes[0]
    assert peak < 8 << 20


def test_a_broken_file_among_others_is_said_and_the_others_are_used(tmp_path: Path) -> None:
    broken = tmp_path / "rank1.json"
    broken.write_bytes(b"")

    result = measured(written(tmp_path, *GOOD, rank=0, world_size=2), broken)

    assert result.notes[0] == f"{broken}: is empty"
    assert len(result.steps[0].timeline) == 2


def test_files_of_which_none_can_be_read_are_refused_with_the_first_reason(tmp_path: Path) -> None:
    for name in ("rank0.json", "rank1.json"):
        (tmp_path / name).write_bytes(b"")

    with pytest.raises(TraceError, match=r"none of 2 files can be read: .*rank0\.json: is empty"):
        measured(*sorted(tmp_path.iterdir()))


@pytest.mark.parametrize("layout", ["pp=99999999999", "pp=4,dp=9999999", "pp=0", "x", "pp=4,zz=2"])
def test_a_layout_that_cannot_be_is_refused(layout: str, tmp_path: Path) -> None:
    path = written(tmp_path, *GOOD, rank=0)

    with pytest.raises(ConfigError, match=r"^--layout: "):
        measured(path, layout=layout)


def test_a_file_without_any_action_gives_sums_of_its_kernels(tmp_path: Path) -> None:
    kernels = [
        {**span(name, ts, 5), "cat": "kernel", "args": {"stream": stream, "correlation": ts}}
        for name, ts, stream in (("gemm", 0, 7), ("gemm", 10, 7), ("ncclDevKernel_AllReduce_Sum(x)", 20, 20))
    ]

    result = measured(written(tmp_path, *kernels, rank=0))

    assert result.steps == ()
    sums = [(summary.what, summary.communicates, summary.count, summary.total_ns) for summary in result.summaries]
    assert sums == [("gemm", False, 2, 10_000), ("ncclDevKernel_AllReduce_Sum(x)", True, 1, 5000)]
    assert "no action of a pipeline was found: communication and computation are summed" in result.notes[-1]
