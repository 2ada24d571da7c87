"""A table as frameworks' programs see it: each rank's forwards and backwards, numbered, and a message's ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pptrace.plugin import ConstraintError, Kind

if TYPE_CHECKING:
    from pptrace.plugin import MessageRequest, Schedule

__all__ = ["Ends", "Ints", "Rows", "cannot", "rows_of"]

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Forwards and backwards of a table in which each rank runs equally many of both.

    A backward is what makes the gradient that leaves: of a split one, the part for the input.
    """

    ranks: int
    count: int
    """Forwards, and backwards, of each rank."""
    forward: Ints
    """Shape (ranks, count): positions of each rank's forwards."""
    backward: Ints
    """Shape (ranks, count): positions of its backwards."""
    number: Ints
    """Shape (actions,): which forward or backward of its rank each is, -1 for other actions."""
    step: Ints
    """Shape (actions,): each forward's and backward's place among those of its rank, -1 for other actions."""

    @property
    def leading(self) -> Ints:
        """Shape (ranks,): forwards before each rank's first backward."""
        return np.asarray((self.forward < self.backward[:, :1]).sum(axis=1))

    def is_warm_up_and_turns(self, warm_up: Ints) -> bool:
        """Whether each rank runs so many forwards, then forward and backward in turns, then backwards."""
        k = np.arange(self.count)
        steady = self.count - warm_up[:, None]
        forward = k + np.maximum(k - warm_up[:, None], 0)
        backward = warm_up[:, None] + np.where(k < steady, 2 * k + 1, steady + k)
        return bool((self.step[self.forward] == forward).all() and (self.step[self.backward] == backward).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Both ends of each message, as numbers in their ranks' programs; one value per message."""

    gradient: NDArray[np.bool_]
    source: Ints
    """The sending rank."""
    target: Ints
    """The receiving rank."""
    made: Ints
    """Which forward (of a gradient: backward) of its rank makes it."""
    used: Ints
    """Which one of the other rank uses it."""

    @classmethod
    def of(cls, request: MessageRequest, rows: Rows) -> Ends:
        """Return the ends of a table's messages."""
        return cls(
            gradient=request.gradient,
            source=request.source.astype(np.int64), target=request.target.astype(np.int64),
            made=rows.number[request.producer], used=rows.number[request.consumer],
        )  # fmt: skip


def rows_of(schedule: Schedule, framework: str) -> Rows:
    """Return a table's forwards and backwards.

    Raises:
        ConstraintError: ranks run unequal numbers of forwards or backwards.
    """
    rank = np.repeat(np.arange(schedule.ranks), np.diff(schedule.row_ptr))
    backwards = (schedule.kind == Kind.B) | (schedule.kind == Kind.I)
    both = np.flatnonzero((schedule.kind == Kind.F) | backwards)
    number = np.full(len(schedule), -1, dtype=np.int64)
    step = number.copy()
    found = []
    for rows in (np.flatnonzero(schedule.kind == Kind.F), np.flatnonzero(backwards)):
        counts = np.bincount(rank[rows], minlength=schedule.ranks)
        if (counts != counts[0]).any() or 2 * rows.size != both.size:
            raise cannot(framework, "does not give all ranks equally many forwards and backwards")
        number[rows] = np.tile(np.arange(counts[0]), schedule.ranks)
        found.append(rows.reshape(schedule.ranks, -1))
    step[both] = np.tile(np.arange(both.size // schedule.ranks), schedule.ranks)
    forward, backward = found
    return Rows(
        ranks=schedule.ranks, count=forward.shape[1], forward=forward, backward=backward, number=number, step=step
    )


def cannot(framework: str, what: str, *, runs: str = "1f1b and interleaved-1f1b") -> ConstraintError:
    """Return the error for a table whose messages a framework's program does not know how to place."""
    return ConstraintError(
        f"{framework} cannot place this table's messages: it {what}; {framework} runs {runs}, for others use "
        f"async or ordered",
        key="p2p.policy",
    )
