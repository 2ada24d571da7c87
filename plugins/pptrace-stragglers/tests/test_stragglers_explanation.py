"""``pptrace explain`` compares the replicas of any format, and says why where it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from compared_steps import one_step

from pptrace.timeline.measurement import Measurement, Replica, Step
from pptrace_stragglers.plugin import pptrace_explanations

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

(OFFER,) = pptrace_explanations()
GPIPE = [[f"{stage}{kind}{m}" for kind in "FB" for m in range(4)] for stage in range(3)]


def measurement(*timelines: Timeline) -> Measurement:
    steps = [Step(label="step 0", timeline=one, gap_ns=np.zeros(len(one), dtype=np.int64)) for one in timelines]
    replicas = tuple(
        Replica(name=f"dp={number}", ranks=tuple(range(3 * number, 3 * number + 3)), steps=(step,))
        for number, step in enumerate(steps)
    )
    return Measurement(steps=(steps[0],), replicas=replicas if len(replicas) > 1 else ())


def test_the_slowest_replica_is_found() -> None:
    measured = measurement(one_step(), one_step(slow={1: 1.5}))

    part = OFFER.explain(measured, measured.steps[0])

    assert part is not None
    assert part.values["slowest"][0].replica == "dp=1"
    assert part.sections[0].blocks[0].startswith("2 replicas of 3 ranks, 1 steps of ")
    assert part.timeline is not None
    assert part.timeline().ranks == 3


def test_one_replica_has_no_stragglers() -> None:
    measured = measurement(one_step())

    assert OFFER.explain(measured, measured.steps[0]) is None


def test_replicas_of_different_schedules_are_not_compared() -> None:
    measured = measurement(one_step(), one_step(GPIPE))

    part = OFFER.explain(measured, measured.steps[0])

    assert part is not None
    assert part.values is None
    assert part.notes == (
        "replicas are not compared: there is no step in which all replicas ran the same actions in the same order",
    )
