"""Vocabulary of Kineto's dialect: names in PyTorch's profiler for the work on a pipeline's streams."""

from __future__ import annotations

from dataclasses import dataclass

from pptrace.steps.kinds import KINDS, Stream
from pptrace.traces.scene import CARRIES, CATEGORY, NAMES, RECEIVES

_LISTED_RANKS = 30
"""Length at which PyTorch truncates its list of a group's ranks."""
_SEND, _ALL_REDUCE = "SendRecv", "AllReduce_Sum_f32_RING_LL"
_COLLECTIVES = {"UNSHARD": "AllGather_RING_LL", "REDUCE_GRAD": _ALL_REDUCE, "SYNC": _ALL_REDUCE}
"""NCCL's kernels of collective kinds."""
_COPIES = {
    Stream.COPY_OUT: "Memcpy DtoH (Device -> Pinned)",
    Stream.COPY_IN: "Memcpy HtoD (Pinned -> Device)",
}
"""CUDA's names of operations on copy streams."""
_SEGMENTS = {
    "allreduce": ("allreduce", _ALL_REDUCE),
    "allgather": ("allgather", "AllGather_RING_LL"),
    "reducescatter": ("reduce_scatter", "ReduceScatter_Sum_f32_RING_LL"),
    "alltoall": ("all_to_allv", _SEND),
    "dispatch": ("all_to_allv", _SEND),
    "combine": ("all_to_allv", _SEND),
}
"""PyTorch's name and NCCL's kernel of collectives inside actions, by a substring of their names' letters."""
_GROUPS = {
    Stream.TENSOR_PARALLEL: ("mesh_tp", "allreduce"),
    Stream.EXPERT_PARALLEL: ("mesh_ep", "alltoall"),
    Stream.CONTEXT_PARALLEL: ("mesh_cp", "alltoall"),
}
"""PyTorch's name of each group, and its default collective for segments with another name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Names in the profiler for a kind of action."""

    name: str
    """The kernel's name, without the microbatch of numbered kinds."""
    category: str = "kernel"
    """The value of ``cat``."""
    launch: str = "cudaLaunchKernel"
    """The runtime call that launches the kernel."""
    facts: str = ""
    """Additional arguments of the kernel's event."""


def _word(name: str, category: str, stream: Stream) -> Word:
    """Return the profiler's names for a kind; the default is the name of the kind."""
    if category == "copy":
        return Word(name=_COPIES.get(stream, name), category="gpu_memcpy", launch="cudaMemcpyAsync")
    kernel = _SEND if category == "communication" else _COLLECTIVES.get(name)
    if kernel is None:
        return Word(name=name)
    return Word(name=f"ncclDevKernel_{kernel}", launch="cudaLaunchKernelExC")


WORDS = tuple(map(_word, NAMES, CATEGORY, (traits.stream for traits in KINDS.values())))
"""Names per kind, in the order of kinds."""

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
"""Colors of microbatches, in rotation."""


def group_word(stream: Stream, segment: str) -> Word:
    """Return the profiler's names for a collective inside an action.

    >>> group_word(Stream.TENSOR_PARALLEL, "all-reduce").name, group_word(Stream.EXPERT_PARALLEL, "dispatch").name
    ('ncclDevKernel_AllReduce_Sum_f32_RING_LL', 'ncclDevKernel_SendRecv')
    """
    letters = "".join(filter(str.isalpha, segment.lower()))
    group, default = _GROUPS[stream]
    name, kernel = next((words for key, words in _SEGMENTS.items() if key in letters), _SEGMENTS[default])
    facts = f',"Collective name":"{name}","Process Group Description":"{group}"'
    return Word(name=f"ncclDevKernel_{kernel}", launch="cudaLaunchKernelExC", facts=facts)


def collective(kind: int, *, size_bytes: int, peer: int, ranks: int) -> bytes:
    """Return the arguments that PyTorch adds to the kernel of a send or receive; empty for other kinds.

    >>> collective(NAMES.index("SEND_F"), size_bytes=8, peer=1, ranks=2)[:52]
    b',"Collective name":"send","In msg nelems":8,"Out msg'
    """
    if not CARRIES[kind]:
        return b""
    name, key = ("recv", "Src Rank") if RECEIVES[kind] else ("send", "Dst Rank")
    listed = ", ".join(map(str, range(min(ranks, _LISTED_RANKS))))
    group = f"[{listed}{', ...' if ranks > _LISTED_RANKS else ''}]"
    with_peer = f',"{key}":{peer}' if peer >= 0 else ""
    return (
        f',"Collective name":"{name}","In msg nelems":{size_bytes},"Out msg nelems":{size_bytes},'
        f'"Group size":{ranks},"dtype":"Byte","Process Group Name":"1","Process Group Description":"mesh_pp",'
        f'"Process Group Ranks":"{group}"{with_peer}'
    ).encode()
