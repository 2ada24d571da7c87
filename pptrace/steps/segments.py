"""Segments: what an action consists of, on which of its rank's streams, and what each part needs.

A forward with tensor parallelism is attention, its all-reduce, the MLP, its all-reduce; with experts it is
attention, dispatch, experts, combine. Alone, an action's segments follow one another, and no later segment of its
rank starts before the last one ends. In an overlapped pair, one member computes while a collective of the other
one is under way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pptrace.steps.kinds import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One part of an action.

    >>> Segment(name="all-reduce", duration_ns=2, stream=Stream.TENSOR_PARALLEL).needs_of(1)
    (0,)
    """

    name: str
    """Name in traces: ``attention``, ``dispatch``."""
    duration_ns: int = 0
    """Duration without contention or overlap."""
    stream: Stream = Stream.COMPUTE
    """Stream: compute, or the communication stream of one of the rank's groups."""
    needs: tuple[int, ...] | None = None
    """Places of earlier segments of its action that it waits for, one or more; None for the one before it.
    The first waits for what the action needs."""
    result: bool = False
    """Whether the action's message may leave, and its own stage go on, at its end. Where no segment of an
    action says so, that takes all that no other segment needs. An action alone is done when all of it is."""
    size_bytes: int = 0
    """Bytes that it moves; 0 where unknown."""
    link: str = ""
    """The network's link that the bytes go over and share; then those say what it takes, not ``duration_ns``."""
    activation_bytes: int | None = None
    """Bytes that it takes at its start or, below zero, frees at its end. Where no segment of an action says
    it, the first takes and the last frees what the action does."""

    def scaled(self, share: Fraction) -> Segment:
        """Return the segment of a microbatch that holds ``share`` as much, rounded down."""
        change = self.activation_bytes
        return replace(
            self, duration_ns=int(self.duration_ns * share), size_bytes=int(self.size_bytes * share),
            activation_bytes=None if change is None else int(change * share),
        )  # fmt: skip

    @property
    def is_computation(self) -> bool:
        """Whether it keeps the compute stream busy."""
        return self.stream is Stream.COMPUTE

    def needs_of(self, place: int) -> tuple[int, ...]:
        """Return the indices of its dependencies if its own index in the action is ``place``."""
        if self.needs is not None:
            return self.needs
        return (place - 1,) if place else ()


def check_segments(segments: tuple[Segment, ...], where: str) -> None:
    """Check one action's segments.

    Raises:
        ValueError: none, a duration or size below zero, a need of a later segment, a stream that is neither the
            compute stream nor a group's, or bytes over a link that have no size.
    """
    if not segments:
        msg = f"{where}: no segments: an action has at least one"
        raise ValueError(msg)
    if not any(segment.is_computation for segment in segments):
        msg = f"{where}: none of its segments computes: an action has at least one that does, if only for 0 ns"
        raise ValueError(msg)
    for place, segment in enumerate(segments):
        problem = problem_of(segment, place)
        if problem:
            msg = f"{where}, segment {place} ({segment.name}): {problem}"
            raise ValueError(msg)


def problem_of(segment: Segment, place: int) -> str:
    """Return why a segment is invalid at index ``place`` of its action; ``""`` for a valid one.

    >>> problem_of(Segment(name="mlp", needs=(1,)), 1)
    'needs segments [1]: one or more of those before it, which count from 0'
    """
    if segment.duration_ns < 0 or segment.size_bytes < 0:
        return "times and sizes are from 0"
    if not (segment.is_computation or segment.stream.is_group):
        return f"runs on {segment.stream.name}: a segment computes, or communicates within an own group"
    needs = segment.needs_of(place)
    if any(not 0 <= need < place for need in needs) or (place and not needs):
        return f"needs segments {list(needs)}: one or more of those before it, which count from 0"
    if segment.link and not segment.size_bytes:
        return f"goes over {segment.link} and has no size_bytes"
    return ""


def overlapped_ns(segments: Sequence[Segment]) -> int:
    """Return what an action alone takes that computes beside its own communication.

    Computations keep their order, and communication is issued as soon as what it needs has been.

    >>> reduce = Segment(name="all-reduce", duration_ns=2, stream=Stream.TENSOR_PARALLEL)
    >>> weight = Segment(name="weights", duration_ns=5, needs=(0,))
    >>> overlapped_ns([Segment(name="input", duration_ns=3), reduce, weight])
    8
    """
    end, free = dict[int, int](), dict[Stream, int]()
    waiting = list(range(len(segments)))
    while waiting:
        issued = (
            at for at in waiting
            if not segments[at].is_computation and all(need in end for need in segments[at].needs_of(at))
        )  # fmt: skip
        place = next(issued, -1)
        if place < 0:
            place = next(at for at in waiting if segments[at].is_computation)
        segment = segments[place]
        ready = max((end[need] for need in segment.needs_of(place)), default=0)
        end[place] = max(ready, free.get(segment.stream, 0)) + segment.duration_ns
        free[segment.stream] = end[place]
        waiting.remove(place)
    return max(end.values())


def results_of(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Return the places of the segments at whose ends an action's result is there.

    >>> results_of([Segment(name="attention"), Segment(name="weights"), Segment(name="mlp", needs=(0,))])
    (1, 2)
    """
    named = tuple(place for place, segment in enumerate(segments) if segment.result)
    needed = {need for place, segment in enumerate(segments) for need in segment.needs_of(place)}
    return named or tuple(place for place in range(len(segments)) if place not in needed)
