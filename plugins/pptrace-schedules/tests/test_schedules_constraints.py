"""Sizes that a schedule cannot take are refused in one line with the nearest that it can."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from pptrace.errors import ConstraintError
from pptrace.plugins.requests import ScheduleRequest
from pptrace_schedules.plugin import pptrace_schedules

OFFERS = {offer.name: offer for offer in pptrace_schedules()}


def refusal(name: str, *, ranks: int, microbatches: int, chunks: int) -> ConstraintError:
    check = OFFERS[name].check
    assert check is not None
    with pytest.raises(ConstraintError) as refused:
        check(ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=chunks))
    return refused.value


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        (
            "gpipe",
            (4, 8, 2),
            (
                "parallel.vp: gpipe keeps one chunk of the model on a rank, not 2 "
                "(looped-bfs takes several); "
                "nearest that work: 1 chunk"
            ),
        ),
        (
            "1f1b",
            (4, 8, 3),
            (
                "parallel.vp: 1f1b keeps one chunk of the model on a rank, not 3 "
                "(interleaved-1f1b takes several); "
                "nearest that work: 1 chunk"
            ),
        ),
        (
            "pipedream-2bw",
            (4, 3, 1),
            (
                "batch.microbatches: pipedream-2bw holds two versions of the weights, which suffice for 4 "
                "microbatches or more per update, not for 3; "
                "nearest that work: 4 microbatches"
            ),
        ),
        (
            "paci",
            (4, 3, 1),
            (
                "batch.microbatches: paci has a steady step between two updates for 4 microbatches or more per "
                "update, not for 3; nearest that work: 4 microbatches"
            ),
        ),
        (
            "interleaved-1f1b",
            (4, 8, 1),
            (
                "parallel.vp: interleaved-1f1b needs at least 2 chunks of the model on a rank, not 1 "
                "(1f1b takes one); "
                "nearest that work: 2 chunks"
            ),
        ),
        (
            "interleaved-1f1b",
            (4, 9, 2),
            (
                "batch.microbatches: interleaved-1f1b runs microbatches in rounds of equal size, "
                "and 9 is not divisible by 2 (pp 4); "
                "nearest that work: 8 or 10 microbatches"
            ),
        ),
    ],
)
def test_a_refusal_says_why_and_what_works(name: str, sizes: tuple[int, int, int], message: str) -> None:
    ranks, microbatches, chunks = sizes

    assert str(refusal(name, ranks=ranks, microbatches=microbatches, chunks=chunks)) == message


def test_the_nearest_sizes_are_taken_and_none_lies_between() -> None:
    check = OFFERS["interleaved-1f1b"].check
    assert check is not None
    for ranks in range(1, 9):
        for microbatches in range(1, 80):
            try:
                check(ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=2))
            except ConstraintError as error:
                below, above = map(int, re.findall(r"\d+", error.nearest))
                for size in (below, above):
                    check(ScheduleRequest(ranks=ranks, microbatches=size, chunks=2))
                for between in set(range(below + 1, above)):
                    refusal("interleaved-1f1b", ranks=ranks, microbatches=between, chunks=2)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_interleaving_takes_all_multiples_of_the_ranks_and_all_below_two_a_rank(ranks: int) -> None:
    check = OFFERS["interleaved-1f1b"].check
    assert check is not None
    for microbatches in [*range(1, 2 * ranks), *range(ranks, 20 * ranks, ranks)]:
        check(ScheduleRequest(ranks=ranks, microbatches=microbatches, chunks=2))


def test_looped_bfs_takes_any_size() -> None:
    assert OFFERS["looped-bfs"].check is None


@pytest.mark.parametrize("name", OFFERS)
def test_an_offer_states_its_constraints_and_source(name: str) -> None:
    offer = OFFERS[name]

    assert offer.constraints.endswith(".")
    assert offer.source.startswith(("https://arxiv.org/abs/", "https://github.com/NVIDIA/Megatron-LM"))
    assert "\n" not in offer.summary


def test_finding_the_offers_and_their_closed_forms_needs_no_numpy() -> None:
    code = (
        "import sys; from pptrace_schedules.plugin import pptrace_schedules;"
        "from pptrace.plugins.requests import ScheduleRequest;"
        "request = ScheduleRequest(ranks=4, microbatches=8, chunks=2);"
        "[(offer.bubble and offer.bubble(request), offer.peak_activations and offer.peak_activations(request))"
        " for offer in pptrace_schedules()];"
        "print(*sorted({'numpy', 'pydantic', 'llvmlite'} & set(sys.modules)))"
    )

    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert result.stdout.split() == []
