"""Random schedules under each policy run as a slow second implementation says, which knows queues and no graph."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from oracle_orders import SENDS, Item, Step, as_actions, feeds, place_asap, place_deferred, place_sends
from oracle_policies import Oracle
from strategies import networks, valid_schedules, workloads

from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.errors import DeadlockError
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import COMPUTE, SEND_WAITS, Kind, Stream
from pptrace.steps.message_calls import Policy, with_messages
from pptrace.steps.schedule import Schedule
from pptrace.steps.workload import Workload

POLICIES = [
    Policy(name=PolicyName.ASYNC),
    Policy(name=PolicyName.SENDER_BLOCKING),
    *(
        Policy(name=name, receive=receive)
        for name in (PolicyName.BLOCKING, PolicyName.BATCHED)
        for receive in Receive
    ),
    *(
        Policy(name=PolicyName.ORDERED, receive=receive, stream=stream, eager_bytes=eager)
        for receive in Receive
        for stream in StreamPer
        for eager in (0, 3)
    ),
]

EACH = settings(max_examples=settings.default.max_examples // 3)
"""For each of the policies, which have most of what is drawn in common."""


def described(policy: Policy) -> str:
    return f"{policy.name.value}-{policy.placing.value}-{policy.stream.value}-{policy.eager_bytes}"


@st.composite
def steps(draw: st.DrawFn) -> Step:
    schedule = draw(valid_schedules())
    sizes = st.lists(st.integers(0, 5), min_size=schedule.stages - 1, max_size=schedule.stages - 1)
    boundary_bytes = np.array(draw(sizes), dtype=np.int64)
    drawn = draw(workloads(schedule, min_ns=0, max_ns=9))
    none = np.zeros(schedule.stages, dtype=np.int64)
    costs = replace(drawn, boundary_bytes=boundary_bytes, reduce_ns=none, optimizer_ns=none)
    return Step(schedule, costs, draw(networks()))


def placed(step: Step, policy: Policy) -> list[list[Item]]:
    if not policy.has_receives:
        return place_sends(step)
    return place_asap(step) if policy.placing is Receive.ASAP else place_deferred(step)


def shuffled(step: Step, rows: list[list[Item]], random: Random, swaps: int) -> list[list[Item]]:
    """Swap neighbours of which one is a message, but never a message with its producer or consumer."""
    rows = [list(row) for row in rows]
    for _ in range(swaps):
        row = random.choice([row for row in rows if len(row) > 1] or [[]])
        if not row:
            break
        at = random.randrange(len(row) - 1)
        one, two = row[at], row[at + 1]
        message = one[0].kind not in COMPUTE or two[0].kind not in COMPUTE
        produced = any(ends[0] == two[0] for cell in one if (ends := step.message(cell)))
        if message and not produced and not any(feeds(one[0], cell) for cell in two if one[0].kind not in SENDS):
            row[at], row[at + 1] = two, one
    return rows


def assert_agreement(step: Step, policy: Policy, rows: list[list[Item]], schedule: Schedule) -> None:
    oracle = Oracle(step, policy, rows)
    if not oracle.run():
        with pytest.raises(DeadlockError) as refused:
            simulate(schedule, step.workload, step.network, policy)
        assert refused.value.cycle
        return
    timeline = simulate(schedule, step.workload, step.network, policy)
    ranks, streams = timeline.rank_of_row(), timeline.lane_stream[timeline.lane_of_row()]
    ran = {}
    for row in range(len(timeline)):
        kind, stage, microbatch, span = (
            int(getattr(timeline, c)[row]) for c in ("kind", "stage", "microbatch", "span")
        )
        ran[(kind, stage, microbatch, span)] = (int(timeline.start_ns[row]), int(timeline.end_ns[row]))
        assert ranks[row] == step.rank(stage, microbatch)
        assert kind not in COMPUTE | SEND_WAITS or streams[row] == Stream.COMPUTE
    assert ran == oracle.span


@pytest.mark.parametrize("policy", POLICIES, ids=described)
@EACH
@given(step=steps())
def test_a_step_runs_as_its_policy_says(policy: Policy, step: Step) -> None:
    assert_agreement(step, policy, placed(step, policy), step.schedule)


@pytest.mark.parametrize("policy", POLICIES, ids=described)
@EACH
@given(step=steps(), seed=st.integers(0, 2**32 - 1), swaps=st.sampled_from([0, 3, 10, 40]))
def test_a_table_with_messages_of_its_own_keeps_them_in_place(
    policy: Policy, step: Step, seed: int, swaps: int
) -> None:
    random = Random(seed)  # noqa: S311 - tests, not secrets
    start = place_asap(step) if policy.placing is Receive.ASAP else place_deferred(step)
    rows = shuffled(step, start, random, swaps)

    assert_agreement(step, policy, rows, Schedule.from_rows(as_actions(rows), step.schedule.placement))


WAITS = {Kind.SEND_F: Kind.WAIT_SEND_F, Kind.SEND_B: Kind.WAIT_SEND_B}


def awaited(rows: list[list[Item]], random: Random) -> list[list[Item]]:
    """Insert waits for some sends, somewhere after each."""
    rows = [list(row) for row in rows]
    for row in rows:
        for (send,) in [item for item in row if item[0].kind in SENDS and random.random() < 0.7]:
            place = random.randint(row.index((send,)) + 1, len(row))
            row.insert(place, (send._replace(kind=WAITS[send.kind]),))
    return rows


@pytest.mark.parametrize("policy", POLICIES, ids=described)
@EACH
@given(step=steps(), seed=st.integers(0, 2**32 - 1), swaps=st.sampled_from([0, 10]))
def test_a_rank_computes_on_when_the_send_that_it_waits_for_is_over(
    policy: Policy, step: Step, seed: int, swaps: int
) -> None:
    random = Random(seed)  # noqa: S311 - tests, not secrets
    start = place_asap(step) if policy.placing is Receive.ASAP else place_deferred(step)
    rows = awaited(shuffled(step, start, random, swaps), random)

    assert_agreement(step, policy, rows, Schedule.from_rows(as_actions(rows), step.schedule.placement))


@pytest.mark.parametrize(("waits", "start_ns"), [([], 60), (["1WAIT_REDUCE_GRAD"], 90)])
def test_a_rank_computes_on_when_the_reduction_that_it_waits_for_is_over(waits: list[str], start_ns: int) -> None:
    table = Schedule.from_rows([["0F0", "1F0", "1B0", "1REDUCE_GRAD", *waits, "0B0"]])
    costs = Workload.uniform(2, f_ns=20, b_ns=20, reduce_ns=30)

    timeline = simulate(table, costs)

    assert timeline.start_ns[(timeline.kind == Kind.B) & (timeline.stage == 0)].tolist() == [start_ns]


def test_a_deferred_receive_goes_before_a_pair_that_begins_with_a_weight_gradient() -> None:
    schedule = Schedule.from_rows(
        [["0F0", "0F1", "0I0", "(0W0;0I1)OVERLAP_F_B", "0W1"], ["1F0", "1F1", "1B0", "1B1"]]
    )

    issued = with_messages(schedule, Receive.DEFERRED)

    row = issued.kind[: issued.row_ptr[1]].tolist()
    pair = issued.pair[: issued.row_ptr[1]].tolist()
    first = row.index(Kind.W)
    assert row[first - 1] == Kind.RECV_B
    assert pair[first] == pair[first + 1] >= 0


@given(step=steps(), rate_kbps=st.sampled_from([2, 1_000, 700_000]), policy=st.sampled_from(POLICIES))
def test_halving_the_bandwidth_never_shortens_a_step(step: Step, rate_kbps: int, policy: Policy) -> None:
    rates = (rate_kbps, rate_kbps // 2)
    try:
        whole, halved = (
            simulate(step.schedule, step.workload, replace(step.network, rate_kbps=rate), policy) for rate in rates
        )
    except DeadlockError:
        return

    assert halved.end_ns.max() >= whole.end_ns.max()
