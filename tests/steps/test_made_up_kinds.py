"""A kind is one member and one row of the table: nothing else has to change for it to go all the way."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[1] / "made_up_kinds.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    command = [sys.executable, str(SCRIPT), str(tmp_path_factory.mktemp("made-up"))]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    tables: list[dict[str, Any]] = json.loads(run.stdout)
    return tables


def test_made_up_kinds_are_read_from_a_table(found: list[dict[str, Any]]) -> None:
    assert found[0]["rows"][0] == ["0F0", "0PREFETCH0", "0F1", "0CHECK0", "0B0", "0B1", "0CLIP"]
    assert found[1]["rows"][1][1] == "(1F1;1B0)OVERLAP_F_B"


def test_they_run_on_their_streams_for_as_long_as_they_cost(found: list[dict[str, Any]]) -> None:
    wanted = [
        ["0CHECK0", "COMPUTE", 5], ["0PREFETCH0", "COPY_IN", 7], ["0CLIP", "DATA_PARALLEL", 4],
        ["1PREFETCH1", "COPY_IN", 7], ["1CLIP", "DATA_PARALLEL", 4],
    ]  # fmt: skip
    assert [table["slices"] for table in found] == [wanted, wanted]


def test_their_time_and_memory_are_counted(found: list[dict[str, Any]]) -> None:
    assert found[0]["busy_ns"] == [2 * (10 + 20) + 5, 2 * (10 + 20)]
    assert found[0]["peak_activation_bytes"] == [3 * 100, 2 * 100]


def test_they_are_drawn_as_wide_and_in_the_color_that_the_table_says(found: list[dict[str, Any]]) -> None:
    copies = [["0PREFETCH0", 1], ["1PREFETCH1", 1]]
    assert all(table["drawn"] == [["0CHECK0", 3], *copies] and table["picture"] for table in found)


def test_both_trace_formats_show_them_and_give_them_back(found: list[dict[str, Any]]) -> None:
    assert [table["lost"] for table in found] == [["", ""], ["", ""]]
    assert all(table["colors"] == ["bad", "good", "terrible"] for table in found)
