"""What NCCL Inspector's operations took, by size: each from when its last rank was there.

A rank's line counts from when its own kernel started, the wait for its peers included; of several ranks' lines of
one operation the shortest has waited least. What a collective moves over each rank's link is what NCCL calls its
bus traffic (nccl-tests, PERFORMANCE.md).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pptrace.timeline.measurement import BySize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pptrace_profilers.formats.nccl_inspector import Transfer

    Sizes: TypeAlias = dict[tuple[str, bool], list[tuple[int, int]]]

__all__ = ["by_size"]

_LARGEST = 2**62


def by_size(transfers: Sequence[Transfer]) -> tuple[tuple[BySize, ...], list[str]]:
    """Return sizes and times by sort, messages first, and notes on what is not among them or less sure."""
    timed = [one for one in transfers if one.by_kernel and one.exec_ns > 0 and one.size_bytes > 0]
    messages, alone = _messages([one for one in timed if one.peer >= 0])
    found = messages | _collectives([one for one in timed if one.peer < 0])
    notes = []
    if len(timed) < len(transfers):
        left = len(transfers) - len(timed)
        notes.append(
            f"{left:,} operations have no bytes, or no time of their kernel: no network is fitted to them"
        )
    if alone:
        notes.append(f"{alone:,} lines of messages have no other end: they may have waited for it")
    return tuple(
        BySize(
            what=what, messages=is_message,
            size_bytes=np.array([size for size, _ in own], dtype=np.int64),
            took_ns=np.array([took for _, took in own], dtype=np.int64),
        )
        for (what, is_message), own in sorted(found.items(), key=lambda one: (not one[0][1], one[0][0]))
    ), notes  # fmt: skip


def _messages(transfers: Iterable[Transfer]) -> tuple[Sizes, int]:
    """Return messages by where their ends are, and how many lines have no other end.

    The k-th send of a rank to a peer is that peer's k-th receive from it, where they are as many and as large.
    """
    ways: dict[tuple[str, int, int], tuple[list[Transfer], list[Transfer]]] = defaultdict(lambda: ([], []))
    hosts: dict[tuple[str, int], str] = {}
    for one in transfers:
        hosts[one.communicator, one.rank] = one.process[0]
        sends = one.what.lower().startswith("send")
        source, target = (one.rank, one.peer) if sends else (one.peer, one.rank)
        ways[one.communicator, source, target][0 if sends else 1].append(one)
    found: Sizes = defaultdict(list)
    alone = 0
    for (communicator, source, target), both in ways.items():
        sent, received = (sorted(own, key=lambda one: one.number) for own in both)
        sort = _between(hosts, communicator, source, target, (sent or received)[0].nodes), True
        if [one.size_bytes for one in sent] == [one.size_bytes for one in received]:
            pairs = zip(sent, received, strict=True)
            found[sort] += [(one.size_bytes, min(one.exec_ns, other.exec_ns)) for one, other in pairs]
        else:
            alone += len(sent) + len(received)
            found[sort] += [(one.size_bytes, one.exec_ns) for one in max(sent, received, key=len)]
    return found, alone


def _between(hosts: Mapping[tuple[str, int], str], communicator: str, source: int, target: int, nodes: int) -> str:
    ends = [hosts.get((communicator, rank), "") for rank in (source, target)]
    if nodes == 1 or (all(ends) and ends[0] == ends[1]):
        return "messages inside a node"
    return "messages between nodes" if all(ends) else "messages"


def _collectives(transfers: Iterable[Transfer]) -> Sizes:
    """Return collectives by name and ranks, what they move over a link and the shortest of their ranks' times."""
    shortest: dict[tuple[str, str, int], Transfer] = {}
    for place, one in enumerate(transfers):
        number = one.number if one.number >= 0 else -2 - place
        key = (one.communicator, one.what, number)
        if key not in shortest or one.exec_ns < shortest[key].exec_ns:
            shortest[key] = one
    found: Sizes = defaultdict(list)
    for one in shortest.values():
        moved = _moved(one)
        if 0 < moved < _LARGEST:
            where = f" ({one.communicator_name})" if one.communicator_name else ""
            found[f"{one.what} of {one.ranks} ranks{where}", False].append((moved, one.exec_ns))
    return found


def _moved(one: Transfer) -> int:
    """Return what goes over each rank's link; 0 for a collective of another name."""
    others = one.ranks - 1
    match one.what:
        case "AllReduce":
            return 2 * others * one.size_bytes // one.ranks if others > 0 else 0
        case "AllGather" | "ReduceScatter":
            return others * one.size_bytes if others > 0 else 0
        case "Broadcast" | "Reduce":
            return one.size_bytes
        case _:
            return 0
