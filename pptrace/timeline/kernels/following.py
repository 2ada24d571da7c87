"""Kernels that follow memory through a timeline, and causes back.

Columns are lists or arrays of integers, alike in use, hence without annotations. ``cells`` are
:class:`~pptrace.model.cells.CellColumns`, ``graph`` is a :class:`~pptrace.schedule.neighbours.StageGraph`,
``kinds`` the :class:`~pptrace.model.kind_table.KindTable`. What a stage *makes* are its forwards' results (0),
which the stages behind need, and its backwards' (1), which the stages before do.
"""

from pptrace.model.kinds import Result

__all__ = ["follow_causes", "follow_memory"]

ACTIVATION, WEIGHT_GRADIENT = int(Result.ACTIVATION), int(Result.WEIGHT_GRADIENT)


def follow_memory(compute_lane, lane_ptr, cells, start, kept, kept_weight, kinds, peak, peak_at, held_most):
    """Follow each rank's activations: bytes held, when they peak, and the most microbatches held at once.

    Where a kind takes what a weight gradient needs, full recomputation builds it there, so memory may rise.
    """
    for rank in range(len(compute_lane)):
        lane = compute_lane[rank]
        low, high = (lane_ptr[lane], lane_ptr[lane + 1]) if lane >= 0 else (0, 0)
        held = 0
        count = 0
        for row in range(low, high):
            k, s, n = cells.kind[row], cells.stage[row], cells.span[row]
            held += (kinds.activation[k] * kept[s] + kinds.weight_activation[k] * kept_weight[s]) * n
            if held > peak[rank]:
                peak[rank] = held
                peak_at[rank] = start[row]
            if kinds.result[k] == ACTIVATION:
                count += n
                held_most[rank] = max(held_most[rank], count)
            elif kinds.result[k] == WEIGHT_GRADIENT or kinds.second_result[k] == WEIGHT_GRADIENT:
                count -= n


def follow_causes(cause, last, path):
    """Walk back from ``last`` along the causes; return how many rows the path holds, last first."""
    found = 0
    row = last
    while row >= 0 and found < len(path):
        path[found] = row
        found += 1
        row = cause[row]
    return found
