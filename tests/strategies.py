"""Random but valid schedules, and random costs, networks and policies to simulate them with.

A schedule is made by a list scheduler that picks, again and again, a rank and one of the actions that
are ready there (sometimes several, as an overlapped pair), so every order that it makes can run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from pptrace.config.choices import PolicyName, Receive, StreamPer
from pptrace.network.contract import Flat
from pptrace.steps.actions import Action
from pptrace.steps.kinds import Kind, Stream
from pptrace.steps.message_calls import Policy
from pptrace.steps.placement import Placement
from pptrace.steps.schedule import Schedule
from pptrace.steps.segments import Segment
from pptrace.steps.text_forms import Dialect, in_dialect
from pptrace.steps.workload import Workload

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

    from pptrace.network.contract import Network

__all__ = ["networks", "placements", "policies", "valid_schedules", "workloads"]

Cell = tuple[int, int]
"""A stage and the first microbatch of an action."""


@st.composite
def placements(draw: DrawFn, *, max_ranks: int = 4, max_microbatches: int = 6, max_chunks: int = 3) -> Placement:
    """Draw looped, V-shaped, bidirectional or scattered stages over ranks."""
    ranks = draw(st.integers(1, max_ranks), label="ranks")
    microbatches = draw(st.integers(1, max_microbatches), label="microbatches")
    chunks = draw(st.integers(1, max_chunks), label="chunks")
    shape = draw(st.sampled_from(["looped", "v", "bidirectional", "scattered"]), label="shape")
    if shape == "v":
        return Placement.v_shaped(ranks, microbatches, chunks)
    if shape == "bidirectional":
        down = np.arange(ranks * chunks) % ranks
        up = ranks - 1 - down
        route = draw(st.lists(st.integers(0, 1), min_size=microbatches, max_size=microbatches), label="routes")
        return _canonical(np.stack([down, up]), route, ranks)
    if shape == "scattered":
        turns = [draw(st.permutations(range(ranks)), label="turn") for _ in range(chunks)]
        return Placement.of_stages(np.concatenate(turns), microbatches, ranks)
    return Placement.looped(ranks, microbatches, chunks)


@st.composite
def valid_schedules(
    draw: DrawFn,
    *,
    max_ranks: int = 4,
    max_microbatches: int = 6,
    max_chunks: int = 3,
    split: bool = True,
    spans: bool = True,
    pairs: bool = True,
    copies: bool = False,
    messages: bool = False,
) -> Schedule:
    """Draw a schedule that passes validation, its placement the one that its table implies.

    Args:
        max_ranks: most ranks, from 1.
        max_microbatches: most microbatches, from 1.
        max_chunks: most stages per rank and route, from 1.
        split: whether some backwards are I and W.
        spans: whether some actions work on several microbatches, alike on all stages of a route.
        pairs: whether some actions are overlapped pairs.
        copies: whether some activations are offloaded and reloaded, or computed again.
        messages: whether the table has sends and receives of its own, and maybe waits.
    """
    placement = draw(placements(max_ranks=max_ranks, max_microbatches=max_microbatches, max_chunks=max_chunks))
    chances = st.sampled_from([0.0, 0.3, 1.0])
    plan = _Plan(
        placement=placement,
        random=Random(draw(st.integers(0, 2**32 - 1), label="seed")),  # noqa: S311 - tests, not secrets
        split=draw(chances, label="split") if split else 0.0,
        span=draw(st.integers(1, 3), label="span") if spans else 1,
        pair=draw(chances, label="pair") if pairs else 0.0,
        eager=draw(st.booleans(), label="eager"),
    )
    rows = plan.rows()
    if copies:
        rows = [_with_copies(row, plan.random) for row in rows]
    schedule = Schedule.from_rows(rows)
    if messages:
        dialect = draw(st.sampled_from([Dialect.COMMS, Dialect.WAITS]), label="dialect")
        return in_dialect(schedule, dialect, draw(st.sampled_from(Receive)))
    return schedule


@st.composite
def workloads(
    draw: DrawFn, schedule: Schedule, *, max_ns: int = 50, min_ns: int = 1, segments: bool = False
) -> Workload:
    """Draw costs for a schedule, small integers so that ties and hand computation are likely.

    With ``segments``, some kinds of actions consist of several.
    """
    stages = schedule.stages

    def per_stage(low: int, high: int) -> list[int]:
        if draw(st.booleans()):
            return [draw(st.integers(low, high))] * stages
        return draw(st.lists(st.integers(low, high), min_size=stages, max_size=stages))

    activation = per_stage(0, 100)
    costs = Workload.uniform(
        stages,
        edges=schedule.placement.edges.shape[0],
        boundary_bytes=draw(st.sampled_from([0, 1, 1000])),
        f_ns=per_stage(min_ns, max_ns),
        i_ns=per_stage(min_ns, max_ns),
        w_ns=per_stage(min_ns, max_ns),
        activation_bytes=activation,
        weight_activation_bytes=[draw(st.integers(0, size)) for size in activation],
        weights_bytes=per_stage(0, 100),
        reduce_ns=draw(st.sampled_from([0, 0, 7])),
        optimizer_ns=draw(st.sampled_from([0, 0, 5])),
        offload_ns=np.array(per_stage(0, max_ns)),
        reload_ns=np.array(per_stage(0, max_ns)),
        recompute_ns=np.array(per_stage(0, max_ns)),
        offload_bytes=np.array([draw(st.integers(0, size)) for size in activation]),
        checkpoint_bytes=np.array([draw(st.integers(0, size)) for size in activation]),
    )
    if not segments:
        return costs
    kinds = draw(st.sets(st.sampled_from([Kind.F, Kind.B, Kind.I, Kind.W])))
    own = st.lists(_segments(), min_size=stages, max_size=stages)
    return costs.segmented({kind: draw(own) for kind in sorted(kinds)})


@st.composite
def _segments(draw: DrawFn) -> tuple[Segment, ...]:
    """Draw one action's segments: computation, and communication behind some of it."""
    groups = st.sampled_from([stream for stream in Stream if stream.is_group])
    streams = [Stream.COMPUTE, *draw(st.lists(st.just(Stream.COMPUTE) | groups, max_size=4))]
    names = st.sampled_from(["attention", "all-reduce", "dispatch", "experts"])
    return tuple(
        Segment(name=draw(names), duration_ns=draw(st.integers(0, 20)), stream=stream) for stream in streams
    )


def networks() -> st.SearchStrategy[Network]:
    """Draw the ideal network, or one with a rate, a latency and an overhead."""
    flat = st.fixed_dictionaries(
        {
            "rate_kbps": st.sampled_from([0, 1_000_000, 100_000_000, 333_333_333]),
            "latency_ns": st.integers(0, 20),
            "overhead_ns": st.integers(0, 5),
        }
    )
    return st.just(Flat()) | flat.map(lambda fields: Flat(**fields))


def policies() -> st.SearchStrategy[Policy]:
    """Draw a point-to-point policy; ``ordered`` may deadlock."""
    fields = st.fixed_dictionaries(
        {
            "name": st.sampled_from(PolicyName),
            "receive": st.sampled_from(Receive),
            "stream": st.sampled_from(StreamPer),
            "eager_bytes": st.sampled_from([0, 1, 10_000]),
        }
    )
    return fields.map(lambda fields: Policy(**fields))


def _canonical(stage_rank: np.ndarray, route: list[int], ranks: int) -> Placement:
    """Number the routes in the order of their first microbatch, equal ones as one."""
    names: dict[tuple[int, ...], int] = {}
    rows = [tuple(stage_rank[r].tolist()) for r in route]
    microbatch_route = [names.setdefault(row, len(names)) for row in rows]
    return Placement(
        ranks=ranks, stage_rank=np.array(list(names)), microbatch_route=np.array(microbatch_route, dtype=np.int32)
    )


@dataclass
class _Plan:
    """A list scheduler at work: what it makes, and what it has made."""

    placement: Placement
    random: Random
    split: float
    """Chance of a backward in two."""
    span: int
    """Microbatches that travel together, where neighbours share a route."""
    pair: float
    """Chance that what is ready together is paired."""
    eager: bool
    """Whether a rank takes backwards before forwards where it can."""
    forward: set[Cell] = field(default_factory=set)
    gradient: set[Cell] = field(default_factory=set)

    def rows(self) -> list[list[Action]]:
        """Return one row of actions per rank."""
        rows: list[list[Action]] = [[] for _ in range(self.placement.ranks)]
        left = self._actions()
        while left:
            ready = [action for action in left if self._is_ready(action)]
            rank = self._rank(self.random.choice(ready))
            here = [action for action in ready if self._rank(action) == rank]
            chosen = self._choose(here)
            rows[rank].append(chosen[0] if len(chosen) == 1 else _pair(chosen))
            for action in chosen:
                left.remove(action)
                done = self.forward if action.kind is Kind.F else self.gradient
                if action.kind is not Kind.W:
                    done.add((action.stage, action.microbatch))
        return rows

    def _choose(self, ready: list[Action]) -> list[Action]:
        if len(ready) > 1 and self.random.random() < self.pair:
            return self.random.sample(ready, self.random.randint(2, min(len(ready), 3)))
        backward = [action for action in ready if action.kind is not Kind.F]
        return [self.random.choice(backward if self.eager and backward else ready)]

    def _actions(self) -> list[Action]:
        actions = []
        for microbatch, span in self._groups():
            for stage in range(self.placement.stages):
                halves = (Kind.I, Kind.W) if self.random.random() < self.split else (Kind.B,)
                actions += [
                    Action(kind=kind, stage=stage, microbatch=microbatch, span=span) for kind in (Kind.F, *halves)
                ]
        return actions

    def _groups(self) -> list[Cell]:
        """Return the first microbatch and the span of what travels together."""
        route, microbatches = self.placement.microbatch_route.tolist(), self.placement.microbatches
        groups, microbatch = [], 0
        while microbatch < microbatches:
            end = microbatch + 1
            while end < min(microbatches, microbatch + self.span) and route[end] == route[microbatch]:
                end += 1
            groups.append((microbatch, end - microbatch))
            microbatch = end
        return groups

    def _rank(self, action: Action) -> int:
        return self.placement.rank_of(action.stage, action.microbatch)

    def _is_ready(self, action: Action) -> bool:
        stage, microbatch = action.stage, action.microbatch
        if action.kind is Kind.F:
            return stage == 0 or (stage - 1, microbatch) in self.forward
        if action.kind is Kind.W:
            return (stage, microbatch) in self.gradient
        last = stage == self.placement.stages - 1
        return (stage, microbatch) in self.forward and (last or (stage + 1, microbatch) in self.gradient)


def _pair(members: list[Action]) -> Action:
    first = members[0]
    return Action(
        kind=first.kind,
        stage=first.stage,
        microbatch=first.microbatch,
        span=first.span,
        sub_actions=tuple(members),
    )


def _with_copies(row: list[Action], random: Random) -> list[Action]:
    """Put OFFLOAD and RELOAD, or RECOMPUTE, between some forwards and their backwards."""
    for forward in [action for action in row if action.kind is Kind.F and not action.sub_actions]:
        kinds = random.choice([(), (Kind.OFFLOAD, Kind.RELOAD), (Kind.RECOMPUTE,)])
        low = row.index(forward) + 1
        high = next(at for at, action in enumerate(row) if _is_backward(action, forward))
        for kind in kinds:
            low, high = random.randint(low, high) + 1, high + 1
            row.insert(
                low - 1, Action(kind=kind, stage=forward.stage, microbatch=forward.microbatch, span=forward.span)
            )
    return row


def _is_backward(action: Action, forward: Action) -> bool:
    members = action.sub_actions or (action,)
    cell = (forward.stage, forward.microbatch)
    return any(member.kind in {Kind.B, Kind.I} and (member.stage, member.microbatch) == cell for member in members)
