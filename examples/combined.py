"""Exchanges of tokens beside computation in Megatron-LM: what three published runs gained, and what ours do.

All times are the cost model's, from combined.yaml; docs/overlap.md says what is published of each run.
"""

import pptrace
from pptrace.plugin import Kind, Stream

BIG, SMALL = "Qwen3-235B-A22B, 256 H100", "Qwen3-30B-A3B, 16 H100"
PLAIN = "Qwen3-30B-A3B, all-to-all"
ONE_RANK = (
    "model.preset=qwen3-30b-a3b parallel.pp=1 parallel.ep=16 parallel.dp=16 batch.microbatches=64 "
    "costs.delay_wgrad=false"
)
RUNS = {
    BIG: "model.preset=qwen3-235b-a22b model.recompute=selective model.recompute_modules=[layernorm,moe_act] "
    "parallel.tp=2 parallel.sequence_parallel=true parallel.pp=8 parallel.vp=4 parallel.ep=32 parallel.dp=16 "
    "batch.global=2048 p2p.policy=megatron",
    SMALL: ONE_RANK,
    PLAIN: ONE_RANK + " costs.dispatcher=all-to-all",
}
PUBLISHED = {
    BIG: (19.7, 17.6),
    SMALL: (24.71, 20.99),
    PLAIN: (41.25, 31.31),
}  # seconds without overlap and with it
SLOWED = {
    "nothing slowed": (1, 1),
    "computation 1.4 times": (1.4, 1),
    "both 1.2 times": (1.2, 1.2),
    "both 1.3 times": (1.3, 1.3),
    "both 1.4 times": (1.4, 1.4),
}
"""How many times as long computation takes beside an exchange, and an exchange beside computation."""


def simulate(name: str, schedule: str, computation: float = 1, exchanges: float = 1) -> pptrace.Run:
    contention = {"compute": 1 / computation, "communication": 1 / exchanges}
    return pptrace.simulate("combined.yaml", schedule=schedule, contention=contention, sets=RUNS[name].split())


def exchanged(run: pptrace.Run) -> float:
    """Return the seconds in which a rank exchanges tokens, each exchange for as long as alone, on average."""
    costs, schedule = run.prepared.workload, run.prepared.schedule
    parts = [part for kind in (Kind.F, Kind.B) for stage in costs.segments[kind] for part in stage]
    once = sum(part.duration_ns for part in parts if part.name in {"dispatch", "combine"})
    return once * schedule.microbatches / schedule.ranks / 1e9


def hidden(run: pptrace.Run) -> tuple[float, float]:
    """Return the seconds of a rank's exchanges, as long as they took, and the share beside computation."""
    (one,) = [group for group in run.metrics.groups if group.stream is Stream.EXPERT_PARALLEL]
    return one.total_ns.mean() / 1e9, one.hidden


def products(run: pptrace.Run) -> float:
    """Return what matrix products and attention are of the computation of layers."""
    listed = run.prepared.workload.kernels()
    layers = [one for one in listed if one.part in {"attention", "experts"}]
    return sum(one.duration_ns for one in layers if one.flops) / sum(one.duration_ns for one in layers)


print("                                        step   less   exchanges, beside computation, products")
for name, (before, after) in PUBLISHED.items():
    plain = simulate(name, "interleaved-1f1b" if name == BIG else "1f1b")
    seconds = plain.metrics.step_ns / 1e9
    print(f"{name + ', published':37} {before:5.1f} s")
    print(f"  with overlap                        {after:5.1f} s {100 * (1 - after / before):5.1f}%")
    print(f"  simulated                           {seconds:5.1f} s {exchanged(plain):16.1f} s")
    for slowed, factors in SLOWED.items():
        run = simulate(name, "combined-1f1b", *factors)
        step = run.metrics.step_ns / 1e9
        gain = 100 * (1 - step / seconds)
        took, share = hidden(run)
        print(f"  with overlap, {slowed:21} {step:5.1f} s {gain:5.1f}% {took:9.1f} s", end="")
        print(f" {share:16.0%} {share * products(plain):9.0%}")
