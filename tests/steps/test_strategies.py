"""What the strategies promise to every other test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from strategies import networks, policies, valid_schedules, workloads

from pptrace.config.choices import PolicyName, Receive
from pptrace.errors import DeadlockError
from pptrace.sim.simulation import simulate
from pptrace.steps.validation import validate
from pptrace.timeline.metrics import measure

if TYPE_CHECKING:
    from pptrace.steps.schedule import Schedule


@given(valid_schedules(copies=True))
def test_every_drawn_schedule_is_valid(schedule: Schedule) -> None:
    validate(schedule)


@given(valid_schedules(messages=True))
def test_every_drawn_schedule_with_messages_is_valid(schedule: Schedule) -> None:
    validate(schedule)


@given(st.data())
def test_every_drawn_step_can_be_simulated_and_measured(data: st.DataObject) -> None:
    schedule = data.draw(valid_schedules(copies=True))
    workload = data.draw(workloads(schedule))

    policy = data.draw(policies())
    try:
        timeline = simulate(schedule, workload, data.draw(networks()), policy)
    except DeadlockError:
        # Only where receives were moved and both sides meet can the order of messages be at odds.
        assert policy.placing is Receive.DEFERRED
        assert policy.name in {PolicyName.ORDERED, PolicyName.BATCHED}
    else:
        metrics = measure(timeline, workload)
        assert int(metrics.busy_ns.sum() + metrics.idle_ns.sum()) == metrics.step_ns * schedule.ranks
