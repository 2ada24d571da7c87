"""Run calls on executors that may break: what breaks one fails alone, and the rest goes on with another."""

from __future__ import annotations

from collections import deque
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from pptrace.hooks.call import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Executor, Future
    from types import TracebackType
    from typing import Self

    from pptrace.study.row import Row

__all__ = ["Kept", "run_all"]

Item = TypeVar("Item")

_DIED = "the process that ran it died; where it needs more memory than there is, take fewer --workers"


class Kept:
    """One executor for several runs, as a context: it starts at once, and anew where it broke or was left."""

    def __init__(self, start: Callable[[], Executor]) -> None:
        """Take what makes an executor."""
        self._start = start
        self._executor: Executor | None = None

    def __enter__(self) -> Self:
        """Start the executor, so that one that cannot be reached says so before there is work for it."""
        self._executor = self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it; at once after an error."""
        self._end(wait=error is None)

    def begin(self) -> Executor:
        """Return the executor for one run."""
        if self._executor is None:
            self._executor = self._start()
        return self._executor

    def end(self, *, wait: bool, alive: bool) -> None:
        """End a run: the executor stays for the next one, unless it broke or work is left behind."""
        if not (wait and alive):
            self._end(wait=wait)

    def _end(self, *, wait: bool) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=wait, cancel_futures=True)


class _Fresh(Kept):
    """An executor for each run."""

    def end(self, *, wait: bool, alive: bool) -> None:
        del alive
        self._end(wait=wait)


def run_all(
    items: Iterable[Item], call: Callable[[Item], Row], start: Callable[[], Executor] | Kept, *, ahead: int
) -> Iterator[tuple[Item, Row]]:
    """Yield each item with its row as soon as it is finished, in whatever order.

    Whoever is at work when an executor breaks is tried again, one at a time, each on an executor of its own: so
    the one that breaks it is known, and gets a row that says so.

    Args:
        items: what is run, the first ones first.
        call: makes the row of an item; has to be picklable where the executor pickles.
        start: makes an executor, or keeps one.
        ahead: how many calls are handed over before one is finished.
    """
    waiting = deque(items)
    kept = start if isinstance(start, Kept) else _Fresh(start)
    while waiting:
        suspects = yield from _until_broken(waiting, call, kept, ahead)
        for suspect in suspects:
            if (yield from _until_broken(deque([suspect]), call, kept, 1)):
                yield suspect, {"error": _DIED}


def _until_broken(
    waiting: deque[Item], call: Callable[[Item], Row], kept: Kept, ahead: int
) -> Generator[tuple[Item, Row], None, list[Item]]:
    """Take items from ``waiting`` and yield their rows; return those that were at work when the executor broke."""
    executor = kept.begin()
    running: dict[Future[Row], Item] = {}
    broken: list[Item] = []
    finished = False
    try:
        while (waiting or running) and not broken:
            if waiting and len(running) < ahead:
                item = waiting.popleft()
                try:
                    running[executor.submit(call, item)] = item
                except BrokenExecutor:
                    broken.append(item)
            full = not waiting or len(running) >= ahead
            for future in _done(running, block=full and not broken):
                item = running.pop(future)
                try:
                    row = future.result()
                except BrokenExecutor:
                    broken.append(item)
                except Exception as error:  # noqa: BLE001 - one call that fails costs no other
                    yield item, {"error": one_line(error)}
                else:
                    yield item, row
        finished = True
    finally:
        kept.end(wait=finished, alive=not broken)
    return [*broken, *running.values()]


def _done(running: dict[Future[Row], Item], *, block: bool) -> list[Future[Row]]:
    done = [future for future in running if future.done()]
    if done or not block or not running:
        return done
    wait(running, return_when=FIRST_COMPLETED)
    return [future for future in running if future.done()]
