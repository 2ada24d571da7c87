"""Bring the clocks of ranks in line, from messages that cannot arrive before they were sent.

A message from a to b says that b's clock must be set forward at least by what it seems to arrive too early, one
from b to a bounds the same from the other side. All such bounds together leave an interval for each rank's offset
from rank 0's; its middle is taken, and half its length is how far off it may be. The result does not depend on how
the clocks were set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.plugin import Int64s

__all__ = ["align"]

_UNBOUND = np.int64(2**62 - 1)
"""Beyond any time since 1970, and no overflow in sums of two."""


def align(ranks: int, transfers: Sequence[tuple[int, int, int, int]]) -> list[Clock]:
    """Return each rank's clock.

    Args:
        ranks: how many there are.
        transfers: per message, sender, receiver, when it was posted and when it was there, by their own clocks.

    A rank that no messages tie to rank 0 in both directions keeps its clock, with no bound known (0 pairs).
    """
    # slack[a, b]: the most by which b's offset may exceed a's.
    slack = np.full((ranks, ranks), _UNBOUND, dtype=np.int64)
    np.fill_diagonal(slack, 0)
    pairs = np.zeros(ranks, dtype=np.int64)
    for source, target, posted, there in transfers:
        # It is there no earlier than it was posted, whatever both clocks are set forward by.
        slack[target, source] = min(slack[target, source], there - posted)
        pairs[source] += 1
        pairs[target] += 1
    for middle in range(ranks):
        slack = np.minimum(slack, np.minimum(slack[:, [middle]] + slack[[middle], :], _UNBOUND))
    return [_clock(rank, slack, int(pairs[rank])) for rank in range(ranks)]


def _clock(rank: int, slack: Int64s, pairs: int) -> Clock:
    most, least = int(slack[0, rank]), -int(slack[rank, 0])
    half = _UNBOUND // 2
    if rank == 0 or most > half or least < -half:
        return Clock(rank=rank, offset_ns=0, bound_ns=0, pairs=0)
    return Clock(
        rank=rank, offset_ns=(most + least) // 2, bound_ns=abs(most - least) // 2, pairs=pairs,
        contradicted_ns=max(least - most, 0),
    )  # fmt: skip
