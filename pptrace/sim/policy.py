"""How messages between ranks are issued: the point-to-point policies, by name."""

from __future__ import annotations

from dataclasses import dataclass

from pptrace.config.choices import PolicyName, Receive, StreamPer

__all__ = ["Policy", "PolicyName", "StreamPer"]


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
    def blocks(self) -> bool:
        """Whether messages hold the compute streams."""
        return self.name in {PolicyName.BLOCKING, PolicyName.SENDER_BLOCKING}

    @property
    def largest_eager(self) -> int:
        """The largest message that does not wait for its receiver; -1 where every one does."""
        return self.eager_bytes if self.name is PolicyName.ORDERED and self.eager_bytes else -1
