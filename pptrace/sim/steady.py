"""What each of many flows gets while all of them go on at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pptrace.network.contract import UNLIMITED
from pptrace.sim.contention import Contention, Sharing
from pptrace.sim.events import run_jobs
from pptrace.sim.jobs import FINER, Jobs
from pptrace.sim.shared import shared_links

if TYPE_CHECKING:
    from pptrace.model.columns import Int64s
    from pptrace.network.contract import Links, Paths

__all__ = ["steady_rates"]


class _Together:
    """Tasks that wait for nothing, in the columns of a task graph."""

    def __init__(self, tasks: int) -> None:
        self.tasks = self.rows = tasks
        self.duration_ns = self.lag_ns = np.zeros(tasks, dtype=np.int64)
        self.next = self.next_peer = self.twin = np.full(tasks, -1, dtype=np.int32)
        self.edge_ptr, self.edge = np.zeros(tasks + 1, dtype=np.int32), np.zeros(0, dtype=np.int32)
        self.placement = self
        self.ranks = 1


def steady_rates(paths: Paths, links: Links) -> Int64s:
    """Return the max-min fair rate in kB/s of one message on the first way of each pair, all at once.

    A pair that nothing limits gets 0.
    """
    first = np.arange(0, len(paths), paths.ways, dtype=np.int32)
    alone = paths.rate_kbps[first]
    shared = shared_links(paths, links, Sharing.MAX_MIN, prune=False)
    moving = np.flatnonzero((alone != UNLIMITED) & (np.diff(shared.ptr)[first] > 0))
    count = moving.size
    rates = alone.copy()
    if not count:
        return rates
    none = np.zeros(count, dtype=np.int64)
    jobs = Jobs(
        task=np.arange(count, dtype=np.int32), volume=none + 2**60, full_rate=alone[moving] * FINER,
        overhead_ns=none, path=first[moving], sort=none.astype(np.int8), rank=none.astype(np.int32),
        peer=none.astype(np.int32),
    )  # fmt: skip
    _, changes = run_jobs(cast("Any", _Together(count)), jobs, shared, Contention())
    at_first = changes.at_ns == 0
    rates[moving[changes.task[at_first]]] = changes.rate[at_first] // FINER
    return rates
