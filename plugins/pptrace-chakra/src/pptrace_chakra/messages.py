"""Messages of Chakra's schema 1.0.0 in protobuf, and files of them.

Source: ``schema/protobuf/et_def.proto`` of mlcommons/chakra. A file is a GlobalMetadata and Node messages, each
after its length as a varint. Other fields and types of attribute values are unknown here, and a parser skips them.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from pptrace.plugin import TraceError, check_events, message_classes, read_varint

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = "1.0.0"
"""Version in GlobalMetadata of the files that :mod:`pptrace_chakra.step_files` writes."""


class NodeType(IntEnum):
    """Values of ``Node.type``."""

    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CollectiveType(IntEnum):
    """Values of the attribute ``comm_type``."""

    ALL_REDUCE = 0
    ALL_GATHER = 2
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7


_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "Int64List": {"values": (1, "int64*")},
    "AttributeProto": {
        "name": (1, "string"), "int32_val": (7, "int32?"), "int64_val": (9, "int64?"),
        "int64_list": (10, "Int64List?"), "uint64_val": (13, "uint64?"), "bool_val": (27, "bool?"),
        "string_val": (29, "string?"),
    },
    "GlobalMetadata": {"version": (1, "string"), "attr": (2, "AttributeProto*")},
    "Node": {
        "id": (1, "uint64"), "name": (2, "string"), "type": (3, "int32"), "ctrl_deps": (4, "uint64*"),
        "data_deps": (5, "uint64*"), "start_time_micros": (6, "uint64"), "duration_micros": (7, "uint64"),
        "attr": (10, "AttributeProto*"),
    },
}  # fmt: skip
"""Number and type of each field by message, as in :func:`pptrace.plugin.message_classes`."""


@cache
def message_types() -> dict[str, Any]:
    """Return the classes of messages by name."""
    return message_classes("ChakraProtoMsg", _FIELDS)


def value_of(attribute: Any) -> Any:
    """Return the value of an attribute, a list for lists; None for a type that this module does not have."""
    name = attribute.WhichOneof("value")
    if name is None:
        return None
    value = getattr(attribute, name)
    return list(value.values) if name.endswith("_list") else value


def attributes_of(message: Any) -> dict[str, Any]:
    """Return the values of the attributes of a GlobalMetadata or Node by name."""
    return {attribute.name: value_of(attribute) for attribute in message.attr}


def parse(raw: bytes, path: Path) -> Iterator[Any]:
    """Yield the GlobalMetadata of a file, then its nodes.

    Raises:
        TraceError: the file is truncated or no Chakra trace, or has more nodes than the limit.
    """
    from google.protobuf.message import DecodeError

    message_class, offset, count = message_types()["GlobalMetadata"], 0, 0
    while offset < len(raw):
        size, start = read_varint(raw, offset)
        if not start or start + size > len(raw):
            raise TraceError(f"is truncated after {max(count - 1, 0):,} nodes; write it again", file=path)
        try:
            yield message_class.FromString(raw[start : start + size])
        except DecodeError:
            raise TraceError(
                f"is not a Chakra trace: the message at byte {offset} cannot be decoded", file=path
            ) from None
        message_class, offset, count = message_types()["Node"], start + size, count + 1
        check_events(count, path)
