"""Rows of a rule that prefers backwards, played stage by stage: each takes the microbatches of a route in turn.

Backwards go by microbatch and forwards by stage, so of what one stage does of one kind, the earlier microbatch is
always preferred. It also is ready first, for its stage got the microbatches in turn as well. So what waits need
not be kept in queues, nor actions be numbered: see :mod:`pptrace.schedule.kernels.in_turn`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pptrace.kernel import run
from pptrace.model.cells import CellColumns
from pptrace.model.kinds import Kind
from pptrace.schedule.kernels.heap import OUTSIDE, Heap
from pptrace.schedule.kernels.in_turn import Progress, Sequences, Written, list_in_turn
from pptrace.schedule.rooms import rank_room, stage_room

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.model.placement import Placement

__all__ = ["MOST_SEQUENCES", "Link", "links_of", "rows_in_turn"]

Link: TypeAlias = "tuple[Kind, Int32s, Kind, Int32s]"
"""Kinds and stages of which the n-th action of the first enables the n-th of the second."""

MOST_SEQUENCES = 256
"""Sequences of a rank beyond which queues are quicker: each choice looks at all of them."""


def rows_in_turn(
    placement: Placement,
    times: Mapping[Kind, Int64s],
    links: Sequence[Link],
    left: Int64s,
) -> tuple[Int64s, CellColumns] | None:
    """Return where each rank's row begins, and the actions; None where some wait for ever or stages are many.

    Args:
        placement: every route visits every stage.
        times: per kind and stage, of F and B, or of F, I and W.
        links: what enables what, as :func:`links_of` says.
        left: what rooms in flight hold, each route's stages and then ranks; -1 for no bound.
    """
    given, actions = _sequences(placement, times, links, left)
    ranks = placement.ranks
    if (np.diff(given.of_rank) > MOST_SEQUENCES).any():
        return None
    row_ptr = np.concatenate([[0], np.cumsum(np.bincount(given.rank, given.count, ranks).astype(np.int64))])
    written = Written(
        kind=np.empty(actions, dtype=np.int8), stage=np.empty(actions, dtype=np.int32),
        microbatch=np.empty(actions, dtype=np.int32),
    )  # fmt: skip
    begun = run(list_in_turn, (given,), (*_beginning(given, row_ptr, left), written), work=actions)
    if begun < actions:
        return None
    alone, single = np.ones(actions, dtype=np.int32), np.full(actions, -1, dtype=np.int32)
    return row_ptr, CellColumns(*written, span=alone, pair=single)


def links_of(placement: Placement, kinds: Sequence[Kind]) -> list[Link]:
    """Return which stages enable which: forwards along the stages, gradients back, weights behind inputs."""
    low, high = placement.edges[:, 0], placement.edges[:, 1]
    every = np.arange(placement.stages, dtype=np.int32)
    ends = np.setdiff1d(every, low)
    gradient = Kind.I if Kind.I in kinds else Kind.B
    links: list[Link] = [
        (Kind.F, low, Kind.F, high), (gradient, high, gradient, low), (Kind.F, ends, gradient, ends),
    ]  # fmt: skip
    if Kind.W in kinds:
        links.append((Kind.I, every, Kind.W, every))
    return links


def _sequences(
    placement: Placement,
    times: Mapping[Kind, Int64s],
    links: Sequence[Link],
    left: Int64s,
) -> tuple[Sequences, int]:
    """Return the sequences, numbered kind by kind, route by route and stage by stage, then sorted by rank."""
    kinds, stages, routes = list(times), placement.stages, placement.routes
    width = routes * stages
    number = np.arange(len(kinds) * width)
    kind, route, stage = number // width, number // stages % routes, number % stages
    rank = placement.stage_rank[route, stage].astype(np.int64)
    order = np.argsort(rank, kind="stable")
    moved = np.empty_like(order)
    moved[order] = number
    held = np.bincount(placement.microbatch_route, minlength=routes)
    source, target = (
        np.concatenate([
            (kinds.index(one) * width + np.arange(routes)[:, None] * stages + at).ravel() for one, at in side
        ])
        for side in zip(*(((one, at), (other, to)) for one, at, other, to in links), strict=True)
    )  # fmt: skip
    last = Kind.W if Kind.W in times else Kind.B
    kind_of = np.array(kinds)[kind]
    origin, step = _places(kind_of, kind, stage, placement, len(kinds))
    rooms = np.stack([stage_room(placement, route, stage), rank_room(placement, rank)], axis=1)
    rooms = np.where(left[rooms] < 0, -1, rooms)
    way = np.where(kind_of == Kind.F, 1, np.where(kind_of == last, -1, 0)) * (rooms >= 0).any(axis=1)
    before_ptr, before = _csr(moved[target], moved[source], number.size)
    after_ptr, after = _csr(moved[source], moved[target], number.size)
    sequences = Sequences(
        rank=rank[order], of_rank=np.searchsorted(rank[order], np.arange(placement.ranks + 1)),
        kind=kind_of[order], stage=stage[order],
        duration=np.stack([times[one] for one in kinds])[kind, stage][order],
        count=held[route][order], first=(np.cumsum(held) - held)[route][order],
        turns=np.argsort(placement.microbatch_route, kind="stable"), origin=origin[order], step=step[order],
        before_ptr=before_ptr, before=before, after_ptr=after_ptr, after=after,
        room=rooms[order].ravel(), way=way[order],
    )  # fmt: skip
    return sequences, len(kinds) * stages * placement.microbatches


def _places(
    kind_of: Int64s, kind: Int64s, stage: Int64s, placement: Placement, kinds: int
) -> tuple[Int64s, Int64s]:
    """Return per sequence where its microbatch 0 stands in its rank's choice, and how far one is from the next.

    The order of :func:`~pptrace.schedule.list_scheduler.backward_first`: backwards by microbatch, stage and kind,
    then forwards by stage, the deepest first, and microbatch.
    """
    stages, microbatches = placement.stages, placement.microbatches
    forward, each = kind_of == Kind.F, stages * kinds
    behind = each * microbatches
    return (
        np.where(forward, behind + (stages - 1 - stage) * microbatches, stage * kinds + kind),
        np.where(forward, 1, each),
    )


def _csr(key: Int64s, values: Int64s, size: int) -> tuple[Int64s, Int64s]:
    """Return values grouped by key, with where each key's begin."""
    return np.concatenate([[0], np.cumsum(np.bincount(key, minlength=size))]), values[
        np.argsort(key, kind="stable")
    ]


def _beginning(given: Sequences, row_ptr: Int64s, left: Int64s) -> tuple[Progress, Heap]:
    """Return how far everything is before the first action."""
    ranks, size = row_ptr.size - 1, given.rank.size
    zeros = np.zeros(size, dtype=np.int64)
    free = np.diff(given.before_ptr) == 0
    head = zeros.copy()
    some = given.count > 0
    head[some] = given.origin[some] + given.step[some] * given.turns[given.first[some]]
    progress = Progress(
        begun=zeros.copy(), ended=zeros.copy(), ready=np.where(free, given.count, 0), head=head, left=left.copy(),
        doing=np.full(ranks, -1, dtype=np.int64), dirty=np.zeros(ranks, dtype=np.int64),
        stack=np.zeros(ranks, dtype=np.int64), next=row_ptr[:-1].copy(),
    )  # fmt: skip
    events = Heap(
        item=np.zeros(ranks, dtype=np.int64), place=np.full(ranks, OUTSIDE), time=np.zeros(ranks, dtype=np.int64),
        size=np.zeros(1, dtype=np.int64),
    )  # fmt: skip
    return progress, events
