"""Which action made which message, where a rank's host says when it launched both."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pptrace_profilers.inference.chains import Part
    from pptrace_profilers.recording.recording import MessageEnd

__all__ = ["NOBODY", "Input", "Known", "Messages", "messages_of"]

NOBODY = -1
"""Stands for the peer of what sends nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of an action whose stage is not."""

    forward: bool
    """Whether it goes forward."""
    second: bool
    """Whether it is a weight gradient by itself, which takes and sends nothing."""
    start_ns: int
    """When its work begins."""
    pair: int
    """Number on its rank of the forward that it goes back through; -1 where nobody knows, and for a forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A message as it arrives."""

    maker: tuple[int, int]
    """The rank of the action that made it, and its number there."""
    there_ns: int
    """When the kernel that brought it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Who made which message, if microbatches take some way."""

    sent_to: Sequence[Sequence[int]]
    """By rank and action, the rank that its output went to; :data:`NOBODY` for none."""
    inputs: Mapping[tuple[int, int, bool], Sequence[Input]]
    """By target, source and whether they are activations, what arrives, in order."""
    linked: int
    """Messages of which both ends are there and an action made them."""


def messages_of(
    parts: Sequence[Part], known: Sequence[Sequence[Known]], route: Sequence[int], *, gradient_first: bool
) -> Messages:
    """Find the makers of a step's messages.

    Args:
        parts: what each rank did, by launch.
        known: its actions.
        route: the rank of each stage.
        gradient_first: of a gradient and an activation that were posted together to one rank, which comes first.
    """
    sent_to: list[list[int]] = []
    made: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, part in enumerate(parts):
        sends = sorted((end for end in part.ends if end.sends and end.peer >= 0), key=_host_ns)
        makers = _makers(part, known[rank], sends, _Rules.of(route, rank, gradient_first=gradient_first))
        peers = [NOBODY] * len(part.runs)
        for send, maker in zip(sends, makers, strict=True):
            made[rank, send.peer].append(maker)
            if maker >= 0:
                peers[maker] = send.peer
        sent_to.append(peers)
    inputs: dict[tuple[int, int, bool], list[Input]] = defaultdict(list)
    linked = 0
    for target, part in enumerate(parts):
        for source in range(len(parts)):
            receives = sorted((end for end in part.ends if not end.sends and end.peer == source), key=_host_ns)
            for maker, receive in zip(made[source, target], receives, strict=False):
                if maker >= 0:
                    one = Input(maker=(source, maker), there_ns=receive.end_ns)
                    inputs[target, source, known[source][maker].forward].append(one)
                    linked += 1
    return Messages(sent_to=sent_to, inputs=inputs, linked=linked)


def _host_ns(end: MessageEnd) -> int:
    return end.host_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What the way says of one rank's messages, activations first."""

    takers: tuple[frozenset[int], frozenset[int]]
    """To which ranks they may go."""
    always: tuple[bool, bool]
    """Whether each action sends one: on the last stage no forward does, nor what a rank hands over to itself."""
    gradient_first: bool
    """Of both that were posted together to one rank, which comes first."""

    @classmethod
    def of(cls, route: Sequence[int], rank: int, *, gradient_first: bool) -> _Rules:
        goes = [
            [after[stage] for stage, at in enumerate(route) if at == rank]
            for after in ((*route[1:], NOBODY), (NOBODY, *route[:-1]))
        ]
        forward, backward = (frozenset(ranks) - {rank, NOBODY} for ranks in goes)
        return cls(
            takers=(forward, backward), gradient_first=gradient_first,
            always=(not {rank, NOBODY} & set(goes[0]), not {rank, NOBODY} & set(goes[1])),
        )  # fmt: skip


def _makers(part: Part, known: Sequence[Known], sends: Sequence[MessageEnd], rules: _Rules) -> list[int]:
    """Return which action made each message that leaves, by launch; -1 for none."""
    begun = np.searchsorted([run.start_ns for run in part.runs], [send.host_ns for send in sends], side="right")
    makers = [-1] * len(sends)
    taken: set[int] = set()
    for last in np.unique(begun).tolist():
        block = np.flatnonzero(begun == last).tolist()
        ready = [number for number in _latest(known, last - 1) if number not in taken]
        if len(block) > 1:
            ready.sort(key=lambda number: known[number].forward == rules.gradient_first)
        else:  # of two that may have made it that one which must have, else the later one
            ready.sort(key=lambda number: (not rules.always[not known[number].forward], -number))
        for place in block:
            fitting = (one for one in ready if sends[place].peer in rules.takers[not known[one].forward])
            maker = next(fitting, -1)
            makers[place] = maker
            if maker >= 0:
                taken.add(maker)
                ready.remove(maker)
    return makers


def _latest(known: Sequence[Known], last: int) -> list[int]:
    """Return the last action up to one that may send, and the last one of the other direction."""
    found: dict[bool, int] = {}
    for number in range(last, -1, -1):
        if not known[number].second:
            found.setdefault(known[number].forward, number)
        if len(found) == len((True, False)):
            break
    return list(found.values())
