"""Ranks whose copies to the host share a channel: GPUs behind one PCI Express switch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pptrace.plugin import Prepared

__all__ = ["pairs", "shared_of"]


def pairs(ranks: int) -> tuple[tuple[int, int], ...]:
    """Return ranks 2i and 2i + 1."""
    return tuple((rank, rank + 1) for rank in range(0, ranks - 1, 2))


def shared_of(prepared: Prepared, copies: str) -> tuple[tuple[int, ...], ...]:
    """Return groups of pipeline ranks that share a channel to the host and one back.

    Args:
        prepared: the configuration; a cluster of nodes that ``pcie`` joins says which GPUs share an uplink.
        copies: ``pair`` for ranks 2i and 2i + 1, ``direction`` for none, ``cluster`` for what the cluster says.
    """
    ranks = prepared.schedule.ranks
    if copies == "pair":
        return pairs(ranks)
    section, job = prepared.resolved.experiment.cluster, prepared.job
    if copies == "direction" or job is None or section is None or section.node is None or not section.gpus:
        return ()
    per_switch = section.node.values.get("gpus_per_switch") if section.node.name == "pcie" else None
    if not per_switch:
        return ()
    behind: dict[tuple[int, int], list[int]] = {}
    for rank, gpu in enumerate(job.layout.members()[:, 0].tolist()):
        node, place = divmod(gpu, section.gpus)
        behind.setdefault((node, place // per_switch), []).append(rank)
    return tuple(tuple(group) for group in behind.values() if len(group) > 1)
