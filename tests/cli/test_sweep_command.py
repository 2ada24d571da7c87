"""``pptrace sweep`` as a user meets it: what it writes and prints, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from swept_folder import MICROBATCHES, calls, fill, names

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Answer

    Pptrace = Callable[..., Answer]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sweep(pptrace: Pptrace) -> Pptrace:
    return lambda *arguments: pptrace("sweep", "step.yaml", *arguments, "--executor", "serial")


def test_tables_and_pictures_are_written_and_the_journal_goes(sweep: Pptrace) -> None:
    answer = sweep("--over", MICROBATCHES, "-o", "r.csv")

    assert (answer.code, answer.out, answer.err) == (0, "", "wrote r.csv\n")
    assert names() == {"r.csv"}
    assert len(Path("r.csv").read_text().splitlines()) == 9


def test_without_an_output_the_rows_are_printed(sweep: Pptrace) -> None:
    answer = sweep("--over", "microbatches=2,3", "--over", "schedule=./mine.py:eager,./mine.py:even")

    lines = answer.out.splitlines()
    assert answer.code == 1
    assert lines[0].split() == ["microbatches", "schedule", "step", "formula", "table", "idle", "memory"]
    assert lines[1].split()[:2] == ["2", "./mine.py:eager"]
    assert lines[4].split()[:2] == ["3", "./mine.py:even"]
    assert "3 is odd" in lines[4]
    assert names() == set()


def test_json_has_the_rows_of_the_table(sweep: Pptrace) -> None:
    rows = json.loads(sweep("--over", MICROBATCHES, "--json").out)

    assert [row["microbatches"] for row in rows] == list(range(2, 17, 2))
    assert rows[0]["parallel.pp"] == 4
    assert rows[0]["error"] is None


def test_failed_points_are_listed_by_what_went_wrong_and_the_exit_code_says_so(sweep: Pptrace) -> None:
    over = ["--over", "network.latency=1 us,2 us", "--over", "microbatches=2,3", "--over"]
    answer = sweep(*over, "schedule=./mine.py:even,./mine.py:eager", "-o", "r.csv")

    assert answer.code == 1
    heading, line, _ = answer.err.splitlines()
    assert heading == "2 of 8 points failed:"
    assert line.startswith("  network.latency=1 us microbatches=3 schedule=./mine.py:even and 1 more: ")
    assert line.endswith("--over microbatches=3: batch.microbatches: 3 is odd; nearest that work: 4")


def test_where_every_point_fails_the_table_says_why_and_nothing_is_drawn(sweep: Pptrace) -> None:

    answer = sweep("--over", "microbatches=3,5", "--schedule", "./mine.py:even", "-o", "r.csv", "-o", "f.svg")

    assert answer.code == 1
    assert answer.err.splitlines()[0] == "2 of 2 points failed:"
    assert answer.err.splitlines()[-2:] == ["wrote r.csv", "nothing to draw in f.svg"]
    assert names() == {"r.csv"}


def test_a_table_of_failed_points_is_replaced(sweep: Pptrace) -> None:
    assert sweep("--over", "microbatches=3", "--schedule", "./mine.py:even", "-o", "r.csv").code == 1

    assert sweep("--over", "network.latency=1 us,2 us", "--microbatches", "4", "-o", "r.csv").code == 0


def test_a_run_with_another_hash_seed_is_byte_equal(sweep: Pptrace) -> None:
    pytest.importorskip("pyarrow")
    outputs = [f"r.{ending}" for ending in ("csv", "parquet", "svg", "png", "pdf")]
    arguments = ["--over", MICROBATCHES, "--over", "pp=2,4", *(word for name in outputs for word in ("-o", name))]
    sweep(*arguments)
    written = [Path(name).read_bytes() for name in outputs]

    code = "from pptrace.cli.main import main; main()"
    command = [sys.executable, "-c", code, "sweep", "step.yaml", *arguments, "--executor", "serial", "--fresh"]
    subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": "1"}, check=True, capture_output=True)

    assert [Path(name).read_bytes() for name in outputs] == written


WRONG = [
    ([], "Missing option '--over'"),
    (["--over", "microbatches="], "--over microbatches: has no value"),
    (["--over", MICROBATCHES, "--over", MICROBATCHES], "also sets it"),
    (["--over", MICROBATCHES, "--microbatches", "8"], "--microbatches: --over microbatches sets it too"),
    (["--over", MICROBATCHES, "-o", "r.txt"], "r.txt: no such format; write .csv or .parquet"),
    (["--over", MICROBATCHES, "-o", "r.csv", "-o", "./r.csv"], "two outputs are this file"),
    (
        ["--over", MICROBATCHES, "-o", "nowhere/r.csv"],
        "nowhere/r.csv: cannot be written: the folder does not exist",
    ),
    (["--over", MICROBATCHES, "-o", "folder.csv"], "folder.csv: cannot be written: it is a folder"),
    (["--over", MICROBATCHES, "-o", "other.csv"], "other.csv: is not a table of pptrace sweep"),
    (["--over", MICROBATCHES, "--plot", "pie"], "--plot pie: no such picture"),
    (["--over", MICROBATCHES, "--plot", "winners", "--y", "idle,step_ns"], "--y: 2 figures; winners show 1"),
    (["--over", MICROBATCHES, "--y", ","], "--y: missing"),
    (["--over", MICROBATCHES, "--x", "pp", "-o", "f.svg"], "--x: pp is not an axis of this sweep"),
    (["--over", "p2p=async,batched", "--microbatches", "2", "-o", "f.svg"], "--plot: no axis has numbers"),
    (["--over", MICROBATCHES, "--plot", "difference", "-o", "f.svg"], "--plot: there is nothing to compare"),
    (["--over", MICROBATCHES, "--workers", "0"], "--workers"),
    (["--over", MICROBATCHES, "--executor", "cloud"], "named 'cloud'"),
    (["--over", MICROBATCHES, "other.yaml"], "one configuration at a time"),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=lambda value: " ".join(value)[:50])
def test_what_cannot_be_swept_is_one_line_and_leaves_no_file(
    pptrace: Pptrace, arguments: list[str], named: str
) -> None:
    Path("folder.csv").mkdir()
    Path("other.csv").write_text("a,b\n1,2\n")

    assert named in pptrace("sweep", "step.yaml", *arguments).complaint
    assert names() == {"folder.csv", "other.csv"}
    assert calls() == 0


@pytest.mark.parametrize("outputs", [(), ("r.csv",), ("r.csv", "f.svg")])
def test_a_figure_that_is_none_is_refused_before_any_point_runs(sweep: Pptrace, outputs: tuple[str, ...]) -> None:
    arguments = [word for name in outputs for word in ("-o", name)]

    answer = sweep("--over", MICROBATCHES, *arguments, "--y", "steps")

    assert "--y: steps: no such figure (did you mean 'step_ns'?" in answer.complaint
    assert calls() == 0
    assert names() == set()


def test_a_terminal_sees_a_bar_and_the_workers_are_forked_beside_no_thread(tmp_path: Path) -> None:
    import pty

    leader, follower = pty.openpty()
    code = "import sys; from pptrace.cli.main import main; main()"
    command = [sys.executable, "-c", code, "sweep", "step.yaml", "--over", MICROBATCHES, "-o", "r.csv"]
    environment = {**os.environ, "PPTRACE_DISABLE_PLUGINS": "all", "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, env=environment, stderr=follower, cwd=tmp_path) as process:
        os.close(follower)
        shown = b""
        while chunk := _read(leader):
            shown += chunk
    os.close(leader)

    assert process.returncode == 0
    assert b"8/8" in shown
    assert b"wrote r.csv" in shown


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 1 << 16)
    except OSError:  # Linux says so where the other end is closed
        return b""
