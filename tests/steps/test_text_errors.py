"""A table that cannot be read is one line that names file, row, column and cell, and what is allowed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.errors import ScheduleError, TableError
from pptrace.steps.actions import Form
from pptrace.steps.text_forms import load_table, parse_table
from pptrace.steps.validation import validate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pptrace.steps.schedule import Schedule

NO_ACTIONS = [
    "0F0junk", "0F", "0SEND_F", "0UNSHARD3", "0f0", "None", "-1F0", "(0F0;7B0)F", "()OVERLAP_F_B",
    "(0F0;(1B0)OVERLAP_F_B)OVERLAP_F_B", "-1OVERLAP_F_B", "F0", "0", "0X0", "0F0+0", "0F-1", "0F0+",
    "99999999999F0", "0F99999999999", "٣F0", "0F٣", "0F0 0F1", "(0F0;7B0)", "(0F0;7B0)OVERLAP_F_B2",
    "OVERLAP_F_B", "0F0;1B0", "0FF0", "0F1.5", "1e3F0", "0F0+99999999999",
    "0F0@", "@0F0", "0F0@0UNSHARD", "0UNSHARD@0F0", "0F0@0F1+2", "0F0@(0F1;0B0)OVERLAP_F_B",
    "(0F1;0B0)OVERLAP_F_B@0F0",
]  # fmt: skip


@pytest.mark.parametrize("cell", NO_ACTIONS)
def test_a_cell_that_is_no_action_is_named_with_its_place(cell: str) -> None:
    with pytest.raises(TableError) as caught:
        parse_table(f"0F0,0B0\n1F0,,{cell}\n", "t.csv", Form.CSV)

    error = caught.value
    assert (error.file, error.row, error.column, error.cell) == ("t.csv", 2, 3, cell)
    assert str(error).startswith("t.csv: row 2, column 3, cell ")
    assert "\n" not in str(error)


def test_the_message_says_what_is_allowed() -> None:
    with pytest.raises(TableError, match=r"expected stage, kind and microbatch such as 0F3.*RECOMPUTE, OPTIMIZER"):
        parse_table("0X0,0B0")


def test_cells_between_semicolons_are_reported_to_take_commas() -> None:
    with pytest.raises(TableError, match="separate cells by commas"):
        parse_table("0F0;0B0\n1F0;1B0\n", "t.csv", Form.CSV)


def test_a_very_long_cell_is_shortened() -> None:
    with pytest.raises(TableError) as caught:
        parse_table("0F0," + "x" * 100_000)

    assert len(str(caught.value)) < 500


@given(st.text(max_size=60))
def test_whatever_the_text_it_is_a_table_or_one_line(text: str) -> None:
    assert "\n" not in _outcome(lambda: parse_table(text, "t.csv").schedule)


@given(st.binary(max_size=60))
def test_whatever_the_bytes_they_are_a_table_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes
) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes(raw)

    assert "\n" not in _outcome(lambda: load_table(path))


def _outcome(read: Callable[[], Schedule]) -> str:
    try:
        validate(read())
    except (TableError, ScheduleError) as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "no actions: write one row of actions per rank"),
        (b"\n\n \n", "no actions: write one row of actions per rank"),
        (b"\xff\xfe0\x00F\x00", "not a text file"),
        (b"\x7fELF\x00\x01", "not a text file"),
        (b"0F0,0B0\n1F\xe9,1B0\n", r"row 2: not UTF-8 \(byte 0xe9\): save it as UTF-8"),
        (b"0F0,0B0\n\n1F0,1B0\n", "row 2: the row is blank"),
        (b"\n0F0,0B0\n1F0,1B0\n", "row 1: the row is blank"),
        (b'0F0,"0B0\n1F0,1B0\n', "row 1, column 2, cell '\"0B0': not an action"),
        (b'0F0,"0B0"x\n1F0,1B0\n', "row 1, column 2, cell '\"0B0\"x': not an action"),
        (b"0F0,0B0,0F2000000000\n", "row 1, column 3, cell '0F2000000000': rank 0: 0F2000000000 is out of range"),
        (b"0F0,0B0,2000000000F0\n", "row 1, column 3, cell '2000000000F0': rank 0: 2000000000F0 is out of range"),
        (b"0F0,(0F1+2000000000;0B0)OVERLAP_F_B\n", r"row 1, column 2, cell '\(0F1.*is out of range"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(raw)

    with pytest.raises(TableError, match=message) as caught:
        load_table(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_a_device_are_one_line_each(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"absent\.csv: cannot be read: no such file or directory"):
        load_table(tmp_path / "absent.csv")
    with pytest.raises(TableError, match="not a file: name a table"):
        load_table(tmp_path)
    with pytest.raises(TableError, match="not a file: name a table"):
        load_table("/dev/zero")
    with pytest.raises(TableError, match="no file has such a name"):
        load_table("a\0b.csv")


def test_a_file_beyond_a_gibibyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate((1 << 30) + 1)

    with pytest.raises(TableError, match="larger than 1 GiB"):
        load_table(path)


def test_a_schedules_error_is_located_in_the_cell_behind_idle_cells_and_pairs(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('0F0, ,"0F1",(0F2;0B0)OVERLAP_F_B,,0B1,0B1,0B2\n')
    table = load_table(path)
    with pytest.raises(ScheduleError) as caught:
        validate(table.schedule)

    located = table.locate(caught.value)

    assert (located.row, located.column, located.cell) == (1, 7, "0B1")
    assert str(located).startswith(f"{path}: row 1, column 7, cell '0B1': rank 0, action 5 (0B1): repeats action")


def test_an_error_without_a_cell_names_the_row_of_its_rank() -> None:
    table = parse_table("# head\n0F0 0B0\n1F0\n", "t.txt")
    with pytest.raises(ScheduleError) as caught:
        validate(table.schedule)

    assert str(table.locate(caught.value)).startswith("t.txt: row 3: rank 1 lacks 1B0")


def test_an_error_of_no_rank_names_the_file_alone() -> None:
    table = parse_table("0F0,0B0\n2F0,2B0\n", "t.csv")
    with pytest.raises(ScheduleError) as caught:
        validate(table.schedule)

    assert re.fullmatch(r"t\.csv: stage 1 has no actions.*", str(table.locate(caught.value)))
