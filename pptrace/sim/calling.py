"""What is known of a program's calls once rows have their places: which need tasks of their own, and how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.kernel import run
from pptrace.sim.kernels.calling import tell_calls

if TYPE_CHECKING:
    from pptrace.model.columns import Int32s
    from pptrace.schedule.issue_order import IssueOrder

__all__ = ["Calling", "calling"]

_NONE = np.zeros(0, dtype=np.int32)


class _Calls(NamedTuple):
    """The calls of an issue order; see :class:`pptrace.schedule.calls.Issue`."""

    of_row: Int32s
    before: Int32s
    communicator: Int32s
    awaited: Int32s
    row: Int32s
    earlier: Int32s
    later: Int32s


class _Known(NamedTuple):
    """One value per call."""

    held: Int32s
    """The computation before it."""
    waited: Int32s
    """The first computation that waits for it, -1 for none but those that need its messages."""
    size: Int32s
    """Ends of messages."""
    implied: Int32s
    """Whether the computation before it says that the call before on its communicator is over."""
    parts: Int32s
    """Which of its beginning and end are tasks of their own."""


class Calling(NamedTuple):
    """A program's calls; nothing where there is none."""

    calls: _Calls = _Calls(*[_NONE] * 7)
    known: _Known = _Known(*[_NONE] * 5)
    tasks: int = 0
    """Tasks that begin and end calls."""


def calling(issued: IssueOrder, place: Int32s, fork: Int32s) -> Calling:
    """Return what the kernels need of an issue order's calls, given each row's place and computation before it."""
    if issued.calls is None:
        return Calling()
    own = issued.calls
    calls = _Calls(own.of_row, own.before, own.communicator, own.awaited, own.row, own.earlier, own.later)
    known = _Known(*np.zeros((5, len(own)), dtype=np.int32))
    known.waited[:] = -1
    tasks = run(tell_calls, (issued.row_ptr, calls, place, fork), known, work=len(issued))
    return Calling(calls, known, tasks)
