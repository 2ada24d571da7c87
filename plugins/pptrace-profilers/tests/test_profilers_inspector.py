"""NCCL Inspector's lines: what transfers took, by size; a timeline where they are verbose."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pptrace.cli.calibrate import command
from pptrace.errors import TraceError
from pptrace.run.trace_files import head_of
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.nccl_inspector import read_inspector
from pptrace_profilers.plugin import is_inspector, measure_inspector

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
COLLECTIVE = (
    '{"header":{"id":"0x7f8c496ae9f661","rank":2,"n_ranks":8,"nnodes":1},"metadata":{"inspector_output_format_version":'
    '"v4.0","git_rev":"","dump_timestamp_us":1748030377748202,"hostname":"h","pid":1639453},"coll_perf":{"coll":'
    '"AllReduce","coll_sn":1407,"coll_msg_size_bytes":17179869184,"coll_exec_time_us":61974,"coll_timing_source":'
    '"kernel_gpu","coll_algobw_gbs":277.210914,"coll_busbw_gbs":485.119099}}\n'
)


def written(folder: Path, text: str) -> Path:
    path = folder / "h-pid1.log"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_collective_is_read_with_its_size_and_time(tmp_path: Path) -> None:
    (one,) = read_inspector(written(tmp_path, COLLECTIVE))

    assert (one.what, one.rank, one.ranks, one.peer) == ("AllReduce", 2, 8, -1)
    assert (one.size_bytes, one.exec_ns) == (17179869184, 61_974_000)
    assert (one.start_ns, one.process, one.communicator_name) == (-1, ("h", 1639453), "")


def test_messages_have_peers_and_verbose_lines_times(pipeline: Any, tmp_path: Path) -> None:
    first = read_inspector(pipeline.inspector(tmp_path)[1])[0]

    assert (first.what, first.peer, first.communicator_name) == ("Recv", 0, "pp")
    assert first.start_ns % (1000 * MS) == 10 * MS


@pytest.mark.parametrize("pairs", [4, 0], ids=["verbose", "not verbose"])
def test_both_sorts_of_lines_give_summaries_and_only_verbose_ones_clocks(
    pairs: int, pipeline: Any, tmp_path: Path
) -> None:
    result = measure_inspector(pipeline.inspector(tmp_path, verbose=pairs > 0), ImportRequest())

    sums = {
        (summary.rank, summary.what, summary.count, summary.total_ns, summary.size_bytes)
        for summary in result.summaries
    }
    assert sums == {(rank, way, 2, 2 * MS, 8192) for rank in (0, 1) for way in ("receive", "send")}
    assert result.clocks[1].pairs == pairs
    assert any("not verbose" in note for note in result.notes) == (pairs == 0)


SIZES = (65_536, 1 << 20, 1 << 24)
SLOW, FAST = 10, 25  # GB/s, between nodes and inside one


def job(folder: Path, *, sizes: tuple[int, ...] = SIZES, drop: int = -1) -> Path:
    """Write lines of four ranks on two nodes; of each message one end waits, now here, now there."""
    folder.mkdir()
    lines: list[list[str]] = [[] for _ in range(4)]
    for number in range(5 * len(sizes)):
        size = sizes[number % len(sizes)]
        for source in range(3):
            took = 12 + size // (1000 * (SLOW if source == 1 else FAST))
            for rank, peer, what in ((source, source + 1, "Send"), (source + 1, source, "Recv")):
                wait = 400 + number if (number + rank) % 2 else 0
                said = {
                    "p2p": what, "p2p_sn": len(lines[rank]), "p2p_peer": peer, "p2p_msg_size_bytes": size,
                    "p2p_exec_time_us": took + wait, "p2p_timing_source": "kernel_gpu",
                }  # fmt: skip
                lines[rank].append(inspected(rank, "pp", p2p_perf=said))
        for rank in range(4):
            late = 0 if rank == number % 4 else 250
            said = {
                "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": size,
                "coll_timing_source": "kernel_gpu", "coll_exec_time_us": 40 + 3 * size // 40_000 + late,
            }  # fmt: skip
            lines[rank].append(inspected(rank, "dp", coll_perf=said))
    for rank, line in enumerate(lines):
        if rank != drop:
            (folder / f"h{rank // 2}-pid{rank}.log").write_text("".join(line), encoding="utf-8")
    return folder


def inspected(rank: int, name: str, **said: Any) -> str:
    header = {"id": name, "comm_name": name, "rank": rank, "n_ranks": 4, "nnodes": 2}
    return json.dumps({"header": header, "metadata": {"hostname": f"h{rank // 2}", "pid": rank}, **said}) + "\n"


def fitted(folder: Path) -> dict[str, tuple[int | None, float | None]]:
    found = json.loads(CliRunner().invoke(command, [str(folder), "--json"]).stdout)["network"]
    return {item["what"]: (item["link"]["latency_ns"], item["link"]["bytes_per_s"]) for item in found}


def test_a_network_is_fitted_to_sizes_and_times_whoever_waited(tmp_path: Path) -> None:
    result = fitted(job(tmp_path / "run"))

    assert list(result) == ["messages between nodes", "messages inside a node", "AllReduce of 4 ranks (dp)"]
    for (latency, rate), (expected, gigabytes) in zip(
        result.values(), ((12_000, SLOW), (12_000, FAST), (40_000, 20)), strict=True
    ):
        assert latency == pytest.approx(expected, abs=2_000)  # lines are in whole microseconds
        assert rate == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_the_fit_is_written_as_a_network_without_costs(tmp_path: Path) -> None:
    path = tmp_path / "network.yaml"

    result = CliRunner().invoke(command, [str(job(tmp_path / "run")), "-o", str(path)])

    assert "times of computations are unknown" in result.stdout
    text = path.read_text(encoding="utf-8")
    assert "\nnetwork:\n  name: hockney\n  bandwidth: 10" in text
    assert "costs:" not in text


def test_one_size_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    folder = job(tmp_path / "run", sizes=SIZES[:1])

    refused = CliRunner().invoke(command, [str(folder), "-o", str(tmp_path / "network.yaml")])

    assert "cannot be distinguished from one size" in refused.stdout
    assert isinstance(refused.exception, TraceError)
    assert not (tmp_path / "network.yaml").exists()


def test_a_rank_without_lines_leaves_messages_with_one_end(tmp_path: Path) -> None:
    folder = job(tmp_path / "run", drop=2)

    result = CliRunner().invoke(command, [str(folder)])

    assert "30 lines of messages match none of the peer: their durations may include waits" in result.stderr
    assert "messages inside a node: 15 of" in result.stdout
    assert "messages: 30 of" in result.stdout


def test_times_that_are_no_kernels_are_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, COLLECTIVE + COLLECTIVE.replace("kernel_gpu", "collective_cpu"))

    result = measure_inspector([path], ImportRequest())

    assert [item.size_bytes.tolist() for item in result.by_size] == [[2 * 7 * 17179869184 // 8]]
    assert any("1 operations have no bytes, or no time of their kernel" in note for note in result.notes)


def test_a_collective_that_moves_more_than_there_is_is_none(tmp_path: Path) -> None:
    path = written(tmp_path, COLLECTIVE.replace("17179869184", str(2**62 - 1)))

    assert measure_inspector([path], ImportRequest()).by_size == ()


def grouped(lines: str, *, nested: bool = False) -> str:
    """Return the lines in v4.3: header and metadata once per communicator, in its ``dump_stats``."""
    last, result = None, ""
    for fields in map(json.loads, lines.splitlines()):
        context = {"header": fields.pop("header"), "metadata": fields.pop("metadata")}
        if context != last:
            stats = {"coll_records": 1, "p2p_records": 1, "proxy_records": 1}
            record = {"dump_stats": stats | context} if nested else context | {"dump_stats": stats}
            result += json.dumps(record) + "\n" + json.dumps({"proxy_trace": {"record_type": "proxy_op"}}) + "\n"
        last, result = context, result + json.dumps(fields) + "\n"
    return result


@pytest.mark.parametrize("nested", [False, True])
def test_lines_of_v4_3_share_the_communicator_of_their_dump(
    pipeline: Any, tmp_path: Path, *, nested: bool
) -> None:
    old = (
        pipeline.inspector(tmp_path)[1].read_text(encoding="utf-8")
        + COLLECTIVE
        + COLLECTIVE.replace("2,", "5,", 1)
    )
    expected = read_inspector(written(tmp_path, old))

    path = written(tmp_path, grouped(old, nested=nested))

    assert read_inspector(path) == expected
    assert is_inspector(head_of(path))


def test_a_line_of_v4_3_before_any_dump_is_refused(tmp_path: Path) -> None:
    orphan = grouped(COLLECTIVE).splitlines()[-1]

    with pytest.raises(TraceError, match="line 1 has no operation with rank"):
        read_inspector(written(tmp_path, orphan + "\n" + grouped(COLLECTIVE)))


def test_lines_of_rccl_s_profiler_are_read(tmp_path: Path) -> None:
    perf = (
        '"coll_perf":{"coll":"AllReduce","coll_sn":10,"coll_msg_size_bytes":4194304,"coll_algo":"Ring",'
        '"coll_exec_time_us":150.30,"coll_timing_source":"gpu_globaltimer","decomposition":{"n_proxy_ops":8},'
        '"event_trace_ts":{"kernel_events":[{"channel_id":0,"kernel_start_ts":123456,"kernel_stop_ts":128006}]}}'
    )
    text = f'{{"header":{{"rank":3,"n_ranks":8}},{perf}}}\n{{"summary":{{"complete":true}}}}\n'
    path = written(tmp_path, text)

    (one,) = read_inspector(path)

    assert is_inspector(head_of(path))
    assert (one.rank, one.ranks, one.size_bytes, one.exec_ns, one.start_ns) == (3, 8, 4194304, 150_300, -1)
    assert one.by_kernel


def test_lines_of_another_sort_are_passed_over(tmp_path: Path) -> None:
    other = '{"header":{"id":"0x1","rank":0},"proxy_op":{"proxy_id":1}}\n'

    assert len(read_inspector(written(tmp_path, other + COLLECTIVE + "\n"))) == 1


def test_a_last_line_that_was_not_finished_is_left_out(tmp_path: Path) -> None:
    assert len(read_inspector(written(tmp_path, COLLECTIVE + COLLECTIVE[:200]))) == 1


WRONG = {
    "empty": ("", "holds no operation"),
    "broken in the middle": (COLLECTIVE[:50] + "\n" + COLLECTIVE, "line 1 is no JSON object"),
    "no size": (COLLECTIVE.replace("coll_msg_size_bytes", "x"), "line 1 has no operation with rank, size"),
    "a negative time": (COLLECTIVE.replace("61974", "-1"), "line 1 has no operation"),
    "not a number": (COLLECTIVE.replace("61974", '"NaN"'), "line 1 has no operation"),
    "deep nesting": ('{"a":' * 100_000, "holds no operation"),
    "a list": ("[1]\n" + COLLECTIVE, "line 1 is no JSON object"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_used_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read_inspector(written(tmp_path, text))

    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)
