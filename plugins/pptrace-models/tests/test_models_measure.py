"""``pptrace measure-kernels`` prints a script whose table the cost model reads."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pptrace import simulate
from pptrace.plugin import ConfigError
from pptrace_models.measure.command import command

BLACKWELL = Path(__file__).parents[4] / "shared" / "data" / "kernel-efficiency" / "b200_bf16_ceperm.json"
STEP = """\
model: {layers: 4, hidden: 64, heads: 4, ffn: 128, vocabulary: 256, num_experts: 4, top_k: 2, moe_every: 2}
parallel: {pp: 2}
batch: {global: 2, sequence: 64}
schedule: 1f1b
device: h100-sxm
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "step.yaml"
    file.write_text(STEP, encoding="utf-8")
    return file


def script(config: Path, *more: str) -> Path:
    file = config.with_name("measure_kernels.py")
    done = CliRunner().invoke(command, [str(config), *more, "-o", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return file


@pytest.mark.torch
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
def test_what_the_script_measures_the_cost_model_reads(config: Path) -> None:
    table = config.with_name("kernels.json")
    call = [sys.executable, str(script(config)), "--device", "cpu", "--repeat", "1", "-o", str(table)]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr

    shares = json.loads(table.read_text())["accelerator"]["op"]["matmul"]["accurate_efficient_factor"]
    assert "b=4, m=32, k=64, n=256" in shares
    sets = ["costs.name=roofline", "costs.kernels=shapes", f"costs.kernel_table={table}"]
    measured, shaped = (simulate(config, sets=own).metrics.step_ns for own in (sets, sets[:2]))
    assert measured > shaped
    with pytest.raises(ConfigError, match=r"is of another device: its peak is 989\.5 TFLOP/s"):
        simulate(config, device="b200", sets=sets)
    with pytest.raises(ConfigError, match="it has 132 multiprocessors, this one 114"):
        simulate(config, sets=[*sets, "device.multiprocessors=114"])


def test_each_product_of_a_step_is_measured_once(config: Path) -> None:
    text = script(config).read_text()
    compile(text, "measure_kernels.py", "exec")
    about = json.loads(text.split("json.loads('")[1].split("')")[0])

    assert about["device"] == {"multiprocessors": 132, "peak_bf16": 989_500 * 10**9}
    assert [1, 64, 192, 64] in about["products"]  # queries, keys and values of one sequence
    assert [4, 32, 256, 64] in about["products"]  # two of four experts for each of 64 tokens
    assert len({tuple(one) for one in about["products"]}) == len(about["products"])


def test_a_step_without_a_model_is_refused_in_one_line(config: Path) -> None:
    config.write_text("schedule: gpipe\nparallel: {pp: 2}\nbatch: {microbatches: 2}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="model") as caught:
        CliRunner().invoke(command, [str(config)], catch_exceptions=False)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not BLACKWELL.exists(), reason="the measured products are not part of this repository")
def test_measured_products_of_experts_are_read_too() -> None:
    step = {
        "model": {"preset": "deepseek-v2", "layers": 4, "mtp": 0}, "device": "b200", "schedule": "1f1b",
        "parallel": {"pp": 2, "dp": 4, "ep": 4}, "batch": {"global": 16, "sequence": 4096},
    }  # fmt: skip
    tables = ({}, {"kernel_table": str(BLACKWELL)})
    shaped, measured = (
        simulate({**step, "costs": {"name": "roofline", "kernels": "shapes", **table}}) for table in tables
    )
    assert shaped.metrics.step_ns != measured.metrics.step_ns
    assert measured.metrics.step_ns == pytest.approx(shaped.metrics.step_ns, rel=0.25)
