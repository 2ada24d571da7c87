"""Segments of an action: computations and collectives, with their streams and dependencies.

A forward with tensor parallelism consists of attention, its all-reduce, the MLP and its all-reduce. With experts
it consists of attention, dispatch, experts and combine. The segments of a single action run in sequence. In an
overlapped pair, one member computes during a collective of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from pptrace.steps.kinds import Stream

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction


class Segment(Struct, frozen=True, kw_only=True):
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
    """Indices of earlier segments that it depends on, at least one; None for the previous segment.
    The first segment has the dependencies of the action."""
    result: bool = False
    """Whether its end completes the action's result, so that the message can leave. By default, all segments
    without dependents complete it. A single action ends with its last segment."""
    size_bytes: int = 0
    """Bytes that it transfers; 0 for unknown."""
    link: str = ""
    """Shared link of the network for its bytes; the transfer time then replaces ``duration_ns``."""
    activation_bytes: int | None = None
    """Bytes allocated at its start; negative values are freed at its end. By default, the first segment
    allocates and the last frees the action's bytes."""

    collective_ns: int = 0
    """Part of a computation's duration in which it communicates, and no other computation of the rank runs."""

    paired: bool = False
    """Whether it takes time only in an overlapped pair, such as the wait for a host that issues both members."""

    def scaled(self, share: Fraction) -> Segment:
        """Return the segment with its time and sizes multiplied by ``share``, rounded down."""
        change = self.activation_bytes
        return replace(
            self, duration_ns=int(self.duration_ns * share), size_bytes=int(self.size_bytes * share),
            collective_ns=int(self.collective_ns * share),
            activation_bytes=None if change is None else int(change * share),
        )  # fmt: skip

    @property
    def is_computation(self) -> bool:
        """Whether it runs on the compute stream."""
        return self.stream is Stream.COMPUTE

    def needs_of(self, place: int) -> tuple[int, ...]:
        """Return the indices of its dependencies if its own index in the action is ``place``."""
        if self.needs is not None:
            return self.needs
        return (place - 1,) if place else ()


def single(segments: Sequence[Segment]) -> tuple[Segment, ...]:
    """Return the segments of an action outside pairs: those of pairs alone take no time.

    >>> [segment.duration_ns for segment in single([Segment(name="host", duration_ns=3, paired=True)])]
    [0]
    """
    return tuple(replace(segment, duration_ns=0) if segment.paired else segment for segment in segments)


def check_segments(segments: tuple[Segment, ...], where: str) -> None:
    """Check one action's segments.

    Raises:
        ValueError: no segments, a negative duration or size, a dependency on a later segment, a stream of another
            kind, or a link without bytes.
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
        return f"runs on {segment.stream.name}: expected compute or a stream of a parallel group"
    needs = segment.needs
    is_known = 0 <= min(needs) <= max(needs) < place if needs else needs is None or not place
    if not is_known:
        return f"needs segments {list(needs or ())}: one or more of those before it, which count from 0"
    if segment.link and not segment.size_bytes:
        return f"goes over {segment.link} and has no size_bytes"
    return ""


def overlapped_ns(segments: Sequence[Segment]) -> int:
    """Return the duration of a single action whose communication overlaps with its computation.

    Computations keep their order; communication is issued right after its dependencies.

    >>> reduce = Segment(name="all-reduce", duration_ns=2, stream=Stream.TENSOR_PARALLEL)
    >>> weight = Segment(name="weights", duration_ns=5, needs=(0,))
    >>> overlapped_ns([Segment(name="input", duration_ns=3), reduce, weight])
    8
    """
    end, free = dict[int, int](), dict[Stream, int]()
    waiting = list(range(len(segments)))
    while waiting:
        communication = (
            index for index in waiting
            if not segments[index].is_computation and all(need in end for need in segments[index].needs_of(index))
        )  # fmt: skip
        index = next(communication, -1)
        if index < 0:
            index = next(candidate for candidate in waiting if segments[candidate].is_computation)
        segment = segments[index]
        ready = max((end[need] for need in segment.needs_of(index)), default=0)
        end[index] = max(ready, free.get(segment.stream, 0)) + segment.duration_ns
        free[segment.stream] = end[index]
        waiting.remove(index)
    return max(end.values())


def results_of(segments: Sequence[Segment]) -> tuple[int, ...]:
    """Return the indices of the segments whose ends complete an action's result.

    >>> results_of([Segment(name="attention"), Segment(name="weights"), Segment(name="mlp", needs=(0,))])
    (1, 2)
    """
    marked = tuple(index for index, segment in enumerate(segments) if segment.result)
    if marked:
        return marked
    needed = {need for index, segment in enumerate(segments) for need in segment.needs_of(index)}
    return tuple(index for index in range(len(segments)) if index not in needed)
