"""Bounds of the next candidates, made on an executor while the search looks at the ones before.

Candidates get their own bounds in an order that is known beforehand, until the search ends. So a few chunks of
them can be on their way; which of them is used, and in what order, depends on no machine.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from dataclasses import fields
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from pptrace.study.plan.ground import Ground
from pptrace.study.plan.point import installed
from pptrace.study.plan.pricing import Pricing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Executor, Future

    from pptrace.study.plan.candidate import Candidate
    from pptrace.study.plan.pricing import Origin, Priced
    from pptrace.study.plan.space import Space

__all__ = ["Ahead", "worthwhile"]

_LEAST = 500
"""Candidates from which it is worth while to make bounds on other processes."""
_CHUNK = 24
"""Candidates that are handed over at once: few enough to end soon."""


def worthwhile(candidates: Sequence[Candidate]) -> bool:
    """Return whether there are so many candidates that other processes bound them sooner."""
    return len(candidates) >= _LEAST


class _Ask(NamedTuple):
    """What a worker is asked for."""

    token: str
    """Tells the plan from others."""
    plan: bytes
    """What its bounds are made of, pickled."""
    origins: tuple[Origin, ...]
    """Of the candidates."""


class Ahead:
    """Bounds that are on their way."""

    def __init__(self, space: Space, candidates: Sequence[Candidate], executor: Executor, workers: int) -> None:
        """Hand over the first chunks.

        Args:
            space: what the plan considers.
            candidates: those without a bound of their own, in the order in which they will be asked for.
            executor: where it is done.
            workers: how many work at once.
        """
        ground = space.ground
        own = {field.name: getattr(ground, field.name) for field in fields(ground) if field.name != "registry"}
        self._plan = pickle.dumps((own, space.entries, space.layers))
        self._token = hashlib.sha256(self._plan).hexdigest()
        self._executor, self._most = executor, 2 * workers
        self._chunks = _chunks(candidates)
        self._running: deque[tuple[list[int], Future[list[Priced]]]] = deque()
        self._found: dict[int, Priced] = {}
        self._is_over = False
        self._hand_over()

    def of(self, candidate: Candidate) -> Priced | None:
        """Return what a candidate's table and costs say; None where nobody makes it, as after a worker's end."""
        while candidate.number not in self._found and self._running:
            numbers, future = self._running.popleft()
            try:
                self._found.update(zip(numbers, future.result(), strict=True))
            except Exception:  # noqa: BLE001 - whatever fails elsewhere is made, or fails, here
                self.end()
            self._hand_over()
        return self._found.pop(candidate.number, None)

    def end(self) -> None:
        """Take back what nobody has begun."""
        self._is_over = True
        for _, future in self._running:
            future.cancel()
        self._running.clear()

    def _hand_over(self) -> None:
        while not self._is_over and len(self._running) < self._most:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            origins = tuple(one.origin for one in chunk if one.origin is not None)
            try:
                future = self._executor.submit(_priced, _Ask(self._token, self._plan, origins))
            except Exception:  # noqa: BLE001 - a broken executor: bounds are made here then
                self.end()
                return
            self._running.append(([one.number for one in chunk], future))


def _chunks(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Yield candidates of one layout together, up to so many at once."""
    for _, group in groupby(candidates, key=lambda one: one.layout):
        own = list(group)
        yield from (own[begin : begin + _CHUNK] for begin in range(0, len(own), _CHUNK))


def _priced(ask: _Ask) -> list[Priced]:
    pricing = _pricing(ask.token, ask.plan)
    return [pricing.priced(origin) for origin in ask.origins]


@lru_cache(maxsize=1)
def _pricing(token: str, plan: bytes) -> Pricing:
    del token
    own: Any
    own, entries, layers = pickle.loads(plan)  # noqa: S301 - this plan's own process made it
    return Pricing(Ground(**own, registry=installed()), entries, layers)
