"""What this plugin offers: three networks, and presets of clusters with their sources."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pptrace.plugin import deferred, hookimpl

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pptrace.plugin import ClusterOffer, NetworkOffer


@hookimpl
def pptrace_networks() -> Iterable[NetworkOffer]:
    """Yield NVLink, PCI Express and InfiniBand fat-trees."""
    from pptrace.plugin import NetworkOffer

    yield NetworkOffer(
        name="nvlink", summary="GPUs behind NVSwitches, NICs over PCIe.",
        build=deferred("pptrace_networks.node_networks:nvlink"),
        options=lambda: import_module("pptrace_networks.node_networks").NvLinkOptions,
    )  # fmt: skip
    yield NetworkOffer(
        name="pcie", summary="GPUs and NICs behind PCIe switches with shared uplinks.",
        build=deferred("pptrace_networks.node_networks:pcie"),
        options=lambda: import_module("pptrace_networks.node_networks").PcieOptions,
    )  # fmt: skip
    yield NetworkOffer(
        name="infiniband-fat-tree", summary="InfiniBand of two or three levels, rails, oversubscription, ECMP.",
        build=deferred("pptrace_networks.fat_tree:fat_tree"),
        options=lambda: import_module("pptrace_networks.fat_tree").FatTreeOptions,
    )  # fmt: skip


@hookimpl
def pptrace_clusters() -> Iterable[ClusterOffer]:
    """Yield machines, and the systems of the tabular abstraction paper."""
    yield from _machines()
    yield from (_paper(network, compute) for network in _SCALE for compute in _SCALE)


def _nvlink(generation: int, **options: Any) -> dict[str, Any]:
    return {"name": "nvlink", "generation": generation, **options}


def _on_fat_tree(
    node: dict[str, Any], generation: str, *, gpus: int = 8, nics: int = 8, tray: int = 0, **options: Any
) -> dict[str, Any]:
    """Return a cluster of nodes on an InfiniBand fat-tree of a generation with other ``options``."""
    fabric = {"name": "infiniband-fat-tree", "generation": generation, **options}
    trays = {"tray": tray} if tray else {}
    return {"gpus": gpus, **trays, "nics": nics, "node": node, "fabric": fabric}


_LINKS, _LINK_GBYTES = 18, 25
"""Links and GB/s per link of NVLink 4, which represent the rates of a mesh."""


def _mesh(reached: float) -> dict[str, Any]:
    """Return the node network of 8 GPUs with a link between any two.

    The network is an NVLink switch: a GPU sends at the rate of 7 links, and each message at the rate of one link.

    Args:
        reached: attained rate of a link, in GB/s.
    """
    share = round(7 * reached / (_LINKS * _LINK_GBYTES), 6)
    rate = round(reached * 10**9)
    return _nvlink(4, links=_LINKS, efficiency=share, flow_rate=rate)


def _machines() -> tuple[ClusterOffer, ...]:
    """Return presets of machines."""
    from pptrace.plugin import ClusterOffer

    return (
        ClusterOffer(
            name="dgx-a100",
            summary="NVIDIA DGX A100: 8 A100 80 GB on NVLink 3, 8 HDR InfiniBand NICs in rails.",
            values=_on_fat_tree(_nvlink(3), "hdr", rails=True),
            device="a100-sxm",
            source="NVIDIA DGX A100 user guide: 8 single-port ConnectX-6 200 Gb/s for clustering, 12 NVLinks per "
            "GPU",
        ),
        ClusterOffer(
            name="dgx-h100",
            summary="NVIDIA DGX H100: 8 H100 80 GB on NVLink 4, 8 NDR InfiniBand NICs in rails.",
            values=_on_fat_tree(_nvlink(4), "ndr", rails=True),
            device="h100-sxm",
            source="NVIDIA DGX H100 user guide: 8 single-port ConnectX-7 400 Gb/s, 18 NVLinks per GPU; "
            "DGX SuperPOD H100 reference architecture: rail-optimised fat-tree",
        ),
        ClusterOffer(
            name="gb200-nvl72",
            summary="NVIDIA GB200 NVL72: 72 B200 in one NVLink 5 domain, a 400 Gb/s NIC each.",
            values=_on_fat_tree(_nvlink(5), "ndr", gpus=72, nics=72, tray=4),
            device="gb200",
            source="NVIDIA GB200 NVL72 data sheet: 72 GPUs, 130 TB/s of NVLink; DGX GB200 user guide, hardware: 18"
            " trays of 4 GPUs and 4 single-port ConnectX-7 400 Gb/s",
        ),
        ClusterOffer(
            name="gb300-nvl72",
            summary="NVIDIA GB300 NVL72: 72 B300 in one NVLink 5 domain, an 800 Gb/s NIC each.",
            values=_on_fat_tree(_nvlink(5, pcie_generation=6), "xdr", gpus=72, nics=72, tray=4),
            device="gb300",
            source="NVIDIA Enterprise Reference Architecture, NVL72 AI Factory, components: 72 GPUs, 130 TB/s of "
            "NVLink, 4 ConnectX-8 in a tray of 4 GPUs; Google Cloud, networking and GPU machines, A4X Max: "
            "4 ConnectX-8 reach 3,200 Gb/s; ConnectX-8 data sheet: PCI Express 6",
        ),
        ClusterOffer(
            name="dgx-b200",
            summary="NVIDIA DGX B200: 8 B200 on NVLink 5, 8 NDR InfiniBand NICs in rails.",
            values=_on_fat_tree(_nvlink(5), "ndr", rails=True),
            device="b200",
            source="NVIDIA DGX B200 user guide, component descriptions: 8 single-port ConnectX-7 of up to 400 "
            "Gb/s, 14.4 TB/s of NVLink for 8 GPUs; rails as DGX H100's, an assumption",
        ),
        ClusterOffer(
            name="dgx-b300",
            summary="NVIDIA DGX B300: 8 B300 on NVLink 5, 8 XDR InfiniBand NICs in rails.",
            values=_on_fat_tree(_nvlink(5, pcie_generation=6), "xdr", rails=True),
            device="b300",
            source="NVIDIA DGX B300 user guide, as others quote it (the guide itself was not at hand): 8 "
            "ConnectX-8 with a port of 800 Gb/s each; NVLink as DGX B200's; rails as DGX H100's, an "
            "assumption",
        ),
        ClusterOffer(
            name="dgx-h200",
            summary="NVIDIA DGX H200: 8 H200 141 GB on NVLink 4, 8 NDR InfiniBand NICs in rails.",
            values=_on_fat_tree(_nvlink(4), "ndr", rails=True),
            device="h200-sxm",
            source="NVIDIA DGX H100/H200 user guide, one for both systems: 8 single-port ConnectX-7 400 Gb/s, 18 "
            "NVLinks per GPU; rails as DGX H100's",
        ),
        ClusterOffer(
            name="h20-8gpu",
            summary="Ant Group's nodes of 2025: 8 H20 96 GB on NVLink 4, 4 NICs of 400 Gb/s.",
            values=_on_fat_tree(_nvlink(4), "ndr", nics=4),
            device="h20",
            source="Zhang et al., Together with SGLang: Best Practices for Serving DeepSeek-R1 on H20-96G (LMSYS "
            "blog, 2025), table of H20 and H800: 900 GB/s of NVLink, 4 x 400 Gb/s of NICs; the tree between "
            "them is not published",
        ),
        ClusterOffer(
            name="vr200-nvl72",
            summary="NVIDIA Vera Rubin NVL72, announced: 72 Rubin in one NVLink 6 domain, 1.6 Tb/s of NICs each.",
            values=_on_fat_tree(
                _nvlink(5, links=36, pcie_generation=6, pcie_lanes=32), "xdr",
                gpus=72, nics=72, tray=4, bandwidth="1600 Gb/s",
            ),
            device="vr200",
            source="NVIDIA Vera Rubin NVL72 specifications (2026, before release): 72 GPUs, 3600 GB/s of NVLink 6 "
            "each, both ways; Decoding Nvidia's Rubin Networking Math (wheelersnetwork.com, 2025): 8 ConnectX-9 "
            "of 800 Gb/s in a tray of 4 GPUs; assumptions: a GPU's two NICs act as one, with 16 lanes of PCI "
            "Express 6 each; NVLink 6 has twice NVLink 5's links, and the same share for payload",
        ),
        ClusterOffer(
            name="aws-p5",
            summary="AWS p5.48xlarge: 8 H100 80 GB on NVLink 4, four 100 Gb/s EFA NICs each.",
            values=_on_fat_tree(_nvlink(4), "ndr"),
            device="h100-sxm",
            source="Amazon EC2 user guide, EFA on accelerated instances: 32 network cards and 3,200 Gb/s for the 8"
            " GPUs of a P5; assumption: a GPU's four cards act as one, over which each message is spread; "
            "the tree between them is not published",
        ),
        ClusterOffer(
            name="gcp-a3-mega",
            summary="Google Cloud a3-megagpu-8g: 8 H100 80 GB on NVLink 4, a 200 Gb/s NIC each.",
            values=_on_fat_tree(_nvlink(4), "hdr"),
            device="h100-sxm",
            source="Google Cloud, networking and GPU machines, A3 Mega: 1,800 Gb/s, in another version 1,600, "
            "which are 8 NICs of 200 Gb/s for GPUs, with or without the host's; the tree between them is "
            "not published",
        ),
        ClusterOffer(
            name="h800-8x400",
            summary="DeepSeek-V3's nodes: 8 H800 80 GB on 8 NVLinks, 8 NICs of 400 Gb/s in planes.",
            values=_on_fat_tree(_nvlink(4, links=8), "ndr", rails=True, efficiency=0.8),
            device="h800-sxm",
            source="Zhao et al., Insights into DeepSeek-V3 (ISCA 2025, arXiv 2505.09343), sections 4 and 5.1: 8 "
            "ConnectX-7 of 400 Gb/s, each in a fat-tree by itself; section 2.3.2: 40 of 50 GB/s are effective; "
            "H800 data sheet: 400 GB/s of NVLink",
        ),
        ClusterOffer(
            name="h800-8x100",
            summary="Kwai's nodes of 2024: 8 H800 80 GB on 8 NVLinks, 8 NICs of 100 Gb/s.",
            values=_on_fat_tree(_nvlink(4, links=8), "edr"),
            device="h800-sxm",
            source="Yuan et al. (USENIX ATC 2024), section 6: 8 H800 and 8 NICs of 100 Gb/s a node; H800 data "
            "sheet: 400 GB/s of NVLink",
        ),
        ClusterOffer(
            name="mi300x-8gpu",
            summary="A node of 8 AMD MI300X: an Infinity Fabric link between any two, 8 NICs of 400 Gb/s in "
            "rails.",
            values=_on_fat_tree(_mesh(48), "ndr", rails=True),
            device="mi300x",
            source="AMD ROCm blog, Understanding RCCL Bandwidth and xGMI Performance (2025): a link of 64 GB/s to "
            "each of 7 GPUs, of which about 48 are reached; AMD Instinct MI3XX reference design: NICs in "
            "rails; 400 Gb/s for each GPU as for MI355X, not checked for MI300X",
        ),
        ClusterOffer(
            name="mi355x-8gpu",
            summary="A node of 8 AMD MI355X: an Infinity Fabric link between any two, 8 NICs of 400 Gb/s in "
            "rails.",
            values=_on_fat_tree(_mesh(57.6), "ndr", rails=True),
            device="mi355x",
            source="AMD ROCm documentation, distributed inference with MoRI: 8 MI355X with a Pensando Pollara 400 "
            "each, of 400 Gb/s; MI355X platform data sheet, as others quote it: 7 links of 153.6 GB/s both "
            "ways, 76.8 each; what is reached of each: the share of MI300X's, an assumption",
        ),
        ClusterOffer(
            name="pcie-8gpu",
            summary="A server of 8 A100 PCIe 80 GB behind two PCIe 4 switches, one HDR NIC.",
            values=_on_fat_tree({"name": "pcie", "generation": 4, "gpus_per_switch": 4}, "hdr", nics=1),
            device="a100-pcie",
            source="NVIDIA A100 PCIe 80 GB data sheet: tensor peaks of the SXM4 module at 300 W, 1935 GB/s, "
            "PCIe 4.0; two switches of four GPUs are a common layout of 8-GPU servers",
        ),
    )  # fmt: skip


_SCALE = {"slow": -1, "mid": 0, "fast": 1}
_PAPER = (
    "Barley et al., A Tabular Schedule Abstraction for Communication-Aware Evaluation of Pipeline-Parallel LLM "
    "Training (2026), section IV: 1 PFLOP/s, 34 TB/s, 50 ns; 50 GB/s, 500 ns; tenfold steps of rates and latencies"
)


def _scale(value: int, power: int) -> int:
    return int(value * 10**power) if power >= 0 else int(value // 10**-power)


def _paper(network: str, compute: str) -> ClusterOffer:
    """Return one of the paper's nine systems; a fast one has ten times the rate and a tenth of the latency."""
    from pptrace.plugin import ClusterOffer

    net, cp = _SCALE[network], _SCALE[compute]
    peak = _scale(10**15, cp)
    device: dict[str, Any] = {
        "peak_bf16": peak, "peak_fp16": peak, "memory": 80 * 2**30,
        "memory_bandwidth": _scale(34 * 10**12, cp), "memory_latency": _scale(50, -cp),
        "launch_latency": 0,
        "scale_up_bandwidth": _scale(50 * 10**9, net), "scale_up_latency": _scale(500, -net),
        "scale_up_size": 1,
        "compute_efficiency": 1.0, "attention_efficiency": 1.0,
        "memory_efficiency": 1.0, "network_efficiency": 1.0,
    }  # fmt: skip
    port = {"bandwidth": f"{_scale(50 * 10**9, net)} B/s", "latency": f"{_scale(500, -net)} ns"}
    name = "baseline" if net == cp == 0 else f"{network}-nw-{compute}-cp"
    return ClusterOffer(
        name=name,
        summary=f"A worker per node; {network} network, {compute} compute of the tabular abstraction paper.",
        values={
            "gpus": 1, "nics": 1, "node": {"name": "ideal"}, "fabric": {"name": "hockney", **port},
        },
        device=device,
        source=_PAPER,
    )  # fmt: skip
