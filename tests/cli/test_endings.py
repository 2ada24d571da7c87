"""A command that SIGTERM ends leaves nothing half-written, and one that cannot print says so in one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forked_python import ForkedPython

ENDED_WHILE_WRITING = """
import os, signal, sys

writes, ended = [], []

def end(event, arguments):
    if writes and not ended:
        ended.append(event)
        os.kill(os.getpid(), signal.SIGTERM)
    elif event == "open" and isinstance(arguments[0], str) and arguments[2] & os.O_CREAT:
        path = os.path.abspath(arguments[0])
        if path.startswith(os.getcwd()) and not path.endswith(".journal"):
            writes.append(path)

sys.addaudithook(end)
from pptrace.cli.main import main
main()
"""
"""The command line, which gets SIGTERM when it has created a file in its folder and goes on."""

FILES = {
    "table.csv": "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
    "step.yaml": "schedule: table.csv\ncosts: {name: table, forward: 1 ms, backward: 2 ms}\n",
    "out.json": "old",
}
WRITES = {
    "simulate": "step.yaml -o out.json",
    "simulate compressed": "step.yaml -o out.json -o out.pftrace.gz -o out.html",
    "show": "table.csv -o out.svg",
    "costs": "step.yaml -o out.yaml",
    "sweep": "step.yaml --over costs.forward=1ms,2ms --executor serial -o out.csv",
    "new-plugin": "mine",
}
PRINTS = {
    "simulate": "step.yaml",
    "simulate as json": "step.yaml --json",
    "show": "table.csv",
    "costs": "step.yaml",
    "validate": "table.csv",
    "plugins": "",
    "schema": "",
    "sweep": "step.yaml --over costs.forward=1ms,2ms --executor serial",
    "--version": "",
    "simulate help": "--help",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def arguments_of(name: str, commands: Mapping[str, str]) -> list[str]:
    return [name.split(maxsplit=1)[0], *commands[name].split()]


@pytest.mark.parametrize("name", WRITES)
def test_sigterm_leaves_no_temporary_file_and_the_old_one(
    name: str, folder: Path, forked_python: ForkedPython
) -> None:
    ended = forked_python.run(folder, *arguments_of(name, WRITES), program=ENDED_WHILE_WRITING)

    assert ended.returncode == 143, ended.stderr
    assert ended.stderr.splitlines()[-1] == "pptrace: terminated"
    assert {path.name for path in folder.iterdir() if path.suffix != ".journal"} == {*FILES}
    assert (folder / "out.json").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("name", PRINTS)
def test_a_full_standard_output_is_one_line(name: str, folder: Path, forked_python: ForkedPython) -> None:
    with Path("/dev/full").open("wb") as full:
        ended = forked_python.run(folder, *arguments_of(name, PRINTS), stdout=full.fileno())

    assert ended.stderr == "pptrace: standard output is full: free some space, or write elsewhere\n"
    assert ended.returncode == 2
