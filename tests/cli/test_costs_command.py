"""``pptrace costs``: what it prints, and a file whose step is that of the configuration it was made from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

STEP = """\
schedule: table.csv
parallel: {dp: 4}
costs:
  name: table
  forward: [10 ms, 11 ms]
  input_gradient: [12 ms, 9 ms]
  weight_gradient: 8 ms
  boundary: 1 MB
  activation: [3 MiB, 2 MiB]
  weights: 5 MiB
  reduction: 4 ms
  update: [1 ms, 2 ms]
  reserved: 1 MiB
network: {name: hockney, bandwidth: 1 GB/s, latency: 100 us}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", encoding="utf-8")
    (tmp_path / "step.yaml").write_text(STEP, encoding="utf-8")
    return tmp_path


def test_costs_are_printed_by_stage_and_stages_alike_share_a_row(pptrace: Any) -> None:
    text = pptrace("costs", "step.yaml").out
    found = json.loads(pptrace("costs", "step.yaml", "--json").out)

    assert "2 stages; times and activations per microbatch" in text
    assert next(line.split()[:3] for line in text.splitlines() if line.startswith("  0  ")) == ["0", "10", "ms"]
    assert "1 MiB of memory reserved on each rank" in text
    assert found["forward"] == [10**7, 11 * 10**6]
    assert found["boundary"] == [10**6]
    even = pptrace("costs", "step.yaml", "--set", "costs={name: table, forward: 1 ms, backward: 2 ms}").out
    assert "  0 to 1 " in even


def test_the_file_gives_the_same_step_and_can_be_edited(pptrace: Any, folder: Path) -> None:
    assert pptrace("costs", "step.yaml", "-o", "costs.yaml").err == "wrote costs.yaml\n"
    before, after = (json.loads(pptrace("simulate", name, "--json").out) for name in ("step.yaml", "costs.yaml"))
    assert before["step_ns"] == after["step_ns"]
    assert before["peak_memory_bytes"] == after["peak_memory_bytes"]

    text = (folder / "costs.yaml").read_text(encoding="utf-8")
    (folder / "costs.yaml").write_text(text.replace("[10000000ns, ", "[15 ms, "), encoding="utf-8")
    assert json.loads(pptrace("simulate", "costs.yaml", "--json").out)["step_ns"] > before["step_ns"]


def test_another_format_is_refused_before_anything_is_read(pptrace: Any) -> None:
    assert pptrace("costs", "missing.yaml", "-o", "costs.csv").complaint == "costs.csv: costs are written as .yaml"
