"""Optimus computes an encoder on all ranks, in the bubbles of the decoder's pipeline.

Source: Feng et al., Optimus: Accelerating Large-Scale Multi-Modal LLM Training by Bubble Exploitation, ATC 2025,
arXiv:2408.03505. The paper also moves kernels of the encoder into waits for tensor-parallel collectives, and gives
the encoder other tensor-parallel sizes. Here an encoder stage is the smallest part, with the decoder's sizes.

The ranks are divided into groups of ``encoder_ranks`` consecutive ranks. Each group has a copy of the encoder. The
decoder runs 1F1B, or with several chunks interleaved 1F1B, on stages after those of the encoder. Its actions keep
their distances in time; all of them are shifted by T, the smallest found time for which no forward waits:

1. In the order of microbatches, the forwards of the encoder are placed in the bubbles in which they end earliest.
   The bubble before the first action of each rank is longer by T. Of the groups on which the decoder's first stage
   does not wait, or waits least, the one with the fewest microbatches has the forward.
2. If this stage waits, T grows by its longest wait, and step 1 is repeated.
3. In the order in which the first stage returns gradients, the backwards of the encoder are placed in the first
   bubbles of the group with their forward.

For two ranks, two microbatches, one stage of the encoder (0) and a backward of two forwards::

    rank 0   0F0 1F0 1F1 .   1B0 1B0 1B1 1B1 ...

If the encoder fits into the bubbles, the step takes the decoder's time, and one forward and one backward of the
encoder. Peak activations are those of the decoder, and those of the encoder from its forward to its backward.
"""

from __future__ import annotations

from importlib import import_module
from math import inf
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import ConstraintError, ScheduleOffer
from pptrace_schedules import interleaved_1f1b, one_f_one_b
from pptrace_schedules.chimera import nearest_multiples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.plugin import Schedule, ScheduleRequest

_REPEATS = 64
"""Most repetitions of the placement of forwards."""


class Planned(Struct, frozen=True):
    """An action with its planned time."""

    start: int
    end: int
    is_backward: bool
    stage: int
    microbatch: int


class Encoder(Struct, frozen=True):
    """Stages of the encoder, and the ranks of its copies."""

    stages: int
    groups: tuple[tuple[int, ...], ...]
    """Shape (groups, stages): the rank of each stage."""


class Times(Struct, frozen=True):
    """Times of each stage's actions, the encoder's stages first, and of a message."""

    forward: Sequence[int]
    backward: Sequence[int]
    transfer: int


def build(request: ScheduleRequest) -> Schedule:
    """Return the table."""
    encoder = _encoder(request)
    count = encoder.stages + request.stages
    times = Times([1] * count, [2] * count, 0)
    table = _table(request, encoder, times)
    if request.simulator is None:
        return table
    priced = request.simulator.prepared(table).request
    return _table(request, encoder, Times(priced.f_ns, priced.b_ns, priced.transfer_ns))


def check(request: ScheduleRequest) -> None:
    """Refuse a model without stages of an encoder, and ranks that do not fill groups."""
    if request.encoder_stages == 0:
        message = "optimus needs a model with stages of an encoder: write model.encoder.stages, such as 1"
        raise ConstraintError(message, nearest="1f1b", key="schedule")
    ranks, group, key = request.ranks, _group(request), "schedule.options.encoder_ranks"
    if group > _encoder_stages(request):
        stages = _encoder_stages(request)
        raise ConstraintError(
            f"{group} are more than the encoder's stages ({stages})", nearest=str(stages), key=key
        )
    if ranks % group:
        message = f"optimus divides the ranks into groups of {group}, and {ranks} do not fill them"
        raise ConstraintError(message, nearest=nearest_multiples(ranks, group, "ranks"), key=key)
    if request.chunks > 1:
        interleaved_1f1b.check(request)


def _encoder_stages(request: ScheduleRequest) -> int:
    return 1 if request.encoder_stages is None else request.encoder_stages


def _group(request: ScheduleRequest) -> int:
    return int(request.options.get("encoder_ranks", 1))


def _encoder(request: ScheduleRequest) -> Encoder:
    stages, size = _encoder_stages(request), _group(request)
    firsts = range(0, request.ranks, size)
    return Encoder(
        stages, tuple(tuple(first + stage * size // stages for stage in range(stages)) for first in firsts)
    )


def _table(request: ScheduleRequest, encoder: Encoder, times: Times) -> Schedule:
    """Return the table for these times."""
    import numpy as np

    from pptrace.plugin import Kind, Placement, Schedule

    decoder = (interleaved_1f1b if request.chunks > 1 else one_f_one_b).build(request)
    group_of, rows = _fill(encoder, _run(decoder, encoder.stages, times), times, request.microbatches)
    ordered = [action for row in rows for action in sorted(row, key=_order)]
    stage_rank = [[*ranks, *decoder.placement.stage_rank[0].tolist()] for ranks in encoder.groups]
    placement = Placement(
        ranks=request.ranks, stage_rank=np.array(stage_rank), microbatch_route=np.array(group_of)
    )
    return Schedule.from_columns(
        placement, np.cumsum([0, *map(len, rows)]),
        [Kind.B if action.is_backward else Kind.F for action in ordered],
        [action.stage for action in ordered], [action.microbatch for action in ordered],
    )  # fmt: skip


def _order(action: Planned) -> tuple[int, int, bool, int]:
    """Return a sort key by time; actions without a duration are in the order of their dependencies."""
    stage = -action.stage if action.is_backward else action.stage
    return action.start, action.end, action.is_backward, stage


def _run(decoder: Schedule, first_stage: int, times: Times) -> list[list[Planned]]:
    """Return the actions of each rank of the decoder with their times; stages are counted from ``first_stage``."""
    import numpy as np

    from pptrace.plugin import Flat, Kind, Workload, simulate

    forward, backward = np.array(times.forward[first_stage:]), np.array(times.backward[first_stage:])
    costs = Workload.uniform(decoder.stages, f_ns=forward, b_ns=backward)
    timeline = simulate(decoder, costs, Flat(latency_ns=times.transfer))
    rows = np.flatnonzero(np.isin(timeline.kind, [Kind.F, Kind.B]))
    columns = (
        timeline.start_ns, timeline.end_ns, timeline.kind == Kind.B, first_stage + timeline.stage,
        timeline.microbatch, timeline.rank_of_row(),
    )  # fmt: skip
    planned: list[list[Planned]] = [[] for _ in range(decoder.ranks)]
    for *values, rank in zip(*(column[rows].tolist() for column in columns), strict=True):
        planned[rank].append(Planned(*values))
    return planned


class Bubbles:
    """Free intervals of all ranks, and the encoder's actions in them."""

    def __init__(self, rows: Sequence[Sequence[Planned]], transfer: int, shortest: int) -> None:
        """Start with the intervals around the decoder's actions that the ``shortest`` action fits into."""
        self._transfer, self._shortest = transfer, max(shortest, 1)
        self._free: list[list[tuple[int, float]]] = []
        for row in rows:
            ends, starts = [0, *(action.end for action in row)], [*(action.start for action in row), inf]
            self._free.append(self._usable(zip(ends, starts, strict=True)))
        self.rows: list[list[Planned]] = [[] for _ in rows]

    def _usable(self, intervals: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
        return [(low, high) for low, high in intervals if high - low >= self._shortest]

    def drop_before(self, ready: int) -> None:
        """Drop the intervals that end by a time."""
        for free in self._free:
            del free[: next(index for index, (_, high) in enumerate(free) if high > ready)]

    def plan(
        self, ranks: Sequence[int], microbatch: int, durations: Sequence[int], ready: int, *, is_backward: bool
    ) -> list[Planned]:
        """Return the earliest actions of a microbatch on all stages of an encoder, which is ``ready`` on its rank.

        Args:
            ranks: the rank of each stage.
            microbatch: the microbatch.
            durations: the time of each stage's action.
            ready: the earliest start.
            is_backward: whether the stages are visited in reverse.
        """
        actions: list[Planned] = []
        stages = range(len(ranks))
        for stage in reversed(stages) if is_backward else stages:
            if actions and ranks[actions[-1].stage] != ranks[stage]:
                ready += self._transfer
            start = next(
                max(low, ready)
                for low, high in self._free[ranks[stage]]
                if max(low, ready) + durations[stage] <= high
            )
            ready = start + durations[stage]
            actions.append(Planned(start, ready, is_backward, stage, microbatch))
        return actions

    def place(self, ranks: Sequence[int], actions: Sequence[Planned]) -> None:
        """Occupy the intervals of planned actions."""
        for action in actions:
            rank = ranks[action.stage]
            self.rows[rank].append(action)
            free = self._free[rank]
            index = next(index for index, (_, high) in enumerate(free) if action.end <= high)
            low, high = free[index]
            free[index : index + 1] = self._usable(((low, action.start), (action.end, high)))


def _fill(
    encoder: Encoder, decoder: Sequence[Sequence[Planned]], times: Times, microbatches: int
) -> tuple[list[int], list[list[Planned]]]:
    """Return the group of each microbatch, and the actions of each rank with those of the encoder."""
    group_of, shortest = list[int](), min(*times.forward[: encoder.stages], *times.backward[: encoder.stages])
    for _ in range(_REPEATS):
        first = {
            (action.is_backward, action.microbatch): action
            for action in decoder[0]
            if action.stage == encoder.stages
        }
        bubbles, delay = Bubbles(decoder, times.transfer, shortest), 0
        group_of.clear()
        counts = [0] * len(encoder.groups)
        for microbatch in range(microbatches):
            plans = [
                bubbles.plan(ranks, microbatch, times.forward, 0, is_backward=False) for ranks in encoder.groups
            ]
            waits = [
                max(0, plan[-1].end + times.transfer * (ranks[-1] != 0) - first[False, microbatch].start)
                for ranks, plan in zip(encoder.groups, plans, strict=True)
            ]
            keys = [(wait, count, plan[-1].end) for wait, count, plan in zip(waits, counts, plans, strict=True)]
            group = keys.index(min(keys))
            bubbles.place(encoder.groups[group], plans[group])
            group_of.append(group)
            counts[group] += 1
            delay = max(delay, waits[group])
        if not delay:
            break
        decoder = [
            [replace(action, start=action.start + delay, end=action.end + delay) for action in row]
            for row in decoder
        ]
    returned = sorted(
        (action.end, action.microbatch)
        for action in decoder[0]
        if action.is_backward and action.stage == encoder.stages
    )
    for end, microbatch in returned:
        ranks = encoder.groups[group_of[microbatch]]
        ready = end + times.transfer * (ranks[-1] != 0)
        bubbles.drop_before(end)
        bubbles.place(ranks, bubbles.plan(ranks, microbatch, times.backward, ready, is_backward=True))
    return group_of, [[*row, *added] for row, added in zip(decoder, bubbles.rows, strict=True)]


OFFER = ScheduleOffer(
    name="optimus",
    summary="1F1B of the decoder, with an encoder on all ranks in its bubbles.",
    build=build,
    options=lambda: import_module("pptrace_schedules.options").OptimusOptions,
    check=check,
    searches=True,
    constraints="A model with stages of an encoder; or costs without a model, and the encoder as first stage.",
    source="https://arxiv.org/abs/2408.03505",
)
