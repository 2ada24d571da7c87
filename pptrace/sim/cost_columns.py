"""What a workload's actions cost, as kernels read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import Kind
from pptrace.model.workload import Workload
from pptrace.sim.records import CostColumns

if TYPE_CHECKING:
    from pptrace.schedule.neighbours import StageGraph

__all__ = ["cost_columns"]


def cost_columns(workload: Workload, graph: StageGraph) -> CostColumns:
    """Return what actions cost, by class, kind and stage, flat."""
    classes = (workload, *workload.classes)
    by_kind = [
        [np.concatenate([per(one, kind) for kind in Kind]) for one in classes]
        for per in (Workload.duration_ns, Workload.collective_ns)
    ]
    return CostColumns(
        classes=len(classes), width=len(Kind) * graph.stages,
        class_of=workload.microbatch_class if len(classes) > 1 else np.zeros(0, dtype=np.int32),
        duration_ns=np.concatenate(by_kind[0]), collective_ns=np.concatenate(by_kind[1]),
        boundary_bytes=np.concatenate([one.edge_bytes.ravel() for one in classes]),
    )  # fmt: skip
