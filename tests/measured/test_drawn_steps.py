"""How much its steps vary a recording says itself: drawn anew from it, and wider intervals where it stalls."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

import pptrace
from pptrace.measured.calibration import bootstrap_spans_ns, calibrate, check_calibration
from pptrace.measured.computations import Computations, extract_computations
from pptrace.measured.replay import Resimulation
from pptrace.plugins.registry import Registry
from pptrace.steps.message_calls import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000_000

pytestmark = pytest.mark.needs_plugins


@cache
def registry() -> Registry:
    return Registry.load()


@cache
def quiet() -> Computations:
    """Return a step in which all actions of a kind take the same."""
    costs = ["costs.name=table", "costs.forward=10 ms", "costs.backward=20 ms"]
    run = pptrace.simulate(schedule="1f1b", pp=3, microbatches=6, sets=costs)
    return extract_computations(run.timeline)


def stalled(step: Computations, share: float, seed: int) -> Computations:
    """Return a step in which some actions stall, exponentially by 10 ms, and what follows comes later."""
    random = np.random.default_rng(seed)
    stalls = (random.random(len(step)) < share) * random.exponential(10 * MS, len(step))
    step = replace(step, duration_ns=step.duration_ns + stalls.astype(np.int64))
    again = extract_computations(Resimulation.of_order(step.order, Policy()).run(step.times()))
    return replace(step, start_ns=again.start_ns, end_ns=again.end_ns)


def test_a_step_of_equal_actions_is_drawn_as_it_was() -> None:
    step = quiet()

    assert set(bootstrap_spans_ns([step], Policy()).tolist()) == {step.span_ns}


def test_what_is_drawn_is_the_same_each_time_and_varies_as_other_steps_do() -> None:
    steps = [stalled(quiet(), 0.2, seed) for seed in range(24)]
    spans = np.array([step.span_ns for step in steps])

    drawn = [bootstrap_spans_ns([step], Policy()) for step in steps[:3]]

    assert np.array_equal(drawn[0], bootstrap_spans_ns([steps[0]], Policy()))
    assert np.median([each.std() for each in drawn]) == pytest.approx(spans.std(), rel=0.5)


def interval(make: Callable[[int], Computations]) -> float:
    """Return the interval that one recording states, the median of several."""
    steps = [make(seed) for seed in range(3)]
    found = [check_calibration(calibrate([step]), [step], registry(), measured=False).interval for step in steps]
    return float(np.median([each for each in found if each is not None]))


def test_a_recording_that_stalls_states_a_wider_interval() -> None:
    step = quiet()

    stated = [interval(lambda seed, share=share: stalled(step, share, seed)) for share in (0.0, 0.05, 0.2)]

    assert stated[0] < 0.01
    assert stated[0] < stated[1] < stated[2]


def test_nine_in_ten_other_steps_lie_in_what_one_of_them_states() -> None:
    step = quiet()
    steps = [stalled(step, 0.2, seed) for seed in range(20)]
    within = []
    for one in steps[:5]:
        check = check_calibration(calibrate([one]), [one], registry(), measured=False)
        within += [abs(check.simulated_ns / other.span_ns - 1) <= (check.interval or 0) for other in steps]

    assert np.mean(within) >= 0.9
