"""Traces of our own formats that somebody forged: one line that names the file, never a traceback."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

DURATION = ',"name":"F 0","pid":1,"tid":7,"ts":0,"dur":'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pptrace: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", encoding="utf-8")
    pptrace("simulate", "--schedule", "table.csv", "-o", "own.json", "-o", "own.pftrace")
    return tmp_path


def replaced(folder: Path, pattern: str, value: str) -> None:
    """Replace what a pattern's first place of the JSON file holds."""
    path = folder / "own.json"
    text, count = re.subn(pattern, lambda _: value, path.read_text("utf-8"), count=1)
    assert count == 1
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("command", ["explain", "replay"])
@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (r'"stage":\d+', f'"stage":{2**63 - 1}'),
        (r'"stage":\d+', '"stage":2'),
        (r'"microbatch":\d+', '"microbatch":-2'),
        (r'(?<="cat":"kernel")(.*?"dur":)[\d.]+', DURATION + "9e15"),
        (r'(?<="cat":"kernel")(.*?"dur":)[\d.]+', DURATION + "9e300"),
        (r'(?<="cat":"kernel")(.*?"dur":)[\d.]+', DURATION + "-1"),
        (r'"ranks": ?\d+', '"ranks":1'),
        (r'"stage_rank": ?\[\[', '"stage_rank":[[7,'),
    ],
)
def test_a_forged_value_is_one_line(pptrace: Any, folder: Path, command: str, pattern: str, value: str) -> None:
    replaced(folder, pattern, value)

    assert pptrace(command, "own.json").complaint.startswith("own.json: ")


def set_placement(folder: Path, **values: Any) -> None:
    """Replace parts of the placement in the JSON file."""
    first, rest = (folder / "own.json").read_text("utf-8").split("\n", 1)
    top = json.loads(first + "]}")
    top["metadata"]["pptrace"]["placement"] |= values
    (folder / "own.json").write_text(json.dumps(top).removesuffix("]}") + "\n" + rest, encoding="utf-8")


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"microbatch_route": [0] * 1_500_000}, "12 slices cannot fill 2 stages x 1,500,000 microbatches"),
        ({"stage_rank": [[0, 1] * 100_000]}, "12 slices cannot fill 200,000 stages x 2 microbatches"),
        ({"edges": [[0, 1]] * 100_000}, "its edge from stage 0 to stage 1 occurs twice"),
        (
            {"stage_rank": [[0, 1] * 1000], "edges": [[0, stage] for stage in range(1, 2000)]},
            "its stage 0 feeds 1,999 stages: at most 1,024 are possible",
        ),
        (
            {"stage_rank": [[0, 1] * 1000], "edges": [[stage, 0] for stage in range(1, 2000)]},
            "its stage 0 is fed by 1,999 stages: at most 1,024 are possible",
        ),
        ({"ranks": 100_000}, "100,000 ranks: a pipeline has at most 4,096"),
    ],
)
def test_a_placement_that_no_step_has_is_refused_in_memory_of_the_files_size(
    pptrace: Any, folder: Path, values: dict[str, Any], fault: str
) -> None:
    set_placement(folder, **values)
    tracemalloc.start()

    answer = pptrace("explain", "own.json")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert answer.complaint == f"own.json: is damaged ({fault}); write it again"
    assert peak < 20 * (folder / "own.json").stat().st_size + (16 << 20)


@pytest.mark.parametrize("name", ["own.json", "own.pftrace"])
def test_a_part_of_a_step_of_many_microbatches_stays_within_the_limit_on_memory(
    pptrace: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    replaced(folder, '"provenance": {', '"provenance": {"trimmed": {"ranks": [0, 1]}, ')
    set_placement(folder, microbatch_route=[0] * 300_000)
    pptrace("convert", "own.json", "own.pftrace")
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", "48MiB")
    tracemalloc.start()

    assert pptrace("explain", name).code == 0

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 48 << 20
    monkeypatch.setenv("PPTRACE_MOST_MEMORY", "33MiB")
    assert pptrace("explain", name).complaint == (
        f"{name}: needs 34 MiB of memory for 2 stages x 300,000 microbatches: "
        "set PPTRACE_MOST_MEMORY to allow more"
    )


def test_nested_arrays_are_one_line(pptrace: Any, folder: Path) -> None:
    text = (folder / "own.json").read_text("utf-8")
    deep = "[" * 100_000 + "]" * 100_000  # 3,000 are few to newer versions of Python
    (folder / "own.json").write_text(text.replace('"provenance":', f'"deep":{deep},"provenance":', 1), "utf-8")

    assert pptrace("explain", "own.json").complaint.startswith("own.json: nests its values too deeply")


def test_a_crash_has_a_status_that_no_answer_has(pptrace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr("pptrace.run.run.simulate", crash)
    answer = pptrace("simulate", "--schedule", "table.csv")

    assert answer.code == 70
    assert "ZeroDivisionError: a bug of ours" in answer.err
    assert answer.err.splitlines()[-1].startswith("pptrace: this is a bug in pptrace ")
