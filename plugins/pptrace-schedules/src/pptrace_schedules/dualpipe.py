"""DualPipe runs a pipeline down the ranks and one up, and overlaps forwards of one with backwards of the other.

Source: DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, arXiv:2412.19437, section 3.2.1; the order is that of the
authors' released program (deepseek-ai/DualPipe).

Each of the p ranks holds stage r for microbatches that go down and stage p - 1 - r for those that go up, so all
weights have two copies. Even microbatches go down, and odd ones go up. The distance of rank r from the nearest end
is k = min(r, p - 1 - r), and its distance from the middle is q = p/2 - 1 - k. Stage k is its chunk 0 (F0, B0),
stage p - 1 - k its chunk 1. & is an overlapped pair, I and W are the halves of a backward, and W belongs to the
earliest backward whose W has not run. With n = m/2 microbatches each way::

    2q F0,   k+1 times F0 F1,   q times I1 W F1,
    n-p+k+1 times F0&B1 F1&B0   (the middle's first: F0 B1 F1&B0),
    q times B1 F1&B0,
    floor((k+1)/2) times B1 B0,   B1 I0 where k is even,   floor((k+1)/2) times I1 I0,
    q times W I0,   k+1 W

In a pair, with the forward's computations attention and experts, and the backward's each in a part for the input
and one for the weights, the compute stream runs attention F, experts I, experts W, experts F, attention I,
attention W, layer by layer; dispatch and combine run beside what follows their producer.

The authors give an idle time of (p/2 - 1) (F&B + B - 3W), where F&B is the time of a pair and B that of a full
backward. This is the time of the middle ranks, which idle longest, if messages leave after the whole pair and
I = F. In general it is (p/2 - 1) (F&B + F - 2W), if I is not much longer than F. It is shorter if a message leaves
after its own action: without segments and with F = I = W, the share of idle time is (p - 2) / (6m + p - 2). Peak
activations: p + 1 on every rank.

DualPipeV is DualPipe folded in the middle: a V of two chunks per rank, with one copy of the model.

Source: DeepSeek-AI, deepseek-ai/DualPipe (2025), after Sea AI Lab's "cut-in-half" of DualPipe, DeepSeek-V3
Technical Report, arXiv:2412.19437, section 3.2.1. PyTorch has the same order (``ScheduleDualPipeV``).

Chunk 0 of rank r of p is stage r, chunk 1 is stage 2p - 1 - r, so rank 0 has the loss. With q = p - 1 - r and m
microbatches (F0 and F1 are forwards of chunk 0 and 1, & makes an overlapped pair, I and W are a backward's halves,
and W is of the earliest backward that is due)::

    2q F0,   r+1 times F0 F1,   q times I1 W F1,
    m-2p+r+1 times F0&B1 F1&B0   (the last rank's first: F0 B1 F1&B0),
    q times B1 F1&B0,
    floor((r+1)/2) times B1 B0,   B1 I0 where r is even,   floor((r+1)/2) times I1 I0,
    q times W I0,   r+1 W

These are DualPipe's rows for 2p ranks and 2m microbatches, of which each rank here runs both halves' one. A pair
runs as there. Bubble, as the authors state it: (p - 1) (F&B + B - 3W) of idle time, of chunks, under DualPipe's
conditions; with costs that are not in segments, and F = I = W, the share of idle time is (p - 1) / (6m + p - 1).
Peak activations: 2p + 1 chunks on every rank.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer
from pptrace_schedules.one_f_one_b import check_one_chunk, check_two_chunks

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np

    from pptrace.plugin import Placement
    from pptrace_schedules.bidirectional import program, table

    ranks, microbatches = request.ranks, request.microbatches
    down = np.arange(ranks, dtype=np.int32)
    depth = np.minimum(down, down[::-1])
    rows = program(depth, ranks // 2, microbatches // 2)
    rank = rows.row
    up = rows.chunk ^ (rank >= ranks // 2)
    placement = Placement.of_stages(np.stack([down, down[::-1]]), microbatches, ranks)
    stage = np.where(rows.chunk == 0, depth[rank], ranks - 1 - depth[rank])
    return table(rows, placement, stage, 2 * rows.microbatch + up)


def check(request: ScheduleRequest) -> None:
    """Refuse odd ranks, and microbatches that are odd or fewer than two per rank."""
    check_one_chunk(request, "dualpipe", "dualpipe-v")
    ranks, microbatches = request.ranks, request.microbatches
    if ranks % 2:
        near = f"{ranks - 1} or {ranks + 1} ranks" if ranks > 1 else "2 ranks"
        message = f"dualpipe pairs a rank with its mirror image, and {ranks} ranks are odd"
        raise ConstraintError(message, nearest=near, key="parallel.pp")
    if microbatches < 2 * ranks:
        raise ConstraintError(
            f"dualpipe's warm-up on {ranks} ranks takes {2 * ranks} microbatches or more, not {microbatches}",
            nearest=f"{2 * ranks} microbatches",
            key="batch.microbatches",
        )
    if microbatches % 2:
        raise ConstraintError(
            f"dualpipe sends as many microbatches down as up, and {microbatches} are odd",
            nearest=f"{microbatches - 1} or {microbatches + 1} microbatches",
            key="batch.microbatches",
        )


def bubble(request: ScheduleRequest, *, factor: int = 1) -> Fraction:
    """Return idle over ranks times length; ``factor`` is 2 for DualPipeV, in chunks."""
    idle = request.ranks - 2 // factor
    return Fraction(idle, 6 * request.microbatches + idle)


def peak_activations(request: ScheduleRequest, *, factor: int = 1) -> list[Fraction]:
    """Return the stages' activations that each rank holds at most, as :func:`bubble`."""
    return [Fraction(factor * request.ranks + 1)] * request.ranks


OFFER = ScheduleOffer(
    name="dualpipe",
    summary="Forwards down the ranks beside backwards of those that go up, with two copies of the model.",
    build=build,
    check=check,
    bubble=bubble,
    peak_activations=peak_activations,
    has_pairs=True,
    constraints="One chunk per rank; even numbers of ranks and microbatches; at least two microbatches per rank.",
    source="https://arxiv.org/abs/2412.19437",
)


def build_v(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np

    from pptrace.plugin import Placement
    from pptrace_schedules.bidirectional import program, table

    ranks, microbatches = request.ranks, request.microbatches
    rows = program(np.arange(ranks, dtype=np.int32), ranks, microbatches)
    stage = np.where(rows.chunk == 0, rows.row, 2 * ranks - 1 - rows.row)
    return table(rows, Placement.v_shaped(ranks, microbatches, 2), stage, rows.microbatch)


def check_v(request: ScheduleRequest) -> None:
    """Refuse chunks that make no V, and fewer microbatches than stages."""
    check_two_chunks(request, "dualpipe-v")
    stages = 2 * request.ranks
    if request.microbatches < stages:
        raise ConstraintError(
            f"dualpipe-v's warm-up through {stages} stages takes {stages} microbatches or more, not "
            f"{request.microbatches}",
            nearest=f"{stages} microbatches",
            key="batch.microbatches",
        )


DUALPIPE_V = ScheduleOffer(
    name="dualpipe-v",
    summary="DualPipe folded into a V of two chunks per rank: its overlapped pairs with one copy of the model.",
    build=build_v,
    check=check_v,
    bubble=partial(bubble, factor=2),
    peak_activations=partial(peak_activations, factor=2),
    has_pairs=True,
    constraints="Two chunks per rank; at least two microbatches per rank.",
    source="https://arxiv.org/abs/2412.19437",
)
