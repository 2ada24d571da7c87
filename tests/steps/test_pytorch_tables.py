"""Messages and waits are where PyTorch's runtime puts them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle_pytorch_tables import limited, lowered, with_reductions, with_waits, without_weights
from strategies import valid_schedules

from pptrace.config.choices import Receive
from pptrace.errors import ScheduleError
from pptrace.steps.kinds import Kind
from pptrace.steps.pytorch_tables import (
    Lowering,
    compute_only,
    insert_messages,
    lower,
    unsupported_parts,
    unsupported_stages,
)
from pptrace.steps.schedule import Schedule
from pptrace.steps.text_forms import Dialect, in_dialect, parse_table, table_text
from pptrace.steps.validation import validate
from pptrace_kernel import always_compiled

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn


@st.composite
def tables(draw: DrawFn) -> Schedule:
    """Draw a table that the runtime takes: each stage on one rank, an action of one microbatch."""
    schedule = draw(valid_schedules(spans=False, pairs=draw(st.booleans()), max_chunks=5))
    ranks = schedule.placement.stage_rank
    assume((ranks == ranks[0]).all())
    return schedule


@given(schedule=valid_schedules(spans=False, pairs=False, max_chunks=5))
def test_a_table_of_computations_is_supported_unless_stages_or_losses_are_not(schedule: Schedule) -> None:
    ranks, last_stage = schedule.placement.stage_rank, schedule.stages - 1
    losses = [action.microbatch for row in range(schedule.ranks) for action in schedule[row]
              if action.kind == Kind.F and action.stage == last_stage]  # fmt: skip
    is_supported = bool((ranks == ranks[0]).all()) and losses == sorted(losses)

    assert (not list(unsupported_parts(schedule))) == is_supported
    assert (not list(unsupported_stages(schedule))) == bool((ranks == ranks[0]).all())


@pytest.mark.parametrize(
    ("rows", "parts"),
    [
        ([["1F0", "0F1", "1B0", "0B1"], ["0F0", "1F1", "1B1", "0B0"]], ["stage 0 on several ranks"]),
        ([["0F0+2", "0B0+2"]], ["actions of several microbatches, such as 0F0+2"]),
        ([["0F0", "0OFFLOAD0", "0RELOAD0", "0B0"]], ["actions such as 0OFFLOAD0"]),
        ([["0F0", "0F1@0F0", "0B0", "0B1"]], ["actions that wait for others (@)"]),
        ([["0F0", "0F1", "0B0"]], ["a missing or repeated backward of microbatch 1 on stage 0"]),
        ([["0F0", "0F0", "0I0", "0W0"]], ["a missing or repeated forward of microbatch 0 on stage 0"]),
        ([["0F0", "0I0"]], ["a missing or repeated backward of microbatch 0 on stage 0"]),
        (
            [["0F0", "0F1", "0B1", "0B0"], ["1F1", "1F0", "1B1", "1B0"]],
            ["forward 1 of the last stage before forward 0"],
        ),
        ([["0UNSHARD", "0F0", "0SEND_F0", "0RECV_B0", "0B0", "0WAIT_SEND_F0"],
          ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1WAIT_SEND_B0"]], []),
    ],
)  # fmt: skip
def test_the_parts_that_are_not_supported_have_a_reason(rows: list[list[str]], parts: list[str]) -> None:
    unsupported = list(unsupported_parts(Schedule.from_rows(rows)))

    assert [part for part, _ in unsupported] == parts
    assert all(reason and "\n" not in reason for _, reason in unsupported)


def test_messages_waits_and_gathers_are_dropped_from_a_table_of_computations() -> None:
    table = Schedule.from_rows([["0UNSHARD", "0F0", "0SEND_F0", "0RECV_B0", "0B0", "0REDUCE_GRAD"],
                                ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1WAIT_SEND_B0"]])  # fmt: skip

    assert compute_only(table).rows() == [["0F0", "0B0"], ["1F0", "1B0"]]


@st.composite
def options(draw: DrawFn, schedule: Schedule) -> dict[str, Any]:
    """Draw options of 2.15 that change the order of actions."""
    lookahead = st.one_of(st.just(()), st.tuples(*[st.integers(1, 3)] * schedule.ranks))
    return {"lookahead": draw(lookahead), "deferred": draw(st.booleans())}


@given(schedule=tables(), data=st.data())
def test_a_table_is_lowered_as_the_runtime_lowers_it(schedule: Schedule, data: st.DataObject) -> None:
    chosen = data.draw(options(schedule)) if data.draw(st.booleans()) else None
    if chosen is None:
        lowering, expected = Lowering(), lowered(schedule.rows(), schedule.microbatches)
    else:
        lowering = Lowering(waits=True, lookahead=chosen["lookahead"], defers_reduction_waits=chosen["deferred"])
        expected = with_waits(lowered(schedule.rows(), schedule.microbatches, waits=True, **chosen))

    assert lower(schedule, lowering).rows() == expected
    assert insert_messages(schedule, lowering).rows() == without_weights(expected)


@given(schedule=tables(), waits=st.booleans())
def test_reductions_of_a_table_take_the_rounds_of_those_that_the_runtime_inserts(
    schedule: Schedule,
    waits: bool,  # noqa: FBT001 - drawn
) -> None:
    reducing = Schedule.from_rows(with_reductions(schedule.rows()), schedule.placement)

    inserted = insert_messages(reducing, Lowering(waits=waits))

    assert in_dialect(inserted, Dialect.COMPUTE) == schedule
    assert without_weights(inserted.rows()) == insert_messages(schedule, Lowering(waits=waits)).rows()


@given(schedule=tables(), receive=st.sampled_from(Receive))
def test_each_send_has_one_wait_where_the_runtime_has_it(schedule: Schedule, receive: Receive) -> None:
    table = in_dialect(schedule, Dialect.WAITS, receive)

    messages = in_dialect(table, Dialect.COMMS)
    assert table.rows() == with_waits(messages.rows())
    assert in_dialect(table, Dialect.WAITS) == table
    assert in_dialect(table, Dialect.COMPUTE) == schedule
    read = parse_table(table_text(table)).schedule
    assert read == table
    validate(read)


@given(schedule=tables(), receive=st.sampled_from(Receive), most=st.integers(1, 5), compiled=st.booleans())
def test_waits_are_moved_as_the_runtime_moves_them(
    schedule: Schedule,
    receive: Receive,
    most: int,
    compiled: bool,  # noqa: FBT001 - drawn
) -> None:
    wanted = limited(in_dialect(schedule, Dialect.WAITS, receive).rows(), most)
    lowering = Lowering(receive=receive.value, waits=True, max_pending_sends=most)

    def moved() -> Schedule:
        if not compiled:
            return insert_messages(schedule, lowering)
        with always_compiled():
            return insert_messages(schedule, lowering)

    if wanted is None:
        with pytest.raises(ScheduleError, match=f"exceeds the limit of {most} pending sends"):
            moved()
    else:
        assert moved().rows() == wanted


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=20)
@given(schedule=tables(), most=st.integers(1, 4), data=st.data())
def test_the_second_implementation_lowers_as_pytorch_does(
    schedule: Schedule, most: int, data: st.DataObject
) -> None:
    pytorch = pytest.importorskip("torch.distributed.pipelining.schedules")
    has_waits = hasattr(pytorch, "_add_wait_send")  # from 2.15 on
    chosen = data.draw(options(schedule)) if has_waits else {}
    rank_of = schedule.placement.stage_rank[0].tolist().__getitem__
    actions = {}
    for rank, row in enumerate(schedule.rows()):
        gathers = {"unshard_lookahead": chosen["lookahead"][rank]} if chosen.get("lookahead") else {}
        reductions = {"defer_reduce_grad_wait": chosen["deferred"]} if chosen else {}
        gathered = pytorch._add_unshard_reshard(list(map(pytorch._Action.from_str, row)), **gathers)
        actions[rank] = pytorch._add_reduce_grad(gathered, schedule.microbatches, **reductions)

    def text(rows: dict[int, list[object]]) -> list[list[str]]:
        return [list(map(str, rows[rank])) for rank in sorted(rows)]

    rows = pytorch._add_send_recv(actions, rank_of, schedule.stages)

    expected = lowered(schedule.rows(), schedule.microbatches, waits=has_waits, **chosen)
    if not has_waits:  # its releases of one position have no order
        assert without_weights(text(rows)) == without_weights(expected)
        assert list(map(Counter, text(rows))) == list(map(Counter, expected))
        return
    assert text(rows) == expected
    waited = pytorch._add_wait_send(rows)
    assert text(waited) == with_waits(expected)
    try:
        moved = without_weights(text(pytorch._add_wait_send_budget(waited, rank_of, most)))
    except ValueError:
        moved = None
    assert moved == limited(with_waits(without_weights(expected)), most)


def test_waits_of_a_table_keep_their_places() -> None:
    table = Schedule.from_rows(
        [
            ["0F0", "0SEND_F0", "0WAIT_SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
            ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1", "1REDUCE_GRAD"],
        ]
    )

    assert insert_messages(table, Lowering(waits=True)).rows() == [
        ["0F0", "0SEND_F0", "0WAIT_SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1",
         "0WAIT_SEND_F1"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1", "1REDUCE_GRAD",
         "1WAIT_REDUCE_GRAD", "1WAIT_SEND_B0", "1WAIT_SEND_B1"],
    ]  # fmt: skip


def test_the_wait_for_several_microbatches_is_after_their_last_backward() -> None:
    table = Schedule.from_rows([["0F0+2", "0B1", "0B0"], ["1F0+2", "1B1", "1B0"]])

    assert in_dialect(table, Dialect.WAITS).rows()[0][-2:] == ["0B0", "0WAIT_SEND_F0+2"]


def test_weights_are_updated_after_all_waits() -> None:
    table = Schedule.from_rows([["0F0", "0B0", "0OPTIMIZER"], ["1F0", "1B0", "1OPTIMIZER"]])

    assert in_dialect(table, Dialect.WAITS).rows()[1][-3:] == ["1SEND_B0", "1WAIT_SEND_B0", "1OPTIMIZER"]


NO_REDUCTION = (
    "rank 0: 0WAIT_REDUCE_GRAD has no pending 0REDUCE_GRAD before it: move it after the reduction, or remove it"
)
SENT = "0F0,0SEND_F0,{}0RECV_B0,0B0,{}\n1RECV_F0,1F0,1B0,1SEND_B0,{}\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "0F0,0WAIT_SEND_F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
            "rank 0: 0WAIT_SEND_F0 comes before 0SEND_F0: swap them",
        ),
        (
            SENT.format("0WAIT_SEND_F0,", "0WAIT_SEND_F0", ""),
            "rank 0, action 5 (0WAIT_SEND_F0): repeats action 2 (0WAIT_SEND_F0): remove one",
        ),
        (
            "0F0,0B0,0WAIT_SEND_F0\n1F0,1B0\n",
            "rank 0: 0WAIT_SEND_F0 without 0SEND_F0: add the send, or remove the wait",
        ),
        (
            SENT.format("", "", "1WAIT_SEND_F0"),
            "rank 1: 1WAIT_SEND_F0 without 1SEND_F0: add the send, or remove the wait",
        ),
        (
            "0F0,0B0,0WAIT_REDUCE_GRAD,0REDUCE_GRAD\n",
            NO_REDUCTION,
        ),
        (
            "0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD,0WAIT_REDUCE_GRAD\n",
            NO_REDUCTION,
        ),
    ],
)
def test_a_wait_without_what_it_waits_for_is_refused(text: str, error: str) -> None:
    with pytest.raises(ScheduleError) as refused:
        validate(parse_table(text).schedule)

    assert refused.value.message == error
