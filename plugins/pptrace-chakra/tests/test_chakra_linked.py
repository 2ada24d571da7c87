"""PyTorch's execution traces with Kineto's times: a recorded run, GPU operations, wrong files.

``fixtures`` holds a step of two processes (PyTorch 2.13, gloo). ``kineto`` has the operations and annotations that
the profiler recorded. ``linked`` is the output of ``chakra_trace_link`` (mlcommons/chakra 1.0.0) for that run and
the output of ``ExecutionTraceObserver``.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pptrace.cli.convert import command as convert
from pptrace.errors import TraceError
from pptrace.plugin import ImportRequest, Kind
from pptrace_chakra.linked import measure_linked
from pptrace_chakra.plugin import is_linked, is_step
from pptrace_chakra.step_files import message_types, read

FIXTURES = Path(__file__).parent / "fixtures"
LINKED = sorted((FIXTURES / "linked").iterdir())


def test_a_linked_run_is_the_run_that_kineto_recorded(tmp_path: Path) -> None:
    for name in ("linked", "kineto"):
        arguments = [str(FIXTURES / name), str(tmp_path / f"{name}.et")]
        assert CliRunner().invoke(convert, arguments, catch_exceptions=False).exit_code == 0
    linked, kineto = (read([tmp_path / f"{name}.{rank}.et" for rank in range(2)]) for name in ("linked", "kineto"))
    assert not linked.difference(kineto)
    (step,) = measure_linked(LINKED, ImportRequest()).steps
    found = [str(step.timeline.action(row)) for row in range(len(step.timeline))]
    assert {"0F0", "0F1", "0B0", "0B1", "1F0", "1F1", "1B0", "1B1", "0SEND_F0", "1RECV_F0", "1SEND_B1"} <= set(
        found
    )
    assert set(step.timeline.size_bytes[step.timeline.kind == Kind.SEND_F].tolist()) == {256 * 512 * 4}


def gpu_trace(rank: int, *, linked: bool = True) -> dict[str, Any]:
    """Return a trace of two stages on GPUs as chakra_trace_link writes it: one annotated action, one message."""
    groups = [
        {"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]},
        {"pg_name": "1", "pg_desc": "pp", "ranks": [0, 1]},
    ]
    nodes = [host(1, "## process_group:init ##", None, inputs=[json.dumps(groups)])]
    numbers = iter(range(2, 99))
    plan = [(f"{rank}F0", "gemm", 7, 0, 100), (f"{rank}B0", "gemm_backward", 7, 400, 200)]
    message = {
        "collective_name": "send" if rank == 0 else "recv",
        "dtype": "BFloat16",
        "pg_name": "1",
        "pg_desc": "pp",
    }
    message |= {"in_msg_nelems": 1000, "out_msg_nelems": 1000}
    plan.insert(
        rank == 0, (f"{rank}{'SEND' if rank == 0 else 'RECV'}_F0", "ncclDevKernel_SendRecv(args)", 20, 110, 50)
    )
    for name, kernel, stream, start, length in plan:
        annotation, operation = next(numbers), next(numbers)
        attributes = message if "nccl" in kernel else {}
        nodes.append(host(annotation, f"PP:{name}", (1000 + start, 20), scope=7))
        nodes.append(host(operation, "aten::mm", (1005 + start, 5), parent=annotation, **attributes))
        if linked:
            gpu = host(next(numbers), kernel, (1500 + start, length), parent=operation, **attributes)
            nodes.append(gpu | {"cat": "kernel", "ph": "X", "stream": stream})
    for node in nodes if not linked else ():
        node.pop("ts", None)
    return {"schema": "1.1.1-chakra.0.0.4", "pid": 1, "time": "", "start_ts": 0, "nodes": nodes, "finish_ts": 1}


def host(
    number: int, name: str, times: tuple[int, int] | None, *, parent: int = 0, inputs: Any = (), **attributes: Any
) -> dict[str, Any]:
    """Return a node of the host with the attributes that PyTorch writes for each, and its own."""
    every = {"rf_id": number, "fw_parent": 0, "seq_id": -1, "scope": 0, "tid": 1, "fw_tid": 0, "op_schema": ""}
    node = {
        "id": number, "name": name, "ctrl_deps": parent,
        "inputs": {"values": list(inputs), "shapes": [], "types": []},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "", "value": value} for key, value in (every | attributes).items()],
    }  # fmt: skip
    return node if times is None else node | {"ts": times[0], "inclusive_dur": times[1], "exclusive_dur": 0}


def written(folder: Path, *, linked: bool = True) -> list[Path]:
    """Write the traces of two ranks."""
    paths = [folder / f"rank{rank}.json" for rank in range(2)]
    for rank, path in enumerate(paths):
        path.write_text(json.dumps(gpu_trace(rank, linked=linked), indent=4))
    return paths


def test_gpu_operations_are_the_times_of_their_actions(tmp_path: Path) -> None:
    (step,) = measure_linked(written(tmp_path), ImportRequest()).steps
    timeline = step.timeline
    spans = {
        str(timeline.action(row)): (
            int(timeline.end_ns[row] - timeline.start_ns[row]),
            int(timeline.size_bytes[row]),
        )
        for row in range(len(timeline))
    }
    for rank in range(2):
        assert spans[f"{rank}F0"] == (100_000, 0)
        assert spans[f"{rank}B0"] == (200_000, 0)
    assert spans["0SEND_F0"] == (50_000, 2000)
    assert spans["1RECV_F0"] == (50_000, 2000)
    assert timeline.ranks == 2


def test_a_trace_without_times_names_the_program_that_adds_them(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"rank0\.json: has no times: link it with the Kineto trace by chakra_trace_link"
    ):
        measure_linked(written(tmp_path, linked=False), ImportRequest())


def protobuf(path: Path) -> Path:
    """Write nodes as chakra_converter names them, without starts."""
    metadata = message_types()["GlobalMetadata"](version="1.0.0")
    node = message_types()["Node"](id=1, name="PP:0F0", type=4, duration_micros=50)
    bodies = [message.SerializeToString() for message in (metadata, node)]
    path.write_bytes(b"".join(bytes([len(body)]) + body for body in bodies))
    return path


def test_protobuf_of_the_converter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match="has no times: give the linked JSON file from which chakra_converter made it"
    ):
        measure_linked([protobuf(tmp_path / "rank0.et")], ImportRequest())


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"nodes"', '"knots"'),
        lambda text: text.replace('"name": "PP:0F0"', '"name": 7'),
        lambda text: text.replace('"attrs": [', '"attrs": [7, '),
        lambda text: "[" * len(text),
    ],
)
def test_a_damaged_file_is_one_line(change: Any, tmp_path: Path) -> None:
    paths = written(tmp_path)
    paths[0].write_text(change(paths[0].read_text()))
    with pytest.raises(TraceError, match=r"rank0\.json") as raised:
        measure_linked(paths[:1], ImportRequest())
    assert "\n" not in str(raised.value)


def test_linked_files_are_recognised_by_their_schema(tmp_path: Path) -> None:
    for path in LINKED:
        head = gzip.decompress(path.read_bytes())[:4096]
        assert is_linked(path, head)
        assert not is_step(path, head)
    assert is_linked(tmp_path, written(tmp_path)[0].read_bytes()[:4096])
