"""What a program says of its messages, held to the laws of moments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pptrace.errors import PluginError
from pptrace.kernel import run
from pptrace.schedule.kernels import calls as kernels
from pptrace.schedule.kernels.calls import NEVER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pptrace.model.columns import Int32s, Int64s
    from pptrace.schedule.calls import MessageRequest

__all__ = ["Plan", "checked_calls"]

_WAIT = "a wait is not before its call nor behind its rank's end"
_LAWS = (
    ("the send of {}'s result on rank {}", "a send is behind its producer"),
    ("the receive of {}'s result on rank {}", "a receive is before its consumer"),
    ("the wait for the send of {}'s result on rank {}", _WAIT),
    ("the wait for the receive of {}'s result on rank {}", _WAIT),
)


class Plan(NamedTuple):
    """A program's moments, each of its columns there."""

    send: Int64s
    receive: Int64s
    send_waited: Int64s
    receive_waited: Int64s
    communicator: Int32s
    """Empty where there is one."""


class _Ends(NamedTuple):
    """Both ends of each message."""

    producer: Int32s
    consumer: Int32s
    source: Int32s
    target: Int32s


def checked_calls(request: MessageRequest, calls: object, name: str) -> Plan:
    """Return a program's moments as columns.

    Args:
        request: what the program was asked.
        calls: its answer; a plan is one that was checked.
        name: what messages call the program's policy.

    Raises:
        PluginError: no moments, columns of another shape or of no integers, a send before its producer, a receive
            behind its consumer, a wait before its call or behind its rank's last action, a negative communicator.
    """
    if isinstance(calls, Plan):
        return calls
    count = request.producer.size
    missing = [column for column in ("send", "receive") if getattr(calls, column, None) is None]
    if missing:
        raise PluginError(f"message policy {name!r} returned a {type(calls).__name__} without {missing[0]}")
    columns: dict[str, Any] = {"communicator": np.zeros(0, dtype=np.int32)}
    for column in Plan._fields:
        values = getattr(calls, column, None)
        if values is not None:
            columns[column] = _column(values, column, count, name)
        elif column != "communicator":
            columns[column] = np.full(count, NEVER, dtype=np.int64)
    columns["communicator"] = _numbered(columns["communicator"], name)
    plan = Plan(**columns)
    ends = _Ends(request.producer, request.consumer, request.source, request.target)
    wrong = run(kernels.find_wrong, (request.schedule.row_ptr, ends, plan), (), work=count) - 1
    if wrong >= 0:
        sort, message = divmod(wrong, count)
        what, law = _LAWS[sort]
        action = request.schedule.action(int(request.producer[message]))
        rank = int((request.target if sort % 2 else request.source)[message])
        raise PluginError(f"message policy {name!r} places {what.format(action, rank)} where it cannot be: {law}")
    return plan


def _column(values: object, column: str, count: int, name: str) -> NDArray[np.integer]:
    """Return one value per message."""
    array = np.asarray(values)
    if array.shape != (count,):
        raise PluginError(f"message policy {name!r} returned {column} of shape {array.shape}, expected {(count,)}")
    if array.dtype.kind not in "iu" and count:
        raise PluginError(f"message policy {name!r} returned {column} of {array.dtype}, expected integers")
    return array if array.dtype == np.int32 else array.astype(np.int64, copy=False)


def _numbered(communicator: NDArray[np.integer], name: str) -> Int32s:
    """Return communicators as numbers below that of the messages, in their order."""
    if communicator.min(initial=0) < 0:
        raise PluginError(f"message policy {name!r} returned a communicator below 0")
    if communicator.max(initial=0) >= max(communicator.size, 1):
        communicator = np.unique(communicator, return_inverse=True)[1]
    return communicator.astype(np.int32, copy=False)
