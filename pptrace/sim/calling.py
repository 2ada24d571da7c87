"""What is known of a program's calls once rows have their places: which need tasks of their own, and how many."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pptrace.kernel import run
from pptrace.model.columns import passing
from pptrace.model.kind_table import TABLE
from pptrace.model.kinds import RECEIVES
from pptrace.sim.kernels.calling import OUTLASTED, tell_calls

if TYPE_CHECKING:
    from pptrace.model.columns import Int8s, Int32s
    from pptrace.schedule.calls import Issue
    from pptrace.schedule.issue_order import IssueOrder

__all__ = ["Calling", "calling"]

_NONE = np.zeros(0, dtype=np.int32)


class _Calls(NamedTuple):
    """The calls of an issue order; see :class:`pptrace.schedule.calls.Issue`."""

    of_row: Int32s
    before: Int32s
    communicator: Int32s
    waited: Int32s
    further: Int8s
    awaited: Int32s
    row: Int32s
    earlier: Int32s
    later: Int32s


class _Known(NamedTuple):
    """One value per call."""

    waited: Int32s
    """The first computation that waits for it, -1 for none but those that need its messages."""
    flags: Int8s
    """What the kernels say of it."""


class Calling(NamedTuple):
    """A program's calls; nothing where there is none."""

    calls: _Calls = _Calls(
        of_row=_NONE, before=_NONE, communicator=_NONE, waited=_NONE, further=_NONE.astype(np.int8),
        awaited=_NONE, row=_NONE, earlier=_NONE, later=_NONE,
    )  # fmt: skip
    known: _Known = _Known(_NONE, np.zeros(0, dtype=np.int8))
    tasks: int = 0
    """Tasks that begin and end calls."""
    edges: int = 0
    """A bound of the edges of calls."""


def calling(issued: IssueOrder, place: Int32s, fork: Int32s) -> Calling:
    """Return what the kernels need of an issue order's calls.

    Args:
        issued: the issue order.
        place: of each issued row.
        fork: of each place, the computation before it.
    """
    if issued.calls is None:
        return Calling()
    own = issued.calls
    calls = _Calls(
        own.of_row, own.before, own.communicator, own.waited, own.further, own.awaited, own.row,
        own.earlier, own.later,
    )  # fmt: skip
    known = _Known(*passing(len(own), np.int32, np.int8))
    known.waited[:], known.flags[:] = -1, 0
    tasks = run(
        tell_calls,
        (issued.row_ptr, issued.cells, TABLE, calls, place, fork),
        known,
        work=len(issued),
    )
    return Calling(calls, known, tasks, tasks + _most_edges(issued, own, known.flags))


def _most_edges(issued: IssueOrder, calls: Issue, flags: Int8s) -> int:
    """Return a bound of the edges of calls, but for those of their own tasks' beginnings and ends.

    Each end of a message waits for its rank's computation and is waited for; a send may follow another one.
    """
    messages, consumers = int(calls.sent.sum()), 0
    if calls.further.any():
        several = issued.span.max(initial=1) > 1
        consumers = int(issued.span[RECEIVES.mask(issued.kind)].sum()) if several else messages
    outlasted = int(np.count_nonzero(flags & OUTLASTED))
    return 5 * messages + consumers + outlasted + calls.row.size + calls.later.size
