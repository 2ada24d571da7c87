"""Messages of one step: both ends found, on one clock, and what each of them carries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pptrace.model.action import Action, Kind
from pptrace.timeline.measurement import Unattributed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace.timeline.measurement import Clock
    from pptrace_profilers.recording.recording import End, Ran

__all__ = [
    "Kernel",
    "Message",
    "RankStep",
    "kernel_of",
    "kernels",
    "match_ends",
    "on_one_clock",
]

_FORWARD = frozenset({Kind.SEND_F, Kind.RECV_F})
_SENDS = frozenset({Kind.SEND_F, Kind.SEND_B})
Kernel = tuple[int, int, int, int]
"""A kernel that carries messages: its rank, launch, start and end."""
_Key = tuple[bool, int, int]
"""Whether a message is an activation, the stage that sends it, and its first microbatch."""


@dataclass(slots=True)
class RankStep:
    """What one rank did in one step."""

    ran: list[Ran] = field(default_factory=list)
    """Actions by time."""
    sends: list[End] = field(default_factory=list)
    """What left."""
    receives: list[End] = field(default_factory=list)
    """What arrived."""


@dataclass(slots=True)
class Message:
    """A message; on one clock once :func:`on_one_clock` has seen it."""

    source: int
    """The sending rank; -1 where nothing says."""
    target: int
    """The receiving rank; likewise."""
    sent: End | None
    """The sender's end; None where it was not recorded."""
    received: End | None
    """The receiver's end; likewise."""
    forward: bool = True
    """Whether it is an activation."""
    stage: int = -1
    """The stage that sends it; -1 where that is unknown."""
    unit: int = -1
    """The first microbatch."""
    span: int = 1
    """Microbatches."""

    @property
    def to_stage(self) -> int:
        """Return the stage that it goes to."""
        return self.stage + (1 if self.forward else -1)


def match_ends(ranks: Sequence[RankStep], unattributed: list[Unattributed]) -> list[Message]:
    """Return a step's messages.

    Ends that say the same action belong together, whatever their order. Of the others, those between two ranks
    arrive in the order in which they left. An end alone is a message where it says its action, and counted.
    """
    found, lone_sends, lone_receives = _by_action(ranks)
    for source in range(len(ranks)):
        for target in range(len(ranks)):
            sent = [end for end in lone_sends[source] if end.peer == target]
            received = [end for end in lone_receives[target] if end.peer == source]
            for one, other in zip(sent, received, strict=False):
                found.append(_named(Message(source=source, target=target, sent=one, received=other)))
                lone_sends[source].remove(one)
                lone_receives[target].remove(other)
    for rank in range(len(ranks)):
        for ends, what in ((lone_sends[rank], "sends to"), (lone_receives[rank], "receives from")):
            found += [_half(rank, end) for end in ends if end.action is not None]
            for peer in sorted({end.peer for end in ends}):
                own = [end for end in ends if end.peer == peer]
                other_rank = f"rank {peer}" if peer >= 0 else "a rank that nothing names"
                unattributed.append(
                    Unattributed(
                        rank=rank, what=f"{what} {other_rank} without another end", count=len(own),
                        total_ns=sum(end.end_ns - end.start_ns for end in own),
                    )
                )  # fmt: skip
    return found


def _half(rank: int, end: End) -> Message:
    sends = end.sends
    return _named(Message(
        source=rank if sends else end.peer, target=end.peer if sends else rank,
        sent=end if sends else None, received=None if sends else end,
    ))  # fmt: skip


def _by_action(ranks: Sequence[RankStep]) -> tuple[list[Message], list[list[End]], list[list[End]]]:
    """Return messages of which both ends say the action, and all other ends by rank."""
    sent: dict[_Key, tuple[int, End]] = {}
    received: dict[_Key, tuple[int, End]] = {}
    lone: tuple[list[list[End]], list[list[End]]] = ([[] for _ in ranks], [[] for _ in ranks])
    for number, rank in enumerate(ranks):
        for ends, into, rest in ((rank.sends, sent, lone[0]), (rank.receives, received, lone[1])):
            for end in ends:
                key = _key(end.action)
                if key is None:
                    rest[number].append(end)
                elif key in into and into[key][0] == number:
                    into[key] = (number, _joined(into[key][1], end))
                else:
                    into.setdefault(key, (number, end))
    found = []
    for key in sent.keys() & received.keys():
        (source, one), (target, other) = sent[key], received[key]
        found.append(_named(Message(source=source, target=target, sent=one, received=other)))
    for key in sent.keys() ^ received.keys():
        number, end = sent.get(key) or received[key]
        (lone[0] if key in sent else lone[1])[number].append(end)
    for ends in (*lone[0], *lone[1]):
        ends.sort(key=lambda end: end.start_ns)
    return sorted(found, key=_when), *lone


def _key(action: Action | None) -> _Key | None:
    if action is None:
        return None
    forward = action.kind in _FORWARD
    if action.kind not in _SENDS:
        return forward, action.stage - (1 if forward else -1), action.unit
    return forward, action.stage, action.unit


def _joined(one: End, more: End) -> End:
    """Return the end of a message that goes in several parts, one per tensor."""
    return replace(
        one, start_ns=min(one.start_ns, more.start_ns), end_ns=max(one.end_ns, more.end_ns),
        size_bytes=one.size_bytes + more.size_bytes,
    )  # fmt: skip


def _when(message: Message) -> int:
    end = message.sent or message.received
    return end.start_ns if end is not None else 0


def _named(message: Message) -> Message:
    """Say what a message carries, from either end's annotation."""
    for end in (message.sent, message.received):
        key = _key(end.action) if end is not None else None
        if key is not None and end is not None and end.action is not None:
            message.forward, message.stage, message.unit = key
            message.span = end.action.span
            break
    return message


def kernel_of(rank: int, end: End) -> Kernel | None:
    """Return which kernel carries an end of a message; None where the host's own post was recorded."""
    return None if end.posted_ns < 0 else (rank, end.posted_ns, end.start_ns, end.end_ns)


def kernels(messages: Iterable[Message]) -> Counter[Kernel | None]:
    """Return how many ends of messages each kernel carries; 0 for None, which is no kernel."""
    ends = ((rank, end) for one in messages for rank, end in ((one.source, one.sent), (one.target, one.received)))
    found = Counter(kernel_of(rank, end) for rank, end in ends if end is not None)
    del found[None]
    return found


def on_one_clock(message: Message, clocks: Sequence[Clock]) -> Message:
    """Return a message with both ends' times by rank 0's clock."""
    return replace(
        message,
        sent=_later(message.sent, clocks[message.source].offset_ns) if message.source >= 0 else message.sent,
        received=_later(message.received, clocks[message.target].offset_ns)
        if message.target >= 0
        else message.received,
    )


def _later(end: End | None, by_ns: int) -> End | None:
    if end is None:
        return None
    return replace(end, start_ns=end.start_ns + by_ns, end_ns=end.end_ns + by_ns)
