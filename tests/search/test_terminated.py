"""SIGTERM ends studies on processes: workers end too, and the same command then gives the same bytes."""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.search.runner import Journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forked_python import ForkedPython, Program

SCHEDULES = """
import multiprocessing
import time
from pathlib import Path


def held(ranks, microbatches):
    if microbatches < 6 and Path("hold").exists() and multiprocessing.parent_process() is not None:
        Path("held").touch()
        while Path("hold").exists():
            time.sleep(0.01)
    return early(ranks, microbatches)


def early(ranks, microbatches):
    return [[f"{r}{kind}{u}" for kind in "FB" for u in range(microbatches)] for r in range(ranks)]
"""
"""In a worker, ``held`` with few microbatches takes until somebody removes a file."""
COSTS = """\
parallel: {pp: 2}
costs: {name: table, forward: 10 ms, backward: 20 ms}
"""
MODEL = """\
model: {layers: 4, hidden: 1024, heads: 8, ffn: 4096, vocabulary: 32000}
device: a100-sxm
network: {name: hockney, bandwidth: 25 GB/s}
"""
PROGRAM = "import sys; sys.dont_write_bytecode = True; from pptrace.cli.main import main; main()"
COMMANDS = {
    "sweep": "costs.yaml --schedule ./schedules.py:held --over microbatches=2..40+2 -o out.csv",
    "crossover": "costs.yaml --between ./schedules.py:held,./schedules.py:early:pp=4 --over microbatches=1..64",
    "plan": "model.yaml --for any --gpus 4 --global 16 --sequence 512 --tp 1 --micro 1 --vary zero=1 --exhaustive "
    "--vary schedule=./schedules.py:held,./schedules.py:early -o out.yaml",
}


def fill(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in {"schedules.py": SCHEDULES, "costs.yaml": COSTS, "model.yaml": MODEL}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def start(name: str, folder: Path, python: ForkedPython, **streams: int) -> Program:
    return python.start(folder, name, *COMMANDS[name].split(), "--workers", "2", program=PROGRAM, **streams)


def finished(name: str, folder: Path, python: ForkedPython) -> tuple[str, dict[str, bytes]]:
    """Run a command to its end, and return what it prints and the files in its folder."""
    running = start(name, folder, python)
    assert running.wait() == 0, running.printed("stderr")
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "held"}
    return running.printed("stdout"), files


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, forked_python: ForkedPython) -> Callable[[str], Any]:
    """Return a function that gives what a command prints and writes if nothing ends it; it runs once."""

    @cache
    def run(name: str) -> tuple[str, dict[str, bytes]]:
        return finished(name, fill(tmp_path_factory.mktemp(name)), forked_python)

    return run


@pytest.mark.parametrize(
    ("name", "to_group"),
    [
        ("sweep", False),
        ("sweep", True),
        ("crossover", False),
        pytest.param("plan", True, marks=pytest.mark.needs_plugins),
    ],
)
def test_sigterm_ends_a_study_and_its_workers(
    name: str, tmp_path: Path, undisturbed: Callable[[str], Any], forked_python: ForkedPython, *, to_group: bool
) -> None:
    """All studies run points alike, so that each gets the signal once in either way."""
    folder = fill(tmp_path / "ended")
    (folder / "hold").touch()
    reads, writes = os.pipe()
    running = start(name, folder, forked_python, stderr=writes)
    os.close(writes)
    while not running.has_ended and not (folder / "held").exists():
        time.sleep(0.01)
    end = os.killpg if to_group else os.kill  # a terminal or a batch system ends the group
    end(running.process, signal.SIGTERM)
    status = running.wait()
    os.set_blocking(reads, False)
    with os.fdopen(reads, "rb", buffering=0) as stream:
        errors, after = stream.read().decode(), stream.read()

    assert (status, running.printed("stdout")) == (143, ""), errors
    assert after == b""  # no worker has it open: None without an end
    assert errors.splitlines()[-1] == "pptrace: terminated"
    assert "Traceback" not in errors
    assert kept_rows(folder) > 0 or name == "crossover"
    (folder / "hold").unlink()
    assert finished(name, folder, forked_python) == undisturbed(name)


def kept_rows(folder: Path) -> int:
    """Return how many rows the only journal has; 0 where there is none."""
    for path in folder.glob("*.journal"):
        with Journal(path) as journal:
            return len(journal.rows)
    return 0
