"""The typed fields of ``proto/pptrace.proto`` and the descriptor that each trace embeds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.export.kinds import NAMES

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

__all__ = ["FIELD_NUMBERS", "FILE_NAME", "MESSAGE", "PACKAGE", "descriptor_set"]

FILE_NAME = "proto/pptrace.proto"
PACKAGE = "pptrace"
MESSAGE = "Step"

FIELD_NUMBERS = {
    "row": 7610,
    "kind": 7611,
    "rank": 7612,
    "stage": 7613,
    "microbatch": 7614,
    "span": 7615,
    "peer": 7616,
    "bytes": 7617,
    "enter_ns": 7618,
    "lag_ns": 7619,
    "uncontended_ns": 7620,
    "collective_ns": 7621,
    "cause": 7622,
    "pair": 7623,
    "link": 7624,
    "transfer": 7625,
    "hop": 7626,
    "segment_number": 7627,
    "segment": 7628,
    "shown": 7629,
}
"""Field numbers; 7610 to 7639 are pptrace's share of TrackEvent's extension range."""

_OF_LINKS = frozenset({"link", "transfer", "hop"})
_OF_SEGMENTS = frozenset({"segment_number", "segment"})
_OF_WHY = frozenset({"shown"})


def descriptor_set(*, links: bool = True, segments: bool = True, why: bool = True) -> FileDescriptorSet:
    """Return what ``protoc`` makes of ``proto/pptrace.proto``, without Perfetto's own file.

    Without ``links``, fields that only slices on links have are left out; so with
    ``segments``, and with ``why`` for what only slices on the critical path's track have.
    """
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet

    files = FileDescriptorSet()
    file = files.file.add(name=FILE_NAME, package=PACKAGE)
    file.dependency.append("protos/perfetto/trace/perfetto_trace.proto")
    message = file.message_type.add(name=MESSAGE)
    kinds = message.enum_type.add(name="Kind")
    for kind, name in enumerate(NAMES):
        kinds.value.add(name=name, number=kind)
    parts = ((links, _OF_LINKS), (segments, _OF_SEGMENTS), (why, _OF_WHY))
    left_out = {name for there, names in parts if not there for name in names}
    for name, number in FIELD_NUMBERS.items():
        if name in left_out:
            continue
        field = message.extension.add(
            name=name,
            extendee=".perfetto.protos.TrackEvent",
            number=number,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
            type=FieldDescriptorProto.TYPE_INT64,
        )
        if name == "kind":
            field.type = FieldDescriptorProto.TYPE_ENUM
            field.type_name = f".{PACKAGE}.{MESSAGE}.Kind"
        elif name == "segment":
            field.type = FieldDescriptorProto.TYPE_STRING
    return files
