"""The page on OptPipe: its table comes from recorded searches, and those from tables that are simulated again."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import pptrace

FOLDER = Path(__file__).parents[2] / "examples" / "paper-optpipe"
STUDY: dict[str, Any] = runpy.run_path(str(FOLDER / "study.py"))
ROWS = STUDY["recorded"]()
FOUND = [name for name, row in ROWS.items() if not row["refused"]]


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", FOUND)
def test_a_recorded_table_takes_its_step_within_its_limit(name: str) -> None:
    row = ROWS[name]

    run = pptrace.simulate(
        FOLDER / row["config"], schedule=str(FOLDER / "results" / f"{name}.csv"), sets=STUDY["sets_of"](row)
    )

    assert run.metrics.step_ns == int(row["step_ns"]) >= int(row["bound_ns"])
    assert max(run.metrics.memory.peak_bytes) == int(row["peak_bytes"]) <= float(row["limit_gib"]) * 2**30


def test_all_searches_of_the_study_are_recorded() -> None:
    assert list(ROWS) == [case[0] for case in (*STUDY["TOY"], *STUDY["TIGHT"], *STUDY["GPT"], *STUDY["V"])]


@pytest.mark.needs_plugins
def test_what_came_out_is_on_the_page() -> None:
    page = (FOLDER / "REPRODUCTION.md").read_text(encoding="utf-8")

    table = page.split("## Claim by claim\n\n")[1].split("\n\n")[0].splitlines()[2:]

    assert table == STUDY["claims"]()
