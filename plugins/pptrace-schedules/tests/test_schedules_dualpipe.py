"""DualPipe's and DualPipeV's tables are those of the authors' program, which is written out here step by step."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from pptrace.config.choices import PolicyName, StreamPer
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.testing import assert_schedule_family, grid
from pptrace_schedules.dualpipe import DUALPIPE_V
from pptrace_schedules.dualpipe import OFFER as DUALPIPE

V_SIZES = [(p, m) for p in range(1, 9) for m in (2 * p, 2 * p + 1, 2 * p + 2, 3 * p + 1, 5 * p)]


class Worker:
    """A rank that counts the chunks of either phase, as the program does, and queues weight gradients."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.count: Counter[tuple[str, int]] = Counter()
        self.queue: list[tuple[int, int]] = []

    def forward(self, phase: int) -> None:
        self.done.append(self._forward(phase))

    def backward(self, phase: int, *, zero_bubble: bool = False) -> None:
        self.done.append(self._backward(phase, "I" if zero_bubble else "B"))

    def both(self, phase: int, other: int) -> None:
        self.done.append(f"{self._forward(phase)}&{self._backward(other, 'B')}")

    def weight(self) -> None:
        phase, number = self.queue.pop(0)
        self.done.append(f"{phase}W{number}")

    def _forward(self, phase: int) -> str:
        return f"{phase}F{self._next('F', phase)}"

    def _backward(self, phase: int, kind: str) -> str:
        number = self._next("B", phase)
        if kind == "I":
            self.queue.append((phase, number))
        return f"{phase}{kind}{number}"

    def _next(self, way: str, phase: int) -> int:
        self.count[way, phase] += 1
        return self.count[way, phase] - 1


def worked(half_rank: int, half_ranks: int, half_chunks: int) -> list[str]:
    """Return what a rank does; names are the published program's, a phase stands where a stage would."""
    rank = Worker()
    warm_up(rank, half_rank, half_ranks - half_rank - 1)
    for number in range(half_chunks - 2 * half_ranks + half_rank + 1):
        if number == 0 and half_rank == half_ranks - 1:
            rank.forward(0)
            rank.backward(1)
        else:
            rank.both(0, 1)
        rank.both(1, 0)
    cool_down(rank, half_rank, half_ranks - half_rank - 1)
    assert not rank.queue
    return rank.done


def warm_up(rank: Worker, half_rank: int, left: int) -> None:
    for _ in range(2 * left):
        rank.forward(0)
    for _ in range(half_rank + 1):
        rank.forward(0)
        rank.forward(1)
    for _ in range(left):
        rank.backward(1, zero_bubble=True)
        rank.weight()
        rank.forward(1)


def cool_down(rank: Worker, half_rank: int, left: int) -> None:
    for _ in range(left):
        rank.backward(1)
        rank.both(1, 0)
    zero_bubble = False
    for number in range(half_rank + 1):
        if number == (half_rank + 1) // 2 and half_rank % 2 == 1:
            zero_bubble = True
        rank.backward(1, zero_bubble=zero_bubble)
        if number == (half_rank + 1) // 2 and half_rank % 2 == 0:
            zero_bubble = True
        rank.backward(0, zero_bubble=zero_bubble)
    for _ in range(left):
        rank.weight()
        rank.backward(0, zero_bubble=True)
    for _ in range(half_rank + 1):
        rank.weight()


def built(offer: Any, ranks: int, microbatches: int) -> Schedule:
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches)
    offer.check(request)
    table = offer.build(request)
    assert isinstance(table, Schedule)
    return table


def read(table: Schedule, rank: int, phase_of: Any, directions: int) -> list[str]:
    """Return a row with phases in place of stages, and microbatches counted in their direction."""
    row = [action.sub_actions or (action,) for action in table[rank]]
    return [
        "&".join(f"{phase_of(a)}{a.kind.name}{a.microbatch // directions}" for a in members) for members in row
    ]


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (4, 8), (4, 14), (6, 12), (8, 20), (8, 16), (16, 40)])
def test_dualpipe_does_what_the_published_program_does(ranks: int, microbatches: int) -> None:
    table = built(DUALPIPE, ranks, microbatches)
    for rank in range(ranks):
        half = min(rank, ranks - 1 - rank)

        def phase_of(action: Any, rank: int = rank) -> int:
            return int(action.microbatch % 2) ^ int(rank >= ranks // 2)

        assert read(table, rank, phase_of, 2) == worked(half, ranks // 2, microbatches // 2)


def test_dualpipe_of_8_ranks_and_20_microbatches_is_the_published_figure() -> None:
    rows = [" ".join(row) for row in built(DUALPIPE, 8, 20).rows()]

    assert rows[0].startswith("0F0 0F2 0F4 0F6 0F8 0F10 0F12 7F1 7I1 7W1 7F3 7I3 7W3 7F5 7I5 7W5 7F7 (0F14;7B7)")
    assert rows[3].startswith("3F0 4F1 3F2 4F3 3F4 4F5 3F6 4F7 3F8 4B1 (4F9;3B0)OVERLAP_F_B (3F10;4B3)")
    assert rows[7].endswith("(7F18;0B11)OVERLAP_F_B 7B18 0I13 0W13 0I15 0W15 0I17 0W17 0I19 0W19")


@pytest.mark.parametrize(("ranks", "microbatches"), V_SIZES)
def test_dualpipe_v_does_what_the_published_program_does(ranks: int, microbatches: int) -> None:
    table = built(DUALPIPE_V, ranks, microbatches)
    for rank in range(ranks):

        def phase_of(action: Any, rank: int = rank) -> int:
            return int(action.stage != rank)

        assert read(table, rank, phase_of, 1) == worked(rank, ranks, microbatches)


@pytest.mark.torch
def test_dualpipe_v_is_pytorchs_on_a_wide_grid() -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    for ranks in (1, 2, 3, 4, 7):
        for microbatches in (2 * ranks, 2 * ranks + 1, 2 * ranks + 2, 3 * ranks, 4 * ranks + 3):
            theirs = object.__new__(pipelining.ScheduleDualPipeV)
            theirs.pp_group_size, theirs._n_microbatches = ranks, microbatches
            rows = [[str(a) for a in theirs._calculate_single_rank_operations(rank)] for rank in range(ranks)]
            assert built(DUALPIPE_V, ranks, microbatches).rows() == rows


def test_every_size_makes_a_table_with_the_stated_figures() -> None:
    assert_schedule_family(
        DUALPIPE, sizes=grid(ranks=(*range(1, 7), 10), microbatches=(*range(1, 15), 20, 21)), growth=False
    )
    assert_schedule_family(
        DUALPIPE_V, sizes=grid(ranks=range(1, 7), microbatches=range(1, 16), chunks=(1, 2, 3)), growth=False
    )


@pytest.mark.parametrize("offer", [DUALPIPE, DUALPIPE_V])
@pytest.mark.parametrize(
    "policy",
    [
        Policy(name=PolicyName.ASYNC),
        Policy(name=PolicyName.ORDERED, stream=StreamPer.RANK),
        Policy(name=PolicyName.ORDERED, stream=StreamPer.DIRECTION),
    ],
    ids=["async", "ordered-rank", "ordered-direction"],
)
def test_neither_ideal_nor_ordered_messages_deadlock(offer: Any, policy: Policy) -> None:
    from pptrace.steps.workload import Workload

    for ranks, microbatches in ((2, 4), (4, 12), (6, 12), (8, 22)):
        table = built(offer, ranks, microbatches)
        timeline = simulate(table, Workload.uniform(table.stages), policy=policy)
        assert int(np.isin(timeline.kind, np.unique(table.kind)).sum()) == len(table)


def test_dualpipe_holds_every_stage_twice_and_dualpipe_v_once() -> None:
    twice, once = built(DUALPIPE, 8, 20).placement.copies(), built(DUALPIPE_V, 4, 20).placement.copies()

    assert twice.sum(axis=0).tolist() == [2] * 8
    assert twice.sum(axis=1).tolist() == [2] * 8
    assert once.sum(axis=0).tolist() == [1] * 8


def test_dualpipe_v_is_half_of_dualpipe() -> None:
    whole, half = built(DUALPIPE, 12, 34), built(DUALPIPE_V, 6, 17)
    for rank in range(6):
        down, up = (row.split() for row in (" ".join(whole.rows()[rank]), " ".join(half.rows()[rank])))
        assert len(down) == len(up)
    ours = [(a.kind, a.stage, a.microbatch // 2) for rank in range(6) for a in _flat(whole, rank)]
    assert ours == [(a.kind, a.stage, a.microbatch) for rank in range(6) for a in _flat(half, rank)]


def _flat(table: Schedule, rank: int) -> list[Any]:
    return [member for action in table[rank] for member in action.sub_actions or (action,)]


@pytest.mark.parametrize(
    ("offer", "sizes", "message"),
    [
        (DUALPIPE, (5, 20, 1),
         ("parallel.pp: dualpipe pairs a rank with its mirror image, and 5 ranks are odd; "
         "nearest that work: 4 or 6 ranks")),
        (DUALPIPE, (4, 6, 1),
         ("batch.microbatches: dualpipe's warm-up on 4 ranks takes 8 microbatches or more, not "
         "6; nearest that work: 8 microbatches")),
        (DUALPIPE, (4, 9, 1),
         ("batch.microbatches: dualpipe sends as many microbatches down as up, and 9 are odd; "
         "nearest that work: 8 or 10 microbatches")),
        (DUALPIPE, (4, 8, 2),
         ("parallel.vp: dualpipe keeps one chunk of the model on a rank, not 2 (dualpipe-v "
         "takes several); nearest that work: 1 chunk")),
        (DUALPIPE_V, (4, 7, 2),
         ("batch.microbatches: dualpipe-v's warm-up through 8 stages takes 8 microbatches or "
         "more, not 7; nearest that work: 8 microbatches")),
        (DUALPIPE_V, (4, 8, 3),
         ("parallel.vp: dualpipe-v has two chunks of the model on a rank, not 3; nearest that "
         "work: 2 chunks")),
    ],
)  # fmt: skip
def test_a_refusal_says_why_and_what_works(offer: Any, sizes: tuple[int, int, int], message: str) -> None:
    from pptrace.errors import ConstraintError

    ranks, microbatches, chunks = sizes
    with pytest.raises(ConstraintError) as refused:
        offer.check(ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks))
    assert str(refused.value) == message


def test_activations_are_one_more_than_stages() -> None:
    assert DUALPIPE.peak_activations is not None
    assert DUALPIPE.peak_activations(ScheduleRequest(ranks=8, microbatches=20)) == [Fraction(9)] * 8
