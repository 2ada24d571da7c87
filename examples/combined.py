"""Exchanges of tokens beside computation in Megatron-LM: what two published runs gained, and what ours do.

The layer is combined.yaml; docs/overlap.md says where each figure comes from. None is fitted to a gain.
"""

import pptrace

PARTS = 4  # exchanges of a layer: dispatch and combine, forward and backward
COMMUNICATION = 9.079e-3 / 0.0011  # seconds of a step of the smaller model's: 9.079 ms of them are 0.11 %
PREPARATION = 3.109  # seconds in which its exchanges are prepared
EXCHANGE = (COMMUNICATION + PREPARATION) / (48 * 64 * PARTS)  # of one; the larger model's moves as many bytes

RUNS = [
    # name, ranks, chunks, microbatches, layers, delayed weight gradients, seconds without overlap and with it
    ("Qwen3-30B-A3B, 16 H100", 1, 1, 64, 48, False, 24.7138, 20.9920),
    ("Qwen3-235B-A22B, 256 H100", 8, 4, 128, 96, True, 19.7, 17.6),  # embedding and loss count as a layer each
]
ATTENTION = {48: 0.485, 96: 0.410}  # its share of a layer's operations, the experts' is the rest


def simulate(schedule: str, contention: float, run: tuple) -> pptrace.Run:
    _, pp, vp, microbatches, layers, delayed, before, _ = run
    turns = microbatches * layers // pp + (pp - 1) * layers // (
        pp * vp
    )  # layers that a step takes, bubble included
    forward = (before / turns - PARTS * EXCHANGE) / 3  # each half of a backward takes as long
    attention, experts = ATTENTION[layers] * forward, (1 - ATTENTION[layers]) * forward
    times = {
        "F": (attention, EXCHANGE, experts, EXCHANGE),
        "B": (EXCHANGE, experts, experts, EXCHANGE, attention, attention),
    }
    sets = [
        f"costs.segments.{kind}[{at}].time={s * 1e9:.0f} ns" for kind in times for at, s in enumerate(times[kind])
    ]
    sets += [] if delayed else ["costs.segments.B[3].needs=[2]", "costs.segments.B[5].result=true"]
    return pptrace.simulate(
        "combined.yaml",
        schedule=schedule,
        parallel={"pp": pp, "vp": vp},
        batch={"microbatches": microbatches},
        contention={"compute": contention},
        sets=[*sets, f"costs.slices={layers}"],
    )


print("                           published                simulated                nothing slowed")
for run in RUNS:
    name, pp, *_, before, after = run
    plain = simulate("interleaved-1f1b" if pp > 1 else "1f1b", 1, run).metrics.step_ns / 1e9
    steps = [simulate("combined-1f1b", rate, run).metrics.step_ns / 1e9 for rate in (0.366, 1)]
    gains = [
        f"{100 * (1 - new / old):4.1f}%" for old, new in ((before, after), (plain, steps[0]), (plain, steps[1]))
    ]
    print(f"{name:25}  {before:4.1f} to {after:4.1f} s, {gains[0]}", end="")
    print(f"   {plain:4.1f} to {steps[0]:4.1f} s, {gains[1]}   to {steps[1]:4.1f} s, {gains[2]}")
    if pp == 1:
        total = COMMUNICATION + PREPARATION
        hidden = (plain - steps[0]) / total
print(f"\nexchanges of the first: {total:.1f} s; computed meanwhile what takes {100 * hidden:.1f}% of that alone")
