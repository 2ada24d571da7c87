"""Categories and lanes of traces.

A kind that is new has a name, a category, a colour and a kernel here as soon as the table has a row for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.steps.kinds import COMMUNICATION, KINDS, Kind, Role
from pptrace.steps.kinds import RECEIVES as RECEIVING
from pptrace.steps.kinds import TOWARDS_NEXT as WITH_NEXT

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from pptrace.steps.kinds import Stream, Traits

__all__ = [
    "CARRIES",
    "CATEGORY",
    "COLLECTIVE",
    "COLORS",
    "NAMES",
    "NUMBERED",
    "RECEIVES",
    "TOWARDS_NEXT",
    "stream_title",
]

COLLECTIVE = "collective"
"""The category of communication within a group of replicas, whole actions and segments of them."""

_CATEGORIES = {
    Role.COMPUTE: "compute", Role.SEND: "communication", Role.RECEIVE: "communication", Role.COPY: "copy",
    Role.COLLECTIVE: COLLECTIVE,
}  # fmt: skip


def _which(holds: Callable[[Traits], bool]) -> NDArray[np.bool_]:
    return np.array([holds(traits) for traits in KINDS.values()])


NAMES = tuple(kind.name for kind in KINDS)
"""What each kind is called; this and what follows is in the order of their numbers."""

CATEGORY = tuple(_CATEGORIES[traits.role] for traits in KINDS.values())
"""``compute``, ``communication``, ``collective`` or ``copy``."""

COLORS = tuple(traits.trace_colour for traits in KINDS.values())
"""A reserved colour name of chrome://tracing (``cname``)."""

NUMBERED = _which(lambda traits: traits.role is Role.COMPUTE and not traits.per_stage)
"""Whether it computes on a microbatch, whose number then is part of its name."""

_EVERY = np.arange(len(Kind))

CARRIES = COMMUNICATION.mask(_EVERY)
"""Whether it is a message between ranks, on either side."""

RECEIVES = RECEIVING.mask(_EVERY)
"""Whether it is the receiver's side of a message."""

TOWARDS_NEXT = WITH_NEXT.mask(_EVERY)
"""Whether the rank at a message's other end holds the next stage, not the one before."""

_SPELT_OUT = {"COMM": "communication", "RECV": "receive"}


def stream_title(stream: Stream) -> str:
    """Return a stream's name in words.

    >>> from pptrace.steps.kinds import Stream
    >>> stream_title(Stream.COMM), stream_title(Stream.DATA_PARALLEL)
    ('communication', 'data parallel')
    """
    return _SPELT_OUT.get(stream.name) or stream.name.lower().replace("_", " ")
