"""Comparisons, plans and searches agree on what fits, and none has a step below the bound of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_pipelines import effort

import pptrace
from pptrace.plugin import PptraceError, Registry, ScheduleOffer, hookimpl
from pptrace_optpipe.search import Optimised, optimise
from pptrace_optpipe.setting import setting_of
from pptrace_optpipe.start_schedules import rivals

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

pytestmark = pytest.mark.needs_plugins

MIB = 2**20
SCHEDULES = ["gpipe", "1f1b", "zb-h1"]


class ComparedSchedules:
    """A plugin of the compared schedules alone, so that searches build no others."""

    @hookimpl
    def pptrace_schedules(self) -> list[ScheduleOffer]:
        """Offer the schedules."""
        from pptrace_schedules import plugin

        return [offer for offer in plugin.pptrace_schedules() if offer.name in SCHEDULES]


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry.load(disable=["schedules", "stp"], plugins={"compared": ComparedSchedules()})


def found(step: dict[str, Any], memory: int, registry: Registry, folder: Path) -> Optimised | None:
    """Search with one stage per rank; None if nothing fits."""
    file = folder / "step.yaml"
    file.write_text(yaml.safe_dump(step), encoding="utf-8")
    try:
        setting, _ = setting_of(file, (), registry, shape="looped")
        rivals_of = rivals(file, (), registry, setting, memory)
        return optimise(setting.search_input(memory), effort(0.05), None, rivals=rivals_of)
    except PptraceError:
        return None


@settings(settings.get_profile("few"), max_examples=4)
@given(st.randoms(use_true_random=False), st.sampled_from(["copies", ""]))
def test_what_a_comparison_fits_into_memory_is_no_shorter_than_the_bound(
    registry: Registry, tmp_path_factory: pytest.TempPathFactory, random: Random, has_copies: str
) -> None:
    ranks = random.randint(2, 4)

    def some(low: int, high: int) -> list[str]:
        return [f"{random.randint(low, high)} ms" for _ in range(ranks)]

    copies = {"offload": some(1, 15), "reload": some(1, 15)} if has_copies else {}
    step = {
        "parallel": {"pp": ranks}, "batch": {"microbatches": random.randint(2, 4)},
        "network": {"name": "hockney", "bandwidth": "50 GB/s", "latency": "5 us"},
        "costs": {
            "name": "table", "forward": some(5, 12), "input_gradient": some(5, 12),
            "weight_gradient": some(3, 12), "boundary": f"{random.randint(0, 60)} MiB", "weights": "100 MiB",
            "activation": f"{random.randint(80, 120)} MiB", "weight_activation": f"{random.randint(0, 80)} MiB",
            **copies,
        },
    }  # fmt: skip
    memory = (100 + random.randint(90, 150 * ranks)) * MIB

    best = found(step, memory, registry, tmp_path_factory.mktemp("step"))
    try:
        vary = ["offload", "options"]
        rows = pptrace.compare(step, schedules=SCHEDULES, memory=f"{memory} B", vary=vary, registry=registry).rows
    except PptraceError:
        rows = ()

    tried = [item for row in rows if row.variants for item in row.variants.tried if item.fits]
    assert all(item.peak_bytes <= memory for item in tried)
    assert best is not None or not tried
    if best is not None:
        assert max(best.simulated.peak_bytes) <= memory
        assert best.bound_ns <= best.simulated.step_ns
        # So little effort need not find the best copies.
        without_copies = [item for item in tried if "schedule.offload.ratio" not in item.change.settings]
        assert all(best.simulated.step_ns <= (item.step_ns or 0) for item in without_copies)
        assert all(best.bound_ns <= (item.step_ns or 0) for item in tried)


@settings(settings.get_profile("few"))
@given(st.randoms(use_true_random=False), st.sampled_from(["copies", ""]))
def test_what_a_plan_fits_into_memory_is_no_shorter_than_the_bound(
    registry: Registry, tmp_path_factory: pytest.TempPathFactory, random: Random, has_copies: str
) -> None:
    device = {"preset": "a100-sxm", **({"host_bandwidth": "25 GB/s"} if has_copies else {})}
    model = {"layers": 8, "hidden": 1024, "heads": 8, "ffn": 4096, "vocabulary": random.choice([1000, 64_000])}
    config = {"model": model, "device": device, "stack": "ideal", "batch": {"sequence": 2048},
              "network": {"name": "hockney", "bandwidth": "25 GB/s"}}  # fmt: skip
    memory = random.randint(1800, 4200) * MIB
    vary = {"pp": [4], "tp": [1], "cp": [1], "vp": [1], "micro": [1], "zero": [0], "recompute": ["none"],
            "layers": ["even"], "offload": [0, 1], "schedule": SCHEDULES}  # fmt: skip
    sequences = random.choice([4, 8])
    step = {
        **config, "parallel": {"pp": 4}, "batch": {"sequence": 2048, "micro": 1, "microbatches": sequences},
        "costs": {"name": "roofline", "zero": 0},
    }  # fmt: skip
    best = found(step, memory, registry, tmp_path_factory.mktemp("step"))
    try:
        plan = pptrace.plan(
            config=config, gpus=4, memory=f"{memory} B", vary=vary, framework="any", executor="serial",
            registry=registry, robust=False, exhaustive=True, **{"global": sequences},
        )  # fmt: skip
    except PptraceError:
        plan = None

    steps = [item.row["step_ns"] for item in plan.candidates if item.fits] if plan else []
    if plan is not None and not has_copies:
        copied = [item for item in plan.candidates if "schedule.offload.ratio" in item.settings]
        assert {item.outcome for item in copied} == {"refused"}
    assert best is not None or not steps
    if best is not None:
        assert max(best.simulated.peak_bytes) <= memory
        assert not steps or best.simulated.step_ns <= min(steps)
        assert all(best.bound_ns <= step_ns for step_ns in steps)
