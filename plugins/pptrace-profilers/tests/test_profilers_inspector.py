"""NCCL Inspector's lines: what transfers took, by size; a timeline where they are verbose."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.errors import TraceError
from pptrace.timeline.measurement import ImportRequest
from pptrace_profilers.formats import measure_inspector
from pptrace_profilers.nccl_inspector import read_inspector

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
    assert (one.size_bytes, one.exec_ns, one.bandwidth_kbps) == (17179869184, 61_974_000, 277_210_914)
    assert (one.start_ns, one.process, one.communicator_name) == (-1, ("h", 1639453), "")


def test_messages_have_peers_and_verbose_lines_times(pipeline: Any, tmp_path: Path) -> None:
    first = read_inspector(pipeline.inspector(tmp_path)[1])[0]

    assert (first.what, first.peer, first.communicator_name) == ("Recv", 0, "pp")
    assert first.start_ns % (1000 * MS) == 10 * MS


def test_bandwidth_that_is_missing_is_bytes_over_time(tmp_path: Path) -> None:
    said = json.loads(COLLECTIVE)
    del said["coll_perf"]["coll_algobw_gbs"]

    (one,) = read_inspector(written(tmp_path, json.dumps(said)))

    assert one.bandwidth_kbps == 277_210_913


@pytest.mark.parametrize("pairs", [4, 0], ids=["verbose", "not verbose"])
def test_both_sorts_of_lines_give_summaries_and_only_verbose_ones_clocks(
    pairs: int, pipeline: Any, tmp_path: Path
) -> None:
    found = measure_inspector(pipeline.inspector(tmp_path, verbose=pairs > 0), ImportRequest())

    sums = {(one.rank, one.what, one.count, one.total_ns, one.size_bytes) for one in found.summaries}
    assert sums == {(rank, way, 2, 2 * MS, 8192) for rank in (0, 1) for way in ("receive", "send")}
    assert found.clocks[1].pairs == pairs
    assert any("not verbose" in note for note in found.notes) == (pairs == 0)


def test_lines_of_another_sort_are_passed_over(tmp_path: Path) -> None:
    other = '{"header":{"id":"0x1","rank":0},"proxy_op":{"proxy_id":1}}\n'

    assert len(read_inspector(written(tmp_path, other + COLLECTIVE + "\n"))) == 1


def test_a_last_line_that_was_not_finished_is_left_out(tmp_path: Path) -> None:
    assert len(read_inspector(written(tmp_path, COLLECTIVE + COLLECTIVE[:200]))) == 1


WRONG = {
    "empty": ("", "holds no operation"),
    "broken in the middle": (COLLECTIVE[:50] + "\n" + COLLECTIVE, "line 1 is no JSON object"),
    "no size": (COLLECTIVE.replace("coll_msg_size_bytes", "x"), "line 1 says no operation with its rank, size"),
    "a negative time": (COLLECTIVE.replace("61974", "-1"), "line 1 says no operation"),
    "not a number": (COLLECTIVE.replace("61974", '"NaN"'), "line 1 says no operation"),
    "deep nesting": ('{"a":' * 100_000, "holds no operation"),
    "a list": ("[1]\n" + COLLECTIVE, "line 1 is no JSON object"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_used_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        read_inspector(written(tmp_path, text))

    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)
