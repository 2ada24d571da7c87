"""The hooks that a plugin may implement; each yields the offers of one sort."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.hooks import offers

__all__ = ["PROJECT", "hookimpl", "hookspec"]

PROJECT = "pptrace"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def pptrace_schedules() -> Iterable[offers.ScheduleOffer]:  # type: ignore[empty-body]
    """Yield the schedules that this plugin offers."""


@hookspec
def pptrace_networks() -> Iterable[offers.NetworkOffer]:  # type: ignore[empty-body]
    """Yield the network models that this plugin offers."""


@hookspec
def pptrace_cost_models() -> Iterable[offers.CostModelOffer]:  # type: ignore[empty-body]
    """Yield the cost models that this plugin offers."""


@hookspec
def pptrace_models() -> Iterable[offers.ModelOffer]:  # type: ignore[empty-body]
    """Yield the model presets that this plugin offers."""


@hookspec
def pptrace_devices() -> Iterable[offers.DeviceOffer]:  # type: ignore[empty-body]
    """Yield the device presets that this plugin offers."""


@hookspec
def pptrace_clusters() -> Iterable[offers.ClusterOffer]:  # type: ignore[empty-body]
    """Yield the cluster presets that this plugin offers."""


@hookspec
def pptrace_executors() -> Iterable[offers.ExecutorOffer]:  # type: ignore[empty-body]
    """Yield the executors that this plugin runs the points of a sweep with."""


@hookspec
def pptrace_exporters() -> Iterable[offers.ExporterOffer]:  # type: ignore[empty-body]
    """Yield the trace formats that this plugin writes."""


@hookspec
def pptrace_importers() -> Iterable[offers.ImporterOffer]:  # type: ignore[empty-body]
    """Yield the trace formats that this plugin reads."""
