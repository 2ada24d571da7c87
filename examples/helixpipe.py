"""HelixPipe, whose core attention runs on all ranks at once, beside other schedules on long sequences.

Published (arXiv 2507.00394): 26 % faster than the baselines for a 7B model and 128k tokens on 64 H20 GPUs, and an
advantage that grows with the sequence. Times of core attention and of the other parts of a layer are those of the
roofline model for Llama 2 7B.
"""

from typing import Any

import pptrace

RANKS, LAYERS, MICROBATCHES = 8, 32, 16
SIZES: dict[str, Any] = {
    "parallel": {"pp": RANKS, "tp": 8},
    "cluster": "h20-8gpu",
    "batch": {"microbatches": MICROBATCHES, "micro": 1},
}
SCHEDULES = ("1f1b", "zb-h1", "interleaved-1f1b", "helixpipe")
CHUNKS = {"interleaved-1f1b": 4, "helixpipe": 4}


def layer_costs(tokens: int) -> tuple[dict[str, int], dict[str, int], int]:
    """Return a layer's times in ns by pass, the part of core attention in them, and the bytes of its output."""
    sizes = {**SIZES, "batch": {**SIZES["batch"], "sequence": tokens}}
    workload = pptrace.simulate({**sizes, "model": "llama2-7b", "schedule": "zb-h1"}).prepared.workload
    layers = LAYERS // RANKS
    whole = {"F": workload.f_ns, "I": workload.i_ns, "W": workload.w_ns}
    core = dict.fromkeys(whole, 0)
    for kernel in workload.kernels() if workload.kernels else ():
        if kernel.stage == 1 and kernel.name == "attention core":
            core[kernel.kind.name] += kernel.duration_ns // layers
    return {name: int(times[1]) // layers for name, times in whole.items()}, core, int(workload.boundary_bytes[1])


def simulate(name: str, tokens: int) -> pptrace.Run:
    """Return a step without embedding and LM head, which all schedules have on one rank."""
    whole, core, boundary = layer_costs(tokens)
    chunks = CHUNKS.get(name, 1)

    def times(key: str) -> list[str]:
        rest = whole[key] - core[key]
        if name != "helixpipe":
            return [f"{whole[key] * LAYERS // (RANKS * chunks)} ns"] * (RANKS * chunks)
        # Two thirds of the rest are after the core attention: MLP and output projection.
        last = 2 * rest // 3
        return [
            f"{rest - last} ns",
            *([f"{core[key]} ns", f"{rest} ns"] * (LAYERS - 1)),
            f"{core[key]} ns",
            f"{last} ns",
        ]

    # Queries, keys, values and the residual go to the attention; its output and the residual go back.
    messages = [4 * boundary, 2 * boundary] * LAYERS if name == "helixpipe" else [boundary] * (RANKS * chunks - 1)
    costs = {
        "name": "table", "forward": times("F"), "input_gradient": times("I"), "weight_gradient": times("W"),
        "boundary": [f"{size} B" for size in messages],
    }  # fmt: skip
    parallel = {**SIZES["parallel"], "vp": chunks}
    return pptrace.simulate(
        {**SIZES, "parallel": parallel, "schedule": name, "costs": costs, "p2p": {"policy": "async"}}
    )


print("tokens   attention " + " ".join(f"{name:>16}" for name in SCHEDULES) + "   gain over zb-h1, interleaved")
for tokens in (32_768, 65_536, 131_072):
    whole, core, _ = layer_costs(tokens)
    step_ns = {name: simulate(name, tokens).metrics.step_ns for name in SCHEDULES}
    gains = [step_ns[name] / step_ns["helixpipe"] - 1 for name in ("zb-h1", "interleaved-1f1b")]
    print(f"{tokens:7,}  {core['F'] / whole['F']:9.1%}", end=" ")
    print(*(f"{step / 1e9:14.2f} s" for step in step_ns.values()), end="")
    print(f"  {gains[0]:+14.1%}  {gains[1]:+11.1%}")
print()
print("The abstract names neither the baselines nor the number of microbatches, 16 here. The authors' scripts run")
print(
    "1F1B with selective recomputation, and HelixPipe with that of all but attention. Here nothing is recomputed."
)
