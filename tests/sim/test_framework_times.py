"""The independent model of what frameworks call: how long steps take, against closed forms."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from framework_cases import B_NS, F_NS, ONE_CHUNK, OVERLAPS, nothing, one, times
from oracle_frameworks import asynchronous, megatron_1f1b, megatron_interleaved, run, torch_interleaved_1f1b

if TYPE_CHECKING:
    from framework_calls import Compute


@pytest.mark.parametrize("name", [name for name in ONE_CHUNK if name != "torch-gpipe"])
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (3, 8), (8, 8), (5, 30)])
def test_messages_of_no_time_leave_the_ideal(name: str, ranks: int, microbatches: int) -> None:
    makespan = run(ONE_CHUNK[name](ranks, microbatches), times, nothing).makespan

    assert makespan == (microbatches + ranks - 1) * (F_NS + B_NS)


@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 2), (2, 9), (3, 3), (4, 16), (8, 20)])
def test_megatron_1f1b_shows_two_messages_a_microbatch(ranks: int, microbatches: int) -> None:
    """Of two ranks one: what both send in the middle of the step crosses."""
    makespan = run(megatron_1f1b(ranks, microbatches), times, one).makespan

    exposed = microbatches + 1 if ranks == 2 else 2 * (microbatches + ranks) - 5
    assert makespan == (microbatches + ranks - 1) * (F_NS + B_NS) + exposed


@pytest.mark.parametrize(("name", "percent"), [("megatron", 4.37), ("torch-1f1b", 4.37), ("deepspeed", 8.30)])
def test_messages_of_a_fifteenth_of_a_forward(name: str, percent: float) -> None:
    result = run(ONE_CHUNK[name](8, 64), lambda call: times(call) * 1_000_000, lambda *_: 670_000)

    ideal = (64 + 8 - 1) * 30_000_000
    assert 100 * (result.makespan / ideal - 1) == pytest.approx(percent, abs=0.01)


@pytest.mark.parametrize(("ranks", "microbatches", "chunks"), [(3, 6, 2), (4, 16, 2), (4, 12, 3), (5, 15, 4)])
def test_overlap_hides_messages_of_the_interleaved_schedule(ranks: int, microbatches: int, chunks: int) -> None:
    programs = {name: megatron_interleaved(ranks, microbatches, chunks, **kind) for name, kind in OVERLAPS.items()}
    spans = {name: run(program, times, one).makespan for name, program in programs.items()}
    ideal = (microbatches * chunks + ranks - 1) * (F_NS + B_NS)
    there_and_back = 2 * (ranks * chunks - 1)

    assert run(programs["batched"], times, nothing).makespan == ideal
    assert run(asynchronous(programs["batched"]), times, one).makespan == ideal + there_and_back
    assert spans["overlapped-before-0.18"] == spans["flush-before-0.18"] == ideal + there_and_back
    # since 0.18 a forward's message is waited for before the next backward
    assert spans["overlapped"] == spans["flush"] == ideal + there_and_back + (microbatches - ranks) * chunks - 1
    assert spans["overlapped"] < spans["batched"] < spans["unbatched"]


@pytest.mark.parametrize("since", ["", "-before-0.18"])
def test_overlapped_warm_up_and_flush_help_where_a_rank_is_slow(since: str) -> None:
    spans = [
        run(
            megatron_interleaved(4, 8, 2, **OVERLAPS[name]),
            lambda call: times(call) * (2 if call.stage % 4 == 1 else 1),
            lambda *_: 7,
        ).makespan
        for name in ("overlapped" + since, "flush" + since)
    ]

    assert spans[1] < spans[0]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_faster_than_messages_that_block_nothing(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test's inputs
    lengths: dict[tuple[str, int], int] = {}
    links: dict[tuple[int, int, str], int] = {}

    def length(call: Compute) -> int:
        return lengths.setdefault((call.kind, call.stage), chance.randint(1, 40))

    def transfer(source: int, target: int, direction: str) -> int:
        return links.setdefault((source, target, direction), chance.randint(0, 25))

    every = [programs(4, 9) for programs in ONE_CHUNK.values()]
    every += [megatron_interleaved(4, 8, 3, **options) for options in OVERLAPS.values()]
    every += [torch_interleaved_1f1b(4, 8, 3, eager_init=eager) for eager in (False, True)]
    for programs in every:
        free, bound = run(asynchronous(programs), length, transfer), run(programs, length, transfer)
        assert all(free.computes[call] <= bound.computes[call] for call in free.computes)


def test_one_communicator_for_all_peers_delays() -> None:
    pairs, together = (run(torch_interleaved_1f1b(4, 16, 2, eager_init=e), times, one) for e in (False, True))

    assert together.makespan > 1.1 * pairs.makespan
