"""The reduction of gradients between the ranks of one pipeline that hold the same stage, as Chimera's do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.experiment.placed import placed
from pptrace.network.collectives import LinkCollectives
from pptrace.record import dataclass

if TYPE_CHECKING:
    from pptrace.config.resolve import Resolved
    from pptrace.experiment.cluster import OnCluster
    from pptrace.model.columns import Int32s
    from pptrace.model.placement import Placement
    from pptrace.model.workload import Workload
    from pptrace.network.contract import Network

__all__ = ["with_stage_replicas"]

_NOT_REDUCED = "gradients of stages that several ranks hold are not reduced between them: "
_OFF = f"{_NOT_REDUCED}data_parallel.stage_replicas is false"
_UNKNOWN = f"{_NOT_REDUCED}costs {{name}} know no gradients"
_KEY = "data_parallel.stage_replicas"


@dataclass(frozen=True, slots=True)
class _Holders:
    """Groups of endpoints that hold the same stages."""

    rows: Int32s

    def groups(self, axis: str) -> Int32s:
        """Return the groups; there is one axis, ``replicas``."""
        del axis
        return self.rows


def with_stage_replicas(
    resolved: Resolved, workload: Workload, placement: Placement, network: Network, job: OnCluster | None
) -> Workload:
    """Add what an all-reduce between the holders of each stage takes to its reduction, if switched on.

    All groups of holders reduce at once, behind the reduction over the data-parallel replicas. Costs that know
    no gradients have nothing to reduce, which a note says.

    Raises:
        ConfigError: the costs know no gradients, and the configuration asks for their reduction.
    """
    holders = placement.copies()
    shared = np.flatnonzero(holders.sum(axis=0) > 1)
    if not shared.size:
        return workload
    if not resolved.experiment.data_parallel.stage_replicas:
        return replace(workload, notes=(*workload.notes, _OFF))
    if not workload.gradients_bytes[shared].any():
        name = resolved.experiment.costs.name
        if _KEY not in resolved.positions:
            return replace(workload, notes=(*workload.notes, _UNKNOWN.format(name=name)))
        message = f"costs {name} know no gradients to reduce: write costs.gradients, or use costs that count them"
        raise resolved.error(_KEY, message)
    reduce_ns = workload.reduce_ns.copy()
    for copies in np.unique(holders.sum(axis=0)[shared]).tolist():
        stages = np.flatnonzero(holders.sum(axis=0) == copies)
        sets = np.unique([np.flatnonzero(holders[:, stage]) for stage in stages], axis=0)
        if job is not None:
            sets = job.layout.grid()[sets].transpose(0, 2, 3, 4, 1).reshape(-1, copies)
        over = LinkCollectives(network=job.cluster if job else network, layout=_Holders(sets.astype(np.int32)))
        with placed(resolved, "network"):
            for stage in stages.tolist():
                reduce_ns[stage] += over.ns("all-reduce", "replicas", int(workload.gradients_bytes[stage]))
    return replace(workload, reduce_ns=reduce_ns)
