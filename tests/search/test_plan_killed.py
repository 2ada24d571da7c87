"""A plan whose process is killed: its output stays what it was, and the same command goes on from its rows."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pptrace.cli.main import main
from pptrace.search.runner import Journal

if TYPE_CHECKING:
    from pptrace.run.figures import Row

pytestmark = pytest.mark.needs_plugins

STEP = """\
model: {layers: 2, hidden: 1024, heads: 8, ffn: 4096, vocabulary: 32000}
device: a100-sxm
network: {name: hockney, bandwidth: 25 GB/s}
"""
PLAN = (
    "plan", "step.yaml", "--gpus", "2", "--global", "2", "--sequence", "512", "--tp", "1", "--micro", "1",
    "--vary", "schedule=1f1b,gpipe", "--vary", "zero=1", "--exhaustive", "--executor", "serial",
)  # fmt: skip
KILLED = """\
import os, signal
from pptrace.cli.main import main
from pptrace.search import runner

append, left = runner.Journal.append, [2]

def until_killed(self, *arguments):
    append(self, *arguments)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

runner.Journal.append = until_killed
main()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.yaml").write_text(STEP, encoding="utf-8")
    return tmp_path


def plan(monkeypatch: pytest.MonkeyPatch, output: str) -> int | str | None:
    """Run the command here, and return its status."""
    monkeypatch.setattr(sys, "argv", ["pptrace", *PLAN, "-o", output])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_plan_that_is_killed_goes_on_and_finds_what_an_undisturbed_one_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = "# an earlier plan\n"
    Path("best.yaml").write_text(before, encoding="utf-8")
    killed = subprocess.run([sys.executable, "-c", KILLED, *PLAN, "-o", "best.yaml"], check=False)
    with Journal(Path("best.yaml.journal")) as journal:
        kept = journal.rows
    simulated: list[str] = []
    append = Journal.append

    def counted(journal: Journal, row: Row) -> None:
        simulated.append(str(row))
        append(journal, row)

    monkeypatch.setattr(Journal, "append", counted)

    assert killed.returncode == -signal.SIGKILL
    assert len(kept) == 2
    assert Path("best.yaml").read_text(encoding="utf-8") == before
    assert plan(monkeypatch, "best.yaml") in {0, None}
    again = len(simulated)
    assert plan(monkeypatch, "whole.yaml") in {0, None}
    assert again == len(simulated) - again - 2
    assert Path("best.yaml").read_bytes() == Path("whole.yaml").read_bytes()
    assert sorted(path.name for path in Path().iterdir()) == ["best.yaml", "step.yaml", "whole.yaml"]
