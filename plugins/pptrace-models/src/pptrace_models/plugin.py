"""Offers of this distribution: a cost model, presets and a command; light to import."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import CommandOffer, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from click import Command
    from pydantic import BaseModel

    from pptrace.plugin import CostModelOffer, CostRequest, DeviceOffer, ModelOffer, Workload


@hookimpl
def pptrace_cost_models() -> Iterable[CostModelOffer]:
    """Offer the roofline costs of a transformer."""
    from pptrace.plugin import CostModelOffer

    yield CostModelOffer(
        name="roofline",
        summary="A transformer's time by compute, memory and collectives, and its memory.",
        build=_build,
        options=_options,
        model=_model,
        device=_device,
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
        load=_measure_kernels,
    )


def _measure_kernels() -> Command:
    from pptrace_models.measure_kernels import command

    return command


def _build(request: CostRequest) -> Workload:
    from pptrace_models.roofline import build

    return build(request)


def _options() -> type[BaseModel]:
    from pptrace_models.options import RooflineOptions

    return RooflineOptions


def _model() -> type[BaseModel]:
    from pptrace_models.transformer import Transformer

    return Transformer


def _device() -> type[BaseModel]:
    from pptrace_models.accelerator import Accelerator

    return Accelerator
