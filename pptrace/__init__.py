"""Simulate pipeline-parallel training steps and export them as traces.

>>> import pptrace
>>> run = pptrace.simulate(schedule="table.csv")  # doctest: +SKIP
>>> run.save("step.pftrace")  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pptrace.version import __version__

if TYPE_CHECKING:
    from pptrace.api import compare, crossover, diff, simulate, sweep
    from pptrace.errors import PptraceError
    from pptrace.experiment.run import Run
    from pptrace.hooks.registry import Registry
    from pptrace.model.action import Action
    from pptrace.model.kinds import Kind
    from pptrace.model.placement import Placement
    from pptrace.model.request import ScheduleRequest
    from pptrace.model.workload import Workload
    from pptrace.schedule.table import Schedule
    from pptrace.sim.policy import Policy
    from pptrace.timeline.metrics import Metrics
    from pptrace.timeline.timeline import Timeline

__all__ = [
    "Action",
    "Kind",
    "Metrics",
    "Placement",
    "Policy",
    "PptraceError",
    "Registry",
    "Run",
    "Schedule",
    "ScheduleRequest",
    "Timeline",
    "Workload",
    "__version__",
    "compare",
    "crossover",
    "diff",
    "simulate",
    "sweep",
]

_HOMES = {
    "Action": "model.action",
    "Kind": "model.kinds",
    "Metrics": "timeline.metrics",
    "Placement": "model.placement",
    "Policy": "sim.policy",
    "PptraceError": "errors",
    "Registry": "hooks.registry",
    "Run": "experiment.run",
    "Schedule": "schedule.table",
    "ScheduleRequest": "model.request",
    "Timeline": "timeline.timeline",
    "Workload": "model.workload",
    "compare": "api",
    "crossover": "api",
    "diff": "api",
    "simulate": "api",
    "sweep": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pptrace' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pptrace.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
