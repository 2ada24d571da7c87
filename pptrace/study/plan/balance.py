"""A split of the layers by cost: embedding and head count as what they cost, in layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pptrace.errors import PptraceError

if TYPE_CHECKING:
    from pptrace.experiment.costs import Costs
    from pptrace.model.workload import Workload

__all__ = ["balanced_split"]

_LAYERS = "layers_per_stage"
_THREE = 3


def balanced_split(costs: Costs, stages: int, layers: int) -> list[int] | None:
    """Return the layers of each stage by which the slowest takes least; None where that is the even split.

    Layers are taken to cost alike, as much as one in the middle of the model; the costs of the ends are what the
    first and the last stage take beyond their layers. Layer after layer goes to the stage that then takes least,
    which is the best that there is for such costs.

    Args:
        costs: a configuration's costs.
        stages: into how many the model is cut.
        layers: how many it has.
    """
    if stages < _THREE or layers < stages:
        return None
    base, more = divmod(layers, stages)
    even = [base + (0 < stage <= more) for stage in range(stages)]
    if more > stages - 2:
        even[0], even[-1] = base + 1, base + (more == stages)
        even[1:-1] = [base + 1] * (stages - 2)
    even[1] += layers - sum(even)
    try:
        workload = _with_split(costs, even)
    except PptraceError:
        return None
    took = (workload.f_ns + workload.b_ns).tolist()
    each = took[1] / even[1]
    totals = [max(time - each * count, 0.0) for time, count in zip(took, even, strict=True)]
    split = [0] * stages
    for _ in range(layers):
        least = min(range(stages), key=lambda stage: (totals[stage], -stage))
        totals[least] += each
        split[least] += 1
    return None if max(totals) >= max(took) else split


def _with_split(costs: Costs, split: list[int]) -> Workload:
    model = {**costs.request.model, _LAYERS: split}
    return replace(costs, request=replace(costs.request, model=model)).workload(
        len(split), tuple((stage, stage + 1) for stage in range(len(split) - 1))
    )
