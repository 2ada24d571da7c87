"""Tables that Megatron-LM runs have the order of its training loop, as programs after its source have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from framework_cases import computes_of
from framework_programs_interleaved import megatron_interleaved
from framework_programs_megatron import megatron_1f1b
from hypothesis import given
from hypothesis import strategies as st

import pptrace
from pptrace.steps.schedule import Schedule
from pptrace.steps.text_forms import group_in_megatron, unsupported_by_megatron

if TYPE_CHECKING:
    from framework_calls import Program


def rows_of(programs: list[Program]) -> list[list[str]]:
    """Return the computations of each rank."""
    return [[f"{call.stage}{call.kind}{call.microbatch}" for call in computes_of(program)] for program in programs]


@given(ranks=st.integers(1, 6), microbatches=st.integers(1, 8))
def test_one_chunk_per_rank_is_a_single_group(ranks: int, microbatches: int) -> None:
    table = Schedule.from_rows(rows_of(megatron_1f1b(ranks, microbatches)))

    assert not list(unsupported_by_megatron(table))
    assert group_in_megatron(table) == microbatches


@given(
    ranks=st.integers(3, 5), chunks=st.integers(2, 3), beyond=st.integers(0, 3), groups=st.integers(1, 3),
    further=st.integers(0, 3), data=st.data(),
)  # fmt: skip
def test_groups_of_interleaved_chunks_are_found(
    ranks: int, chunks: int, beyond: int, groups: int, further: int, data: st.DataObject
) -> None:
    group = ranks + beyond
    microbatches = groups * group + (ranks + further if ranks + further < group else 0)
    rows = rows_of(megatron_interleaved(ranks, microbatches, chunks, group_size=group))

    assert group_in_megatron(Schedule.from_rows(rows)) == group

    rank = data.draw(st.integers(0, ranks - 1))
    place = data.draw(st.integers(0, len(rows[rank]) - 2))
    rows[rank][place : place + 2] = reversed(rows[rank][place : place + 2])
    assert group_in_megatron(Schedule.from_rows(rows)) is None


def test_pairs_need_one_more_forward_in_warm_up() -> None:
    paired = [["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"], ["1F0", "(1F1;1B0)OVERLAP_F_B",
              "(1F2;1B1)OVERLAP_F_B", "1B2"]]  # fmt: skip

    assert group_in_megatron(Schedule.from_rows(paired)) == 3
    paired[1] = ["1F0", "(1F1;1B0)OVERLAP_F_B", "1F2", "1B1", "1B2"]
    assert group_in_megatron(Schedule.from_rows(paired)) is None


@pytest.mark.needs_plugins
@pytest.mark.parametrize("name", ["gpipe", "eager-1f1b", "looped-bfs"])
def test_other_orders_of_its_actions_have_no_group(name: str) -> None:
    vp = 2 if name == "looped-bfs" else 1
    table = pptrace.simulate(schedule=name, pp=4, vp=vp, microbatches=8).prepared.schedule

    assert not list(unsupported_by_megatron(table))
    assert group_in_megatron(table) is None


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([["1F0", "1B0"], ["0F0", "0B0"]], "the placement of stages"),
        ([["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]], "the placement of stages"),
        ([["0F0", "1F0", "1B0", "0B0"]], "2 chunks on one rank: it needs two ranks or more"),
        ([["0F0", "0I0", "0W0"]], "split backwards such as 0I0: its backwards compute both gradients"),
        ([["0F0", "0OFFLOAD0", "0RELOAD0", "0B0"]], "actions such as 0OFFLOAD0"),
        ([["0F0+2", "0B0+2"]], "actions such as 0F0+2"),
        ([["0F0", "0F1@0F0", "0B0", "0B1"]], "actions that wait for others (@)"),
        ([["0F1", "0F0", "0B0", "0B1"]], "the forwards of stage 0: it runs one of each microbatch, in order"),
        ([["0F0", "0F1", "0B0"]], "the backwards of stage 0: it runs one of each microbatch"),
    ],
)
def test_parts_that_it_cannot_run_are_named(rows: list[list[str]], part: str) -> None:
    (found,) = unsupported_by_megatron(Schedule.from_rows(rows))

    assert found.startswith(part)


def test_messages_and_gathers_are_left_to_it() -> None:
    rows = [["0UNSHARD", "0F0", "0SEND_F0", "0RECV_B0", "0B0", "0REDUCE_GRAD"],
            ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]  # fmt: skip

    assert not list(unsupported_by_megatron(Schedule.from_rows(rows)))
    assert group_in_megatron(Schedule.from_rows(rows)) == 1
