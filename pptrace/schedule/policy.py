"""How messages between ranks are issued: the point-to-point policies, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.record import dataclass

if TYPE_CHECKING:
    from pptrace.schedule.calls import Program

__all__ = ["Policy", "PolicyName", "StreamPer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A point-to-point policy with its settings.

    >>> Policy().name.value
    'async'
    """

    name: PolicyName = PolicyName.ASYNC
    """Which policy; ``batched`` for a program's calls, which are batches of its own."""
    receive: Receive | None = None
    """Where receives are put in a table that has none; deferred under ``batched``, else asap, unless given."""
    stream: StreamPer = StreamPer.DIRECTION
    """What has a stream of its own, under ``ordered``."""
    eager_bytes: int = 0
    """Messages up to this size do not wait for their receiver, under ``ordered``; 0 for none at all."""
    program: Program | None = None
    """Says which messages are one call, and where calls are launched and waited for, under ``batched``."""
    title: str = ""
    """The name by which a plugin offers it."""

    @property
    def label(self) -> str:
        """What messages call it."""
        return self.title or str(self.name.value)

    @property
    def placing(self) -> Receive:
        """Where receives are put in a table that has none."""
        return self.receive or (Receive.DEFERRED if self.name is PolicyName.BATCHED else Receive.ASAP)

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
