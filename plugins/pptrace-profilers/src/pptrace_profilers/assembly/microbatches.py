"""What messages without annotations carry, from the order of actions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pptrace.plugin import PASSES, Kind, Unattributed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace.plugin import Action
    from pptrace_profilers.assembly.messages import Message
    from pptrace_profilers.recording.recording import Recording

__all__ = ["name_messages"]


def name_messages(
    ranks: Sequence[Recording], messages: Sequence[Message], unattributed: list[Unattributed]
) -> None:
    """Find out what messages without annotations carry, from the order of actions, and who the ends are.

    A message is what its sender computed for a stage of its receiver, in that order. Where that may be of several
    stages or directions, and there are more or fewer messages, nobody knows.
    """
    holders = _holders(ranks)
    named = {(one.forward, one.stage, one.microbatch) for one in messages if one.stage >= 0}
    unnamed: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for message in messages:
        if message.stage >= 0:
            if message.source < 0:
                message.source = holders.get((message.stage, message.microbatch), message.source)
            if message.target < 0:
                message.target = holders.get((message.to_stage, message.microbatch), message.target)
        else:
            unnamed[message.source, message.target].append(message)
    for (source, target), waiting in unnamed.items():
        outputs = _outputs(ranks[source], target, holders) if source >= 0 else []
        outputs = [action for action in outputs if _key(action) not in named]
        if len(waiting) != len(outputs) and len({_key(action)[:2] for action in outputs}) > 1:
            outputs = []
        for message, action in zip(waiting, outputs, strict=False):
            message.forward, message.stage, message.microbatch = _key(action)
            message.span = action.span
        if len(waiting) > len(outputs):
            unattributed.append(_nameless(source, target, waiting[len(outputs) :]))


def _holders(ranks: Sequence[Recording]) -> dict[tuple[int, int], int]:
    """Return which rank has a stage and microbatch."""
    holders: dict[tuple[int, int], int] = {}
    for number, rank in enumerate(ranks):
        for action in _passes(rank):
            for microbatch in range(action.microbatch, action.microbatch + action.span):
                holders.setdefault((action.stage, microbatch), number)
    return holders


def _passes(rank: Recording) -> Iterator[Action]:
    return (action for one in rank.executions for action in one.members if action.kind in PASSES)


def _outputs(rank: Recording, target: int, holders: Mapping[tuple[int, int], int]) -> list[Action]:
    """Return the actions of a rank whose activations or gradients another rank's stages take, in order."""
    return [
        action
        for action in _passes(rank)
        if action.kind is not Kind.W and holders.get((_taker(action), action.microbatch)) == target
    ]


def _taker(action: Action) -> int:
    return action.stage + (1 if action.kind is Kind.F else -1)


def _key(action: Action) -> tuple[bool, int, int]:
    return action.kind is Kind.F, action.stage, action.microbatch


def _nameless(source: int, target: int, messages: Sequence[Message]) -> Unattributed:
    ends = [message.received for message in messages if message.received is not None]
    return Unattributed(
        rank=source, what=f"messages to rank {target} that no annotation names", count=len(messages),
        total_ns=sum(end.end_ns - end.start_ns for end in ends),
    )  # fmt: skip
