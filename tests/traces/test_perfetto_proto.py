"""The descriptor that traces embed is what protoc makes of ``proto/pptrace.proto``."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from pptrace.steps.kinds import Kind
from pptrace.traces.perfetto.descriptors import FIELD_NUMBERS, descriptor_set

PROTO = Path(__file__).parents[2] / "proto" / "pptrace.proto"
CLAIMED = range(7610, 7640)
OPEN_TO_ALL = range(3000, 9900)


def test_every_field_stands_in_the_text_under_its_number_and_type() -> None:
    body = PROTO.read_text().split("extend perfetto.protos.TrackEvent", 1)[1]
    found = re.findall(r"optional (\w+) (\w+) = (\d+);", body)
    assert {name: int(number) for _, name, number in found} == FIELD_NUMBERS
    assert {name: kind for kind, name, _ in found} == {
        n: {"kind": "Kind", "segment": "string"}.get(n, "int64") for n in FIELD_NUMBERS
    }


def test_every_kind_stands_in_the_text_under_its_number() -> None:
    body = PROTO.read_text().split("enum Kind {", 1)[1].split("}", 1)[0]
    found = {name: int(number) for name, number in re.findall(r"(\w+) = (\d+);", body)}
    assert found == {kind.name: kind.value for kind in Kind}


def test_every_field_is_within_the_range_that_the_text_claims() -> None:
    text = " ".join(PROTO.read_text().split())
    assert f"{CLAIMED[0]} to {CLAIMED[-1]}" in text
    assert set(FIELD_NUMBERS.values()) <= set(CLAIMED) <= set(OPEN_TO_ALL)


def test_perfetto_allows_the_fields() -> None:
    pool = DescriptorPool()
    pool.AddSerializedFile(perfetto_trace_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(descriptor_set().file[0].SerializeToString())
    event = pool.FindMessageTypeByName("perfetto.protos.TrackEvent")
    assert {pool.FindExtensionByNumber(event, number).name for number in FIELD_NUMBERS.values()} == set(
        FIELD_NUMBERS
    )


def test_protoc_makes_the_same_descriptor(tmp_path: Path) -> None:
    protoc = [shutil.which("protoc") or ""]
    if find_spec("grpc_tools"):
        protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    if not protoc[0]:
        pytest.skip("neither protoc nor grpcio-tools is installed")
    out, perfetto = tmp_path / "out.bin", tmp_path / "perfetto.bin"
    known = FileDescriptorSet()
    known.file.append(FileDescriptorProto.FromString(perfetto_trace_pb2.DESCRIPTOR.serialized_pb))
    perfetto.write_bytes(known.SerializeToString())
    command = [*protoc, f"--descriptor_set_in={perfetto}", f"--descriptor_set_out={out}", "proto/pptrace.proto"]
    shutil.copytree(PROTO.parent, tmp_path / "proto")
    subprocess.run([*command, f"-I{tmp_path}"], check=True, cwd=tmp_path)
    made = FileDescriptorSet.FromString(out.read_bytes()).file[0]
    for message in made.message_type:
        for extension in message.extension:
            extension.ClearField("json_name")
    assert made == descriptor_set().file[0]
