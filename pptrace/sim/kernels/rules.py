"""Numbers that the kernels of lowering, and those who call them, share."""

from pptrace.model.kinds import Kind, Pass, Role, Stream

__all__ = [
    "AHEAD",
    "BYTE",
    "COMPUTES",
    "COMPUTE_STREAM",
    "FORWARD",
    "FREES",
    "GATHERS",
    "LINE",
    "NO_RECEIVE",
    "ON_COMPUTE",
    "OWN_TASK",
    "PER_DIRECTION",
    "PER_PAIR",
    "PER_RANK",
    "RECEIVES",
    "RENDEZVOUS",
    "SENDS",
]

LINE = 8
"""Values of the widest columns that share a line of the processor's caches."""

AHEAD = 2 * LINE
"""How many places ahead a lane's columns are brought near: memory takes as long as a few tasks."""

BYTE = 1_000_000
"""Volume is counted in millionths of a byte, so that a rate in kB/s is so many of them per ns."""

# Where a message's two sides are: on the compute stream, on a stream per peer and direction, on the
# rank's one communication stream, or on one per peer.
ON_COMPUTE, PER_DIRECTION, PER_RANK, PER_PAIR = 0, 1, 2, 3

# What a receiver's side is: nothing, a task of its own, or the sender's (a rendezvous).
NO_RECEIVE, OWN_TASK, RENDEZVOUS = 0, 1, 2

COMPUTES, SENDS, RECEIVES = int(Role.COMPUTE), int(Role.SEND), int(Role.RECEIVE)
FORWARD = int(Pass.FORWARD)
COMPUTE_STREAM = int(Stream.COMPUTE)
GATHERS, FREES = int(Kind.UNSHARD), int(Kind.RESHARD)
