"""A table as frameworks' programs see it: each rank's forwards and backwards, numbered, and a message's ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pptrace.plugin import ConstraintError, Kind, run_kernel
from pptrace_frameworks import kernels

if TYPE_CHECKING:
    from pptrace.plugin import MessageRequest, Schedule

Ints: TypeAlias = NDArray[np.integer[Any]]

_WAYS = [{Kind.F: 0, Kind.B: 1, Kind.I: 1}.get(kind, -1) for kind in Kind]
"""By kind, 0 for a forward and 1 for a backward, -1 for all else."""


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
    ahead: Ints
    """Shape (ranks, count): backwards before each forward."""
    number: Ints
    """Shape (actions,): which forward or backward of its rank each is, -1 for other actions."""
    is_one_order: bool
    """Whether all ranks run the same microbatches of the same chunks in one order, on rank r stage r of each."""

    @property
    def leading(self) -> Ints:
        """Shape (ranks,): forwards before each rank's first backward."""
        return np.asarray((self.ahead == 0).sum(axis=1))

    def is_warm_up_and_turns(self, warm_up: Ints) -> bool:
        """Whether each rank runs so many forwards, then forward and backward in turns, then backwards."""
        behind = np.arange(self.count, dtype=np.int32) - warm_up[:, None].astype(np.int32)
        return np.array_equal(self.ahead, np.maximum(behind, 0, out=behind))


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
            made=rows.number[request.producer].astype(np.int64),
            used=rows.number[request.consumer].astype(np.int64),
        )  # fmt: skip


def rows_of(schedule: Schedule, framework: str) -> Rows:
    """Return a table's forwards and backwards.

    Raises:
        ConstraintError: ranks run unequal numbers of forwards or backwards.
    """
    count, rest = divmod(int(np.count_nonzero(np.equal(schedule.kind, int(Kind.F)))), schedule.ranks)
    rows = np.empty((3, schedule.ranks, count), dtype=np.int32)
    number, results = np.empty(len(schedule), dtype=np.int32), np.zeros(2, dtype=np.int64)
    run_kernel(
        kernels.number_rows,
        (schedule.row_ptr, schedule.cells, np.array(_WAYS), count),
        (*rows.reshape(3, -1), number, results),
        work=len(schedule),
    )
    is_equal, is_one_order = results.astype(bool).tolist()
    if rest or not is_equal:
        raise cannot(framework, "does not give all ranks equally many forwards and backwards")
    forward, backward, ahead = rows
    return Rows(
        ranks=schedule.ranks, count=count, forward=forward, backward=backward, ahead=ahead, number=number,
        is_one_order=is_one_order,
    )  # fmt: skip


def cannot(framework: str, what: str, *, runs: str = "1f1b and interleaved-1f1b") -> ConstraintError:
    """Return the error for a table whose messages a framework's program does not know how to place."""
    return ConstraintError(
        f"{framework} cannot place this table's messages: it {what}; {framework} runs {runs}, for others use "
        f"async or ordered",
        key="p2p.policy",
    )
