"""``pptrace measure-kernels`` prints a script whose table the cost model reads."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner

from pptrace import simulate
from pptrace.plugin import ConfigError
from pptrace_models.measure_kernels import command

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
    options = ["--device", "cpu", "--warm-up", "0", "--repeat", "1", "-o", str(table)]
    call = [sys.executable, str(script(config)), *options]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr

    shares = json.loads(table.read_text())["accelerator"]["op"]["matmul"]["accurate_efficient_factor"]
    assert "b=4, m=32, k=64, n=256" in shares
    sets = ["stack=ideal", "costs.kernels=shapes", f"costs.kernel_table={table}"]
    measured, shaped = (simulate(config, sets=own).metrics.step_ns for own in (sets, sets[:2]))
    assert measured > shaped
    with pytest.raises(ConfigError, match=r"is of another device: its peak is 989\.5 TFLOP/s"):
        simulate(config, device="b200", sets=sets)
    with pytest.raises(ConfigError, match="it has 132 multiprocessors, this one 114"):
        simulate(config, sets=[*sets, "device.multiprocessors=114"])


class Torch:
    """As much of PyTorch as the script asks of a GPU on which each product takes 2 us and one cannot run."""

    bfloat16 = None
    version = SimpleNamespace(hip=None)

    def __init__(self, **properties: Any) -> None:
        self.clock, self.calls = 0.0, list[str]()
        self.properties = {
            "multi_processor_count": 132,
            "name": "H100",
            "bf16": True,
            "major": 9,
        } | properties
        self.cuda = self

    def is_available(self) -> bool:
        return True

    def is_bf16_supported(self) -> bool:
        return bool(self.properties["bf16"])

    def set_device(self, device: Any) -> None:
        self.calls.append(f"set_device {device}")

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, device: int) -> Any:
        assert device == 0
        return SimpleNamespace(**self.properties)

    def randn(self, *shape: int, **kind: Any) -> tuple[int, ...]:
        assert kind["device"] == "cuda:1"
        return shape

    def matmul(self, left: tuple[int, ...], right: tuple[int, ...], **into: Any) -> None:
        assert (left[-1], {*into} <= {"out"}) == (right[-2], True)
        if left[-1] == 13:
            raise RuntimeError("out of memory\nand more lines")
        self.calls.append(" x ".join(map(str, left)))
        self.clock += 2e-3

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=0.0)
        event.record = lambda: setattr(event, "at", self.clock)
        event.elapsed_time = lambda end: end.at - event.at
        return event

    Event = event


def on_gpu(config: Path, torch: Torch, monkeypatch: pytest.MonkeyPatch, **about: int) -> dict[str, Any]:
    """Run the script's main on a device that stands for a GPU; return the table."""
    file = script(config)
    monkeypatch.setitem(sys.modules, "torch", cast("ModuleType", torch))
    output = str(config.with_name("kernels.json"))
    monkeypatch.setattr(sys, "argv", [str(file), "--device", "cuda:1", "--warm-up", "0", "-o", output])
    own = runpy.run_path(str(file), run_name="script")
    own["MEASURED"]["products"] = [[1, 64, 64, 64], [1, 64, 64, 13], [4, 32, 64, 64]]
    own["MEASURED"]["device"] |= about
    own["main"]()
    found: dict[str, Any] = json.loads(config.with_name("kernels.json").read_text())
    return found


def test_on_a_gpu_products_take_turns_and_what_fails_is_recorded(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = Torch()
    table = on_gpu(config, torch, monkeypatch)
    shares = table["accelerator"]["op"]["matmul"]["accurate_efficient_factor"]

    assert shares == pytest.approx({
        "b=1, m=64, k=64, n=64": 2 * 64**3 / 2e-6 / 989.5e12,
        "b=4, m=32, k=64, n=64": 2 * 4 * 32 * 64**2 / 2e-6 / 989.5e12,
    })  # fmt: skip
    assert table["failed"] == {"b=1, m=64, k=13, n=64": "RuntimeError: out of memory"}
    rounds = ["64 x 64", "4 x 32 x 64"] * 20
    assert torch.calls == [
        "set_device cuda:1", "64 x 64", "synchronize", "4 x 32 x 64", "synchronize", *rounds, "synchronize"
    ]  # fmt: skip
    sets = [
        "costs.name=roofline",
        "costs.kernels=shapes",
        f"costs.kernel_table={config.with_name('kernels.json')}",
    ]
    monkeypatch.undo()
    assert simulate(config, sets=sets).metrics.step_ns > 0


def test_products_run_before_they_are_timed(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", cast("ModuleType", torch))
    own = runpy.run_path(str(script(config)), run_name="script")
    runs = {(1, 64, 64, 64): own["run_of"](1, 64, 64, 64, "cuda:1")}
    torch.calls.clear()
    own["measured"](runs, "cuda:1", 1e-3, 2)
    assert torch.calls[:2] == ["64 x 64", "synchronize"]
    assert torch.calls[-3:] == ["64 x 64", "64 x 64", "synchronize"]
    assert len(torch.calls) > 5


def test_a_gpu_that_cannot_measure_or_is_another_one_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="this GPU has no BF16, in which products are measured"):
        on_gpu(config, Torch(bf16=False), monkeypatch)
    monkeypatch.undo()
    with pytest.raises(SystemExit, match="this GPU has no BF16"):
        on_gpu(config, Torch(major=7), monkeypatch)  # PyTorch emulates it
    monkeypatch.undo()
    with pytest.raises(SystemExit, match="nothing could be measured"):
        on_gpu(config, Torch(), monkeypatch, peak_bf16=1)
    assert "of the peak that the configuration gives: this is another device" in capsys.readouterr().err
    assert not config.with_name("kernels.json").exists()
    monkeypatch.undo()
    table = on_gpu(config, Torch(multi_processor_count=108), monkeypatch)
    assert "this GPU has 108 multiprocessors and the configuration's device 132" in capsys.readouterr().err
    assert table["device"]["multiprocessors"] == 108


def test_each_product_of_a_step_is_measured_once(config: Path) -> None:
    text = script(config).read_text()
    compile(text, "measure_kernels.py", "exec")
    about = json.loads(text.split("json.loads('")[1].split("')")[0])

    assert about["device"] == {"multiprocessors": 132, "peak_bf16": 989_500 * 10**9}
    assert [1, 64, 192, 64] in about["products"]  # queries, keys and values of one sequence
    assert [4, 32, 256, 64] in about["products"]  # two of four experts for each of 64 tokens
    assert len({tuple(item) for item in about["products"]}) == len(about["products"])


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
