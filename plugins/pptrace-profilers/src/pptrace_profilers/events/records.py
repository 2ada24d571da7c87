"""One event of a Chrome JSON file as it is written, in the fields that importers read."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = ["MEMORY", "NO_ARGUMENTS", "Arguments", "Detailed", "Event", "Marks", "Number", "detached"]

Number: TypeAlias = "int | float | str | None"


MEMORY = "[memory]"
"""The name of an instant at which PyTorch's allocator says how much it holds."""


class Marks(msgspec.Struct, gc=False):
    """The arguments that every event is read for."""

    correlation: Number = None
    stream: Number = None
    name: Number = None
    labels: Number = None
    allocated: Number = msgspec.field(name="Total Allocated", default=None)
    device_type: Number = msgspec.field(name="Device Type", default=None)


class Arguments(Marks, gc=False):
    """All arguments that importers read, in the profilers' spelling."""

    collective: Number = msgspec.field(name="Collective name", default=None)
    in_elements: Number = msgspec.field(name="In msg nelems", default=None)
    out_elements: Number = msgspec.field(name="Out msg nelems", default=None)
    dtype: Number = None
    group: Number = msgspec.field(name="Process Group Name", default=None)
    group_description: Number = msgspec.field(name="Process Group Description", default=None)
    target: Number = msgspec.field(name="Dst Rank", default=None)
    source: Number = msgspec.field(name="Src Rank", default=None)
    inputs: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw())
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    input_type: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw())
    sequence_number: Number = msgspec.field(name="Sequence number", default=None)
    forward_thread: Number = msgspec.field(name="Fwd thread id", default=None)


class Event(msgspec.Struct, gc=False):
    """One event, with the arguments that every one is read for: most have long ones that nobody reads."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Number = 0
    tid: Number = 0
    ts: Number = None
    dur: Number = None
    args: Marks | None = None


class Detailed(Event, gc=False):
    """One event with all arguments."""

    args: Arguments | None = None


NO_ARGUMENTS = Marks()
"""Stands for those of an event without any."""


def detached(event: Detailed) -> Detailed:
    """Return an event that does not hold on to the text of its block."""
    if event.args is not None:
        for name in ("inputs", "input_dims", "input_type"):
            setattr(event.args, name, getattr(event.args, name).copy())
    return event
