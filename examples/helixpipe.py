"""HelixPipe, whose core attention runs on all ranks at once, beside other schedules on long sequences.

Published (arXiv 2507.00394): 26 % faster than the baselines for a 7B model and 128k tokens on 64 H20 GPUs, and an
advantage that grows with the sequence. The authors' code (github.com/code-tunnel/Megatron-LM, branch ``dev``) has
a GPT of GPT-2's vocabulary in fp16 with sequence parallelism. Its scripts run HelixPipe with recomputation of all
but core attention, and 1F1B. A submodule has zero-bubble schedules.
"""

from typing import Any

import pptrace

RANKS, LAYERS, MICROBATCHES = 8, 32, 16
SIZES = {"pp": RANKS, "tp": 8}
MODEL = {
    "preset": "gpt3-175b", "layers": LAYERS, "hidden": 4096, "heads": 32, "ffn": 16384, "precision": "fp16",
}  # fmt: skip
PUBLISHED = {131_072: "26 %"}
ALL_BUT_ATTENTION = {"stages": list(range(0, 2 * LAYERS + 1, 2))}
SCHEDULES: dict[str, dict[str, Any]] = {
    "1f1b": {"schedule": "1f1b"},
    "zb-h1": {"schedule": "zb-h1"},
    "interleaved-1f1b": {"schedule": "interleaved-1f1b", "parallel": {**SIZES, "vp": LAYERS // RANKS}},
    "helixpipe": {"schedule": {"name": "helixpipe", "recompute": ALL_BUT_ATTENTION}},
    "keeps all": {"schedule": "helixpipe"},
}


def simulate(name: str, tokens: int) -> pptrace.Run:
    """Return a step on 64 GPUs with sequences of so many tokens."""
    return pptrace.simulate({
        "model": {**MODEL, "learned_positions": tokens},
        "cluster": "h20-8gpu",
        "parallel": SIZES,
        "batch": {"microbatches": MICROBATCHES, "micro": 1, "sequence": tokens},
        **SCHEDULES[name],
    })  # fmt: skip


print("step, peak memory per GPU (95.6 GiB)")
print("tokens   " + " ".join(f"{name:>18}" for name in SCHEDULES))
gains = []
for tokens in (32_768, 65_536, 131_072):
    runs = {name: simulate(name, tokens).metrics for name in SCHEDULES}
    print(f"{tokens:7,}  ", end="")
    cells = [f"{run.step_ns / 1e9:6.2f} s, {run.memory.fullest_bytes / 2**30:3.0f} GiB" for run in runs.values()]
    print(" ".join(f"{cell:>18}" for cell in cells))
    helix_ns = runs["helixpipe"].step_ns
    gains.append((tokens, *(runs[name].step_ns / helix_ns - 1 for name in list(SCHEDULES)[:3])))
print()
print("gain of helixpipe over      1f1b    zb-h1  interleaved-1f1b  published")
for tokens, *over in gains:
    print(f"{tokens:7,} tokens          {over[0]:+7.1%}  {over[1]:+7.1%}  {over[2]:+16.1%}  ", end="")
    print(f"{PUBLISHED.get(tokens, 'not found'):>9}")
print()
print("The abstract names neither baselines nor sizes. Here the 7B model is that of GPT-3 with 6.7B, 64 GPUs are")
print("8 stages of 8, and 16 microbatches are the fewest of two folds. With 32, 131,072 tokens do not fit.")
print("With --transfer-weight, the authors' messages have attention's input and weights; here queries and keys.")
