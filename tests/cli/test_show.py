from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Answer

    Pptrace = Callable[..., Answer]


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "table.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_slots_are_shown_from_the_first_up_to_the_last_which_is_left_out(pptrace: Pptrace) -> None:
    lines = pptrace("show", "table.csv", "--slots", "1:3").out.splitlines()

    assert lines[1:3] == ["rank 0  F1 .", "rank 1  F0 F1"]
    assert lines[3].startswith("(slots 1 to 2 of 9;")
    assert "from FIRST to LAST - 1, counted from 0" in " ".join(pptrace("show", "--help").out.split())


def test_a_picture_of_some_slots_has_no_others(pptrace: Pptrace, table: Path) -> None:
    assert pptrace("show", "table.csv", "--slots", "1:3", "-o", "part.svg").code == 0
    assert pptrace("show", "table.csv", "-o", "whole.svg", "-o", "again.svg").code == 0
    assert (table / "again.svg").read_bytes() == (table / "whole.svg").read_bytes()

    part, whole = ((table / name).read_text(encoding="utf-8") for name in ("part.svg", "whole.svg"))
    assert ", slots 1 to 2<" in part
    assert "<title>1B1</title>" in whole
    assert "<title>1B1</title>" not in part


@pytest.mark.parametrize("slots", ["3:1", "9:", "a:b", "-1:3", "40"])
def test_slots_that_there_are_not_are_refused(pptrace: Pptrace, slots: str) -> None:
    assert pptrace("show", "table.csv", "--slots", slots).complaint.startswith(f"--slots {slots}: ")
    assert pptrace("show", "table.csv", "--slots", slots, "-o", "part.svg").complaint.startswith("--slots")


def test_any_key_may_be_set(pptrace: Pptrace) -> None:
    again = pptrace("show", "table.csv", "--set", "schedule.recompute={stages: [1], early: true}")
    wrong = pptrace("show", "table.csv", "--set", "schedule.offload.stages=[2]")

    assert again.out.splitlines()[2].split()[:9] == ["rank", "1", ".", "F0", "F1", "R0", "B0===", "R1", "B1==="]
    assert wrong.code == 2
    assert wrong.complaint.endswith("schedule.offload.stages[0]: there are 2 stages, 0 to 1, and no 2")


def test_messages_leave_the_heading_s_slots_and_bubble_as_they_are(pptrace: Pptrace) -> None:
    plain, drawn = (pptrace("show", "table.csv", *flags).out.splitlines()[0] for flags in ((), ("--messages",)))

    assert plain.endswith("2 microbatches, 9 slots, bubble 33.33%")
    assert drawn == f"{plain}; with messages 13 slots"
