"""Two GPU traces without actions through ``pptrace diff``: operators are those around the launches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from pptrace.cli.main import cli

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, gemm_us: int) -> Path:
    """Write a trace in which ``aten::linear`` calls ``aten::mm``, which launches a kernel, and a copy."""
    launches, copies = {"correlation": 1}, {"correlation": 2}
    events: list[dict[str, Any]] = [
        {"cat": "cpu_op", "name": "aten::linear", "ts": 0, "dur": 100, "tid": 1},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 10, "dur": 50, "tid": 1},
        {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 20, "dur": 5, "tid": 1, "args": launches},
        {"cat": "cuda_runtime", "name": "cudaMemcpyAsync", "ts": 70, "dur": 5, "tid": 1, "args": copies},
        {"cat": "kernel", "name": "gemm", "ts": 200, "dur": gemm_us, "tid": 7,
         "args": {**launches, "stream": 7, "device": 0}},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 900, "dur": 30, "tid": 9,
         "args": {**copies, "stream": 9, "device": 0}},
    ]  # fmt: skip
    trace = {
        "schemaVersion": 1, "deviceProperties": [], "distributedInfo": {"rank": 0, "world_size": 1},
        "traceEvents": [{"ph": "X", "pid": 0, **event} for event in events],
    }  # fmt: skip
    path.write_text(json.dumps(trace), encoding="utf-8")
    return path


def test_kernels_streams_and_operators_are_compared(tmp_path: Path) -> None:
    paths = [str(write(tmp_path / f"{name}.json", gemm_us)) for name, gemm_us in (("a", 100), ("b", 400))]
    answer = CliRunner().invoke(cli, ["diff", *paths, "--json"], catch_exceptions=False)
    found = json.loads(answer.stdout)

    assert answer.exit_code == 1
    assert {row["what"]: row["change_ns"] for row in found["kernels"]} == {"gemm": 300_000, "Memcpy HtoD": 0}
    assert {row["what"]: row["change_ns"] for row in found["streams"]} == {"stream 7": 300_000, "stream 9": 0}
    assert {row["what"]: row["total_ns"] for row in found["operators"]} == {
        "aten::mm": [100_000, 400_000], "aten::linear": [30_000, 30_000],
    }  # fmt: skip
    assert CliRunner().invoke(cli, ["diff", paths[0], paths[0]]).exit_code == 0
    gate = CliRunner().invoke(cli, ["diff", *paths, "--fail-over", "3%"]).exception
    assert "no action of a pipeline" in str(gate)
