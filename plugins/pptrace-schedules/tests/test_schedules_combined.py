"""Combined 1F1B runs Megatron-LM's steps, with pairs whose members need nothing of each other."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pptrace.config.choices import PolicyName
from pptrace.errors import ConstraintError
from pptrace.plugins.requests import ScheduleRequest
from pptrace.sim.simulation import simulate
from pptrace.steps.message_calls import Policy
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload
from pptrace.testing import assert_schedule_family, grid
from pptrace_schedules.combined_1f1b import OFFER

SIZES = [
    (1, 1, 6, None), (2, 2, 2, None), (2, 2, 8, None), (4, 2, 8, None), (4, 3, 16, None), (4, 2, 12, 8),
    (4, 2, 13, 9), (8, 4, 32, None), (4, 2, 4, None), (3, 2, 8, 5),
]  # fmt: skip


def built(ranks: int, chunks: int, microbatches: int, size: int | None = None) -> Schedule:
    request = ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks, options={"round": size})
    assert OFFER.check is not None
    OFFER.check(request)
    table = OFFER.build(request)
    assert isinstance(table, Schedule)
    return table


def steps(chunks: int, microbatches: int, size: int) -> list[tuple[int, int]]:
    """Return (microbatch, chunk) of each forward step, round by round."""
    return [
        (microbatch, chunk)
        for first in range(0, microbatches, size)
        for chunk in range(chunks)
        for microbatch in range(first, min(first + size, microbatches))
    ]


@pytest.mark.parametrize(("ranks", "chunks", "microbatches", "size"), SIZES)
def test_a_row_is_megatrons(ranks: int, chunks: int, microbatches: int, size: int | None) -> None:
    table = built(ranks, chunks, microbatches, size)
    order = steps(chunks, microbatches, size or ranks)
    for rank in range(ranks):
        ahead = min(2 * (ranks - rank - 1) + (chunks - 1) * (size or ranks) + 1, len(order))
        forward = [f"{chunk * ranks + rank}F{microbatch}" for microbatch, chunk in order]
        backward = [f"{(chunks - 1 - chunk) * ranks + rank}B{microbatch}" for microbatch, chunk in order]
        pairs = zip(forward[ahead:], backward, strict=False)
        row = [*forward[:ahead], *(f"({f};{b})OVERLAP_F_B" for f, b in pairs)]
        assert table.rows()[rank] == [*row, *backward[len(order) - ahead :]]


def test_one_rank_runs_a_forward_beside_the_backward_before() -> None:
    assert built(1, 1, 3).rows() == [["0F0", "(0F1;0B0)OVERLAP_F_B", "(0F2;0B1)OVERLAP_F_B", "0B2"]]


def test_every_size_makes_a_table_with_the_stated_figures() -> None:
    assert_schedule_family(
        OFFER, sizes=grid(ranks=range(1, 7), microbatches=range(1, 15), chunks=(1, 2, 3)), growth=False
    )
    assert_schedule_family(
        OFFER,
        sizes=grid(ranks=(2, 3, 4), microbatches=range(1, 17), chunks=(2,), options={"round": 5}),
        growth=False,
    )


@pytest.mark.parametrize("policy", [PolicyName.ASYNC, PolicyName.ORDERED])
@pytest.mark.parametrize(("ranks", "chunks", "microbatches", "size"), SIZES)
def test_neither_ideal_nor_ordered_messages_deadlock(
    policy: PolicyName, ranks: int, chunks: int, microbatches: int, size: int | None
) -> None:
    table = built(ranks, chunks, microbatches, size)

    simulate(table, Workload.uniform(table.stages), policy=Policy(name=policy))


def refused(**sizes: Any) -> ConstraintError | None:
    assert OFFER.check is not None
    try:
        OFFER.check(ScheduleRequest(**sizes))
    except ConstraintError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"ranks": 4, "microbatches": 8, "chunks": 1},
         ("parallel.vp: combined-1f1b needs at least 2 chunks of the model on each of 4 ranks, not 1; nearest "
         "that work: 2 chunks")),
        ({"ranks": 1, "microbatches": 8, "chunks": 2},
         ("parallel.vp: combined-1f1b on one rank is not a pipeline, and takes one chunk of the model, not 2; "
         "nearest that work: 1 chunk")),
        ({"ranks": 4, "microbatches": 10, "chunks": 2},
         ("batch.microbatches: the last round of combined-1f1b takes 4 microbatches or more, and of 10 in rounds "
         "of 4 it has 2; nearest that work: 8 or 12 microbatches")),
        ({"ranks": 4, "microbatches": 8, "chunks": 2, "options": {"round": 3}},
         ("schedule.options.round: a round of combined-1f1b reaches over all 4 ranks, and 3 microbatches do not; "
         "nearest that work: 4")),
    ],
)  # fmt: skip
def test_a_refusal_says_why_and_what_works(sizes: dict[str, Any], message: str) -> None:
    assert str(refused(**sizes)) == message


def test_the_nearest_sizes_are_taken_and_none_lies_between() -> None:
    for ranks, size, microbatches in product((2, 3, 4), (4, 5, 7), range(1, 40)):
        error = refused(ranks=ranks, microbatches=microbatches, chunks=2, options={"round": size})
        if error is None:
            continue
        near = [int(word) for word in error.nearest.split() if word.isdigit()]
        low = near[0] if len(near) > 1 else 0
        taken = [
            m
            for m in range(low, near[-1] + 1)
            if m and not refused(ranks=ranks, microbatches=m, chunks=2, options={"round": size})
        ]
        assert taken == [m for m in near if m]


def test_published_runs_gain_what_they_gained_within_seventeen_points() -> None:
    """What the example prints, without a slowing of overlapped computation and communication."""
    printed = (Path(__file__).parents[3] / "examples" / "combined.out").read_text(encoding="utf-8")
    published = [float(item) for item in re.findall(r"with overlap +[\d.]+ s +([\d.]+)%", printed)]
    simulated = [float(item) for item in re.findall(r"nothing slowed +[\d.]+ s +(-?[\d.]+)%", printed)]

    assert len(published) == len(simulated) == 3
    assert all(abs(item - other) < 17 for item, other in zip(published, simulated, strict=True))
