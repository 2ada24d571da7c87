"""Forwards and backwards of each rank by index, and the ends of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pptrace.plugin import ConstraintError, Kind
from pptrace_frameworks import kernels
from pptrace_kernel import run_kernel

if TYPE_CHECKING:
    from pptrace.plugin import MessageRequest, Schedule

Ints: TypeAlias = NDArray[np.integer[Any]]

_DIRECTIONS = [{Kind.F: 0, Kind.B: 1, Kind.I: 1}.get(kind, -1) for kind in Kind]
"""By kind: 0 for forwards, 1 for backwards, -1 for all other kinds."""


class Rows(Struct, frozen=True, kw_only=True):
    """Forwards and backwards of a table in which each rank runs equally many of both.

    The backward of a split backward is its input gradient, which produces the message to the previous stage.
    """

    ranks: int
    count: int
    """Forwards of each rank, equal to its backwards."""
    forward: Ints
    """Shape (ranks, count): positions of each rank's forwards."""
    backward: Ints
    """Shape (ranks, count): positions of its backwards."""
    ahead: Ints
    """Shape (ranks, count): backwards before each forward."""
    number: Ints
    """Shape (actions,): index of each among the forwards or backwards of its rank, -1 for other actions."""
    is_one_order: bool
    """Whether all ranks run the same microbatches of the same chunks in one order; rank r has stage r of each."""

    @property
    def leading(self) -> Ints:
        """Shape (ranks,): forwards before each rank's first backward."""
        return np.asarray((self.ahead == 0).sum(axis=1))

    def is_warm_up_and_turns(self, warm_up: Ints) -> bool:
        """Return whether ranks run ``warm_up`` forwards, then alternate forward and backward, then backwards."""
        steady_index = np.arange(self.count, dtype=np.int32) - warm_up[:, None].astype(np.int32)
        return np.array_equal(self.ahead, np.maximum(steady_index, 0, out=steady_index))


class Ends(Struct, frozen=True):
    """Both ends of each message; one value per message."""

    gradient: NDArray[np.bool_]
    source: Ints
    """The sending rank."""
    target: Ints
    """The receiving rank."""
    producer_index: Ints
    """Index of the producer among the forwards (gradients: backwards) of its rank."""
    consumer_index: Ints
    """Index of the consumer among those of the other rank."""

    @classmethod
    def of(cls, request: MessageRequest, rows: Rows) -> Ends:
        """Return the ends of a table's messages."""
        return cls(
            gradient=request.gradient,
            source=request.source.astype(np.int64), target=request.target.astype(np.int64),
            producer_index=rows.number[request.producer].astype(np.int64),
            consumer_index=rows.number[request.consumer].astype(np.int64),
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
        (schedule.row_ptr, schedule.cells, np.array(_DIRECTIONS), count),
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
    """Return the error for a table whose messages a framework's program cannot place."""
    return ConstraintError(
        f"{framework} cannot place this table's messages: it {what}; {framework} runs {runs}, for others use "
        f"async or ordered",
        key="p2p.policy",
    )
