"""Splits of the layers: by cost, where embedding and head count as layers; and a model's own, as costs tell it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from pptrace.errors import PptraceError

if TYPE_CHECKING:
    from pptrace.experiment.costs import Costs
    from pptrace.model.workload import Workload

__all__ = ["balanced_split", "own_split"]

_LAYERS = "layers_per_stage"
_THREE = 3
_TOLD_BY = ("weights_bytes", "activation_bytes", "f_ns", "b_ns")
"""What tells one split from another."""


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


def own_split(costs: Costs, stages: int, layers: int) -> list[int] | None:
    """Return the layers of each stage where a model is cut as evenly as it goes; None where its costs do not tell.

    Stages between the ends that keep more weights than others have one layer more; the ends share what is left.
    A split is the model's own only where it costs on every stage what the model costs without one.

    Args:
        costs: a configuration's costs, which say no layers per stage.
        stages: into how many the model is cut.
        layers: how many it has.
    """
    base = layers // stages
    own = costs.workload(stages, _chain(stages))
    kept = own.weights_bytes[1:-1]
    least = int(kept.min(initial=kept.max(initial=0)))
    more = (kept - least) * 2 * max(base, 1) > least
    for low, up in product((base, base + 1), (0, 1)):
        between = (low + more).tolist()
        left = layers - sum(between)
        first = (left + up) // 2
        if left >= 0 and _costs_as(costs, [first, *between, left - first], own):
            return [first, *between, left - first]
    return None


def _costs_as(costs: Costs, split: list[int], own: Workload) -> bool:
    try:
        found = _with_split(costs, split)
    except PptraceError:
        return False
    return all(np.array_equal(getattr(found, name), getattr(own, name)) for name in _TOLD_BY)


def _chain(stages: int) -> tuple[tuple[int, int], ...]:
    return tuple((stage, stage + 1) for stage in range(stages - 1))


def _with_split(costs: Costs, split: list[int]) -> Workload:
    model = {**costs.request.model, _LAYERS: split}
    return replace(costs, request=replace(costs.request, model=model)).workload(len(split), _chain(len(split)))
