"""Gains of BitPipe and PACI in settings of their authors' code, beside the published gains.

BitPipe (arXiv 2410.19367): 1.05 to 1.28 times the throughput of synchronous schedules, on up to 32 GPUs. The
README of github.com/wuhouming/BitPipe has two runs on 8 GPUs, one with 8 and one with 16 microbatches.

PACI (arXiv 2606.07881): the README of github.com/ItayElam/PACI has GPT-2 Medium on 8 stages with sequences of
1,024 tokens. It reaches a perplexity up to 1.69 times faster than the best 1F1B with 128 sequences, and 1.41 times
with 256. This includes what older weights cost in convergence, which a simulation of time does not have. The
authors' code divides layers by measured times, so here the last stage has only the LM head.
"""

from typing import Any

import pptrace

GPT = {"preset": "gpt3-175b", "precision": "fp16"}
BITPIPE: dict[str, dict[str, Any]] = {
    "BERT-64": {
        "model": {
            **GPT, "layers": 64, "hidden": 2560, "heads": 64, "ffn": 10240, "vocabulary": 28996,
            "learned_positions": 512, "causal": False, "flash_attention": False,
        },
        "batch": {"micro": 4, "microbatches": 8, "sequence": 512},
    },
    "GPT-96": {
        "model": {
            **GPT, "layers": 96, "hidden": 3072, "heads": 32, "ffn": 12288, "learned_positions": 1024,
            "flash_attention": False,
        },
        "batch": {"micro": 1, "microbatches": 16, "sequence": 1024},
    },
}  # fmt: skip
PACI = {
    **GPT, "precision": "bf16", "layers": 24, "hidden": 1024, "heads": 16, "ffn": 4096, "learned_positions": 1024,
    "layers_per_stage": [3, 4, 3, 4, 3, 4, 3, 0],
}  # fmt: skip
PUBLISHED = {128: 1.69, 256: 1.41}


def step_ns(schedule: str, model: dict[str, Any], batch: dict[str, int], chunks: int = 1) -> int:
    """Return the time of a step on 8 stages of one A800."""
    sizes = {"pp": 8} if chunks == 1 else {"pp": 8, "vp": chunks}
    settings = {"model": model, "batch": batch, "parallel": sizes, "schedule": schedule, "device": "a800-sxm"}
    return pptrace.simulate(settings).metrics.step_ns


print("BitPipe   microbatches  over 1f1b  over interleaved-1f1b  over chimera  published")
for name, settings in BITPIPE.items():
    bitpipe_ns = step_ns("bitpipe", **settings, chunks=2)
    baselines = {"1f1b": 1, "interleaved-1f1b": 2, "chimera": 1}
    over = [step_ns(schedule, **settings, chunks=chunks) / bitpipe_ns for schedule, chunks in baselines.items()]
    print(f"{name:8}  {settings['batch']['microbatches']:12}  {over[0]:9.2f}  {over[1]:21.2f}", end="")
    print(f"  {over[2]:12.2f}  1.05 to 1.28")
print()
columns = "8    16    32  best of each  published, to a perplexity"
print(f"PACI           over 1f1b with as many microbatches: {columns}")
for sequences, published in PUBLISHED.items():
    times = {
        schedule: [
            step_ns(schedule, PACI, {"micro": sequences // count, "microbatches": count, "sequence": 1024})
            for count in (8, 16, 32)
        ]
        for schedule in ("1f1b", "paci")
    }
    gains = [usual / paci for usual, paci in zip(times["1f1b"], times["paci"], strict=True)]
    columns = "  ".join(f"{gain:.2f}" for gain in gains)
    best = min(times["1f1b"]) / min(times["paci"])
    print(f"{sequences} sequences {'':35} {columns} {best:12.2f}  {published}")
print()
print("Neither abstracts nor READMEs name the GPU, here A800. Those of BitPipe name no baseline and no run of the")
print("range. That of PACI names no numbers of microbatches: its gains are near those of equal numbers, 8 to 16.")
