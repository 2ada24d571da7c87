"""Power limits, and utilisation that no published step has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pptrace
from pptrace.plugin import ConfigError
from pptrace_models.accelerator import Accelerator
from pptrace_models.transformer import checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

STEP: dict[str, Any] = {
    "model": {"layers": 8, "hidden": 4096, "heads": 32, "ffn": 16384, "vocabulary": 32000},
    "parallel": {"pp": 4},
    "batch": {"microbatches": 8, "sequence": 4096},
    "schedule": {"name": "1f1b"},
}
NOTE = "what published steps on this device make plausible"


def accelerator(devices: dict[str, Any], **values: Any) -> Accelerator:
    return checked(Accelerator, {**devices["h100-sxm"], **values}, "device").at_power_limit()


def test_a_power_limit_lowers_what_products_attain_and_leaves_memory(devices: dict[str, Any]) -> None:
    whole, limited = accelerator(devices), accelerator(devices, power_limit=350)
    factor = 0.5**0.22
    for name in ("attainable_bf16", "attainable_fp8", "attention_attainable", "compute_efficiency"):
        assert getattr(limited, name) == pytest.approx(getattr(whole, name) * factor)
    assert limited.memory_efficiency == whole.memory_efficiency
    assert accelerator(devices, power_limit=700) == whole.model_copy(update={"power_limit": 700})


@pytest.mark.parametrize("kernels", ["groups", "shapes"])
def test_a_step_under_a_power_limit_is_slower_by_at_most_the_clock(
    costs: Callable[..., Workload], devices: dict[str, Any], kernels: str
) -> None:
    whole, limited = (
        costs(device={**devices["h100-sxm"], **limit}, options={"kernels": kernels})
        for limit in ({}, {"power_limit": 500})
    )
    ratio = limited.w_ns[1:3] / whole.w_ns[1:3]
    assert (ratio > 1).all()
    assert (ratio <= (700 / 500) ** 0.22 + 1e-6).all()
    assert limited.peak_flops == whole.peak_flops
    assert (limited.optimizer_ns == whole.optimizer_ns).all()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"power_limit": 800}, "device.power_limit: 800 W is above the device's 700 W: write at most that"),
        ({"power": None, "power_limit": 500}, "device.power_limit: needs the power that it lowers: write power"),
        ({"power_limit": "500 V"}, "device.power_limit: unknown unit 'V'"),
    ],
)
def test_a_wrong_power_limit_is_one_line(devices: dict[str, Any], limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        accelerator(devices, **limits)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_plausible_is_what_is_published_and_three_points(costs: Callable[..., Workload]) -> None:
    device = {
        "peak_bf16": 10**15, "peak_fp8": 2 * 10**15, "memory": 2**36, "memory_bandwidth": 10**12,
        "scale_up_bandwidth": 10**11, "published_bf16": 5 * 10**14, "published_fp8": 9 * 10**14,
    }  # fmt: skip
    sizes: dict[str, Any] = {"device": device, "tp": 2, "dp": 3}
    assert costs(**sizes).plausible_flops == 530 * 10**12 * 4 * 2 * 3
    assert costs({"precision": "fp8"}, **sizes).plausible_flops == 930 * 10**12 * 4 * 2 * 3
    assert costs({"precision": "fp32"}, device={**device, "peak_fp32": 10**14}).plausible_flops == 0
    unknown = {name: value for name, value in device.items() if not name.startswith("published")}
    assert costs(device=unknown).plausible_flops == 0
    assert costs(rank_devices=(device, device, unknown, device)).plausible_flops == 0


def device(published: str) -> dict[str, Any]:
    return {"device": {"preset": "h100-sxm", "published_bf16": published}}


def test_a_step_faster_than_published_ones_has_a_note() -> None:
    fast, slow = (pptrace.simulate({**STEP, **device(rate)}) for rate in ("1 TFLOP/s", "900 TFLOP/s"))
    limit = (10**12 + 0.03 * 989.5e12) / 989.5e12
    assert fast.metrics.plausible_mfu == pytest.approx(limit)
    assert f"note: MFU of this step and the advised step is above {limit:.1%}, {NOTE}" in " ".join(
        str(fast).split()
    )
    assert [note for note in fast.metrics.notes if NOTE in note]
    assert NOTE not in str(slow)
    assert not [note for note in slow.metrics.notes if NOTE in note]


def test_comparisons_and_plans_name_the_steps_that_are_too_fast() -> None:
    values = {name: value for name, value in {**STEP, **device("1 TFLOP/s")}.items() if name != "schedule"}
    schedules = ["1f1b", "gpipe"]
    assert f"MFU of 1f1b and gpipe is above 3.1%, {NOTE}" in str(pptrace.compare(values, schedules=schedules))
    equal = pptrace.compare(values, schedules=schedules, memory="70GiB")
    assert NOTE in str(equal)
    model: Any = {**STEP["model"], "layers": 4}
    plan = pptrace.plan(
        {"model": model, **device("1 TFLOP/s")},
        gpus=2,
        sequence=1024,
        sets=["batch.global=4"],
        vary={"pp": [2], "schedule": ["1f1b"]},
        top=1,
        executor="serial",
        robust=False,
    )
    assert f"MFU of #1 is above 3.1%, {NOTE}" in " ".join(str(plan).split())
