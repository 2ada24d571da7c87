"""Calls that a rank of a training framework gives its GPU, and a writer of them.

Facts of the calls' meaning, from PyTorch 2.13 (``torch/distributed/distributed_c10d.py`` and
``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp``):

- ``ProcessGroupNCCL::pointToPoint`` first lets the communicator's stream wait for the current stream: a posted
  operation starts after all that the compute stream was given before it. The CPU does not wait.
- An unbatched ``isend`` or ``irecv`` goes over a communicator of the two ranks (``getKeySendRecv``: the process
  group, the lower and the higher rank), with a stream of its own that both directions share. Where the process
  group was made with its device (``eagerInit_``), it goes over the group's communicator instead.
- ``batch_isend_irecv`` brackets its messages with ``ncclGroupStart`` and ``ncclGroupEnd``: they are one operation
  of the whole group's communicator (``getKeyFromDevice``), with one request.
- ``Work.wait`` makes the current stream wait for the operation. ``send`` and ``recv`` post and wait.
- With PyTorch 2.15 and ``pipeline_per_edge_p2p``, each direction between two ranks has its own process group
  (``torch/distributed/pipelining/_p2p.py``).
- NCCL knows no tags: of one communicator, messages from one rank to another are matched in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = [
    "Call",
    "Communicator",
    "Compute",
    "End",
    "Message",
    "Post",
    "Program",
    "Wait",
    "Writer",
    "received",
    "sent",
]

Communicator: TypeAlias = tuple[str | int, ...]
"""The process group's name; for one of two ranks, also the lower and the higher rank."""


@dataclass(frozen=True, order=True)
class Message:
    """An activation ("F") or a gradient ("B"), named by the stage that made it."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch} of stage {self.stage}"


@dataclass(frozen=True, order=True)
class Compute:
    """F, B (whole backward), I (input gradients) or W (weight gradients) of a microbatch on the compute stream."""

    kind: str
    stage: int
    microbatch: int

    @property
    def message(self) -> Message:
        """What it makes for the next or the previous stage."""
        return Message("F" if self.kind == "F" else "B", self.stage, self.microbatch)


@dataclass(frozen=True)
class End:
    """One end of a message."""

    message: Message
    peer: int
    sends: bool


@dataclass(frozen=True)
class Post:
    """One operation of a communicator: a send, a receive, or a batch of them."""

    handle: int
    ends: tuple[End, ...]
    communicator: Communicator


@dataclass(frozen=True)
class Wait:
    """The compute stream waits for operations."""

    handles: tuple[int, ...]


Call: TypeAlias = Compute | Post | Wait
Program: TypeAlias = list[Call]


def sent(message: Message, peer: int) -> End:
    return End(message, peer, sends=True)


def received(message: Message, peer: int) -> End:
    return End(message, peer, sends=False)


@dataclass
class Writer:
    """Writes one rank's program; ``group`` names the process group of the pipeline."""

    rank: int
    group: str = "pp"
    eager_init: bool = False
    """Whether the process group was made with its device."""
    per_edge: bool = False
    """Whether each direction of a pair of ranks has its own communicator."""
    calls: Program = field(default_factory=list)

    def compute(self, kind: str, stage: int, microbatch: int) -> Compute:
        call = Compute(kind, stage, microbatch)
        self.calls.append(call)
        return call

    def batch(self, ends: list[End]) -> list[int]:
        """Post one operation of all ends; nothing for none."""
        return [self._post(tuple(ends), (self.group,))] if ends else []

    def single(self, end: End, group: str | None = None) -> int:
        """Post one end unbatched."""
        name = group or self.group
        pair = () if self.eager_init else (min(self.rank, end.peer), max(self.rank, end.peer))
        if self.per_edge:
            pair = self.edge(end)
        return self._post((end,), (name, *pair))

    def edge(self, end: End) -> tuple[int, int]:
        """Return the ranks that a message goes from and to."""
        return (self.rank, end.peer) if end.sends else (end.peer, self.rank)

    def wait(self, handles: list[int]) -> None:
        if handles:
            self.calls.append(Wait(tuple(handles)))

    def _post(self, ends: tuple[End, ...], communicator: Communicator) -> int:
        handle = len(self.calls)
        self.calls.append(Post(handle, ends, communicator))
        return handle
