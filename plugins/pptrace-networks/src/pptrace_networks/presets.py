"""Presets of clusters: one node, its fabric and its device, and where the numbers come from."""

from __future__ import annotations

from typing import Any

from pptrace.plugin import ClusterOffer

__all__ = ["CLUSTERS"]

_FAT_TREE = "infiniband-fat-tree"

_MACHINES = (
    ClusterOffer(
        name="dgx-a100",
        summary="NVIDIA DGX A100: 8 A100 80 GB on NVLink 3, 8 HDR InfiniBand NICs in rails.",
        values={
            "gpus": 8, "nics": 8, "node": {"name": "nvlink", "generation": 3},
            "fabric": {"name": _FAT_TREE, "generation": "hdr", "rails": True},
        },
        device="a100-sxm",
        source="NVIDIA DGX A100 user guide: 8 single-port ConnectX-6 200 Gb/s for clustering, 12 NVLinks per GPU",
    ),
    ClusterOffer(
        name="dgx-h100",
        summary="NVIDIA DGX H100: 8 H100 80 GB on NVLink 4, 8 NDR InfiniBand NICs in rails.",
        values={
            "gpus": 8, "nics": 8, "node": {"name": "nvlink", "generation": 4},
            "fabric": {"name": _FAT_TREE, "generation": "ndr", "rails": True},
        },
        device="h100-sxm",
        source="NVIDIA DGX H100 user guide: 8 single-port ConnectX-7 400 Gb/s, 18 NVLinks per GPU; "
        "DGX SuperPOD H100 reference architecture: rail-optimised fat-tree",
    ),
    ClusterOffer(
        name="gb200-nvl72",
        summary="NVIDIA GB200 NVL72: 72 B200 in one NVLink 5 domain, a 400 Gb/s NIC each.",
        values={
            "gpus": 72, "nics": 72, "node": {"name": "nvlink", "generation": 5},
            "fabric": {"name": _FAT_TREE, "generation": "ndr"},
        },
        device="b200",
        source="NVIDIA GB200 NVL72 data sheet: 72 GPUs, 130 TB/s of NVLink; 18 trays of 4 ConnectX-7 400 Gb/s",
    ),
    ClusterOffer(
        name="pcie-8gpu",
        summary="A server of 8 A100 PCIe 80 GB behind two PCIe 4 switches, one HDR NIC.",
        values={
            "gpus": 8, "nics": 1, "node": {"name": "pcie", "generation": 4, "gpus_per_switch": 4},
            "fabric": {"name": _FAT_TREE, "generation": "hdr"},
        },
        device={
            "preset": "a100-sxm",
            "memory_bandwidth": 1_935_000_000_000,
            "scale_up_bandwidth": 31_500_000_000,
        },
        source="NVIDIA A100 PCIe 80 GB data sheet: tensor peaks of the SXM4 module at 300 W, 1935 GB/s, PCIe 4.0; "
        "two switches of four GPUs are a common layout of 8-GPU servers",
    ),
)  # fmt: skip

_SCALE = {"slow": -1, "mid": 0, "fast": 1}
_PAPER = (
    "Barley et al., A Tabular Schedule Abstraction for Communication-Aware Evaluation of Pipeline-Parallel LLM "
    "Training (2026), section IV: 1 PFLOP/s, 34 TB/s, 50 ns; 50 GB/s, 500 ns; tenfold steps of rates and latencies"
)


def _scaled(value: int, power: int) -> int:
    return int(value * 10**power) if power >= 0 else int(value // 10**-power)


def _paper(network: str, compute: str) -> ClusterOffer:
    """Return one of the paper's nine systems; a fast one has ten times the rate and a tenth of the latency."""
    net, cp = _SCALE[network], _SCALE[compute]
    peak = _scaled(10**15, cp)
    device: dict[str, Any] = {
        "peak_bf16": peak, "peak_fp16": peak, "memory": 80 * 2**30,
        "memory_bandwidth": _scaled(34 * 10**12, cp), "memory_latency": _scaled(50, -cp),
        "launch_latency": 0,
        "scale_up_bandwidth": _scaled(50 * 10**9, net), "scale_up_latency": _scaled(500, -net),
        "scale_up_size": 1,
        "compute_efficiency": 1.0, "attention_efficiency": 1.0,
        "memory_efficiency": 1.0, "network_efficiency": 1.0,
    }  # fmt: skip
    port = {"bandwidth": f"{_scaled(50 * 10**9, net)} B/s", "latency": f"{_scaled(500, -net)} ns"}
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


CLUSTERS = (*_MACHINES, *(_paper(network, compute) for network in _SCALE for compute in _SCALE))
"""Every preset, in the order in which they are listed."""
