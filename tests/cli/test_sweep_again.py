"""A sweep that is started again: after an interruption, with more values, with another configuration."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from swept_folder import MICROBATCHES, MINE, calls, fill, names

from pptrace.search.runner import Journal

if TYPE_CHECKING:
    from collections.abc import Callable

    from forked_python import ForkedPython

    from conftest import Answer

    Pptrace = Callable[..., Answer]


SLOW = ("sweep", "step.yaml", "--schedule", "./mine.py:slow", "--over", "microbatches=2..24+2", "--workers", "2")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sweep(pptrace: Pptrace) -> Pptrace:
    return lambda *arguments: pptrace("sweep", "step.yaml", *arguments, "--executor", "serial")


def rows_in(journal: str) -> int:
    """Return how many rows are in a copy of a journal, which a sweep may be writing."""
    with TemporaryDirectory() as folder:
        for path in Path().glob(f"{journal}*"):
            with suppress(FileNotFoundError):
                shutil.copy(path, folder)
        with Journal(Path(folder, journal)) as copied:
            return len(copied.rows)


def test_more_values_run_the_new_points_alone(sweep: Pptrace) -> None:
    sweep("--over", MICROBATCHES, "--over", "pp=2,4", "-o", "all.csv")
    sweep("--over", "microbatches=6,2", "--over", "pp=4,2", "-o", "r.csv")
    calls()

    answer = sweep("--over", MICROBATCHES, "--over", "pp=2,4", "-o", "r.csv")

    assert answer.code == 0
    assert calls() == (16 - 4) * 2  # the table that the step has, and the one at unit costs
    assert Path("r.csv").read_bytes() == Path("all.csv").read_bytes()


def test_another_output_of_the_same_sweep_runs_nothing(sweep: Pptrace) -> None:
    pytest.importorskip("pyarrow")
    sweep("--over", MICROBATCHES, "-o", "r.parquet")
    calls()

    answer = sweep("--over", MICROBATCHES, "-o", "r.csv", "-o", "r.parquet", "-o", "f.svg", "--y", "idle")

    assert (answer.code, calls()) == (0, 0)
    sweep("--over", MICROBATCHES, "-o", "again.csv")
    assert Path("r.csv").read_bytes() == Path("again.csv").read_bytes()
    assert names() == {"r.csv", "r.parquet", "f.svg", "again.csv"}


def test_rows_of_values_that_are_not_named_again_stay(sweep: Pptrace) -> None:
    sweep("--over", "microbatches=2,4", "-o", "r.csv")
    two, four = Path("r.csv").read_text().splitlines()[1:]
    sweep("--over", "microbatches=4,6", "-o", "r.csv")

    rows = Path("r.csv").read_text().splitlines()[1:]

    assert rows[0] == four
    assert rows[1].startswith("6,")
    assert rows[2] == two


def test_failed_points_are_tried_again(sweep: Pptrace) -> None:
    over = ["--over", "microbatches=2,3", "--over", "schedule=./gone.py:make,./mine.py:eager", "-o", "r.csv"]
    assert sweep(*over).code == 1
    calls()
    Path("gone.py").write_text(MINE.replace("def eager", "def make"))

    answer = sweep(*over)

    assert (answer.code, calls()) == (0, 4)


FOREIGN = [
    (["--pp", "8"], "parallel.pp was 4 and is 8"),
    (["--set", "network.latency=6 us"], "network.latency was 5 us and is 6 us"),
    (["--network", "ideal"], "network.name was hockney and is ideal"),
    (["--set", "costs.activation=1 GiB"], "costs.activation was 0 B and is 1 GiB"),
    (["--over", "pp=2,4"], "it was swept over microbatches, and this is over microbatches, pp"),
]


@pytest.mark.parametrize("journal", [False, True], ids=["table", "journal"])
@pytest.mark.parametrize(("arguments", "reason"), FOREIGN, ids=lambda value: " ".join(value)[:40])
def test_results_of_another_configuration_are_refused_with_the_first_key(
    sweep: Pptrace, arguments: list[str], reason: str, *, journal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        if journal:
            stop_after(patch, 2)
        sweep("--over", MICROBATCHES, "-o", "r.csv")
    name = "r.csv.journal" if journal else "r.csv"
    before = Path(name).read_bytes()

    complaint = sweep("--over", MICROBATCHES, *arguments, "-o", "r.csv").complaint

    assert complaint.startswith(f"{name}: is from another configuration: {reason}; name another file")
    assert Path(name).read_bytes() == before


def stop_after(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Press Ctrl-C once so many points are finished."""
    from pptrace.search import sweep as study

    whole = study.run_point
    left = iter(range(rows))

    def run_point(*arguments: Any, **named: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return whole(*arguments, **named)

    monkeypatch.setattr(study, "run_point", run_point)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [("pptrace", "0.0.1", "it is from pptrace 0.0.1"), ("plugins", "pptrace-x 9", "it is from pptrace-x 9, and")],
)
def test_results_of_other_versions_are_refused(sweep: Pptrace, column: str, value: str, reason: str) -> None:
    sweep("--over", "microbatches=2", "-o", "r.csv")
    header, row = Path("r.csv").read_text().splitlines()
    cells = row.split(",")
    cells[header.split(",").index(column)] = value
    Path("r.csv").write_text(f"{header}\n{','.join(cells)}\n")

    assert reason in sweep("--over", MICROBATCHES, "-o", "r.csv").complaint


def test_a_schedule_s_file_that_changed_is_another_configuration(sweep: Pptrace) -> None:
    over = ["--over", MICROBATCHES, "--over", "schedule=./mine.py:eager", "-o", "r.csv"]
    sweep(*over)
    Path("mine.py").write_text(MINE + "\n\ndef more(): ...\n")

    assert "./mine.py:eager was another file then" in sweep(*over).complaint


def test_the_same_value_in_other_words_is_taken_over(sweep: Pptrace) -> None:
    fixed = ["--microbatches", "4", "-o", "r.csv", "--over"]
    sweep(*fixed, "network.bandwidth=400 Gb/s,1 GB/s")
    before = Path("r.csv").read_text()
    calls()

    answer = sweep(*fixed, "network.bandwidth=50 GB/s,1 GB/s")

    assert (answer.code, calls()) == (0, 1)  # it is looked at, and not simulated
    assert Path("r.csv").read_text().splitlines()[1].split(",")[:-1] == before.splitlines()[1].split(",")[:-1]
    assert len(Path("r.csv").read_text().splitlines()) == 3


def test_a_file_of_settings_that_changed_is_another_configuration(sweep: Pptrace) -> None:
    over = ["--over", "machine=fast.yaml,slow.yaml", "--microbatches", "2", "-o", "r.csv"]
    Path("fast.yaml").write_text("network: {latency: 1 us}\n")
    Path("slow.yaml").write_text("network: {latency: 9 us}\n")
    sweep(*over)
    Path("slow.yaml").write_text("network: {latency: 8 us}\n")

    assert "network.latency was 9 us and is 8 us" in sweep(*over).complaint


def test_fresh_replaces_what_was_there(sweep: Pptrace) -> None:
    sweep("--over", MICROBATCHES, "-o", "r.csv")
    calls()

    answer = sweep("--over", MICROBATCHES, "--pp", "2", "-o", "r.csv", "--fresh")

    assert (answer.code, calls()) == (0, 16)
    assert ",2," in Path("r.csv").read_text().splitlines()[1]


def test_a_fresh_sweep_that_is_interrupted_goes_on_without_the_word(
    sweep: Pptrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep("--over", MICROBATCHES, "-o", "r.csv")
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        sweep("--over", MICROBATCHES, "--pp", "2", "-o", "r.csv", "--fresh")
    old = Path("r.csv").read_bytes()
    calls()

    answer = sweep("--over", MICROBATCHES, "--pp", "2", "-o", "r.csv")

    assert (answer.code, calls()) == (0, 10)
    assert Path("r.csv").read_bytes() != old


def test_ctrl_c_keeps_finished_rows_and_says_how_to_go_on(sweep: Pptrace, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, 3)

    answer = sweep("--over", MICROBATCHES, "-o", "r.csv")

    assert answer.code == 130
    assert answer.err.strip().splitlines() == [
        "3 finished rows are stored in r.csv.journal: the same command continues",
        "pptrace: interrupted",
    ]
    assert names() == {"r.csv.journal"}


def test_ctrl_c_without_an_output_says_that_nothing_is_kept(
    sweep: Pptrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 3)

    assert "finished rows are stored only with an output: add -o FILE" in sweep("--over", MICROBATCHES).err


def test_ctrl_c_before_the_first_row_says_that_nothing_is_kept(
    sweep: Pptrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 0)

    assert "\nno row was finished\n" in sweep("--over", MICROBATCHES, "-o", "r.csv").err
    assert names() == set()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "damage", [b"SQLite format 3\0" * 9, b"\xff" * 5000, b'{"pptrace-sweep":1}\n{"point":"x"}\n']
)
def test_a_sweep_with_a_damaged_journal_warns_and_gives_the_table_of_an_undisturbed_one(
    sweep: Pptrace, monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    sweep("--over", MICROBATCHES, "-o", "whole.csv")
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        sweep("--over", MICROBATCHES, "-o", "r.csv")
    Path("r.csv.journal").write_bytes(damage)

    answer = sweep("--over", MICROBATCHES, "-o", "r.csv")

    warning = "pptrace: warning: r.csv.journal: is damaged and replaced: its rows run again"
    assert answer.code == 0
    assert answer.err.splitlines() == [warning, "wrote r.csv"]
    assert Path("r.csv").read_bytes() == Path("whole.csv").read_bytes()
    assert names() == {"r.csv", "whole.csv"}


def test_the_journal_of_another_command_is_refused(sweep: Pptrace) -> None:
    with Journal(Path("r.csv.journal")) as journal:
        journal.append({"point": "0123456789abcdef", "step_ns": 5})

    answer = sweep("--over", MICROBATCHES, "-o", "r.csv")

    assert answer.complaint.startswith(
        "r.csv.journal: is the journal of another command: name another file with -o"
    )
    assert names() == {"r.csv.journal"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, forked_python: ForkedPython) -> bytes:
    """Return the table of a sweep that ran to its end."""
    path = tmp_path_factory.mktemp("undisturbed")
    fill(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PPTRACE_DISABLE_PLUGINS", "all")
        assert forked_python.run(path, *SLOW, "-o", "whole.csv").returncode == 0
    return (path / "whole.csv").read_bytes()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_sweep_that_is_ended_goes_on_and_gives_the_bytes_of_an_undisturbed_one(
    end: signal.Signals, undisturbed: bytes, folder: Path, forked_python: ForkedPython
) -> None:
    sweep = forked_python.start(folder, *SLOW, "-o", "r.csv")
    while rows_in("r.csv.journal") < 3 and not sweep.has_ended:
        time.sleep(0.01)
    os.kill(sweep.process, end)
    sweep.wait()
    done = rows_in("r.csv.journal")
    time.sleep(0.5)  # a worker that outlived the sweep would still count
    calls()

    assert forked_python.run(folder, *SLOW, "-o", "r.csv").returncode == 0
    assert 3 <= done < 12
    assert calls() == (12 - done) * 2
    assert Path("r.csv").read_bytes() == undisturbed
    assert names() == {"r.csv"}
