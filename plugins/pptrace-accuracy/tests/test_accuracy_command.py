"""``pptrace accuracy`` prints figures, writes rows and a scatter, and refuses what it cannot use in one line."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pptrace.cli.main import main

OWN = Path(__file__).parents[3] / "examples" / "published-steps" / "own.csv"


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Pptrace = Callable[..., Answer]


@pytest.fixture
def pptrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pptrace:
    """Return a function that runs ``pptrace``: its exit code, output and errors."""

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["pptrace", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        return Answer(int(stop.value.code or 0), *capsys.readouterr())

    return run


def test_the_command_prints_and_writes_its_rows_and_ends_its_journal(pptrace: Pptrace, tmp_path: Path) -> None:
    output = tmp_path / "errors.csv"

    answer = pptrace("accuracy", str(OWN), "-o", str(output), "--executor", "serial", "--json")

    assert answer.code == 0
    found = json.loads(answer.out)
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert len(rows) == len(found["rows"]) == 4
    assert not list(tmp_path.glob("*.journal"))
    assert [bool(row["skipped"]) for row in rows] == [False, False, False, True]
    assert all(float(row["simulated_s"]) > 0 for row in rows[:3])


def test_the_text_has_errors_choices_scale_and_reasons(pptrace: Pptrace) -> None:
    answer = pptrace("accuracy", str(OWN), "--executor", "serial")

    assert answer.code == 0
    for part in ("mean absolute", "best microbatch", "slowdown by scale", "skipped, 1 rows", "16 to 32"):
        assert part in answer.out


def test_the_text_counts_rows_that_do_not_fit(pptrace: Pptrace) -> None:
    answer = pptrace("accuracy", str(OWN), "--executor", "serial", "--set", "device.memory=10 GiB")

    assert "simulated memory above the device's, 3 rows: check zero and recompute" in answer.out


def test_a_scatter_is_drawn(pptrace: Pptrace, tmp_path: Path) -> None:
    picture = tmp_path / "scatter.svg"

    answer = pptrace("accuracy", str(OWN), "--executor", "serial", "-o", str(picture))

    assert answer.code == 0
    assert "measured step" in picture.read_text()


def test_no_cell_is_a_formula(pptrace: Pptrace, tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    head, first, *_ = OWN.read_text().splitlines()
    steps.write_text(f"{head}\n{first.replace('a job of ours', '=1+1')}\n")

    pptrace("accuracy", str(steps), "--executor", "serial", "-o", str(tmp_path / "rows.csv"))

    head, row, *_ = (tmp_path / "rows.csv").read_text().splitlines()
    assert head.startswith("line,source,model")
    assert row.startswith("2,'=1+1,")


def test_what_cannot_be_used_gets_one_line(pptrace: Pptrace, tmp_path: Path) -> None:
    for arguments, reason in (
        (("-o", str(tmp_path / "rows.txt")), "no such format"),
        (("--set", "batch"), "write --set KEY=VALUE"),
        (("--executor", "nobody-s"), "nobody-s"),
    ):
        answer = pptrace("accuracy", str(OWN), *arguments)

        assert answer.code != 0
        assert reason in answer.err
        assert len(answer.err.strip().splitlines()) == 1
