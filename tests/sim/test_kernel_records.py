"""A kernel takes records of columns beside columns, on both roads and in one compiled signature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from interpreted import interpreted_kernels

from pptrace import kernel

if TYPE_CHECKING:
    import pytest


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
    end = kernel.run(weigh, (Given(columns[0], columns[1], 10), columns[2], 2), (filled, last), work=7)
    return end, [filled.total.tolist(), filled.seen.tolist(), last.tolist()]


def test_records_are_read_and_filled_alike_on_both_roads() -> None:
    with interpreted_kernels():
        interpreted = weighed()
    with kernel.always_compiled():
        compiled = weighed()

    assert interpreted == (7, [[0, 27, 0, 0, 207, 0, 0], [0, 1, 0, 0, 1, 0, 0], [4]])
    assert compiled == interpreted


def test_columns_that_may_and_may_not_be_written_compile_once() -> None:
    with kernel.always_compiled():
        assert weighed(read_only=True) == weighed(read_only=False)

    assert len(kernel._compiled(weigh, (Given, Filled)).signatures) == 1  # type: ignore[attr-defined]


def test_another_constant_is_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    name = kernel._twin(weigh, (Given, Filled)).__qualname__
    monkeypatch.setitem(weigh.__globals__, "STEP", 2)

    assert kernel._twin(weigh, (Given, Filled)).__qualname__ != name


def test_a_numba_without_the_private_option_runs_the_same_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from numba.core import cpu

    kernel._settings.cache_clear()
    monkeypatch.setattr(cpu, "CPUTargetOptions", object)
    try:
        assert "_nrt" not in kernel._settings()
    finally:
        kernel._settings.cache_clear()
