"""Messages as Megatron-LM's training loop issues them.

Source: Megatron-LM main of August 2026 (core 0.20), ``megatron/core/pipeline_parallel/schedules.py`` and
``p2p_communication.py``; switches and their defaults as in ``megatron/training/arguments.py``.

One function issues all messages between ranks; a call sends and receives at most one tensor in each direction. By
default, a call is one blocking batch on the communicator of the pipeline. Without batches, each message is a
separate operation on the communicator of a pair of ranks. Even ranks send first, odd ranks receive first.

One chunk per rank (``forward_backward_pipelining_without_interleaving``): the send of a forward and the receive of
the next backward are one batch. The send of a backward and the receive of the next forward are one batch too. All
other messages are separate calls. With encoders on separate GPUs, the warm-up follows the longest path through all
modules (``multimodule_communicator.py``). There, the first rank of a decoder exchanges the messages of several
encoders one encoder after the other; here, in one call.

Several chunks (``forward_backward_pipelining_with_interleaving``), without overlap: a batch follows each forward
of warm-up, each pair of forward and backward in steady state, and each backward of drain. The batch has the
outputs of these actions and the inputs of the next ones.

Several chunks with overlap: in steady state, a forward or backward issues its send and the receive of the next
action. The rank waits for a receive before its use, and for a send after the next action of the same kind. In
warm-up and drain, all calls are blocking unless receives are prefetched there too
(``overlap_p2p_comm_warmup_flush``).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from pptrace.plugin import ConstraintError, MessageCalls, Parameters, Policy
from pptrace.steps.columns import empty_columns
from pptrace_frameworks import kernels
from pptrace_frameworks.rows import Rows, cannot, rows_of
from pptrace_kernel import halves, run_parts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pptrace.plugin import MessageRequest, Schedule

    Ints = NDArray[np.int64]


class MegatronOptions(Parameters):
    """Megatron-LM's switches of point-to-point communication."""

    overlap_p2p_comm: bool | None = None
    """Overlap messages with computation (--overlap-p2p-communication); with several chunks per rank by default, as
    training has it; cannot be true with one."""
    batch_p2p_comm: bool | None = None
    """Send and receive in one batch on the pipeline's communicator; by default where messages do not overlap.
    False: each message is a separate operation on its pair's communicator."""
    overlap_p2p_comm_warmup_flush: bool = False
    """Issue receives ahead in warm-up and at the end too (--overlap-p2p-communication-warmup-flush); needs
    overlap_p2p_comm."""
    deallocate_pipeline_outputs: bool = False
    """Wait for the send of a forward right after its launch, even with overlap_p2p_comm, so that its output can be
    freed, as core 0.18 (2026) and later do where training sets this; earlier ones freed without waiting."""


def build(schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    """Return the policy for a table.

    Raises:
        ConstraintError: Megatron's two loops do not run the table, or a switch is invalid.
    """
    loop = _Loop.of(schedule)
    switches = _switches(loop, options)
    return Policy.of("batched", program=partial(_calls, checked=(schedule, loop), switches=switches))


def _switches(loop: _Loop, options: Mapping[str, Any]) -> dict[str, int]:
    """Return the switches of the kernel, with Megatron's defaults."""
    overlap, batch, flush = (
        options[name] for name in ("overlap_p2p_comm", "batch_p2p_comm", "overlap_p2p_comm_warmup_flush")
    )
    if overlap and loop.chunks == 1:
        raise _refused("overlap_p2p_comm", "needs several chunks per rank: parallel.vp of 2 or more")
    overlap = loop.chunks > 1 if overlap is None else overlap
    if overlap and batch:
        raise _refused("batch_p2p_comm", "cannot be true with overlap_p2p_comm: set one of them to false")
    if flush and not overlap:
        raise _refused("overlap_p2p_comm_warmup_flush", "needs overlap_p2p_comm")
    if loop.chunks > 1 and not overlap and loop.rows.ranks == kernels.PAIR:
        raise _refused("overlap_p2p_comm", "cannot be false on 2 ranks with several chunks, as in Megatron")
    batch = not overlap if batch is None else batch
    frees_outputs = options["deallocate_pipeline_outputs"]
    return {"overlap": int(overlap), "flush": int(flush), "frees_outputs": int(frees_outputs), "batch": int(batch)}


def _refused(option: str, why: str) -> ConstraintError:
    return ConstraintError(why, key=f"p2p.options.{option}")


class _Loop(Struct, frozen=True):
    """A table as one of Megatron's two loops."""

    rows: Rows
    chunks: int
    group: int
    """Microbatches that a rank runs through one chunk before the next (``microbatch_group_size_per_vp_stage``)."""
    warm_up: Ints
    """Shape (ranks,): forwards before the steady state; all forwards if there is no steady state."""

    @classmethod
    def of(cls, schedule: Schedule) -> _Loop:
        """Return the loop that runs a table.

        Raises:
            ConstraintError: no loop of Megatron runs the table.
        """
        rows = rows_of(schedule, "megatron")
        placement = schedule.placement
        chunks, rest = divmod(schedule.stages, schedule.ranks)
        looped = np.arange(schedule.stages) % schedule.ranks
        if rest or placement.stage_rank.shape[0] != 1 or (placement.stage_rank[0] != looped).any():
            raise cannot("megatron", "does not loop its stages over the ranks, stage s on rank s mod p")
        if not rows.is_one_order:
            raise cannot("megatron", "does not run the microbatches of all ranks in one order")
        group = _group(schedule, rows, chunks) if chunks > 1 else rows.count
        ahead = np.arange(rows.ranks)[::-1]
        warm_up = placement.stages_ahead() if chunks == 1 else 2 * ahead + (chunks - 1) * group
        warm_up = np.minimum(warm_up, rows.count)
        longer = rows.leading - 1 > warm_up  # as in GPipe, or with an additional forward
        warm_up = np.where(longer, np.where(rows.leading == rows.count, rows.count, rows.leading - 1), warm_up)
        if not rows.is_warm_up_and_turns(warm_up):
            raise cannot("megatron", "is not forwards, then forward and backward in turns, then backwards")
        return cls(rows=rows, chunks=chunks, group=group, warm_up=warm_up)


def _group(schedule: Schedule, rows: Rows, chunks: int) -> int:
    """Return how many microbatches go through one chunk before the next.

    Raises:
        ConstraintError: chunks and microbatches are not in such groups, or Megatron refuses a group because it has
            fewer microbatches than ranks.
    """
    stages = schedule.stage[rows.forward[0]]
    group = int(np.argmax(stages != stages[0])) or rows.count
    microbatches = rows.count // chunks
    chunk, microbatch = np.divmod(np.arange(chunks * microbatches), microbatches)
    order = np.lexsort((microbatch, chunk, microbatch // group))
    chunk, microbatch = chunk[order], microbatch[order]
    for rows_of_rank_0, expected_chunk in ((rows.forward[0], chunk), (rows.backward[0], chunks - 1 - chunk)):
        same_chunk = schedule.stage[rows_of_rank_0] // schedule.ranks == expected_chunk
        if not (same_chunk & (schedule.microbatch[rows_of_rank_0] == microbatch)).all():
            raise cannot("megatron", "does not run microbatches in groups, chunk by chunk")
    least = min(group, microbatches % group or group)
    if least < schedule.ranks:
        raise ConstraintError(
            f"Megatron-LM interleaves microbatches in groups of at least {schedule.ranks} on {schedule.ranks} "
            f"ranks, but {microbatches} microbatches have a group of {least}: use more, or --p2p async",
            key="p2p.policy",
        )
    return group


def _calls(request: MessageRequest, *, checked: tuple[Schedule, _Loop], switches: dict[str, int]) -> MessageCalls:
    """Return the calls of a table: the ``checked`` one, or that table with the actions that end its step."""
    schedule, loop = checked
    if request.schedule is not schedule:
        loop = _Loop.of(request.schedule)
    rows, messages_count = loop.rows, request.producer.size
    in_batches = switches["batch"] and not switches["overlap"]  # the waits have the moments of the calls
    last = (len(request.schedule) + rows.ranks + 1) * kernels.TURNS
    kernel_loop = kernels.Loop(
        forward=rows.forward.ravel(), backward=rows.backward.ravel(), number=rows.number, warm_up=loop.warm_up,
        ranks=rows.ranks, passes=rows.count, group=loop.group, has_chunks=int(loop.chunks > 1),
        **switches,
    )  # fmt: skip
    moment = np.int32 if last < 2**31 else np.int64
    send, receive, *waited = empty_columns(messages_count, *[moment] * (2 if in_batches else 4))
    send_waited, receive_waited = waited or (send, receive)
    communicator = np.empty(0 if switches["batch"] else messages_count, dtype=np.int32)
    calls = kernels.Calls(send, receive, send_waited, receive_waited, communicator)
    messages = kernels.Messages(
        request.producer, request.consumer, request.source, request.target, request.gradient.view(np.int8)
    )
    parts = halves(messages_count, work=messages_count)
    run_parts(kernels.place, parts, (messages, kernel_loop), (calls,), work=messages_count)
    return MessageCalls(
        send=send, receive=receive, send_waited=send_waited, receive_waited=receive_waited,
        communicator=None if switches["batch"] else communicator,
    )  # fmt: skip
