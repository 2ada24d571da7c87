"""What a kernel that communicates carries: from its own arguments, else from what the host posted before it.

Sources: PyTorch's ``record_param_comms`` arguments as Kineto copies them onto kernels (appendCollectiveArgs), and
the annotations ``nccl:send 0->1`` and ``nccl:recv 1<-0`` of ProcessGroupNCCL, whose ranks are those of the group.
A batch of sends and receives is launched as one kernel without arguments, behind its annotations.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pptrace.model.action import COMMUNICATION, Kind
from pptrace_profilers.recording.recording import Said

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace.model.action import Action
    from pptrace_profilers.events.table import Arguments
    from pptrace_profilers.recording.recording import Ran

__all__ = ["ITEM_BYTES", "Post", "batched", "posted", "said_by", "size_of"]

ITEM_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "long int": 8, "int": 4, "short": 2,
    "short int": 2, "char": 1, "signed char": 1, "byte": 1, "unsigned char": 1, "bool": 1, "c10::half": 2,
    "c10::bfloat16": 2, "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Bytes of an element by its type, lower-case, as kernels and as operations of the host write it."""
_POST = re.compile(r"(?:nccl|gloo|ucc|mpi|xccl):(send|recv)(?: (\d+)(?:->|<-)(\d+))?")
_SENDS = frozenset({Kind.SEND_F, Kind.SEND_B})


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One annotation of a send or receive on the host."""

    at_ns: int
    """When it starts."""
    sends: bool
    """Whether it sends."""
    peer: int = -1
    """Global rank at the other end; -1 where it does not say."""
    size_bytes: int = 0
    """Its size; 0 where it does not say."""
    action: Action | None = None
    """The action that says the same."""


def posted(name: str, at_ns: int, members: Sequence[int]) -> Post | None:
    """Return what ``nccl:send 0->1`` posts; None for another name.

    Args:
        name: the annotation's.
        at_ns: its start.
        members: global ranks of the pipeline's group, empty where they are unknown.
    """
    match = _POST.fullmatch(name)
    if match is None:
        return None
    peer = int(match[3]) if match[3] is not None else -1
    return Post(at_ns=at_ns, sends=match[1] == "send", peer=members[peer] if 0 <= peer < len(members) else peer)


def said_by(arguments: Arguments) -> Said | None:
    """Return what a kernel's own arguments say; None where they say nothing."""
    if not isinstance(arguments.collective, str):
        return None
    sends = arguments.collective == "send"
    elements = arguments.in_elements if sends else arguments.out_elements
    item = ITEM_BYTES.get(str(arguments.dtype).lower(), 0)
    peer = arguments.target if sends else arguments.source
    return Said(
        what=arguments.collective,
        peer=peer if isinstance(peer, int) else -1,
        size_bytes=elements * item if isinstance(elements, int) else 0,
        group=str(arguments.group_description or arguments.group or ""),
    )


def size_of(arguments: Arguments | None) -> int:
    """Return the bytes of an annotation's inputs: their elements times the size of their type; 0 where unknown."""
    try:
        dims = json.loads(bytes(arguments.input_dims)) if arguments is not None else []
        types = json.loads(bytes(arguments.input_type)) if arguments is not None else []
        return sum(math.prod(d) * ITEM_BYTES.get(t.lower(), 0) for d, t in zip(dims, types, strict=True) if d)
    except (ValueError, TypeError, AttributeError):
        return 0


def batched(launches: Mapping[int, int], posts: Sequence[Post], ran: Sequence[Ran]) -> dict[int, tuple[Said, ...]]:
    """Return what kernels without arguments carry: all that was posted since the launch before.

    Args:
        launches: launch times of the kernels, by kernel.
        posts: annotations of sends and receives, by time.
        ran: actions by time; those that send or receive say which message, and stand for posts if there are none.
    """
    actions = [one for one in ran if one.action.kind in COMMUNICATION]
    marks = [Post(at_ns=one.start_ns, sends=one.action.kind in _SENDS, action=one.action) for one in actions]
    found: dict[int, tuple[Said, ...]] = {}
    since = -1
    for kernel, at in sorted(launches.items(), key=lambda one: one[1]):
        own, said = _between(posts, since, at), _between(marks, since, at)
        since = at
        if own:
            found[kernel] = tuple(_named(own, said))
        elif said:
            found[kernel] = tuple(Said(what="send" if one.sends else "recv", action=one.action) for one in said)
    return found


def _named(posts: Sequence[Post], marks: Sequence[Post]) -> list[Said]:
    """Return the posts, the k-th send with the k-th action that sends, likewise receives."""
    waiting = {sends: [one.action for one in marks if one.sends == sends] for sends in (True, False)}
    return [
        Said(
            what="send" if one.sends else "recv", peer=one.peer, size_bytes=one.size_bytes,
            action=waiting[one.sends].pop(0) if waiting[one.sends] else None,
        )
        for one in posts
    ]  # fmt: skip


def _between(posts: Sequence[Post], since: int, until: int) -> Sequence[Post]:
    """Return what was posted after one launch, up to another."""
    first, last = (bisect_right(posts, at, key=lambda one: one.at_ns) for at in (since, until))
    return posts[first:last]
