"""A slow second implementation of the metrics, from their definitions: it looks at single instants.

A rank's window is cut wherever anything on any rank begins, ends or arrives; each piece has one cause.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from pptrace.steps.kinds import COMPUTE, Kind, Stream
from pptrace.timeline.idle import IdleCause

if TYPE_CHECKING:
    from pptrace.steps.workload import Workload
    from pptrace.timeline.timeline import Slice, Timeline

__all__ = ["MetricsOracle"]

WORK = COMPUTE - {Kind.OPTIMIZER}
GRADIENTS = {Kind.B, Kind.I}
SENDS, RECEIVES = {Kind.SEND_F, Kind.SEND_B}, {Kind.RECV_F, Kind.RECV_B}
BUSY = -1


@dataclass
class MetricsOracle:
    """What :func:`pptrace.timeline.metrics.measure` is to say of a step whose stages form a chain."""

    timeline: Timeline
    workload: Workload
    slices: list[Slice] = field(init=False)
    compute: list[list[Slice]] = field(init=False)

    def __post_init__(self) -> None:
        self.slices = [self.timeline[row] for row in range(len(self.timeline))]
        self.compute = [self._on(rank, Stream.COMPUTE) for rank in range(self.timeline.ranks)]

    def window(self) -> tuple[int, int]:
        """Return the first action's start and the last one's end."""
        own = [item for item in self.slices if item.action.kind not in SENDS | RECEIVES]
        return min(item.start_ns for item in own), max(item.end_ns for item in self.slices)

    def spent(self, rank: int) -> Counter[int]:
        """Return a rank's time by :class:`IdleCause`, busy time under -1."""
        opened, closed = self.window()
        cuts = {opened, closed}
        for item in self.slices:
            arrival, took = item.end_ns + item.lag_ns, item.uncontended_ns + item.lag_ns
            cuts |= {item.start_ns, item.end_ns, arrival, arrival - took, item.start_ns + item.uncontended_ns}
            cuts |= {begin.start_ns - took for begin in self.compute[rank]}
        spent: Counter[int] = Counter()
        for start, end in pairwise(sorted(cut for cut in cuts if opened <= cut <= closed)):
            spent[self.cause_at(rank, start)] += end - start
        return +spent

    def cause_at(self, rank: int, now: int) -> int:
        """Return what a rank does, or why it does nothing, from an instant to the next cut."""
        rows = self.compute[rank]
        work = [item for item in rows if item.action.kind in WORK]
        running = next((item for item in rows if item.start_ns <= now < item.end_ns), None)
        if running is not None and running.action.kind in COMPUTE:
            return BUSY
        if not work or now < work[0].start_ns:
            gathers = running is None and self._gathers_first(rank, now)
            return IdleCause.REDUCTION if gathers else IdleCause.FILL
        if now >= work[-1].end_ns:
            return IdleCause.REDUCTION if running is None and self._reduces(rank, now) else IdleCause.DRAIN
        if running is not None:
            over = now >= running.start_ns + running.uncontended_ns
            return IdleCause.CONTENTION if over else IdleCause.TRANSFER
        return self._waits_for(next(item for item in rows if item.start_ns > now), now)

    def exposed(self, rank: int) -> int:
        """Return the communication that nothing hides."""
        spent = self.spent(rank)
        waits = (IdleCause.TRANSFER, IdleCause.CONTENTION, IdleCause.HEAD_OF_LINE, IdleCause.REDUCTION)
        return sum(spent[cause] for cause in waits) + self.collective(rank)

    def collective(self, rank: int) -> int:
        """Return the busy time in which the rank's own group communicates."""
        parts = {Kind.F: "f", Kind.B: "b", Kind.I: "i", Kind.W: "w"}
        return sum(
            int(getattr(self.workload, f"{parts[item.action.kind]}_collective_ns")[item.action.stage])
            * item.action.span
            for item in self.compute[rank]
            if item.action.kind in parts
        )

    def reduction(self, rank: int) -> int:
        """Return the time in which the rank's gradients are reduced."""
        reductions = [
            item for item in self._on(rank, Stream.DATA_PARALLEL) if item.action.kind is Kind.REDUCE_GRAD
        ]
        return sum(item.end_ns - item.start_ns for item in reductions)

    def activation_bytes(self, rank: int, now: int) -> int:
        """Return what a rank holds for backwards from an instant on; every slice takes time."""
        return sum(self._held(item, now) for item in self.compute[rank] if item.action.kind is Kind.F)

    def peak(self, rank: int) -> tuple[int, int]:
        """Return the most that a rank holds, and when it first does."""
        held = [(self.activation_bytes(rank, item.start_ns), -item.start_ns) for item in self.slices]
        most, when = max(held, default=(0, 0))
        return (most, -when) if most else (0, 0)

    def path(self) -> tuple[dict[str, int], dict[int, int]]:
        """Return the critical path's time by kind and by stage."""
        by_kind: Counter[str] = Counter()
        by_stage: Counter[int] = Counter()
        opened, until = self.window()
        row: Slice | None = next(item for item in self.slices if item.end_ns == until)
        while row is not None:
            ran = max(min(row.end_ns, until) - row.start_ns, 0)
            wire = min(max(until - row.end_ns, 0), row.lag_ns)
            by_kind[row.action.kind.name] += ran
            by_kind["wire"] += wire
            by_kind["wait"] += until - row.start_ns - ran - wire
            if row.action.kind in COMPUTE:
                by_stage[row.action.stage] += ran
            until = row.start_ns
            row = self.slices[row.cause] if row.cause >= 0 else None
        by_kind["wait"] += until - opened
        return dict(+by_kind), dict(+by_stage)

    def _on(self, rank: int, stream: Stream) -> list[Slice]:
        return [item for item in self.slices if (item.rank, item.stream) == (rank, stream)]

    def _reduces(self, rank: int, now: int) -> bool:
        return any(item.start_ns <= now < item.end_ns for item in self._on(rank, Stream.DATA_PARALLEL))

    def _gathers_first(self, rank: int, now: int) -> bool:
        """Return whether the next action of a single rank waits for its weights."""
        row = next((item for item in self.compute[rank] if item.start_ns > now), None)
        released = self.slices[row.cause] if row is not None and row.cause >= 0 else None
        alone = self.timeline.ranks == 1 and released is not None
        return alone and released.stream is Stream.DATA_PARALLEL and now >= released.start_ns

    def _waits_for(self, row: Slice, now: int) -> int:
        """Walk back what released a slice: its time on the wire, its stream, its producer."""
        if row.action.kind in RECEIVES:
            return IdleCause.HEAD_OF_LINE if now >= self._produced(row) else IdleCause.PEER_COMPUTE
        released = self.slices[row.cause] if row.cause >= 0 else row
        if released.action.kind in {Kind.UNSHARD, Kind.REDUCE_GRAD}:
            return IdleCause.REDUCTION if now >= released.start_ns else IdleCause.HEAD_OF_LINE
        if released.action.kind is Kind.RELOAD:
            return self._carried(released, row.start_ns, now)
        message = max(self._messages(row), key=lambda m: m.end_ns + m.lag_ns, default=None)
        if message is None and released.action.kind in SENDS | RECEIVES:
            arrival = released.end_ns + released.lag_ns
            return IdleCause.PEER_COMPUTE if now < released.start_ns else self._carried(released, arrival, now)
        if message is None or now < min(message.start_ns, self._produced(message)):
            return IdleCause.PEER_COMPUTE
        return self._carried(message, message.end_ns + message.lag_ns, now)

    def _carried(self, row: Slice, arrival: int, now: int) -> int:
        if now < row.start_ns or now >= arrival:
            return IdleCause.HEAD_OF_LINE
        alone = now >= arrival - row.uncontended_ns - row.lag_ns
        return IdleCause.TRANSFER if alone else IdleCause.CONTENTION

    def _messages(self, row: Slice) -> list[Slice]:
        """Return what brought a slice its input, in the order of microbatches: receives where there are any."""
        action = row.action
        ends = {
            Kind.F: ((Kind.RECV_F, 0), (Kind.SEND_F, -1)),
            Kind.B: ((Kind.RECV_B, 0), (Kind.SEND_B, 1)),
            Kind.I: ((Kind.RECV_B, 0), (Kind.SEND_B, 1)),
        }.get(action.kind, ())
        result = []
        for microbatch in range(action.microbatch, action.microbatch + action.span):
            either = [self._find({kind}, action.stage + shift, microbatch) for kind, shift in ends]
            result += [end for end in either if end is not None][:1]
        return result

    def _produced(self, message: Slice) -> int:
        """Return when the last of a message's microbatches was computed."""
        action = message.action
        forward = action.kind in {Kind.SEND_F, Kind.RECV_F}
        shift = 0 if action.kind in SENDS else (-1 if forward else 1)
        made = [
            self._find({Kind.F} if forward else GRADIENTS, action.stage + shift, microbatch)
            for microbatch in range(action.microbatch, action.microbatch + action.span)
        ]
        return max(item.end_ns for item in made if item is not None)

    def _find(self, kinds: set[Kind], stage: int, microbatch: int) -> Slice | None:
        for item in self.slices:
            action = item.action
            if (
                action.kind in kinds
                and action.stage == stage
                and 0 <= microbatch - action.microbatch < action.span
            ):
                return item
        return None

    def _held(self, forward: Slice, now: int) -> int:
        """Return what is left of one forward's activations: less what is copied out, or to be computed again."""
        total = 0
        stage, costs = forward.action.stage, self.workload
        whole, weight, checkpoint = (
            int(c[stage]) for c in (costs.activation_bytes, costs.weight_activation_bytes, costs.checkpoint_bytes)
        )
        copied = int(costs.offload_bytes[stage]) if costs.offload_bytes.size else whole
        for microbatch in range(forward.action.microbatch, forward.action.microbatch + forward.action.span):
            gradient = self._find(GRADIENTS, stage, microbatch)
            last = self._find({Kind.W}, stage, microbatch) or gradient
            out, back = (self._find({kind}, stage, microbatch) for kind in (Kind.OFFLOAD, Kind.RELOAD))
            if gradient is None or last is None or now < forward.start_ns:
                continue
            away = out is not None and back is not None and out.end_ns <= now < back.start_ns
            again = self._find({Kind.RECOMPUTE}, stage, microbatch)
            missing = again is not None and now < again.start_ns
            total += (whole - weight) * (now < gradient.end_ns) + weight * (now < last.end_ns)
            total -= away * copied + missing * (whole - checkpoint)
        return total
