"""Alignment of recordings: their steps, their messages and their clocks.

A message from a to b gives a lower bound of the offset of b's clock. A message from b to a gives an upper bound.
All bounds together leave an interval for the offset of each rank from rank 0. The offset is the middle of the
interval, and its error bound is half of the interval's length. The result does not depend on the initial clocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from pptrace.plugin import Clock, Kind, Unattributed, kinds
from pptrace_profilers.gpu_spans import window_around
from pptrace_profilers.recording import list_some, shift

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pptrace.plugin import Action, Int64s
    from pptrace_profilers.recording import Execution, MessageEnd, Recording

    Step = tuple[Recording, ...]

_UNBOUND = np.int64(2**62 - 1)
"""Larger than times since 1970; sums of two do not overflow."""


def align(ranks: int, transfers: Sequence[tuple[int, int, int, int]]) -> list[Clock]:
    """Return each rank's clock.

    Args:
        ranks: number of ranks.
        transfers: sender, receiver, post time and arrival time of each message, by the clocks of these ranks.

    A rank without messages to and from rank 0, directly or indirectly, keeps its clock (0 pairs).
    """
    # slack[a, b]: upper bound of the offset of b minus the offset of a.
    slack = np.full((ranks, ranks), _UNBOUND, dtype=np.int64)
    np.fill_diagonal(slack, 0)
    pairs = np.zeros(ranks, dtype=np.int64)
    for source, target, posted, arrived in transfers:
        # With any offsets, a message arrives no earlier than it was posted.
        slack[target, source] = min(slack[target, source], arrived - posted)
        pairs[source] += 1
        pairs[target] += 1
    for middle in range(ranks):
        slack = np.minimum(slack, np.minimum(slack[:, [middle]] + slack[[middle], :], _UNBOUND))
    return [_clock(rank, slack, int(pairs[rank])) for rank in range(ranks)]


def _clock(rank: int, slack: Int64s, pairs: int) -> Clock:
    most, least = int(slack[0, rank]), -int(slack[rank, 0])
    half = _UNBOUND // 2
    if rank == 0 or most > half or least < -half:
        return Clock(rank=rank, offset_ns=0, bound_ns=0, pairs=0)
    return Clock(
        rank=rank, offset_ns=(most + least) // 2, bound_ns=abs(most - least) // 2, pairs=pairs,
        contradicted_ns=max(least - most, 0),
    )  # fmt: skip


_MOST_NAMED = 8
"""Maximum number of steps that a note lists."""


def split_steps(recordings: Sequence[Recording]) -> tuple[list[str], list[Step], list[str]]:
    """Return the labels of steps, the part of each recording in each step, and notes on dropped events.

    Steps are those that the profiler marked on every rank. Without such marks, the k-th run of an action belongs
    to the k-th step. An action without a microbatch belongs to the step at its time.
    """
    marked = [dict.fromkeys(label for label, _, _ in recording.windows) for recording in recordings]
    labels = [label for label in marked[0] if all(label in rank_labels for rank_labels in marked)]
    is_marked = bool(labels)
    if is_marked:
        numbers = [_by_mark(recording, labels) for recording in recordings]
    else:
        numbers = [_by_repetition(recording) for recording in recordings]
        count = 1 + max(max(rank_numbers, default=-1) for rank_numbers in numbers)
        labels = [f"step {number}" for number in range(count)]
    steps = _split_recordings(recordings, numbers, len(labels))
    if not is_marked:
        note = "no step is marked on every rank: the k-th run of each action is assigned to the k-th step"
        return labels, steps, [note] if any(marked) else []
    notes = list(_omission_notes(recordings, numbers, marked, labels))
    return _split_repetitions(labels, steps, notes)


def _split_recordings(recordings: Sequence[Recording], numbers: Sequence[Sequence[int]], count: int) -> list[Step]:
    """Split recordings into steps by the step of each action and message."""
    return list(zip(*map(_split_recording, recordings, numbers, [count] * len(recordings)), strict=True))


def _split_recording(recording: Recording, numbers: Sequence[int], count: int) -> list[Recording]:
    executions: list[list[Execution]] = [[] for _ in range(count)]
    ends: list[list[MessageEnd]] = [[] for _ in range(count)]
    for execution, step in zip(recording.executions, numbers, strict=False):
        if step >= 0:
            executions[step].append(execution)
    for end, step in zip(recording.ends, numbers[len(recording.executions) :], strict=True):
        if step >= 0:
            ends[step].append(end)
    return [
        replace(recording, executions=tuple(executions[step]), ends=tuple(ends[step])) for step in range(count)
    ]


def _split_repetitions(
    labels: Sequence[str], steps: Sequence[Step], notes: list[str]
) -> tuple[list[str], list[Step], list[str]]:
    """Split marked steps in which actions repeat: a mark may enclose several runs of a schedule."""
    names: list[str] = []
    single_steps: list[Step] = []
    for label, step in zip(labels, steps, strict=True):
        parts = [replace(part, ends=tuple(sorted(part.ends, key=lambda end: end.host_ns))) for part in step]
        numbers = [_by_repetition(part) for part in parts]
        times = 1 + max(0, *(max(number, default=0) for number in numbers))
        single_steps += _split_recordings(parts, numbers, times)
        names += [label] if times == 1 else [f"{label}, {number + 1} of {times}" for number in range(times)]
        if times > 1:
            notes.append(f"{label} holds actions {times} times: split into {times} steps")
    return names, single_steps, notes


def _omission_notes(
    recordings: Sequence[Recording], numbers: Sequence[Sequence[int]], marked: Sequence[Collection[str]],
    labels: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    """Yield notes on marked steps that some ranks lack, and on actions outside of all steps."""
    partial = [label for label in dict.fromkeys(label for rank in marked for label in rank) if label not in labels]
    if partial:
        verb = "is" if len(partial) == 1 else "are"
        yield f"{list_some(partial, len(partial), _MOST_NAMED)} {verb} not marked on every rank: left out"
        return
    for recording, number in zip(recordings, numbers, strict=True):
        steps = zip(recording.executions, number, strict=False)
        outside = [str(execution.action) for execution, step in steps if step < 0]
        if outside:
            count = "1 action is" if len(outside) == 1 else f"{len(outside):,} actions are"
            yield f"{recording.path.name}: {count} outside of all steps, {outside[0]} first: left out"


def _by_mark(recording: Recording, labels: Sequence[str]) -> list[int]:
    """Return the step of each action, then of each message; -1 outside of all steps."""
    windows = sorted(
        (start, end, labels.index(label)) for label, start, end in recording.windows if label in labels
    )
    steps = np.array([*(number for _, _, number in windows), -1], dtype=np.int64)
    starts_ns = [
        *(execution.start_ns for execution in recording.executions),
        *(end.host_ns for end in recording.ends),
    ]
    numbers: list[int] = steps[window_around([window[:2] for window in windows], starts_ns)].tolist()
    return numbers


def _by_repetition(recording: Recording) -> list[int]:
    """Return the step of each action, then of each message, by counting repetitions."""
    times: dict[str, int] = defaultdict(int)
    starts: list[int] = []
    steps: list[int] = []
    for execution in recording.executions:
        if execution.action.microbatch < 0:
            steps.append(max(len(starts) - 1, 0))
            continue
        name = str(execution.action)
        steps.append(times[name])
        times[name] += 1
        if len(starts) < times[name]:
            starts.append(execution.start_ns)
    if not starts:
        return [*steps, *[-1] * len(recording.ends)]
    latest = np.searchsorted(starts, [end.host_ns for end in recording.ends], side="right") - 1
    ended = np.maximum.accumulate(
        np.array([execution.end_ns for execution in recording.executions], dtype=np.int64)
    )
    wait_ends_ns = [end.end_ns if end.posted_ns < 0 else end.posted_ns for end in recording.ends]
    needed = np.searchsorted(ended, wait_ends_ns, side="right")
    # A receive belongs to the step of the action that ends next.
    waits = np.array([not end.sends for end in recording.ends], dtype=bool)
    waited_step = np.array(steps, dtype=np.int64)[np.minimum(needed, len(steps) - 1)]
    return [*steps, *np.where(waits, waited_step, np.maximum(latest, 0)).tolist()]


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
            what=f"{what} {f'rank {peer}' if peer >= 0 else 'an unknown rank'} without a matching end",
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
