"""What is written as a table reads back as the same schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from strategies import valid_schedules

from pptrace.config.choices import Receive
from pptrace.errors import OutputError, ScheduleError
from pptrace.steps.actions import Form
from pptrace.steps.kinds import COMMUNICATION, Kind
from pptrace.steps.schedule import Schedule
from pptrace.steps.text_forms import (
    Dialect,
    in_dialect,
    load_table,
    parse_table,
    table_text,
    write_table,
)
from pptrace.steps.validation import validate

if TYPE_CHECKING:
    from pathlib import Path

    from hypothesis.strategies import DataObject


@given(valid_schedules(copies=True), st.sampled_from(Form))
def test_a_schedule_reads_back_from_csv_and_from_text(schedule: Schedule, form: Form) -> None:
    read = parse_table(table_text(schedule, form), "t", form).schedule

    assert read.difference(schedule) == ""
    assert read == schedule


@given(valid_schedules(copies=True), st.sampled_from(Form), st.sampled_from(Receive), st.data())
def test_waits_for_other_actions_read_back_with_and_without_messages(
    schedule: Schedule, form: Form, receive: Receive, data: DataObject
) -> None:
    names = np.stack([schedule.kind, schedule.stage, schedule.microbatch], axis=1).astype(np.int32)
    rows = st.integers(0, len(schedule) - 1)
    asked = sorted(data.draw(st.sets(st.tuples(rows, rows), min_size=1, max_size=5)), key=lambda one: one[::-1])
    waits = np.array([[*names[before], *names[after]] for before, after in asked])
    waiting = replace(schedule, waits=(waits,))

    for written in (waiting, in_dialect(waiting, Dialect.COMMS, receive)):
        read = parse_table(table_text(written, form), "t", form).schedule

        assert read == written
        assert sorted(map(tuple, np.concatenate(read.waits).tolist())) == sorted(map(tuple, waits.tolist()))
    assert Schedule.from_rows(waiting.rows(), waiting.placement) == waiting
    assert waiting != schedule


@given(valid_schedules(), st.sampled_from(Receive), st.sampled_from(Form))
def test_a_schedule_with_messages_reads_back_and_is_valid(
    schedule: Schedule, receive: Receive, form: Form
) -> None:
    written = in_dialect(schedule, Dialect.COMMS, receive)

    read = parse_table(table_text(written, form), "t", form).schedule

    assert read == written
    validate(read)


@given(valid_schedules(), st.sampled_from(Receive))
def test_removing_the_messages_gives_the_computation_back(schedule: Schedule, receive: Receive) -> None:
    written = in_dialect(schedule, Dialect.COMMS, receive)

    assert in_dialect(written, Dialect.COMPUTE) == schedule


@given(st.data())
def test_plain_and_hard_ways_to_write_a_row_read_alike(data: DataObject) -> None:
    schedule = data.draw(valid_schedules(copies=True))
    plain = table_text(schedule)
    gaps = st.sampled_from([",", ", ", ",,", " ,\t", ',"",'])
    lines = [
        "".join(
            cell + (data.draw(gaps) if more else "")
            for cell, more in [(_quoted(c, data), i < row.count(",")) for i, c in enumerate(row.split(","))]
        )
        for row in plain.splitlines()
    ]
    ends = data.draw(st.sampled_from(["\n", "\r\n", "\r"]))

    read = parse_table(ends.join(lines) + data.draw(st.sampled_from(["", ends, ends + ends, ends + "  " + ends])))

    assert read.schedule == schedule


def _quoted(cell: str, data: DataObject) -> str:
    return f'"{cell}"' if cell and '"' not in cell and data.draw(st.booleans()) else cell


def test_the_compute_dialect_keeps_nothing_that_pytorch_inserts() -> None:
    rows = [["0UNSHARD", "0F0", "0SEND_F0", "0RECV_B0", "0B0", "0RESHARD", "0REDUCE_GRAD"],
            ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]  # fmt: skip

    schedule = in_dialect(Schedule.from_rows(rows), Dialect.COMPUTE)

    assert schedule.rows() == [["0F0", "0B0"], ["1F0", "1B0"]]
    assert not COMMUNICATION & {Kind(kind) for kind in schedule.kind.tolist()}


def test_a_table_with_messages_keeps_its_own() -> None:
    schedule = Schedule.from_rows([["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]])

    assert in_dialect(schedule, Dialect.COMMS, Receive.DEFERRED) is schedule


def test_pytorchs_own_comms_dialect_reads_as_it_is_written() -> None:
    text = (
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0RESHARD,0REDUCE_GRAD\r\n"
        "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1RESHARD,1REDUCE_GRAD\r\n"
    )

    schedule = parse_table(text).schedule

    validate(schedule)
    assert table_text(schedule) == text.replace("\r\n", "\n")


def test_a_rank_without_actions_is_one_idle_cell() -> None:
    schedule = Schedule.from_rows([["0F0", "0B0"], []])

    assert table_text(schedule) == '0F0,0B0\n""\n'
    assert table_text(schedule, Form.TEXT) == "0F0 0B0\n-\n"
    for form in Form:
        assert parse_table(table_text(schedule, form), form=form).schedule == schedule


def test_text_skips_comments_and_empty_lines() -> None:
    table = parse_table("# two ranks\n\n0F0  - 0B0\n\n  # the last\n1F0\t1B0\n")

    assert table.schedule.rows() == [["0F0", "0B0"], ["1F0", "1B0"]]
    assert table.numbers == (3, 6)


def test_blanks_inside_a_pair_of_text_do_not_end_it() -> None:
    assert parse_table("0F0 ( 0F1 ; 0B0 )OVERLAP_F_B 0B1").schedule.rows() == [
        ["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"]
    ]


@pytest.mark.parametrize("name", ["t.csv", "t.txt", "t.CSV"])
def test_a_file_reads_back_by_its_suffix(tmp_path: Path, name: str) -> None:
    schedule = Schedule.from_rows([["0F0+2", "(0F2;0B0+2)OVERLAP_F_B", "0B2"]])

    write_table(schedule, tmp_path / name)

    assert load_table(tmp_path / name).schedule == schedule
    assert load_table(str(tmp_path / name)).file == str(tmp_path / name)


def test_a_byte_order_mark_is_no_part_of_the_first_cell(tmp_path: Path) -> None:
    path = tmp_path / "excel.csv"
    path.write_bytes(b"\xef\xbb\xbf0F0,0B0\r\n")

    assert load_table(path).schedule.rows() == [["0F0", "0B0"]]


def test_a_table_with_another_suffix_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"t\.tsv: a table ends in \.csv or \.txt"):
        write_table(Schedule.from_rows([["0F0", "0B0"]]), tmp_path / "t.tsv")

    assert list(tmp_path.iterdir()) == []


def test_a_table_whose_stages_form_no_chain_is_not_written(tmp_path: Path) -> None:
    chain = Schedule.from_rows([["0F0", "1F0", "2F0", "1B0", "2B0", "0B0"]])
    fork = replace(chain, placement=replace(chain.placement, edges=np.array([[0, 1], [0, 2]])))

    with pytest.raises(ScheduleError, match="these stages form another graph: use the name of the schedule"):
        write_table(fork, tmp_path / "t.csv")
    assert list(tmp_path.iterdir()) == []


def test_a_table_with_another_suffix_reads_as_csv_where_it_has_commas(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("0F0,0B0\n")
    (tmp_path / "b").write_text("0F0 0B0\n")

    assert load_table(tmp_path / "a").schedule == load_table(tmp_path / "b").schedule
