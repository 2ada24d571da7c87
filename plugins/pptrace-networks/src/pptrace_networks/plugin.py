"""What this plugin offers: three networks, and presets of clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pptrace.plugin import NetworkOffer, hookimpl
from pptrace_networks.presets import CLUSTERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import BaseModel

    from pptrace.plugin import ClusterOffer, NetworkRequest
    from pptrace_networks.fat_tree import FatTree
    from pptrace_networks.node_networks import NvSwitch, PcieTree

__all__ = ["pptrace_clusters", "pptrace_networks"]


@hookimpl
def pptrace_networks() -> Iterable[NetworkOffer]:
    """Yield NVLink, PCI Express and InfiniBand fat-trees."""
    yield NetworkOffer(
        name="nvlink", summary="GPUs behind NVSwitches, NICs over PCIe.", build=_nvlink, options=_nvlink_options
    )
    yield NetworkOffer(
        name="pcie", summary="GPUs and NICs behind PCIe switches with shared uplinks.",
        build=_pcie, options=_pcie_options,
    )  # fmt: skip
    yield NetworkOffer(
        name="infiniband-fat-tree", summary="InfiniBand of two or three levels, rails, oversubscription, ECMP.",
        build=_fat_tree, options=_fat_tree_options,
    )  # fmt: skip


@hookimpl
def pptrace_clusters() -> Iterable[ClusterOffer]:
    """Yield machines, and the systems of the tabular abstraction paper."""
    yield from CLUSTERS


def _nvlink(request: NetworkRequest) -> NvSwitch:
    from pptrace_networks.node_networks import nvlink

    return nvlink(request)


def _nvlink_options() -> type[BaseModel]:
    from pptrace_networks.node_networks import NvLinkOptions

    return NvLinkOptions


def _pcie(request: NetworkRequest) -> PcieTree:
    from pptrace_networks.node_networks import pcie

    return pcie(request)


def _pcie_options() -> type[BaseModel]:
    from pptrace_networks.node_networks import PcieOptions

    return PcieOptions


def _fat_tree(request: NetworkRequest) -> FatTree:
    from pptrace_networks.fat_tree import fat_tree

    return fat_tree(request)


def _fat_tree_options() -> type[BaseModel]:
    from pptrace_networks.fat_tree import FatTreeOptions

    return FatTreeOptions
