"""Cells hold exactly what formatting one number at a time gives."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pptrace.traces.kineto.cells import Choice, Some, microseconds, number, stacked, words

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
SMALL = st.integers(min_value=-(10**6), max_value=10**6)


@given(st.lists(INT64 | SMALL, min_size=1))
def test_numbers_are_written_as_python_writes_them(values: list[int]) -> None:
    cells = number(np.array(values, dtype=np.int64))
    assert [bytes(row).decode().strip() for row in cells] == [str(value) for value in values]


@given(st.lists(st.integers(min_value=-(10**17), max_value=10**17) | SMALL, min_size=1))
def test_microseconds_keep_every_nanosecond(values: list[int]) -> None:
    lines = microseconds(np.array(values, dtype=np.int64), integers=False)
    texts = [bytes(row).decode().strip() for row in lines]
    assert [int(text.replace(".", "")) for text in texts] == values
    assert all(text[-4] == "." for text in texts)


def test_whole_microseconds_are_integers() -> None:
    assert [bytes(row) for row in microseconds(np.array([5000, -12000]), integers=True)] == [b"    5", b"  -12"]


def test_no_numbers_make_no_lines() -> None:
    assert stacked(0, [b"x", number(np.empty(0, dtype=np.int64))]).shape == (0, 2)


def test_a_word_on_every_line_is_no_cell() -> None:
    assert words(np.array([1, 1]), [b"a", b"bc"]) == b"bc"


def test_words_that_are_all_the_same_are_no_cell() -> None:
    assert Choice.of(np.array([0, 1])).among([b"a", b"a", b"bc"]) == b"a"


def test_lines_between_some_are_blank() -> None:
    some = Some(stacked(1, [b"ab"]), np.array([1]))
    assert stacked(3, [b"x", some]).tobytes() == b"x  xabx  "


def test_many_lines_are_put_together_as_few_are() -> None:
    numbers = np.arange(5000)
    lines = stacked(5000, [b"x" * 1000, number(numbers), b"\n"])
    assert lines.tobytes().decode() == "".join(f"{'x' * 1000}{value:4}\n" for value in numbers)
