"""Several recorded steps as one: every action and message takes the median of its times in all of them.

Where an action starts and ends is as in the step of median length: medians of starts and ends would be a step that
never ran, and differences of such medians are no times of actions.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pptrace.analysis.steps.times import Performed, Transfers
    from pptrace.model.columns import Int64s

__all__ = ["median_step", "over_steps", "share_of_deviation"]


def median_step(step: Performed, others: Sequence[Performed]) -> Performed:
    """Return a step with the medians over it and others of durations, gaps, and ways of messages."""
    if not others:
        return step
    durations, gaps = (_medians(over_steps(step, others, name)) for name in ("duration_ns", "gap_ns"))
    return replace(step, duration_ns=durations, gap_ns=gaps, transfers=_transfers(step.transfers, others))


def over_steps(step: Performed, others: Sequence[Performed], name: str) -> NDArray[np.float64]:
    """Return a column's values of each action of a step in that and other steps.

    Returns:
        Shape (1 + others, actions): from the start of each step's pipeline where they are times of day; NaN
        where a step lacks an action. Steps of other sizes are left out.
    """
    sizes = (step.placement.stages, step.placement.microbatches)
    alike = [other for other in others if (other.placement.stages, other.placement.microbatches) == sizes]
    return np.stack([_column(step, step, name), *(_column(step, other, name) for other in alike)])


def share_of_deviation(steps: int) -> float:
    """Return by which factor a median over steps varies less than one step: (pi / 2n) ** 0.5, for normal times."""
    return min(math.sqrt(math.pi / (2 * steps)), 1.0)


def _column(step: Performed, other: Performed, name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = getattr(other, name).astype(np.float64)
    if name in {"start_ns", "end_ns"} and len(other):
        values = values - other.start_ns.min()
    if other is step:
        return values
    at = {int(cell): index for index, cell in enumerate(other.places)}
    places = np.array([at.get(int(cell), -1) for cell in step.places], dtype=np.int64)
    if not len(other):
        return np.full(len(step), np.nan)
    matching: NDArray[np.float64] = np.where(places >= 0, values[places], np.nan)
    return matching


def _medians(values: NDArray[np.float64]) -> Int64s:
    medians: Int64s = np.nanmedian(values, axis=0).astype(np.int64)
    return medians


def _transfers(transfers: Transfers, others: Sequence[Performed]) -> Transfers:
    """Return messages with the median of their times where their arrival was seen, else of all."""
    seen: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    unseen: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for one in (transfers, *(other.transfers for other in others)):
        columns = (one.kind, one.stage, one.microbatch, one.took_ns, one.held_ns, one.observed)
        for kind, stage, microbatch, took, held, observed in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            if took >= 0:
                (seen if observed else unseen).setdefault((kind, stage, microbatch), []).append((took, held))
    keys = list(zip(transfers.kind.tolist(), transfers.stage.tolist(), transfers.microbatch.tolist(), strict=True))
    middle = [np.median(seen.get(key) or unseen.get(key) or [(-1, 0)], axis=0).astype(np.int64) for key in keys]
    times = np.array(middle, dtype=np.int64).reshape(-1, 2)
    observed = np.array([key in seen for key in keys], dtype=np.bool_)
    return replace(transfers, took_ns=times[:, 0], held_ns=times[:, 1], observed=observed)
