"""What NCCL Inspector's operations took, by size: each from when its last rank was there.

A rank's line counts from when its own kernel started, the wait for its peers included; of several ranks' lines of
one operation the shortest has waited least. What a collective moves over each rank's link is what NCCL calls its
bus traffic (nccl-tests, PERFORMANCE.md).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pptrace.plugin import BySize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pptrace_profilers.formats.nccl_inspector import Transfer

    Sizes: TypeAlias = dict[tuple[str, bool], list[tuple[int, int]]]

__all__ = ["by_size"]

_LARGEST = 2**62


def by_size(transfers: Sequence[Transfer]) -> tuple[tuple[BySize, ...], list[str]]:
    """Return sizes and times by sort, messages first, and notes on what is not among them or less sure."""
    timed = [line for line in transfers if line.by_kernel and line.exec_ns > 0 and line.size_bytes > 0]
    messages, lone = _messages([line for line in timed if line.is_message])
    sizes = messages | _collectives([line for line in timed if not line.is_message])
    notes = []
    if len(timed) < len(transfers):
        untimed = len(transfers) - len(timed)
        notes.append(
            f"{untimed:,} operations have no bytes, or no time of their kernel: no network is fitted to them"
        )
    if lone:
        notes.append(f"{lone:,} lines of messages have no other end: they may have waited for it")
    return tuple(
        BySize(
            what=what, messages=is_message,
            size_bytes=np.array([size for size, _ in pairs], dtype=np.int64),
            took_ns=np.array([took for _, took in pairs], dtype=np.int64),
        )
        for (what, is_message), pairs in sorted(sizes.items(), key=lambda item: (not item[0][1], item[0][0]))
    ), notes  # fmt: skip


def _messages(transfers: Iterable[Transfer]) -> tuple[Sizes, int]:
    """Return messages by where their ends are, and how many lines have no other end.

    The k-th send of a rank to a peer is that peer's k-th receive from it, where they are as many and as large.
    """
    ways: dict[tuple[str, int, int], tuple[list[Transfer], list[Transfer]]] = defaultdict(lambda: ([], []))
    hosts: dict[tuple[str, int], str] = {}
    for line in transfers:
        hosts[line.communicator, line.rank] = line.process[0]
        source, target = (line.rank, line.peer) if line.sends else (line.peer, line.rank)
        ways[line.communicator, source, target][0 if line.sends else 1].append(line)
    sizes: Sizes = defaultdict(list)
    lone = 0
    for (communicator, source, target), ends in ways.items():
        sent, received = (sorted(lines, key=lambda line: line.number) for lines in ends)
        sort = _between(hosts, communicator, source, target, (sent or received)[0].nodes), True
        if [line.size_bytes for line in sent] == [line.size_bytes for line in received]:
            pairs = zip(sent, received, strict=True)
            sizes[sort] += [(line.size_bytes, min(line.exec_ns, other.exec_ns)) for line, other in pairs]
        else:
            lone += len(sent) + len(received)
            sizes[sort] += [(line.size_bytes, line.exec_ns) for line in max(sent, received, key=len)]
    return sizes, lone


def _between(hosts: Mapping[tuple[str, int], str], communicator: str, source: int, target: int, nodes: int) -> str:
    ends = [hosts.get((communicator, rank), "") for rank in (source, target)]
    if nodes == 1 or (all(ends) and ends[0] == ends[1]):
        return "messages inside a node"
    return "messages between nodes" if all(ends) else "messages"


def _collectives(transfers: Iterable[Transfer]) -> Sizes:
    """Return collectives by name and ranks, what they move over a link and the shortest of their ranks' times."""
    shortest: dict[tuple[str, str, int], Transfer] = {}
    for place, line in enumerate(transfers):
        number = line.number if line.number >= 0 else -2 - place
        key = (line.communicator, line.what, number)
        if key not in shortest or line.exec_ns < shortest[key].exec_ns:
            shortest[key] = line
    sizes: Sizes = defaultdict(list)
    for line in shortest.values():
        traffic = _bus_traffic(line)
        if 0 < traffic < _LARGEST:
            where = f" ({line.communicator_name})" if line.communicator_name else ""
            sizes[f"{line.what} of {line.ranks} ranks{where}", False].append((traffic, line.exec_ns))
    return sizes


def _bus_traffic(line: Transfer) -> int:
    """Return what goes over each rank's link; 0 for a collective of another name."""
    others = line.ranks - 1
    match line.what:
        case "AllReduce":
            return 2 * others * line.size_bytes // line.ranks if others > 0 else 0
        case "AllGather" | "ReduceScatter":
            return others * line.size_bytes if others > 0 else 0
        case "Broadcast" | "Reduce":
            return line.size_bytes
        case _:
            return 0
