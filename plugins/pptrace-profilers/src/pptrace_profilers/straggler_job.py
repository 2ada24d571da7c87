"""What the operations of StragglerAnalysis wait for: Megatron-LM's 1F1B, plain or interleaved, as it is recorded.

Source: ByteDance-Seed/StragglerAnalysis and section 3 of its paper (OSDI 2025). Computations of a worker follow
one another, as do its sends and its receives of each direction. A send waits for its computation, a receive for
the computation before the one that it feeds. A step begins with the gathering of weights and ends with collection
of garbage, reductions, the clipping of gradients, where all workers meet, and the optimizer. Messages are also
recorded where none is: before a pipeline's first stage, behind its last, and at a step's ends.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING

from pptrace.plugin import Action, Job, JobOperation, Kind, TraceError, message_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pptrace_profilers.straggler_tables import StragglerTable

__all__ = ["job_of"]

_DIRECTIONS = {"forward": 1, "backward": -1}
_TOLERANCE_NS = 50_000
"""By how much clocks and rounded seconds may be off where a message that never was is told from one that was."""
GATHER, REDUCE, SEPARATE = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
_COLLECT, _NORMS, _EMBEDDING = "gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
_CLIP, _OPTIMIZER = "optimizer-clip-main-grad", "optimizer"
_MESSAGES = tuple(f"{direction}-{way}" for direction in _DIRECTIONS for way in ("send", "recv"))
_COMPUTES = tuple(f"{direction}-compute" for direction in _DIRECTIONS)
_COLLECTIVES = (GATHER, REDUCE, SEPARATE, _NORMS, _EMBEDDING, _CLIP)
_KNOWN = {*_MESSAGES, *_COMPUTES, *_COLLECTIVES, _COLLECT, _OPTIMIZER}


def job_of(table: StragglerTable) -> Job:
    """Return a job with what each operation waits for.

    Raises:
        TraceError: messages and computations do not fit each other.
    """
    wiring = _Wiring(table)
    wiring.connect()
    known = [at for at, one in enumerate(table.operations) if one.type in _KNOWN]
    place = {at: number for number, at in enumerate(known)}
    return Job(
        operations=tuple(
            JobOperation(
                sort=table.operations[at].type, rank=table.operations[at].stage,
                after=tuple(sorted(place[before] for before in wiring.after[at])),
                communicates=table.operations[at].type in {*_MESSAGES, *_COLLECTIVES},
                account=_account(table.operations[at].type), action=wiring.action(at),
            )
            for at in known
        ),
        meetings=tuple(tuple(place[at] for at in members) for members in wiring.meetings),
        everywhere=frozenset(place[at] for at in wiring.everywhere),
        workers=table.workers, replicas=tuple(f"dp={replica}" for replica in table.replicas),
        steps=tuple(f"step {step}" for step in table.steps),
        start_ns=table.start_ns[known], end_ns=table.end_ns[known],
    )  # fmt: skip


def _account(type_: str) -> str:
    return f"{type_.partition('-')[0]}-pp-comm" if type_ in _MESSAGES else ""


class _Wiring:
    """Who waits for whom among a table's operations; as the first replica's first step was, for all are alike."""

    def __init__(self, table: StragglerTable) -> None:
        """Take a table, with nothing connected."""
        self._table, self._operations = table, table.operations
        self._start, self._end = table.start_ns[:, 0, 0], table.end_ns[:, 0, 0]
        self._of: dict[tuple[int, str], list[int]] = defaultdict(list)
        for at, one in enumerate(self._operations):
            self._of[one.stage, one.type].append(at)
        chunks = max((one.chunk for one in self._operations), default=0) + 1
        self._stages = table.stages * max(chunks, 1)
        self.after: dict[int, set[int]] = defaultdict(set)
        """By operation, those that it waits for."""
        self.meetings: list[tuple[int, ...]] = []
        """Operations that move nothing before all have started."""
        self.everywhere: set[int] = set()
        """Those that meet all replicas."""
        self.computation: dict[int, int] = {}
        """By message that was, the computation that it follows or feeds."""

    def action(self, at: int) -> Action | None:
        """Return what an operation is in a pipeline's table."""
        one = self._operations[at]
        if one.type in _COMPUTES:
            return Action(
                kind=Kind.F if one.type == _COMPUTES[0] else Kind.B,
                stage=self.stage(at),
                microbatch=one.microbatch,
            )
        if one.type in {GATHER, REDUCE}:
            return Action(kind=Kind.UNSHARD if one.type == GATHER else Kind.REDUCE_GRAD, stage=self.stage(at))
        if at not in self.computation:
            return None
        direction, way = one.type.split("-")
        kind = message_kind(sends=way == "send", forward=direction == "forward")
        of = self.computation[at]
        return Action(kind=kind, stage=self.stage(of), microbatch=self._operations[of].microbatch)

    def stage(self, at: int) -> int:
        """Return the stage of the model that an operation is of."""
        one = self._operations[at]
        return max(one.chunk, 0) * self._table.stages + one.stage

    def connect(self) -> None:
        """Connect everything."""
        for rank in range(self._table.stages):
            computes = self._by_time(self._all(rank, _COMPUTES))
            if not computes:
                raise TraceError(f"holds no forward-compute and no backward-compute of stage {rank}",
                                 file=self._table.path)  # fmt: skip
            odd = next((at for at in computes if self._operations[at].microbatch < 0), None)
            if odd is not None:
                one = self._operations[odd]
                raise TraceError(f"{one.type} {one.number} of stage {rank} has no microbatch (mb_id)",
                                 file=self._table.path)  # fmt: skip
            self._chain(computes)
            for direction in _DIRECTIONS:
                self._chain_messages(rank, direction)
            self._hold_first_backward(rank, computes)
            self._gather(rank)
            self._finish(rank, computes)
        self._pair_messages()
        self._meet()

    def _all(self, rank: int, types: Iterable[str]) -> list[int]:
        return [at for type_ in types for at in self._of[rank, type_]]

    def _by_time(self, positions: Iterable[int]) -> list[int]:
        return sorted(positions, key=lambda at: (self._start[at], self._operations[at].number, at))

    def _by_number(self, rank: int, type_: str) -> list[int]:
        return sorted(self._of[rank, type_], key=lambda at: self._operations[at].number)

    def _chain(self, positions: Sequence[int]) -> None:
        for before, at in pairwise(positions):
            self.after[at].add(before)

    def _chain_messages(self, rank: int, direction: str) -> None:
        """Connect sends and receives of one direction with the computations that they follow or feed."""
        computes = self._by_number(rank, f"{direction}-compute")
        for way in ("send", "recv"):
            posted = self._by_time(self._of[rank, f"{direction}-{way}"])
            self._chain(posted)
            if way == "send":
                least = min((int(self._end[at]) for at in computes), default=0) - _TOLERANCE_NS
                real = [at for at in posted if self._end[at] >= least]
            else:
                most = max((int(self._start[at]) for at in computes), default=0) + _TOLERANCE_NS
                real = [at for at in posted if self._start[at] <= most]
            # The receive before the first stage's first forward is not always recorded.
            skipped = int(way == "recv" and len(real) == len(computes) - 1)
            if len(real) not in {0, len(computes), len(computes) - 1}:
                message = f"stage {rank} has {len(real)} {direction}-{way} for {len(computes)} {direction}-compute"
                raise TraceError(f"{message}: operations are missing", file=self._table.path)
            for number, at in enumerate(real, skipped):
                self.computation[at] = computes[number]
                if way == "send":
                    self.after[at].add(computes[number])
                    continue
                self.after[computes[number]].add(at)
                if number:
                    self.after[at].add(computes[number - 1])

    def _hold_first_backward(self, rank: int, computes: Sequence[int]) -> None:
        """Post a rank's first messages of gradients behind its last forward but one before the first backward."""
        first = next((n for n, at in enumerate(computes) if self._operations[at].type == _COMPUTES[1]), 0)
        if first > 1:
            for way in ("send", "recv"):
                for at in self._by_number(rank, f"backward-{way}")[:1]:
                    self.after[at].add(computes[first - 2])

    def _gather(self, rank: int) -> None:
        """Let the first forward of each chunk wait for its weights, where they are gathered."""
        self._chain(self._by_time(self._all(rank, (GATHER, REDUCE))))
        last = {self._operations[at].chunk: at for at in self._by_number(rank, GATHER)}
        for chunk, at in last.items():
            forwards = [one for one in self._of[rank, _COMPUTES[0]] if self._operations[one].chunk == chunk]
            if forwards:
                self.after[min(forwards, key=lambda one: int(self._start[one]))].add(at)

    def _finish(self, rank: int, computes: Sequence[int]) -> None:
        """Connect what comes behind the last computation."""
        last = [max(computes, key=lambda at: int(self._end[at]))]
        collect, reductions = self._of[rank, _COLLECT][:1], self._by_number(rank, REDUCE)
        self._follow(collect, last)
        overlapped = bool(self._of[rank, SEPARATE])
        if overlapped:
            self._reduce_as_they_come(rank, reductions)
        ends = [
            *self._of[rank, _NORMS][:1], *self._of[rank, _EMBEDDING][:1],
            *(self._of[rank, SEPARATE][:1] if overlapped else reductions),
            *self._of[rank, _CLIP][:1], *self._of[rank, _OPTIMIZER][:1],
        ]  # fmt: skip
        self._chain(ends)
        self._follow(ends[:1], [*(collect or last), *(reductions[-1:] if overlapped else [])])

    def _follow(self, positions: Sequence[int], before: Iterable[int]) -> None:
        for at in positions:
            self.after[at].update(before)

    def _reduce_as_they_come(self, rank: int, reductions: Sequence[int]) -> None:
        first = {self._operations[at].chunk: at for at in reversed(reductions)}
        for chunk, at in first.items():
            backwards = [one for one in self._of[rank, _COMPUTES[1]] if self._operations[one].chunk == chunk]
            if backwards:
                self.after[at].add(max(backwards, key=lambda one: int(self._end[one])))

    def _pair_messages(self) -> None:
        """Let both ends of a message meet: of each way the k-th send and the k-th receive."""
        ranks = self._table.stages
        for direction, ahead in _DIRECTIONS.items():
            for rank in range(ranks):
                sends = self._real(rank, f"{direction}-send", ahead)
                receives = self._real((rank + ahead) % ranks, f"{direction}-recv", -ahead)
                if len(sends) != len(receives):
                    message = (
                        f"stage {rank} has {len(sends)} {direction}-send for {len(receives)} {direction}-recv"
                    )
                    raise TraceError(f"{message} of its neighbour", file=self._table.path)
                self.meetings += zip(sends, receives, strict=True)

    def _real(self, rank: int, type_: str, ahead: int) -> list[int]:
        """Return messages by time without those that leave the model."""
        found = []
        for at in self._by_time(self._of[rank, type_]):
            if at in self.computation and 0 <= self.stage(self.computation[at]) + ahead < self._stages:
                found.append(at)
            else:
                self.computation.pop(at, None)
        return found

    def _meet(self) -> None:
        """Let reductions and the clipping of gradients meet, in all replicas but for the embedding's."""
        ranks = range(self._table.stages)
        alone = [at for rank in ranks for at in self._all(rank, (GATHER, REDUCE, SEPARATE))]
        ends = tuple(at for rank in ranks for at in self._of[rank, _CLIP][:1])
        self.meetings += [(at,) for at in alone]
        self.everywhere.update(alone, ends)
        embedding = {0, self._table.stages - 1}
        both = tuple(at for rank in sorted(embedding) for at in self._of[rank, _EMBEDDING][:1])
        self.meetings += [members for members in (ends, both) if members]
