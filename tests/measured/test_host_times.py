"""The host's time around actions: gaps in which it posts messages, and the part that does not depend on layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml
from msgspec.structs import replace

from pptrace import simulate
from pptrace.measured.calibration import calibrate, check_calibration, fit_stage_counts
from pptrace.measured.calibration_document import calibrated_yaml
from pptrace.measured.computations import Computations, extract_computations
from pptrace.plugins.registry import Registry
from pptrace.steps.kinds import PASSES, Kind

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs_plugins

COSTS: dict[str, Any] = {
    "name": "table", "slices": 8, "forward": "4 ms", "backward": "9 ms", "input_gradient": "5 ms",
    "overhead": {
        "forward": "300 us", "backward": "700 us", "input_gradient": "400 us", "weight_gradient": "200 us",
    },
}  # fmt: skip


def step_of(schedule: str, **changes: Any) -> Computations:
    """Return a simulated step of the model of 8 slices on 4 ranks."""
    size = {"pp": 4, "microbatches": 8, "costs": COSTS} | changes
    return extract_computations(simulate(schedule=schedule, **size).timeline)


def test_two_numbers_of_stages_give_the_part_that_does_not_depend_on_layers() -> None:
    one, two = calibrate([step_of("zb-h1")]), calibrate([step_of("interleaved-zb", vp=2)])

    together = fit_stage_counts(one, [two])

    parts = {host.kind: host.fixed_ns for host in together.hosts}
    assert together.stage_counts == (4, 8)
    assert (parts["F"], parts["I"], parts["W"]) == (300_000, 400_000, 200_000)
    assert [together.proportional_ns(Kind.F, stage) for stage in range(4)] == [8_000_000] * 4
    assert {host.fixed_ns for host in one.hosts} == {0}


@pytest.mark.parametrize(("name", "second"), [("zb-h1", "interleaved-1f1b"), ("1f1b", "interleaved-zb")])
def test_whole_and_split_backwards_give_the_fixed_part_of_the_backward(name: str, second: str) -> None:
    overhead = COSTS["overhead"] | {"backward": "600 us"}
    one = calibrate([step_of(name, costs=COSTS | {"overhead": overhead})])
    two = calibrate([step_of(second, costs=COSTS | {"overhead": overhead}, vp=2)])

    parts = {host.kind: host.fixed_ns for host in fit_stage_counts(one, [two]).hosts}
    assert (parts["F"], parts["B"]) == (300_000, 600_000)
    assert parts["I"] + parts["W"] == pytest.approx(600_000, abs=1)
    # The times of both gradients in the run that has them: 2 slices or 1 of 5 and 4 ms, and their fixed parts.
    slices = 2 if name == "zb-h1" else 1
    assert parts["I"] / parts["W"] == pytest.approx((5 * slices + 0.4) / (4 * slices + 0.2), rel=1e-4)


def test_two_numbers_of_stages_predict_a_third(tmp_path: Path) -> None:
    fits = [calibrate([step_of(name, vp=vp)]) for name, vp in (("1f1b", 1), ("interleaved-1f1b", 2))]
    costs = tmp_path / "costs.yaml"
    costs.write_text(calibrated_yaml(fit_stage_counts(fits[0], [fits[1]]), "run"), encoding="utf-8")

    predicted = simulate(costs, schedule="interleaved-1f1b", sets=["parallel.vp=4"]).metrics.step_ns

    assert predicted == simulate(
        schedule="interleaved-1f1b", costs={**COSTS, "slices": 16, "forward": "2 ms", "backward": "4500 us",
        "input_gradient": "2500 us"}, pp=4, microbatches=8, vp=4,
    ).metrics.step_ns  # fmt: skip


def test_fits_of_one_number_of_stages_or_of_other_microbatches_change_nothing() -> None:
    fit = calibrate([step_of("1f1b")])

    assert fit_stage_counts(fit, [calibrate([step_of("gpipe")])]) == fit
    assert fit_stage_counts(fit, [calibrate([step_of("interleaved-1f1b", vp=2, microbatches=4)])]) == fit


def test_posts_count_as_host_time_where_an_action_waits_afterwards() -> None:
    step = step_of("1f1b")
    waits = step.waited & (np.diff(step.rank, prepend=-1) == 0)
    posted = replace(step, issue_ns=np.where(waits, 50_000, -1))

    assert waits.any()
    assert (step.issue_ns == -1).all()
    assert (posted.issued_ns[waits] == 50_000).all()
    assert posted.host_gaps_ns.size == step.host_gaps_ns.size + waits.sum()


def test_messages_are_shorter_by_the_time_of_the_host_that_passes_meanwhile() -> None:
    step = step_of("1f1b", network={"name": "hockney", "bandwidth": "unlimited", "latency": "2 ms"})
    late = replace(step, gap_ns=np.full(len(step), 500_000), waited=np.zeros(len(step), dtype=np.bool_))
    plain, fit = calibrate([step]), calibrate([late])

    assert (fit.host(Kind.F).gap_ns, fit.host(Kind.B).gap_ns) == (500_000, 500_000)
    assert plain.link is not None
    assert fit.exposed(plain.link.mean_ns) == plain.link.mean_ns - 500_000
    assert fit.exposed(100_000) == 0
    assert "latency: 1500000 ns" in calibrated_yaml(fit, "run")


def test_recorded_host_time_inside_an_action_is_its_fixed_part() -> None:
    step = step_of("1f1b")
    known = replace(step, host_ns=np.where(step.kind == Kind.F, 250_000, 600_000))

    fit = calibrate([known])

    parts = {Kind[host.kind]: host.fixed_ns for host in fit.hosts}
    assert parts == {Kind.F: 250_000, Kind.B: 600_000, Kind.I: 300_000, Kind.W: 300_000}
    assert set(parts) == set(PASSES)
    assert fit.proportional_ns(Kind.F, 0) == step.duration_ns[step.kind == Kind.F][0] - 250_000


def test_a_policy_that_a_run_names_is_fitted_with_its_options() -> None:
    step, registry = step_of("1f1b"), Registry.load()
    named = {"policy": "torch", "options": {"table_runtime": True}}

    found, of_unknown_plugin, of_wrong_option = (
        check_calibration(calibrate([step]), [step], registry, p2p=p2p)
        for p2p in (named, {"policy": "other"}, {"policy": "deepspeed", "options": {"table_runtime": True}})
    )

    assert (found.policy, found.policy_options) == ("torch", named["options"])
    assert yaml.safe_load(calibrated_yaml(calibrate([step]), "run", (), found))["p2p"] == named
    assert of_unknown_plugin == of_wrong_option == check_calibration(calibrate([step]), [step], registry)


def test_an_input_gradient_is_at_most_the_whole_backward_so_that_the_fit_can_be_simulated(tmp_path: Path) -> None:
    step = step_of("dualpipe-v")
    stalled = replace(step, duration_ns=np.where(step.kind == Kind.I, 30_000_000, step.duration_ns))
    fit, costs = calibrate([stalled]), tmp_path / "costs.yaml"
    costs.write_text(calibrated_yaml(fit, "run"), encoding="utf-8")

    assert {Kind.B, Kind.I} <= set(step.kind.tolist())
    assert max(fit.measured_shares) == 1
    assert simulate(costs, schedule="1f1b").metrics.step_ns > 0
