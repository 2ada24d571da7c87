"""HelixPipe computes the core attention of several microbatches on several ranks at the same time.

Source: HelixPipe, 2025, arXiv:2507.00394; order of the authors' code (github.com/code-tunnel/Megatron-LM, branch
``dev``, ``megatron/core/pipeline_parallel/attn_pipe_schedule.py``).

A model of N = p v layers has 2 N + 1 stages. Stage 2 k is P(k): output projection and MLP of layer k - 1, and norm
and projections of layer k to queries, keys and values. P(0) has the embedding, and P(N) the LM head. Stage 2 k + 1
is A(k), the core attention of layer k, which has no weights. P(k) is on rank k mod p. A(k) of a microbatch with
offset d is on rank (k + d + 1) mod p.

A repetition has p f microbatches. Those of one offset are f folds, which run one after another, so that messages
of one fold overlap the computation of another. Forwards of rank r in one repetition, each for all folds::

    for loop l = 0 … v - 1, with n = l p + r:
        A(n - 1 - d) for d = min(n, p - 1) - 1 … 0     and P(n) after A of d = 0
        P(n) for d = 1 … p - 1                         and A(n) after P of d = p - 1
    A(N + r - 1 - d) for d = p - 2 … r                 and P(N) after A of d = 0, on rank 0

Rank 0 begins with P(0) of d = 0. In later repetitions it follows P(N) of d = 0, and P(N) of another d precedes
P(0) of this d. All backwards follow all forwards, in the reverse order: first in, last out. A rank holds 2 m v
activations, and rank 0 also m of P(N).
"""

from __future__ import annotations

from fractions import Fraction
from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import ConstraintError, ScheduleOffer, divisors_near
from pptrace_schedules.chimera import nearest_multiples

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pptrace.plugin import Schedule, ScheduleRequest

_FOLDS = 2


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    import numpy as np

    from pptrace.plugin import Kind, Placement, Schedule

    ranks, count, folds = request.ranks, request.microbatches, _folds(request)
    layers, repeats = ranks * request.chunks, count // (ranks * folds)
    rows = [
        np.array(
            [
                (stage, (repeat * ranks + offset) * folds + fold)
                for group in _groups(rank, ranks, layers, repeats)
                for fold in range(folds)
                for stage, repeat, offset in group
            ],
            dtype=np.int32,
        ).reshape(-1, 2)
        for rank in range(ranks)
    ]
    stage, offset = np.arange(2 * layers + 1), np.arange(ranks)[:, None]
    stage_rank = (stage // 2 + np.where(stage % 2, offset + 1, 0)) % ranks
    placement = Placement(
        ranks=ranks, stage_rank=stage_rank.astype(np.int32),
        microbatch_route=(np.arange(count) // folds % ranks).astype(np.int32),
    )  # fmt: skip
    actions = np.concatenate([np.concatenate([row, row[::-1]]) for row in rows])
    kinds = [np.repeat(np.array([Kind.F, Kind.B], dtype=np.int8), len(row)) for row in rows]
    return Schedule.from_columns(
        placement, np.cumsum([0, *(2 * len(row) for row in rows)]), np.concatenate(kinds), *actions.T
    )


def _groups(rank: int, ranks: int, layers: int, repeats: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the forwards of a rank, as stage, repetition and offset, in groups that each fold runs in turn."""
    if rank == 0:
        yield [(0, 0, 0)]
    for repeat in range(repeats):
        for first in range(rank, layers, ranks):
            for offset in reversed(range(min(first, ranks - 1))):
                attention = (2 * (first - 1 - offset) + 1, repeat, offset)
                yield [attention] if offset else [attention, (2 * first, repeat, 0)]
            for offset in range(1, ranks):
                last = [(2 * layers, repeat - 1, offset)] if first == 0 < repeat else []
                attention = (2 * first + 1, repeat, offset)
                yield [*last, (2 * first, repeat, offset), *([attention] if offset == ranks - 1 else [])]
        for offset in reversed(range(rank, ranks - 1)):
            group = [(2 * (layers + rank - 1 - offset) + 1, repeat, offset)]
            if offset == 0:
                group += [(2 * layers, repeat, 0), *([(0, repeat + 1, 0)] if repeat + 1 < repeats else [])]
            yield group
    if rank == 0:
        yield from ([(2 * layers, repeats - 1, offset)] for offset in range(1, ranks))


def peak_activations(request: ScheduleRequest) -> list[Fraction]:
    """Return the forwards of each rank, in stages and microbatches."""
    held = 2 * request.microbatches * request.chunks
    return [Fraction(held + request.microbatches * (rank == 0)) for rank in range(request.ranks)]


def check(request: ScheduleRequest) -> None:
    """Refuse a single rank, microbatches that do not fill repetitions, and models with other layers or stages."""
    if request.ranks == 1:
        message = "helixpipe computes attention on other ranks than its layer, and there is one"
        raise ConstraintError(message, nearest="2", key="parallel.pp")
    size, count = request.ranks * _folds(request), request.microbatches
    if count % size:
        message = (
            f"helixpipe repeats {size} microbatches, {_folds(request)} per rank, and {count} do not fill them"
        )
        raise ConstraintError(
            message, nearest=nearest_multiples(count, size, "microbatches"), key="batch.microbatches"
        )
    if request.encoder_stages:
        message = "helixpipe has no stages of an encoder beside those of the decoder's layers"
        raise ConstraintError(message, nearest="0", key="model.encoder.stages")
    if request.layers is not None and request.layers % request.ranks:
        message = f"helixpipe has p x v layers, and {request.ranks} ranks do not divide {request.layers} layers"
        raise ConstraintError(message, nearest=divisors_near(request.ranks, request.layers), key="parallel.pp")
    if request.layers is not None and request.chunks != chunks(request):
        message = f"helixpipe has p x v layers, and {request.ranks} x {request.chunks} are not {request.layers}"
        raise ConstraintError(message, nearest=f"{chunks(request)} chunks", key="parallel.vp")


def chunks(request: ScheduleRequest) -> int:
    """Return the layers per rank of the request's model; without a model, the request's chunks."""
    return request.chunks if request.layers is None else request.layers // request.ranks


def _folds(request: ScheduleRequest) -> int:
    return int(request.options.get("folds", _FOLDS))


OFFER = ScheduleOffer(
    name="helixpipe",
    summary="Core attention of microbatches on all ranks at once, and backwards in the reverse order of forwards.",
    build=build,
    options=lambda: import_module("pptrace_schedules.options").HelixPipeOptions,
    check=check,
    chunks=chunks,
    peak_activations=peak_activations,
    only_by_name=True,
    constraints="Two ranks or more; microbatches in multiples of folds x ranks; layers in multiples of ranks.",
    source="https://arxiv.org/abs/2507.00394",
)
