"""``pptrace accuracy`` prints figures, writes rows and a scatter, and refuses what it cannot use in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Answer

    Pptrace = Callable[..., Answer]

pytestmark = pytest.mark.usefixtures("plugins")
OWN = Path(__file__).parents[2] / "examples" / "published-steps" / "own.csv"


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plugins of this repository take part: presets are theirs."""
    monkeypatch.delenv("PPTRACE_DISABLE_PLUGINS", raising=False)


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


def test_a_scatter_is_drawn(pptrace: Pptrace, tmp_path: Path) -> None:
    picture = tmp_path / "scatter.svg"

    answer = pptrace("accuracy", str(OWN), "--executor", "serial", "--csv", "-o", str(picture))

    assert answer.code == 0
    assert answer.out.startswith("line,source,model")
    assert "measured step" in picture.read_text()


def test_no_cell_is_a_formula(pptrace: Pptrace, tmp_path: Path) -> None:
    steps = tmp_path / "steps.csv"
    head, first, *_ = OWN.read_text().splitlines()
    steps.write_text(f"{head}\n{first.replace('a job of ours', '=1+1')}\n")

    answer = pptrace("accuracy", str(steps), "--executor", "serial", "--csv")

    assert answer.out.splitlines()[1].startswith("2,'=1+1,")


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
