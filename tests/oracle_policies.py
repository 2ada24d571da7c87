"""A slow second implementation of the point-to-point policies, written from their words.

It knows queues, not graphs: an entry runs when it is at the head of its queue (a rendezvous: of both its
queues) and what it needs is there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from oracle_orders import SENDS, Cell, Item, Step, partner

from pptrace.config.choices import PolicyName, StreamPer
from pptrace.steps.kinds import COMPUTE, SEND_WAITS, Kind

if TYPE_CHECKING:
    from collections.abc import Hashable

    from pptrace.steps.message_calls import Policy

__all__ = ["Oracle"]

Group: TypeAlias = tuple[int, int]
"""A rank, and the compute actions before a run of neighbouring messages in its row."""
_AWAITED = {Kind.WAIT_SEND_F: Kind.SEND_F, Kind.WAIT_SEND_B: Kind.SEND_B}
_COSTS = {Kind.F: "f_ns", Kind.B: "b_ns", Kind.I: "i_ns", Kind.W: "w_ns"}


@dataclass
class Oracle:
    """One step under one policy; :meth:`run` fills ``span`` with the start and end of each entry that ran."""

    step: Step
    policy: Policy
    rows: list[list[Item]]
    queues: dict[Hashable, deque[Cell]] = field(default_factory=dict)
    key: dict[Cell, Hashable] = field(default_factory=dict)
    free: dict[Hashable, int] = field(default_factory=dict)
    fork: dict[Cell, Cell | None] = field(default_factory=dict)
    group: dict[Cell, Group] = field(default_factory=dict)
    members: dict[Group, list[Cell]] = field(default_factory=dict)
    wires: dict[tuple[int, int], deque[Cell]] = field(default_factory=dict)
    launched: dict[Group, int] = field(default_factory=dict)
    joined: dict[Group, int] = field(default_factory=dict)
    span: dict[Cell, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rank, row in enumerate(self.rows):
            compute, before = None, 0
            for cell in (cell for item in row for cell in item):
                self.fork[cell] = compute
                if cell.kind in COMPUTE or cell.kind in SEND_WAITS:
                    compute, before = cell, before + 1
                elif not self.policy.has_receives and cell.kind not in SENDS:
                    continue
                elif self.policy.name is PolicyName.BATCHED:
                    self.group[cell] = (rank, before)
                    self.members.setdefault((rank, before), []).append(cell)
                    if cell.kind in SENDS:
                        self.wires.setdefault((rank, self._peer(cell)), deque()).append(cell)
                    continue
                self.key[cell] = self._queue_of(rank, cell)
                self.queues.setdefault(self.key[cell], deque()).append(cell)

    def run(self) -> bool:
        """Run all that can run; return whether that was everything."""
        moved = True
        while moved:
            moved = False
            for queue in self.queues.values():
                while queue and self._try(queue[0]):
                    moved = True
            for group in self.members:
                moved |= self._try_group(group)
        return len(self.span) == len(self.key) + len(self.group)

    def _queue_of(self, rank: int, cell: Cell) -> Hashable:
        name, stream = self.policy.name, self.policy.stream
        if (
            cell.kind in COMPUTE
            or cell.kind in SEND_WAITS
            or name in {PolicyName.BLOCKING, PolicyName.SENDER_BLOCKING}
        ):
            return ("compute", rank)
        peer = self._peer(cell)
        if name is PolicyName.ASYNC or stream is StreamPer.DIRECTION:
            return ("direction", rank, peer, cell.kind in SENDS)
        return ("rank", rank) if stream is StreamPer.RANK else ("pair", rank, peer)

    def _peer(self, cell: Cell) -> int:
        return self.step.rank(partner(cell).stage, cell.microbatch)

    def _size(self, send: Cell) -> int:
        edge = send.stage if send.kind is Kind.SEND_F else send.stage - 1
        return int(self.step.workload.boundary_bytes[edge]) * send.span

    def _duration(self, cell: Cell) -> int:
        network = self.step.network
        if cell.kind in COMPUTE:
            return int(getattr(self.step.workload, _COSTS[cell.kind])[cell.stage]) * cell.span
        if cell.kind in SEND_WAITS:
            return 0
        if cell.kind not in SENDS:
            return self._duration(partner(cell)) + network.latency_ns
        wire = -(-self._size(cell) * 1_000_000 // network.rate_kbps) if network.rate_kbps else 0
        return network.overhead_ns + wire

    def _meets(self, cell: Cell) -> bool:
        """Say whether a message's two ends are one rendezvous on two queues."""
        if cell.kind in SEND_WAITS:
            return False
        send = cell if cell.kind in SENDS else partner(cell)
        return self.policy.name is PolicyName.ORDERED and self._size(send) > (self.policy.eager_bytes or -1)

    def _ended(self, *cells: Cell | None) -> int | None:
        """Return when the last of some entries ended; None while one has not run."""
        wanted = [cell for cell in cells if cell is not None]
        if any(cell not in self.span for cell in wanted):
            return None
        return max((self.span[cell][1] for cell in wanted), default=0)

    def _arrival(self, cell: Cell) -> int | None:
        """Return when a compute action's input is there; None while that is not known."""
        source = self.step.source(cell)
        if source is None:
            return 0
        if self.step.rank(source.stage, cell.microbatch) == self.step.rank(cell.stage, cell.microbatch):
            halves = (source, source._replace(kind=Kind.I)) if source.kind is Kind.B else (source,)
            return next((self.span[half][1] for half in halves if half in self.span), None)
        receive = cell._replace(kind=Kind.RECV_F if cell.kind is Kind.F else Kind.RECV_B)
        if self.policy.name is PolicyName.BATCHED:
            return self.joined.get(self.group[receive])
        if self.policy.has_receives and not self._meets(receive):
            return self._ended(receive)
        sent = self._ended(partner(receive))
        return None if sent is None else sent + self.step.network.latency_ns

    def _completion(self, wait: Cell) -> int | None:
        """Return when the send that a wait is for is over; None while that is not known."""
        send = wait._replace(kind=_AWAITED[wait.kind])
        if self.policy.name is PolicyName.BATCHED:
            return self.joined.get(self.group[send])
        sent = self._ended(send)
        left = self.policy.blocks or (self.policy.has_receives and not self._meets(send))
        return sent if sent is None or left else sent + self.step.network.latency_ns

    def _opening(self, cell: Cell) -> int | None:
        """Return from when an entry may run, its queue apart; None while it may not."""
        if cell.kind in COMPUTE:
            return self._arrival(cell)
        if cell.kind in SEND_WAITS:
            return self._completion(cell)
        forked = self._ended(self.fork[cell])
        if cell.kind in SENDS or forked is None:
            return forked
        sent = self.span.get(partner(cell))
        return None if sent is None else max(forked, sent[0])

    def _try(self, cell: Cell) -> bool:
        ends = [cell]
        if cell.kind in COMPUTE or not self._meets(cell):
            opened = self._opening(cell)
        else:
            ends = [cell, partner(cell)]
            heads = all(self.queues[self.key[end]][0] == end for end in ends)
            opened = self._ended(*(self.fork[end] for end in ends)) if heads else None
        if opened is None:
            return False
        start = max(opened, *(self.free.get(self.key[end], 0) for end in ends))
        end_ns = start + self._duration(cell if cell.kind in COMPUTE or len(ends) == 1 else self._sender(cell))
        for end in ends:
            self.span[end] = (start, end_ns)
            self.free[self.key[end]] = end_ns
            self.queues[self.key[end]].popleft()
        return True

    def _sender(self, cell: Cell) -> Cell:
        return cell if cell.kind in SENDS else partner(cell)

    def _try_group(self, group: Group) -> bool:
        """Launch a rank's next group, run transfers between launched groups, or join: whichever can be."""
        members, moved = self.members[group], False
        if group not in self.launched:
            earlier = [other for other in self.members if other[0] == group[0] and other[1] < group[1]]
            forked = self._ended(self.fork[members[0]])
            if forked is None or any(other not in self.joined for other in earlier):
                return False
            self.launched[group] = max([forked, *(self.joined[other] for other in earlier)])
            return True
        for send in [cell for cell in members if cell.kind in SENDS and cell not in self.span]:
            other, wire = self.group[partner(send)], (group[0], self._peer(send))
            # Messages from one rank to another keep the sender's order, one at a time.
            if other in self.launched and self.wires[wire][0] == send:
                start = max(self.launched[group], self.launched[other], self.free.get(wire, 0))
                self.span[send] = self.span[partner(send)] = (start, start + self._duration(send))
                self.free[wire] = self.span[send][1]
                self.wires[wire].popleft()
                moved = True
        if group not in self.joined and all(cell in self.span for cell in members):
            # A transfer is over, for both its ends, when its last byte has arrived.
            self.joined[group] = max(self.span[cell][1] for cell in members) + self.step.network.latency_ns
            return True
        return moved
