"""Megatron-LM's interleaved schedule, written after its source at core 0.20.0 (commit d98e8a64).

``pipeline_parallel/schedules.py``: ``forward_backward_pipelining_with_interleaving``, ``get_pp_rank_microbatches``
(how many forwards warm up), ``get_schedule_table`` (their order) and ``recv_tensor_from_previous_stage``.
The communication is :mod:`framework_programs_megatron`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from framework_calls import Message, Program
from framework_programs_megatron import Rank

__all__ = ["megatron_interleaved"]


def megatron_interleaved(
    ranks: int, microbatches: int, chunks: int, *, overlap_p2p_comm: bool = False,
    overlap_warmup_flush: bool = False, batch_p2p_comm: bool | None = None, group_size: int | None = None,
    waits_before_freeing: bool = True,
) -> list[Program]:  # fmt: skip
    """``forward_backward_pipelining_with_interleaving``; stages go round the ranks chunk by chunk.

    Without ``batch_p2p_comm`` it is what training sets: batched where it does not overlap. ``group_size`` is
    ``microbatch_group_size_per_vp_stage``. ``waits_before_freeing``: since core 0.18 (commit 260cba71) the
    overlapped send of an activation is waited for where it was posted, if ``deallocate_pipeline_outputs``; False
    is before that, or without freeing.

    Raises:
        ValueError: what the source refuses: sizes of groups, batching with overlap, two ranks without overlap.
    """
    batched = not overlap_p2p_comm if batch_p2p_comm is None else batch_p2p_comm
    group = ranks if group_size is None else group_size
    if ranks < (2 if overlap_p2p_comm else 3) or chunks < 2:
        raise ValueError("too few ranks or chunks")
    if (overlap_p2p_comm and batched) or (overlap_warmup_flush and not overlap_p2p_comm):
        raise ValueError("overlap is not batched; warm-up and flush overlap only with the rest")
    if not ranks <= group <= microbatches or 0 < microbatches % group < ranks:
        raise ValueError("groups are of as many microbatches as ranks, or more")
    return [
        _Interleaved(
            Rank(rank, ranks=ranks, batched=batched), microbatches, chunks, group,
            overlap=overlap_p2p_comm, flush=overlap_warmup_flush, frees=waits_before_freeing,
        ).program()
        for rank in range(ranks)
    ]  # fmt: skip


@dataclass
class _Interleaved:
    """One rank of the interleaved schedule; ``k`` counts its forwards, or its backwards."""

    at: Rank
    microbatches: int
    chunks: int
    group: int
    overlap: bool
    flush: bool
    frees: bool
    recv_prev: list[int] = field(default_factory=list)
    recv_next: list[int] = field(default_factory=list)
    send_next: list[int] = field(default_factory=list)
    send_prev: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranks, rank = self.at.ranks, self.at.rank
        self.total = self.microbatches * self.chunks
        self.warm_up = min(self.total, (ranks - rank - 1) * 2 + (self.chunks - 1) * self.group)
        self.table = [
            (chunk, m)
            for start in range(0, self.microbatches, self.group)
            for chunk in range(self.chunks)
            for m in range(start, min(start + self.group, self.microbatches))
        ]
        self.last_stage = ranks * self.chunks - 1

    def program(self) -> Program:
        self.at.exchange(recv_prev=self.input_of(0) if self.at.rank else None)
        for k in range(self.warm_up):
            self.warm(k)
        for i in range(self.total - self.warm_up):
            self.steady(i)
        if self.warm_up == self.total and not self.is_last:
            self.at.exchange(recv_next=self.gradient_of(0))
        for k in range(self.total - self.warm_up, self.total):
            self.cool(k)
        self.at.wait(self.send_prev)
        if self.recv_prev or self.recv_next:
            raise AssertionError("receives are left over")
        return self.at.calls

    # What is where

    @property
    def is_last(self) -> bool:
        return self.at.rank == self.at.ranks - 1

    def forward(self, k: int, rank: int) -> tuple[int, int]:
        """Stage and microbatch of a rank's forward ``k``."""
        chunk, m = self.table[k]
        return chunk * self.at.ranks + rank, m

    def backward(self, k: int, rank: int) -> tuple[int, int]:
        """Stage and microbatch of a rank's backward ``k``."""
        chunk, m = self.table[k]
        return (self.chunks - 1 - chunk) * self.at.ranks + rank, m

    def input_of(self, k: int) -> Message:
        stage, m = self.forward(k, self.at.rank)
        return Message("F", stage - 1, m)

    def gradient_of(self, k: int) -> Message:
        stage, m = self.backward(k, self.at.rank)
        return Message("B", stage + 1, m)

    def output(self, k: int) -> Message | None:
        stage, m = self.forward(k, self.at.rank)
        return None if stage == self.last_stage else Message("F", stage, m)

    def input_gradient(self, k: int) -> Message | None:
        stage, m = self.backward(k, self.at.rank)
        return None if stage == 0 else Message("B", stage, m)

    def next_input(self, k: int) -> Message | None:
        """What ``recv_tensor_from_previous_stage`` asks for at forward ``k``.

        The first rank runs ahead of the last by one less than the ranks, and takes what that sends then.
        """
        if self.at.rank:
            return self.input_of(k + 1) if k + 1 < self.total else None
        behind = k - (self.at.ranks - 1)
        if behind < 0:
            return None
        stage, m = self.forward(behind, self.at.ranks - 1)
        return None if stage == self.last_stage else Message("F", stage, m)

    def next_gradient(self, k: int) -> Message | None:
        """As :meth:`next_input`, at backward ``k``."""
        if not self.is_last:
            return self.gradient_of(k + 1) if k + 1 < self.total else None
        behind = k - (self.at.ranks - 1)
        if behind < 0:
            return None
        stage, m = self.backward(behind, 0)
        return None if stage == 0 else Message("B", stage, m)

    # Phases

    def warm(self, k: int) -> None:
        turns = k == self.warm_up - 1 < self.total - 1
        first_gradient = self.gradient_of(0) if turns and not self.is_last else None
        if not self.flush:
            self.at.compute("F", *self.forward(k, self.at.rank))
            early = None if self.overlap else first_gradient
            self.at.exchange(send_next=self.output(k), recv_prev=self.next_input(k), recv_next=early)
        else:
            if k:
                self.await_input(k)
            if self.at.rank:
                self.keep(self.at.communicate(recv_prev=self.next_input(k)))
            self.at.compute("F", *self.forward(k, self.at.rank))
            self.pass_forward(k, receives=not self.at.rank)
        if self.overlap:
            self.keep(self.at.communicate(recv_next=first_gradient))

    def steady(self, i: int) -> None:
        k = self.warm_up + i
        if self.overlap:
            self.await_input(k)
            self.at.compute("F", *self.forward(k, self.at.rank))
            self.pass_forward(k, receives=True)
            self.await_gradient(i)
            self.at.compute("B", *self.backward(i, self.at.rank))
            self.pass_backward(i, receives=True)
        else:
            self.at.compute("F", *self.forward(k, self.at.rank))
            self.at.compute("B", *self.backward(i, self.at.rank))
            self.at.exchange(
                send_next=self.output(k), send_prev=self.input_gradient(i),
                recv_prev=self.next_input(k), recv_next=self.next_gradient(i),
            )  # fmt: skip

    def cool(self, k: int) -> None:
        if k:
            self.await_gradient(k)
        if self.flush and not self.is_last:
            self.keep(self.at.communicate(recv_next=self.next_gradient(k)))
        self.at.compute("B", *self.backward(k, self.at.rank))
        if self.flush:
            self.pass_backward(k, receives=self.is_last)
        else:
            self.at.exchange(send_prev=self.input_gradient(k), recv_next=self.next_gradient(k))

    # Overlapped requests

    def keep(self, requests: dict[str, int]) -> None:
        self.recv_prev += [requests["recv_prev"]] if "recv_prev" in requests else []
        self.recv_next += [requests["recv_next"]] if "recv_next" in requests else []

    def await_input(self, k: int) -> None:
        if self.forward(k, self.at.rank)[0] and self.recv_prev:
            self.at.wait([self.recv_prev.pop(0)])

    def await_gradient(self, k: int) -> None:
        if self.backward(k, self.at.rank)[0] != self.last_stage and self.recv_next:
            self.at.wait([self.recv_next.pop(0)])

    def pass_forward(self, k: int, *, receives: bool) -> None:
        requests = self.at.communicate(
            send_next=self.output(k), recv_prev=self.next_input(k) if receives else None
        )
        self.at.wait(self.send_next)
        self.send_next = [requests["send_next"]] if "send_next" in requests else []
        self.keep(requests)
        if self.frees:
            self.at.wait(self.send_next)
            self.send_next = []

    def pass_backward(self, k: int, *, receives: bool) -> None:
        requests = self.at.communicate(
            send_prev=self.input_gradient(k), recv_next=self.next_gradient(k) if receives else None
        )
        self.at.wait(self.send_prev)
        self.send_prev = [requests["send_prev"]] if "send_prev" in requests else []
        self.keep(requests)
