"""What one process recorded: actions, ends of messages, GPU operations and steps, in no profiler's own terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import numpy as np

    from pptrace.model.action import Action
    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.measurement import Unattributed

__all__ = ["End", "OnDevice", "Operations", "Ran", "Recording", "Said"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDevice:
    """What an action's kernels did on a GPU."""

    start_ns: int
    """When the first one started."""
    end_ns: int
    """When the last one ended."""
    launch_ns: int = -1
    """When the host launched the first one; -1 where that is not recorded."""
    gap_ns: int = 0
    """Time between, in which none of them ran."""
    collective_ns: int = 0
    """Time between, in which only collectives of the rank's own group ran."""
    computes: bool = True
    """Whether they ran on the compute stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One action, as an annotation names it."""

    action: Action
    """What it says."""
    start_ns: int
    """Where the annotation starts, on the host."""
    end_ns: int
    """Where it ends."""
    device: OnDevice | None = None
    """What its kernels did, where a GPU's work was recorded."""
    braid: int = -1
    """Number of the braid that it is a phase of, which sends and receives within the rank's own group; or -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of a message."""

    sends: bool
    """Whether it leaves here."""
    peer: int
    """Global rank at the other end; -1 where the trace does not say."""
    start_ns: int
    """When it was posted (on a GPU: when its kernel started)."""
    end_ns: int
    """When it was known to be done."""
    size_bytes: int
    """Its size; 0 where the trace does not say."""
    action: Action | None = None
    """``SEND_F`` and so on, where an annotation around it says so."""
    tag: int = 0
    """What tells it from others between the same two ranks."""
    posted_ns: int = -1
    """When the host launched its kernel; -1 where the host's own post is ``start_ns``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What is known of one message or collective that a kernel carries."""

    what: str
    """``send``, ``recv``, or the collective's name as PyTorch writes it."""
    peer: int = -1
    """Global rank at the other end of a message; -1 where the trace does not say."""
    size_bytes: int = 0
    """Its size; 0 where the trace does not say."""
    group: str = ""
    """Description of its process group."""
    action: Action | None = None
    """``SEND_F`` and so on, where an annotation says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """GPU operations, in columns of one value per operation, by time."""

    name: Int32s
    """Number among ``names``."""
    names: tuple[str, ...]
    """Names, each once."""
    stream: Int64s
    """The GPU's stream."""
    start_ns: Int64s
    """When it starts."""
    end_ns: Int64s
    """When it ends."""
    launch_ns: Int64s
    """When the host launched it; -1 where that is not recorded."""
    communicates: np.ndarray[tuple[int], np.dtype[np.bool_]]
    """Whether it is communication."""
    action: Int32s
    """Position in ``Recording.ran`` of the action that launched it; -1 for none."""
    thread: Int32s | None = None
    """Number of the host's thread that launched it, -1 where that is not recorded; None where nothing says."""
    said: Mapping[int, tuple[Said, ...]] = field(default_factory=dict)
    """By position, what a kernel that communicates carries, where the trace says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One process's file, or files."""

    path: Path
    """The (first) file."""
    rank: int
    """Global rank; -1 where neither the file nor its name says."""
    world: int
    """Processes of the job; 0 where the file does not say."""
    groups: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Global ranks of each process group that has a description."""
    windows: tuple[tuple[str, int, int], ...] = ()
    """Label, start and end of each step that the profiler marked."""
    ran: tuple[Ran, ...] = ()
    """Actions by time."""
    ends: tuple[End, ...] = ()
    """Ends of messages by time."""
    operations: Operations | None = None
    """GPU operations; None where the host's own work was recorded."""
    epoch: bool = True
    """Whether times count from the Unix epoch; else from some start of this process's own."""
    origin_ns: int | None = None
    """Which of those times is 0 in the file as viewers of traces show it; None where they do not open it."""
    has_clock: bool = False
    """Whether the file names a clock of its own, as Perfetto's format does."""
    allocated_bytes: int = 0
    """Most memory that was allocated on its GPU at once; 0 where that is not recorded."""
    notes: tuple[str, ...] = ()
    """What was not read; one sentence each."""
    unattributed: tuple[Unattributed, ...] = ()
    """Operations that belong to no action; their rank is whatever."""
