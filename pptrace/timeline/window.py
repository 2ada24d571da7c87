"""A step's window: the time from its first action to its last, the same for all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Stream

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

__all__ = ["window"]

_MESSAGES = (Stream.COMM, Stream.SEND, Stream.RECV)


def window(timeline: Timeline) -> tuple[int, int]:
    """Return when the first slice starts and when the last ends.

    A message opens no window: a measured one begins with its wait for a peer.
    """
    filled = np.flatnonzero(np.diff(timeline.lane_ptr) > 0)
    if not filled.size:
        return 0, 0
    first, last = timeline.lane_ptr[filled], timeline.lane_ptr[filled + 1] - 1
    opens = ~np.isin(timeline.lane_stream[filled], _MESSAGES)
    starts = timeline.start_ns[first[opens] if opens.any() else first]
    return int(starts.min()), int(timeline.end_ns[last].max())
