"""Messages of a timeline: which slice produced the data, which carried them, which consumed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.action import Kind
from pptrace.model.columns import Int32s

if TYPE_CHECKING:
    from pptrace.timeline.timeline import Timeline

__all__ = ["Messages", "messages"]

_BACKWARD_KINDS = (Kind.B, Kind.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """One row per message, in the order of its first slice; each column holds a row of the timeline."""

    send: Int32s
    """The sender's slice, -1 where only the receiver has one."""
    recv: Int32s
    """The receiver's slice, -1 where only the sender has one."""
    producer: Int32s
    """The compute slice whose result was sent, -1 where unknown."""
    consumer: Int32s
    """The compute slice that waited for it, -1 where unknown."""


def messages(timeline: Timeline) -> Messages:
    """Match sends, receives, producers and consumers by stage, unit and direction.

    An action that spans several units is found by any of them; where several consumers share a
    message, the one that started first counts.
    """
    raise NotImplementedError
