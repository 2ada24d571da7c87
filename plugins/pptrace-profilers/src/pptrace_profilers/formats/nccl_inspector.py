"""NCCL Inspector: one JSON object per line and finished operation, for what a transfer of some size takes.

Source: NCCL's plugins/profiler/inspector (its README and the JSON that it writes): microseconds, bytes, and
bandwidths in GB/s; a verbose line has the times at which it started and stopped, as ``gettimeofday`` counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from pptrace.plugin import TraceError, check_events, open_unpacked
from pptrace_profilers.events.numbers import microseconds, whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["Transfer", "read_inspector"]

_BATCH = 1 << 16
_LONGEST_LINE = 16 << 20
_FASTEST = 10**9
"""GB/s from which on a bandwidth is none."""
_DECODER = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One operation as one rank saw it."""

    what: str
    """``Send``, ``Recv``, or the collective's name."""
    communicator: str
    """Id of its communicator."""
    communicator_name: str
    """What its owner calls it, such as ``pp``; empty where nobody does."""
    rank: int
    """The rank within the communicator."""
    ranks: int
    """Ranks of the communicator."""
    peer: int
    """Rank at the other end; -1 for a collective."""
    size_bytes: int
    """Its message's size."""
    exec_ns: int
    """How long it took."""
    bandwidth_kbps: int
    """What was carried in that time, in kB/s (NCCL's "algorithm bandwidth")."""
    start_ns: int
    """When it started, since the Unix epoch; -1 where the line is not verbose."""
    process: tuple[str, int]
    """Host and process id."""
    number: int = -1
    """Its number among the collectives, or the messages, of its communicator; -1 where the line does not say."""
    nodes: int = 0
    """Nodes of the communicator; 0 where the line does not say."""
    by_kernel: bool = True
    """Whether its time is its kernel's, and not from the host's call on."""

    @property
    def is_message(self) -> bool:
        """Return whether it is a message between two ranks, and no collective."""
        return self.peer >= 0

    @property
    def sends(self) -> bool:
        """Return whether it is a message that leaves."""
        return self.what.lower().startswith("send")


def read_inspector(path: Path) -> list[Transfer]:
    """Read one process's lines; a last line that was not written to its end is left out.

    Raises:
        TraceError: it cannot be read, or a line is none of NCCL Inspector's.
    """
    transfers: list[Transfer] = []
    broken = 0
    for number, line in enumerate(_lines(path), 1):
        if broken:
            raise TraceError(f"line {broken} is no JSON object of NCCL Inspector's", file=path)
        if not line.strip():
            continue
        try:
            fields = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            broken = number
            continue
        if _is_other(fields):
            continue
        transfer = _transfer(fields)
        if transfer is None:
            message = f"line {number} says no operation with its rank, size and time, as NCCL Inspector writes it"
            raise TraceError(message, file=path)
        transfers.append(transfer)
        if len(transfers) % _BATCH == 0:
            check_events(len(transfers), path)
    if not transfers:
        raise TraceError("holds no operation of NCCL Inspector's", file=path)
    return transfers


def _lines(path: Path) -> Iterator[bytes]:
    with open_unpacked(path) as file:
        for number in count(1):
            line = file.readline(_LONGEST_LINE)
            if not line:
                return
            if len(line) == _LONGEST_LINE:
                raise TraceError(f"a line is longer than {_LONGEST_LINE >> 20} MiB: not a trace", file=path)
            if number % _BATCH == 0:
                file.expect(number, (b"\n",))
            yield line


def _is_other(fields: Mapping[str, Any]) -> bool:
    """Return whether a line is of another sort than operations, as newer versions write them too."""
    return isinstance(fields.get("header"), dict) and not {"coll_perf", "p2p_perf"} & fields.keys()


def _transfer(fields: Mapping[str, Any]) -> Transfer | None:
    sort = next((sort for sort in ("coll", "p2p") if isinstance(fields.get(f"{sort}_perf"), dict)), None)
    header, metadata = fields.get("header"), fields.get("metadata")
    if sort is None or not isinstance(header, dict):
        return None
    metadata = metadata if isinstance(metadata, dict) else {}
    perf = fields[f"{sort}_perf"]
    length = microseconds(perf.get(f"{sort}_exec_time_us"))
    size, rank = whole(perf.get(f"{sort}_msg_size_bytes"), -1), whole(header.get("rank"), -1)
    if length is None or min(length, size, rank) < 0:
        return None
    times = perf.get("event_trace_ts")
    start = microseconds(times.get(f"{sort}_start_ts")) if isinstance(times, dict) else None
    return Transfer(
        what=str(perf.get(sort, "")), communicator=str(header.get("id", "")),
        communicator_name=str(header.get("comm_name", "")), rank=rank, ranks=whole(header.get("n_ranks"), 0),
        peer=whole(perf.get("p2p_peer"), -1) if sort == "p2p" else -1, size_bytes=size, exec_ns=length,
        bandwidth_kbps=_kbps(perf.get(f"{sort}_algobw_gbs"), size, length),
        start_ns=start if start is not None and start > 0 else -1,
        process=(str(metadata.get("hostname", "")), whole(metadata.get("pid"), -1)),
        number=whole(perf.get(f"{sort}_sn"), -1), nodes=whole(header.get("nnodes"), 0),
        by_kernel=perf.get(f"{sort}_timing_source") != "collective_cpu",
    )  # fmt: skip


def _kbps(gigabytes: object, size: int, length_ns: int) -> int:
    """Return what the line says, else bytes over time."""
    if isinstance(gigabytes, int | float) and math.isfinite(gigabytes) and 0 < gigabytes < _FASTEST:
        return round(gigabytes * 1_000_000)
    return size * 1_000_000 // length_ns if length_ns else 0
