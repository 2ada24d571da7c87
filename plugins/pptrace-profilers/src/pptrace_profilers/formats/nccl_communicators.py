"""NCCL's communicators tell which processes there are, their global ranks, and their pipelines.

A process has one file per communicator; files of one folder with one process id are one process's. Its global rank
is that in the communicator of all processes; where there is none, pipelines (communicators that carry sends and
receives) are numbered one after another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pptrace.plugin import TraceError
from pptrace_profilers.formats.nccl_profiler import NcclOperation, read_communicator
from pptrace_profilers.formats.run_files import read_files
from pptrace_profilers.recording.recording import MessageEnd, Operations, Payload, Recording

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace_profilers.formats.nccl_profiler import CommunicatorFile

__all__ = ["read_nccl"]


@dataclass(slots=True, kw_only=True)
class _Process:
    """All files of one process."""

    files: list[CommunicatorFile] = field(default_factory=list)
    ranks: dict[str, int] = field(default_factory=dict)

    @property
    def operations(self) -> list[NcclOperation]:
        return sorted((one for file in self.files for one in file.operations), key=NcclOperation.order)


def read_nccl(paths: Sequence[Path]) -> tuple[list[Recording], list[str]]:
    """Read the plugin's files of a run; one that cannot be read is noted, and the others are used.

    Returns:
        One recording per process, and notes.

    Raises:
        TraceError: no file can be read, or two are of one rank of one communicator.
    """
    files, notes = read_files(paths, read_communicator)
    untimed = [file.untimed for file in files.values() if file.untimed]
    if untimed:
        notes.append(f"{sum(untimed):,} operations in {len(untimed)} files have no time: left out")
    processes = _processes(list(files.values()))
    members = _members(processes)
    ranks, note = _numbered(processes, members)
    peers = [one.peer for process in processes for one in process.operations if not note]
    notes += [note] if note else []
    groups = _pipelines(processes, members, ranks)
    world = max(len(processes), max([*ranks, *peers]) + 1)
    return [
        _recording(process, rank, world, groups, members, ranks)
        for process, rank in zip(processes, ranks, strict=True)
    ], notes


def _processes(files: Sequence[CommunicatorFile]) -> list[_Process]:
    processes: dict[tuple[Path, int], _Process] = {}
    for file in files:
        process = processes.setdefault((file.path.parent, file.process), _Process())
        twice = next((name for name in file.ranks if name in process.ranks), None)
        if twice is not None:
            other = next(each.path.name for each in process.files if twice in each.ranks)
            message = (
                f"is of process {file.process} and communicator {twice}, as {other} is: "
                "leave one out, or give each host's files a folder of their own"
            )
            raise TraceError(message, file=file.path)
        process.files.append(file)
        process.ranks |= file.ranks
    return list(processes.values())


def _members(processes: Sequence[_Process]) -> dict[str, dict[int, int]]:
    """Return by communicator the process of each of its ranks."""
    members: dict[str, dict[int, int]] = {}
    for number, process in enumerate(processes):
        for communicator, rank in process.ranks.items():
            by_rank = members.setdefault(communicator, {})
            if rank in by_rank:
                other = processes[by_rank[rank]].files[0].path.name
                message = f"is of rank {rank} of communicator {communicator}, as {other} is: leave one out"
                raise TraceError(message, file=process.files[0].path)
            by_rank[rank] = number
    return members


def _numbered(processes: Sequence[_Process], members: Mapping[str, Mapping[int, int]]) -> tuple[list[int], str]:
    """Return each process's global rank, and what was assumed."""
    whole = sorted(name for name, by_rank in members.items() if len(by_rank) == len(processes))
    if whole:
        by_process = {process: rank for rank, process in members[whole[0]].items()}
        return [by_process[number] for number in range(len(processes))], ""
    order = [number for name in _with_messages(processes, members) for _, number in sorted(members[name].items())]
    order = list(dict.fromkeys([*order, *range(len(processes))]))
    ranks = {number: rank for rank, number in enumerate(order)}
    note = f"no communicator has all {len(processes)} processes: global ranks are counted, pipeline by pipeline"
    return [ranks[number] for number in range(len(processes))], note


def _with_messages(processes: Sequence[_Process], members: Mapping[str, Mapping[int, int]]) -> list[str]:
    used = {one.communicator for process in processes for one in process.operations if one.peer >= 0}
    return sorted(used & members.keys(), key=lambda name: (sorted(members[name].values()), name))


def _pipelines(
    processes: Sequence[_Process], members: Mapping[str, Mapping[int, int]], ranks: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Return the communicators that carry messages and of which every rank was recorded."""
    return {
        f"pp {name}": tuple(ranks[members[name][rank]] for rank in range(len(members[name])))
        for name in _with_messages(processes, members)
        if set(members[name]) == set(range(len(members[name]))) and len(members[name]) < len(processes)
    }


def _recording(
    process: _Process, rank: int, world: int, groups: Mapping[str, tuple[int, ...]],
    members: Mapping[str, Mapping[int, int]], ranks: Sequence[int],
) -> Recording:  # fmt: skip
    ends, collectives = [], []
    for operation in process.operations:
        name, size = operation.name, operation.size_bytes
        start, end = operation.order()
        if operation.peer < 0:
            payload = Payload(operation=name, size_bytes=size, group=operation.communicator)
            collectives.append((payload, start, end, operation.stream, operation.posted_ns))
            continue
        other = members.get(operation.communicator, {}).get(operation.peer, -1)
        ends.append(MessageEnd(
            sends=name.lower().startswith("send"), peer=ranks[other] if other >= 0 else -1,
            start_ns=start, end_ns=end, size_bytes=size, posted_ns=operation.posted_ns,
        ))  # fmt: skip
    notes = [f"{file.path.name} ends in the middle of an event" for file in process.files if file.cut]
    return Recording(
        path=process.files[0].path, rank=rank, world=world, groups=groups, ends=tuple(ends),
        operations=Operations.of_collectives(collectives), notes=tuple(notes),
    )  # fmt: skip
