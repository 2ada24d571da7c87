"""Traces of NCCL's profiler plugin.

Source: NCCL's plugins/profiler/example (print_event.cc). The order in the file nests the events. Times are
microseconds since the plugin started in each process. ``KernelCh`` has times of the GPU's clock. An unset time is
0 or -1. Older versions write hexadecimal numbers and types without quotes. Collectives of copy engines (profiler
v6, ``CE_COLL``) name no communicator and belong to that of the file. Their inner synchronisations and copies are
part of them.

The end of a collective or message is that of its kernels, or of the proxy's operations. Without both, the plugin
writes the end of the host's call as its end, so its duration is unknown.

A process writes one file per communicator and rank. A call in a group of several ranks of one process is in the
file of one of them. Files in one folder with one process id belong to one process. If a process has several ranks
of a communicator, each of its ranks counts as a process. The communicator of all processes gives the global ranks.
Without one, ranks are numbered pipeline by pipeline, where a pipeline is a communicator with sends and receives.
"""

from __future__ import annotations

import re
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pptrace.plugin import TraceError
from pptrace_profilers.events import microseconds, parse_integer
from pptrace_profilers.json_events import Blocks
from pptrace_profilers.recording import MessageEnds, Operations, Payload, Recording, read_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

_BARE = re.compile(rb'(":\s*)(0x[0-9a-fA-F]+|nccl\w+)')
_NAME = re.compile(r"_(\d+)_(\d+)\.json(?:\.gz)?$")
_CARRIES = frozenset({"COLL", "P2P", "CE_COLL"})
_CATEGORIES = frozenset({*_CARRIES, "GROUP_API", "COLL_API", "P2P_API", "KERNEL_LAUNCH", "GROUP", "PROXY", "GPU"})
_DEEPEST, _LARGEST = 64, 2**62
ITEM_BYTES = {
    "ncclInt8": 1, "ncclChar": 1, "ncclUint8": 1, "ncclInt32": 4, "ncclInt": 4, "ncclUint32": 4, "ncclInt64": 8,
    "ncclUint64": 8, "ncclFloat16": 2, "ncclHalf": 2, "ncclFloat32": 4, "ncclFloat": 4, "ncclFloat64": 8,
    "ncclDouble": 8, "ncclBfloat16": 2, "ncclFloat8e4m3": 1, "ncclFloat8e5m2": 1,
}  # fmt: skip
"""Bytes of an element by NCCL's name of its type (nccl.h)."""


class NcclOperation(Struct, frozen=True, kw_only=True):
    """A collective, a send or a receive."""

    name: str
    """``AllReduce``, ``Send`` and so on."""
    communicator: str
    """Hash of its communicator; empty if not recorded."""
    rank: int
    """Rank within the communicator; -1 if not recorded."""
    posted_ns: int
    """When the host enqueued it; -1 if unset."""
    start_ns: int
    """Start of the kernel; by default, when the host enqueued it; -1 if the duration is unknown."""
    end_ns: int
    """End of the kernel; by default, of the proxy's operations; -1 if the duration is unknown."""
    peer: int
    """Rank at the other end within the communicator; -1 for a collective."""
    size_bytes: int
    """Elements times their size; 0 if the type is unknown."""
    stream: int
    """Stream of the call; -1 if not recorded."""


_BY_TIME = attrgetter("start_ns", "end_ns")


class RankOperations(Struct, frozen=True, kw_only=True):
    """Operations of a process, or of one rank of a process with several, from one file or from all its files."""

    path: Path
    """The (first) file."""
    process: int
    """Process id; -1 if no event has it."""
    ranks: dict[str, int]
    """Rank in each communicator."""
    operations: list[NcclOperation]
    """Operations by start."""
    cut: tuple[str, ...] = ()
    """Names of files that end in the middle of an event."""


def read_communicator(path: Path) -> list[RankOperations]:
    """Read one file, which has one rank or several.

    Raises:
        TraceError: the file cannot be read, or has another format.
    """
    blocks = Blocks(path)
    events = blocks.plain_events(lambda text: _BARE.sub(rb'\1"\2"', text))
    operations: list[NcclOperation] = []
    process, has_nccl_events = -1, False
    for event in _read_events(events):
        has_nccl_events = has_nccl_events or event.category in _CATEGORIES
        process = parse_integer(event.fields.get("pid"), process)
        if event.category in _CARRIES:
            operations.append(_operation(event))
    if not has_nccl_events:
        raise TraceError("holds no event of NCCL's profiler plugin", file=path)
    operations = sorted(_with_communicators(operations, path), key=_BY_TIME)
    pairs = {(operation.communicator, operation.rank) for operation in operations if operation.rank >= 0}
    by_rank: dict[int, list[NcclOperation]] = {-1: operations}
    if len(dict(pairs)) < len(pairs):
        ranks = {rank for _, rank in pairs}
        by_rank = {rank: [operation for operation in operations if operation.rank == rank] for rank in ranks}
    return [
        RankOperations(
            path=path, process=process, operations=of_rank, cut=(path.name,) if blocks.cut else (),
            ranks={operation.communicator: operation.rank for operation in of_rank if operation.rank >= 0},
        )
        for _, of_rank in sorted(by_rank.items())
    ]  # fmt: skip


def _with_communicators(operations: Sequence[NcclOperation], path: Path) -> list[NcclOperation]:
    """Return the operations; those that name no communicator get that of the other operations, or of the file."""
    pairs = {(operation.communicator, operation.rank) for operation in operations if operation.communicator}
    named = _NAME.search(path.name)
    if len(pairs) == 1:
        ((communicator, rank),) = pairs
    elif named is not None:
        communicator, rank = named[1], parse_integer(named[2], 0)
    else:
        return list(operations)
    return [
        operation if operation.communicator else replace(operation, communicator=communicator, rank=rank)
        for operation in operations
    ]


class _Open(Struct):
    """An event and its enclosing events."""

    fields: dict[str, Any]
    category: str
    parent: _Open | None
    """The enclosing event."""
    end: object = None
    kernels: list[_Open] = field(default_factory=list)
    carrier: _Open | None = None
    """The innermost collective or message, this event included."""
    call: _Open | None = None
    """The innermost call of the host, this event included."""
    ends_with_work: bool = False
    """Whether the recorded end is that of the work, and not of the host's call."""

    def __post_init__(self) -> None:
        if self.parent is not None:
            self.carrier, self.call = self.parent.carrier, self.parent.call
        if self.carrier is not None and self.fields.get("name") == "KernelCh":
            self.carrier.kernels.append(self)
        if self.carrier is not None and self.category == "PROXY":
            self.carrier.ends_with_work = True
        if self.category in _CARRIES:
            self.carrier = self
            self.ends_with_work = self.category == "CE_COLL"
        if self.category.endswith("_API"):
            self.call = self

    @property
    def args(self) -> Mapping[str, Any]:
        args = self.fields.get("args")
        return args if isinstance(args, dict) else {}


def _read_events(events: Iterable[dict[str, Any]]) -> Iterator[_Open]:
    """Yield each event when it ends; events without an end follow at the end of the file.

    Ids are not unique (every ``KernelCh`` is 0): an end closes the innermost open event of its name.
    """
    opened: list[_Open] = []
    positions: dict[tuple[str, ...], list[int]] = {}
    for event in events:
        key = _event_key(event)
        if event.get("ph") == "b" and len(opened) < _DEEPEST:
            positions.setdefault(key, []).append(len(opened))
            opened.append(_Open(event, key[0], opened[-1] if opened else None))
        elif event.get("ph") == "e" and positions.get(key):
            position = positions[key][-1]
            opened[position].end = event.get("ts")
            for closed in reversed(opened[position:]):
                positions[_event_key(closed.fields)].pop()
                yield closed
            del opened[position:]
    yield from reversed(opened)


def _event_key(event: Mapping[str, Any]) -> tuple[str, ...]:
    """Return category, name and process, which the begin and the end of an event have in common."""
    return tuple(str(event.get(key)) for key in ("cat", "name", "pid"))


def _operation(event: _Open) -> NcclOperation:
    """Return a collective or message."""
    args = event.args
    call = event.call.args if event.call is not None else {}
    posted_ns = _time_ns(event.fields.get("ts"))
    start_ns, end_ns = _kernel_span(event, posted_ns)
    return NcclOperation(
        name=str(event.fields.get("name", "")), communicator=str(args.get("CommHash", "")),
        rank=parse_integer(args.get("Rank"), -1), posted_ns=posted_ns, start_ns=start_ns, end_ns=end_ns,
        peer=parse_integer(args.get("Peer"), -1),
        size_bytes=min(
            max(parse_integer(args.get("Count", args.get("count")), 0), 0)
            * ITEM_BYTES.get(str(args.get("Datatype", args.get("datatype"))), 0), _LARGEST,
        ),
        stream=_address(call.get("Stream")),
    )  # fmt: skip


def _kernel_span(event: _Open, posted_ns: int) -> tuple[int, int]:
    """Return start and end of the kernel, by default of the proxy's operations; -1 if unknown.

    Times of the GPU's clock give the duration if they are recorded.
    """
    kernel_ns = [(_time_ns(kernel.fields.get("ts")), _time_ns(kernel.end)) for kernel in event.kernels]
    kernel_ns = [(start, end) for start, end in kernel_ns if 0 <= start <= end]
    clock_ns = [
        (parse_integer(kernel.args.get("StartGpuClk"), 0), parse_integer(kernel.args.get("StopGpuClk"), 0))
        for kernel in event.kernels
    ]
    copies_us = parse_integer(event.args.get("duration_gpu_us"), 0)
    clock_ns += [(1, 1 + copies_us * 1_000)] if copies_us > 0 else []
    clock_ns = [(start, end) for start, end in clock_ns if 0 < start <= end]
    start_ns = min((start for start, _ in kernel_ns), default=posted_ns)
    end_ns = max((end for _, end in kernel_ns), default=_time_ns(event.end) if event.ends_with_work else -1)
    if clock_ns and start_ns >= 0:
        end_ns = start_ns + max(end for _, end in clock_ns) - min(start for start, _ in clock_ns)
    return (start_ns, end_ns) if 0 <= start_ns <= end_ns else (-1, -1)


def _time_ns(value: object) -> int:
    """Return nanoseconds, -1 for an unset time."""
    time_ns = microseconds(value)
    return time_ns if time_ns is not None and time_ns > 0 else -1


def _address(value: object) -> int:
    try:
        address = int(value, 16) if isinstance(value, str) else -1
    except ValueError:
        return -1
    return address if address < _LARGEST else -1


def read_nccl(paths: Sequence[Path]) -> tuple[list[Recording], list[str]]:
    """Read the plugin's files of a run; unreadable files are noted and left out.

    Returns:
        One recording per process, and notes.

    Raises:
        TraceError: no file can be read, or two files have the same rank of the same communicator.
    """
    files, notes = read_files(paths, read_communicator)
    untimed = sum(
        operation.start_ns < 0 for parts in files.values() for part in parts for operation in part.operations
    )
    if untimed:
        notes.append(f"{untimed:,} operations have no time of the GPU: their durations are unknown")
    processes = _processes([part for parts in files.values() for part in parts])
    members = _members(processes)
    ranks, note = _assign_ranks(processes, members)
    peers = [operation.peer for process in processes for operation in process.operations if not note]
    notes += [note] if note else []
    groups = _pipelines(processes, members, ranks)
    world = max(len(processes), max([*ranks, *peers]) + 1)
    return [
        _recording(process, rank, world, groups, members, ranks)
        for process, rank in zip(processes, ranks, strict=True)
    ], notes


def _processes(files: Sequence[RankOperations]) -> list[RankOperations]:
    """Merge the files of each process, or of each rank of a process with several."""
    several_ranks = _processes_of_several_ranks(files)
    processes: dict[tuple[Path, int, int], list[RankOperations]] = defaultdict(list)
    for file in files:
        key = (file.path.parent, file.process)
        rank = next(iter(file.ranks.values()), -1) if key in several_ranks else -1
        process = processes[(*key, rank)]
        for earlier in process if key not in several_ranks else ():
            if duplicate := next((name for name in file.ranks if name in earlier.ranks), None):
                message = (
                    f"is of process {file.process} and communicator {duplicate}, as {earlier.path.name} is: "
                    "leave one out, or put each host's files into a separate folder"
                )
                raise TraceError(message, file=file.path)
        process.append(file)
    return list(map(_merge, processes.values()))


def _merge(files: Sequence[RankOperations]) -> RankOperations:
    return replace(
        files[0], ranks={name: rank for file in files for name, rank in file.ranks.items()},
        operations=sorted((operation for file in files for operation in file.operations), key=_BY_TIME),
        cut=tuple(name for file in files for name in file.cut),
    )  # fmt: skip


def _processes_of_several_ranks(files: Sequence[RankOperations]) -> set[tuple[Path, int]]:
    """Return the folders and ids of processes that have several ranks of a communicator."""
    ranks: dict[tuple[Path, int, str], set[int]] = defaultdict(set)
    for file in files:
        for communicator, rank in file.ranks.items():
            ranks[file.path.parent, file.process, communicator].add(rank)
    return {(folder, process) for (folder, process, _), of_process in ranks.items() if len(of_process) > 1}


def _members(processes: Sequence[RankOperations]) -> dict[str, dict[int, int]]:
    """Return by communicator the process of each of its ranks."""
    members: dict[str, dict[int, int]] = {}
    for number, process in enumerate(processes):
        for communicator, rank in process.ranks.items():
            by_rank = members.setdefault(communicator, {})
            if rank in by_rank:
                first_name = processes[by_rank[rank]].path.name
                message = f"is of rank {rank} of communicator {communicator}, as {first_name} is: leave one out"
                raise TraceError(message, file=process.path)
            by_rank[rank] = number
    return members


def _assign_ranks(
    processes: Sequence[RankOperations], members: Mapping[str, Mapping[int, int]]
) -> tuple[list[int], str]:
    """Return the global rank of each process, and a note on an assumption."""
    complete = sorted(name for name, by_rank in members.items() if len(by_rank) == len(processes))
    if complete:
        by_process = {process: rank for rank, process in members[complete[0]].items()}
        return [by_process[number] for number in range(len(processes))], ""
    order = [
        number
        for name in _message_communicators(processes, members)
        for _, number in sorted(members[name].items())
    ]
    order = list(dict.fromkeys([*order, *range(len(processes))]))
    ranks = {number: rank for rank, number in enumerate(order)}
    note = f"no communicator has all {len(processes)} processes: global ranks are counted, pipeline by pipeline"
    return [ranks[number] for number in range(len(processes))], note


def _message_communicators(
    processes: Sequence[RankOperations], members: Mapping[str, Mapping[int, int]]
) -> list[str]:
    used = {
        operation.communicator for process in processes for operation in process.operations if operation.peer >= 0
    }
    return sorted(used & members.keys(), key=lambda name: (sorted(members[name].values()), name))


def _pipelines(
    processes: Sequence[RankOperations], members: Mapping[str, Mapping[int, int]], ranks: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Return the communicators with messages and with recordings of all ranks."""
    return {
        f"pp {name}": tuple(ranks[members[name][rank]] for rank in range(len(members[name])))
        for name in _message_communicators(processes, members)
        if set(members[name]) == set(range(len(members[name]))) and len(members[name]) < len(processes)
    }


def _recording(
    process: RankOperations, rank: int, world: int, groups: Mapping[str, tuple[int, ...]],
    members: Mapping[str, Mapping[int, int]], ranks: Sequence[int],
) -> Recording:  # fmt: skip
    ends, collectives, untimed = [], [], []
    for operation in process.operations:
        name, size = operation.name, operation.size_bytes
        start, end = operation.start_ns, operation.end_ns
        sends = name.lower().startswith("send")
        if start < 0:
            what = name if operation.peer < 0 else "send" if sends else "recv"
            untimed.append(Payload(operation=what, size_bytes=size, group=operation.communicator))
            continue
        if operation.peer < 0:
            payload = Payload(operation=name, size_bytes=size, group=operation.communicator)
            collectives.append((payload, start, end, operation.stream, operation.posted_ns))
            continue
        peer_process = members.get(operation.communicator, {}).get(operation.peer, -1)
        peer = ranks[peer_process] if peer_process >= 0 else -1
        ends.append((sends, peer, start, end, size, operation.posted_ns))
    notes = [f"{name} ends in the middle of an event" for name in process.cut]
    return Recording(
        path=process.path, rank=rank, world=world, groups=groups,
        ends=MessageEnds.from_rows(("sends", "peer", "start_ns", "end_ns", "size_bytes", "posted_ns"), ends),
        operations=Operations.of_collectives(collectives), untimed=tuple(untimed), notes=tuple(notes),
    )  # fmt: skip
