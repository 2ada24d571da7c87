"""A simulated step as the GPUs of a run would record it: launches, kernels, and ``SendRecv`` kernels that wait.

A ``SendRecv`` kernel begins when its stream gets to it and ends when all that it carries is there, so its own time
says neither when its peer was ready nor, where it carries several messages, when each of them was there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from small_gpu_trace import AUTOGRAD, HOST, SmallGpuTrace

from pptrace.steps.kinds import COMMUNICATION, COMPUTE, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pptrace.steps.message_calls import IssueOrder
    from pptrace.timeline.timeline import Slice, Timeline

__all__ = ["NAMES", "SAID", "GpuRun"]

NAMES = (
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
)
"""How NCCL since and before 2.19, and RCCL, call the kernel."""
SAID = ("action", "posts", "arguments")
"""What says what a kernel carries: the action around its launch, what the host posted before, its arguments."""
_BASE_NS = 1_790_857_026_000_000_000
_SENDS = frozenset({Kind.SEND_F, Kind.SEND_B})
_BACKWARD = frozenset({Kind.B, Kind.I, Kind.W})
_STREAM, _ITEM = 20, 2


@dataclass(frozen=True, kw_only=True)
class GpuRun:
    """How a step is written that was simulated under a policy with a slice on both sides of each message."""

    timeline: Timeline
    batches: IssueOrder | None = None
    """The order of issue where neighbouring messages are one kernel; None where each is one."""
    order: IssueOrder | None = None
    """The order of issue where each message is one kernel; None where that is the one in which kernels began."""
    late: bool = False
    """Whether, in that order, what a forward sends is launched behind the backward that follows it at once."""
    said: str = "action"
    """One of :data:`SAID`."""
    kernel: str = NAMES[0]
    """What the kernels of messages are called."""
    ahead: bool = False
    """Whether the host launches everything before the GPU begins; else each kernel when its stream gets to it."""
    shift_ns: tuple[int, ...] = ()
    """What each rank's clock is off by."""
    steps: int = 1
    """How often the step comes, each time marked by the profiler where that is more than once."""
    unmarked: tuple[str, ...] = ()
    """What says which actions there are instead of annotations: the kernels' threads, and what is named here of
    ``autograd``, its operations on the host, and ``checkpoint``, each forward once more within its backward."""

    def write(self, folder: Path) -> list[Path]:
        """Write a file per rank."""
        return [self.trace(rank).write(folder) for rank in range(self.timeline.ranks)]

    def zero_ns(self, rank: int, step: int = 0) -> int:
        """Return when a step begins by a rank's own clock."""
        shift = self.shift_ns[rank] if self.shift_ns else 0
        return _BASE_NS + shift + self._lead_ns + step * self._length_ns

    def crowded(self) -> bool:
        """Say whether a kernel carries several messages the same way, so that none knows when each was there."""
        for rank in range(self.timeline.ranks):
            for item in self._launches(rank):
                ways = {(each.action.kind in _SENDS, _peer(self.timeline, each)) for each in item.messages}
                if len(ways) < len(item.messages):
                    return True
        return False

    @property
    def _lead_ns(self) -> int:
        """Return how long before the step's begin the host starts to launch."""
        return 10_000_000 + 100_000 * len(self.timeline)

    @property
    def _length_ns(self) -> int:
        return self._lead_ns + int(self.timeline.end_ns.max()) + 10_000_000

    def trace(self, rank: int) -> SmallGpuTrace:
        """Return what a rank's file holds."""
        world = self.timeline.ranks
        groups = {"default_pg": list(range(world))}
        trace = SmallGpuTrace(rank=rank, world=world, groups=groups, base_ns=_BASE_NS)
        launches = self._launches(rank)
        for step in range(self.steps):
            zero = self.zero_ns(rank, step) - _BASE_NS
            at = begin = zero - self._lead_ns
            if self.steps > 1:
                trace.annotate(f"ProfilerStep#{step + 3}", begin / 1000, (begin + self._length_ns - 1000) / 1000)
            for number, item in enumerate(launches):
                due = zero + item.begin_ns - 90_000
                at = begin + 100_000 * number if self.ahead else max(due, at + 200)
                self._write(trace, item, at, zero)
        return trace

    def _launches(self, rank: int) -> list[_Launch]:
        """Return what a rank's host launches, in the order of issue."""
        rows = [self.timeline[row] for row in np.flatnonzero(self.timeline.rank_of_row() == rank).tolist()]
        if self.order is not None:
            by_name = {str(item.action): item for item in rows}
            issued = [by_name[name] for name in _issued(self.order, rank)]
            issued = _late(issued) if self.late else issued
            return [_Launch(slices=(item,), begin_ns=_begin(item), end_ns=item.end_ns) for item in issued]
        if self.batches is None:
            launches = [_Launch(slices=(item,), begin_ns=_begin(item), end_ns=item.end_ns) for item in rows]
            return sorted(launches, key=lambda launch_row: (launch_row.begin_ns, bool(launch_row.messages)))
        by_name = {str(item.action): item for item in rows}
        return list(_in_batches([by_name[name] for name in _issued(self.batches, rank)]))

    def _write(self, trace: SmallGpuTrace, launch_row: _Launch, at: int, zero: int) -> None:
        begin, end = zero + launch_row.begin_ns, zero + launch_row.end_ns
        if not launch_row.messages:
            (action,) = (each.action for each in launch_row.slices)
            assert action.kind in COMPUTE
            thread = AUTOGRAD if action.kind in _BACKWARD else HOST
            middle = begin + (end - begin) // 3
            if self.unmarked:
                self._operations(trace, launch_row.slices[0], at)
            else:
                trace.annotate(f"PP:{action}", at / 1000, (at + 60) / 1000)
            trace.kernel("gemm", (at + 10) / 1000, begin / 1000, middle / 1000, thread=thread)
            trace.kernel("gelu", (at + 20) / 1000, middle / 1000, end / 1000, thread=thread)
            if not self.unmarked:
                _mirror(trace, f"PP:{action}", 7, begin, end)
            return
        args: dict[str, Any] = {}
        for place, each in enumerate(launch_row.messages):
            args = self._say(trace, each, at + 10 * place)
        launch = at + 10 * len(launch_row.messages) - (5 if self.said == "action" else 0)
        stream = _STREAM + 1 + launch_row.slices[0].peer
        trace.kernel(self.kernel, launch / 1000, begin / 1000, end / 1000, stream=stream, **args)
        for each in launch_row.messages if self.said != "arguments" and not self.unmarked else ():
            _mirror(trace, f"PP:{each.action}", stream, begin, end)
            _mirror(trace, _posted(each, _peer(self.timeline, each)), stream, begin, end)

    def _operations(self, trace: SmallGpuTrace, row: Slice, at: int) -> None:
        """Write what autograd's operations say of an action: two of a forward, and what goes back through them."""
        if "autograd" not in self.unmarked:
            return
        action = row.action
        numbers = [
            2 * (action.stage * self.timeline.placement.microbatches + action.microbatch) + n for n in (1, 2)
        ]
        if action.kind not in _BACKWARD:
            for place, number in enumerate(numbers):
                _operation(trace, "aten::linear", HOST, at + 5 + 15 * place, 12, number, forward_thread=0)
            return
        for place, number in enumerate(reversed(numbers)):
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            _operation(trace, name, AUTOGRAD, at + 5 + 15 * place, 12, number, forward_thread=1)
            if "checkpoint" in self.unmarked and action.kind is not Kind.W:
                again = 1_000_000 + number
                _operation(trace, "aten::linear", AUTOGRAD, at + 6 + 15 * place, 5, again, forward_thread=0)

    def _say(self, trace: SmallGpuTrace, row: Slice, at: int) -> dict[str, Any]:
        """Write what the host says of a message; return what its kernel says."""
        sends, peer = row.action.kind in _SENDS, _peer(self.timeline, row)
        if self.said == "arguments":
            size, way = row.size_bytes // _ITEM, "send" if sends else "recv"
            end = {"Dst_Rank" if sends else "Src_Rank": peer}
            return {"Collective_name": way, "In_msg_nelems": size, "Out_msg_nelems": size, "dtype": "Half", **end}
        if not self.unmarked:
            trace.annotate(f"PP:{row.action}", at / 1000, (at + 9) / 1000)
        if self.said == "posts":
            trace.annotate(_posted(row, peer), (at + 2) / 1000, (at + 5) / 1000)
            trace.events[-1]["args"] |= {"Input Dims": [[row.size_bytes // _ITEM]], "Input type": ["c10::Half"]}
        return {}


@dataclass(frozen=True, kw_only=True)
class _Launch:
    """An action, or the messages of one kernel, and when its kernels begin and end."""

    slices: tuple[Slice, ...]
    begin_ns: int
    end_ns: int

    @property
    def messages(self) -> tuple[Slice, ...]:
        return tuple(item for item in self.slices if item.action.kind in COMMUNICATION)


def _in_batches(rows: list[Slice]) -> Iterator[_Launch]:
    """Yield actions and batches; a batch begins when its rank has come to it and the one before has ended."""
    joined = computed = 0
    batch: list[Slice] = []
    for item in [*rows, None]:
        if item is not None and item.action.kind in COMMUNICATION:
            batch.append(item)
            continue
        if batch:
            begin, joined = max(joined, computed), max(each.end_ns for each in batch)
            yield _Launch(slices=tuple(batch), begin_ns=begin, end_ns=joined)
            batch = []
        if item is not None:
            computed = item.end_ns
            yield _Launch(slices=(item,), begin_ns=item.start_ns, end_ns=item.end_ns)


def _late(rows: list[Slice]) -> list[Slice]:
    """Put what a forward sends behind a backward that follows it with nothing but receives between."""
    ordered: list[Slice] = []
    held: list[Slice] = []
    for place, item in enumerate(rows):
        kinds = [other.action.kind for other in rows[place:] if other.action.kind not in COMMUNICATION]
        if item.action.kind is Kind.SEND_F and kinds[:1] == [Kind.B]:
            held.append(item)
            continue
        ordered.append(item)
        if item.action.kind in COMPUTE:
            ordered, held = ordered + held, []
    return ordered + held


def _issued(order: IssueOrder, rank: int) -> list[str]:
    rows = range(int(order.row_ptr[rank]), int(order.row_ptr[rank + 1]))
    return [f"{order.stage[row]}{Kind(int(order.kind[row])).name}{order.microbatch[row]}" for row in rows]


def _operation(
    trace: SmallGpuTrace, name: str, thread: int, at: int, length: int, number: int, *, forward_thread: int
) -> None:
    trace.annotate(name, at / 1000, (at + length) / 1000, thread=thread, category="cpu_op")
    trace.events[-1]["args"] |= {"Sequence number": number, "Fwd thread id": forward_thread}


def _posted(row: Slice, peer: int) -> str:
    return f"nccl:send {row.rank}->{peer}" if row.action.kind in _SENDS else f"nccl:recv {row.rank}<-{peer}"


def _mirror(trace: SmallGpuTrace, name: str, stream: int, begin: int, end: int) -> None:
    """Write what Kineto writes on a stream for a range of the host: from its first to its last kernel."""
    low, high = (begin - 1) / 1000, (end + 1) / 1000
    trace.annotate(name, low, high, thread=stream, category="gpu_user_annotation")
    trace.events[-1]["pid"] = 0


def _begin(row: Slice) -> int:
    return row.enter_ns if row.action.kind in COMMUNICATION else row.start_ns


def _peer(timeline: Timeline, row: Slice) -> int:
    """Return the rank at the other end."""
    down = row.action.kind in {Kind.SEND_F, Kind.RECV_B}
    return timeline.placement.rank_of(row.action.stage + (1 if down else -1), row.action.microbatch)
