"""What a cost model found is a document, and a configuration that gives the same step."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest

from pptrace import simulate
from pptrace.config.resolution import document_of, load
from pptrace.plugins.registry import Registry
from pptrace.run.cost_listing import costs_document, costs_yaml
from pptrace.run.preparation import prepare
from pptrace.steps.kinds import Kind

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs_plugins


@pytest.mark.parametrize("schedule", ["interleaved-1f1b", "combined-1f1b"])
@pytest.mark.parametrize("segments", [False, True])
def test_costs_written_as_a_table_give_the_same_step(tmp_path: Path, schedule: str, *, segments: bool) -> None:
    step = {
        "model": {"preset": "deepseek-v2", "layers": 8, "layout": "Ett|tt|tt|ttL"},
        "parallel": {"pp": 2, "vp": 2, "dp": 4, "ep": 4},
        "batch": {"global": 16, "sequence": 4096},
        "schedule": schedule,
        "device": "gb200",
        "costs": {"name": "roofline", "zero": 1, "segments": segments},
        "network": {"name": "hockney", "bandwidth": "50 GB/s", "latency": "5 us"},
        "data_parallel": {"bandwidth": "40 GB/s", "overlap": True},
        "p2p": "megatron",
    }
    run = simulate(step)
    workload = run.prepared.workload
    (tmp_path / "costs.yaml").write_text(costs_yaml(workload, run.prepared.resolved.to_dict()), encoding="utf-8")
    assert simulate(tmp_path / "costs.yaml").metrics.step_ns == run.metrics.step_ns
    document = costs_document(workload)
    names = {section.title for section in document.sections}
    assert ("segments" in names) == segments
    assert "kernels" in names
    assert len(document.values["kernels"]) > 20


FORMS: dict[str, dict[str, Any]] = {
    "nothing again": {},
    "modules again": {"recompute": "selective", "recompute_modules": ["mla_up_proj", "layernorm", "moe_act"]},
    "all again": {"recompute": "full"},
    "one layer again": {"recompute": "full", "recompute_method": "block"},
    "encoder": {"recompute": "full", "encoder": {
        "layers": 3, "hidden": 1024, "heads": 16, "ffn": 4096, "tokens": 1024, "recompute": "full",
    }},
}  # fmt: skip


@pytest.mark.parametrize("kernels", ["groups", "shapes"])
@pytest.mark.parametrize("form", FORMS)
def test_kernels_take_what_their_actions_do(kernels: str, form: str) -> None:
    experiment = {
        "model": {"preset": "deepseek-v2", "layers": 4, "layout": "Et|tt|t|L", **FORMS[form]},
        "parallel": {"pp": 4, "tp": 2, "dp": 4, "ep": 4, "sequence_parallel": True},
        "batch": {"global": 16, "sequence": 4096}, "schedule": "1f1b", "device": "gb200",
        "costs": {"name": "roofline", "kernels": kernels, "host": "0 ms"},
    }  # fmt: skip
    workload = prepare(load(document_of(experiment), (), {}), Registry.load()).workload
    assert workload.kernels is not None
    listed = workload.kernels()
    for stage in range(4):
        for kind in (Kind.F, Kind.I, Kind.W):
            own = [item for item in listed if (item.stage, item.kind) == (stage, kind)]
            assert sum(item.duration_ns for item in own) == workload.duration_ns(kind)[stage]
            rounding = sum(item.duration_ns for item in own if item.name == "rounding")
            assert abs(rounding) <= 4 * len(own)
            assert not any(item.name == "waits for the host" for item in own)
    flops = sum(item.flops for item in listed if item.part != "computed again")
    # Four microbatches on eight devices a stage.
    assert 4 * 8 * flops == pytest.approx(workload.model_flops, rel=0.02)
    assert workload.scaled(Fraction(1, 2)).kernels is None
