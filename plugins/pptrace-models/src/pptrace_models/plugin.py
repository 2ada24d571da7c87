"""Offers of this distribution: a cost model, presets and a command; light to import."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, deferred, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import CostModelOffer, DeviceOffer, ModelOffer


@hookimpl
def pptrace_cost_models() -> Iterable[CostModelOffer]:
    """Offer the roofline costs of a transformer."""
    from pptrace.plugin import CostModelOffer

    yield CostModelOffer(
        name="roofline",
        summary="A transformer's time by compute, memory and collectives, and its memory.",
        build=deferred("pptrace_models.roofline:build"),
        options=lambda: import_module("pptrace_models.options").RooflineOptions,
        model=lambda: import_module("pptrace_models.transformer").Transformer,
        device=lambda: import_module("pptrace_models.accelerator").Accelerator,
    )


@hookimpl
def pptrace_models() -> Iterable[ModelOffer]:
    """Offer the model presets."""
    from pptrace_models.presets import MODELS

    yield from MODELS


@hookimpl
def pptrace_devices() -> Iterable[DeviceOffer]:
    """Offer the device presets."""
    from pptrace_models.presets import DEVICES

    yield from DEVICES


@hookimpl
def pptrace_commands() -> Iterable[CommandOffer]:
    """Offer the command for a script that measures matrix products."""
    yield CommandOffer(
        name="measure-kernels",
        summary="Print a PyTorch script that measures a configuration's matrix products on your GPU.",
        load=lambda: import_module("pptrace_models.measure_kernels").command,
    )
