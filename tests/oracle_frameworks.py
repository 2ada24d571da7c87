"""When everything happens in what ranks of a framework call: a slow model that knows calls and streams only.

It imports nothing of the project. Programs are those of the ``framework_programs`` modules.

- A compute call starts when the one before it and all that the compute stream waits for have ended.
- A posted operation starts when the operation before it on its rank and communicator has ended, and all that the
  compute stream was given before the post.
- A message starts when the operations at both its ends have; an operation ends when it and its messages have.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from framework_calls import Communicator, Compute, Message, Post, Program, Wait, received, sent
from framework_programs_deepspeed import deepspeed_1f1b
from framework_programs_interleaved import megatron_interleaved
from framework_programs_megatron import megatron_1f1b
from framework_programs_torch import torch_1f1b, torch_gpipe, torch_interleaved_1f1b, torch_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

__all__ = [
    "Deadlock",
    "Result",
    "Unmatched",
    "asynchronous",
    "check_inputs",
    "deepspeed_1f1b",
    "megatron_1f1b",
    "megatron_interleaved",
    "run",
    "torch_1f1b",
    "torch_gpipe",
    "torch_interleaved_1f1b",
    "torch_runtime",
]
Span: TypeAlias = tuple[int, int]
_Lane: TypeAlias = tuple[Communicator, int, int]
"""A communicator, and the ranks that a message goes from and to."""
_Posted: TypeAlias = "tuple[Message, Hashable]"
_Meeting: TypeAlias = "tuple[int, int, tuple[Hashable, Hashable]]"
"""The ranks that a message goes from and to, and the starts of the operations at its ends."""


class Deadlock(Exception):  # noqa: N818 - an outcome, not a fault
    """Calls that wait for each other; ``cycle`` tells which."""

    def __init__(self, cycle: Sequence[Hashable]) -> None:
        self.cycle = list(cycle)
        super().__init__(" <- ".join(map(str, self.cycle)))


class Unmatched(Exception):  # noqa: N818 - an outcome, not a fault
    """A send and a receive that meet are not of one message, or one of them meets nothing."""


@dataclass
class Result:
    """Start and end of each compute call and each message."""

    computes: dict[Compute, Span] = field(default_factory=dict)
    messages: dict[Message, Span] = field(default_factory=dict)

    @property
    def makespan(self) -> int:
        """End of the last compute call."""
        return max(end for _, end in self.computes.values())


class _Node(NamedTuple):
    """What ends ``duration`` after the last of ``after``."""

    duration: int
    after: list[Hashable]


def run(
    programs: Sequence[Program], durations: Callable[[Compute], int], transfer_ns: Callable[[int, int, str], int]
) -> Result:
    """Run one step of all ranks.

    Args:
        programs: By rank, its calls.
        durations: Nanoseconds of a compute call.
        transfer_ns: Nanoseconds of a message from a rank, to a rank, of "F" or "B".

    Raises:
        Deadlock: Calls wait for each other.
        Unmatched: Sends and receives do not agree.
    """
    matched = _match(programs)
    nodes: dict[Hashable, _Node] = {}
    for rank, program in enumerate(programs):
        nodes.update(_nodes_of(rank, program, durations))
    for message, (source, target, starts) in matched.items():
        nodes[message] = _Node(transfer_ns(source, target, message.kind), list(starts))
    ends: dict[Hashable, int] = {}
    result = Result()
    try:
        for key in TopologicalSorter({key: node.after for key, node in nodes.items()}).static_order():
            start = max((ends[before] for before in nodes[key].after), default=0)
            ends[key] = start + nodes[key].duration
            if isinstance(key, Compute):
                result.computes[key] = (start, ends[key])
            elif isinstance(key, Message):
                result.messages[key] = (start, ends[key])
    except CycleError as error:
        raise Deadlock(error.args[1]) from None
    return result


def _nodes_of(
    rank: int, program: Program, durations: Callable[[Compute], int]
) -> Iterator[tuple[Hashable, _Node]]:
    """Compute calls, waits, and the start and end of each operation of one rank."""
    compute: list[Hashable] = []
    streams: dict[Communicator, list[Hashable]] = defaultdict(list)
    for number, call in enumerate(program):
        if isinstance(call, Post):
            start, end = ("start", rank, call.handle), ("end", rank, call.handle)
            yield start, _Node(0, [*compute, *streams[call.communicator]])
            yield end, _Node(0, [start, *(item.message for item in call.ends)])
            streams[call.communicator] = [end]
        elif isinstance(call, Wait):
            yield ("wait", rank, number), _Node(0, [*compute, *(("end", rank, handle) for handle in call.handles)])
            compute = [("wait", rank, number)]
        else:
            yield call, _Node(durations(call), compute)
            compute = [call]


def _match(programs: Sequence[Program]) -> dict[Message, _Meeting]:
    """Where sends and receives meet, in order, on each communicator from each rank to each."""
    sends: dict[_Lane, list[_Posted]] = defaultdict(list)
    receives: dict[_Lane, list[_Posted]] = defaultdict(list)
    for rank, program in enumerate(programs):
        for post in (call for call in program if isinstance(call, Post)):
            for end in post.ends:
                lane = (post.communicator, *((rank, end.peer) if end.sends else (end.peer, rank)))
                (sends if end.sends else receives)[lane].append((end.message, ("start", rank, post.handle)))
    matched: dict[Message, _Meeting] = {}
    for lane in sends | receives:
        communicator, source, target = lane
        where = f"{source} -> {target} on {communicator}"
        if len(sends[lane]) != len(receives[lane]):
            raise Unmatched(f"{where}: {len(sends[lane])} sends, {len(receives[lane])} receives")
        for (message, start), (other, begin) in zip(sends[lane], receives[lane], strict=True):
            if message != other or message in matched:
                raise Unmatched(f"{where}: {message} sent, {other} received")
            matched[message] = (source, target, (start, begin))
    return matched


def check_inputs(programs: Sequence[Program]) -> None:
    """Check that each compute call has what it reads: its rank waited for it, or made it before.

    Raises:
        Unmatched: A compute call reads what is not there yet.
    """
    last = max(call.stage for program in programs for call in program if isinstance(call, Compute))
    for rank, program in enumerate(programs):
        posted: dict[int, list[Message]] = {}
        here: set[Hashable] = set()
        for call in program:
            if isinstance(call, Compute):
                missing = [str(need) for need in _needs(call, last) if need not in here]
                if missing:
                    raise Unmatched(f"rank {rank}: {call} before {', '.join(missing)}")
                here |= {call, call.message} if call.kind != "W" else {call}
            elif isinstance(call, Post):
                posted[call.handle] = _checked(rank, call, here)
            else:
                here |= {message for handle in call.handles for message in posted[handle]}


def _needs(call: Compute, last: int) -> list[Hashable]:
    stage, m = call.stage, call.microbatch
    if call.kind == "F":
        return [Message("F", stage - 1, m)] if stage else []
    if call.kind == "W":
        return [Compute("I", stage, m)]
    return [Compute("F", stage, m), *([Message("B", stage + 1, m)] if stage < last else [])]


def _checked(rank: int, post: Post, here: set[Hashable]) -> list[Message]:
    """What an operation receives; what it sends must be there."""
    for end in post.ends:
        if end.sends and end.message not in here:
            raise Unmatched(f"rank {rank}: {end.message} is sent before it is made")
    return [end.message for end in post.ends if not end.sends]


def asynchronous(programs: Sequence[Program]) -> list[Program]:
    """The same compute calls where messages block nothing: each has a communicator of its own.

    Receives are posted before all else, sends where their message is made; each compute call waits for what it
    reads, and for nothing else.
    """
    at = {
        call.stage: rank for rank, program in enumerate(programs) for call in program if isinstance(call, Compute)
    }
    return [_asynchronous(rank, program, at) for rank, program in enumerate(programs)]


def _asynchronous(rank: int, program: Program, at: Mapping[int, int]) -> Program:
    computes = [call for call in program if isinstance(call, Compute)]
    receives: Program = []
    calls: Program = []
    for call in computes:
        for need in _needs(call, max(at)):
            if isinstance(need, Message) and at[need.stage] != rank:
                handle = len(receives)
                receives.append(Post(handle, (received(need, at[need.stage]),), (str(need),)))
                calls.append(Wait((handle,)))
        calls.append(call)
        reader = call.stage + (1 if call.kind == "F" else -1)
        if call.kind != "W" and at.get(reader, rank) != rank:
            communicator = (str(call.message),)
            calls.append(Post(len(computes) * 2 + len(calls), (sent(call.message, at[reader]),), communicator))
    return receives + calls
