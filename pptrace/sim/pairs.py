"""The order of an overlapped pair's segments: one per stream, made once for all pairs that are alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, NamedTuple

from pptrace.model.segments import results_of
from pptrace.record import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pptrace.model.roles import Stream
    from pptrace.model.segments import Segment

__all__ = ["STREAM", "Paired", "Placed", "alone", "alone_overlapped", "paired"]


class Placed(NamedTuple):
    """One segment in the order in which a rank issues it."""

    member: int
    """Which of the pair's actions it belongs to."""
    number: int
    """Its place in that action."""
    release: int
    """The computation behind which it is issued, as a place in the order; else :data:`ROW` or :data:`STREAM`."""


ROW, STREAM = -1, -2
"""Issued behind whatever its row computed before, or behind nothing but what its stream and its needs say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """The segments of one or more actions in the order of issue."""

    order: tuple[Placed, ...]
    """The segments: those of each stream follow one another in this order."""
    needs: tuple[tuple[int, int], ...]
    """Places in the order of which the first is waited for by the second, where their stream does not say so."""
    results: tuple[tuple[int, ...], ...]
    """By action, the places of the segments behind which its result is there."""


def alone(segments: Sequence[Segment]) -> Paired:
    """Return an action by itself: each segment follows the one before, whatever it needs."""
    places = range(len(segments))
    computed = [max((i for i in places[:at] if segments[i].is_computation), default=STREAM) for at in places]
    release = [ROW if segments[i].is_computation or not i else computed[i] for i in places]
    return Paired(
        order=tuple(Placed(0, place, release[place]) for place in places),
        needs=tuple((i - 1, i) for i in places[1:] if segments[i].stream is not segments[i - 1].stream),
        results=((len(segments) - 1,),),
    )


def alone_overlapped(segments: Sequence[Segment]) -> Paired:
    """Return an action by itself that computes beside its own communication; its result is there when all is."""
    rows = paired((segments,))
    last = {segments[one.number].stream: place for place, one in enumerate(rows.order)}
    return replace(rows, results=(tuple(sorted(last.values())),))


def paired(members: Sequence[Sequence[Segment]], interleave: Sequence[int] = ()) -> Paired:
    """Return the order of several actions' segments.

    Computations of one action keep their order, and ``interleave`` says whose next one comes, over and over;
    without it, whichever can start first with nothing else beside. Communication is issued as soon as what it
    needs has been, and so in the order of its producers.
    """
    turns = _turns(members, interleave) if interleave else _first_ready(members)
    order: list[Placed] = []
    place: dict[tuple[int, int], int] = {}
    _issue_communication(members, order, place)
    for member in turns:
        number = _next_computation(members[member], member, place)
        place[member, number] = len(order)
        order.append(Placed(member, number, ROW))
        _issue_communication(members, order, place)
    needs = [
        (place[member, need], at)
        for (member, number), at in sorted(place.items(), key=lambda item: item[1])
        for need in members[member][number].needs_of(number)
        if members[member][need].stream is not members[member][number].stream
    ]
    results = tuple(
        tuple(place[member, number] for number in results_of(segments)) for member, segments in enumerate(members)
    )
    return Paired(order=tuple(order), needs=tuple(needs), results=results)


def _next_computation(segments: Sequence[Segment], member: int, place: dict[tuple[int, int], int]) -> int:
    return next(i for i, one in enumerate(segments) if one.is_computation and (member, i) not in place)


def _issue_communication(
    members: Sequence[Sequence[Segment]], order: list[Placed], place: dict[tuple[int, int], int]
) -> None:
    """Issue all communication whose needs have been, the first member's first, until no more is."""
    while True:
        ready = [
            (member, number)
            for member, segments in enumerate(members)
            for number, segment in enumerate(segments)
            if not segment.is_computation and (member, number) not in place
            and all((member, need) in place for need in segment.needs_of(number))
        ]  # fmt: skip
        if not ready:
            return
        member, number = ready[0]
        needs = [place[member, need] for need in members[member][number].needs_of(number)]
        computed = [at for at in needs if members[order[at].member][order[at].number].is_computation]
        place[member, number] = len(order)
        order.append(Placed(member, number, max(computed, default=STREAM if number else ROW)))


def _turns(members: Sequence[Sequence[Segment]], interleave: Sequence[int]) -> list[int]:
    left = [sum(segment.is_computation for segment in segments) for segments in members]
    turns: list[int] = []
    for member in cycle(interleave):
        if not any(left[named] for named in interleave):
            break
        if left[member]:
            left[member] -= 1
            turns.append(member)
    return turns + [member for member, count in enumerate(left) for _ in range(count)]


def _first_ready(members: Sequence[Sequence[Segment]]) -> list[int]:
    """Return whose computation comes next where streams run what is ready first, the first member on a tie."""
    end: dict[tuple[int, int], int] = {}
    free: dict[Stream, int] = {}
    turns: list[int] = []

    def ready(member: int, number: int) -> int:
        return max((end[member, need] for need in members[member][number].needs_of(number)), default=0)

    def run(member: int, number: int) -> None:
        segment = members[member][number]
        begin = max(ready(member, number), free.get(segment.stream, 0))
        end[member, number] = free[segment.stream] = begin + segment.duration_ns

    while len(end) < sum(map(len, members)):
        waiting = [
            (member, number)
            for member, segments in enumerate(members)
            for number, segment in enumerate(segments)
            if (member, number) not in end
            and all((member, need) in end for need in segment.needs_of(number))
            and all((member, i) in end for i in range(number) if segments[i].stream is segment.stream)
        ]
        communication = [one for one in waiting if not members[one[0]][one[1]].is_computation]
        chosen = min(communication or waiting, key=lambda one: (ready(*one), one))
        if not communication:
            turns.append(chosen[0])
        run(*chosen)
    return turns
