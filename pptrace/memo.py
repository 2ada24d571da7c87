"""Results that steps with equal inputs share while a study varies other inputs."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct, field

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

Result = TypeVar("Result")

_MOST_ROWS = 2**20
"""Rows of all results that a memo keeps, at about 150 bytes each."""


class Memo(Struct, eq=False):
    """Results by their inputs, the most recently used last."""

    results: OrderedDict[Hashable, tuple[tuple[object, ...], Any, int]] = field(default_factory=OrderedDict)
    """By key: the objects that the key identifies, which stay alive with it; the result; its number of rows."""
    rows: int = 0
    """Rows of all results."""
    _lock: Lock = field(default_factory=Lock)

    def find(self, key: Hashable) -> tuple[tuple[object, ...], Any, int] | None:
        """Return the entry of a result, which is then the most recently used one; None without one."""
        with self._lock:
            known = self.results.get(key)
            if known is not None:
                self.results.move_to_end(key)
        return known

    def keep(self, key: Hashable, inputs: tuple[object, ...], result: Any, rows: int) -> None:
        """Keep a result in place of the least recently used ones; drop a result that is too large."""
        with self._lock:
            self._remove(key)
            if 4 * rows > _MOST_ROWS:
                return
            self.results[key] = inputs, result, rows
            self.rows += rows
            while self.rows > _MOST_ROWS:
                self._remove(next(iter(self.results)))

    def _remove(self, key: Hashable) -> None:
        if key in self.results:
            self.rows -= self.results.pop(key)[2]


_memo: ContextVar[Memo | None] = ContextVar("memo", default=None)


@contextmanager
def memoizing(memo: Memo) -> Iterator[None]:
    """Share results in this block, those of earlier blocks with the same memo included."""
    token = _memo.set(memo)
    try:
        yield
    finally:
        _memo.reset(token)


def is_memoizing() -> bool:
    """Return whether results are shared."""
    return _memo.get() is not None


def memoized(
    compute: Callable[[], Result],
    key: Hashable,
    *inputs: object,
    rows: int = 1,
    may_keep: Callable[[], bool] = lambda: True,
) -> Result:
    """Return the result of an earlier call with an equal key and the same inputs, else compute it.

    Args:
        compute: returns the result, which nothing changes afterwards.
        key: the inputs that are compared by value.
        inputs: the inputs that are compared by identity.
        rows: rows of the result.
        may_keep: whether later calls may use the result, asked after its computation.
    """
    memo = _memo.get()
    if memo is None:
        return compute()
    place = (key, *map(id, inputs))
    known = memo.find(place)
    if known is not None:
        found: Result = known[1]
        return found
    result = compute()
    if may_keep():
        memo.keep(place, inputs, result, rows)
    return result
