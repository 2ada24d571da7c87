"""What Megatron-LM's ranks call in one step, written after its source at core 0.20.0 (commit d98e8a64).

``pipeline_parallel/p2p_communication.py``:

- ``P2PCommunicator._communicate`` takes up to four ends: to and from the previous and the next rank of a ring.
- ``_batched_p2p_ops``: one batch, in the order send previous, receive previous, send next, receive next.
- ``_p2p_ops``: unbatched; even ranks issue send next, receive previous, send previous, receive next; odd ranks
  receive previous, send next, receive next, send previous. Of two ranks, sends of the even one use the pipeline's
  group and sends of the odd one the world's.
- A batch is always waited for at once. ``batch_p2p_sync`` lets the CPU wait for the GPU too; it costs the GPU no
  time of its own.

``pipeline_parallel/schedules.py``: ``forward_backward_pipelining_without_interleaving``.
``training/arguments.py``: interleaved training overlaps by default, and then does not batch; without overlap it
needs more than two ranks. ``training/argument_utils.py``: training sets ``deallocate_pipeline_outputs``.
"""

from __future__ import annotations

from dataclasses import dataclass

from framework_calls import End, Message, Program, Writer, received, sent

__all__ = ["Rank", "megatron_1f1b"]


@dataclass
class Rank(Writer):
    """A rank with the communicator of its pipeline."""

    ranks: int = 1
    batched: bool = True

    def communicate(
        self, *, send_prev: Message | None = None, recv_prev: Message | None = None,
        send_next: Message | None = None, recv_next: Message | None = None,
    ) -> dict[str, int]:  # fmt: skip
        """Post what is not None, and return the requests by name."""
        before, after = (self.rank - 1) % self.ranks, (self.rank + 1) % self.ranks
        ends: dict[str, End] = {}
        if send_prev:
            ends["send_prev"] = sent(send_prev, before)
        if recv_prev:
            ends["recv_prev"] = received(recv_prev, before)
        if send_next:
            ends["send_next"] = sent(send_next, after)
        if recv_next:
            ends["recv_next"] = received(recv_next, after)
        if self.batched:
            return dict.fromkeys(ends, *self.batch(list(ends.values()))) if ends else {}
        even = ("send_next", "recv_prev", "send_prev", "recv_next")
        odd = ("recv_prev", "send_next", "recv_next", "send_prev")
        order = odd if self.rank % 2 else even
        return {name: self.single(ends[name], self._group(ends[name])) for name in order if name in ends}

    def exchange(self, **messages: Message | None) -> None:
        """Post, and wait at once."""
        self.wait(sorted(set(self.communicate(**messages).values())))

    def _group(self, end: End) -> str:
        sender = self.rank if end.sends else end.peer
        return "world" if self.ranks == 2 and sender % 2 else "pp"


def megatron_1f1b(ranks: int, microbatches: int, *, batch_p2p_comm: bool = True) -> list[Program]:
    """``forward_backward_pipelining_without_interleaving``; one rank runs ``forward_backward_no_pipelining``."""
    return [_one_f_one_b(Rank(rank, ranks=ranks, batched=batch_p2p_comm), microbatches) for rank in range(ranks)]


def _one_f_one_b(rank: Rank, microbatches: int) -> Program:
    p, first, last = rank.rank, rank.rank == 0, rank.rank == rank.ranks - 1
    warm_up = min(microbatches, rank.ranks - 1 - p)

    def output(m: int) -> Message | None:
        return None if last else Message("F", p, m)

    def input_(m: int) -> Message | None:
        return None if first or m == microbatches else Message("F", p - 1, m)

    def output_gradient(m: int) -> Message | None:
        return None if last else Message("B", p + 1, m)

    def input_gradient(m: int) -> Message | None:
        return None if first else Message("B", p, m)

    for m in range(warm_up):
        rank.exchange(recv_prev=input_(m))
        rank.compute("F", p, m)
        rank.exchange(send_next=output(m))
    rank.exchange(recv_prev=input_(warm_up))
    for i in range(microbatches - warm_up):
        rank.compute("F", p, warm_up + i)
        rank.exchange(send_next=output(warm_up + i), recv_next=output_gradient(i))
        rank.compute("B", p, i)
        rank.exchange(send_prev=input_gradient(i), recv_prev=input_(warm_up + i + 1))
    for m in range(microbatches - warm_up, microbatches):
        rank.exchange(recv_next=output_gradient(m))
        rank.compute("B", p, m)
        rank.exchange(send_prev=input_gradient(m))
    return rank.calls
