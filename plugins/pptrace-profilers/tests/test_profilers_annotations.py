"""Annotations around instants: those of an instant's own thread go first, in time independent of their number."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pptrace_profilers.recording import Annotations

if TYPE_CHECKING:
    from numpy.typing import NDArray


def annotations(threads: int, count: int, seed: int = 0) -> Annotations:
    """Return random annotations by start, the longer first."""
    random = np.random.default_rng(seed)
    start = random.integers(0, 60, count)
    end = start + random.integers(0, 20, count)
    order = np.lexsort((-end, start))
    thread = random.integers(0, threads, count).astype(np.int32)
    return Annotations(start_ns=start[order], end_ns=end[order], thread=thread, row=np.arange(count))


def by_threads(marks: Annotations, at_ns: NDArray[Any], thread: NDArray[Any], row: NDArray[Any]) -> list[int]:
    """Return what :meth:`Annotations.around` does, thread by thread."""
    none = Annotations(**{name: getattr(marks, name)[:0] for name in ("start_ns", "end_ns", "thread", "row")})
    around = marks.around(at_ns, np.full_like(thread, -1), row)
    for number in range(int(thread.max()) + 1):
        chosen, instants = np.flatnonzero(marks.thread == number), np.flatnonzero(thread == number)
        own = Annotations(
            start_ns=marks.start_ns[chosen], end_ns=marks.end_ns[chosen], thread=marks.thread[chosen] * 0,
            row=marks.row[chosen],
        ) if chosen.size else none  # fmt: skip
        nearest = own.around(at_ns[instants], thread[instants] * 0, row[instants])
        around[instants] = np.where(nearest >= 0, np.append(chosen, -1)[nearest], around[instants])
    return around.tolist()


@pytest.mark.parametrize("seed", range(20))
def test_an_annotation_of_the_own_thread_goes_before_one_of_another(seed: int) -> None:
    marks, random = annotations(4, 30, seed), np.random.default_rng(seed + 100)
    at_ns, thread = random.integers(-5, 90, 60), random.integers(0, 6, 60).astype(np.int32)
    row = random.integers(0, 40, 60)

    assert marks.around(at_ns, thread, row).tolist() == by_threads(marks, at_ns, thread, row)


def test_threads_take_no_work_of_their_own() -> None:
    def work(threads: int) -> int:
        marks, count = annotations(threads, 400), 0

        def trace(*_: Any) -> None:
            nonlocal count
            count += 1

        at_ns, thread = np.arange(400) % 80, np.arange(400, dtype=np.int32) % threads
        sys.setprofile(trace)
        try:
            marks.around(at_ns, thread, np.arange(400))
        finally:
            sys.setprofile(None)
        return count

    assert work(400) < work(4) + 400
