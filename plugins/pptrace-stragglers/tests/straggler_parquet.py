"""Write a small job as parquet of operations: 1F1B in replicas, with what Megatron-LM does around it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["RANKS", "operations", "write_job"]

RANKS, MICROBATCHES = 3, 4
_MESSAGE, _GATHERED = 0.001, 0.05
Place = tuple[str, int, int]
_COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")


def _order(rank: int) -> list[tuple[str, int]]:
    ahead = min(RANKS - rank - 1, MICROBATCHES)
    forwards, backwards = ([(item, number) for number in range(MICROBATCHES)] for item in ("forward", "backward"))
    steady = [member for pair in zip(forwards[ahead:], backwards, strict=False) for member in pair]
    return [*forwards[:ahead], *steady, *backwards[MICROBATCHES - ahead :]]


class Replica:
    """One replica's step: computations, and each message with when it was asked for at both ends and was there."""

    def __init__(self, takes: Callable[[str, int, int], float]) -> None:
        """Run it; ``takes`` says seconds by direction, rank and microbatch."""
        self.spans: dict[Place, tuple[float, float]] = {}
        self.sent: dict[Place, tuple[float, float]] = {}
        self.received: dict[Place, tuple[float, float]] = {}
        orders = [_order(rank) for rank in range(RANKS)]
        done, free = [0] * RANKS, [_GATHERED] * RANKS
        while any(at < len(order) for at, order in zip(done, orders, strict=True)):
            for rank, order in enumerate(orders):
                while done[rank] < len(order) and self._is_ready(rank, *order[done[rank]]):
                    way, number = order[done[rank]]
                    start = max(free[rank], self._receive(rank, way, number, order))
                    free[rank] = start + takes(way, rank, number)
                    self.spans[way, rank, number] = start, free[rank]
                    done[rank] += 1

    def last(self, rank: int) -> float:
        """Return when a rank's last computation ends."""
        return max(until for (_, at, _), (_, until) in self.spans.items() if at == rank)

    def reduces(self, rank: int) -> float:
        """Return when a rank reduces its gradients: on the first and last rank behind those of the embedding."""
        if rank not in {0, RANKS - 1}:
            return self.last(rank)
        return max(self.last(0), self.last(RANKS - 1)) + 0.002

    def _is_ready(self, rank: int, way: str, number: int) -> bool:
        before = _before(rank, way)
        return not 0 <= before < RANKS or (way, before, number) in self.spans

    def _receive(self, rank: int, way: str, number: int, order: Sequence[tuple[str, int]]) -> float:
        """Bring a computation its input once both ends wait for it, and return when it is there."""
        before = _before(rank, way)
        if not 0 <= before < RANKS:
            return 0.0
        sends = max(self.spans[way, before, number][1], self.sent.get((way, before, number - 1), (0, 0))[1])
        if number:
            asks = max(self.spans[way, rank, number - 1][1], self.received[way, rank, number - 1][1])
        else:
            first = next(at for at, (other, _) in enumerate(order) if other == "backward")
            known = first - 2 if way == "backward" and first > 1 else -1
            other, one = order[known]
            asks = self.spans[other, rank, one][1] if known >= 0 else 0.0
        there = max(sends, asks) + _MESSAGE
        self.sent[way, before, number], self.received[way, rank, number] = (sends, there), (asks, there)
        return there


def _before(rank: int, way: str) -> int:
    return rank + (-1 if way == "forward" else 1)


def operations(
    takes: Callable[[int, int, str, int, int], float], replicas: int = 2, steps: Sequence[int] = (7, 9)
) -> list[tuple[Any, ...]]:
    """Return rows; ``takes`` says seconds by replica, step, direction, rank and microbatch."""
    rows: list[tuple[Any, ...]] = []
    for step in steps:
        every = [Replica(partial(takes, replica, step)) for replica in range(replicas)]
        reduced = [max(entry.reduces(rank) for entry in every) + 0.01 for rank in range(RANKS)]
        for replica, item in enumerate(every):
            for rank in range(RANKS):
                worker = replica * RANKS + rank
                rows += [(replica, rank, worker, step, *rest) for rest in _worker(rank, item, reduced)]
    return rows


def _worker(rank: int, replica: Replica, reduced: Sequence[float]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = [("params-all-gather", 0.0, _GATHERED, 0, 0, -1, -1)]
    for name, spans in (("compute", replica.spans), ("send", replica.sent), ("recv", replica.received)):
        for (way, at, number), (start, until) in sorted(spans.items()):
            if at == rank:
                place = (0, number, rank) if name == "compute" else (-1, -1, -1)
                rows.append((f"{way}-{name}", start, until - start, number, *place))
    last, begins, clipped = replica.last(rank), replica.reduces(rank), max(reduced) + 0.001
    tail = [("gc", last, 0.0), ("layernorm-grads-all-reduce", last, 0.0)]
    if rank in {0, RANKS - 1}:
        tail.append(("embedding-grads-all-reduce", last, begins - last))
    tail += [
        ("grads-reduce-scatter", begins, reduced[rank] - begins),
        ("optimizer-clip-main-grad", reduced[rank], clipped - reduced[rank]), ("optimizer", clipped, 0.02),
    ]  # fmt: skip
    return [*rows, *((name, start, took, 0, 0 if "scatter" in name else -1, -1, -1) for name, start, took in tail)]


def write_job(path: Path, rows: Sequence[tuple[Any, ...]], *without: str, **columns: Any) -> Path:
    """Write rows as parquet, without some columns and with others in their place."""
    table = dict(zip(_COLUMNS, (np.array(values) for values in zip(*rows, strict=True)), strict=True))
    kept = {name: values for name, values in (table | columns).items() if name not in without}
    parquet.write_table(pa.table(kept), path)
    return path
