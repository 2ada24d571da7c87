"""When messages were there: seen where their receivers waited for them, else told from those that were seen.

A receiver that looks for a message says when that was there only if it still had to wait. What is there already
costs it a call, 50 to 200 us on a host, which would count as the end of a long way if the message left long ago. A
message was there at some moment between both ends being ready and the end of the wait. Where the receiver watched
at least half of that time, the arrival more likely fell into what it watched, whatever messages take: it was seen.
Else it was more likely there before. Then it took what others on its way took, and the wait was the host's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pptrace.model.kinds import COMMUNICATION, Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.timeline.messages import Messages
    from pptrace.timeline.timeline import Timeline

__all__ = ["Arrivals", "arrivals", "released_by_messages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One value per message whose producer and consumer are known."""

    producer: Int32s
    """The row that made it."""
    consumer: Int32s
    """The row that needs it."""
    row: Int32s
    """Its own row, the receiver's where there is one."""
    send: Int32s
    """Its sender's row, -1 where there is none."""
    took_ns: Int64s
    """From when both ends were ready until it was there."""
    held_ns: Int64s
    """What else lay between its producer and its consumer for its sake."""
    observed: NDArray[np.bool_]
    """Whether its arrival was seen, or a simulation knows it."""
    there_ns: Int64s
    """When it was there."""


def arrivals(timeline: Timeline, pairs: Messages, before: Int64s) -> Arrivals:
    """Return when the messages of a step were there.

    Args:
        timeline: the step.
        pairs: its messages.
        before: per row, when the computation before it on its rank ended.
    """
    known = (pairs.producer >= 0) & (pairs.consumer >= 0)
    producer, consumer, send, recv = (
        column[known] for column in (pairs.producer, pairs.consumer, pairs.send, pairs.recv)
    )
    rows = np.where(recv >= 0, recv, send)
    there = timeline.end_ns[rows] + timeline.lag_ns[rows]
    # A simulation, and a GPU's recording, know what released each slice, and when both ends were ready.
    caused = timeline.cause[consumer] >= 0
    ready = np.where(caused, timeline.start_ns[rows], np.where(recv >= 0, timeline.enter_ns[rows], 0))
    left = np.where(caused, timeline.end_ns[producer], _left_ns(timeline, producer, send))
    ready = np.maximum(ready, left)
    took = np.maximum(there - ready, 0)
    held = np.where(caused, ready, left) - timeline.end_ns[producer]
    joined = caused & released_by_messages(timeline)[consumer]
    held[joined] += np.maximum(timeline.start_ns[consumer] - there, 0)[joined]
    enter = timeline.enter_ns[consumer]
    looked = np.maximum(before[consumer], np.where(enter < timeline.start_ns[consumer], enter, 0))
    watched = there - looked
    observed = caused | ((watched > 0) & (2 * watched >= took))
    took = _told(took, observed, timeline.rank_of_row()[producer], timeline.rank_of_row()[consumer])
    return Arrivals(
        producer=producer, consumer=consumer, row=rows, send=send, took_ns=took, held_ns=held, observed=observed,
        there_ns=np.where(observed, there, ready + took),
    )  # fmt: skip


def _left_ns(timeline: Timeline, producer: Int32s, send: Int32s) -> Int64s:
    """Return when each message could leave: behind its producer, or behind the pair that a host ran as one.

    The latter is so where the host sent it only then. A pair's time is shared between its actions: the end of the
    first lies within, and counting from there would take the second for the message's way.
    """
    paired = timeline.pair >= 0
    pair = np.where(paired, timeline.rank_of_row().astype(np.int64) * len(timeline) + timeline.pair, -1)
    ends = timeline.end_ns.copy()
    if paired.any():
        numbers, place = np.unique(pair, return_inverse=True)
        last = np.full(numbers.size, np.iinfo(np.int64).min)
        np.maximum.at(last, place.reshape(-1), timeline.end_ns)
        ends = np.where(paired, last[place.reshape(-1)], ends)
    posted = np.where(send >= 0, timeline.enter_ns[send], 0)
    own: Int64s = timeline.end_ns[producer]
    return np.where(posted >= ends[producer], ends[producer], own)


def _told(took: Int64s, observed: NDArray[np.bool_], source: Int32s, target: Int32s) -> Int64s:
    """Return messages' times, those not seen no longer than the median on their way of what was seen.

    Where nothing was seen on any way, no message took longer than the shortest time in which one was found there.
    """
    told = took.copy()
    way = source.astype(np.int64) * (int(target.max(initial=0)) + 1) + target
    for one in np.unique(way[~observed]):
        same = way == one
        seen = took[same & observed] if (same & observed).any() else took[observed]
        usual = int(np.median(seen)) if seen.size else int(took[same].min())
        unseen = same & ~observed
        told[unseen] = np.minimum(took[unseen], usual)
    return told


def released_by_messages(timeline: Timeline) -> NDArray[np.bool_]:
    """Return, per row, whether it is known that a message released it: its own, or one that came with that."""
    beside = timeline.lane_stream[timeline.lane_of_row()] != Stream.COMPUTE
    carries = COMMUNICATION.mask(timeline.kind) & beside
    brought: NDArray[np.bool_] = np.append(carries, False)[timeline.cause]
    return brought
