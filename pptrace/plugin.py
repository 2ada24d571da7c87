"""The door for plugins: all that a plugin may import from pptrace, beside ``pptrace.testing`` for its tests.

``docs/stability.md`` says what of it stays as it is. A name is imported when it is first asked for, so that this
module costs nothing: numpy comes with tables and networks, pydantic with the types of options.

>>> from pptrace.plugin import ScheduleOffer, hookimpl
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pptrace.config.options import validate_options
    from pptrace.config.places import Place, Places
    from pptrace.config.quantity import Duration, Flops, Rate, Size, format_size
    from pptrace.config.yaml_file import read_yaml
    from pptrace.errors import (
        ConfigError,
        ConstraintError,
        DeadlockError,
        OutputError,
        PluginError,
        PptraceError,
        ScheduleError,
        TableError,
        TraceError,
        nearest,
    )
    from pptrace.export.output import replace_file
    from pptrace.hooks.offers import (
        API,
        ClusterOffer,
        CommandOffer,
        CostModelOffer,
        DeviceOffer,
        ExecutorOffer,
        ExporterOffer,
        ImporterOffer,
        ModelOffer,
        NetworkOffer,
        ScheduleOffer,
    )
    from pptrace.hooks.registry import Registry
    from pptrace.hooks.specs import hookimpl
    from pptrace.model.action import Action, parse_action
    from pptrace.model.cells import CellColumns
    from pptrace.model.columns import Int8s, Int32s, Int64s
    from pptrace.model.kinds import (
        BACKWARD,
        COMMUNICATION,
        COMPUTE,
        COPIES,
        PASSES,
        PER_STAGE,
        RECEIVES,
        SENDS,
        Kind,
        KindSet,
        Pass,
        Stream,
        message_kind,
    )
    from pptrace.model.layout import AXES, Layout
    from pptrace.model.placement import Placement, chain
    from pptrace.model.request import (
        CostRequest,
        ExecutorRequest,
        GroupCollectives,
        NetworkRequest,
        ScheduleRequest,
    )
    from pptrace.model.segments import Segment
    from pptrace.model.workload import Workload
    from pptrace.network.contract import NO_ROUTE, UNLIMITED, Links, Network, Paths
    from pptrace.schedule.infer import infer_placement
    from pptrace.schedule.list_scheduler import Actions, InFlight, Priority, backward_first, list_schedule
    from pptrace.schedule.table import Schedule
    from pptrace.sim.simulate import simulate
    from pptrace.timeline.build import from_slices
    from pptrace.timeline.counter import Counter
    from pptrace.timeline.measurement import (
        BySize,
        Clock,
        ImportRequest,
        Measurement,
        Occupied,
        Source,
        Step,
        Summary,
        Unattributed,
    )
    from pptrace.timeline.messages import messages
    from pptrace.timeline.order import compute_rows
    from pptrace.timeline.timeline import Slice, Timeline
    from pptrace.viewer.varint import read_varint

__all__ = [
    "API",
    "AXES",
    "BACKWARD",
    "COMMUNICATION",
    "COMPUTE",
    "COPIES",
    "NO_ROUTE",
    "PASSES",
    "PER_STAGE",
    "RECEIVES",
    "SENDS",
    "UNLIMITED",
    "Action",
    "Actions",
    "BySize",
    "CellColumns",
    "Clock",
    "ClusterOffer",
    "CommandOffer",
    "ConfigError",
    "ConstraintError",
    "CostModelOffer",
    "CostRequest",
    "Counter",
    "DeadlockError",
    "DeviceOffer",
    "Duration",
    "ExecutorOffer",
    "ExecutorRequest",
    "ExporterOffer",
    "Flops",
    "GroupCollectives",
    "ImportRequest",
    "ImporterOffer",
    "InFlight",
    "Int8s",
    "Int32s",
    "Int64s",
    "Kind",
    "KindSet",
    "Layout",
    "Links",
    "Measurement",
    "ModelOffer",
    "Network",
    "NetworkOffer",
    "NetworkRequest",
    "Occupied",
    "OutputError",
    "Pass",
    "Paths",
    "Place",
    "Placement",
    "Places",
    "PluginError",
    "PptraceError",
    "Priority",
    "Rate",
    "Registry",
    "Schedule",
    "ScheduleError",
    "ScheduleOffer",
    "ScheduleRequest",
    "Segment",
    "Size",
    "Slice",
    "Source",
    "Step",
    "Stream",
    "Summary",
    "TableError",
    "Timeline",
    "TraceError",
    "Unattributed",
    "Workload",
    "backward_first",
    "chain",
    "compute_rows",
    "format_size",
    "from_slices",
    "hookimpl",
    "infer_placement",
    "list_schedule",
    "message_kind",
    "messages",
    "nearest",
    "parse_action",
    "read_varint",
    "read_yaml",
    "replace_file",
    "simulate",
    "validate_options",
]

_HOMES = {
    "config.options": "validate_options",
    "config.places": "Place Places",
    "config.quantity": "Duration Flops Rate Size format_size",
    "config.yaml_file": "read_yaml",
    "errors": (
        "ConfigError ConstraintError DeadlockError OutputError PluginError PptraceError ScheduleError "
        "TableError TraceError nearest"
    ),
    "export.output": "replace_file",
    "hooks.offers": (
        "API ClusterOffer CommandOffer CostModelOffer DeviceOffer ExecutorOffer ExporterOffer "
        "ImporterOffer ModelOffer NetworkOffer ScheduleOffer"
    ),
    "hooks.registry": "Registry",
    "hooks.specs": "hookimpl",
    "model.action": "Action parse_action",
    "model.cells": "CellColumns",
    "model.columns": "Int32s Int64s Int8s",
    "model.kinds": (
        "BACKWARD COMMUNICATION COMPUTE COPIES PASSES PER_STAGE RECEIVES SENDS Kind KindSet Pass Stream "
        "message_kind"
    ),
    "model.layout": "AXES Layout",
    "model.placement": "Placement chain",
    "model.request": "CostRequest ExecutorRequest GroupCollectives NetworkRequest ScheduleRequest",
    "model.segments": "Segment",
    "model.workload": "Workload",
    "network.contract": "NO_ROUTE UNLIMITED Links Network Paths",
    "schedule.infer": "infer_placement",
    "schedule.list_scheduler": "Actions InFlight Priority backward_first list_schedule",
    "schedule.table": "Schedule",
    "sim.simulate": "simulate",
    "timeline.build": "from_slices",
    "timeline.counter": "Counter",
    "timeline.measurement": "BySize Clock ImportRequest Measurement Occupied Source Step Summary Unattributed",
    "timeline.messages": "messages",
    "timeline.order": "compute_rows",
    "timeline.timeline": "Slice Timeline",
    "viewer.varint": "read_varint",
}
"""What each module gives."""


def __getattr__(name: str) -> Any:
    home = next((home for home, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        raise AttributeError(f"module 'pptrace.plugin' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pptrace.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
