"""Memory that is lent again: never to two at once, kept up to a bound, and left behind by a forked process."""

from __future__ import annotations

import os
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptrace.steps.columns import passing
from pptrace.steps.reuse import LEAST, MAPPED, Store, borrowed, lasting

MOST = 4_000

STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 3_000)), max_size=40)


@given(steps=STEPS)
def test_what_is_lent_is_nobody_else_s_and_little_is_kept(steps: list[tuple[bool, int]]) -> None:
    store, held = Store(most=MOST), {}
    for number, (takes, size) in enumerate(steps):
        if takes or not held:
            array = store.borrowed(size)[:size]
            array[:] = number % 251
            held[number] = array
        else:
            held.pop(sorted(held)[size % len(held)])
        array = None  # what is held is in ``held`` alone
        assert all((values == mark % 251).all() for mark, values in held.items())
        assert store.unused <= MOST
    held.clear()

    assert store.unused <= MOST


def test_what_came_back_is_lent_again_whole_and_in_parts() -> None:
    store = Store()
    first = store.borrowed(6_400)
    address = first.ctypes.data
    view = first[:10]
    del first
    other = store.borrowed(6_400)  # a view still holds the first
    assert other.ctypes.data != address
    del view

    parts = [store.borrowed(3_200) for _ in range(2)]
    assert [part.ctypes.data - address for part in parts] == [0, 3_200]
    del parts
    assert store.borrowed(6_400).ctypes.data == address


def test_columns_hold_on_to_their_memory_whatever_is_made_of_them() -> None:
    rows = LEAST
    kind, number = passing(rows, np.int8, np.int32)
    kind[:], number[:] = 1, 7
    told = number.reshape(2, -1)[1]
    del kind, number
    (other,) = passing(rows, np.int32)
    other[:] = 3

    assert (told == 7).all()
    assert all(column.ctypes.data % 64 == 0 for column in passing(rows, np.int8, np.int32, np.int64))


def test_threads_borrow_side_by_side() -> None:
    store, wrong = Store(most=MOST), []

    def work(mark: int) -> None:
        for size in range(64, 3_000, 64):
            array = store.borrowed(size)
            array[:] = mark
            if not (array == mark).all():
                wrong.append(size)

    threads = [Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_process_keeps_nothing_of_its_parent_s() -> None:
    from pptrace.steps import reuse

    borrowed(LEAST)
    kept = reuse._store.unused
    child = os.fork()
    if not child:
        os._exit(int(reuse._store.unused != 0))
    _, status = os.waitpid(child, 0)

    assert (kept >= LEAST, status) == (True, 0)


def test_what_others_may_hold_on_to_is_lent_where_the_system_would_map_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pptrace.steps.reuse._store", Store())
    first = lasting(MAPPED)
    address, view = first.ctypes.data, first[:8]
    view[:] = 5
    del first
    assert lasting(MAPPED).ctypes.data != address  # a view still holds it
    assert view.tolist() == [5] * 8
    del view

    assert lasting(MAPPED).ctypes.data == address
    assert lasting(LEAST).base is None  # the allocator's own
