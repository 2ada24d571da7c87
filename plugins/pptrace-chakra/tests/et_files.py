"""An independent reader of Chakra traces, from the schema's field numbers and protobuf's wire format alone."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MEM_LOAD, MEM_STORE, COMP, SEND, RECV, COLL = 2, 3, 4, 5, 6, 7
SCALARS = {5: "int32", 7: "int32", 9: "int64", 11: "uint32", 13: "uint64", 27: "bool"}
TEXTS = {29}


@dataclass
class Node:
    """A node of a rank."""

    number: int = 0
    name: str = ""
    type: int = 0
    ctrl_deps: list[int] = field(default_factory=list)
    data_deps: list[int] = field(default_factory=list)
    start_us: int = 0
    duration_us: int = 0
    attr: dict[str, Any] = field(default_factory=dict)

    @property
    def message(self) -> tuple[int, int, int, int]:
        """Source, target, tag and size of a message."""
        return self.attr["comm_src"], self.attr["comm_dst"], self.attr["comm_tag"], self.attr["comm_size"]


def read(path: Path) -> tuple[str, list[Node]]:
    """Return the version of the schema and the nodes of a file."""
    raw = path.read_bytes()
    bodies = []
    place = 0
    while place < len(raw):
        size, place = varint(raw, place)
        bodies.append(raw[place : place + size])
        assert len(bodies[-1]) == size
        place += size
    version = next(value.decode() for number, value in fields(bodies[0]) if number == 1)
    return version, [node(body) for body in bodies[1:]]


def node(body: bytes) -> Node:
    """Return a Node message."""
    found = Node()
    for number, value in fields(body):
        if number == 1:
            found.number = value
        elif number == 2:
            found.name = value.decode()
        elif number == 3:
            found.type = value
        elif number in {4, 5}:
            {4: found.ctrl_deps, 5: found.data_deps}[number].extend(packed(value))
        elif number == 6:
            found.start_us = value
        elif number == 7:
            found.duration_us = value
        elif number == 10:
            name, result = attribute(value)
            assert name not in found.attr
            found.attr[name] = result
    return found


def attribute(body: bytes) -> tuple[str, Any]:
    """Return the name and the value of an AttributeProto; negative integers are two's complement of 64 bits."""
    name, result = "", None
    for number, value in fields(body):
        if number == 1:
            name = value.decode()
        elif number in SCALARS:
            result = bool(value) if SCALARS[number] == "bool" else signed(value)
        elif number in TEXTS:
            result = value.decode()
        elif number == 10:
            result = [signed(each) for inner, part in fields(value) if inner == 1 for each in packed(part)]
    return name, result


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def packed(value: Any) -> list[int]:
    """Return the numbers of a repeated field, packed or one."""
    if isinstance(value, int):
        return [value]
    numbers, place = [], 0
    while place < len(value):
        number, place = varint(value, place)
        numbers.append(number)
    return numbers


def fields(body: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each field of a message."""
    place = 0
    while place < len(body):
        tag, place = varint(body, place)
        if tag & 7 == 0:
            value, place = varint(body, place)
        elif tag & 7 == 2:
            size, place = varint(body, place)
            value, place = body[place : place + size], place + size
        else:
            assert tag & 7 == 1
            (value,) = struct.unpack_from("<d", body, place)
            place += 8
        yield tag >> 3, value


def varint(raw: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[place]
        value |= (byte & 0x7F) << shift
        shift, place = shift + 7, place + 1
        if byte < 0x80:
            return value, place


def replay(ranks: dict[int, list[Node]]) -> dict[tuple[int, int], int]:
    """Return when each node ends, in microseconds: the longest path over dependencies and messages.

    A node starts when all nodes of its ``data_deps`` have ended. A receive ends with its send.
    """
    sends = {item.message: (rank, item) for rank, nodes in ranks.items() for item in nodes if item.type == SEND}
    by_number = {(rank, item.number): item for rank, nodes in ranks.items() for item in nodes}
    ends: dict[tuple[int, int], int] = {}
    stack = list(by_number)
    while stack:
        key = stack[-1]
        rank = key[0]
        item = by_number[key]
        needed = [(rank, before) for before in item.data_deps]
        if item.type == RECV:
            sender, sent = sends[item.message]
            needed.append((sender, sent.number))
        waiting = [before for before in needed if before not in ends]
        stack += waiting
        assert len(stack) < 10 * len(by_number) * len(by_number) + 10, "a cycle"
        if not waiting:
            ends[key] = max([ends[before] for before in needed], default=0) + (
                0 if item.type == RECV else item.duration_us
            )
            stack.pop()
    return ends
