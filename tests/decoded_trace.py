"""A Perfetto trace as the official messages see it."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

__all__ = ["BEGIN", "COUNTER", "END", "Decoded"]

BEGIN, END, COUNTER = 1, 2, 4


class Decoded:
    """A trace as the official messages see it, our fields by our embedded descriptor."""

    def __init__(self, raw: bytes) -> None:
        plain = perfetto_trace_pb2.Trace.FromString(raw)
        embedded = [p.extension_descriptor for p in plain.packet if p.HasField("extension_descriptor")]
        pool = DescriptorPool()
        pool.AddSerializedFile(perfetto_trace_pb2.DESCRIPTOR.serialized_pb)
        for extension in embedded:
            pool.AddSerializedFile(extension.extension_set.file[0].SerializeToString())
        trace = GetMessageClass(pool.FindMessageTypeByName("perfetto.protos.Trace")).FromString(raw)
        self.packets = list(trace.packet)
        self.names: dict[int, str] = {}
        self.categories: dict[int, str] = {}
        self.colors: dict[int, str] = {}
        for packet in self.packets:
            interned = packet.interned_data
            self.names |= {entry.iid: entry.name for entry in interned.event_names}
            self.categories |= {entry.iid: entry.name for entry in interned.event_categories}
            self.colors |= {entry.iid: entry.str.decode() for entry in interned.correlation_id_str}
        self.tracks = {
            p.track_descriptor.uuid: p.track_descriptor for p in self.packets if p.HasField("track_descriptor")
        }

    def events(self, kind: int) -> list[Any]:
        return [p for p in self.packets if p.HasField("track_event") and p.track_event.type == kind]

    def path(self, uuid: int) -> str:
        track = self.tracks[uuid]
        above = self.path(track.parent_uuid) if track.parent_uuid else ""
        return f"{above}/{track.name}" if above else str(track.name)  # a process and a thread have no track's name

    def fields(self, packet: Any) -> dict[str, Any]:
        """Every field that a begin packet has."""
        event = packet.track_event
        result = {
            (f.full_name.split(".", 1)[1] if f.is_extension else f.name): value for f, value in event.ListFields()
        }
        result.pop("type")
        result["ts"] = packet.timestamp
        result["track"] = self.path(result.pop("track_uuid"))
        if "name_iid" in result:
            result["name"] = self.names[result.pop("name_iid")]
            result["category"] = [self.categories[iid] for iid in result.pop("category_iids")]
        if "correlation_id_str_iid" in result:
            result["color"] = self.colors[result.pop("correlation_id_str_iid")]
        return result
