"""Measured files beside a simulation: the manifest puts them where the measurement says they belong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from archive_members import members
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace

from pptrace.api import diff
from pptrace.traces import perfetto

if TYPE_CHECKING:
    from collections.abc import Callable

RUN = Path(__file__).parent / "fixtures" / "sleep-1f1b_csv"
NS_PER_MS = 1_000_000


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.csv"
    path.write_text((RUN / "compute_only.csv").read_text())
    return path


def copied(folder: Path, change: Callable[[int, dict[str, Any]], None]) -> Path:
    folder.mkdir()
    for path in sorted(RUN.glob("rank*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        change(int(path.name[4]), trace)
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps(trace))
    return folder


def held(archive: Path, plan: Path, run: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """Return an archive's files, and what its manifest adds to each file's times."""
    diff(plan, run).save(archive)
    files = members(archive)
    manifest = json.loads(files.pop("perfetto_manifest.json"))["perfetto_manifest"]
    return files, {file["path"]: file.get("clocks", {}).get("offset_ns", 0) for file in manifest["files"]}


def manifest_of(archive: Path) -> dict[str, dict[str, Any]]:
    manifest = json.loads(members(archive)["perfetto_manifest.json"])["perfetto_manifest"]
    return {file["path"]: file for file in manifest["files"]}


@pytest.mark.parametrize("late_ms", [0, 50])
def test_perfetto_traces_are_carried_untouched_and_placed_by_their_own_clock(
    pipeline: Any, late_ms: int, tmp_path: Path
) -> None:
    """What a manifest calls BOOTTIME is the clock of packets that name none, as PyTorch writes them."""
    (tmp_path / "plan.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    (tmp_path / "run").mkdir()
    paths = pipeline.pftrace(tmp_path / "run")
    if late_ms:
        trace = Trace.FromString(paths[1].read_bytes())
        for packet in trace.packet:
            packet.timestamp += late_ms * NS_PER_MS
        paths[1].write_bytes(trace.SerializeToString())

    files, offsets = held(tmp_path / "both.tar", tmp_path / "plan.csv", tmp_path / "run")

    entries = manifest_of(tmp_path / "both.tar")
    assert [files[f"measured/{path.name}"] for path in paths] == [path.read_bytes() for path in paths]
    assert {entry["clocks"]["clock"] for entry in entries.values() if "clocks" in entry} == {"BOOTTIME"}
    apart = offsets["measured/rank1.pftrace"] - offsets["measured/rank0.pftrace"]
    assert abs(apart + late_ms * NS_PER_MS) <= (NS_PER_MS if late_ms else 0)


def test_a_file_read_by_rules_is_carried_untouched_and_the_simulation_is_beside_it(
    pipeline: Any, tmp_path: Path
) -> None:
    (tmp_path / "plan.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    path, rules = pipeline.chrome(tmp_path), pipeline.rules(tmp_path)

    diff(tmp_path / "plan.csv", path, rules=rules).save(tmp_path / "both.tar")

    assert members(tmp_path / "both.tar")["measured/all.json"] == path.read_bytes()
    clocks = manifest_of(tmp_path / "both.tar")["measured/all.json"]["clocks"]
    assert clocks == {"sync_to": {"file": "simulated.pftrace", "clock": "BOOTTIME"}, "offset_ns": 0}


def began(files: dict[str, bytes], offsets: dict[str, int], rank: int, name: str) -> int:
    """Return when an annotation starts on the common timeline; a trace processor skips baseTimeNanoseconds."""
    path = f"measured/rank{rank}.json"
    events = json.loads(files[path])["traceEvents"]
    (event,) = (item for item in events if item.get("name") == name and item.get("cat") == "user_annotation")
    return round(event["ts"] * 1000) + offsets[path]


def test_files_are_those_of_the_profiler_unpacked(plan: Path, tmp_path: Path) -> None:
    files, _ = held(tmp_path / "both.tar", plan, RUN)

    assert sorted(files) == [*(f"measured/rank{rank}.json" for rank in range(4)), "simulated.pftrace"]
    for rank in range(4):
        packed = RUN / f"rank{rank}.json.gz"
        assert files[f"measured/rank{rank}.json"] == gzip.decompress(packed.read_bytes())


def test_the_simulation_starts_when_the_measured_step_does(plan: Path, tmp_path: Path) -> None:
    files, offsets = held(tmp_path / "both.tar", plan, RUN)
    (tmp_path / "simulated.pftrace").write_bytes(files["simulated.pftrace"])

    simulated = perfetto.read([tmp_path / "simulated.pftrace"])

    start = int(simulated.start_ns.min()) + offsets["simulated.pftrace"]
    assert abs(began(files, offsets, 0, "PP:0F0") - start) < 1000


@pytest.mark.parametrize("by_base", [False, True])
def test_a_rank_whose_clock_is_off_is_put_back(plan: Path, tmp_path: Path, *, by_base: bool) -> None:
    """A clock may be off in a file's times, or in what they count from, which trace processors do not read."""

    def on_own_host(rank: int, trace: dict[str, Any]) -> None:
        trace["host_name"] = f"host{rank}"

    def off(rank: int, trace: dict[str, Any]) -> None:
        on_own_host(rank, trace)
        if rank == 2 and by_base:
            trace["baseTimeNanoseconds"] += 50 * NS_PER_MS
        elif rank == 2:
            for event in trace["traceEvents"]:
                if "ts" in event:
                    event["ts"] += 50_000

    before = held(tmp_path / "before.tar", plan, copied(tmp_path / "before", on_own_host))
    after = held(tmp_path / "after.tar", plan, copied(tmp_path / "after", off))

    for rank, name in ((0, "PP:0F0"), (1, "PP:1F3"), (2, "PP:2B4"), (3, "PP:3B7")):
        apart = began(*before, 0, "PP:0B7") - began(*before, rank, name)
        assert abs(began(*after, 0, "PP:0B7") - began(*after, rank, name) - apart) <= 1000
