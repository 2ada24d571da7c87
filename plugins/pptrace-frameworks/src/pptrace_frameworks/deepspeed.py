"""Messages as DeepSpeed's pipeline engine issues them.

Source: DeepSpeed 0.19, ``deepspeed/runtime/pipe/schedule.py`` (``TrainSchedule``), ``engine.py`` and
``p2p.py``. Every send and receive is a separate blocking operation on the communicator of its pair of ranks. A
step of the schedule first exchanges messages with one neighbour and then computes. Before a forward, a rank sends
the gradient of the last step to the previous rank and then receives the activation from it. Before a backward, a
rank receives the gradient from the next rank and then sends the activation of the last step to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pptrace.plugin import MessageCalls, Policy
from pptrace_frameworks.rows import Ends, cannot, rows_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pptrace.plugin import MessageRequest, Schedule
    from pptrace_frameworks.rows import Ints, Rows


def build(schedule: Schedule, options: Mapping[str, Any]) -> Policy:
    """Return the policy for a table.

    Raises:
        ConstraintError: it is not 1F1B with one stage per rank.
    """
    del options
    _rows(schedule)
    return Policy.of("batched", program=_calls)


def _rows(schedule: Schedule) -> Rows:
    rows = rows_of(schedule, "deepspeed")
    placement = schedule.placement
    if schedule.stages != schedule.ranks or (placement.stage_rank != np.arange(schedule.ranks)).any():
        raise cannot("deepspeed", "does not have one stage on each rank, in order", runs="1f1b")
    if not rows.is_warm_up_and_turns(np.minimum(np.arange(rows.ranks)[::-1], rows.count)) and not (
        rows.is_warm_up_and_turns(np.minimum(np.arange(rows.ranks)[::-1], rows.count - 1))
    ):
        raise cannot("deepspeed", "is not in the order of 1F1B", runs="1f1b")
    return rows


def _step(rows: Rows, rank: Ints, k: Ints, *, backward: bool) -> Ints:
    """Return the step of DeepSpeed's schedule in which a rank runs its k-th forward or backward."""
    return 2 * k + (2 * rows.ranks - 1 - rank if backward else rank)


def _calls(request: MessageRequest) -> MessageCalls:
    rows = _rows(request.schedule)
    ends = Ends.of(request, rows)
    # A send follows the receive of the next step if that step computes a backward.
    following = np.clip(_step(rows, ends.source, ends.producer_index, backward=False), 0, None) + 1
    k = (following - (2 * rows.ranks - 1 - ends.source)) // 2
    adjacent = ~ends.gradient & (k >= 0) & (k < rows.count)
    # That receive directly precedes the backward; copies and weight gradients may run between the forward and it.
    backward = rows.backward[ends.source, np.clip(k, 0, rows.count - 1)]
    send = np.where(adjacent, request.before(backward) + 1, request.after(request.producer))
    exchange_step = _step(rows, ends.target, ends.consumer_index, backward=True) - 1
    j = (exchange_step - ends.target) // 2
    first = ends.gradient & (j >= 0) & (j < rows.count)
    receive = request.before(request.consumer) + np.where(first, 0, 1)
    pair = np.minimum(ends.source, ends.target).astype(np.int32)
    return MessageCalls(send=send, send_waited=send, receive=receive, receive_waited=receive, communicator=pair)
