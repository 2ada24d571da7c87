"""What released each computation of a GPU's step: the one before it, or the kernel that brought its input.

A GPU's kernels say when a message was there whether or not anybody waited for it, so that nothing has to be
guessed from waits, as it has where the host's own posts were recorded.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.timeline.messages import messages
from pptrace.timeline.order import compute_rows

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = ["with_causes"]

_PROMPT_NS = 20_000
"""Within which a computation starts when its input is there; what starts later waited for the host."""


def with_causes(timeline: Timeline, brought_ns: Int64s) -> Timeline:
    """Return a step whose computations and messages say what released them, where that is known.

    Args:
        timeline: a step of GPUs.
        brought_ns: shape (slices,): for a message that was received, when its kernel ended; -1 for all else, and
            where no kernel was recorded.
    """
    cause = np.full(len(timeline), -1, dtype=np.int32)
    before = np.full(len(timeline), -1, dtype=np.int64)
    for own in compute_rows(timeline):
        cause[own[1:]] = own[:-1]
        before[own[1:]] = timeline.end_ns[own[:-1]]
    carried = messages(timeline)
    for one, producer in ((carried.send, carried.producer), (carried.recv, carried.producer)):
        cause[one[one >= 0]] = producer[one >= 0]
    waits = carried.consumer >= 0
    consumer, recv = carried.consumer[waits], carried.recv[waits]
    there = np.where(recv >= 0, brought_ns[recv], -1)
    unknown = consumer[there < 0]
    late = timeline.start_ns[consumer] > there + _PROMPT_NS
    released = (there >= 0) & (there >= before[consumer]) & (~late | (before[consumer] < 0))
    cause[consumer[released]] = recv[released]
    cause[unknown] = -1
    return replace(timeline, cause=cause)
