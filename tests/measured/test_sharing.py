"""Ranks that share processors are seen in a recording, and ranks that do not are not taken for such."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import pptrace
from pptrace.measured.calibration import calibrate, check_calibration, concurrent_ranks, estimate_sharing
from pptrace.measured.computations import Computations, extract_computations
from pptrace.measured.replay import Resimulation
from pptrace.plugins.registry import Registry
from pptrace.steps.message_calls import Policy

pytestmark = pytest.mark.needs_plugins

RANKS = 4


def step(schedule: str = "1f1b") -> Computations:
    """Return a step in which all actions of a kind take the same, some microseconds."""
    costs = ["costs.name=table", "costs.forward=10 us", "costs.backward=20 us"]
    return extract_computations(pptrace.simulate(schedule=schedule, pp=RANKS, microbatches=8, sets=costs).timeline)


def noisy(computations: Computations, factor: np.ndarray, seed: int) -> Computations:
    """Return a step whose actions take so many times as long, by a tenth more or less."""
    random = np.random.default_rng(seed)
    factor = factor * random.uniform(0.9, 1.1, len(computations))
    longer = replace(computations, duration_ns=(computations.duration_ns * factor).astype(np.int64))
    return extract_computations(Resimulation.of_order(computations.order, Policy()).run(longer.times()))


def on_processors(computations: Computations, processors: int, seed: int) -> Computations:
    """Return a step whose ranks share so many processors in equal parts."""
    shared = computations
    for _ in range(8):  # what each takes depends on who runs beside it, which depends on what each takes
        shared = noisy(computations, np.maximum(concurrent_ranks(shared) / processors, 1.0), seed)
    return shared


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_ranks_meanwhile_are_those_that_compute_at_each_nanosecond(schedule: str) -> None:
    computations = noisy(step(schedule), np.ones(2 * RANKS * 8), 0)
    busy = np.zeros((RANKS, computations.end_ns.max()), dtype=np.bool_)
    for rank, start, end in zip(computations.rank, computations.start_ns, computations.end_ns, strict=True):
        busy[rank, start:end] = True
    count = busy.sum(axis=0)

    counted = [
        count[start:end].mean() for start, end in zip(computations.start_ns, computations.end_ns, strict=True)
    ]

    assert concurrent_ranks(computations) == pytest.approx(np.array(counted))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_four_ranks_on_two_processors_are_seen(schedule: str) -> None:
    steps = [on_processors(step(schedule), 2, seed) for seed in range(3)]

    result = estimate_sharing(steps)

    assert result is not None
    assert result.ratio == pytest.approx(2, abs=0.35)
    assert 1 <= result.few < result.many <= RANKS
    assert 0 < result.at_most < 0.5


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved-1f1b"])
@pytest.mark.parametrize("seed", range(3))
def test_ranks_with_processors_of_their_own_share_nothing(schedule: str, seed: int) -> None:
    chunks = 2 if schedule == "interleaved-1f1b" else 1
    costs = ["costs.name=table", "costs.forward=10 us", "costs.backward=20 us"]
    run = pptrace.simulate(schedule=schedule, pp=RANKS, vp=chunks, microbatches=8, sets=costs)
    computations = extract_computations(run.timeline)

    assert estimate_sharing([computations]) is None
    assert estimate_sharing([noisy(computations, np.ones(len(computations)), seed)]) is None


def test_a_fit_of_ranks_that_share_says_so_and_states_more() -> None:
    steps = [on_processors(step(), 2, seed) for seed in range(2)]
    fit = calibrate(steps)

    seen, unseen = (
        check_calibration(fit, steps, Registry.load(), measured=measured) for measured in (True, False)
    )

    assert seen.sharing is not None
    assert any("ranks compute as while" in warning for warning in seen.warnings)
    assert seen.interval == pytest.approx((unseen.interval or 0) + seen.sharing.at_most)
