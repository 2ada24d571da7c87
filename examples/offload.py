"""Activations on the host, forwards computed again: what both do to memory and step, beside published figures.

The step is offload.yaml; docs/memory.md sets what this prints beside the papers' figures.
"""

from typing import Any

import pptrace

GIB = 2**30
PIPEOFFLOAD = {  # hidden width: slowdowns of a full offload in %, for 4096, 8192, 16384 and 32768 tokens
    4096: (31.1, 20.0, 6.2, -7.4),
    8192: (1.0, 0.8, 0.8, 0.1),
}
KWAI = {  # share of the activations that is copied: bytes
    0.3: 72_762_730_496, 0.4: 66_951_784_960, 0.5: 61_136_119_808, 0.6: 55_733_856_256,
    0.7: 50_331_592_704, 0.8: 45_824_813_056, 0.9: 39_527_328_256, 1.0: 34_491_172_352,
}  # fmt: skip
LLAMA_65B = {"layers": 80, "hidden": 8192, "heads": 64, "ffn": 22016, "vocabulary": 32004}
LLAMA_65B["fused_activation"] = False  # their program computes F.silu(x[0]) * x[1]


def peaks(run: pptrace.Run) -> str:
    return " ".join(f"{one / GIB:g}" for one in run.metrics.memory.peak_activation_bytes)


def plain(**modifiers: Any) -> pptrace.Run:
    return pptrace.simulate("offload.yaml", schedule={"name": "1f1b", **modifiers})


FLAT = {
    "peak_bf16": "220 TFLOP/s", "compute_efficiency": 1, "attention_efficiency": 1, "memory": "80 GiB",
    "memory_bandwidth": "1000 TB/s", "memory_efficiency": 1, "memory_latency": "0 s",
    "scale_up_bandwidth": "300 GB/s",
}  # fmt: skip
"""A GPU that computes at PipeOffload's rate, whatever the shape."""
A100 = {"preset": "a100-sxm"}


GROUPS = 8
"""Groups of queries in all of PipeOffload's models, which share keys and values."""


def gpt(
    hidden: int, sequence: int, device: dict[str, Any], *, rate: float = 15, causal: bool = False, **modifiers: Any
) -> pptrace.Run:
    """Return a step whose copies go at ``rate`` GB/s each way; attention that is ``causal`` computes half."""
    heads = hidden // 128
    return pptrace.simulate(
        schedule={"name": "1f1b", **modifiers},
        model={"layers": 32, "hidden": hidden, "heads": heads, "kv_heads": heads if device is FLAT else GROUPS,
               "ffn": 4 * hidden, "gated": False, "vocabulary": 8, "causal": causal},
        parallel={"pp": 8},
        batch={"microbatches": 32, "sequence": sequence},
        device={**device, "host_bandwidth": f"{rate} GB/s"}, stack="ideal",
        costs={"name": "roofline", "reserved": "0 B", **({"kernels": "shapes"} if device is A100 else {})},
    )  # fmt: skip


def offload(hidden: int, device: dict[str, Any]) -> dict[str, Any]:
    """Return what is copied: all but 12 bytes per token and width of a layer, which are cheap to compute again."""
    saved = 0 if device is FLAT else 4 * (1 - GROUPS * 128 / hidden)  # of keys and values
    return {"ratio": (20 - saved) / (32 - saved), "stream": "pair", "alone": 0.7}


def by_shapes(hidden: int, sequence: int) -> float:
    """Return at how many TFLOP/s an A100 computes layers by their shapes, all of attention counted."""
    work = gpt(hidden, sequence, A100, causal=True).prepared.workload
    counted = 12 * sequence * hidden**2 * (5 + GROUPS * 128 / hidden + sequence / hidden)
    return counted * 4 / (work.f_ns[1] + work.b_ns[1]) / 1e3


def kwai(ratio: float) -> pptrace.Run:
    return pptrace.simulate(
        schedule={"name": "interleaved-1f1b", "offload": {"ratio": ratio, "ahead": 1, "behind": 1, "gap": 0}},
        model=LLAMA_65B,
        parallel={"pp": 8, "tp": 2, "cp": 2, "dp": 8, "vp": 5, "sequence_parallel": True},
        batch={"global": 256, "sequence": 8192},
        device={"preset": "h800-sxm", "host_bandwidth": "50 GB/s"},
        stack="ideal",
        costs={"zero": 1, "reserved": "0 B"},
    )


print("1F1B, activations of 1 GiB, copies of half a forward   step    GiB of ranks 0 to 7")
for title, modifiers in {
    "nothing copied": {},
    "rank 0's, back at once": {"offload": {"stages": [0], "ahead": 999}},
    "rank 0's, 2 computations ahead": {"offload": {"stages": [0], "ahead": 2}},
    "rank 0's, 1 computation ahead": {"offload": {"stages": [0], "ahead": 1}},
    "all, as late as there is time": {"offload": {}},
    "half of all": {"offload": {"ratio": 0.5}},
    "all, two ranks on a shared switch": {"offload": {"stream": "pair"}},
    "all computed again": {"recompute": {}},
    "all computed again, early": {"recompute": {"early": True}},
}.items():
    run = plain(**modifiers)
    print(f"{title:52}  {run.metrics.step_ns / 1e6:4.0f} ms  {peaks(run)}")

shapes, theirs = by_shapes(5120, 4096), 0.57 * 312 * (32 + 7) / 32
like = 15 * shapes / theirs
print(f"\nPipeOffload's 10.5B, 4096 tokens: {shapes:.0f} TFLOP/s by shapes, {theirs:.0f} in its 1F1B")
print(f"so 15 GB/s beside its computation is {like:.1f} GB/s beside one by shapes")
print("\nPipeOffload   tokens  slower, paper   220 TFLOP/s     k     its A100     k   rank 0: GiB, copied, of")
for hidden, measured in PIPEOFFLOAD.items():
    for sequence, paper in zip((4096, 8192, 16384, 32768), measured, strict=True):
        print(f"h = {hidden:5}   {sequence:6} {paper:13.1f}%", end="")
        for device, width, rate in ((FLAT, 12, 15), (A100, 10, like)):
            copied = offload(hidden, device)
            before, after = (
                gpt(hidden, sequence, device, rate=rate, causal=device is A100, **one)
                for one in ({}, {"offload": copied})
            )
            costs = before.prepared.workload
            copies = copied["ratio"] * (costs.offload_ns[1] + costs.reload_ns[1])
            k = copies / (costs.f_ns[1] + costs.b_ns[1])
            slower = 100 * (after.metrics.step_ns / before.metrics.step_ns - 1)
            print(f"  {slower:{width}.1f}%  {k:4.2f}", end="")
        held = [one.metrics.memory.peak_activation_bytes[0] / GIB for one in (after, before)]
        print(f"  {held[0]:14.1f} {held[1]:6.1f}")

print("\nAs an A100, h = 4096     all of attention            below the diagonal")
print("tokens               4096   8192  16384            4096   8192  16384")
print(
    "paper             "
    + "      ".join("".join(f"{one:6.1f}%" for one in PIPEOFFLOAD[4096][:3]) for _ in range(2))
)
for rate in (15, 16, like, 17, 18, 20):
    print(f"{rate:4.3g} GB/s         ", end="")
    for causal in (False, True):
        for sequence in (4096, 8192, 16384):
            before, after = (
                gpt(4096, sequence, A100, rate=rate, causal=causal, **one)
                for one in ({}, {"offload": offload(4096, A100)})
            )
            print(f"{100 * (after.metrics.step_ns / before.metrics.step_ns - 1):6.1f}%", end="")
        print("      " if not causal else "\n", end="")

print("\nLlama 65B, tp 2, cp 2, pp 8, vp 5, dp 8, 8192 tokens: GiB on the fullest rank")
print("copied  simulated  measured")
for ratio, measured in KWAI.items():
    peak = int(kwai(ratio).metrics.memory.peak_bytes.max())
    print(f"{ratio:5.0%}  {peak / GIB:10.1f}  {measured / GIB:8.1f}  {peak / measured - 1:+6.1%}")
