"""A request whose sizes each test changes by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pptrace.plugins.requests import CostRequest
from pptrace_models.plugin import pptrace_devices
from pptrace_models.roofline import build

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.steps.workload import Workload

CLASSIC = {
    "layers": 8,
    "hidden": 1024,
    "heads": 16,
    "ffn": 4096,
    "gated": False,
    "vocabulary": 32000,
    "dropout": True,
    "flash_attention": False,
}


@pytest.fixture
def classic() -> dict[str, Any]:
    """Return the values of a multi-head model with an MLP of two matrices of 4h and score matrices."""
    return dict(CLASSIC)


@pytest.fixture
def devices() -> dict[str, Any]:
    """Return the device presets' values by name."""
    return {offer.name: offer.values for offer in pptrace_devices()}


@pytest.fixture
def costs(devices: dict[str, Any]) -> Callable[..., Workload]:
    """Return a function that builds a workload; a keyword of the request, of the model or an option."""

    def make(model: dict[str, Any] | None = None, device: Any = "h100-sxm", **sizes: Any) -> Workload:
        values = {"ranks": 4, "stages": 4, "microbatches": 8, "sequence": 2048, "micro": 1, **sizes}
        values.setdefault("model", {**CLASSIC, **(model or {})})
        values.setdefault("device", devices[device] if isinstance(device, str) else device)
        return build(CostRequest(**values))

    return make
