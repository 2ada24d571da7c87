"""Traces of our own formats that somebody forged: one line that names the file, never a traceback."""

from __future__ import annotations

import re
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


def test_nested_arrays_are_one_line(pptrace: Any, folder: Path) -> None:
    text = (folder / "own.json").read_text("utf-8")
    deep = "[" * 100_000 + "]" * 100_000  # 3,000 are few to newer versions of Python
    (folder / "own.json").write_text(text.replace('"provenance":', f'"deep":{deep},"provenance":', 1), "utf-8")

    assert pptrace("explain", "own.json").complaint.startswith("own.json: nests its values too deeply")


def test_a_crash_has_a_status_that_no_answer_has(pptrace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug of ours")

    monkeypatch.setattr("pptrace.experiment.run.simulate", crash)
    answer = pptrace("simulate", "--schedule", "table.csv")

    assert answer.code == 70
    assert "ZeroDivisionError: a bug of ours" in answer.err
    assert answer.err.splitlines()[-1].startswith("pptrace: this is a bug in pptrace ")
