"""Kernels take records of columns, interpreted and compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from interpreted import interpreted_kernels

import pptrace_kernel


class Given(NamedTuple):
    """Columns to read, and an integer."""

    value: Any
    weight: Any
    factor: int


class Filled(NamedTuple):
    """Columns to fill, and an integer."""

    total: Any
    seen: Any
    start: int


STEP = 3


def next_place(filled: Filled, place: int) -> int:
    filled.seen[place] += 1
    return place + STEP


def weigh(given: Given, offset: Any, bias: int, filled: Filled, last: Any) -> int:
    place = filled.start
    while place < len(given.value):
        filled.total[place] = given.value[place] * given.weight[place] * given.factor + offset[place] + bias
        last[0] = place
        place = next_place(filled, place)
    return place


def weighed(*, read_only: bool = False) -> tuple[int, list[list[int]]]:
    columns: list[Any] = [
        np.arange(7, dtype=np.int64),
        np.arange(7, dtype=np.int32) + 1,
        np.full(7, 5, dtype=np.int64),
    ]
    for column in columns:
        column.flags.writeable = not read_only
    filled = Filled(np.zeros(7, dtype=np.int64), np.zeros(7, dtype=np.int8), 1)
    last = np.full(1, -1, dtype=np.int64)
    end = pptrace_kernel.run(weigh, (Given(columns[0], columns[1], 10), columns[2], 2), (filled, last), work=7)
    return end, [filled.total.tolist(), filled.seen.tolist(), last.tolist()]


def test_interpreted_and_compiled_kernels_fill_records_alike() -> None:
    with interpreted_kernels():
        interpreted = weighed()
    with pptrace_kernel.always_compiled():
        compiled = weighed()

    assert interpreted == (7, [[0, 27, 0, 0, 207, 0, 0], [0, 1, 0, 0, 1, 0, 0], [4]])
    assert compiled == interpreted


def test_read_only_and_strided_columns_share_compiled_code() -> None:
    from pptrace_kernel import compiled

    strided = np.arange(14, dtype=np.int64)[::2]
    with pptrace_kernel.always_compiled():
        assert weighed(read_only=True) == weighed(read_only=False)
        known = len(compiled._entry_points)
        out = Filled(np.zeros(7, dtype=np.int64), np.zeros(7, dtype=np.int8), 0)
        pptrace_kernel.run(
            weigh,
            (Given(strided, np.ones(7, dtype=np.int32), 1), strided, 0),
            (out, np.zeros(1, np.int64)),
            work=7,
        )

    assert out.total.tolist() == [0, 0, 0, 12, 0, 0, 24]
    assert len(compiled._entry_points) == known


def doubled(value: Any, out: Any, same: Any) -> None:
    for place in range(len(value)):
        out[place] = 2 * value[place]
        same[place] = value[place]


def test_a_column_of_one_value_is_read_at_every_index_and_never_changes() -> None:
    one_place = np.ndarray((5,), dtype=np.int32, buffer=np.int32(7).tobytes(), strides=(0,))
    with interpreted_kernels(), pytest.raises(ValueError, match="another value to a read-only column"):
        pptrace_kernel.run(doubled, (np.arange(5),), (np.zeros(5, np.int64), one_place), work=5)

    for mode in (interpreted_kernels, pptrace_kernel.always_compiled):
        out = np.zeros(5, dtype=np.int64)
        with mode():
            pptrace_kernel.run(doubled, (one_place,), (out, one_place), work=5)

        assert out.tolist() == [14] * 5
        assert one_place.tolist() == [7] * 5


def test_another_constant_and_other_fields_are_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from pptrace_kernel import compiled

    before = compiled._describe_source(weigh)
    monkeypatch.setitem(weigh.__globals__, "STEP", 2)

    assert compiled._describe_source(weigh) != before
    assert compiled._describe_layout((Given, None)) != compiled._describe_layout((Filled, None))


def test_a_fixed_record_gives_the_same_result_in_each_call() -> None:
    value, weight = np.arange(7, dtype=np.int64), np.arange(7, dtype=np.int32) + 1
    given, totals = pptrace_kernel.fixed(Given(value, weight, 10)), []
    with pptrace_kernel.always_compiled():
        for _ in range(2):
            filled = Filled(np.zeros(7, dtype=np.int64), np.zeros(7, dtype=np.int8), 1)
            outputs = filled, np.full(1, -1, dtype=np.int64)
            pptrace_kernel.run(weigh, (given, np.full(7, 5, dtype=np.int64), 2), outputs, work=7)
            totals.append(filled.total.tolist())
    assert totals == [weighed()[1][0]] * 2
