"""Presets of devices: dense peaks, one direction of each link, and where the numbers come from."""

from __future__ import annotations

from typing import Any

from pptrace.plugin import DeviceOffer

__all__ = ["DEVICES"]

_TERA = 10**12
_GIGA = 10**9
_GIB = 2**30

_A100 = "NVIDIA A100 80GB SXM datasheet (2021): 312 TFLOP/s BF16 and FP16, 19.5 FP32, 2039 GB/s"
_H100 = (
    "NVIDIA H100 SXM datasheet (2023): 1979 TFLOP/s BF16 and FP16 and 3958 FP8 with sparsity, halved for dense; "
    "67 TFLOP/s FP32"
)
_NO_FP8 = "the architecture has no FP8"
_SHAPES = (
    "what products attain: between the A100 PCIe's measured ones (SimuMax) and published steps; "
    "attention as measured there"
)
_SHAPES_HOPPER = (
    "what products attain: BF16 fitted to published steps (dgxc-benchmarking 25.04), FP8 the best product that "
    "mamf-finder found (ml-engineering); attention: Shah et al., FlashAttention-3 (2024), figure 5"
)
_GB = "memory sizes in GB are read as GiB, as the driver reports them within 1 %"


def _device(name: str, summary: str, *sources: str, **values: Any) -> DeviceOffer:
    return DeviceOffer(name=name, summary=summary, source="; ".join((*sources, _GB)), values=values)


_AMPERE: dict[str, Any] = {
    "multiprocessors": 108,
    "attainable_bf16": 0.80,
    "attention_attainable": 0.59,
    "peak_bf16": 312 * _TERA,
    "peak_fp16": 312 * _TERA,
    "peak_fp32": 19_500 * _GIGA,
    "memory": 80 * _GIB,
    "memory_bandwidth": 2_039 * _GIGA,
}
_HOPPER: dict[str, Any] = {
    "multiprocessors": 132,
    "attainable_bf16": 0.74,
    "attainable_fp8": 0.71,
    "attention_attainable": 0.6,
    "peak_bf16": 989_500 * _GIGA,
    "peak_fp16": 989_500 * _GIGA,
    "peak_fp8": 1_979 * _TERA,
    "peak_fp32": 67 * _TERA,
    "memory": 80 * _GIB,
    "memory_bandwidth": 3_350 * _GIGA,
}

DEVICES = (
    _device(
        "a100-sxm",
        "NVIDIA A100 SXM4 80 GB.",
        _A100,
        _SHAPES,
        _NO_FP8,
        "NVLink 3: 600 GB/s both ways, 300 per direction",
        **_AMPERE,
        scale_up_bandwidth=300 * _GIGA,
    ),
    _device(
        "a800-sxm",
        "NVIDIA A800 SXM4 80 GB: an A100 with fewer NVLinks.",
        "NVIDIA A800 80GB SXM datasheet (2022): compute and memory of the A100",
        _A100,
        _SHAPES,
        _NO_FP8,
        "NVLink 3: 400 GB/s both ways, 200 per direction",
        **_AMPERE,
        scale_up_bandwidth=200 * _GIGA,
    ),
    _device(
        "h100-sxm",
        "NVIDIA H100 SXM5 80 GB.",
        _H100,
        _SHAPES_HOPPER,
        "3.35 TB/s",
        "NVLink 4: 900 GB/s both ways, 450 per direction",
        **_HOPPER,
        scale_up_bandwidth=450 * _GIGA,
    ),
    _device(
        "h800-sxm",
        "NVIDIA H800 SXM5 80 GB: an H100 with fewer NVLinks.",
        "NVIDIA H800 SXM datasheet (2023): tensor peaks and memory of the H100",
        _H100,
        _SHAPES_HOPPER,
        "3.35 TB/s",
        "NVLink 4: 400 GB/s both ways, 200 per direction",
        **_HOPPER,
        scale_up_bandwidth=200 * _GIGA,
    ),
    _device(
        "h200-sxm",
        "NVIDIA H200 SXM 141 GB.",
        "NVIDIA H200 SXM datasheet (2024): tensor peaks of the H100, 141 GB, 4.8 TB/s",
        _SHAPES_HOPPER,
        "NVLink 4: 900 GB/s both ways, 450 per direction",
        **{**_HOPPER, "memory": 141 * _GIB, "memory_bandwidth": 4_800 * _GIGA},
        scale_up_bandwidth=450 * _GIGA,
    ),
    _device(
        "h20",
        "NVIDIA H20 SXM 96 GB.",
        "NVIDIA H20 product brief (2023), as reprinted, no public datasheet: 148 TFLOP/s BF16 and FP16, "
        "296 FP8 (all dense), 44 FP32, 96 GB, 4.0 TB/s",
        "efficiencies after Qi et al., Synergistic Tensor and Pipeline Parallelism (2025): 85 to 92 % MFU on H20",
        "NVLink 4: 900 GB/s both ways, 450 per direction",
        peak_bf16=148 * _TERA,
        peak_fp16=148 * _TERA,
        peak_fp8=296 * _TERA,
        peak_fp32=44 * _TERA,
        memory=96 * _GIB,
        memory_bandwidth=4_000 * _GIGA,
        multiprocessors=78,
        attainable_bf16=0.95,
        attainable_fp8=0.9,
        attention_attainable=0.85,
        compute_efficiency=0.9,
        attention_efficiency=0.8,
        scale_up_bandwidth=450 * _GIGA,
    ),
    _device(
        "b200",
        "NVIDIA B200 180 GB, as in HGX B200.",
        "NVIDIA Blackwell architecture brief (2024), HGX B200: 4.5 PFLOP/s BF16 and FP16 and 9 FP8 with sparsity, "
        "halved for dense; 80 TFLOP/s FP32",
        "DGX B200 datasheet: 1440 GB and 64 TB/s for eight",
        "what products attain: fitted to published steps (SimuMax 1.2), 5 % under its measured large products; "
        "FP8 taken as BF16; attention as measured there",
        "NVLink 5: 1800 GB/s both ways, 900 per direction",
        multiprocessors=148,
        attainable_bf16=0.47,
        attainable_fp8=0.49,
        attention_attainable=0.48,
        peak_bf16=2_250 * _TERA,
        peak_fp16=2_250 * _TERA,
        peak_fp8=4_500 * _TERA,
        peak_fp32=80 * _TERA,
        memory=180 * _GIB,
        memory_bandwidth=8_000 * _GIGA,
        scale_up_bandwidth=900 * _GIGA,
    ),
)
"""Every preset, in the order in which they are listed."""
