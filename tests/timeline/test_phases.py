"""Phases split each rank's step where its forwards and backwards meet."""

from __future__ import annotations

from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.placement import Placement
from pptrace.timeline.metrics import Phase, phases
from pptrace.timeline.timeline import Slice, Timeline


def _step(*rows: str) -> Timeline:
    """Run each rank's passes back to back, 10 ns each, after ``rank`` times 10 ns."""
    slices = []
    for rank, row in enumerate(rows):
        seen: dict[Kind, int] = {}
        for at, letter in enumerate(row):
            kind = Kind[letter]
            microbatch = seen.setdefault(kind, 0)
            seen[kind] += 1
            start = 10 * (rank + at)
            action = Action(kind=kind, stage=rank, microbatch=microbatch)
            slices.append(
                Slice(rank=rank, stream=Stream.COMPUTE, action=action, start_ns=start, end_ns=start + 10)
            )
    return Timeline.from_slices(slices, Placement.looped(len(rows), 8))


def _brief(found: tuple[Phase, ...]) -> list[tuple[int, str, int, int]]:
    return [(phase.rank, phase.name, phase.start_ns, phase.end_ns) for phase in found]


def test_a_rank_warms_up_until_its_first_backward_and_cools_down_after_its_last_forward() -> None:
    assert _brief(phases(_step("FFFBFBFBBB"))) == [
        (0, "warm-up", 0, 30),
        (0, "steady", 30, 70),
        (0, "cool-down", 70, 100),
    ]


def test_forwards_before_all_backwards_leave_no_steady_phase() -> None:
    assert _brief(phases(_step("FFFBBB"))) == [(0, "warm-up", 0, 30), (0, "cool-down", 30, 60)]


def test_split_backwards_count_from_their_first_half_to_their_last() -> None:
    assert _brief(phases(_step("FIFIWW"))) == [
        (0, "warm-up", 0, 10),
        (0, "steady", 10, 30),
        (0, "cool-down", 30, 60),
    ]


def test_each_rank_has_its_own_phases() -> None:
    assert _brief(phases(_step("FFBB", "FBFB"))) == [
        (0, "warm-up", 0, 20),
        (0, "cool-down", 20, 40),
        (1, "warm-up", 10, 20),
        (1, "steady", 20, 40),
        (1, "cool-down", 40, 50),
    ]


def test_a_rank_without_forwards_or_without_backwards_has_none() -> None:
    assert phases(_step("FF", "BB", "")) == ()
    assert phases(_step("")) == ()
