"""Messages stand where PyTorch puts them: an implementation of its two passes from their description agrees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreted import interpreted_kernels
from strategies import valid_schedules

import pptrace_kernel
from pptrace.config.choices import Receive
from pptrace.errors import DeadlockError, ScheduleError
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind
from pptrace.steps.message_calls import IssueOrder, as_issued, with_messages, with_sends
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKWARD = {Kind.B, Kind.I}


def rows_of(issued: IssueOrder) -> list[list[str]]:
    as_schedule = Schedule.from_columns(
        issued.placement, issued.row_ptr, issued.kind, issued.stage, issued.microbatch,
        span=issued.span, pair=issued.pair,
    )  # fmt: skip
    return as_schedule.rows()


TWO = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]])


def test_receives_are_placed_as_soon_as_the_sender_has_sent() -> None:
    assert rows_of(with_messages(TWO, Receive.ASAP)) == [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F0", "1F0", "1RECV_F1", "1B0", "1SEND_B0", "1F1", "1B1", "1SEND_B1"],
    ]


def test_receives_are_deferred_to_their_consumers_but_for_a_lower_rank_that_sends_to_the_same_peer() -> None:
    table = Schedule.from_rows([["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"],
                                ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]])  # fmt: skip

    assert rows_of(with_messages(table, Receive.DEFERRED)) == [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0F2", "0RECV_B0", "0SEND_F2", "0B0", "0RECV_B1", "0B1",
         "0RECV_B2", "0B2"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1", "1RECV_F2", "1F2", "1B2",
         "1SEND_B2"],
    ]  # fmt: skip


def test_stages_on_one_rank_send_nothing_to_each_other() -> None:
    table = Schedule.from_rows([["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]])

    assert rows_of(with_sends(table)) == [
        ["0F0", "0SEND_F0", "3F0", "3B0", "3SEND_B0", "0B0"],
        ["1F0", "2F0", "2SEND_F0", "2B0", "1B0", "1SEND_B0"],
    ]


def test_the_messages_of_a_pair_stand_behind_it() -> None:
    table = Schedule.from_rows([["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]])

    assert rows_of(with_messages(table))[1] == [
        "1RECV_F0", "1F0", "1RECV_F1", "(1F1;1B0)OVERLAP_F_B", "1SEND_B0", "1B1", "1SEND_B1",
    ]  # fmt: skip


def test_deferred_receives_of_a_pair_stand_in_its_members_order() -> None:
    table = Schedule.from_rows([["0F1", "0F0", "0B0", "0B1"], ["(1F0;1F1)OVERLAP_F_B", "1B0", "1B1"]])

    assert rows_of(with_messages(table, Receive.ASAP))[1][:3] == ["1RECV_F1", "1RECV_F0", "(1F0;1F1)OVERLAP_F_B"]
    assert rows_of(with_messages(table, Receive.DEFERRED))[1][:3] == [
        "1RECV_F0", "1RECV_F1", "(1F0;1F1)OVERLAP_F_B",
    ]  # fmt: skip


def test_a_span_is_one_message() -> None:
    table = Schedule.from_rows([["0F0+2", "0B0+2"], ["1F0+2", "1B0+2"]])

    assert rows_of(with_messages(table))[0] == ["0F0+2", "0SEND_F0+2", "0RECV_B0+2", "0B0+2"]


def test_a_stage_that_feeds_two_sends_to_both() -> None:
    placement = Placement(
        ranks=3,
        stage_rank=np.array([[0, 1, 2]]),
        microbatch_route=np.array([0]),
        edges=np.array([[0, 1], [0, 2]]),
    )
    table = Schedule.from_rows([["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"]], placement)

    issued = with_messages(table)

    assert rows_of(issued)[0] == ["0F0", "0SEND_F0", "0SEND_F0", "0RECV_B0", "0RECV_B0", "0B0"]
    assert issued.edge[:6].tolist() == [-1, 0, 1, 0, 1, -1]


def test_a_table_keeps_its_own_messages() -> None:
    rows = [["0RECV_B0", "0F0", "0SEND_F0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]]
    table = Schedule.from_rows(rows)

    assert rows_of(with_messages(table, Receive.DEFERRED)) == rows
    assert rows_of(with_sends(table)) == [["0F0", "0SEND_F0", "0B0"], ["1F0", "1B0", "1SEND_B0"]]
    assert as_issued(table).edge.tolist() == [0, -1, 0, -1, 0, -1, -1, 0]


def test_a_table_with_messages_over_stages_in_no_chain_is_refused() -> None:
    placement = Placement(
        ranks=2,
        stage_rank=np.array([[0, 1]]),
        microbatch_route=np.array([0]),
        edges=np.zeros((0, 2), dtype=np.int32),
    )
    table = Schedule.from_rows([["0F0", "0SEND_F0", "0B0"], ["1F0", "1B0"]], placement)

    with pytest.raises(ScheduleError, match="needs stages in a chain"):
        as_issued(table)


def test_rows_that_no_order_of_messages_lets_run_are_refused() -> None:
    with pytest.raises(DeadlockError, match="rank 0: 0B0 -> rank 1: 1B0"):
        with_messages(Schedule.from_rows([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]]))


@given(valid_schedules())
def test_sends_stand_right_behind_their_producers(schedule: Schedule) -> None:
    rows = [[action for action in row if "RECV" not in str(action)] for row in _added(schedule)]

    # The kernel puts a pair's sends behind each member, so pairs are compared by their order alone.
    if (schedule.pair < 0).all():
        assert rows_of(with_sends(schedule)) == [[str(a) for a in row] for row in rows]
    assert len(with_sends(schedule)) == sum(len(a.sub_actions or (a,)) for row in rows for a in row)


@given(valid_schedules(), st.sampled_from(Receive), st.booleans())
def test_messages_stand_where_the_description_of_pytorchs_passes_puts_them(
    schedule: Schedule,
    receive: Receive,
    compiled: bool,  # noqa: FBT001 - drawn
) -> None:
    expected = _added(schedule)
    if receive is Receive.DEFERRED:
        expected = [_deferred(schedule, rank, row) for rank, row in enumerate(expected)]

    with pptrace_kernel.always_compiled() if compiled else interpreted_kernels():
        issued = with_messages(schedule, receive)

    assert rows_of(issued) == [[str(action) for action in row] for row in expected]


def _added(schedule: Schedule) -> list[list[Action]]:
    """Take one action of each rank in turn where it is ready; its messages go to both rows at once."""
    left = [schedule[rank] for rank in range(schedule.ranks)]
    rows: list[list[Action]] = [[] for _ in left]
    done: set[tuple[bool, int, int]] = set()
    while any(left):
        moved = False
        for rank, row in enumerate(left):
            if not row or not all(_ready(schedule, member, done) for member in _members(row[0])):
                continue
            action = row.pop(0)
            moved = True
            rows[rank].append(action)
            for member in _members(action):
                done |= {(member.kind is Kind.F, member.stage, microbatch) for microbatch in _microbatches(member)
                         if member.kind is not Kind.W}  # fmt: skip
                for message, to in _messages(schedule, member):
                    rows[to].append(message)
        assert moved
    return rows


def _ready(schedule: Schedule, action: Action, done: set[tuple[bool, int, int]]) -> bool:
    forward, other = _neighbour(schedule, action)
    return other < 0 or all((forward, other, microbatch) in done for microbatch in _microbatches(action))


def _neighbour(schedule: Schedule, action: Action) -> tuple[bool, int]:
    """Return the direction of an action and the stage that it waits for, -1 for none."""
    if action.kind is Kind.F:
        return True, action.stage - 1
    if action.kind in BACKWARD and action.stage + 1 < schedule.stages:
        return False, action.stage + 1
    return False, -1


def _messages(schedule: Schedule, action: Action) -> Iterator[tuple[Action, int]]:
    if action.kind is not Kind.F and action.kind not in BACKWARD:
        return
    forward = action.kind is Kind.F
    other = action.stage + (1 if forward else -1)
    if not 0 <= other < schedule.stages:
        return
    here, there = (schedule.placement.rank_of(stage, action.microbatch) for stage in (action.stage, other))
    if here == there:
        return
    send, receive = (Kind.SEND_F, Kind.RECV_F) if forward else (Kind.SEND_B, Kind.RECV_B)
    yield Action(kind=send, stage=action.stage, microbatch=action.microbatch, span=action.span), here
    yield Action(kind=receive, stage=other, microbatch=action.microbatch, span=action.span), there


def _deferred(schedule: Schedule, rank: int, row: list[Action]) -> list[Action]:
    placement, out = schedule.placement, list[Action]()
    waiting: list[Action] = []

    def source(receive: Action) -> int:
        other = receive.stage + (-1 if receive.kind is Kind.RECV_F else 1)
        return placement.rank_of(other, receive.microbatch)

    def flush(which: list[Action]) -> None:
        out.extend(which)
        waiting[:] = [receive for receive in waiting if receive not in which]

    for action in row:
        if action.kind in {Kind.RECV_F, Kind.RECV_B}:
            waiting.append(action)
            continue
        if action.kind in {Kind.SEND_F, Kind.SEND_B}:
            other = action.stage + (1 if action.kind is Kind.SEND_F else -1)
            peer = placement.rank_of(other, action.microbatch)
            flush([receive for receive in waiting if rank < peer == source(receive)])
        else:
            for member in _members(action):
                flush([receive for receive in waiting if _feeds(receive, member)])
        out.append(action)
    return out + waiting


def _feeds(receive: Action, member: Action) -> bool:
    wanted = {Kind.F} if receive.kind is Kind.RECV_F else BACKWARD
    meet = set(_microbatches(receive)) & set(_microbatches(member))
    return member.kind in wanted and member.stage == receive.stage and bool(meet)


def _members(action: Action) -> tuple[Action, ...]:
    return action.sub_actions or (action,)


def _microbatches(action: Action) -> range:
    return range(action.microbatch, action.microbatch + action.span)
