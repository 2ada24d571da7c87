"""NCCL's example profiler plugin: nesting by order, clocks of their own, processes from communicators."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pptrace.cli.diff import command as diff
from pptrace.errors import ConfigError, TraceError
from pptrace.measured.explanation import operations_document
from pptrace.report.document import text_of
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.nccl_profiler import read_communicator, read_nccl
from pptrace_profilers.plugin import measure_nccl

MS = 1_000_000
SAMPLE = Path(os.environ.get("PPTRACE_TRACES", ".")) / "nccl-profiler" / "nccl_p2p_sample.json"


def line(name: str, cat: str, phase: str, ts: float, args: str = "", pid: int = 1) -> str:
    given = f', "args": {{{args}}}' if args else ""
    where = f'"id": 0, "pid": {pid}, "tid": 1, "ts": {ts}'
    return f'{{"name": "{name}", "cat": "{cat}", "ph": "{phase}", {where}{given}}},\n'


def written(folder: Path, *lines: str, name: str = "a_7_0.json", end: str = "{}]\n") -> Path:
    path = folder / name
    path.write_text("[\n" + "".join(lines) + end, encoding="utf-8")
    return path


def kernel(start: float, end: float, *, pid: int = 1, clock: str = "") -> str:
    args = f'"Channel": 0{clock}'
    return line("KernelCh", "GPU", "b", start, args, pid) + line("KernelCh", "GPU", "e", end, pid=pid)


def collective(count: int, *, pid: int = 1, rank: int = 0, hashed: int = 7) -> str:
    args = f'"CommHash": {hashed}, "Rank": {rank}, "Count": {count}, "Datatype": "ncclFloat32"'
    begin, end = line("AllReduce", "COLL", "b", 5, args, pid), line("AllReduce", "COLL", "e", 6, pid=pid)
    return begin + kernel(5, 9, pid=pid) + end


def message(way: str, rank: int, peer: int, inside: str = "", *, pid: int = 1, hashed: int = 7) -> str:
    """Return a send or receive of 4 bytes whose call on the host takes 1 µs."""
    args = f'"CommHash": {hashed}, "Rank": {rank}, "Peer": {peer}, "Count": 1, "Datatype": "ncclFloat32"'
    return line(way, "P2P", "b", 5, args, pid) + inside + line(way, "P2P", "e", 6, pid=pid)


def test_messages_of_two_ranks_give_summaries_and_clocks(pipeline: Any, tmp_path: Path) -> None:
    shift = (0, 50 * MS)

    found = measure_nccl(pipeline.nccl(tmp_path, shift=shift), ImportRequest())

    assert found.steps == ()
    clock = found.clocks[1]
    assert abs(clock.offset_ns + 50 * MS) <= clock.bound_ns <= 2 * MS
    assert clock.pairs == 4
    sums = [(one.rank, one.what, one.count, one.total_ns, one.size_bytes) for one in found.summaries]
    assert sums == [(rank, way, 2, 2 * MS, 8192) for rank in (0, 1) for way in ("receive", "send")]


def test_a_communicators_hash_may_need_64_bits(pipeline: Any, tmp_path: Path) -> None:
    (one, _) = pipeline.nccl(tmp_path, hashed=2**64 - 1)

    assert [part.ranks for part in read_communicator(one)] == [{"18446744073709551615": 0}]


def test_kernels_belong_to_the_operation_around_them_though_all_have_one_number(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line("AllReduce", "COLL", "b", 10, '"CommHash": 7, "Rank": 0, "Count": 1, "Datatype": "ncclInt8"'),
        line("KernelCh", "GPU", "b", 12, '"Channel": 0, "StartGpuClk": 1000, "StopGpuClk": 4000'),
        line("KernelCh", "GPU", "e", 20),
        line("KernelCh", "GPU", "b", 13, '"Channel": 1, "StartGpuClk": 1500, "StopGpuClk": 6000'),
        line("KernelCh", "GPU", "e", 21),
        line("AllReduce", "COLL", "e", 11),
    )

    (recording,), _ = read_nccl([path])

    assert recording.operations is not None
    assert recording.operations.start_ns.tolist() == [12_000]
    assert recording.operations.end_ns.tolist() == [17_000]


def test_ends_of_nothing_inside_many_open_events_end_nothing(tmp_path: Path) -> None:
    deep = [line(f"Group {at}", "GROUP", "b", 1) for at in range(70)]
    path = written(tmp_path, collective(3), *deep, *[line("AllReduce", "COLL", "e", 20)] * 9, collective(5))

    (found,) = read_communicator(path)

    assert [(one.size_bytes, one.end_ns) for one in found.operations] == [(12, 9_000)]


def test_without_the_gpus_clock_the_hosts_counts(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line("Send", "P2P", "b", 10, '"CommHash": 7, "Rank": 0, "Peer": 1, "Count": 2, "Datatype": "ncclFloat32"'),
        line("KernelCh", "GPU", "b", 12, '"Channel": 16, "StartGpuClk": 1765223116927674080, "StopGpuClk": 0'),
        line("KernelCh", "GPU", "e", 20),
        line("Send", "P2P", "e", 11),
    )

    ((recording,), _) = read_nccl([path])

    ends = recording.ends
    assert (ends.start_ns.tolist(), ends.end_ns.tolist()) == ([12_000], [20_000])
    assert (ends.posted_ns.tolist(), ends.size_bytes.tolist()) == ([10_000], [8])


def test_unquoted_numbers_and_types_of_older_versions_are_read(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line("KernelLaunch", "KERNEL_LAUNCH", "b", 0, '"groupId": 0, "Stream": 0x262ca50'),
        line("AllReduce", "COLL_API", "b", 4, '"count": 3, "datatype": ncclFloat32, "Stream": 0x10'),
        collective(3),
    )

    ((recording,), _) = read_nccl([path])

    assert recording.operations is not None
    assert recording.operations.stream.tolist() == [16]
    assert recording.operations.payloads[0][0].size_bytes == 12


@pytest.mark.parametrize("end", ["{}]\n", "]", "", "{}]", ",,\n"])
def test_a_list_may_lack_its_end(end: str, tmp_path: Path) -> None:
    ((recording,), notes) = read_nccl([written(tmp_path, collective(1), end=end)])

    assert recording.operations is not None
    assert (notes, recording.notes) == ([], ())


def test_a_file_cut_in_the_middle_of_an_event_says_so(tmp_path: Path) -> None:
    ((recording,), _) = read_nccl([written(tmp_path, collective(1), end='{"name": "KernelLa')])

    assert recording.notes == ("a_7_0.json ends in the middle of an event",)


UNTIMED = {
    "never called": line("Send", "P2P", "b", 0.0, '"CommHash": 7, "Rank": 0, "Peer": 1, "Count": 1'),
    "no kernel": message("Send", 0, 1),
    "no end of the kernel": message(
        "Send", 0, 1, kernel(7, 0, clock=', "StartGpuClk": 1765223116927674080, "StopGpuClk": 0')
    ),
}


@pytest.mark.parametrize("untimed", UNTIMED.values(), ids=UNTIMED.keys())
def test_durations_without_a_time_of_the_gpu_are_unknown(untimed: str, tmp_path: Path) -> None:
    found = measure_nccl([written(tmp_path, collective(2), untimed)], ImportRequest())

    rows = [(one.what, one.count, one.total_ns, one.untimed) for one in found.summaries]
    assert rows == [("AllReduce", 1, 4_000, 0), ("send", 1, 0, 1)]
    assert "1 operations have no time of the GPU: their durations are unknown" in found.notes
    text = text_of(operations_document(found, "run"))
    assert (
        " ".join(next(row for row in text.splitlines() if row.startswith("  send")).split()[:3])
        == "send 1 unknown"
    )
    assert "0.004 ms and 1 unknown" in text


def test_a_diff_of_operations_without_times_is_refused(tmp_path: Path) -> None:
    path = str(written(tmp_path, message("Send", 0, 1)))

    result = CliRunner().invoke(diff, [path, path])

    assert isinstance(result.exception, ConfigError | TraceError)
    assert "no recognised action of a pipeline" in str(result.exception)


def test_without_kernels_the_proxy_s_operations_end_a_message(tmp_path: Path) -> None:
    proxy = line("ProgressSend", "PROXY", "b", 7, '"Channel": 0') + line("ProgressSend", "PROXY", "e", 30)
    path = written(tmp_path, message("Send", 0, 1, proxy).replace('"ts": 6', '"ts": 31'))

    ((recording,), _) = read_nccl([path])

    assert (recording.ends.start_ns.tolist(), recording.ends.end_ns.tolist()) == ([5_000], [31_000])


def test_ranks_of_one_process_are_apart(tmp_path: Path) -> None:
    """A call in a group of four ranks is in the file of one of them; single calls are in the file of each rank."""
    timed = kernel(5, 9)
    ring = "".join(
        message("Send", rank, (rank + 1) % 4, timed) + message("Recv", rank, (rank - 1) % 4, timed)
        for rank in range(4)
    )
    files = [
        written(tmp_path, collective(1, rank=rank), ring if rank == 0 else "", name=f"a_7_{rank}.json")
        for rank in range(4)
    ]

    recordings, notes = read_nccl(files)

    assert notes == []
    assert [(one.rank, one.world) for one in recordings] == [(rank, 4) for rank in range(4)]
    assert [one.operations.name.size for one in recordings if one.operations is not None] == [1, 1, 1, 1]
    assert [sorted(one.ends.peer.tolist()) for one in recordings] == [[1, 3], [0, 2], [1, 3], [0, 2]]
    (alone, *_) = read_nccl([files[0]])
    assert [len(one.ends) for one in alone] == [2, 2, 2, 2]


def copied(start: float, stop: float, gpu: str = "") -> str:
    """Return an AllGather by copy engines, as the plugin of NCCL's profiler v6 writes it."""
    host = f'"start_ts_cpu": {start}, "stop_ts_cpu": {stop}, "duration_cpu_us": {stop - start}{gpu}'
    args = f'"eventId": 3, "count": 1024, "datatype": "ncclBfloat16", "strategy": "LSA", {host}'
    sync = f'"eventId": 4, "type": "Ready", "strategy": "LSA", "nRanks": 2, {host}'
    batch = f'"eventId": 5, "numOps": 2, "totalBytes": 2048, {host}'
    return (
        line("AllGather", "CE_COLL", "b", start, args)
        + line("CeSync", "CE_SYNC", "b", start, sync) + line("CeSync", "CE_SYNC", "e", start + 1)
        + line("CeBatch", "CE_BATCH", "b", start + 1, batch) + line("CeBatch", "CE_BATCH", "e", stop)
        + line("AllGather", "CE_COLL", "e", stop)
    )  # fmt: skip


def test_collectives_of_copy_engines_are_the_file_s_communicator_s(tmp_path: Path) -> None:
    by_host, by_gpu, never = copied(10, 30), copied(40, 80, ', "duration_gpu_us": 25'), copied(-1, -1)

    ((recording,), notes) = read_nccl([written(tmp_path, by_host, by_gpu, never)])

    found = recording.operations
    assert found is not None
    assert found.names == ("AllGather",)
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([10_000, 40_000], [30_000, 65_000])
    assert {one.size_bytes for (one,) in found.payloads.values()} == {2048}
    assert {one.group for (one,) in found.payloads.values()} == {"7"}
    assert notes == ["1 operations have no time of the GPU: their durations are unknown"]


def test_communicators_of_one_process_belong_together(tmp_path: Path) -> None:
    files = [
        written(tmp_path, collective(1, pid=pid, rank=rank, hashed=hashed), name=f"a_{hashed}_{rank}_{pid}.json")
        for hashed, rank, pid in ((5, 0, 10), (5, 1, 11), (9, 1, 10), (9, 0, 11))
    ]

    recordings, notes = read_nccl(files)

    assert [(one.rank, one.world) for one in recordings] == [(0, 2), (1, 2)]
    assert [one.operations.name.size for one in recordings if one.operations is not None] == [2, 2]
    assert notes == []


def test_without_a_communicator_of_all_pipelines_are_counted_one_by_one(tmp_path: Path) -> None:
    def end(hashed: int, rank: int, pid: int) -> Path:
        way, inside = "Send" if rank == 0 else "Recv", kernel(5, 6, pid=pid)
        text = message(way, rank, 1 - rank, inside, pid=pid, hashed=hashed)
        return written(tmp_path, text, name=f"p_{hashed}_{rank}.json")

    recordings, notes = read_nccl([end(8, 1, 11), end(8, 0, 10), end(6, 0, 12), end(6, 1, 13)])

    assert [one.rank for one in recordings] == [1, 0, 2, 3]
    assert recordings[0].groups == {"pp 8": (0, 1), "pp 6": (2, 3)}
    assert [one.ends.peer[0] for one in recordings] == [0, 1, 3, 2]
    assert "no communicator has all 4 processes" in notes[0]


def test_two_files_of_one_rank_are_refused_with_both_names(tmp_path: Path) -> None:
    files = [written(tmp_path, collective(1), name=name) for name in ("a_7_0.json", "b_7_0.json")]

    with pytest.raises(TraceError, match=r"b_7_0\.json: is of process 1 and communicator 7, as a_7_0\.json is"):
        read_nccl(files)


def test_two_processes_of_one_rank_are_refused(tmp_path: Path) -> None:
    files = [written(tmp_path, collective(1, pid=pid), name=f"{pid}_7_0.json") for pid in (1, 2)]

    with pytest.raises(TraceError, match=r"is of rank 0 of communicator 7, as 1_7_0\.json is"):
        read_nccl(files)


def test_one_broken_file_is_noted_and_the_others_are_used(pipeline: Any, tmp_path: Path) -> None:
    one, other = pipeline.nccl(tmp_path)
    other.write_text("[5]", encoding="utf-8")

    found = measure_nccl([one, other], ImportRequest())

    assert {summary.rank for summary in found.summaries} == {0}
    assert any("holds no event of NCCL's profiler plugin" in note for note in found.notes)


@pytest.mark.skipif(not SAMPLE.exists(), reason="PPTRACE_TRACES names no folder with NCCL's sample")
def test_nccls_own_sample_is_read() -> None:
    found = measure_nccl([SAMPLE], ImportRequest())

    assert [(one.what, one.count, one.size_bytes) for one in found.summaries] == [
        ("receive", 2, 4194304),
        ("send", 2, 4194304),
    ]
