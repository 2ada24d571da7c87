"""NCCL Inspector's lines as recordings: a timeline of communication where they are verbose, else its sums."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pptrace_profilers.formats.nccl_inspector import read_inspector
from pptrace_profilers.formats.nccl_inspector_sizes import by_size
from pptrace_profilers.formats.run_files import read_files
from pptrace_profilers.recording.recording import MessageEnd, Operations, Payload, Recording

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.plugin import BySize
    from pptrace_profilers.formats.nccl_inspector import Transfer

__all__ = ["read_inspector_run"]


def read_inspector_run(paths: Sequence[Path]) -> tuple[list[Recording], tuple[BySize, ...], list[str]]:
    """Read a run's files, one per process; one that cannot be read is noted, and the others are used.

    A process's global rank is its rank in the largest communicator.

    Returns:
        One recording per process, what operations of each sort took by size, and notes.

    Raises:
        TraceError: no file can be read, or two are of one process.
    """
    files, notes = read_files(paths, read_inspector)
    largest = {path: max(lines, key=lambda line: (line.ranks, line.communicator)) for path, lines in files.items()}
    global_ranks: dict[str, dict[int, int]] = defaultdict(dict)
    for path, lines in files.items():
        for line in lines:
            global_ranks[line.communicator][line.rank] = largest[path].rank
    transfers = [line for lines in files.values() for line in lines]
    if any(line.start_ns < 0 for line in transfers):
        notes.append("lines are not verbose: how long operations took is known, and not when they ran")
    recordings = [_recording(path, lines, largest[path], global_ranks) for path, lines in files.items()]
    sizes, size_notes = by_size(transfers)
    return recordings, sizes, [*notes, *size_notes]


def _recording(
    path: Path, transfers: Sequence[Transfer], largest: Transfer, global_ranks: Mapping[str, Mapping[int, int]]
) -> Recording:
    ordered = sorted(transfers, key=_start)
    ends = tuple(
        MessageEnd(
            sends=line.sends, start_ns=_start(line), end_ns=_start(line) + line.exec_ns,
            size_bytes=line.size_bytes,
            # Ends without a time say nothing of clocks, so they name nobody.
            peer=global_ranks[line.communicator].get(line.peer, -1) if line.start_ns >= 0 else -1,
        )
        for line in ordered
        if line.is_message
    )  # fmt: skip
    collectives = [
        (_payload(line), _start(line), _start(line) + line.exec_ns, -1, -1)
        for line in ordered
        if not line.is_message
    ]
    return Recording(
        path=path, rank=largest.rank, world=largest.ranks, ends=ends,
        operations=Operations.of_collectives(collectives),
    )  # fmt: skip


def _payload(line: Transfer) -> Payload:
    group = line.communicator_name or line.communicator
    return Payload(operation=line.what, size_bytes=line.size_bytes, group=group)


def _start(line: Transfer) -> int:
    return max(line.start_ns, 0)
