"""The hooks that a plugin can implement. Each hook takes no arguments and yields offers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugins.offers import (
        ClusterOffer,
        CommandOffer,
        CostModelOffer,
        DeviceOffer,
        ExecutorOffer,
        ExplanationOffer,
        ExporterOffer,
        ImporterOffer,
        MessagePolicyOffer,
        ModelOffer,
        NetworkOffer,
        ScheduleOffer,
    )

PROJECT = "pptrace"
"""Name of the project, and the group of its entry points."""

MARK = f"{PROJECT}_hook"
"""Attribute of functions that implement a hook."""

Hook = TypeVar("Hook", bound=Callable[..., Any])


def hookimpl(function: Hook) -> Hook:
    """Mark a plugin's function as the implementation of the hook of the same name."""
    function.__dict__[MARK] = True
    return function


def pptrace_schedules() -> Iterable[ScheduleOffer]:
    """Yield pipeline schedules, for ``schedule.name``."""
    return ()


def pptrace_networks() -> Iterable[NetworkOffer]:
    """Yield network models, for ``network.name``, ``cluster.node`` and ``cluster.fabric``."""
    return ()


def pptrace_message_policies() -> Iterable[MessagePolicyOffer]:
    """Yield policies that issue the messages between pipeline ranks, for ``p2p.policy``."""
    return ()


def pptrace_cost_models() -> Iterable[CostModelOffer]:
    """Yield models of the time and memory of actions, for ``costs.name``."""
    return ()


def pptrace_models() -> Iterable[ModelOffer]:
    """Yield presets of trained models, for ``model.preset``."""
    return ()


def pptrace_devices() -> Iterable[DeviceOffer]:
    """Yield presets of devices, for ``device.preset``."""
    return ()


def pptrace_clusters() -> Iterable[ClusterOffer]:
    """Yield presets of clusters, for ``cluster.preset``."""
    return ()


def pptrace_executors() -> Iterable[ExecutorOffer]:
    """Yield executors that run the points of a sweep, for ``--executor``."""
    return ()


def pptrace_exporters() -> Iterable[ExporterOffer]:
    """Yield formats in which pptrace writes a step, by file name suffix."""
    return ()


def pptrace_importers() -> Iterable[ImporterOffer]:
    """Yield trace formats that pptrace reads."""
    return ()


def pptrace_explanations() -> Iterable[ExplanationOffer]:
    """Yield analyses of measured runs, for ``pptrace explain``."""
    return ()


def pptrace_commands() -> Iterable[CommandOffer]:
    """Yield commands of ``pptrace``."""
    return ()
