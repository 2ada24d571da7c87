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
    text, missing = costs_yaml(run.prepared, Registry.load())
    (tmp_path / "costs.yaml").write_text(text, encoding="utf-8")
    assert not missing
    assert simulate(tmp_path / "costs.yaml").metrics.step_ns == run.metrics.step_ns
    document = costs_document(run.prepared.workload)
    names = {section.title for section in document.sections}
    assert ("segments" in names) == segments
    assert "kernels" in names
    assert len(document.values["kernels"]) > 20


SHARDED = {
    "model": {"preset": "llama3-8b", "layers": 8, "recompute": "full"}, "parallel": {"pp": 4, "dp": 8},
    "batch": {"microbatches": 8, "sequence": 8192}, "schedule": "1f1b", "device": "h100-sxm", "stack": "ideal",
    "costs": {"name": "roofline", "zero": 3, "fragmentation": 0},
    "data_parallel": {"bandwidth": "40 GB/s", "overlap": True, "reshard": "always"},
}  # fmt: skip


COPIES = {
    "parallel": {"pp": 4, "dp": 2}, "batch": {"microbatches": 8}, "data_parallel": {"speeds": {"1": 0.5}},
    "schedule": {"name": "1f1b", "offload": {"ratio": 0.5}},
    "costs": {"name": "table", "forward": "2 ms", "activation": "1 GiB", "offload": "9 ms", "backward": "4 ms"},
}  # fmt: skip
"""Settings that change costs: copies of a part of the activations, and slow ranks."""


@pytest.mark.parametrize("step", [SHARDED, COPIES])
def test_a_step_is_the_same_with_its_costs_as_a_table(tmp_path: Path, step: dict[str, Any]) -> None:
    run = simulate(step)
    text, missing = costs_yaml(run.prepared, Registry.load())
    (tmp_path / "costs.yaml").write_text(text, encoding="utf-8")
    again = simulate(tmp_path / "costs.yaml")

    assert not missing
    assert again.metrics.step_ns == run.metrics.step_ns
    assert (again.metrics.memory.peak_bytes == run.metrics.memory.peak_bytes).all()


def test_costs_have_gathers() -> None:
    workload = prepare(load(document_of(SHARDED), (), {}), Registry.load()).workload

    assert costs_document(workload).values["gather"] == workload.unshard_ns.tolist() != [0] * 4


@pytest.mark.parametrize(
    ("changed", "missing"),
    [
        ({"costs": {**SHARDED["costs"], "fragmentation": 0.05}}, ["memory that the allocator reserves"]),
        ({"parallel": {"pp": 1, "dp": 8}}, ["units of weights"]),
    ],
)
def test_costs_that_no_table_has_are_named(changed: dict[str, Any], missing: list[str]) -> None:
    registry = Registry.load()
    prepared = prepare(load(document_of({**SHARDED, **changed}), (), {}), registry)
    text, named = costs_yaml(prepared, registry)

    assert named == missing
    assert f"# It lacks: {missing[0]}.\n" in text


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
