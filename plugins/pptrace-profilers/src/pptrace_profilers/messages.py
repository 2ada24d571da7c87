"""Messages of a recording, and their microbatches."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace.plugin import Kind, Unattributed, kinds
from pptrace_profilers.recording import shift

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pptrace.plugin import Action, Clock
    from pptrace_profilers.recording import MessageEnd, Recording

Kernel = tuple[int, int, int, int, int]
"""A kernel with messages: rank, stream, launch, start and end."""
_Key = tuple[bool, int, int]
"""Whether a message is an activation, the stage that sends it, and its first microbatch."""


@dataclass(slots=True)
class Message:
    """A message; :func:`shift_message` aligns its clocks."""

    source: int
    """The sending rank; -1 if unknown."""
    target: int
    """The receiving rank; -1 if unknown."""
    sent: MessageEnd | None
    """The sender's end; None if not recorded."""
    received: MessageEnd | None
    """The receiver's end; None if not recorded."""
    forward: bool = True
    """Whether it is an activation."""
    stage: int = -1
    """The sending stage; -1 if unknown."""
    microbatch: int = -1
    """The first microbatch."""
    span: int = 1
    """Number of microbatches."""

    @property
    def to_stage(self) -> int:
        """Return the receiving stage."""
        return self.stage + (1 if self.forward else -1)


def match_ends(ranks: Sequence[Recording], unattributed: list[Unattributed]) -> list[Message]:
    """Return a step's messages.

    Ends with the same action match in any order. The remaining ends match in the order of their times, per pair
    of ranks. An unmatched end is a message if it has an action, and is counted.
    """
    messages, unmatched_sends, unmatched_receives = _by_action(ranks)
    for source in range(len(ranks)):
        for target in range(len(ranks)):
            sent = [end for end in unmatched_sends[source] if end.peer == target]
            received = [end for end in unmatched_receives[target] if end.peer == source]
            for send, receive in zip(sent, received, strict=False):
                messages.append(_message(source, target, send, receive))
                unmatched_sends[source].remove(send)
                unmatched_receives[target].remove(receive)
    for rank in range(len(ranks)):
        for ends, what in ((unmatched_sends[rank], "sends to"), (unmatched_receives[rank], "receives from")):
            messages += [
                _message(rank, end.peer, end, None) if end.sends else _message(end.peer, rank, None, end)
                for end in ends
                if end.action is not None
            ]
            unattributed += _count_unmatched(rank, what, ends)
    return messages


def _count_unmatched(rank: int, what: str, ends: Sequence[MessageEnd]) -> list[Unattributed]:
    by_peer: dict[int, list[int]] = defaultdict(list)
    for end in ends:
        by_peer[end.peer].append(end.end_ns - end.start_ns)
    return [
        Unattributed(
            rank=rank, count=len(times), total_ns=sum(times),
            what=f"{what} {f'rank {peer}' if peer >= 0 else 'a rank that nothing names'} without another end",
        )
        for peer, times in sorted(by_peer.items())
    ]  # fmt: skip


def _by_action(ranks: Sequence[Recording]) -> tuple[list[Message], list[list[MessageEnd]], list[list[MessageEnd]]]:
    """Return messages with an action at both ends, and all other ends by rank."""
    sent: dict[_Key, tuple[int, MessageEnd]] = {}
    received: dict[_Key, tuple[int, MessageEnd]] = {}
    unmatched: tuple[list[list[MessageEnd]], list[list[MessageEnd]]] = ([[] for _ in ranks], [[] for _ in ranks])
    for number, rank in enumerate(ranks):
        for end in rank.ends:
            named, unnamed = (sent, unmatched[0]) if end.sends else (received, unmatched[1])
            if end.action is None:
                unnamed[number].append(end)
                continue
            key = _message_key(end.action)
            if key in named and named[key][0] == number:
                named[key] = (number, _join_parts(named[key][1], end))
            else:
                named.setdefault(key, (number, end))
    messages = []
    for key in sent.keys() & received.keys():
        (source, send), (target, receive) = sent[key], received[key]
        messages.append(_message(source, target, send, receive))
    for key in sent.keys() ^ received.keys():
        number, end = sent.get(key) or received[key]
        (unmatched[0] if key in sent else unmatched[1])[number].append(end)
    for ends in (*unmatched[0], *unmatched[1]):
        ends.sort(key=lambda end: end.start_ns)
    return sorted(messages, key=_begin), *unmatched


def _message_key(action: Action) -> _Key:
    forward = action.kind.traits.direction is kinds.Pass.FORWARD
    if action.kind in kinds.SENDS:
        return forward, action.stage, action.microbatch
    return forward, action.stage - (1 if forward else -1), action.microbatch


def _join_parts(end: MessageEnd, part: MessageEnd) -> MessageEnd:
    """Return the end of a message in several parts, one per tensor."""
    return replace(
        end, start_ns=min(end.start_ns, part.start_ns), end_ns=max(end.end_ns, part.end_ns),
        size_bytes=end.size_bytes + part.size_bytes,
    )  # fmt: skip


def _begin(message: Message) -> int:
    end = message.sent or message.received
    return end.start_ns if end is not None else 0


def _message(source: int, target: int, sent: MessageEnd | None, received: MessageEnd | None) -> Message:
    """Return a message with the contents from the annotation of either end."""
    message = Message(source=source, target=target, sent=sent, received=received)
    actions = [end.action for end in (sent, received) if end is not None and end.action is not None]
    for action in actions[:1]:
        message.forward, message.stage, message.microbatch = _message_key(action)
        message.span = action.span
    return message


def kernel_of(rank: int, end: MessageEnd) -> Kernel | None:
    """Return the kernel of an end of a message; None for a post of the host."""
    return None if end.posted_ns < 0 else (rank, end.stream, end.posted_ns, end.start_ns, end.end_ns)


def kernel_payloads(messages: Iterable[Message]) -> Counter[Kernel | None]:
    """Return the number of message ends per kernel; 0 for the key None."""
    ends = (
        (rank, end)
        for message in messages
        for rank, end in ((message.source, message.sent), (message.target, message.received))
    )
    count = Counter(kernel_of(rank, end) for rank, end in ends if end is not None)
    del count[None]
    return count


def shift_message(message: Message, clocks: Sequence[Clock]) -> Message:
    """Return a message with both ends' times by rank 0's clock."""
    sent, received = (
        shift(end, clocks[rank].offset_ns) if end is not None and rank >= 0 else end
        for rank, end in ((message.source, message.sent), (message.target, message.received))
    )
    return replace(message, sent=sent, received=received)


def name_messages(
    ranks: Sequence[Recording], messages: Sequence[Message], unattributed: list[Unattributed]
) -> None:
    """Infer the contents of messages without annotations, and missing ranks, from the order of actions.

    Messages carry the outputs of their sender for stages of their receiver, in order. If outputs of several stages
    or directions differ in number from the messages, the contents stay unknown.
    """
    holders = _holders(ranks)
    named = {(message.forward, message.stage, message.microbatch) for message in messages if message.stage >= 0}
    unnamed: dict[tuple[int, int], list[Message]] = defaultdict(list)
    for message in messages:
        if message.stage >= 0:
            if message.source < 0:
                message.source = holders.get((message.stage, message.microbatch), message.source)
            if message.target < 0:
                message.target = holders.get((message.to_stage, message.microbatch), message.target)
        else:
            unnamed[message.source, message.target].append(message)
    for (source, target), pair_messages in unnamed.items():
        outputs = _outputs(ranks[source], target, holders) if source >= 0 else []
        outputs = [action for action in outputs if _microbatch_key(action) not in named]
        if len(pair_messages) != len(outputs) and len({_microbatch_key(action)[:2] for action in outputs}) > 1:
            outputs = []
        for message, action in zip(pair_messages, outputs, strict=False):
            message.forward, message.stage, message.microbatch = _microbatch_key(action)
            message.span = action.span
        if len(pair_messages) > len(outputs):
            unattributed.append(_nameless(source, target, pair_messages[len(outputs) :]))


def _holders(ranks: Sequence[Recording]) -> dict[tuple[int, int], int]:
    """Return the rank of each stage and microbatch."""
    holders: dict[tuple[int, int], int] = {}
    for number, rank in enumerate(ranks):
        for action in _passes(rank):
            for microbatch in range(action.microbatch, action.microbatch + action.span):
                holders.setdefault((action.stage, microbatch), number)
    return holders


def _passes(rank: Recording) -> Iterator[Action]:
    return (action for execution in rank.executions for action in execution.members if action.kind in kinds.PASSES)


def _outputs(rank: Recording, target: int, holders: Mapping[tuple[int, int], int]) -> list[Action]:
    """Return the actions of a rank whose activations or gradients another rank's stages receive, in order."""
    outputs = []
    for action in _passes(rank):
        next_stage = action.stage + (1 if action.kind is Kind.F else -1)
        if action.kind is not Kind.W and holders.get((next_stage, action.microbatch)) == target:
            outputs.append(action)
    return outputs


def _microbatch_key(action: Action) -> tuple[bool, int, int]:
    return action.kind is Kind.F, action.stage, action.microbatch


def _nameless(source: int, target: int, messages: Sequence[Message]) -> Unattributed:
    ends = [message.received for message in messages if message.received is not None]
    return Unattributed(
        rank=source, what=f"messages to rank {target} that no annotation names", count=len(messages),
        total_ns=sum(end.end_ns - end.start_ns for end in ends),
    )  # fmt: skip
