"""1F1B with split backwards: ZB-H1 and ZB-H2 with one chunk per rank, and interleaved-zb with several.

Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, arXiv:2401.10241, section 2.3. A forward leaves
M_F on its rank, and an input gradient M_W of it. Lengths are in times of a forward, of an input and of a weight
gradient of 1 each. The order is generated unless ``order`` is ``fixed``.

**ZB-H1** keeps 1F1B's memory, and fills most of its bubble with weight gradients. PyTorch calls it
``InterleavedZeroBubble`` with one stage per rank, the paper's repository ZB1P. Order of rank r = 0 … p - 1, with
w = min(m, p - 1 - r)::

    w F,   r times F I,   F I W …,   I W …,   r W         (without F where there are no more)

Length: 3 m + p - 1 for m >= p, and 2 m + 2 p - 1 for fewer microbatches. The bubble is 1 - 3 m / length. It takes
a third of the time of that of 1F1B, in general (p - 1) (T_F + T_I - T_W). Memory of rank r: at most
(p - r) M_F + r M_W. If M_F = M_W, every rank has as many activations as the first rank of 1F1B, min(m, p). In a
generated order, as many forwards precede the first input gradient as fit into the memory of p microbatches.

**ZB-H2** runs twice as many forwards ahead, and leaves no rank idle between its first and last action. The
paper's repository calls it ZB2P. Order of rank r = 0 … p - 1, with w = min(m, 2 (p - 1 - r))::

    w F,   2 r times F I,   F I W …,   I W …,   2 r W      (without F where there are no more)

For m >= 2 p - 1, rank r starts at r and ends at 3 m + r, so no rank has a bubble if steps follow one another
without a barrier (``data_parallel.validation: after``). From the first start to the last end, the length is
3 m + p - 1. With fewer microbatches it is 3 m + max(p - 1, 2 p - 2 - floor(m / 2)), and of a generated order
3 m + max(p - 1, 2 p - 1 - m). In general a rank idles for (p - 1) (T_F + T_I - 2 T_W). Memory of rank r: at most
(2 (p - r) - 1) M_F + 2 r M_W, twice that of 1F1B. If M_F = M_W, every rank has min(m, 2 p - 1) activations. A
generated order takes at most the memory of 2 p microbatches.

**interleaved-zb** is ZB-H1 over several chunks: fewer forwards ahead than interleaved 1F1B, and weight gradients
that fill the bubble. Its order is that of PyTorch's ``ScheduleInterleavedZeroBubble``. Chunk c of rank r is stage
c p + r; rounds of g = m / max(1, floor(m / p)) are those of ``interleaved-1f1b``. With
w = min(v m, (v - 1) g + p - 1 - r), rank r runs::

    w F,   r times F I,   F I W …,   I W …,   r W         (without F where there are no more)

forwards and backwards in the order of ``interleaved-1f1b``. Length: 3 v m + p - 1 for m >= p in times of a chunk's
forward, input and weight gradient of 1 each, so with v chunks the bubble is a v-th of that of ZB-H1. With fewer
microbatches, ranks wait longer for gradients. Peak activations of every rank, in chunks: min(v m, (v - 1) g + p).
The order is generated for this memory.
"""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import ScheduleOffer
from pptrace_schedules.interleaved_1f1b import check, round_size
from pptrace_schedules.one_f_one_b import check_one_chunk
from pptrace_schedules.zero_bubble.offers import bubble_of, is_fixed

if TYPE_CHECKING:
    from pptrace.plugin import Schedule, ScheduleRequest


def _build(request: ScheduleRequest, *, factor: int) -> Schedule:
    """Return the table; ``factor`` is 1 for ZB-H1 and 2 for ZB-H2."""
    from pptrace_schedules.zero_bubble.generate import built
    from pptrace_schedules.zero_bubble.split_rows import one_chunk, one_chunk_orders

    late = [factor * rank for rank in range(request.ranks)]
    fixed = one_chunk(request, late[::-1], late)
    return built(request, fixed, factor * request.ranks, partial(one_chunk_orders, request))


def _bubble_h1(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length."""
    ranks = request.ranks
    return bubble_of(request, 1, max(ranks - 1, 2 * ranks - 1 - request.microbatches))


def _bubble_h2(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length, waits before the first and after the last action too."""
    ranks = request.ranks
    few = 2 * ranks - 2 - request.microbatches // 2 if is_fixed(request) else 2 * ranks - 1 - request.microbatches
    return bubble_of(request, 1, max(ranks - 1, few))


def _held(request: ScheduleRequest, most: int) -> list[Fraction]:
    """Return the microbatches of which each rank holds anything: at most ``most``."""
    return [Fraction(min(request.microbatches, most))] * request.ranks


ZB_H1 = ScheduleOffer(
    name="zb-h1",
    summary="1F1B with split backwards in 1F1B's memory: weight gradients fill two thirds of its bubble.",
    build=partial(_build, factor=1),
    options=lambda: import_module("pptrace_schedules.options").ZeroBubbleOptions,
    check=lambda request: check_one_chunk(request, "zb-h1", "interleaved-zb"),
    bubble=_bubble_h1,
    peak_activations=lambda request: _held(request, request.ranks),
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2401.10241",
)
ZB_H2 = ScheduleOffer(
    name="zb-h2",
    summary="Split backwards in twice 1F1B's memory: no rank idles between its first and its last action.",
    build=partial(_build, factor=2),
    options=lambda: import_module("pptrace_schedules.options").ZeroBubbleOptions,
    check=lambda request: check_one_chunk(request, "zb-h2", "zb-v"),
    bubble=_bubble_h2,
    peak_activations=lambda request: _held(request, 2 * request.ranks - 1),
    constraints="One chunk per rank; any number of ranks and microbatches.",
    source="https://arxiv.org/abs/2401.10241",
)


def _build_interleaved(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    from pptrace_schedules.row_patterns import in_rounds
    from pptrace_schedules.zero_bubble.generate import built, without_weight_gradients
    from pptrace_schedules.zero_bubble.split_rows import one_forward_one_input_gradient

    ranks, size = range(request.ranks), round_size(request)
    ahead = [(request.chunks - 1) * size + later for later in reversed(ranks)]
    fixed = one_forward_one_input_gradient(request, ahead, ranks, in_rounds(request, size))
    return built(request, fixed, _most_interleaved(request), lambda _: iter([without_weight_gradients(fixed)]))


def _bubble_interleaved(request: ScheduleRequest) -> Fraction | None:
    """Return idle over ranks times length; None for fewer microbatches than ranks."""
    if request.microbatches < request.ranks:
        return None
    return bubble_of(request, request.chunks, request.ranks - 1)


def _peak_interleaved(request: ScheduleRequest) -> list[Fraction] | None:
    """Return the chunks' activations of which each rank holds anything; None for rounds of more than the ranks.

    Generated orders of such rounds may hold fewer.
    """
    if round_size(request) > request.ranks and not is_fixed(request):
        return None
    return [Fraction(_most_interleaved(request))] * request.ranks


def _most_interleaved(request: ScheduleRequest) -> int:
    chunks = request.chunks
    return min(chunks * request.microbatches, (chunks - 1) * round_size(request) + request.ranks)


INTERLEAVED_ZB = ScheduleOffer(
    name="interleaved-zb",
    summary="Interleaved 1F1B with split backwards: weight gradients fill its bubble, and memory is less.",
    build=_build_interleaved,
    options=lambda: import_module("pptrace_schedules.options").ZeroBubbleOptions,
    check=partial(check, name="interleaved-zb", instead="zb-h1"),
    bubble=_bubble_interleaved,
    peak_activations=_peak_interleaved,
    constraints=(
        "Two or more chunks per rank. Microbatches run in rounds of equal size: a multiple of the ranks, or fewer "
        "than two per rank, is always possible."
    ),
    source="https://arxiv.org/abs/2401.10241",
)
