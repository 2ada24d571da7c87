"""PyTorch's execution traces with the times of Kineto, one file per rank.

Sources: PyTorch's ``execution_trace_observer.cpp`` for nodes of the host and their attributes; mlcommons/chakra's
``src/trace_link`` for times and for nodes of the GPU. The linked file is JSON. Nodes of the host that Kineto
recorded get ``ts`` and ``inclusive_dur`` in microseconds. Each GPU operation is a node with ``cat`` and ``stream``
whose ``ctrl_deps`` is the node that launched it. Protobuf of ``src/converter`` 1.0.0 has no starts and is refused.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from pptrace.plugin import TraceError, UnpackedFile, check_events
from pptrace.traces.assembly import named_damage
from pptrace_profilers.events import Arguments, EventBuilder, microseconds, parse_integer
from pptrace_profilers.measurement import measure_files
from pptrace_profilers.pytorch_process import recording_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.plugin import ImportRequest, Measurement
    from pptrace_profilers.naming_rules import Rules
    from pptrace_profilers.recording import Recording

_USER_SCOPE = 7
"""Value of ``scope`` of annotations (``RecordScope::USER_SCOPE`` in PyTorch's record_function.h)."""
_ON_HOST = ("cpu_op", "user_annotation")
"""Kineto's categories of nodes of the host."""
_MESSAGE = re.compile(r"(?:c10d::|\w+:)(?:send|recv)")
"""Names of operations and annotations that send or receive."""
_GROUP_NODE = "process_group:init"
_LINK = "link it with the Kineto trace by chakra_trace_link, and give its output"
_CONVERTED = "give the linked JSON file from which chakra_converter made it"


def measure_linked(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the files of one run, one per process; actions are annotations, as in Kineto's files.

    Raises:
        TraceError: no file can be read, none has times, or the recordings do not form a pipeline.
        ConfigError: a rule, layout or replica is invalid.
    """
    return measure_files(_read, paths, request, "PyTorch's execution traces")


def _read(path: Path, rules: Rules) -> list[Recording]:
    raw = UnpackedFile.read_whole(path)
    if not raw.lstrip().startswith(b"{"):
        raise TraceError(f"has no times: {_CONVERTED}", file=path)
    with named_damage(path):
        nodes = json.loads(raw)["nodes"]
        check_events(len(nodes), path)
        spans = {node["id"]: span_ns for node in nodes if (span_ns := _span_ns(node)) is not None}
        if not spans:
            raise TraceError(f"has no times: {_LINK}", file=path)
        builder = EventBuilder()
        for node in nodes:
            if node["id"] in spans:
                _add(builder, node, spans)
        groups = [node["inputs"]["values"][0] for node in nodes if _GROUP_NODE in node["name"]]
        return [recording_of(builder.events(path, _metadata(groups)), rules)]


def _span_ns(node: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return start, and end of all called nodes; None where either time is missing."""
    start_ns, duration_ns = microseconds(node.get("ts")), microseconds(node.get("inclusive_dur"))
    return None if start_ns is None or duration_ns is None else (start_ns, start_ns + duration_ns)


def _add(builder: EventBuilder, node: Mapping[str, Any], spans: Mapping[int, tuple[int, int]]) -> None:
    """Add a node with times, and for a GPU operation its launch at the start of the node that launched it."""
    number, name = node["id"], node["name"]
    attributes = {item["name"]: item["value"] for item in node.get("attrs", ())}
    attributes |= {key: node[key] for key in ("stream", "pg_name") if key in node}
    category = node.get("cat") or _ON_HOST[parse_integer(attributes.get("scope"), 0) == _USER_SCOPE]
    thread, stream, correlation = (0, parse_integer(attributes.get("tid"), 0)), -1, -1
    if category not in _ON_HOST:
        correlation, stream = number, parse_integer(attributes.get("stream"), 0)
        launcher = parse_integer(node.get("ctrl_deps"), -1)
        if launcher in spans:
            launch_ns = spans[launcher][0]
            builder.add("launch", "cuda_runtime", thread, launch_ns, launch_ns, correlation=correlation)
        thread = (1, stream)
    inputs = node["inputs"] if _MESSAGE.match(name) else None
    builder.add(
        name, category, thread, *spans[number],
        correlation=correlation, stream=stream, arguments=_arguments(attributes, inputs),
    )  # fmt: skip


def _arguments(attributes: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> Arguments | None:
    """Return the arguments of a message or collective as Kineto writes them; None for other nodes."""
    if inputs is None and not attributes.get("collective_name"):
        return None
    values, shapes, types = (inputs[key] for key in ("values", "shapes", "types")) if inputs else ((), (), ())
    return Arguments(
        collective=attributes.get("collective_name"), dtype=attributes.get("dtype"),
        in_elements=attributes.get("in_msg_nelems"), out_elements=attributes.get("out_msg_nelems"),
        group=attributes.get("pg_name"), group_description=attributes.get("pg_desc"),
        inputs=_raw([value if isinstance(value, int) else "" for value in values]), input_dims=_raw(shapes),
        input_type=_raw([kind.removeprefix("Tensor(").removesuffix(")") for kind in types]),
    )  # fmt: skip


def _raw(values: Sequence[Any]) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(values).encode())


def _metadata(groups: Sequence[Any]) -> dict[str, Any]:
    """Return Kineto's metadata of process groups, from texts that are JSON lists of them."""
    listed: list[Any] = [group for text in groups for group in json.loads(text)]
    world = max((len(group["ranks"]) for group in listed), default=0)
    return {"distributedInfo": {"world_size": world, "pg_config": listed}}
