"""Presets are read by the parameter models and agree with what was published."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from published_parameters import PUBLISHED, Published, count_parameters

from pptrace.config.validation import validate_options
from pptrace_models.accelerator import Accelerator
from pptrace_models.plugin import pptrace_cost_models, pptrace_devices, pptrace_models
from pptrace_models.transformer import Transformer, checked

MODELS = {offer.name: offer for offer in pptrace_models()}
DEVICES = {offer.name: offer for offer in pptrace_devices()}


def test_every_preset_has_a_published_number_of_parameters() -> None:
    assert set(PUBLISHED) == set(MODELS)


@pytest.mark.parametrize(("name", "published"), PUBLISHED.items(), ids=list(PUBLISHED))
def test_a_preset_has_the_published_number_of_parameters(name: str, published: Published) -> None:
    model = checked(Transformer, MODELS[name].values, "model")
    difference = abs(count_parameters(model) - (published.count - published.part_count))
    # Names and papers round or truncate.
    assert difference <= max(0.005 * published.count, published.unit)


@pytest.mark.parametrize(("name", "copies"), [
    ("deepseek-v3", True), ("deepseek-v3.2", True), ("glm-4.5", True), ("glm-4.5-air", True), ("glm-5", False),
])  # fmt: skip
def test_the_part_of_multi_token_prediction_is_that_of_its_shapes(name: str, *, copies: bool) -> None:
    values = MODELS[name].values
    model, longer = (
        checked(Transformer, {**values, "layers": values["layers"] + extra}, "model") for extra in (0, 1)
    )
    vocabulary = 2 * model.hidden * model.vocabulary if copies else 0

    layer = count_parameters(longer) - count_parameters(model)
    assert PUBLISHED[name].part_count == layer + 2 * model.hidden**2 + vocabulary


def test_the_llama_counts_are_exact() -> None:
    for name in ("llama2-7b", "llama2-70b", "llama3-8b", "llama3-70b", "llama3-405b"):
        assert count_parameters(checked(Transformer, MODELS[name].values, "model")) == PUBLISHED[name].count


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
