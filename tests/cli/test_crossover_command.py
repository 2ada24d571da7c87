"""``pptrace crossover`` from the command line."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Answer

    Pptrace = Callable[..., Answer]

LATE = """
def first(ranks, microbatches):
    return [[f"{r}{kind}{u}" for kind in "FB" for u in range(microbatches)] for r in range(ranks)]
"""
PAIR = ("--between", "./late.py:first:pp=16,./late.py:first:pp=2:costs.forward=2:costs.backward=4")
"""3 (m + 15) against 6 (m + 1) units: a tie at 13 microbatches."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "late.py").write_text(LATE)
    (tmp_path / "step.yaml").write_text("parallel: {pp: 2}\ncosts: unit\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_text_shows_both_sides_of_every_flip(pptrace: Pptrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PPTRACE_INTERPRET", "1")  # no message of a first compilation
    answer = pptrace("crossover", "step.yaml", *PAIR, "--over", "microbatches=1..64")

    wide, narrow = PAIR[1].split(",")
    assert answer.err == ""
    lines = answer.out.splitlines()
    assert lines[1] == f"{wide} against {narrow} over batch.microbatches, 1 to 64: 2 crossovers"
    table = [line.split() for line in lines[4:-4]]
    assert [(row[0], row[1], row[3]) for row in table if row[-1] != "crossover"] == [
        ("1", "48", "12"), ("12", "81", "78"), ("13", "84", "84"), ("14", "87", "90"), ("64", "237", "390"),
    ]  # fmt: skip
    assert sum(row[-1] == "crossover" for row in table) == 2
    assert lines[-3] == f"faster: {narrow} up to 12, a tie at 13, {wide} from 14"


def test_json_holds_the_flips(pptrace: Pptrace) -> None:
    document = json.loads(pptrace("crossover", "step.yaml", *PAIR, "--over", "microbatches=1..64", "--json").out)

    assert [(flip["below"]["value"], flip["above"]["value"]) for flip in document["crossovers"]] == [
        ("12", "13"), ("13", "14"),
    ]  # fmt: skip
    assert document["crossovers"][0]["below"]["step_ns"] == [81_000_000, 78_000_000]


def test_points_and_tolerance_are_taken(pptrace: Pptrace) -> None:
    few = json.loads(
        pptrace(
            "crossover", "step.yaml", *PAIR, "--over", "costs.unit=1 ms..1 s", "--microbatches", 4, "--points", 3,
            "--tolerance", "0.1%", "--json",
        ).out
    )  # fmt: skip

    assert len(few["points"]) == 3
    assert few["crossovers"] == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([*PAIR], "Missing option '--over'. (see pptrace crossover --help)"),
        (["--over", "microbatches"], "Missing option '--between'. (see pptrace crossover --help)"),
        ([*PAIR, "--over", "pp", "--over", "vp"], "one axis at a time, not pp and vp"),
        (["--between", "./late.py:first", "--over", "microbatches"], "--between: 1 is not a pair"),
        (
            [*PAIR, "--over", "microbatches", "--tolerance", "2"],
            "a search needs two points or more, and a tolerance between 0 and 1",
        ),
        (
            [*PAIR, "--over", "microbatches", "--tolerance", "x%"],
            "Invalid value for '--tolerance': 'x%' is not a share",
        ),
        (
            [*PAIR, "--over", "microbatches", "--points", "1"],
            "Invalid value for '--points': 1 is not in the range",
        ),
        ([*PAIR, "--over", "pp"], "--over pp: parallel.pp: ./late.py:first:pp=16 sets the key that varies"),
        (
            [*PAIR, "--over", "microbatches=64..1"],
            "--over microbatches: batch.microbatches: the range is reversed",
        ),
    ],
)
def test_wrong_input_is_one_line(pptrace: Pptrace, arguments: list[str], line: str) -> None:
    assert pptrace("crossover", "step.yaml", *arguments).complaint.startswith(line)


def test_ctrl_c_ends_it_in_one_line(pptrace: Pptrace, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pptrace.search.basis.Basis.run", stop)

    answer = pptrace("crossover", "step.yaml", *PAIR, "--over", "microbatches")

    assert answer.code == 130
    assert answer.err == "\npptrace: interrupted\n"


def test_a_terminal_gets_a_message_with_what_runs(pptrace: Pptrace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")

    answer = pptrace("crossover", "step.yaml", *PAIR, "--over", "microbatches=1..8")

    assert answer.code == 0
    assert answer.out.startswith("unit costs")
    assert "microbatches 8: ./late.py:first" in answer.err
