"""PyTorch's execution traces with the times of Kineto, one file per rank.

Sources: PyTorch's ``execution_trace_observer.cpp`` for nodes of the host and their attributes; mlcommons/chakra's
``src/trace_link`` for times and for nodes of the GPU. The linked file is JSON. Nodes of the host that Kineto
recorded get ``ts`` and ``inclusive_dur`` in microseconds. Each GPU operation is a node with ``cat`` and ``stream``
whose ``ctrl_deps`` is the node that launched it. Protobuf of ``src/converter`` has the same nodes.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pptrace.plugin import TraceError, UnpackedFile, check_events, named_damage
from pptrace_chakra.messages import attributes_of, parse
from pptrace_profilers.events import Arguments, EventBuilder, microseconds, parse_integer
from pptrace_profilers.measurement import measure_recordings
from pptrace_profilers.naming_rules import read_rules
from pptrace_profilers.pytorch_process import recording_of
from pptrace_profilers.recording import read_files

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


def measure_linked(paths: Sequence[Path], request: ImportRequest) -> Measurement:
    """Read the files of one run, one per process; actions are annotations, as in Kineto's files.

    Raises:
        TraceError: no file can be read, none has times, or the recordings do not form a pipeline.
        ConfigError: a rule, layout or replica is invalid.
    """
    rules = read_rules(request.rules)
    rules.check_names_alone("PyTorch's execution traces")
    files, unread = read_files(paths, lambda path: rules.ranked([_read(path, rules)]))
    recordings = [recording for contents in files.values() for recording in contents]
    return measure_recordings(recordings, request, unread)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A node of either format."""

    number: int
    """The node's id."""
    parent: int
    """The node that called or launched it; -1 for none."""
    name: str
    """Its name."""
    span_ns: tuple[int, int] | None
    """Start, and end of all called nodes; None where the file has no time."""
    category: str
    """Kineto's category of a GPU operation, ``user_annotation``, or ``cpu_op``."""
    attributes: Mapping[str, Any]
    """Attributes by name, with ``stream``, and ``inputs`` of operations that send or receive."""


def _read(path: Path, rules: Rules) -> Recording:
    raw = UnpackedFile.read_whole(path)
    with named_damage(path):
        is_json = raw.lstrip().startswith(b"{")
        top, nodes = _parse_json(raw, path) if is_json else _parse_protobuf(raw, path)
        spans = {node.number: node.span_ns for node in nodes if node.span_ns is not None}
        if not spans:
            advice = _LINK if is_json else "give the linked JSON file from which chakra_converter made it"
            raise TraceError(f"has no times: {advice}", file=path)
        builder = EventBuilder()
        for node in nodes:
            _add(builder, node, spans)
        return recording_of(builder.events(path, top), rules)


def _add(builder: EventBuilder, node: _Node, spans: Mapping[int, tuple[int, int]]) -> None:
    """Add a node with times, and for a GPU operation its launch at the start of its parent."""
    if node.span_ns is None:
        return
    thread, stream, correlation = (0, parse_integer(node.attributes.get("tid"), 0)), -1, -1
    if node.category not in _ON_HOST:
        correlation, stream = node.number, parse_integer(node.attributes.get("stream"), 0)
        if node.parent in spans:
            launch_ns = spans[node.parent][0]
            builder.add("launch", "cuda_runtime", thread, launch_ns, launch_ns, correlation=correlation)
        thread = (1, stream)
    builder.add(
        node.name, node.category, thread, *node.span_ns,
        correlation=correlation, stream=stream, arguments=_arguments(node.attributes),
    )  # fmt: skip


def _arguments(attributes: Mapping[str, Any]) -> Arguments | None:
    """Return the arguments of a message or collective as Kineto writes them; None for other nodes."""
    inputs = attributes.get("inputs")
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


def _parse_json(raw: bytes, path: Path) -> tuple[dict[str, Any], list[_Node]]:
    """Return Kineto's metadata of the process, and the nodes."""
    listed = json.loads(raw)["nodes"]
    check_events(len(listed), path)
    nodes = []
    for node in listed:
        attributes = {item["name"]: item["value"] for item in node.get("attrs", ())}
        attributes |= {key: node[key] for key in ("stream", "pg_name") if key in node}
        if _MESSAGE.match(node["name"]):
            attributes["inputs"] = node["inputs"]
        nodes.append(_Node(
            number=node["id"], parent=parse_integer(node.get("ctrl_deps"), -1), name=node["name"],
            span_ns=_span_ns(node.get("ts"), node.get("inclusive_dur")),
            category=node.get("cat") or _host_category(attributes), attributes=attributes,
        ))  # fmt: skip
    groups = [node["inputs"]["values"][0] for node in listed if _GROUP_NODE in node["name"]]
    return _described(groups), nodes


def _parse_protobuf(raw: bytes, path: Path) -> tuple[dict[str, Any], list[_Node]]:
    """Return Kineto's metadata of the process, and the nodes; chakra_converter 1.0.0 writes no starts."""
    messages = parse(raw, path)
    next(messages)
    nodes, groups = [], []
    for node in messages:
        attributes = attributes_of(node)
        on_host = attributes.get("is_cpu_op", False)
        nodes.append(_Node(
            number=node.id, parent=node.ctrl_deps[0] if node.ctrl_deps else -1, name=node.name,
            span_ns=_span_ns(node.start_time_micros or None, node.duration_micros),
            category=_host_category(attributes) if on_host else "kernel", attributes=attributes,
        ))  # fmt: skip
        if _GROUP_NODE in node.name:
            groups.append(node.inputs.values.removeprefix("['").removesuffix("']"))
    return _described(groups), nodes


def _host_category(attributes: Mapping[str, Any]) -> str:
    return _ON_HOST[parse_integer(attributes.get("scope"), 0) == _USER_SCOPE]


def _span_ns(start_us: object, duration_us: object) -> tuple[int, int] | None:
    """Return start and end, None where either time is missing."""
    start_ns, duration_ns = microseconds(start_us), microseconds(duration_us)
    return None if start_ns is None or duration_ns is None else (start_ns, start_ns + duration_ns)


def _described(groups: Sequence[Any]) -> dict[str, Any]:
    """Return the process groups, each text a JSON list of them, as Kineto's metadata has them."""
    listed: list[Any] = [group for text in groups for group in json.loads(text)]
    world = max((len(group["ranks"]) for group in listed), default=0)
    return {"distributedInfo": {"world_size": world, "pg_config": listed}}
