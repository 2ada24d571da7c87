"""The independent model of what frameworks call: cases worked out by hand, orders, and what hangs."""

from __future__ import annotations

import pytest
from framework_calls import Compute, Message, Post, Program, Wait, received, sent
from framework_cases import ONE_CHUNK, OVERLAPS, computes_of, one, starts, times
from framework_programs_torch import Action, interleaved_1f1b_rows
from oracle_frameworks import (
    Deadlock,
    Unmatched,
    check_inputs,
    megatron_1f1b,
    megatron_interleaved,
    run,
    torch_interleaved_1f1b,
    torch_runtime,
)


@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        # F0, its message 10-11; F1; then F1's and B0's messages together, 41-42
        ("megatron", [0, 11, 42, 73], [11, 21, 42, 52]),
        # the first message rides while F1 runs
        ("torch-1f1b", [0, 10, 42, 73], [11, 21, 42, 52]),
        # F1's message waits for B0's to end: 41-42, 42-43
        ("deepspeed", [0, 11, 43, 74], [11, 21, 43, 53]),
        # the second receive is posted when F0 has ended, at 21; B0's message 52-53
        ("torch-gpipe", [0, 10, 53, 74], [11, 22, 32, 52]),
    ],
)
def test_two_microbatches_on_two_ranks(name: str, first: list[int], last: list[int]) -> None:
    programs = ONE_CHUNK[name](2, 2)

    assert (starts(programs, 0), starts(programs, 1)) == (first, last)


def test_two_microbatches_of_two_chunks_on_two_ranks_overlapped() -> None:
    programs = megatron_interleaved(2, 2, 2, overlap_p2p_comm=True)

    result = run(programs, times, one)

    assert starts(programs, 0) == [0, 11, 22, 33, 64, 94, 115, 136]
    assert starts(programs, 1) == [11, 22, 33, 43, 63, 73, 94, 115]
    assert result.messages[Message("F", 2, 1)] == (43, 44)  # posted by rank 1 when its F of stage 3 had ended
    assert result.messages[Message("B", 2, 0)] == (93, 94)  # made at 84, received after B of stage 3
    assert result.makespan == 156


def test_without_overlap_an_activation_leaves_with_the_next_gradient() -> None:
    programs = megatron_interleaved(4, 8, 2)

    batches = [len(call.ends) for call in programs[2] if isinstance(call, Post)]

    # the first input; 6 that warm up, the last with a gradient; 10 forwards with backwards; 6 that cool down
    assert batches == [1, *[2] * 5, 3, *[4] * 9, 3, *[2] * 5, 1]


@pytest.mark.parametrize("name", ONE_CHUNK)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_one_chunk_runs_everything_once(name: str, ranks: int) -> None:
    for microbatches in (1, 2, ranks, ranks + 1, 13):
        if name.startswith("torch-1f1b") and microbatches < ranks:
            with pytest.raises(ValueError, match="as many microbatches"):
                ONE_CHUNK[name](ranks, microbatches)
            continue
        programs = ONE_CHUNK[name](ranks, microbatches)
        assert_whole(programs, stages=ranks, microbatches=microbatches)
        if name != "torch-gpipe":
            assert [computes_of(program) for program in programs] == [
                one_f_one_b(rank, ranks, microbatches) for rank in range(ranks)
            ]


def one_f_one_b(rank: int, ranks: int, microbatches: int) -> list[Compute]:
    ahead = min(microbatches, ranks - 1 - rank)
    order = [("F", m) for m in range(ahead)]
    for m in range(ahead, microbatches):
        order += [("F", m), ("B", m - ahead)]
    return [
        Compute(kind, rank, m) for kind, m in order + [("B", m) for m in range(microbatches - ahead, microbatches)]
    ]


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_megatron_interleaved_runs_everything_once(overlap: str, ranks: int) -> None:
    for chunks in (2, 3):
        for group in (ranks, ranks + 1):
            for microbatches in (group, 2 * group, 2 * group + ranks):
                if ranks == 2 and "overlap_p2p_comm" not in OVERLAPS[overlap]:
                    with pytest.raises(ValueError, match="too few ranks"):
                        megatron_interleaved(ranks, microbatches, chunks, **OVERLAPS[overlap])
                    continue
                if 0 < microbatches % group < ranks:
                    continue
                programs = megatron_interleaved(ranks, microbatches, chunks, group_size=group, **OVERLAPS[overlap])
                assert_whole(programs, stages=ranks * chunks, microbatches=microbatches)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 1), (2, 4), (3, 9), (4, 10), (4, 3), (5, 10)])
@pytest.mark.parametrize("chunks", [1, 2, 3])
@pytest.mark.parametrize("eager_init", [False, True])
def test_torch_interleaved_runs_everything_once(
    ranks: int, microbatches: int, chunks: int, *, eager_init: bool
) -> None:
    programs = torch_interleaved_1f1b(ranks, microbatches, chunks, eager_init=eager_init)

    assert_whole(programs, stages=ranks * chunks, microbatches=microbatches)


def assert_whole(programs: list[Program], *, stages: int, microbatches: int) -> None:
    """Each action once, on its rank; each message once; each compute has what it reads; nothing hangs."""
    check_inputs(programs)
    result = run(programs, times, one)
    assert set(result.computes) == {
        Compute(kind, stage, m) for kind in "FB" for stage in range(stages) for m in range(microbatches)
    }
    assert sum(len(computes_of(program)) for program in programs) == len(result.computes)
    assert {call.stage % len(programs) for call in computes_of(programs[0])} == {0}
    inner = stages - 1 if len(programs) > 1 else 0
    assert len(result.messages) == 2 * inner * microbatches


@pytest.mark.parametrize(("ranks", "rounds", "chunks"), [(2, 2, 2), (4, 1, 2), (4, 3, 2), (3, 2, 4)])
def test_interleaved_frameworks_have_one_order(ranks: int, rounds: int, chunks: int) -> None:
    microbatches = ranks * rounds
    megatron = megatron_interleaved(ranks, microbatches, chunks, overlap_p2p_comm=True)
    torch = torch_interleaved_1f1b(ranks, microbatches, chunks)

    def at(step: int) -> tuple[int, int]:
        return step // ranks % chunks, step // (ranks * chunks) * ranks + step % ranks

    for rank in range(ranks):
        order = computes_of(megatron[rank])
        assert order == computes_of(torch[rank])
        forwards = [at(step) for step in range(microbatches * chunks)]
        assert [c for c in order if c.kind == "F"] == [Compute("F", k * ranks + rank, m) for k, m in forwards]
        assert [c for c in order if c.kind == "B"] == [
            Compute("B", (chunks - 1 - k) * ranks + rank, m) for k, m in forwards
        ]
        ahead = min(microbatches * chunks, 2 * (ranks - 1 - rank) + (chunks - 1) * ranks)
        steady = "FB" * (microbatches * chunks - ahead)
        assert "".join(c.kind for c in order) == "F" * ahead + steady + "B" * ahead


def test_groups_of_more_microbatches_than_ranks() -> None:
    """The example of ``get_schedule_table``: two ranks, groups of three, five microbatches, two chunks."""
    programs = megatron_interleaved(2, 5, 2, group_size=3, overlap_p2p_comm=True)

    forwards = [call for call in computes_of(programs[0]) if call.kind == "F"]

    assert [call.microbatch for call in forwards] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [call.stage for call in forwards] == [0, 0, 0, 2, 2, 2, 0, 0, 2, 2]


def test_two_stages_of_one_rank_pass_no_messages() -> None:
    entries = [
        ["F 0", "SEND_F 0", "RECV_F 3", "F 3", "B 3", "SEND_B 3", "RECV_B 0", "B 0"],
        ["RECV_F 1", "F 1", "F 2", "SEND_F 2", "RECV_B 2", "I 2", "I 1", "SEND_B 1", "W 2", "W 1"],
    ]
    rows = [[Action(entry.split()[0], int(entry.split()[1]), 0) for entry in row] for row in entries]

    programs = torch_runtime(rows, {0: 0, 1: 1, 2: 1, 3: 0})

    check_inputs(programs)
    assert starts(programs, 0) == [0, 32, 42, 104]
    assert starts(programs, 1) == [11, 21, 63, 83, 103, 123]


def test_a_receive_that_stands_before_the_send_it_feeds_on_hangs() -> None:
    """The order that https://github.com/pytorch/pytorch/issues/172668 reports as stuck, cut to its core."""
    rows = interleaved_1f1b_rows(2, 2, 1)
    f1, b0 = rows[0].index(Action("SEND_F", 0, 1)), rows[0].index(Action("RECV_B", 0, 0))
    assert f1 < b0
    rows[0][f1], rows[0][b0] = rows[0][b0], rows[0][f1]

    with pytest.raises(Deadlock) as caught:
        run(torch_runtime(rows, {0: 0, 1: 1}), times, one)

    assert Message("F", 0, 1) in caught.value.cycle
    assert caught.value.cycle[0] == caught.value.cycle[-1]


def test_a_batch_does_not_meet_an_unbatched_receive() -> None:
    batched, unbatched = megatron_1f1b(3, 3), megatron_1f1b(3, 3, batch_p2p_comm=False)

    with pytest.raises(Unmatched, match="sends, "):
        run([batched[0], unbatched[1], unbatched[2]], times, one)


def test_messages_that_cross_are_reported() -> None:
    a, b = Message("F", 0, 0), Message("F", 0, 1)
    sender: Program = [Compute("F", 0, 0), Compute("F", 0, 1)]
    sender += [Post(n, (sent(m, 1),), ("pp", 0, 1)) for n, m in enumerate((a, b))]
    reader: Program = [Post(n, (received(m, 0),), ("pp", 0, 1)) for n, m in enumerate((b, a))]

    with pytest.raises(Unmatched, match="F0 of stage 0 sent, F1 of stage 0 received"):
        run([sender, reader], times, one)


def test_a_compute_call_without_its_input_is_reported() -> None:
    programs = megatron_1f1b(2, 2)
    programs[1] = [call for call in programs[1] if not isinstance(call, Wait)]

    with pytest.raises(Unmatched, match="rank 1"):
        check_inputs(programs)
