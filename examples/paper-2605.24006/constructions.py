"""Tables of Chimera that the plugin does not offer, for claims that the paper's and the plugin's do not meet."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import InFlight, Kind, Placement, list_schedule
from pptrace_schedules.chimera import build

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest


def capped(ranks: int, microbatches: int) -> Schedule:
    """Return the merged table with at most D - s microbatches in flight on each pipeline's stage s."""
    down = np.arange(ranks, dtype=np.int32)
    placement = Placement.of_stages(np.stack([down, down[::-1]]), microbatches)
    bound = np.tile(ranks - down, (2, 1))
    return list_schedule(placement, {Kind.F: 1, Kind.B: 2}, in_flight=InFlight(stage=bound))


def even(request: ScheduleRequest) -> Schedule:
    """Return the table of even stages, whatever the stages take."""
    return build(replace(request, f_ns=(), b_ns=()))
