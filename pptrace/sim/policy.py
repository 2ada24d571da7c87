"""How messages between ranks are issued: the point-to-point policies, by name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pptrace.schedule.issue_order import Receive

__all__ = ["Policy", "PolicyName", "StreamPer"]


class PolicyName(Enum):
    """The policies."""

    ASYNC = "async"
    """One task per message, on a stream per (sender, receiver)."""
    SENDER_BLOCKING = "sender-blocking"
    """One task on the sender's compute stream, right after its producer; nothing on the receiver."""
    BLOCKING = "blocking"
    """A SEND and a RECV, each on its rank's compute stream; a RECV starts no earlier than its SEND."""
    ORDERED = "ordered"
    """One rendezvous on both ranks' communication streams, at its places in the rows."""
    BATCHED = "batched"
    """Neighbouring messages of a row are one group: launched together, waited for together."""


class StreamPer(Enum):
    """What has a communication stream of its own under ``ordered``."""

    RANK = "rank"
    """A rank: all its messages queue behind each other."""
    PAIR = "pair"
    """A rank and a peer, both directions together."""
    DIRECTION = "direction"
    """A rank, a peer and a direction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A point-to-point policy with its settings.

    >>> Policy().name.value
    'async'
    """

    name: PolicyName = PolicyName.ASYNC
    """Which policy."""
    receive: Receive = Receive.ASAP
    """Where receives are put in a table that has none."""
    stream: StreamPer = StreamPer.RANK
    """What has a stream of its own, under ``ordered``."""
    eager_bytes: int = 0
    """Messages up to this size do not wait for their receiver, under ``ordered``; 0 for none at all."""

    @property
    def has_receives(self) -> bool:
        """Whether receives have places of their own."""
        return self.name in {PolicyName.BLOCKING, PolicyName.ORDERED, PolicyName.BATCHED}

    @property
    def largest_eager(self) -> int:
        """The largest message that does not wait for its receiver; -1 where every one does."""
        return self.eager_bytes if self.name is PolicyName.ORDERED and self.eager_bytes else -1
