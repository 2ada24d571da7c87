"""What a cost model found is a document, and a configuration that gives the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pptrace import simulate
from pptrace.present.costs import costs_document, costs_yaml

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.needs_plugins


@pytest.mark.parametrize("segments", [False, True])
def test_costs_written_as_a_table_give_the_same_step(tmp_path: Path, *, segments: bool) -> None:
    step = {
        "model": {"preset": "deepseek-v2", "layers": 8, "layout": "Ett|tt|tt|ttL"},
        "parallel": {"pp": 2, "vp": 2, "dp": 4, "ep": 4},
        "batch": {"global": 16, "sequence": 4096},
        "schedule": "interleaved-1f1b",
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
    names = {section.title for section in costs_document(workload).sections}
    assert ("segments" in names) == segments
