"""``pptrace compare`` from the command line."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Answer

    Pptrace = Callable[..., Answer]

MINE = """
def first(ranks, microbatches):
    return [[f"{r}{kind}{u}" for kind in "FB" for u in range(microbatches)] for r in range(ranks)]


def single(ranks, microbatches):
    return [[cell for u in range(microbatches) for cell in (f"{r}F{u}", f"{r}B{u}")] for r in range(ranks)]
"""
STEP = """\
schedule: ./mine.py:first
parallel: {pp: 4}
batch: {microbatches: 8}
network: {name: hockney, bandwidth: 50 GB/s, latency: 5 us}
"""
BOTH = ("--schedules", "./mine.py:first,./mine.py:single")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "step.yaml").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_with_flags_over_it_is_compared(pptrace: Pptrace) -> None:
    answer = pptrace("compare", "step.yaml", *BOTH, "--pp", 2, "--set", "network.latency=0 s", "--microbatches", 4)

    assert answer.code == 0
    assert answer.err == ""
    assert answer.out.splitlines()[0] == "unit costs: 4 microbatches"
    assert "fastest: ./mine.py:first; ./mine.py:single is 60.00% slower" in answer.out


def test_no_file_is_needed(pptrace: Pptrace) -> None:
    answer = pptrace("compare", *BOTH, "--pp", 2, "--microbatches", 4)

    assert "15 units" in answer.out
    assert "24 units" in answer.out


def test_json_and_csv_hold_the_same_steps(pptrace: Pptrace, folder: Path) -> None:
    document = json.loads(pptrace("compare", "step.yaml", *BOTH, "--json", "-o", "rows.csv").out)
    rows = list(csv.DictReader(io.StringIO((folder / "rows.csv").read_text())))

    assert [row["simulated_rank"] for row in document["rows"]] == [1, 2]
    assert [int(row["step_ns"]) for row in rows] == [row["step_ns"] for row in document["rows"]]


def test_a_picture_is_written_beside_what_is_printed(pptrace: Pptrace, folder: Path) -> None:

    answer = pptrace("compare", "step.yaml", *BOTH, "-o", "compare.svg", "-o", "compare.png")

    assert (folder / "compare.svg").read_bytes().startswith(b"<?xml")
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert answer.err == "wrote compare.svg\nwrote compare.png\n"
    assert answer.out.startswith("unit costs")


def test_a_schedule_that_cannot_run_costs_the_others_nothing(pptrace: Pptrace, folder: Path) -> None:
    (folder / "table.csv").write_text("0F0,0B0\n")

    answer = pptrace("compare", "step.yaml", "--schedules", "table.csv,./mine.py:first")

    assert answer.code == 0
    assert "table.csv        cannot run: parallel.pp: table.csv has 1 rows, not 4: remove the key" in answer.out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["step.yaml"], "Missing option '--schedules'. (see pptrace compare --help)"),
        (["step.yaml", "--schedules", ""], "--schedules: a schedule has no name"),
        (
            ["step.yaml", *BOTH, "-o", "compare.txt"],
            "compare.txt: no such format; a comparison is written as .png",
        ),
        (["step.yaml", "step.yaml", *BOTH], "one configuration at a time"),
        (["none.yaml", *BOTH], "none.yaml: no such file"),
        (["step.yaml", "--schedules", "gpip"], "--schedules gpip: no installed plugin offers a schedule"),
        (["step.yaml", "--schedules", "./mine.py:frist"], "--schedules ./mine.py:frist: mine.py has no function"),
        (["step.yaml", *BOTH, "--schedules", "./mine.py:first"], "--schedules: ./mine.py:first is given twice"),
        (["step.yaml", *BOTH, "--schedule", "gpipe"], "No such option"),
        (
            ["step.yaml", *BOTH, "--set", "network.bandwith=1 GB/s"],
            "--set network.bandwith=1 GB/s: unknown key",
        ),
    ],
)
def test_wrong_input_is_one_line(pptrace: Pptrace, arguments: list[str], line: str) -> None:
    complaint = pptrace("compare", *arguments).complaint

    assert complaint.replace("./mine.py has", "mine.py has").startswith(line)


def test_a_picture_that_cannot_be_written_says_why(pptrace: Pptrace) -> None:

    assert pptrace("compare", "step.yaml", *BOTH, "-o", "none/compare.svg").complaint.startswith(
        "none/compare.svg: cannot be written: the folder does not exist"
    )


def test_every_schedule_of_a_list_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import BashComplete

    from pptrace.cli.main import cli
    from pptrace.cli.options import complete_listed_offers

    monkeypatch.setenv("PPTRACE_DISABLE_PLUGINS", "all")
    listed = complete_listed_offers("networks")
    (option,) = (one for one in cli.get_command(None, "compare").params if one.name == "schedules")
    monkeypatch.setattr(option, "_custom_shell_complete", listed)

    items = BashComplete(cli, {}, "pptrace", "_").get_completions(["compare", "--schedules"], "ideal,ho")

    assert [item.value for item in items] == ["ideal,hockney"]
