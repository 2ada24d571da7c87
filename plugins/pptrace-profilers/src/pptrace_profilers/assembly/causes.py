"""What released each computation of a GPU's step: the one before it, or the kernel that brought its input.

A GPU's kernels say when a message was there whether or not anybody waited for it, so that nothing has to be
guessed from waits, as it has where the host's own posts were recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import compute_rows, messages

if TYPE_CHECKING:
    from pptrace.plugin import Int64s, Timeline

__all__ = ["with_causes"]

_PROMPT_NS = 20_000
"""Within which a computation starts when its input is there; what starts later waited for the host."""


def with_causes(timeline: Timeline, received_ns: Int64s) -> Timeline:
    """Return a step whose computations and messages say what released them, where that is known.

    Args:
        timeline: a step of GPUs.
        received_ns: shape (slices,): for a message that was received, when its kernel ended; -1 for all else, and
            where no kernel was recorded.
    """
    cause = np.full(len(timeline), -1, dtype=np.int32)
    before = np.full(len(timeline), -1, dtype=np.int64)
    for rows in compute_rows(timeline):
        cause[rows[1:]] = rows[:-1]
        before[rows[1:]] = timeline.end_ns[rows[:-1]]
    moves = messages(timeline)
    for ends in (moves.send, moves.recv):
        cause[ends[ends >= 0]] = moves.producer[ends >= 0]
    waits = moves.consumer >= 0
    consumer, recv = moves.consumer[waits], moves.recv[waits]
    there = np.where(recv >= 0, received_ns[recv], -1)
    unknown = consumer[there < 0]
    late = timeline.start_ns[consumer] > there + _PROMPT_NS
    released = (there >= 0) & (there >= before[consumer]) & (~late | (before[consumer] < 0))
    cause[consumer[released]] = recv[released]
    cause[unknown] = -1
    return replace(timeline, cause=cause)
