"""What kinds of actions are told apart by: their roles, streams, passes and results."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Pass", "Result", "Role", "Stream"]


class Stream(IntEnum):
    """What a lane is: an in-order queue of a rank."""

    COMPUTE = 0
    """Kernels of the model."""
    COMM = 1
    """The rank's communication with any peer, or with ``lane_peer``."""
    SEND = 2
    """Messages to one peer."""
    RECV = 3
    """Messages from one peer."""
    COPY_OUT = 4
    """Offloads to host memory."""
    COPY_IN = 5
    """Reloads from host memory."""
    DATA_PARALLEL = 6
    """Collectives over the rank's data-parallel replicas."""
    TENSOR_PARALLEL = 7
    """Collectives of the rank's tensor-parallel group, where actions consist of segments."""
    EXPERT_PARALLEL = 8
    """Those of its expert-parallel group: dispatch and combine."""
    CONTEXT_PARALLEL = 9
    """Those of its context-parallel group."""

    @property
    def is_group(self) -> bool:
        """Whether it is one of the rank's own groups', whose communication is inside actions."""
        return self >= Stream.TENSOR_PARALLEL


class Role(IntEnum):
    """What an action does for its rank."""

    COMPUTE = 0
    """It keeps the compute stream busy."""
    SEND = 1
    """It is the sender's side of a message between ranks."""
    RECEIVE = 2
    """It is the receiver's side."""
    COPY = 3
    """It moves data between the device and its host."""
    COLLECTIVE = 4
    """It communicates, or ends communication, with the stage's data-parallel replicas."""


class Pass(IntEnum):
    """Which way through the model an action belongs to."""

    NEITHER = 0
    FORWARD = 1
    BACKWARD = 2


class Result(IntEnum):
    """What an action of a microbatch leaves, at most once per stage and microbatch; all below MADE are named."""

    ACTIVATION = 0
    GRADIENT = 1
    WEIGHT_GRADIENT = 2
    SENT_ACTIVATION = 3
    RECEIVED_ACTIVATION = 4
    SENT_GRADIENT = 5
    RECEIVED_GRADIENT = 6
    OFFLOADED = 7
    RELOADED = 8
    RECOMPUTED = 9
