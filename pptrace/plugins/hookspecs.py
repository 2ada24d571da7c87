"""The hooks that a plugin can implement. Each hook takes no arguments and yields offers."""

# Specifications have no body.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugins import offers, providers

PROJECT = "pptrace"
"""Name of the project for pluggy, and the group of its entry points."""

MARK = f"{PROJECT}_impl"
"""Attribute that pluggy gives to functions that implement a hook."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def pptrace_schedules() -> Iterable[offers.ScheduleOffer]:
    """Yield pipeline schedules, for ``schedule.name``."""


@hookspec
def pptrace_networks() -> Iterable[offers.NetworkOffer]:
    """Yield network models, for ``network.name``, ``cluster.node`` and ``cluster.fabric``."""


@hookspec
def pptrace_message_policies() -> Iterable[offers.MessagePolicyOffer]:
    """Yield policies that issue the messages between pipeline ranks, for ``p2p.policy``."""


@hookspec
def pptrace_cost_models() -> Iterable[offers.CostModelOffer]:
    """Yield models of the time and memory of actions, for ``costs.name``."""


@hookspec
def pptrace_models() -> Iterable[offers.ModelOffer]:
    """Yield presets of trained models, for ``model.preset``."""


@hookspec
def pptrace_devices() -> Iterable[offers.DeviceOffer]:
    """Yield presets of devices, for ``device.preset``."""


@hookspec
def pptrace_stacks() -> Iterable[offers.StackOffer]:
    """Yield presets of software stacks, for ``stack``."""


@hookspec
def pptrace_clusters() -> Iterable[offers.ClusterOffer]:
    """Yield presets of clusters, for ``cluster.preset``."""


@hookspec
def pptrace_executors() -> Iterable[offers.ExecutorOffer]:
    """Yield executors that run the points of a sweep, for ``--executor``."""


@hookspec
def pptrace_exporters() -> Iterable[offers.ExporterOffer]:
    """Yield formats in which pptrace writes a step, by file name suffix."""


@hookspec
def pptrace_importers() -> Iterable[offers.ImporterOffer]:
    """Yield trace formats that pptrace reads."""


@hookspec
def pptrace_explanations() -> Iterable[offers.ExplanationOffer]:
    """Yield analyses of measured runs, for ``pptrace explain``."""


@hookspec
def pptrace_commands() -> Iterable[providers.CommandOffer]:
    """Yield commands of ``pptrace``."""
