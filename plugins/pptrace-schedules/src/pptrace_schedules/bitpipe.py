"""BitPipe runs V-shaped pipelines in both directions over the same ranks, each with a copy of the model.

Source: Wu, Chen and Yu, BitPipe: Bidirectional Interleaved Pipeline Parallelism for Accelerating Large Models
Training, arXiv:2410.19367. The order is that of the authors' code (github.com/wuhouming/BitPipe,
``bitpipe_schedule.py``).

With D ranks, the model has 2D stages. The down pipeline has stages r and 2D - 1 - r on rank r, the up pipeline
stages D - 1 - r and D + r. A basic unit has D microbatches, first D/2 down, then D/2 up. Each rank issues w
forwards, then 2D - w forwards and backwards in turn, then the other backwards::

    w = 3D/2 + min(r, D - 1 - r)

The near pipeline of a rank starts in its half of the ranks: down for ranks below D/2. n and n' are its first and
second stage on the rank, f and f' those of the far pipeline. With k = max(D/2 - r, r - D/2 + 1), a rank's forwards
have the order ``k n, (D/2 - k)(f n), k (f f'), (D/2 - k)(n' f'), k n'``. Its backwards have the same order with n
and n', f and f' exchanged. For D = 4 (microbatches 0 and 1 go down, 2 and 3 up; ' marks second stages)::

    rank 0   F0 F1 F2 F2' F3 F3' F0' B0' F1' B1' B2' B2 B3' B3 B0 B1
    rank 1   F0 F2 F1 F3 F2' F0' F3' F1' B0' B2' B1' B3' B2 B0 B3 B1

More microbatches are basic units one after another: the last backwards of a unit alternate with the first forwards
of the next.

Bubble, a backward as long as two forwards: U (D - 2) / (6N + U (D - 2)) with U = N/D + 1. For N = D this is the
paper's (D - 2) / (3N + D - 2). The paper's figure of several units has one idle slot less per unit.
Peak activations of rank r: w + 1 chunks. Weights: twice. The gradients of a stage's two copies are reduced as soon
as both are complete with ``data_parallel.overlap: true``, the paper's eager synchronization.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer
from pptrace_schedules.chimera import nearest_multiples
from pptrace_schedules.one_f_one_b import check_two_chunks

if TYPE_CHECKING:
    from pptrace.plugin import Int32s, Schedule, ScheduleRequest


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np

    from pptrace.plugin import Kind, Placement, Schedule

    ranks, units = request.ranks, request.microbatches // request.ranks
    down = np.concatenate([np.arange(ranks), np.arange(ranks)[::-1]]).astype(np.int32)
    placement = Placement(
        ranks=ranks,
        stage_rank=np.stack([down, ranks - 1 - down]),
        microbatch_route=np.tile(np.repeat(np.arange(2, dtype=np.int32), ranks // 2), units),
    )
    rows = [_row(rank, ranks, units) for rank in range(ranks)]
    is_backward, stage, microbatch = (np.concatenate(columns) for columns in zip(*rows, strict=True))
    row_ptr = np.arange(ranks + 1) * (4 * ranks * units)
    return Schedule.from_columns(
        placement, row_ptr, np.where(is_backward, Kind.B, Kind.F).astype(np.int8), stage, microbatch
    )


def _row(rank: int, ranks: int, units: int) -> tuple[Int32s, Int32s, Int32s]:
    """Return whether each action of a rank is a backward, its stage and its microbatch."""
    import numpy as np

    near = int(rank >= ranks // 2)
    stages = np.array([[rank, 2 * ranks - 1 - rank], [ranks - 1 - rank, ranks + rank]], dtype=np.int32)
    is_backward = _turns(_warm_up(rank, ranks), ranks, units)
    stage, microbatch = (np.empty(is_backward.size, dtype=np.int32) for _ in range(2))
    for backward in (0, 1):
        far, second, index = _unit(rank, ranks)
        direction = near ^ far
        chosen = is_backward == backward
        stage[chosen] = np.tile(stages[direction, second ^ backward], units)
        in_unit = direction * (ranks // 2) + index
        microbatch[chosen] = (np.arange(units, dtype=np.int32)[:, None] * ranks + in_unit).ravel()
    return is_backward, stage, microbatch


def _turns(warm_up: int, ranks: int, units: int) -> Int32s:
    """Return 0 for each forward and 1 for each backward of a rank."""
    import numpy as np

    turns = 2 * ranks - warm_up
    once = warm_up - turns + 1
    between = [0, 1] * turns + [1] * once + [0, 1] * (turns - 1) + [0] * once
    last = [0, 1] * turns + [1] * warm_up
    return np.array([0] * warm_up + between * (units - 1) + last, dtype=np.int32)


def _unit(rank: int, ranks: int) -> tuple[Int32s, Int32s, Int32s]:
    """Return a unit's order of forwards: whether in the far pipeline, whether second stage, microbatch in it."""
    import numpy as np

    half = ranks // 2
    alone = max(half - rank, rank - half + 1)
    first, rest = range(alone), range(half - alone)
    order = [(0, 0, i) for i in first]
    order += [step for i in rest for step in ((1, 0, i), (0, 0, i + alone))]
    order += [step for i in first for step in ((1, 0, i + half - alone), (1, 1, i))]
    order += [step for i in rest for step in ((0, 1, i), (1, 1, i + alone))]
    order += [(0, 1, i + half - alone) for i in first]
    far, second, index = np.array(order, dtype=np.int32).T
    return far, second, index


def check(request: ScheduleRequest) -> None:
    """Refuse odd ranks, other chunks than two, and microbatches that do not fill basic units."""
    ranks, microbatches = request.ranks, request.microbatches
    check_two_chunks(request, "bitpipe")
    if ranks % 2:
        message = f"bitpipe pairs a rank with its mirror image, and {ranks} ranks are odd"
        raise ConstraintError(message, nearest=nearest_multiples(ranks, 2, "ranks"), key="parallel.pp")
    if microbatches % ranks:
        message = f"bitpipe fills basic units of {ranks} microbatches, and {microbatches} do not"
        nearest = nearest_multiples(microbatches, ranks, "microbatches")
        raise ConstraintError(message, nearest=nearest, key="batch.microbatches")


def bubble(request: ScheduleRequest) -> Fraction:
    """Return idle over ranks times length."""
    idle = (request.microbatches // request.ranks + 1) * (request.ranks - 2)
    return Fraction(idle, 6 * request.microbatches + idle)


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the chunks' activations that each rank holds at most."""
    return [Fraction(_warm_up(rank, request.ranks) + 1) for rank in range(request.ranks)]


def _warm_up(rank: int, ranks: int) -> int:
    """Return the forwards of a rank before its first backward."""
    return ranks + ranks // 2 + min(rank, ranks - 1 - rank)


OFFER = ScheduleOffer(
    name="bitpipe",
    summary="V-shaped pipelines of two chunks per rank in both directions, each with a copy of the model.",
    build=build,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    constraints="Two chunks per rank; an even number of ranks; microbatches a multiple of the ranks.",
    source="https://arxiv.org/abs/2410.19367",
)
