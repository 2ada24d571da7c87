"""What the ranks of PyTorch's pipelining call in one step, written after ``torch`` 2.13.0.

``torch/distributed/pipelining/schedules.py``:

- ``_batch_p2p``: sends alone, or receives alone, are posted one by one, unbatched; only a mixture is one
  ``batch_isend_irecv``. In 2.15 with communicators per edge, a mixture is divided by its communicators, in the
  order of their names.
- ``ScheduleGPipe._step_microbatches`` and ``Schedule1F1B._step_microbatches``: the two with one stage a rank.
- ``_PipelineScheduleRuntime._step_microbatches``: all others; it runs rows of computes, sends and receives. A
  receive is waited for before the compute that reads it, a send at the end of the step or, in 2.15, where its row
  says so. Neighbouring stages of one rank pass tensors without messages.
- ``ScheduleInterleaved1F1B`` with ``_add_unshard_reshard``, ``_add_reduce_grad`` and ``_add_send_recv``: a receive
  is put in its rank's row when the round over the ranks reaches the compute that feeds it.

One tensor passes between stages here.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from framework_calls import Compute, End, Message, Program, Writer, received, sent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Action",
    "interleaved_1f1b_rows",
    "torch_1f1b",
    "torch_gpipe",
    "torch_interleaved_1f1b",
    "torch_runtime",
]
_ACTIVE_STAGES = 3


class Action(NamedTuple):
    """An entry of a row: a compute (F, B, I, W), or SEND_F, RECV_F, SEND_B, RECV_B of the stage that does it.

    From 2.15 on, also WAIT_SEND_F, WAIT_SEND_B of the sending stage.
    """

    kind: str
    stage: int
    microbatch: int


@dataclass
class _Stage(Writer):
    """A rank with one stage, of ``ranks``."""

    ranks: int = 1

    def input_(self, m: int) -> list[End]:
        return [received(Message("F", self.rank - 1, m), self.rank - 1)] if self.rank else []

    def output(self, m: int) -> list[End]:
        return [sent(Message("F", self.rank, m), self.rank + 1)] if self.rank < self.ranks - 1 else []

    def output_gradient(self, m: int) -> list[End]:
        return [received(Message("B", self.rank + 1, m), self.rank + 1)] if self.rank < self.ranks - 1 else []

    def input_gradient(self, m: int) -> list[End]:
        return [sent(Message("B", self.rank, m), self.rank - 1)] if self.rank else []

    def batch_p2p(self, ends: list[End]) -> list[int]:
        if len({end.sends for end in ends}) == 2 and not self.per_edge:
            return self.batch(ends)
        return [self.single(end) for end in (sorted(ends, key=self.edge) if self.per_edge else ends)]


def torch_gpipe(ranks: int, microbatches: int, **group: bool) -> list[Program]:
    """``ScheduleGPipe``; ``group``: kind of the process group, see :class:`Writer`."""
    stages = [_Stage(rank, ranks=ranks, **group) for rank in range(ranks)]
    for at in stages:
        sends: list[int] = []
        for m in range(microbatches):
            at.wait(at.batch_p2p(at.input_(m)))
            at.compute("F", at.rank, m)
            sends += at.batch_p2p(at.output(m))
        at.wait(sends)
        sends = []
        for m in range(microbatches):
            at.wait(at.batch_p2p(at.output_gradient(m)))
            at.compute("B", at.rank, m)
            sends += at.batch_p2p(at.input_gradient(m))
        at.wait(sends)
    return [at.calls for at in stages]


def torch_1f1b(ranks: int, microbatches: int, **group: bool) -> list[Program]:
    """``Schedule1F1B``.

    Raises:
        ValueError: fewer microbatches than ranks, which the source refuses.
    """
    if microbatches < ranks:
        raise ValueError("1F1B needs as many microbatches as stages")
    stages = [_Stage(rank, ranks=ranks, **group) for rank in range(ranks)]
    for at in stages:
        _one_f_one_b(at, microbatches)
    return [at.calls for at in stages]


def _one_f_one_b(at: _Stage, microbatches: int) -> None:
    forwards = min(microbatches, at.ranks - at.rank)
    backwards = 0
    sends: list[int] = []
    for m in range(forwards):
        at.wait(at.batch_p2p(at.input_(m)))
        at.compute("F", at.rank, m)
        at.wait(sends)
        if m < forwards - 1:
            sends = at.batch_p2p(at.output(m))
    while True:
        at.wait(at.batch_p2p(at.output(forwards - 1) + at.output_gradient(backwards)))
        at.compute("B", at.rank, backwards)
        backwards += 1
        if forwards == microbatches:
            break
        at.wait(at.batch_p2p(at.input_gradient(backwards - 1) + at.input_(forwards)))
        at.compute("F", at.rank, forwards)
        forwards += 1
    sends = at.batch_p2p(at.input_gradient(backwards - 1))
    for m in range(backwards, microbatches):
        at.wait(at.batch_p2p(at.output_gradient(m)))
        at.compute("B", at.rank, m)
        at.wait(sends)
        sends = at.batch_p2p(at.input_gradient(m))
    at.wait(sends)


def torch_runtime(rows: Sequence[Sequence[Action]], rank_of: Mapping[int, int], **group: bool) -> list[Program]:
    """``_PipelineScheduleRuntime`` with rows of computes, sends and receives; ``rank_of`` each stage."""
    return [_runtime(Writer(rank, **group), row, rank_of) for rank, row in enumerate(rows)]


def _runtime(at: Writer, row: Sequence[Action], rank_of: Mapping[int, int]) -> Program:
    receives: dict[Message, int] = {}
    sends: dict[Message, int] = {}
    for kind, stage, m in row:
        if kind in {"SEND_F", "SEND_B"}:
            peer, message = rank_of[stage + (1 if kind == "SEND_F" else -1)], Message(kind[-1], stage, m)
            sends[message] = at.single(sent(message, peer))
        elif kind in {"WAIT_SEND_F", "WAIT_SEND_B"}:
            at.wait([sends.pop(Message(kind[-1], stage, m))])
        elif kind in {"RECV_F", "RECV_B"}:
            feeder = stage + (-1 if kind == "RECV_F" else 1)
            message = Message(kind[-1], feeder, m)
            receives[message] = at.single(received(message, rank_of[feeder]))
        else:
            feed = Message("F", stage - 1, m) if kind == "F" else Message("B", stage + 1, m)
            if kind != "W" and rank_of.get(feed.stage, at.rank) != at.rank:
                at.wait([receives.pop(feed)])
            at.compute(kind, stage, m)
    at.wait([*sends.values()][::-1])
    return at.calls


def torch_interleaved_1f1b(ranks: int, microbatches: int, chunks: int, **group: bool) -> list[Program]:
    """``ScheduleInterleaved1F1B``, receives as soon as possible.

    Raises:
        ValueError: microbatches that are no multiple of the rounds, which the source refuses.
    """
    rows = interleaved_1f1b_rows(ranks, microbatches, chunks)
    return torch_runtime(rows, {stage: stage % ranks for stage in range(ranks * chunks)}, **group)


def interleaved_1f1b_rows(ranks: int, microbatches: int, chunks: int) -> list[list[Action]]:
    """Rows of ``ScheduleInterleaved1F1B`` with their sends and receives."""
    rounds = max(1, microbatches // ranks)
    if microbatches % rounds:
        raise ValueError("interleaved 1F1B needs a multiple of its rounds")
    size, total = microbatches // rounds, microbatches * chunks
    orders = []
    for rank in range(ranks):
        warm_up = min(total, (chunks - 1) * size + 2 * (ranks - 1 - rank))
        done: dict[tuple[str, int], int] = defaultdict(int)
        order: list[Compute] = []
        for step in range(total + warm_up):
            if step < total:
                _take("F", step // size % chunks * ranks + rank, done, order)
            if step >= warm_up:
                chunk = chunks - 1 - (step - warm_up) // size % chunks
                _take("B", chunk * ranks + rank, done, order)
        orders.append(order)
    return _with_messages([_with_fillers(order, microbatches) for order in orders], ranks, ranks * chunks)


def _take(kind: str, stage: int, done: dict[tuple[str, int], int], order: list[Compute]) -> None:
    order.append(Compute(kind, stage, done[kind, stage]))
    done[kind, stage] += 1


def _with_fillers(order: list[Compute], microbatches: int) -> list[Compute | None]:
    """Computes, with None where the source has an entry about shards or reduced gradients."""
    entries: list[Compute | None] = []
    active: set[int] = set()
    for i, compute in enumerate(order):
        soon = list(dict.fromkeys(later.stage for later in order[i:]))[:_ACTIVE_STAGES]
        entries += [None] * len(active ^ set(soon))
        active = set(soon)
        entries.append(compute)
        if compute.kind == "B" and compute.microbatch == microbatches - 1:
            entries.append(None)
    return entries + [None] * len(active)


def _with_messages(orders: list[list[Compute | None]], ranks: int, stages: int) -> list[list[Action]]:
    rows: list[list[Action]] = [[] for _ in orders]
    here: list[set[Message]] = [set() for _ in orders]
    left = [list(reversed(order)) for order in orders]
    while any(left):
        before = sum(map(len, left))
        for rank, entries in enumerate(left):
            if not entries or not _is_fed(entries[-1], here[rank], stages):
                continue
            compute = entries.pop()
            if compute is None:
                continue
            kind, stage, m = compute.kind, compute.stage, compute.microbatch
            rows[rank].append(Action(kind, stage, m))
            here[rank].add(compute.message)
            reader = stage + (1 if kind == "F" else -1)
            if 0 <= reader < stages and reader % ranks != rank:
                rows[rank].append(Action(f"SEND_{kind}", stage, m))
                rows[reader % ranks].append(Action(f"RECV_{kind}", reader, m))
                here[reader % ranks].add(compute.message)
        if before == sum(map(len, left)):
            raise AssertionError("no rank can go on")
    return rows


def _is_fed(compute: Compute | None, here: set[Message], stages: int) -> bool:
    if compute is None:
        return True
    feed = Message(compute.kind, compute.stage + (-1 if compute.kind == "F" else 1), compute.microbatch)
    return not 0 <= feed.stage < stages or feed in here
