"""What bytes over single links take: durations of segments that name a link and not a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import ScheduleError
from pptrace.network.contract import Paths, transfer_ns

if TYPE_CHECKING:
    from pptrace.model.segments import Segment
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Links

__all__ = ["timed"]

_SHOWN = 8


def timed(workload: Workload, links: Links) -> Workload:
    """Return the costs with what bytes over links take alone, latency included.

    Raises:
        ScheduleError: the network has no link of that name.
    """

    def over(segment: Segment) -> Segment:
        if not segment.link:
            return segment
        if segment.link not in links.name:
            known = f"known: {', '.join(links.name[:_SHOWN])}" if len(links) else "it has none"
            raise ScheduleError(
                f"segment {segment.name} goes over link {segment.link!r}, which the network lacks; {known}"
            )
        link = links.name.index(segment.link)
        path = Paths.along(links, [0, 1], [link])
        took = transfer_ns(np.array([segment.size_bytes]), path.overhead_ns, path.rate_kbps)
        return replace(segment, duration_ns=int(took[0] + path.latency_ns[0]))

    if not any(one.link for stages in workload.segments.values() for own in stages for one in own):
        return workload
    segments = {kind: [tuple(map(over, own)) for own in stages] for kind, stages in workload.segments.items()}
    whole = replace(workload, segments={}, classes=tuple(timed(one, links) for one in workload.classes))
    return whole.segmented(segments)
