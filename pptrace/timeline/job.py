"""A job is many replicas of one pipeline over several steps: the same operations, each with times of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from pptrace.model.action import Action

__all__ = ["Job", "JobOperation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOperation:
    """One operation of a pipeline's step, which every replica runs in every step."""

    sort: str
    """Its type, such as ``forward-compute``; operations of one type should take the same time."""
    rank: int
    """The rank of the pipeline that runs it."""
    after: tuple[int, ...] = ()
    """Positions of operations whose ends it waits for."""
    communicates: bool = False
    """Whether the network, and not its rank, says what it takes."""
    account: str = ""
    """What its time is booked on, as both ends of a message are on one; its type unless given."""
    action: Action | None = None
    """What it is in a pipeline's table; None for what none has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """What all replicas did; times have the shape (operations, replicas, steps) and any origin of each step."""

    operations: tuple[JobOperation, ...]
    """The operations of one replica."""
    meetings: tuple[tuple[int, ...], ...]
    """Positions of operations that move nothing before all of them have started; no operation is in two."""
    everywhere: frozenset[int]
    """Those of these operations that also wait for themselves in all other replicas."""
    workers: NDArray[np.int64]
    """Shape (replicas, ranks): the global rank at each place."""
    replicas: tuple[str, ...]
    """Names of the replicas, such as ``dp=3``."""
    steps: tuple[str, ...]
    """Names of the steps."""
    start_ns: NDArray[np.int64]
    """When each operation started."""
    end_ns: NDArray[np.int64]
    """When each ended."""

    @property
    def ranks(self) -> int:
        """Ranks of one pipeline."""
        return int(self.workers.shape[1])

    def positions(self, *, rank: int | None = None, account: str | None = None) -> Sequence[int]:
        """Return the operations of a rank, or of an account."""
        return [
            at
            for at, one in enumerate(self.operations)
            if rank in {None, one.rank} and account in {None, one.account or one.sort}
        ]
