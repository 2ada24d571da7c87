"""What messages without annotations carry, from the order of actions."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pptrace.model.action import Kind
from pptrace.timeline.measurement import Unattributed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pptrace.model.action import Action
    from pptrace_profilers.assembly.messages import Message, RankStep

__all__ = ["name_messages"]

_COMPUTES = frozenset({Kind.F, Kind.B, Kind.I, Kind.W})


def name_messages(
    ranks: Sequence[RankStep], messages: Sequence[Message], unattributed: list[Unattributed]
) -> None:
    """Find out what messages without annotations carry, from the order of actions, and who the ends are.

    A message is what its sender computed for a stage of its receiver, in that order. Where that may be of several
    stages or directions, and there are more or fewer messages, nobody knows.
    """
    holders = _holders(ranks)
    named = {(one.forward, one.stage, one.unit) for one in messages if one.stage >= 0}
    for message in messages:
        if message.stage >= 0:
            message.source = _holder(message.source, holders.get((message.stage, message.unit)))
            message.target = _holder(message.target, holders.get((message.to_stage, message.unit)))
    unnamed: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for message in messages:
        if message.stage < 0:
            unnamed[message.source, message.target].append(message)
    for (source, target), own in unnamed.items():
        made = _made_for(ranks[source], target, holders) if source >= 0 else []
        made = [one for one in made if _key_of(one) not in named]
        if len(own) != len(made) and len({(one.kind is Kind.F, one.stage) for one in made}) > 1:
            made = []
        for message, action in zip(own, made, strict=False):
            message.forward, message.stage, message.unit = _key_of(action)
            message.span = action.span
        if len(own) > len(made):
            unattributed.append(_nameless(source, target, own[len(made) :]))


def _holders(ranks: Sequence[RankStep]) -> dict[tuple[int, int], int]:
    """Return which rank has a stage and microbatch."""
    found: dict[tuple[int, int], int] = {}
    for number, rank in enumerate(ranks):
        for action in _computations(rank):
            for unit in range(action.unit, action.unit + action.span):
                found.setdefault((action.stage, unit), number)
    return found


def _computations(rank: RankStep) -> Iterator[Action]:
    for one in rank.ran:
        for action in one.action.sub_actions or (one.action,):
            if action.kind in _COMPUTES:
                yield action


def _made_for(rank: RankStep, target: int, holders: Mapping[tuple[int, int], int]) -> list[Action]:
    """Return the actions of a rank whose activations or gradients another rank's stages take, in order."""
    return [
        one
        for one in _computations(rank)
        if one.kind is not Kind.W and holders.get((_taker(one), one.unit)) == target
    ]


def _taker(made: Action) -> int:
    return made.stage + (1 if made.kind is Kind.F else -1)


def _key_of(made: Action) -> tuple[bool, int, int]:
    return made.kind is Kind.F, made.stage, made.unit


def _holder(known: int, otherwise: int | None) -> int:
    return known if known >= 0 or otherwise is None else otherwise


def _nameless(source: int, target: int, messages: Sequence[Message]) -> Unattributed:
    ends = [one.received for one in messages if one.received is not None]
    return Unattributed(
        rank=source, what=f"messages to rank {target} that no annotation names", count=len(messages),
        total_ns=sum(end.end_ns - end.start_ns for end in ends),
    )  # fmt: skip
