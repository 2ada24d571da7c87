"""Actions in segments, by hand and at random, and tables of pairs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec.structs import replace
from oracle_segments import Part

from pptrace.steps.kinds import SENDS, Kind, Stream
from pptrace.steps.segments import Segment
from pptrace.steps.workload import Workload
from pptrace.timeline.actions import actions_in_parts

if TYPE_CHECKING:
    from random import Random

    from pptrace.timeline.timeline import Timeline

BLOCK_A = {(Kind.F, Kind.B): (0, 1, 1, 0, 1, 1)}
"""Attn(F), MLP-Act(B), MLP-W(B), MLP(F), Attn-Act(B), Attn-W(B)."""


def layers(count: int, all_reduce: int) -> tuple[tuple[Segment, ...], tuple[Segment, ...]]:
    """Return a forward and a backward of layers whose all-reduces take so long."""
    reduce = Segment(name="all-reduce", duration_ns=all_reduce, stream=Stream.TENSOR_PARALLEL)
    forward = [Segment(name="attention", duration_ns=3), reduce, Segment(name="mlp", duration_ns=5), reduce]
    backward: list[Segment] = []
    for first in range(0, 6 * count, 6):
        backward += [
            Segment(name="mlp-input", duration_ns=5, needs=(first - 2,) if first else ()),
            replace(reduce, needs=(first,)),
            Segment(name="mlp-weight", duration_ns=5, needs=(first,)),
            Segment(name="attention-input", duration_ns=3, needs=(first + 1,)),
            replace(reduce, needs=(first + 3,)),
            Segment(name="attention-weight", duration_ns=3, needs=(first + 3,)),
        ]
    return tuple(forward * count), tuple(backward)


def costs(stages: int, count: int = 1, all_reduce: int = 2) -> Workload:
    forward, backward = layers(count, all_reduce)
    whole = Workload.uniform(stages, boundary_bytes=1, activation_bytes=10, weight_activation_bytes=4)
    return whole.segmented({Kind.F: [forward] * stages, Kind.B: [backward] * stages})


def spans(timeline: Timeline) -> dict[Part, tuple[int, int]]:
    outcome = {}
    for row in range(len(timeline)):
        one = timeline[row]
        number = -1 if one.action.kind in SENDS or timeline.parts is None else int(timeline.parts.number[row])
        part = Part(one.action.kind, one.action.stage, one.action.microbatch, number)
        outcome[part] = (one.start_ns, one.end_ns)
    return outcome


def action_spans(timeline: Timeline) -> dict[tuple[str, Stream], tuple[int, int]]:
    """Return when actions and messages start and end, those in segments with all of these."""
    rows = [timeline[row] for row in range(len(timeline))]
    outcome = {(str(item.action), item.stream): (item.start_ns, item.end_ns) for item in rows}
    if timeline.parts is None:
        return outcome
    actions = actions_in_parts(timeline)
    whole = [str(rows[row].action) for row in actions.first.tolist()]
    outcome = {key: span for key, span in outcome.items() if key[0] not in whole}
    for name, *span in zip(whole, actions.start_ns.tolist(), actions.end_ns.tolist(), strict=True):
        outcome[name, Stream.COMPUTE] = (span[0], span[1])
    return outcome


def segments_of(random: Random, kind: Kind) -> tuple[Segment, ...]:
    streams = [Stream.COMPUTE, Stream.TENSOR_PARALLEL, Stream.EXPERT_PARALLEL]
    count, computes = random.randint(1, 6), random.randrange(6)
    return tuple(
        Segment(
            name=f"{kind.name}{place}",
            duration_ns=random.randint(0, 9),
            stream=streams[0] if place == computes % count else random.choice(streams),
            needs=None if not place or random.random() < 0.5 else tuple(
                sorted(random.sample(range(place), random.randint(1, place)))
            ),
            result=random.random() < 0.2,
        )
        for place in range(count)
    )  # fmt: skip


def random_kinds(random: Random) -> dict[Kind, list[tuple[Segment, ...]]]:
    return {kind: [segments_of(random, kind) for _ in range(2)] for kind in (Kind.F, Kind.B)}


def mixed(random: Random, ranks: int, microbatches: int) -> list[list[str]]:
    """Return the rows of :func:`steady` with about half of the pairs taken apart."""
    return [
        [
            action
            for cell in row
            for action in (re.findall(r"\w+", cell)[:2] if "(" in cell and random.random() < 0.5 else [cell])
        ]
        for row in steady(ranks, microbatches)
    ]


def steady(ranks: int, microbatches: int) -> list[list[str]]:
    """Return 1F1B's rows with each forward beside a backward, and as many more in flight as that takes."""
    rows = []
    for rank in range(ranks):
        warm = min(2 * (ranks - rank) - 1, microbatches)
        pairs = [
            f"({rank}F{warm + microbatch};{rank}B{microbatch})OVERLAP_F_B"
            for microbatch in range(microbatches - warm)
        ]
        rows.append([f"{rank}F{microbatch}" for microbatch in range(warm)])
        rows[-1] += pairs + [f"{rank}B{microbatch}" for microbatch in range(microbatches - warm, microbatches)]
    return rows
