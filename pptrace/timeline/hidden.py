"""Communication that computation hides: messages while their receiver computes, groups' while their rank does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Stream
from pptrace.timeline.actions import Clock, group_times
from pptrace.timeline.messages import messages

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s
    from pptrace.timeline.timeline import Timeline

__all__ = ["hidden_ns"]


def hidden_ns(timeline: Timeline) -> Int64s:
    """Return, per rank, for how long communication was under way while the rank computed, shape (ranks,).

    Messages count at their receiver, from their start to the arrival of the data; communication of groups, such as
    the reduction of gradients, at its own rank. What is under way at once counts once each.
    """
    total = np.zeros(timeline.ranks, dtype=np.int64)
    for group in group_times(timeline):
        total += group.hidden_ns
    found = messages(timeline)
    known = found.consumer >= 0
    row = np.where(found.send >= 0, found.send, found.recv)[known]
    receiver = timeline.rank_of_row()[found.consumer[known]]
    compute = np.flatnonzero(timeline.lane_stream == Stream.COMPUTE)
    for rank, lane in zip(timeline.lane_rank[compute].tolist(), compute.tolist(), strict=True):
        clock, own = Clock.of(timeline, lane), row[receiver == rank]
        arrived = timeline.end_ns[own] + timeline.lag_ns[own]
        total[rank] += int((clock.at(arrived) - clock.at(timeline.start_ns[own])).sum())
    return total
