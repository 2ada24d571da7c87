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
_SHAPES_BLACKWELL = (
    "what products attain: BF16 fitted to published steps (SimuMax 1.2), 5 % under its measured large products; "
    "assumptions: FP8 and MXFP8 as measured in BF16, NVFP4; attention and rings as SimuMax measured them; "
    "exchanges between NCCL's (SimuMax) and HybridEP's (DeepEP, README_Hybrid-EP)"
)
_SHAPES_SUPERCHIP = (
    "what products attain: fitted to published steps (Megatron-Bridge, dgxc-benchmarking); attention: cuDNN's "
    "training benchmarks (cudnn-frontend, 2026), heads of 128 and of 192 and 128, at 4096 and 8192; exchanges: "
    "HybridEP's kernels on 8 to 36 GB200 (DeepEP, README_Hybrid-EP); rings as on B200"
)
_SHAPES_AMD = (
    "what BF16 products attain: the best one that mamf-finder found (ml-engineering), {} TFLOP/s; "
    "assumptions: the same share in FP8, which is not measured there, and attention's"
)
_NVLINK5 = "NVLink 5: 1800 GB/s both ways, 900 per direction"
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

_BLACKWELL: dict[str, Any] = {
    "multiprocessors": 148,
    "attainable_bf16": 0.47,
    "attainable_fp8": 0.49,
    "attainable_mxfp8": 0.49,
    "attainable_nvfp4": 0.40,
    "attention_attainable": 0.48,
    "peak_bf16": 2_250 * _TERA,
    "peak_fp16": 2_250 * _TERA,
    "peak_fp8": 4_500 * _TERA,
    "peak_fp4": 9_000 * _TERA,
    "peak_fp32": 80 * _TERA,
    "memory": 180 * _GIB,
    "attention_backward": 0.85,
    "memory_bandwidth": 7_700 * _GIGA,
    "scale_up_bandwidth": 900 * _GIGA,
    "network_efficiency": 0.69,
    "exchange_efficiency": 0.64,
}
_SUPERCHIP: dict[str, Any] = {
    "multiprocessors": 152,
    "peak_bf16": 2_500 * _TERA,
    "peak_fp16": 2_500 * _TERA,
    "peak_fp8": 5_000 * _TERA,
    "memory_bandwidth": 8_000 * _GIGA,
    "scale_up_size": 72,
    "attainable_bf16": 0.56,
    "attainable_fp8": 0.52,
    "attainable_mxfp8": 0.55,
    "attainable_nvfp4": 0.47,
    "attention_attainable": 0.66,
    "attention_backward": 0.63,
    "exchange_efficiency": 0.67,
}
"""What a Blackwell device has beside two on a Grace board: a higher power limit and 72 in an NVLink domain."""
_ULTRA: dict[str, Any] = {
    "attainable_bf16": 0.70,
    "attainable_fp8": 0.72,
    "attainable_mxfp8": 0.68,
    "attainable_nvfp4": 0.46,
    "attention_attainable": 0.72,
    "attention_backward": 0.57,
}
"""What Blackwell Ultra has: twice the rate of exponentials, which bound attention's forward, and more power."""

_ULTRA_AIR: dict[str, Any] = {
    name: round(_BLACKWELL[name] * share / _SUPERCHIP[name], 2) for name, share in _ULTRA.items()
}
"""What it has on boards of eight: B200's shares, times what GB300 attains over GB200."""

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
        "efficiencies after Qi et al., Synergistic Tensor and Pipeline Parallelism (2025): 85 to 92 % MFU on H20, "
        "which counts attention four times, so they are too high",
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
        "Blackwell datasheet, HGX B200, as reprinted: 180 GB, 7.7 TB/s (DGX B200's has 64 TB/s for eight)",
        _SHAPES_BLACKWELL,
        "72 PFLOP/s FP4 dense for eight",
        _NVLINK5,
        **_BLACKWELL,
    ),
    _device(
        "b300",
        "NVIDIA B300 288 GB, as in HGX B300.",
        "NVIDIA Blackwell Ultra datasheet (2025), HGX B300, as reprinted: 4.5 PFLOP/s BF16 and FP16, 9 FP8 with "
        "sparsity, halved for dense; 14 FP4 dense; 270 GB; for eight 62 TB/s and 600 TFLOP/s FP32; "
        "multiprocessors as B200's, not printed",
        "what products and attention attain: B200's shares times GB300's over GB200's, not fitted",
        _NVLINK5,
        **{
            **_BLACKWELL, **_ULTRA_AIR, "peak_fp4": 14_000 * _TERA, "peak_fp32": 75 * _TERA,
            "memory": 270 * _GIB, "memory_bandwidth": 7_750 * _GIGA,
        },
    ),
    _device(
        "gb200",
        "NVIDIA B200 186 GB of a GB200 NVL72.",
        "NVIDIA GB200 NVL72 datasheet (2024), for 72: 360 PFLOP/s BF16 and FP16, 720 FP8 and 1440 FP4 with "
        "sparsity, halved for dense; 5.76 PFLOP/s FP32; 13.4 TB of memory, 576 TB/s",
        "152 multiprocessors, as the driver reports",
        _SHAPES_SUPERCHIP,
        _NVLINK5 + " to 72 devices",
        **{**_BLACKWELL, **_SUPERCHIP, "peak_fp4": 10_000 * _TERA, "memory": 186 * _GIB},
    ),
    _device(
        "gb300",
        "NVIDIA B300 279 GB of a GB300 NVL72.",
        "NVIDIA GB300 NVL72 datasheet (2025), for 72: 360 PFLOP/s BF16 and FP16 and 720 FP8 with sparsity, halved "
        "for dense; 1080 FP4 dense; 20 TB of memory, 576 TB/s",
        "152 multiprocessors, as the driver reports",
        _SHAPES_SUPERCHIP,
        _NVLINK5 + " to 72 devices",
        **{**_BLACKWELL, **_SUPERCHIP, **_ULTRA, "peak_fp4": 15_000 * _TERA, "memory": 279 * _GIB},
    ),
    _device(
        "a100-pcie",
        "NVIDIA A100 PCIe 80 GB.",
        "NVIDIA A100 80GB PCIe datasheet (2021): peaks of the SXM4 module, 1935 GB/s; PCIe 4.0 x16",
        "what products attain: fitted to 183 measured ones (SimuMax)",
        _NO_FP8,
        **{**_AMPERE, "memory_bandwidth": 1_935 * _GIGA, "attainable_bf16": 0.78},
        scale_up_bandwidth=31_500 * 10**6,
    ),
    _device(
        "mi300x",
        "AMD Instinct MI300X 192 GB.",
        "AMD Instinct MI300X data sheet (2023): 1307.4 TFLOP/s BF16 and FP16, 2614.9 FP8, 163.4 FP32, 192 GB, "
        "5.3 TB/s, 304 compute units",
        _SHAPES_AMD.format(668.4),
        "Infinity Fabric: seven links of 64 GB/s per direction",
        multiprocessors=304, attainable_bf16=0.51, attainable_fp8=0.51, attention_attainable=0.35,
        peak_bf16=1_307_400 * _GIGA, peak_fp16=1_307_400 * _GIGA, peak_fp8=2_614_900 * _GIGA,
        peak_fp32=163_400 * _GIGA, memory=192 * _GIB, memory_bandwidth=5_300 * _GIGA,
        scale_up_bandwidth=448 * _GIGA,
    ),
    _device(
        "mi355x",
        "AMD Instinct MI355X 288 GB.",
        "AMD Instinct MI355X specifications (2025): 2.5 PFLOP/s BF16 and FP16, 5 FP8, 10.1 FP4; 2400 MHz and "
        "1024 matrix cores make 2516.6 TFLOP/s, 5033.2 and 10066.3; 157.3 FP32, 288 GB, 8 TB/s, 256 compute units",
        _SHAPES_AMD.format(1565),
        "Infinity Fabric: seven links of 76.8 GB/s per direction",
        multiprocessors=256, attainable_bf16=0.62, attainable_fp8=0.62, attainable_mxfp8=0.62,
        attention_attainable=0.35, peak_bf16=2_516_600 * _GIGA, peak_fp16=2_516_600 * _GIGA,
        peak_fp8=5_033_200 * _GIGA, peak_fp4=10_066_300 * _GIGA, peak_fp32=157_300 * _GIGA,
        memory=288 * _GIB, memory_bandwidth=8_000 * _GIGA, scale_up_bandwidth=537_600 * 10**6,
    ),
)  # fmt: skip
"""Every preset, in the order in which they are listed."""
