"""Presets are read by the parameter models and agree with what was published."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from pptrace.config.validation import validate_options
from pptrace_models.accelerator import Accelerator
from pptrace_models.plugin import pptrace_cost_models, pptrace_devices, pptrace_models
from pptrace_models.transformer import Transformer, checked

MODELS = {offer.name: offer for offer in pptrace_models()}
DEVICES = {offer.name: offer for offer in pptrace_devices()}


@pytest.mark.parametrize(
    ("name", "billions", "tolerance"),
    [
        ("gpt3-175b", 175.0, 0.005),
        ("llama3-8b", 8.03, 0.001),
        ("llama3-70b", 70.55, 0.001),
        ("llama3-405b", 405.85, 0.001),
        ("qwen2-12.1b", 12.1, 0.01),
        ("qwen2-26.3b", 26.3, 0.01),
        ("tab-128", 26.0, 0.01),
        ("llama2-7b", 6.74, 0.001),
        ("llama2-70b", 68.98, 0.001),
        ("megatron-gpt-22b", 22.0, 0.01),
        ("megatron-gpt-1t", 1008.0, 0.001),
    ],
)
def test_a_preset_has_the_published_number_of_parameters(name: str, billions: float, tolerance: float) -> None:
    model = checked(Transformer, MODELS[name].values, "model")
    assert model.parameters == pytest.approx(billions * 1e9, rel=tolerance)


def test_the_llama_counts_are_exact() -> None:
    # The sums of the tensors' shapes in the published checkpoints.
    counts = {"llama3-8b": 8_030_261_248, "llama3-70b": 70_553_706_496, "llama3-405b": 405_853_388_800}
    for name, count in counts.items():
        assert checked(Transformer, MODELS[name].values, "model").parameters == count


@pytest.mark.parametrize("offer", [*MODELS.values(), *DEVICES.values()], ids=lambda offer: offer.name)
def test_every_preset_names_its_source(offer: Any) -> None:
    assert offer.source
    assert offer.summary.endswith(".")
    assert "\n" not in offer.summary


@pytest.mark.parametrize("offer", DEVICES.values(), ids=lambda offer: offer.name)
def test_a_device_preset_is_read_and_its_peaks_are_dense(offer: Any) -> None:
    device = checked(Accelerator, offer.values, "device")
    assert device.peak("bf16") == device.peak("fp16")
    if device.peak_fp8:
        factor = 4.375 if "Rubin" in offer.summary else 2
        assert device.peak("fp8") == pytest.approx(factor * device.peak("bf16"), rel=1e-4)
    assert device.peak("fp32") < device.peak("bf16")
    # A dense matrix multiplication turns memory-bound somewhere between 30 and 500 FLOPs per byte.
    assert device.peak_fp4 is None or device.peak_fp4 > 1.99 * device.peak("fp8")
    assert 30 < device.peak_bf16 / device.memory_bandwidth < 500


def test_export_variants_differ_from_their_originals_in_links_alone() -> None:
    for original, variant in (("a100-sxm", "a800-sxm"), ("h100-sxm", "h800-sxm")):
        first, second = dict(DEVICES[original].values), dict(DEVICES[variant].values)
        assert first.pop("scale_up_bandwidth") > second.pop("scale_up_bandwidth") == 200 * 10**9
        assert first == second


def test_a_device_is_written_with_microbatches_too() -> None:
    text = {
        "peak_bf16": "989.5 TFLOP/s",
        "memory": "81559 MiB",
        "memory_bandwidth": "3.35 TB/s",
        "scale_up_bandwidth": "450 GB/s",
        "launch_latency": "5 us",
    }
    device = checked(Accelerator, text, "device")
    preset = checked(Accelerator, DEVICES["h100-sxm"].values, "device")
    for name in text:
        assert getattr(device, name) == getattr(preset, name)


@pytest.mark.parametrize("offer", [*MODELS.values(), *DEVICES.values()], ids=lambda offer: offer.name)
def test_the_configuration_reads_a_preset_and_what_it_reads_is_read_again(offer: Any) -> None:
    model = Transformer if offer.name in MODELS else Accelerator
    read = validate_options(model, offer.values, "preset")
    assert checked(model, read.model_dump(), "preset") == read
    assert checked(model, read.model_dump(mode="json"), "preset") == read


def test_every_parameter_has_a_description() -> None:
    (offer,) = pptrace_cost_models()
    for make in (offer.model, offer.device, offer.options):
        for name, field in make().model_fields.items():
            assert field.description, name
        assert make().model_json_schema()["additionalProperties"] is False


def test_importing_the_plugin_loads_neither_numpy_nor_pydantic() -> None:
    code = (
        "import sys, pptrace_models.plugin as p; list(p.pptrace_models()); list(p.pptrace_cost_models()); "
        "print([name for name in ('numpy', 'pydantic', 'llvmlite') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
