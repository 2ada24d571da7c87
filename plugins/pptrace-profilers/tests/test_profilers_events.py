"""Events are the same however a file is written, and those with details have all of them."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import TraceError
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers import json_events as blocks
from pptrace_profilers.json_events import Keep, read_events
from pptrace_profilers.plugin import measure_kineto

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pptrace_profilers.events import Events

KEEP = Keep(
    categories=frozenset({"kernel", "cuda_runtime", "user_annotation"}),
    prefixes=("c10d::",),
    details=("nccl",),
    without=frozenset({"cudaEventQuery"}),
)
NCCL = "ncclDevKernel_SendRecv"
MANY = 1000
"""Repetitions that make several blocks and batches."""
COLUMNS = ("start_ns", "end_ns", "correlation", "stream")


def event(category: str, name: str, at: float, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 2, "ts": at, "dur": 1.5, "args": more}


def many() -> list[dict[str, Any]]:
    result = []
    for number in range(MANY):
        at = 10.0 * number
        result += [
            event("cpu_op", "aten::mm", at, **{"Input Dims": "[[1, 2]]"}),
            event("cpu_op", "c10d::send", at + 1),
            event("cuda_runtime", "cudaLaunchKernel", at + 2, correlation=number),
            event("cuda_runtime", "cudaEventQuery", at + 3, correlation=900_000 + number),
            {"ph": "s", "id": number, "pid": 1, "tid": 2, "ts": at + 2, "cat": "ac2g", "name": "ac2g"},
            event("kernel", NCCL, at + 4, correlation=number, stream=7, dtype="Half"),
            {"ph": "M", "name": "process_name", "pid": number % 3, "tid": 0, "args": {"name": f"p{number % 3}"}},
            {"name": "written otherwise", "cat": "kernel", "ph": "X", "pid": 1, "tid": 1, "ts": at + 5, "dur": 2,
             "args": {"stream": 9}},
        ]  # fmt: skip
    return result


def facts(events: Events) -> list[tuple[Any, ...]]:
    columns = [getattr(events, column).tolist() for column in COLUMNS]
    rows = zip(events.name.tolist(), events.category.tolist(), events.thread.tolist(), *columns, strict=True)
    return [
        (events.names[name], events.categories[category], events.threads[thread], *rest)
        for name, category, thread, *rest in rows
    ]


def kineto(listed: list[dict[str, Any]]) -> str:
    events = ",\n  ".join(json.dumps(item).replace('{"ph":', '{\n    "ph":', 1) for item in listed)
    return f'{{"schemaVersion": 1, "traceEvents": [\n  {events}\n  ], "traceName": "x"}}'


LAYOUTS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "kineto": kineto,
    "compact": lambda listed: json.dumps({"traceEvents": listed}, separators=(",", ":")),
    "spaced": lambda listed: json.dumps({"traceEvents": listed}),
    "indented": lambda listed: json.dumps({"traceEvents": listed}, indent=3),
    "bare": json.dumps,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_kept_is_the_same_however_it_is_written(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(LAYOUTS[layout](many()))
    events = read_events(path, KEEP)

    expected = [
        (item["name"], item["cat"], (item["pid"], item["tid"]), round(item["ts"] * 1000),
         round((item["ts"] + item["dur"]) * 1000), item["args"].get("correlation", -1),
         item["args"].get("stream", -1))
        for item in many()
        if item["ph"] == "X" and item["name"] in {"c10d::send", "cudaLaunchKernel", "written otherwise", NCCL}
    ]  # fmt: skip
    assert facts(events) == expected
    details = {events.name_of(row): one.dtype for row, one in events.arguments.items()}
    assert details == {NCCL: "Half"}
    assert len(events.arguments) == MANY
    assert not events.cut


def test_details_are_each_event_s_own(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    listed = [event("kernel", NCCL, float(n), **{"In msg nelems": n, "Held": NCCL}) for n in range(MANY)]
    otherwise = [dict(reversed(list(item.items()))) for item in listed]
    for layout in ("kineto", "compact"):
        for each in (listed, otherwise):
            path.write_text(LAYOUTS[layout](each))

            arguments = read_events(path, KEEP).arguments

            assert [arguments[row].in_elements for row in range(MANY)] == list(range(MANY))


def test_an_event_inside_an_event_s_arguments_is_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    odd = event("kernel", "odd", 5.0, stream=3)
    odd["args"]["held"] = {"ph": "X", "cat": "kernel", "name": "inner", "ts": 1, "dur": 1}
    path.write_text(LAYOUTS["spaced"]([*many(), odd, *many()]))

    names = [name for name, *_ in facts(read_events(path, KEEP))]

    assert names.count("odd") == 1
    assert "inner" not in names
    assert len(names) == 2 * 4 * MANY + 1


def test_arguments_do_not_hold_on_to_the_file_s_text(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    listed = [event("kernel", "ncclX", float(n), **{"Concrete Inputs": "[0, 1]"}) for n in range(MANY)]
    path.write_text(kineto(listed))

    held = [bytes(argument.inputs) for argument in read_events(path, KEEP).arguments.values()]

    assert held == [b'"[0, 1]"'] * MANY


def memory(total: Any, device: Any) -> dict[str, Any]:
    """Return an instant as PyTorch writes it with ``profile_memory=True``."""
    said = {"Total Reserved": 0, "Total Allocated": total, "Bytes": 1, "Device Id": 0, "Device Type": device}
    where = {"cat": "cpu_instant_event", "s": "t", "pid": 1, "tid": 2}
    return {"ph": "i", **where, "name": "[memory]", "ts": 1, "args": said}


def test_the_most_memory_that_was_allocated_on_gpus_is_listed_by_rank(pipeline: Any, tmp_path: Path) -> None:
    paths = pipeline.kineto(tmp_path)
    for rank, path in enumerate(paths):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] += [memory((2 + rank) << 30, 1), memory(1 << 30, 1), memory(9 << 30, 0)]
        path.write_bytes(gzip.compress(json.dumps(trace).encode()))

    notes = measure_kineto(paths, ImportRequest()).notes

    assert "most memory that PyTorch had allocated on the ranks' GPUs: 2.0, 3.0 GiB" in notes


@pytest.mark.parametrize("wrong", [(None, 1), ("many", 1), (-5, 1), (10**30, 1), (1.5, 1), (1 << 30, None)])
def test_memory_that_is_no_number_is_none(wrong: tuple[Any, Any], tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": [memory(*wrong)]}), encoding="utf-8")

    assert read_events(path, Keep(categories=frozenset(), prefixes=("[memory]",))).allocated == {}


def test_events_that_are_not_wanted_count_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    others = [{"ph": "i", "ts": 1.0}, {}, {"ph": 5}] * 50
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": others}))
    monkeypatch.setenv("PPTRACE_MOST_EVENTS", "150")
    assert read_events(path, KEEP).bad == 50
    monkeypatch.setenv("PPTRACE_MOST_EVENTS", "149")

    with pytest.raises(TraceError, match="holds more than 149 events: set PPTRACE_MOST_EVENTS"):
        read_events(path, KEEP)


def test_a_file_most_of_whose_events_are_broken_is_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_MOST_BROKEN", 10)
    for broken in (10, 11):
        path = tmp_path / f"{broken}.json"
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": 5}] * broken}))
    assert read_events(tmp_path / "10.json", KEEP).bad == 10

    with pytest.raises(TraceError, match="holds 11 broken events and 0 whole ones: not a trace"):
        read_events(tmp_path / "11.json", KEEP)


LONG = "x" * 100_000


@pytest.mark.parametrize(
    "unlike",
    [
        lambda number: {"name": f"{number}{LONG}"},
        lambda number: {"tid": f"{number}{LONG}"},
        lambda number: {"cat": "user_annotation", "name": f"\N{GRINNING FACE}{number}{LONG[:20_000]}"},
        lambda number: {"name": NCCL, "args": {"dtype": f"{number}{LONG}"}},
        lambda number: {"name": NCCL, "args": {"Concrete Inputs": [number, LONG]}},
    ],
    ids=["names", "threads", "wide", "arguments", "raw"],
)
def test_texts_that_are_kept_count_as_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unlike: Callable[[int], dict[str, Any]]
) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([event("kernel", "k", at) | unlike(at) for at in range(100)]), encoding="utf-8")
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", "30 MiB")
    read_events(path, KEEP)
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", "10 MiB")

    with pytest.raises(TraceError, match="holds more events than memory does"):
        read_events(path, KEEP)


def test_texts_that_recur_are_kept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([event("kernel", LONG, at) for at in range(100)]), encoding="utf-8")
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", "1 MiB")

    assert len(read_events(path, KEEP)) == 100
