"""1F1B with embedding and LM head split over all ranks.

Source: Yeung et al., Balancing Pipeline Parallelism with Vocabulary Parallelism, MLSys 2025, arXiv:2411.05288. The
order is that of its public code (sail-sg/VocabularyParallelism, ``vocab_parallel_schedule.py``) for backwards that
take twice a forward.

Of p ranks, rank r has stage r, a share of the layers, and stage p + r, a share of the vocabulary. The last layers
feed all shares. Pass S of a share computes its logits. Pass T follows when all shares have computed theirs, which
the waits of the table express. A rank runs T of a microbatch right before S of the next microbatch::

    barriers    S             T                        the last layers' backward waits for
    1           F and I       W: weight gradient       S of all shares: algorithm 2 of the paper, Vocab-2
    2           F             B: both gradients        T of all shares: algorithm 1, Vocab-1

Order of rank r, with n = p - r and j = p - 1 - r::

    n F,  S F  (with two barriers again S F),  j - max(0, (j - 1) // 3) S,  turns of B S F,  the rest

Every third rank from the last, but not the last itself, has turns of B F S. Rank r holds n + barriers microbatches
of its layers. Where shares take no time, the bubble is that of 1F1B.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pptrace.plugin import Int32s, Schedule, ScheduleRequest

_STAGES = 2
"""Stages of a rank: layers, and a share of the vocabulary."""
_TURN = 3
"""Every so many ranks, a forward precedes pass S."""


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np
    from msgspec.structs import replace

    from pptrace.plugin import Placement, Schedule

    ranks, count = request.ranks, request.microbatches
    barriers = int(request.options.get("barriers", 1))
    rows = [_row(rank, ranks, count, barriers) for rank in range(ranks)]
    stages = np.arange(_STAGES * ranks)
    edges = np.stack([np.minimum(stages[:-1], ranks - 1), stages[1:]], axis=1)
    placement = replace(Placement.looped(ranks, count, _STAGES), edges=edges)
    table = Schedule.from_columns(
        placement, np.cumsum([0, *(row.shape[0] for row in rows)]), *np.concatenate(rows).T
    )
    return replace(table, waits=(_waits(ranks, count, barriers),))


def _row(rank: int, ranks: int, count: int, barriers: int) -> NDArray[np.integer]:
    """Return the actions of a rank, shape (actions, 3): kind, stage, microbatch."""
    import numpy as np

    from pptrace.plugin import Kind

    share, distance = ranks + rank, ranks - 1 - rank
    follow = [(Kind.W if barriers == 1 else Kind.B, share, -1)]
    compute = [(Kind.F, share, 0), *([(Kind.I, share, 0)] if barriers == 1 else [])]
    forward, backward, passes = [(Kind.F, rank, 0)], [(Kind.B, rank, 0)], [*follow, *compute]

    def of(steps: list[tuple[Kind, int, int]], number: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the actions of steps (kind, stage, offset of the microbatch) for each number."""
        pattern = np.array(steps)
        actions = np.broadcast_to(pattern, (number.size, *pattern.shape)).copy()
        actions[:, :, 2] += number[:, None]
        return actions

    ahead = distance + 1 + barriers
    warm_up = barriers + distance - max(0, (distance - 1) // _TURN)
    first = [of(forward, np.arange(distance + 1))]
    for number in range(barriers):
        first += [of(passes, np.array([number])), of(forward, np.array([distance + 1 + number]))]
    first.append(of(passes, np.arange(barriers, warm_up)))
    turn = np.arange(count + barriers)
    turns = [of(backward, turn), of(passes, turn + warm_up), of(forward, turn + ahead)]
    if distance and distance % _TURN == 0:
        turns[1:] = reversed(turns[1:])
    row = np.concatenate(
        [*(block.reshape(-1, 3) for block in first), np.concatenate(turns, axis=1).reshape(-1, 3)]
    )
    if barriers == 1:
        last = (row[:, 0] == Kind.W) & (row[:, 2] == count - 1)
        row = np.concatenate([row[~last], [[Kind.W, share, count - 1]]])
    kept: NDArray[np.integer] = row[(row[:, 2] >= 0) & (row[:, 2] < count)]
    return kept


def _waits(ranks: int, count: int, barriers: int) -> Int32s:
    """Return the waits of pass T for pass S of all other shares, with the columns of ``Schedule.waits``."""
    import numpy as np

    from pptrace.plugin import Kind

    awaited, waiting, number = (column.ravel() for column in np.indices((ranks, ranks, count)))
    awaited, waiting, number = (column[awaited != waiting] for column in (awaited, waiting, number))
    computed, followed = (Kind.I, Kind.W) if barriers == 1 else (Kind.F, Kind.B)
    columns = (computed, ranks + awaited, number, followed, ranks + waiting, number)
    return np.stack(np.broadcast_arrays(*columns), axis=1).astype(np.int32)


def check(request: ScheduleRequest) -> None:
    """Refuse a single rank, and other numbers of chunks."""
    if request.ranks == 1:
        raise ConstraintError(
            "vocab-1f1b splits the vocabulary over the ranks, and there is one", nearest="2", key="parallel.pp"
        )
    if request.chunks not in {1, _STAGES}:
        raise ConstraintError(
            f"vocab-1f1b has one chunk of the layers and a share of the vocabulary per rank, not {request.chunks}",
            nearest=f"{_STAGES} chunks", key="parallel.vp",
        )  # fmt: skip


OFFER = ScheduleOffer(
    name="vocab-1f1b",
    summary="1F1B with the embedding and the LM head split over all ranks.",
    build=build,
    options=lambda: import_module("pptrace_schedules.options").VocabularyOptions,
    check=check,
    chunks=lambda _: _STAGES,
    constraints="Two ranks or more, each with layers and a share of the vocabulary; any number of microbatches.",
    source="https://arxiv.org/abs/2411.05288",
)
