"""NCCL Inspector's lines as recordings: a timeline of communication where they are verbose, else its sums."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from pptrace_profilers.formats.nccl_inspector import read_inspector
from pptrace_profilers.formats.nccl_inspector_sizes import by_size
from pptrace_profilers.formats.run_files import read_each
from pptrace_profilers.recording.recording import End, Operations, Recording, Said

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pptrace.timeline.measurement import BySize
    from pptrace_profilers.formats.nccl_inspector import Transfer

__all__ = ["read_inspected"]


def read_inspected(paths: Sequence[Path]) -> tuple[list[Recording], tuple[BySize, ...], list[str]]:
    """Read a run's files, one per process; one that cannot be read is noted, and the others are used.

    A process's global rank is its rank in the largest communicator.

    Returns:
        One recording per process, what operations of each sort took by size, and notes.

    Raises:
        TraceError: no file can be read, or two are of one process.
    """
    files, notes = read_each(paths, read_inspector)
    ranks = {path: _largest(own) for path, own in files.items()}
    members: dict[str, dict[int, int]] = defaultdict(dict)
    for path, own in files.items():
        for one in own:
            members[one.communicator][one.rank] = ranks[path].rank
    if any(one.start_ns < 0 for own in files.values() for one in own):
        notes.append("lines are not verbose: how long operations took is known, and not when they ran")
    recordings = [_recording(path, own, ranks[path], members) for path, own in files.items()]
    sized, told = by_size([one for own in files.values() for one in own])
    return recordings, sized, [*notes, *told]


def _largest(transfers: Sequence[Transfer]) -> Transfer:
    return max(transfers, key=lambda one: (one.ranks, one.communicator))


def _recording(
    path: Path, transfers: Sequence[Transfer], largest: Transfer, members: Mapping[str, Mapping[int, int]]
) -> Recording:
    messages = [one for one in transfers if one.peer >= 0]
    ends = [
        End(
            sends=one.what.lower().startswith("send"), start_ns=max(one.start_ns, 0),
            end_ns=max(one.start_ns, 0) + one.exec_ns, size_bytes=one.size_bytes,
            # Ends without a time say nothing of clocks, so they name nobody.
            peer=members[one.communicator].get(one.peer, -1) if one.start_ns >= 0 else -1,
        )
        for one in messages
    ]  # fmt: skip
    collectives = [one for one in transfers if one.peer < 0]
    return Recording(
        path=path, rank=largest.rank, world=largest.ranks,
        ends=tuple(sorted(ends, key=lambda end: end.start_ns)), operations=_operations(collectives),
    )  # fmt: skip


def _operations(collectives: Sequence[Transfer]) -> Operations | None:
    if not collectives:
        return None
    rows = sorted(collectives, key=lambda one: one.start_ns)
    names = tuple(dict.fromkeys(one.what for one in rows))
    start = np.maximum([one.start_ns for one in rows], 0).astype(np.int64)
    return Operations(
        name=np.array([names.index(one.what) for one in rows], dtype=np.int32), names=names,
        stream=np.full(len(rows), -1), start_ns=start,
        end_ns=start + np.array([one.exec_ns for one in rows], dtype=np.int64), launch_ns=np.full(len(rows), -1),
        communicates=np.ones(len(rows), dtype=bool), action=np.full(len(rows), -1, dtype=np.int32),
        said={
            at: (Said(what=one.what, size_bytes=one.size_bytes, group=one.communicator_name or one.communicator),)
            for at, one in enumerate(rows)
        },
    )  # fmt: skip
