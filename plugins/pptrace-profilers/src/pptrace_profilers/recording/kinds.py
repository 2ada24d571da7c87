"""Sets of kinds that recordings tell apart, beside the core's own."""

from __future__ import annotations

from pptrace.plugin import Kind

__all__ = ["FORWARD_MESSAGES", "MESSAGE_KINDS", "PASSES", "SENDS"]

PASSES = frozenset({Kind.F, Kind.B, Kind.I, Kind.W})
"""Forward and backward of a stage, each of which may make a message."""
MESSAGE_KINDS = {
    (True, True): Kind.SEND_F, (False, True): Kind.RECV_F,
    (True, False): Kind.SEND_B, (False, False): Kind.RECV_B,
}  # fmt: skip
"""Kinds of a message's ends, by whether it leaves there and whether it is an activation."""
SENDS = frozenset(kind for (sends, _), kind in MESSAGE_KINDS.items() if sends)
"""Kinds of messages that leave."""
FORWARD_MESSAGES = frozenset(kind for (_, forward), kind in MESSAGE_KINDS.items() if forward)
"""Kinds of messages that carry activations."""
