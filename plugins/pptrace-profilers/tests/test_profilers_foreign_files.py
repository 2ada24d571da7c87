"""Files that are no traces of actions: one line says what they are and what to do."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from pptrace.cli.calibrate import command
from pptrace.errors import TableError, TraceError
from pptrace.measured.sides import simulate_source
from pptrace.plugins.registry import Registry
from pptrace.run.trace_files import read_measurement
from pptrace_profilers.plugin import advise

if TYPE_CHECKING:
    from pathlib import Path

PREAMBLE = "".join(f"  argument_{number} ............... {number}\n" for number in range(2_000))
MEGATRON = f"""{PREAMBLE} [2026-08-22 15:22:22] iteration 10/ 100 | elapsed time per iteration (ms): 512.3
(min, max) time across ranks (ms):
    forward-backward ...............................: (480.12, 481.55)
    forward-compute ................................: (140.01, 151.20)
    backward-compute ...............................: (281.10, 299.03)
"""
FILES = {
    "Megatron-LM's timers": ("train.log", MEGATRON, "pptrace annotate --framework megatron"),
    "Megatron-LM's timers of all ranks": (
        "train.log", "times across ranks (ms):\n  forward-compute:\n     rank  0: 140.01\n", "a log with Megatron",
    ),
    "DeepSpeed's flops profiler": (
        "flops.txt",
        "\n-------------------------- DeepSpeed Flops Profiler --------------------------\nProfile Summary\n",
        "with torch.profiler.profile instead",
    ),
    "an execution trace": (
        "et.json", '{\n  "schema": "1.0.1", "pid": 5, "nodes": [{"id": 1, "name": "aten::add"}]}', "have no times",
    ),
    "a report of Nsight Systems": (
        "run.nsys-rep", "\x01\x02binary", "nsys export --type sqlite run.nsys-rep makes the .sqlite file",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "message"), FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_another_sort_names_the_way(
    name: str, content: str, message: str, tmp_path: Path, *, packed: bool
) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())

    result = CliRunner().invoke(command, [str(path)])

    assert isinstance(result.exception, TraceError)
    assert str(result.exception).startswith(f"{path}: is ")
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


@pytest.mark.parametrize(
    ("content", "error"), [(FILES["DeepSpeed's flops profiler"][1], TraceError), ("0F0,x", TableError)]
)
def test_a_text_that_is_no_table_names_the_way_where_it_is_known(
    content: str, error: type[Exception], tmp_path: Path
) -> None:
    (tmp_path / "flops.txt").write_text(content)

    with pytest.raises(error):
        simulate_source(tmp_path / "flops.txt", Registry.load())


@pytest.mark.parametrize("content", [b"", b"hello", b"\x1f\x8b\x08broken", b'{"schema": 5}'])
def test_an_unknown_file_has_no_advice(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)

    assert advise(path) == ""


def test_a_report_beside_its_export_is_left_out(pipeline: Any, tmp_path: Path) -> None:
    pipeline.nsys(tmp_path / "run.sqlite")
    (tmp_path / "run.nsys-rep").write_bytes(b"\x01\x02")

    found, _ = read_measurement([tmp_path], Registry.load())

    assert found.steps
    assert "no importer recognises run.nsys-rep: skipped" in found.notes
