"""Executors are started once for several runs, and anew where one broke."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, Future
from typing import TYPE_CHECKING, Any

import pytest

from pptrace.plugins.builtin_executors import Serial
from pptrace.search.runner import ExecutorPool, run_all

if TYPE_CHECKING:
    from collections.abc import Callable


class Counted(Serial):
    """Runs calls here, and breaks at an item; ends are noted."""

    def __init__(self, breaks: int | None = None) -> None:
        self.breaks, self.ended = breaks, False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if args[0] == [self.breaks]:
            future: Future[Any] = Future()
            future.set_exception(BrokenExecutor("gone"))
            return future
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        super().shutdown(*args, **kwargs)
        self.ended = True


def doubled(item: int) -> dict[str, Any]:
    return {"double": 2 * item}


def run(pool: ExecutorPool, items: list[int]) -> dict[int, Any]:
    batches = run_all(items, doubled, pool, ahead=2)
    return {item: row.get("double", row.get("error")) for batch in batches for item, row in batch}


def test_runs_share_an_executor_that_ends_behind_the_last() -> None:
    started: list[Counted] = []

    def start() -> Counted:
        started.append(Counted())
        return started[-1]

    pool = ExecutorPool(start)
    assert run(pool, [1, 2, 3]) == {1: 2, 2: 4, 3: 6}
    assert run(pool, [4]) == {4: 8}
    assert [schedule.ended for schedule in started] == [False]
    pool.end(wait=True)
    assert [schedule.ended for schedule in started] == [True]


def test_one_that_breaks_is_ended_and_the_next_run_has_another() -> None:
    started: list[Counted] = []

    def start() -> Counted:
        started.append(Counted(breaks=2 if not started else None))
        return started[-1]

    pool = ExecutorPool(start)
    assert run(pool, [1, 2, 3]) == {1: 2, 2: 4, 3: 6}
    assert run(pool, [4]) == {4: 8}
    assert [schedule.ended for schedule in started] == [True, False]
    pool.end(wait=True)
    assert all(schedule.ended for schedule in started)


def test_one_that_cannot_be_reached_says_so_before_there_is_work() -> None:
    def start() -> Counted:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        ExecutorPool(start).begin()
