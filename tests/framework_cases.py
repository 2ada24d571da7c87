"""Frameworks' programs by name, and times for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from framework_calls import Compute, Program
from oracle_frameworks import deepspeed_1f1b, megatron_1f1b, run, torch_1f1b, torch_gpipe

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["B_NS", "F_NS", "ONE_CHUNK", "OVERLAPS", "computes_of", "nothing", "one", "starts", "times"]
F_NS, B_NS = 10, 20
OVERLAPS: dict[str, dict[str, Any]] = {
    "batched": {},
    "unbatched": {"batch_p2p_comm": False},
    "overlapped": {"overlap_p2p_comm": True},
    "overlapped-before-0.18": {"overlap_p2p_comm": True, "waits_before_freeing": False},
    "flush": {"overlap_p2p_comm": True, "overlap_warmup_flush": True},
    "flush-before-0.18": {"overlap_p2p_comm": True, "overlap_warmup_flush": True, "waits_before_freeing": False},
}
ONE_CHUNK: dict[str, Callable[[int, int], list[Program]]] = {
    "megatron": megatron_1f1b,
    "megatron-unbatched": lambda ranks, m: megatron_1f1b(ranks, m, batch_p2p_comm=False),
    "deepspeed": deepspeed_1f1b,
    "deepspeed-pairs": lambda ranks, m: deepspeed_1f1b(ranks, m, eager_init=False),
    "torch-gpipe": torch_gpipe,
    "torch-1f1b": torch_1f1b,
    "torch-1f1b-eager": lambda ranks, m: torch_1f1b(ranks, m, eager_init=True),
}


def times(call: Compute) -> int:
    return F_NS if call.kind == "F" else B_NS


def one(_source: int, _target: int, _direction: str) -> int:
    return 1


def nothing(_source: int, _target: int, _direction: str) -> int:
    return 0


def computes_of(program: Program) -> list[Compute]:
    return [call for call in program if isinstance(call, Compute)]


def starts(programs: list[Program], rank: int) -> list[int]:
    computes = run(programs, times, one).computes
    return [computes[call][0] for call in computes_of(programs[rank])]
