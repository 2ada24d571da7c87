"""Enumerations of the values of settings, each with a short explanation."""

from __future__ import annotations

from enum import Enum
from typing import Self


class Choice(Enum):
    """A value of a setting: a word and its explanation.

    >>> StreamPer("pair").means
    'a rank and a peer, both directions together'
    """

    means: str
    """Explanation of the word, without a verb or a full stop."""

    def __new__(cls, word: str, means: str = "") -> Self:
        """Create a member from a word and its explanation."""
        member = object.__new__(cls)
        member._value_, member.means = word, means
        return member

    @classmethod
    def words(cls) -> tuple[str, ...]:
        """Return the words in their order."""
        return tuple(str(member.value) for member in cls)

    @classmethod
    def explanations(cls) -> str:
        """Return all words with their explanations as one line."""
        return ". ".join(f"`{member.value}`: {member.means}" for member in cls)


class PolicyName(Choice):
    """How messages between pipeline ranks are issued."""

    ASYNC = "async", "one task per message, on a stream per sender and receiver"
    SENDER_BLOCKING = "sender-blocking", "on the sender's compute stream, right after its producer"
    BLOCKING = "blocking", "a SEND and a RECV, each on its rank's compute stream"
    ORDERED = "ordered", "one rendezvous on both ranks' communication streams, in the order of their rows"
    BATCHED = "batched", "as ordered, with one launch and one wait for neighbouring messages of a row"


class StreamPer(Choice):
    """Granularity of communication streams under ``ordered``."""

    RANK = "rank", "a rank, all its messages one after another"
    PAIR = "pair", "a rank and a peer, both directions together"
    DIRECTION = "direction", "a rank, a peer and a direction"


class Receive(Choice):
    """Where a table without messages gets its receives."""

    ASAP = "asap", "as soon as its SEND is issued, as PyTorch does"
    DEFERRED = "deferred", "right before its use, as PyTorch's defer_pp_recv"


class Sharing(Choice):
    """What messages that meet on a link do."""

    NONE = "none", "no contention, each message has the full rate"
    FIFO = "fifo", "a message occupies all its links, and later ones queue in the order in which they are ready"
    MAX_MIN = "max-min", "messages share links fairly at every instant"


class Reshard(Choice):
    """When a rank frees weights that it gathered."""

    NEVER = "never", "after the stage's last pass, as torchtitan does with a pipeline"
    BACKWARD = "backward", "after each backward, for which the forward keeps them (reshard_after_forward: never)"
    FORWARD = "forward", "after each forward, for which the backward keeps them (reshard_after_forward: always)"
    ALWAYS = "always", "after each forward and backward, one layer at a time, as Megatron-FSDP does"


class ReduceGroups(Choice):
    """When gradients are reduced between shard groups."""

    EACH = "each", "with each reduction in the groups, as PyTorch's FSDP2 does"
    LAST = "last", "once per step, after the last one in the groups, as Megatron-FSDP does"


class Bridge(Choice):
    """Which GPUs exchange the messages between an encoder and a decoder on separate GPUs."""

    PIECES = "pieces", "all GPUs, of which those with a copy send different pieces of it"
    LEADERS = (
        "leaders",
        (
            "one GPU of each replica, which then broadcasts to its tensor-parallel group, as Megatron-LM's "
            "BridgeCommunicator does; needs cp 1"
        ),
    )


class Balance(Choice):
    """How documents are assigned to replicas and microbatches."""

    NONE = "none", "in order of arrival"
    ATTENTION = "attention", "by attention, the sum of squared lengths"
    WORK = "work", "by all FLOPs of a model's layers"


class Validation(Choice):
    """When a step learns the norm of all gradients."""

    BEFORE = "before", "all ranks meet before they update their weights"
    AFTER = "after", "each rank updates its weights at once and continues, as zero bubble's post-validation does"
    FAILED = "failed", "as after, with an update that is undone and repeated once all ranks have met"


class CopyStream(Choice):
    """Granularity of streams for copies to host memory and back."""

    DIRECTION = "direction", "a rank and a direction"
    RANK = "rank", "a rank, copies out and back one after another"
    PAIR = "pair", "ranks 2i and 2i + 1 and a direction, for two GPUs on one switch"
