"""The words of Kineto's dialect: what PyTorch's profiler calls the work of a pipeline's streams."""

from __future__ import annotations

from dataclasses import dataclass

from pptrace.model.action import Kind

__all__ = ["COLORS", "WORDS", "Word", "collective"]

_LISTED_RANKS = 30
"""PyTorch cuts its list of a group's ranks here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """How the profiler shows one kind of action."""

    name: str
    """The kernel's name, with the unit behind it where :attr:`numbered`."""
    color: str
    """A reserved colour name of chrome://tracing (``cname``)."""
    numbered: bool = False
    """Whether the unit belongs to the name."""
    category: str = "kernel"
    """Its ``cat``."""
    launch: str = "cudaLaunchKernel"
    """The runtime call that launches it."""


def _compute(name: str, color: str) -> Word:
    return Word(name=f"{name} ", color=color, numbered=True)


def _nccl(name: str, color: str) -> Word:
    return Word(name=f"ncclDevKernel_{name}", color=color, launch="cudaLaunchKernelExC")


def _copy(name: str, color: str) -> Word:
    return Word(name=name, color=color, category="gpu_memcpy", launch="cudaMemcpyAsync")


WORDS = {
    Kind.F: _compute("F", "thread_state_runnable"),
    Kind.B: _compute("B", "thread_state_running"),
    Kind.I: _compute("I", "rail_animation"),
    Kind.W: _compute("W", "rail_idle"),
    Kind.SEND_F: _nccl("SendRecv", "thread_state_iowait"),
    Kind.RECV_F: _nccl("SendRecv", "thread_state_iowait"),
    Kind.SEND_B: _nccl("SendRecv", "rail_response"),
    Kind.RECV_B: _nccl("SendRecv", "rail_response"),
    Kind.UNSHARD: _nccl("AllGather_RING_LL", "olive"),
    Kind.RESHARD: Word(name="RESHARD", color="grey"),
    Kind.REDUCE_GRAD: _nccl("AllReduce_Sum_f32_RING_LL", "startup"),
    Kind.OFFLOAD: _copy("Memcpy DtoH (Device -> Pinned)", "grey"),
    Kind.RELOAD: _copy("Memcpy HtoD (Pinned -> Device)", "grey"),
    Kind.RECOMPUTE: _compute("RECOMPUTE", "rail_load"),
    Kind.OPTIMIZER: Word(name="OPTIMIZER", color="generic_work"),
}
"""One per kind, in the kinds' order."""

COLORS = (
    "thread_state_running",
    "rail_response",
    "rail_animation",
    "rail_idle",
    "rail_load",
    "startup",
    "thread_state_runnable",
    "thread_state_iowait",
    "generic_work",
    "olive",
)
"""Colours that microbatches take in turn."""


def collective(kind: Kind, *, size_bytes: int, peer: int, ranks: int) -> bytes:
    """Return the arguments that PyTorch adds to the kernel of a send or receive, nothing for another kind.

    >>> collective(Kind.SEND_F, size_bytes=8, peer=1, ranks=2)[:52]
    b',"Collective name":"send","In msg nelems":8,"Out msg'
    """
    name, key = {"SEND": ("send", "Dst Rank"), "RECV": ("recv", "Src Rank")}.get(kind.name[:4], ("", ""))
    if not name:
        return b""
    listed = ", ".join(map(str, range(min(ranks, _LISTED_RANKS))))
    group = f"[{listed}{', ...' if ranks > _LISTED_RANKS else ''}]"
    with_peer = f',"{key}":{peer}' if peer >= 0 else ""
    return (
        f',"Collective name":"{name}","In msg nelems":{size_bytes},"Out msg nelems":{size_bytes},'
        f'"Group size":{ranks},"dtype":"Byte","Process Group Name":"1","Process Group Description":"mesh_pp",'
        f'"Process Group Ranks":"{group}"{with_peer}'
    ).encode()
