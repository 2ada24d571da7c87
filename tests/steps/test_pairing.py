"""Members of an overlapped pair that need each other are refused in one line that names both."""

from __future__ import annotations

import re

import pytest

from pptrace.errors import ScheduleError
from pptrace.steps.schedule import Schedule
from pptrace.steps.validation import validate


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("(0F0;0B0)OVERLAP_F_B", "rank 0: 0B0 needs 0F0, which is in the same overlapped pair"),
        ("(0F0;0I0)OVERLAP_F_B 0W0", "rank 0: 0I0 needs 0F0, which is in the same overlapped pair"),
        ("(0F0;1F0)OVERLAP_F_B 1B0 0B0", "rank 0: 1F0 needs 0F0, which is in the same overlapped pair"),
        ("0F0 1F0 (0B0;1B0)OVERLAP_F_B", "rank 0: 0B0 needs 1B0, which is in the same overlapped pair"),
    ],
)
def test_members_that_need_each_other_are_refused(row: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=f"^{re.escape(message)}: write one after the other$") as refused:
        validate(Schedule.from_rows([row.split()]))

    assert "\n" not in str(refused.value)


def test_members_that_need_nothing_of_each_other_are_fine() -> None:
    for row in (
        "0F0 (0F1;0B0)OVERLAP_F_B 0B1",
        "0F0 (0F1;0I0;0W0)OVERLAP_F_B 0B1",
        "0F0 (1F0;0F1)OVERLAP_F_B 1F1 1B0 (1B1;0B0)OVERLAP_F_B 0B1",
    ):
        validate(Schedule.from_rows([row.split()]))


def test_neighbouring_pairs_may_need_each_other() -> None:
    row = ["0F0", "0F1", "(0F2;1F0)OVERLAP_F_B", "(1B0;1F1)OVERLAP_F_B", "1F2", "0B0", "1B1", "1B2", "0B1", "0B2"]

    validate(Schedule.from_rows([row]))
