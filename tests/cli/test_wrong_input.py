"""What a user gets wrong is one line on the standard error that says what, where and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Answer

    Pptrace = Callable[..., Answer]

MINE = '''
from pptrace.errors import ConstraintError


def make(ranks, units):
    """Every forward, then every backward."""
    return [[f"{r}F{u}" for u in range(units)] + [f"{r}B{u}" for u in range(units)] for r in range(ranks)]


def picky(ranks, units):
    """Take no more microbatches than ranks."""
    raise ConstraintError(f"{units} pass the ranks ({ranks})", nearest=str(ranks), key="batch.microbatches")
'''
STEP = """\
schedule: ./mine.py:make
parallel: {pp: 4}
batch: {microbatches: 8}
network: {name: hockney, bandwidth: 50 GB/s}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "step.yaml").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def changed(folder: Path, old: str, new: str) -> str:
    """Write the configuration with one part changed, and return its name."""
    assert STEP.count(old) == 1
    (folder / "changed.yaml").write_text(STEP.replace(old, new))
    return "changed.yaml"


def test_no_command_shows_the_commands(pptrace: Pptrace) -> None:
    answer = pptrace()

    assert answer.code == 2
    assert answer.err.startswith("Usage: pptrace [OPTIONS] COMMAND")
    assert "\n  simulate    Simulate one training step" in answer.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--frob"], "No such option '--frob'. (see pptrace --help)"),
        (["validate"], "Missing argument 'FILE'. (see pptrace validate --help)"),
    ],
)
def test_an_unknown_option_or_a_missing_argument_names_the_help(
    pptrace: Pptrace, arguments: list[str], line: str
) -> None:
    assert pptrace(*arguments).complaint == line


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("./mine.py:make", "zorro", "changed.yaml:1:1: schedule: no installed plugin offers a schedule"),
        ("./mine.py:make", "./gone.py:make", "changed.yaml:1:1: schedule: cannot read ./gone.py"),
        (
            "./mine.py:make",
            "./mine.py:picky",
            "changed.yaml:3:9: batch.microbatches: 8 pass the ranks (4); nearest",
        ),
        ("hockney", "hockny", "changed.yaml:4:11: network: no installed plugin offers a network named 'hockny'"),
        ("50 GB/s", "1 B/s", "changed.yaml:4:26: network.bandwidth: the smallest bandwidth is 1 kB/s"),
    ],
)
def test_what_plugins_refuse_has_its_place_in_the_file(
    pptrace: Pptrace, folder: Path, old: str, new: str, line: str
) -> None:
    assert pptrace("simulate", changed(folder, old, new)).complaint.startswith(line)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--schedule", "zorro"], "--schedule: no installed plugin offers a schedule named 'zorro'"),
        (["--network", "hockny"], "--network: no installed plugin offers a network named 'hockny'"),
        (["--costs", "unti"], "--costs: no installed plugin offers a cost model named 'unti'"),
        (["--set", "network.bandwidth=1 B/s"], "--set network.bandwidth=1 B/s: network.bandwidth: the smallest"),
        (
            ["--schedule", "./mine.py:picky", "--microbatches", "9"],
            "--microbatches: batch.microbatches: 9 pass the",
        ),
    ],
)
def test_what_plugins_refuse_has_its_place_on_the_command_line(
    pptrace: Pptrace, arguments: list[str], line: str
) -> None:
    assert pptrace("simulate", "step.yaml", *arguments).complaint.startswith(line)
