"""What traces tell of kinds of actions: the one place in this area that asks what a kind is.

A kind that is new has a name, a category, a colour and a kernel here as soon as the model knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import COMMUNICATION, COMPUTE, PER_STAGE, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

__all__ = ["CARRIES", "CATEGORY", "COLORS", "NAMES", "NUMBERED", "RECEIVES", "TOWARDS_NEXT"]

_NO_COLOR = "grey"
_COLORS = {
    "F": "thread_state_runnable", "B": "thread_state_running", "I": "rail_animation", "W": "rail_idle",
    "SEND_F": "thread_state_iowait", "RECV_F": "thread_state_iowait", "SEND_B": "rail_response",
    "RECV_B": "rail_response", "UNSHARD": "olive", "REDUCE_GRAD": "startup", "RECOMPUTE": "rail_load",
    "OPTIMIZER": "generic_work",
}  # fmt: skip


def _which(holds: Callable[[Kind], bool]) -> NDArray[np.bool_]:
    return np.array([holds(kind) for kind in Kind])


def _category(kind: Kind) -> str:
    if kind in COMPUTE:
        return "compute"
    if kind in COMMUNICATION:
        return "communication"
    return "collective" if kind in PER_STAGE else "copy"


NAMES = tuple(kind.name for kind in Kind)
"""What each kind is called; this and what follows is in the order of their numbers."""

CATEGORY = tuple(map(_category, Kind))
"""``compute``, ``communication``, ``collective`` or ``copy``."""

COLORS = tuple(_COLORS.get(name, _NO_COLOR) for name in NAMES)
"""A reserved colour name of chrome://tracing (``cname``)."""

NUMBERED = _which(lambda kind: kind in COMPUTE and kind not in PER_STAGE)
"""Whether it computes on a microbatch, whose number then is part of its name."""

CARRIES = _which(lambda kind: kind in COMMUNICATION)
"""Whether it is a message between ranks, on either side."""

RECEIVES = _which(lambda kind: kind in COMMUNICATION and kind.name.startswith("RECV"))
"""Whether it is the receiver's side of a message."""

TOWARDS_NEXT = CARRIES & (_which(lambda kind: kind.name.endswith("F")) != RECEIVES)
"""Whether the rank at a message's other end holds the next stage, not the one before."""
