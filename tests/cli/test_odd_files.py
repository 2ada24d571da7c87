"""Pipes, names with newlines, and readers that go away."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

MAIN = [sys.executable, "-c", "from pptrace.cli.main import main; main()"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("0F0,0B0\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("p.yaml", ["simulate", "p.yaml"]),
        ("p.csv", ["validate", "p.csv"]),
        ("p.json", ["explain", "p.json"]),
        ("p.pftrace", ["open", "p.pftrace", "--no-browser"]),
        ("p.py", ["simulate", "--schedule", "./p.py:make", "--pp", "1", "--microbatches", "1"]),
    ],
)
def test_a_pipe_that_nobody_writes_to_is_refused(
    pptrace: Any, folder: Path, name: str, arguments: list[str]
) -> None:
    os.mkfifo(folder / name)

    line = pptrace(*arguments).complaint

    assert name in line
    assert "pipe" in line or "not a regular file" in line


def test_the_shell_s_own_pipes_are_read() -> None:
    ran = subprocess.run(
        ["bash", "-c", '"$@" validate <(cat t.csv)', "bash", *MAIN], capture_output=True, text=True, check=False
    )

    assert ": valid: " in ran.stdout, ran.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_a_status_of_its_own(folder: Path, unbuffered: str) -> None:
    (folder / "t.csv").write_text(
        "".join(f"0F{n},0B{n}," for n in range(3000)).rstrip(",") + "\n", encoding="utf-8"
    )
    run = '"$@" show t.csv --width 40 | head -1 >/dev/null; exit ${PIPESTATUS[0]}'

    ran = subprocess.run(
        ["bash", "-c", run, "bash", *MAIN], capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered, "PPTRACE_INTERPRET": "1"},  # no message of a compilation
    )  # fmt: skip

    assert (ran.returncode, ran.stderr) == (141, "")


def test_a_name_with_a_newline_is_one_line(pptrace: Any, folder: Path) -> None:
    written = pptrace("simulate", "--schedule", "t.csv", "-o", "a\nb.json")
    gone = pptrace("explain", "a\nc.json")

    assert (folder / "a\nb.json").exists()
    assert written.err == "wrote a\\nb.json\n"
    assert gone.complaint.startswith("a\\nc.json: ")
