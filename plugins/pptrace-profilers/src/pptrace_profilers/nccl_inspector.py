"""Dumps of the NCCL inspector.

Source: NCCL's plugins/profiler/inspector (README and JSON output): microseconds, bytes, and bandwidths in GB/s. A
verbose line has its start and stop time in ``gettimeofday``'s clock. From v4.3 on, only a line with ``dump_stats``
has the communicator and the process (``header`` and ``metadata``). The following lines share them (NCCL's pull
request 2359). RCCL's accl profiler writes the same lines without metadata, and a ``summary`` at the end.

The time of a line includes the wait of the kernel for its peers. Of the lines of an operation, the shortest has
the least wait. NCCL defines the bus traffic of a collective as the traffic over the link of each rank (nccl-tests,
PERFORMANCE.md).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
from msgspec import Struct

from pptrace.plugin import BySize, TraceError, check_events
from pptrace_profilers.events import microseconds, parse_integer
from pptrace_profilers.json_events import read_lines
from pptrace_profilers.recording import MessageEnds, Operations, Payload, Recording, read_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    Sizes: TypeAlias = dict[tuple[str, bool], list[tuple[int, int]]]

_BATCH = 1 << 16
_DECODER = msgspec.json.Decoder(dict[str, Any])


class Transfer(Struct, frozen=True, kw_only=True):
    """One operation on one rank."""

    what: str
    """``Send``, ``Recv``, or the collective's name."""
    communicator: str
    """Id of its communicator."""
    communicator_name: str
    """Name of the communicator, such as ``pp``; empty if it has none."""
    rank: int
    """The rank within the communicator."""
    ranks: int
    """Ranks of the communicator."""
    peer: int
    """Rank at the other end; -1 for a collective."""
    size_bytes: int
    exec_ns: int
    """Duration."""
    start_ns: int
    """Start, since the Unix epoch; -1 if the line is not verbose."""
    process: tuple[str, int]
    """Host and process id."""
    number: int = -1
    """Index among the collectives, or the messages, of its communicator; -1 if not recorded."""
    nodes: int = 0
    """Nodes of the communicator; 0 if not recorded."""
    by_kernel: bool = True
    """Whether the duration is that of the kernel, and does not start with the host's call."""

    @property
    def is_message(self) -> bool:
        """Return whether this is a message between two ranks, not a collective."""
        return self.peer >= 0

    @property
    def sends(self) -> bool:
        """Return whether this is a sent message."""
        return self.what.lower().startswith("send")


def read_inspector(path: Path) -> list[Transfer]:
    """Read the lines of a process; an incomplete last line is left out.

    Raises:
        TraceError: the file cannot be read, or a line has another format.
    """
    transfers: list[Transfer] = []
    context: dict[str, Any] = {}
    invalid_line = 0
    for number, line in enumerate(read_lines(path), 1):
        if invalid_line:
            raise TraceError(f"line {invalid_line} is no JSON object of NCCL Inspector's", file=path)
        if not line.strip():
            continue
        try:
            fields = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            invalid_line = number
            continue
        if "dump_stats" in fields:
            context = _context(fields)
        if _has_no_operation(fields):
            continue
        transfer = _transfer(context | fields)
        if transfer is None:
            message = f"line {number} has no operation with rank, size and time in NCCL Inspector's format"
            raise TraceError(message, file=path)
        transfers.append(transfer)
        if len(transfers) % _BATCH == 0:
            check_events(len(transfers), path)
    if not transfers:
        raise TraceError("holds no operation of NCCL Inspector's", file=path)
    return transfers


def _context(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the header and the metadata of a line, which may be inside its ``dump_stats``."""
    stats = fields["dump_stats"]
    values = {**stats, **fields} if isinstance(stats, dict) else fields
    return {name: values[name] for name in ("header", "metadata") if name in values}


def _has_no_operation(fields: Mapping[str, Any]) -> bool:
    """Return whether a line describes something else than an operation of a communicator."""
    known = {"header", "dump_stats", "proxy_trace", "summary"}
    return bool(known & fields.keys()) and not {"coll_perf", "p2p_perf"} & fields.keys()


def _transfer(fields: Mapping[str, Any]) -> Transfer | None:
    prefix = next((name for name in ("coll", "p2p") if isinstance(fields.get(f"{name}_perf"), dict)), None)
    header, metadata = fields.get("header"), fields.get("metadata")
    if prefix is None or not isinstance(header, dict):
        return None
    metadata = metadata if isinstance(metadata, dict) else {}
    perf = fields[f"{prefix}_perf"]
    length = microseconds(perf.get(f"{prefix}_exec_time_us"))
    size, rank = parse_integer(perf.get(f"{prefix}_msg_size_bytes"), -1), parse_integer(header.get("rank"), -1)
    if length is None or min(length, size, rank) < 0:
        return None
    times = perf.get("event_trace_ts")
    start = microseconds(times.get(f"{prefix}_start_ts")) if isinstance(times, dict) else None
    return Transfer(
        what=str(perf.get(prefix, "")), communicator=str(header.get("id", "")),
        communicator_name=str(header.get("comm_name", "")), rank=rank,
        ranks=parse_integer(header.get("n_ranks"), 0),
        peer=parse_integer(perf.get("p2p_peer"), -1) if prefix == "p2p" else -1, size_bytes=size, exec_ns=length,
        start_ns=start if start is not None and start > 0 else -1,
        process=(str(metadata.get("hostname", "")), parse_integer(metadata.get("pid"), -1)),
        number=parse_integer(perf.get(f"{prefix}_sn"), -1), nodes=parse_integer(header.get("nnodes"), 0),
        by_kernel=perf.get(f"{prefix}_timing_source") != "collective_cpu",
    )  # fmt: skip


def read_inspector_run(paths: Sequence[Path]) -> tuple[list[Recording], tuple[BySize, ...], list[str]]:
    """Read the files of a run, one per process; unreadable files are noted and left out.

    A process's global rank is its rank in the largest communicator.

    Returns:
        One recording per process, durations of each kind of operation by size, and notes.

    Raises:
        TraceError: no file can be read, or two files have the same process.
    """
    files, notes = read_files(paths, read_inspector)
    largest = {path: max(lines, key=lambda line: (line.ranks, line.communicator)) for path, lines in files.items()}
    global_ranks: dict[str, dict[int, int]] = defaultdict(dict)
    for path, lines in files.items():
        for line in lines:
            global_ranks[line.communicator][line.rank] = largest[path].rank
    transfers = [line for lines in files.values() for line in lines]
    if any(line.start_ns < 0 for line in transfers):
        notes.append("lines are not verbose: operations have durations and no start times")
    recordings = [_recording(path, lines, largest[path], global_ranks) for path, lines in files.items()]
    sizes, size_notes = by_size(transfers)
    return recordings, sizes, [*notes, *size_notes]


def _recording(
    path: Path, transfers: Sequence[Transfer], largest: Transfer, global_ranks: Mapping[str, Mapping[int, int]]
) -> Recording:
    ordered = sorted(transfers, key=_start)
    ends = MessageEnds.from_rows(("sends", "start_ns", "end_ns", "size_bytes", "peer"), [
        (
            line.sends, _start(line), _start(line) + line.exec_ns, line.size_bytes,
            # Ends without a time cannot align clocks, so they have no peer.
            global_ranks[line.communicator].get(line.peer, -1) if line.start_ns >= 0 else -1,
        )
        for line in ordered if line.is_message
    ])  # fmt: skip
    collectives = [
        (
            Payload(
                operation=line.what, size_bytes=line.size_bytes, group=line.communicator_name or line.communicator
            ),
            _start(line),
            _start(line) + line.exec_ns,
            -1,
            -1,
        )
        for line in ordered
        if not line.is_message
    ]
    return Recording(
        path=path, rank=largest.rank, world=largest.ranks, ends=ends,
        operations=Operations.of_collectives(collectives),
    )  # fmt: skip


def _start(line: Transfer) -> int:
    return max(line.start_ns, 0)


_LARGEST = 2**62


def by_size(transfers: Sequence[Transfer]) -> tuple[tuple[BySize, ...], list[str]]:
    """Return sizes and times by kind of operation, messages first, and notes on dropped or uncertain lines."""
    timed = [line for line in transfers if line.by_kernel and line.exec_ns > 0 and line.size_bytes > 0]
    messages, unmatched = _messages([line for line in timed if line.is_message])
    sizes = messages | _collectives([line for line in timed if not line.is_message])
    notes = []
    if len(timed) < len(transfers):
        untimed = len(transfers) - len(timed)
        notes.append(
            f"{untimed:,} operations have no bytes, or no time of their kernel: no network is fitted to them"
        )
    if unmatched:
        notes.append(f"{unmatched:,} lines of messages match none of the peer: their durations may include waits")
    return tuple(
        BySize(
            what=what, messages=is_message,
            size_bytes=np.array([size for size, _ in pairs], dtype=np.int64),
            took_ns=np.array([duration_ns for _, duration_ns in pairs], dtype=np.int64),
        )
        for (what, is_message), pairs in sorted(sizes.items(), key=lambda item: (not item[0][1], item[0][0]))
    ), notes  # fmt: skip


def _messages(transfers: Iterable[Transfer]) -> tuple[Sizes, int]:
    """Return messages by the location of their ends, and the number of unmatched lines.

    The k-th send matches the k-th receive if both ranks have the same sizes in order.
    """
    links: dict[tuple[str, int, int], tuple[list[Transfer], list[Transfer]]] = defaultdict(lambda: ([], []))
    hosts: dict[tuple[str, int], str] = {}
    for line in transfers:
        hosts[line.communicator, line.rank] = line.process[0]
        source, target = (line.rank, line.peer) if line.sends else (line.peer, line.rank)
        links[line.communicator, source, target][0 if line.sends else 1].append(line)
    sizes: Sizes = defaultdict(list)
    unmatched = 0
    for (communicator, source, target), ends in links.items():
        sent, received = (sorted(lines, key=lambda line: line.number) for lines in ends)
        kind = _link_kind(hosts, communicator, source, target, (sent or received)[0].nodes), True
        if [line.size_bytes for line in sent] == [line.size_bytes for line in received]:
            pairs = zip(sent, received, strict=True)
            sizes[kind] += [(send.size_bytes, min(send.exec_ns, receive.exec_ns)) for send, receive in pairs]
        else:
            unmatched += len(sent) + len(received)
            sizes[kind] += [(line.size_bytes, line.exec_ns) for line in max(sent, received, key=len)]
    return sizes, unmatched


def _link_kind(
    hosts: Mapping[tuple[str, int], str], communicator: str, source: int, target: int, nodes: int
) -> str:
    ends = [hosts.get((communicator, rank), "") for rank in (source, target)]
    if nodes == 1 or (all(ends) and ends[0] == ends[1]):
        return "messages inside a node"
    return "messages between nodes" if all(ends) else "messages"


def _collectives(transfers: Iterable[Transfer]) -> Sizes:
    """Return link traffic and shortest time over ranks of each collective, by name and ranks."""
    shortest: dict[tuple[str, str, int], Transfer] = {}
    for index, line in enumerate(transfers):
        number = line.number if line.number >= 0 else -2 - index
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
    """Return the bytes over the link of each rank; 0 for an unknown collective."""
    peer_count = line.ranks - 1
    match line.what:
        case "AllReduce":
            return 2 * peer_count * line.size_bytes // line.ranks if peer_count > 0 else 0
        case "AllGather" | "ReduceScatter":
            return peer_count * line.size_bytes if peer_count > 0 else 0
        case "Broadcast" | "Reduce":
            return line.size_bytes
        case _:
            return 0
