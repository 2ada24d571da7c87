"""Forwards and backwards of each rank by index, and the ends of messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from pptrace.plugin import ConstraintError, Kind
from pptrace.steps.columns import empty_columns
from pptrace_frameworks import kernels
from pptrace_kernel import halves, run_parts

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
    leading: Ints
    """Shape (ranks,): forwards before each rank's first backward."""
    takes_turns: NDArray[np.bool_]
    """Shape (ranks,): whether each later forward follows exactly one more backward than the forward before it."""
    number: Ints
    """Shape (actions,): index of each among the forwards or backwards of its rank, -1 for other actions."""
    is_one_order: bool
    """Whether all ranks run the same microbatches of the same chunks in one order; rank r has stage r of each."""

    def is_warm_up_and_turns(self, warm_up: Ints) -> bool:
        """Return whether ranks run ``warm_up`` forwards, then alternate forward and backward, then backwards."""
        return bool((self.takes_turns & (self.leading == np.minimum(warm_up + 1, self.count))).all())


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
    ranks, parts = schedule.ranks, halves(schedule.ranks, work=len(schedule))
    count, rest = divmod(int(np.count_nonzero(np.equal(schedule.kind, int(Kind.F)))), ranks)
    forward, backward = empty_columns(ranks * count, np.int32, np.int32)
    (number,) = empty_columns(len(schedule), np.int32)
    leading, takes_turns = np.zeros((2, ranks), dtype=np.int32)
    flags = run_parts(
        kernels.number_rows,
        parts,
        (schedule.row_ptr, schedule.cells, np.array(_DIRECTIONS), count),
        (forward, backward, number, leading, takes_turns),
        work=len(schedule),
    )
    if rest or not all(flags):
        raise cannot(framework, "does not give all ranks equally many forwards and backwards")
    forward, backward = forward.reshape(ranks, count), backward.reshape(ranks, count)
    is_one_order = all(each & kernels.ONE_ORDER for each in flags) and all(
        _is_order_of_first_rank(schedule, forward, rank) and _is_order_of_first_rank(schedule, backward, rank)
        for rank, _ in parts[1:]
    )
    return Rows(
        ranks=ranks, count=count, forward=forward, backward=backward, leading=leading,
        takes_turns=takes_turns.astype(bool), number=number, is_one_order=is_one_order,
    )  # fmt: skip


def _is_order_of_first_rank(schedule: Schedule, rows: Ints, rank: int) -> bool:
    """Return whether a rank's ``rows`` have the microbatches and chunks of those of the first rank."""
    return all(
        np.array_equal(values[rows[rank]] - shift, values[rows[0]])
        for values, shift in ((schedule.microbatch, 0), (schedule.span, 0), (schedule.stage, rank))
    )


def cannot(framework: str, what: str, *, runs: str = "1f1b and interleaved-1f1b") -> ConstraintError:
    """Return the error for a table whose messages a framework's program cannot place."""
    return ConstraintError(
        f"{framework} cannot place this table's messages: it {what}; {framework} runs {runs}, for others use "
        f"async or ordered",
        key="p2p.policy",
    )
