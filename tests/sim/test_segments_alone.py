"""Taken apart into rows of segments, an action outside pairs is still one block to all else on its rank."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from segment_costs import action_spans, segments_of
from strategies import networks, policies, valid_schedules, workloads

from pptrace.errors import DeadlockError
from pptrace.sim import overlapped_pairs
from pptrace.sim.simulation import simulate
from pptrace.steps.kinds import Kind


@settings(max_examples=80)
@given(st.data())
def test_in_rows_of_segments_a_step_is_that_of_solid_actions(data: st.DataObject) -> None:
    schedule = data.draw(valid_schedules(max_microbatches=4, pairs=False, copies=True))
    costs, network, policy = data.draw(workloads(schedule)), data.draw(networks()), data.draw(policies())
    kinds = data.draw(st.sets(st.sampled_from([Kind.F, Kind.B, Kind.I, Kind.W]), min_size=1))
    random = Random(data.draw(st.integers(0, 2**32 - 1)))  # noqa: S311 - nothing secret
    segments = {kind: [segments_of(random, kind) for _ in range(schedule.stages)] for kind in sorted(kinds)}
    costs = costs.segmented(segments, overlapped=data.draw(st.booleans()))
    ends = {"overlap_reduction": data.draw(st.booleans()), "stage_replicas": data.draw(st.booleans())}

    def spans(*, apart: bool) -> object:
        given_costs = costs if apart else replace(costs, segments={})
        with patch.object(overlapped_pairs, "_overlaps", return_value=True):
            try:
                return action_spans(simulate(schedule, given_costs, network, policy, **ends))
            except DeadlockError:
                return None

    assert spans(apart=True) == spans(apart=False)
