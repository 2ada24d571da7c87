"""A step of each family of models: layers of several kinds, experts of several sizes, and wide messages."""

from typing import Any

import pptrace

# Nodes, sizes of groups, and other settings; otherwise sequences of 4096 tokens and full recomputation. 64 GPUs of
# a domain of 72 are used, so that expert-parallel groups of 32 and 64 are inside a domain.
A100, H100 = {"preset": "dgx-a100"}, {"preset": "dgx-h100"}
GB200, GB300 = {"preset": "gb200-nvl72", "gpus": 64}, {"preset": "gb300-nvl72", "gpus": 64}
STEPS: dict[str, tuple[dict[str, Any], dict[str, int], dict[str, Any]]] = {
    "megatron-gpt-1.7b": (A100, {"pp": 1, "dp": 8}, {"sequence": 2048}),
    "megatron-gpt-3.6b": (A100, {"pp": 1, "tp": 2, "dp": 8}, {"sequence": 2048}),
    "megatron-gpt-7.5b": (A100, {"pp": 1, "tp": 4, "dp": 8}, {"sequence": 2048}),
    "megatron-gpt-18b": (A100, {"pp": 1, "tp": 8, "dp": 8}, {"sequence": 2048}),
    "megatron-gpt-22b": (A100, {"pp": 1, "tp": 8, "dp": 8}, {"sequence": 2048}),
    "megatron-gpt-39b": (A100, {"pp": 2, "tp": 8, "dp": 8}, {"sequence": 2048}),
    "megatron-gpt-76b": (A100, {"pp": 4, "vp": 5, "tp": 8, "dp": 8}, {"sequence": 2048}),
    "megatron-gpt-145b": (A100, {"pp": 8, "vp": 2, "tp": 8, "dp": 8}, {"sequence": 2048}),
    "megatron-gpt-175b": (A100, {"pp": 8, "vp": 3, "tp": 8, "dp": 8}, {"sequence": 2048}),
    "megatron-gpt-310b": (A100, {"pp": 16, "vp": 2, "tp": 8, "dp": 4}, {"sequence": 2048}),
    "megatron-gpt-530b": (A100, {"pp": 35, "vp": 3, "tp": 8, "dp": 2}, {"sequence": 2048}),
    "megatron-gpt-1t": (A100, {"pp": 64, "tp": 8, "dp": 2}, {"sequence": 2048}),
    "bloom-176b": (A100, {"pp": 12, "tp": 4, "dp": 8}, {"sequence": 2048}),
    "nemotron4-340b": (H100, {"pp": 12, "vp": 2, "tp": 8, "dp": 4}, {}),
    "llama3-405b": (H100, {"pp": 14, "vp": 9, "tp": 8, "dp": 4}, {"sequence": 8192}),
    "qwen2-26.3b": (H100, {"pp": 4, "tp": 8, "dp": 2}, {}),
    "tab-128": (H100, {"pp": 4, "tp": 8, "dp": 2}, {}),
    "deepseek-v3": (GB200, {"pp": 8, "vp": 2, "ep": 32, "dp": 32}, {}),
    "gpt-oss-20b": (H100, {"pp": 2, "vp": 2, "ep": 8, "dp": 16}, {"recompute": "none"}),
    "gpt-oss-120b": (H100, {"pp": 4, "vp": 3, "ep": 8, "dp": 16}, {}),
    "llama4-scout": (H100, {"pp": 4, "vp": 2, "ep": 8, "dp": 16}, {}),
    "llama4-maverick": (GB200, {"pp": 4, "vp": 2, "ep": 32, "dp": 32}, {}),
    "glm-4.5-air": (H100, {"pp": 4, "vp": 2, "ep": 8, "dp": 16}, {}),
    "glm-4.5": (GB200, {"pp": 4, "vp": 2, "ep": 32, "dp": 32}, {}),
    "glm-5": (GB200, {"pp": 8, "vp": 2, "ep": 32, "dp": 32}, {}),
    "mixtral-8x22b": (H100, {"pp": 4, "vp": 2, "ep": 8, "tp": 2, "dp": 8}, {}),
    "grok-1": (GB200, {"pp": 4, "vp": 2, "ep": 8, "dp": 16}, {}),
    "minimax-m1": (GB200, {"pp": 8, "vp": 2, "ep": 32, "dp": 32}, {}),
    "minimax-m2": (GB200, {"pp": 4, "vp": 2, "ep": 32, "dp": 32}, {}),
    "qwen3-14b": (H100, {"pp": 4, "vp": 2, "tp": 2, "dp": 4}, {}),
    "qwen3-32b": (H100, {"pp": 4, "vp": 2, "tp": 4, "dp": 4}, {}),
    "qwen3-next-80b-a3b": (H100, {"pp": 4, "vp": 2, "ep": 8, "dp": 16}, {}),
    "qwen3.5-27b": (H100, {"pp": 4, "vp": 2, "tp": 2, "dp": 4}, {}),
    "qwen3.5-35b-a3b": (H100, {"pp": 2, "vp": 2, "ep": 8, "dp": 16}, {}),
    "qwen3.5-122b-a10b": (H100, {"pp": 4, "vp": 2, "ep": 8, "dp": 16}, {}),
    "qwen3.5-397b-a17b": (GB200, {"pp": 4, "vp": 3, "ep": 32, "dp": 32}, {}),
    "nemotron-h-8b": (H100, {"pp": 2, "tp": 2, "dp": 4}, {}),
    "nemotron-h-47b": (H100, {"pp": 2, "tp": 8, "dp": 4}, {}),
    "nemotron-h-56b": (H100, {"pp": 2, "tp": 8, "dp": 4}, {}),
    "nemotron-3-super": (GB200, {"pp": 2, "ep": 32, "dp": 32}, {}),
    "nemotron-3-ultra": (GB200, {"pp": 4, "ep": 32, "dp": 32}, {}),
    "nemotron-3.5-lightning": (H100, {"pp": 2, "ep": 8, "dp": 8}, {}),
    "deepseek-v2": (GB200, {"pp": 4, "vp": 2, "ep": 32, "dp": 32}, {}),
    "deepseek-v3.2": (GB200, {"pp": 8, "vp": 2, "ep": 32, "dp": 32}, {"sequence": 32768}),
    "deepseek-v4-flash": (GB200, {"pp": 4, "vp": 2, "ep": 32, "dp": 32}, {}),
    "deepseek-v4-pro": (GB200, {"pp": 8, "vp": 2, "ep": 32, "dp": 32}, {}),
    "kimi-k2": (GB200, {"pp": 8, "vp": 2, "ep": 32, "dp": 32}, {}),
    "kimi-k3": (GB300, {"pp": 8, "vp": 2, "ep": 64, "dp": 64}, {}),
}

MIB, GIB = 2**20, 2**30

print("model                   GPUs          step  tokens/s per GPU    MFU       peak  messages, MiB")
for name, (cluster, sizes, settings) in STEPS.items():
    run = pptrace.simulate(
        model={"preset": name, "recompute": settings.get("recompute", "full")}, cluster=cluster,
        schedule="interleaved-1f1b" if "vp" in sizes else "1f1b",
        microbatches=4 * sizes["pp"], micro=1, sequence=settings.get("sequence", 4096), **sizes,
    )  # fmt: skip
    metrics, gpus = run.metrics, run.prepared.resolved.experiment.parallel.processes
    device = cluster["preset"].removeprefix("dgx-").removesuffix("-nvl72").upper()
    sizes_mib = run.prepared.workload.edge_bytes / MIB
    messages = " to ".join(sorted({f"{sizes_mib.min():.0f}", f"{sizes_mib.max():.0f}"}, key=int))
    row = f"{name:22}  {gpus:3} {device:5}  {metrics.step_ns / 1e9:6.2f} s  {metrics.tokens_per_s / gpus:16,.0f}"
    print(f"{row}  {metrics.mfu:5.1%}  {run.memory.fullest_bytes / GIB:5.0f} GiB  {messages:>13}")

# Wider messages, and the work on their streams: the step with them over the step without. The published runs have
# other sizes (arXiv 2512.24880 and 2603.15031), and that of 6.7% also overlaps the work.
WIDER = (
    ("deepseek-v4-flash", GB200, {"pp": 4, "vp": 2, "ep": 32, "dp": 32}, "residual_streams", 1, 4, "6.7%"),
    ("kimi-linear-48b-a3b", H100, {"pp": 4, "vp": 2, "ep": 8, "dp": 8}, "residual_block", 0, 3, "< 4%"),
)
print()
for name, cluster, sizes, key, without, wide, published in WIDER:
    steps_ns = [
        pptrace.simulate(
            model={"preset": name, "recompute": "full", key: value}, cluster=cluster, schedule="interleaved-1f1b",
            microbatches=16, micro=1, sequence=4096, **sizes,
        ).metrics.step_ns
        for value in (without, wide)
    ]  # fmt: skip
    print(f"{name} with {key} {wide}: {steps_ns[1] / steps_ns[0] - 1:+.1%}, published {published}")

run = pptrace.simulate(
    model={"preset": "nemotron-3-nano", "precision": "mxfp8"}, device="gb300", stack="megatron-bridge-26.08",
    schedule="1f1b", pp=1, ep=8, dp=8, microbatches=16, micro=4, sequence=8192, sets=["costs.cuda_graphs=true"],
)  # fmt: skip
print(f"\nnemotron-3-nano on 8 GB300: {run.metrics.tokens_per_s / 8:,.0f} tokens/s per GPU, published 39,936")
