"""Last dependencies of computations, and the critical path that they form."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from pptrace.measured.computations import extract_computations
from pptrace.measured.matching import first_difference, has_same_stages
from pptrace.steps.kinds import TABLE, TOWARDS_NEXT, Kind
from pptrace.timeline.critical_path import why

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.measured.computations import Computations
    from pptrace.steps.columns import Int64s
    from pptrace.timeline.timeline import Timeline


class Releases(NamedTuple):
    """The last dependency of each computation to finish, in columns."""

    position: Int64s
    """The position of the dependency; -1 without dependencies."""
    transfer_ns: Int64s
    """The transfer time from the dependency, at most the time between both; 0 where unknown."""


def find_releases(step: Computations) -> Releases:
    """Return the last dependency of each computation: the previous one of its rank, or a producer of its input."""
    passes = np.flatnonzero(TABLE.feeds[step.kind] >= 0)
    spans = step.span[passes].astype(np.int64)
    consumer = np.repeat(passes, spans)
    microbatch = step.microbatch[consumer] + np.arange(consumer.size) - np.repeat(np.cumsum(spans) - spans, spans)
    backward = TABLE.feeds[step.kind[consumer]] == 1
    stage = step.stage[consumer]
    width = int(microbatch.max(initial=0)) + 1

    def inputs(stage: NDArray[np.integer], microbatch: NDArray[np.integer], backward: NDArray[np.bool_]) -> Int64s:
        """Return the index of each input by its consuming stage; -1 for stages that do not exist."""
        exists = (stage >= 0) & (stage < step.placement.stages) & (microbatch < width)
        index: Int64s = (backward * step.placement.stages + stage) * width + microbatch
        return np.where(exists, index, -1)

    input_index = inputs(stage, microbatch, backward)
    producers = np.full(2 * step.placement.stages * width + 1, -1, dtype=np.int64)
    producers[inputs(stage + np.where(backward, -1, 1), microbatch, backward)] = consumer
    producers[-1] = -1
    sent = step.transfers
    known, forward = sent.duration_ns >= 0, TOWARDS_NEXT.mask(sent.kind)
    sends = inputs(sent.stage + np.where(forward, 1, -1), sent.microbatch, ~forward)[known]
    transfer_ns = np.zeros(producers.size, dtype=np.int64)
    transfer_ns[sends] = (sent.duration_ns + sent.blocked_ns)[known]
    sender, last = producers[sends], _last_of_pairs(step)
    pair_ns = step.end_ns[last[sender]] - step.end_ns[sender]
    held = np.flatnonzero((sender >= 0) & (pair_ns > 0) & (pair_ns <= sent.blocked_ns[known]))
    producers[sends[held]] = last[sender[held]]  # a send after a pair depends on the member that ends last
    transfer_ns[sends[held]] -= pair_ns[held]
    producer, transfer_ns = producers[input_index], transfer_ns[input_index]
    # Clocks of ranks are inexact: a producer that ends after its consumer does not count.
    usable = (producer >= 0) & (producer != consumer) & (step.end_ns[producer] <= step.end_ns[consumer])
    follows = np.flatnonzero(np.diff(step.rank, prepend=-1) == 0)
    candidates = np.concatenate([follows - 1, producer[usable]])
    released = np.concatenate([follows, consumer[usable]])
    ready_ns = step.end_ns[candidates] + np.concatenate([np.zeros_like(follows), transfer_ns[usable]])
    order = np.lexsort((candidates, ready_ns, released))
    position = np.full(len(step), -1, dtype=np.int64)
    position[released[order]] = candidates[order]
    waited_ns = np.zeros(len(step), dtype=np.int64)
    chosen = usable & (producer == position[consumer])
    np.maximum.at(waited_ns, consumer[chosen], transfer_ns[chosen])
    between_ns = np.maximum(step.start_ns - step.end_ns[position], 0)
    return Releases(position, np.minimum(waited_ns, between_ns))


def _last_of_pairs(step: Computations) -> Int64s:
    """Return the position of the member that ends last in the pair of each computation; its own without a pair."""
    last: Int64s = np.arange(len(step))
    second = np.flatnonzero((np.diff(step.rank) == 0) & (np.diff(step.pair) == 0) & (step.pair[1:] >= 0)) + 1
    last[second] = last[second - 1] = np.where(step.end_ns[second] >= step.end_ns[second - 1], second, second - 1)
    return last


BETWEEN = "between actions"
"""Time on the path without computation: idle ranks and unobserved transfers."""
MESSAGES = "messages"
"""Time on the path in which a computation waited for a transfer."""


class Chain(Struct, frozen=True, kw_only=True):
    """The computations on the critical path, first to last."""

    positions: Int64s
    """Their positions in the step."""
    by_kind_ns: Mapping[str, int]
    """Their time by kind, and time between them; the sum is the span of the computations."""


class PathsDiffer(Struct, frozen=True, kw_only=True):
    """The last difference of two paths."""

    common: int
    """The number of common computations at the end."""
    first: str
    """The computation before them in the first step; empty for its beginning."""
    second: str
    """The computation before them in the second step."""


def follow_chain(step: Computations, releases: Releases | None = None) -> Chain:
    """Follow last dependencies back from the computation that ends last."""
    if not len(step):
        return Chain(positions=np.zeros(0, dtype=np.int64), by_kind_ns={})
    releases = releases or find_releases(step)
    previous, path = releases.position.tolist(), [int(step.end_ns.argmax())]
    while previous[path[-1]] >= 0:
        path.append(previous[path[-1]])
    positions = np.array(path[::-1], dtype=np.int64)
    durations_ns = (step.end_ns - step.start_ns)[positions]
    by_kind = {
        Kind(kind).name: int(durations_ns[step.kind[positions] == kind].sum())
        for kind in np.unique(step.kind).tolist()
    }
    by_kind[MESSAGES] = int(releases.transfer_ns[positions[1:]].sum())
    span_ns = int(step.end_ns[positions[-1]]) - step.begin_ns
    return Chain(positions=positions, by_kind_ns={**by_kind, BETWEEN: span_ns - sum(by_kind.values())})


def explain_waits(timeline: Timeline) -> Timeline:
    """Add wait causes and the critical path to a step, inferred from ends where it lacks causes."""
    step = extract_computations(timeline)
    first = np.diff(step.rank, prepend=-1) != 0
    if not (timeline.cause[step.row[~first]] < 0).any():
        return replace(timeline, why=why(timeline))
    rows = step.row[follow_chain(step).positions].astype(np.int32)
    return replace(timeline, why=why(timeline, rows))


def paths_differ(a: Computations, b: Computations, chains: tuple[Chain, Chain]) -> PathsDiffer | None:
    """Return the last difference of the paths; None where they are equal, or stages differ."""
    paths = [chain.positions[::-1] for chain in chains]
    common = first_difference(a, paths[0], b, paths[1]) if has_same_stages(a, b) else None
    if common is None:
        return None
    first, second = (
        f"rank {step.rank[path[common]]}: {step.action(path[common])}" if common < path.size else ""
        for step, path in zip((a, b), paths, strict=True)
    )
    return PathsDiffer(common=common, first=first, second=second)
