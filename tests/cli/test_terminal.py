"""What others named or wrote cannot drive a terminal, a spreadsheet, a page or a shell."""

from __future__ import annotations

import csv
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pptrace.report import svg
from pptrace.report.document import Document, Line, Table, page_of, text_of
from pptrace.sanitize import csv_text, csv_written, printable, shell_word
from pptrace.search.sweep import write_table

if TYPE_CHECKING:
    import pytest

EVIL = "F\x1b[31m\x07\x9b2J\u202e\nG"
SPELT = "F\\u001b[31m\\u0007\\u009b2J\\u202e\\nG"
CONTROLS = "\x1b\x07\x9b\u202e"
ROW = {"point": "1", "configuration": "c"}


def on_a_terminal(*arguments: str, folder: Path) -> str:
    """Run pptrace with a terminal for its output and errors, and return what arrived there."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"PPTRACE_DISABLE_PLUGINS": "all", "TERM": "dumb", "NO_COLOR": "1"}
    code = "from pptrace.cli.main import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=theirs, stderr=theirs, cwd=folder, env=environment
    ) as process:
        os.close(theirs)
        arrived = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            arrived += part
        process.wait()
    os.close(ours)
    return arrived.decode()


def test_a_file_of_any_name_only_shows_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("0F0,0B0\n", encoding="utf-8")
    target = f"{EVIL}.json"

    shown = on_a_terminal("simulate", "--schedule", "t.csv", "-o", target, folder=tmp_path)
    refused = on_a_terminal("explain", f"{EVIL}.gone", folder=tmp_path)

    assert (tmp_path / target).exists()
    assert f"wrote {SPELT}.json\r\n" in shown
    assert refused.startswith(f"pptrace: {SPELT}.gone: ")
    assert refused.count("\n") == 1
    assert not any(control in shown + refused for control in CONTROLS)


def test_json_has_names_as_they_are(pptrace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "caf\u00e9\u202e.csv"
    Path(name).write_text("0F0,0B0\n", encoding="utf-8")

    printed = json.loads(pptrace("simulate", "--schedule", name, "--json").out)

    assert printed["provenance"]["configuration"]["schedule"]["name"] == name


def test_documents_and_pages_hold_no_control_characters() -> None:
    document = Document(title=EVIL, lead=(Line(text=EVIL), Table(rows=((EVIL, "1"),))), notes=(EVIL,))
    drawn = str(svg.drawing(1, 1, EVIL, svg.text(0, 0, EVIL)))

    for text in (text_of(document), page_of(document), drawn):
        assert SPELT[:-3] in text
        assert not any(control in text for control in CONTROLS)
    assert text_of(document).splitlines() == [SPELT, f"{SPELT}  1", f"note: {SPELT}"]


def test_a_cell_is_no_formula_and_is_read_as_it_was(tmp_path: Path) -> None:
    cells = ["=1+1", "+x", "-x", "@SUM(A1)", "\tx", "'=1", "''=", "'plain'", "1f1b"]
    path = tmp_path / "t.csv"
    rows: list[Any] = [{**ROW, "schedule.name": cell, "step_ns": -5} for cell in cells]

    write_table(path, path, [*rows[0]], rows)

    with path.open(encoding="utf-8", newline="") as file:
        written = list(csv.DictReader(file))
    assert not any(row["schedule.name"].startswith(("=", "+", "-", "@", "\t")) for row in written)
    assert {row["step_ns"] for row in written} == {"-5"}
    assert [csv_text(csv_written(cell)) for cell in cells] == cells


def test_a_name_is_no_option_and_no_command_in_a_suggestion(
    pptrace: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    answer = pptrace("simulate", "--schedule", table(tmp_path), "--output=-x y.json")

    assert "next: pptrace open './-x y.json'\n" in answer.out
    assert shell_word("step.pftrace") == "step.pftrace"


def table(folder: Path) -> str:
    (folder / "t.csv").write_text("0F0,0B0\n", encoding="utf-8")
    return "t.csv"


def test_printable_text_is_no_longer_changed() -> None:
    assert printable(printable(EVIL)) == printable(EVIL)
    assert printable("größer\tκ\n中\r\n") == "größer\tκ\n中\r\n"
