"""Alignment of recordings: their steps, their messages and their clocks.

A message from a to b gives a lower bound of the offset of b's clock. A message from b to a gives an upper bound.
All bounds together leave an interval for the offset of each rank from rank 0. The offset is the middle of the
interval, and its error bound is half of the interval's length. The result does not depend on the initial clocks.

Two kinds of knowledge take precedence where messages do not contradict them: ranks of one host share its clock,
and clocks of an earlier run of the same job have not changed. Messages that became slow in one direction move the
middle of an interval, and would seem slow in both directions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.plugin import Clock, Kind, Unattributed, kinds
from pptrace_profilers.gpu_spans import totals, window_around
from pptrace_profilers.recording import MessageEnds, list_some, members_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pptrace.plugin import Action, Int64s
    from pptrace_profilers.recording import Bools, Recording

    Step = tuple[Recording, ...]
    Transfers = tuple[Int64s, Int64s, Int64s, Int64s]

_UNBOUND = np.int64(2**62 - 1)
"""Larger than times since 1970; sums of two do not overflow."""


def align(ranks: int, transfers: Transfers, hosts: Sequence[str] = (), earlier: Sequence[int] = ()) -> list[Clock]:
    """Return each rank's clock.

    Args:
        ranks: number of ranks.
        transfers: sender, receiver, post time and arrival time of each message, by the clocks of these ranks.
        hosts: the host of each rank, which have a clock each; empty where a host is unknown.
        earlier: each rank's offset in an earlier run, in nanoseconds; empty for none.

    A rank without messages to and from rank 0, directly or indirectly, keeps its clock (0 pairs).
    """
    source, target, posted_ns, arrived_ns = transfers
    # slack[a, b]: upper bound of the offset of b minus the offset of a.
    slack = np.full((ranks, ranks), _UNBOUND, dtype=np.int64)
    np.fill_diagonal(slack, 0)
    # With any offsets, a message arrives no earlier than it was posted.
    np.minimum.at(slack, (target, source), arrived_ns - posted_ns)
    pairs = np.bincount(np.concatenate([source, target]), minlength=ranks)
    slack = _closed(slack)
    shared = _sharing_a_clock(slack, hosts)
    if shared.any():
        slack = _closed(np.where(shared, 0, slack))
    clocks = [_clock(rank, slack, int(pairs[rank])) for rank in range(ranks)]
    known = [replace(clock, offset_ns=offset) for clock, offset in zip(clocks, earlier, strict=False)]
    offset_ns = np.array([clock.offset_ns for clock in known], dtype=np.int64)
    is_kept = known and np.all(offset_ns - offset_ns[:, None] <= slack)
    return [
        replace(clock, pairs=0) if shared[0, clock.rank] else clock for clock in (known if is_kept else clocks)
    ]


def _closed(slack: Int64s) -> Int64s:
    """Return the least upper bounds that follow from bounds of pairs of ranks, shape (ranks, ranks)."""
    for middle in range(len(slack)):
        slack = np.minimum(slack, np.minimum(slack[:, [middle]] + slack[[middle], :], _UNBOUND))
    return slack


_READING_NS = 50_000
"""The error of a time that is read from a clock: a larger contradiction shows that clocks differ."""


def _sharing_a_clock(slack: Int64s, hosts: Sequence[str]) -> Bools:
    """Return the pairs of different ranks of one host whose messages allow equal clocks, shape (ranks, ranks)."""
    names = np.array(hosts or [""] * len(slack))
    same = (names == names[:, None]) & (names != "") & ~np.eye(len(slack), dtype=bool)
    shared: Bools = same & (slack >= -_READING_NS) & (slack.T >= -_READING_NS)
    return shared


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
        count = 1 + max(rank_numbers.max(initial=-1) for rank_numbers in numbers)
        labels = [f"step {number}" for number in range(count)]
    steps = _split_recordings(recordings, numbers, len(labels))
    if not is_marked:
        note = "no step is marked on every rank: the k-th run of each action is assigned to the k-th step"
        return labels, steps, [note] if any(marked) else []
    notes = list(_omission_notes(recordings, numbers, marked, labels))
    return _split_repetitions(labels, steps, notes)


def _split_recordings(recordings: Sequence[Recording], numbers: Sequence[Int64s], count: int) -> list[Step]:
    """Split recordings into steps by the step of each action and message."""
    return list(zip(*map(_split_recording, recordings, numbers, [count] * len(recordings)), strict=True))


def _split_recording(recording: Recording, numbers: Int64s, count: int) -> list[Recording]:
    actions, ends = (_rows_of_steps(part, count) for part in np.split(numbers, [len(recording.executions)]))
    return [
        replace(
            recording, executions=recording.executions.of_rows(actions[step]),
            ends=recording.ends.of_rows(ends[step]),
        )
        for step in range(count)
    ]  # fmt: skip


def _rows_of_steps(numbers: Int64s, count: int) -> list[Int64s]:
    """Return the rows of each step, in their order."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.searchsorted(numbers[order], np.arange(count + 1)))[1:-1]


def _split_repetitions(
    labels: Sequence[str], steps: Sequence[Step], notes: list[str]
) -> tuple[list[str], list[Step], list[str]]:
    """Split marked steps in which actions repeat: a mark may enclose several runs of a schedule."""
    names: list[str] = []
    single_steps: list[Step] = []
    for label, step in zip(labels, steps, strict=True):
        parts = [replace(part, ends=part.ends.sorted_by(part.ends.host_ns)) for part in step]
        numbers = [_by_repetition(part) for part in parts]
        times = 1 + max(number.max(initial=0) for number in numbers)
        single_steps += _split_recordings(parts, numbers, times)
        names += [label] if times == 1 else [f"{label}, {number + 1} of {times}" for number in range(times)]
        if times > 1:
            notes.append(f"{label} holds actions {times} times: split into {times} steps")
    return names, single_steps, notes


def _omission_notes(
    recordings: Sequence[Recording], numbers: Sequence[Int64s], marked: Sequence[Collection[str]],
    labels: Sequence[str],
) -> Iterator[str]:  # fmt: skip
    """Yield notes on marked steps that some ranks lack, and on actions outside of all steps."""
    partial = [label for label in dict.fromkeys(label for rank in marked for label in rank) if label not in labels]
    if partial:
        verb = "is" if len(partial) == 1 else "are"
        yield f"{list_some(partial, len(partial), _MOST_NAMED)} {verb} not marked on every rank: skipped"
        return
    for recording, number in zip(recordings, numbers, strict=True):
        outside = recording.executions.action[number[: len(recording.executions)] < 0]
        if outside.size:
            count = "1 action is" if outside.size == 1 else f"{outside.size:,} actions are"
            yield f"{recording.path.name}: {count} outside of all steps, {outside[0]} first: skipped"


def _by_mark(recording: Recording, labels: Sequence[str]) -> Int64s:
    """Return the step of each action, then of each message; -1 outside of all steps."""
    windows = sorted(
        (start, end, labels.index(label)) for label, start, end in recording.windows if label in labels
    )
    steps = np.array([*(number for _, _, number in windows), -1], dtype=np.int64)
    starts_ns = np.concatenate([recording.executions.start_ns, recording.ends.host_ns])
    return steps[window_around([window[:2] for window in windows], starts_ns)]


def _by_repetition(recording: Recording) -> Int64s:
    """Return the step of each action, then of each message, by counting repetitions."""
    executions, ends = recording.executions, recording.ends
    times: Counter[Action] = Counter()
    starts: list[int] = []
    steps: list[int] = []
    for action, start_ns in zip(executions.action, executions.start_ns.tolist(), strict=True):
        if action.microbatch < 0:
            steps.append(max(len(starts) - 1, 0))
            continue
        steps.append(times[action])
        times[action] += 1
        if len(starts) < times[action]:
            starts.append(start_ns)
    if not starts:
        return np.array([*steps, *[-1] * len(ends)], dtype=np.int64)
    latest = np.searchsorted(starts, ends.host_ns, side="right") - 1
    wait_ends_ns = np.where(ends.posted_ns < 0, ends.end_ns, ends.posted_ns)
    # A receive belongs to the step of the action that ends next.
    needed = np.searchsorted(np.maximum.accumulate(executions.end_ns), wait_ends_ns, side="right")
    waited_step = np.array(steps)[np.minimum(needed, len(steps) - 1)]
    return np.concatenate([steps, np.where(ends.sends, np.maximum(latest, 0), waited_step)])


_Key = tuple[bool, int, int]
"""Whether a message is an activation, the stage that sends it, and its first microbatch."""


class Messages(Struct, frozen=True, kw_only=True):
    """Messages of a step, one value per message; :func:`shift_messages` aligns their clocks."""

    ends: MessageEnds
    """Ends of messages on all ranks."""
    rank: Int64s
    """Rank of each end."""
    sent: Int64s
    """Row of the sender's end; -1 if not recorded."""
    received: Int64s
    """Row of the receiver's end; -1 if not recorded."""
    source: Int64s
    """The sending rank; -1 if unknown."""
    target: Int64s
    """The receiving rank; -1 if unknown."""
    forward: Bools
    """Whether it is an activation."""
    stage: Int64s
    """The sending stage; -1 if unknown."""
    microbatch: Int64s
    """The first microbatch."""
    span: Int64s
    """Number of microbatches."""

    @property
    def to_stage(self) -> Int64s:
        """Return the receiving stages."""
        return self.stage + np.where(self.forward, 1, -1)


def match_ends(ranks: Sequence[Recording], unattributed: list[Unattributed]) -> Messages:
    """Return a step's messages.

    Ends with the same action match in any order. The remaining ends match in the order of their times, per pair
    of ranks. An unmatched end is a message if it has an action, and is counted.
    """
    rank = np.repeat(np.arange(len(ranks)), [len(recording.ends) for recording in ranks])
    ends, pairs, unmatched = _by_action(MessageEnds.concatenate([recording.ends for recording in ranks]), rank)
    links: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for row in unmatched.tolist():
        here, peer = int(rank[row]), int(ends.peer[row])
        if ends.sends[row]:
            links[here, peer][0].append(row)
        else:
            links[peer, here][1].append(row)
    in_order = [pair for link in sorted(links) for pair in zip(*links[link], strict=False)]
    unmatched = unmatched[~np.isin(unmatched, in_order)]
    single = []
    for number in range(len(ranks)):
        for sends, what in ((True, "sends to"), (False, "receives from")):
            rows = unmatched[(rank[unmatched] == number) & (ends.sends[unmatched] == sends)]
            single += [(row, -1) if sends else (-1, row) for row in rows.tolist() if ends.action[row] is not None]
            unattributed += _count_unmatched(number, what, ends.of_rows(rows))
    sent, received = np.array([*pairs, *in_order, *single], dtype=np.int64).reshape(-1, 2).T
    actions = np.array([*ends.action, None])
    contents = [_content(send or receive) for send, receive in zip(actions[sent], actions[received], strict=True)]
    forward, stage, microbatch, span = np.array(contents, dtype=np.int64).reshape(-1, 4).T
    return Messages(
        ends=ends, rank=rank, sent=sent, received=received,
        source=np.where(sent >= 0, rank[sent], ends.peer[received]),
        target=np.where(received >= 0, rank[received], ends.peer[sent]),
        forward=forward > 0, stage=stage, microbatch=microbatch, span=span,
    )  # fmt: skip


def _content(action: Action | None) -> tuple[bool, int, int, int]:
    """Return whether a message is an activation, its sending stage, its first microbatch and their number."""
    return (True, -1, -1, 1) if action is None else (*_message_key(action), action.span)


def _count_unmatched(rank: int, what: str, ends: MessageEnds) -> list[Unattributed]:
    columns = totals(ends.peer, ends.end_ns - ends.start_ns)
    return [
        Unattributed(
            rank=rank, count=count, total_ns=total_ns,
            what=f"{what} {f'rank {peer}' if peer >= 0 else 'an unknown rank'} without a matching end",
        )
        for peer, count, total_ns in zip(*(column.tolist() for column in columns), strict=True)
    ]  # fmt: skip


def _by_action(ends: MessageEnds, rank: Int64s) -> tuple[MessageEnds, list[tuple[int, int]], Int64s]:
    """Match ends with the same action, by the time of the send.

    A message can have several parts, one per tensor, with the same action on one rank.

    Returns:
        The ends, of which the first has the times and the size of all parts of its message; the rows of both ends
        of each message; and the rows of all other ends by time.
    """
    rows_of: dict[bool, dict[_Key, int]] = {True: {}, False: {}}
    first = np.arange(len(ends))
    for row, (action, sends) in enumerate(zip(ends.action, ends.sends.tolist(), strict=True)):
        if action is not None:
            first[row] = rows_of[sends].setdefault(_message_key(action), row)
    parts = np.flatnonzero(rank[first] == rank)
    start_ns, end_ns, size_bytes = ends.start_ns.copy(), ends.end_ns.copy(), np.zeros_like(ends.size_bytes)
    np.minimum.at(start_ns, first[parts], ends.start_ns[parts])
    np.maximum.at(end_ns, first[parts], ends.end_ns[parts])
    np.add.at(size_bytes, first[parts], ends.size_bytes[parts])
    sent, received = rows_of[True], rows_of[False]
    pairs = sorted(
        ((sent[key], received[key]) for key in sent.keys() & received.keys()), key=lambda pair: start_ns[pair[0]]
    )
    is_named = np.array([action is not None for action in ends.action], dtype=bool)
    by_time = np.lexsort((is_named, start_ns))
    is_left = first == np.arange(len(ends))
    is_left[np.array(pairs, dtype=np.int64)] = False
    ends = ends.with_columns(start_ns=start_ns, end_ns=end_ns, size_bytes=size_bytes)
    return ends, pairs, by_time[is_left[by_time]]


def _message_key(action: Action) -> _Key:
    forward = action.kind.traits.direction is kinds.Pass.FORWARD
    if action.kind in kinds.SENDS:
        return forward, action.stage, action.microbatch
    return forward, action.stage - (1 if forward else -1), action.microbatch


def count_payloads(steps: Sequence[Messages]) -> list[Int64s]:
    """Return for each step the number of messages of each end's kernel; 0 for a post of the host."""
    kernels: list[list[tuple[int, ...]]] = []
    count: Counter[tuple[int, ...]] = Counter()
    for step in steps:
        columns = step.rank, step.ends.stream, step.ends.posted_ns, step.ends.start_ns, step.ends.end_ns
        kernels.append(list(zip(*(column.tolist() for column in columns), strict=True)))
        carried = np.concatenate([step.sent, step.received])
        count.update(kernels[-1][row] for row in carried[carried >= 0].tolist())
    return [
        np.where(step.ends.posted_ns < 0, 0, np.array([count[kernel] for kernel in of_ends], dtype=np.int64))
        for step, of_ends in zip(steps, kernels, strict=True)
    ]


def shift_messages(messages: Messages, clocks: Sequence[Clock]) -> Messages:
    """Return messages with the times of all ends by rank 0's clock."""
    offset_ns = np.array([clock.offset_ns for clock in clocks], dtype=np.int64)[messages.rank]
    ends = messages.ends
    return replace(
        messages, ends=ends.with_columns(start_ns=ends.start_ns + offset_ns, end_ns=ends.end_ns + offset_ns)
    )


def name_messages(ranks: Sequence[Recording], messages: Messages, unattributed: list[Unattributed]) -> Messages:
    """Infer the contents of messages without annotations, and missing ranks, from the order of actions.

    Messages carry the outputs of their sender for stages of their receiver, in order. If outputs of several stages
    or directions differ in number from the messages, the contents stay unknown.
    """
    holders = _holders(ranks)
    source, target = (
        np.where(
            (rank < 0) & (messages.stage >= 0),
            [holders.get(place, -1) for place in zip(stage.tolist(), messages.microbatch.tolist(), strict=True)],
            rank,
        )
        for rank, stage in ((messages.source, messages.stage), (messages.target, messages.to_stage))
    )
    contents = np.stack([messages.forward, messages.stage, messages.microbatch, messages.span])
    named = set(zip(*contents[:3, messages.stage >= 0].tolist(), strict=True))
    unnamed: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in np.flatnonzero(messages.stage < 0).tolist():
        unnamed[int(source[row]), int(target[row])].append(row)
    for (sender, receiver), rows in unnamed.items():
        outputs = _outputs(ranks[sender], receiver, holders) if sender >= 0 else []
        outputs = [action for action in outputs if _microbatch_key(action) not in named]
        if len(rows) != len(outputs) and len({_microbatch_key(action)[:2] for action in outputs}) > 1:
            outputs = []
        for row, action in zip(rows, outputs, strict=False):
            contents[:, row] = (*_microbatch_key(action), action.span)
        if len(rows) > len(outputs):
            nameless = messages.received[rows[len(outputs) :]]
            received = messages.ends.of_rows(nameless[nameless >= 0])
            unattributed.append(Unattributed(
                rank=sender, what=f"messages to rank {receiver} that no annotation names", count=nameless.size,
                total_ns=int((received.end_ns - received.start_ns).sum()),
            ))  # fmt: skip
    forward, stage, microbatch, span = contents
    return replace(
        messages, source=source, target=target, forward=forward > 0, stage=stage, microbatch=microbatch, span=span
    )


def _holders(ranks: Sequence[Recording]) -> dict[tuple[int, int], int]:
    """Return the rank of each stage and microbatch."""
    holders: dict[tuple[int, int], int] = {}
    for number, rank in enumerate(ranks):
        for action in passes_of(rank):
            for microbatch in range(action.microbatch, action.microbatch + action.span):
                holders.setdefault((action.stage, microbatch), number)
    return holders


def passes_of(rank: Recording) -> Iterator[Action]:
    """Return the forwards and backwards of a rank, those in overlapped pairs included."""
    actions = (member for action in rank.executions.action for member in members_of(action))
    return (action for action in actions if action.kind in kinds.PASSES)


def _outputs(rank: Recording, target: int, holders: Mapping[tuple[int, int], int]) -> list[Action]:
    """Return the actions of a rank whose activations or gradients another rank's stages receive, in order."""
    outputs = []
    for action in passes_of(rank):
        next_stage = action.stage + (1 if action.kind is Kind.F else -1)
        if action.kind is not Kind.W and holders.get((next_stage, action.microbatch)) == target:
            outputs.append(action)
    return outputs


def _microbatch_key(action: Action) -> tuple[bool, int, int]:
    return action.kind is Kind.F, action.stage, action.microbatch
