"""The plugin interface: what a plugin implements (hooks) and what it yields (offers)."""

from pptrace.hooks.offers import (
    API,
    ClusterOffer,
    CostModelOffer,
    DeviceOffer,
    ExecutorOffer,
    ExporterOffer,
    ImporterOffer,
    ModelOffer,
    NetworkOffer,
    ScheduleOffer,
)
from pptrace.hooks.specs import hookimpl

__all__ = [
    "API",
    "ClusterOffer",
    "CostModelOffer",
    "DeviceOffer",
    "ExecutorOffer",
    "ExporterOffer",
    "ImporterOffer",
    "ModelOffer",
    "NetworkOffer",
    "ScheduleOffer",
    "hookimpl",
]
