"""Memory of large columns: reused when the last view is gone, never shared, and kept up to a bound."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest

from pptrace.steps import columns
from pptrace.steps.columns import empty_columns

ROWS = 2**21
"""Rows whose 32-bit column is large enough to be reused."""
PAGE = 4096


@pytest.fixture(autouse=True)
def _no_unused_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_unused", {})


def test_a_view_keeps_the_memory_of_its_column() -> None:
    kind, number = empty_columns(ROWS, np.int8, np.int32)
    kind[:], number[:] = 1, 7
    address, view = kind.ctypes.data, number.reshape(2, -1)[1]
    del kind, number
    (second,) = empty_columns(ROWS, np.int32)
    second[:] = 3
    assert (view == 7).all()
    del view

    assert abs(empty_columns(ROWS, np.int8, np.int32)[0].ctypes.data - address) < PAGE


def test_large_columns_begin_at_different_lines_of_a_page() -> None:
    begins = [column.ctypes.data % PAGE for _ in range(4) for column in empty_columns(ROWS, *[np.int32] * 4)]

    assert len(set(begins)) == len(begins)


def test_columns_begin_at_cache_lines() -> None:
    assert all(column.ctypes.data % 64 == 0 for column in empty_columns(ROWS, np.int8, np.int32, np.int64))


def test_small_columns_and_much_smaller_ones_take_memory_of_their_own() -> None:
    (large,) = empty_columns(8 * ROWS, np.int32)
    low, high = large.ctypes.data, large.ctypes.data + large.nbytes
    del large

    assert not low <= empty_columns(ROWS, np.int32)[0].ctypes.data < high
    assert not low <= empty_columns(100, np.int32)[0].ctypes.data < high


def test_unused_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_KEPT_BYTES", 20 * ROWS)
    held = [empty_columns(ROWS, np.int32) for _ in range(8)]
    held.clear()

    kept = [piece.size for piece in columns._unused.values()]
    assert 12 * ROWS < sum(kept) <= 20 * ROWS


def test_threads_do_not_share_memory() -> None:
    wrong = []

    def work(mark: int) -> None:
        for _ in range(20):
            (column,) = empty_columns(ROWS, np.int32)
            column[:] = mark
            if not (column == mark).all():
                wrong.append(mark)

    threads = [Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
