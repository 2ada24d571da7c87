"""Which ranks are a rank's pipeline where no group says so: what other groups leave, or what its stages say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pptrace_profilers.recording.recording import NO_STAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace_profilers.recording.recording import Recording

__all__ = ["GROUPED", "left_over", "ranks_by_stages", "stages_of"]

GROUPED = {
    "dp": re.compile(r"(?:^|[_\W])dp(?:$|[_\W])|^data_parallel", re.IGNORECASE),
    "cp": re.compile(r"(?:^|[_\W])cp(?:$|[_\W])|^context_parallel", re.IGNORECASE),
    "tp": re.compile(r"(?:^|[_\W])tp(?:$|[_\W])|^tensor_model_parallel", re.IGNORECASE),
}
"""How groups of each axis are described, by PyTorch's device meshes and by Megatron-LM."""


def left_over(groups: Mapping[str, tuple[int, ...]], rank: int, world: int) -> tuple[int, ...]:
    """Return the ranks that a job's other axes leave for a rank's pipeline, first stage first; else none.

    Ranks of a job are numbers whose digits are its axes, so a group's ranks lie equally far apart, and how far is
    the product of all faster axes. One gap in those products is the pipeline's axis.

    Args:
        groups: the process groups of the rank, by description.
        rank: the global rank.
        world: ranks of the job.
    """
    strides = []
    for described in GROUPED.values():
        its = [ranks for name, ranks in groups.items() if described.search(name) and rank in ranks]
        ranks = min(its, key=len, default=())  # Megatron-LM has data-parallel groups with and without context
        if len(ranks) > 1:
            strides.append((ranks[1] - ranks[0], len(ranks)))
            if ranks != tuple(range(ranks[0], ranks[0] + len(ranks) * strides[-1][0], strides[-1][0] or 1)):
                return ()
    free, faster = [], 1
    for stride, size in [*sorted(strides), (world, 1)] if strides else ():
        if stride < faster or stride % faster:
            return ()
        if stride > faster:
            free.append((faster, stride // faster))
        faster = stride * size
    if len(free) != 1:
        return ()
    ((stride, size),) = free
    first = rank - rank // stride % size * stride
    return tuple(range(first, first + size * stride, stride))


def ranks_by_stages(pipeline: Sequence[Recording], world: int) -> int:
    """Return how many ranks a pipeline has, by the stages that its recorded ranks hold; 0 where that is not sure.

    A rank that holds several stages says how far apart they are: microbatches pass the ranks around, or there and
    back. A rank's first stage is its number in the pipeline.
    """
    fitting: set[int] | None = None
    for recording in pipeline:
        held = stages_of(recording)
        if len(held) <= 1 or held[0] == NO_STAGE:
            return 0
        sizes = {held[1] - held[0], (held[0] + held[1] + 1) // 2}
        its = {size for size in sizes if size and world % size == 0 and held in _held(held[0], size, len(held))}
        fitting = its if fitting is None else fitting & its
    return next(iter(fitting)) if fitting and len(fitting) == 1 else 0


def stages_of(recording: Recording) -> list[int]:
    """Return the stages of a rank's actions, in order."""
    return sorted({action.stage for execution in recording.executions for action in execution.members})


def _held(number: int, ranks: int, chunks: int) -> tuple[list[int], list[int]]:
    """Return the stages of a rank whose pipeline goes around, and of one that goes there and back."""
    if number >= ranks:
        return [], []
    around = [chunk * ranks + number for chunk in range(chunks)]
    back = [chunk * ranks + (ranks - 1 - number if chunk % 2 else number) for chunk in range(chunks)]
    return around, back
