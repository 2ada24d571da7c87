"""Exchanges of tokens beside computation in Megatron-LM: what two published runs gained, and what ours do.

All times are the cost model's, from combined.yaml; docs/overlap.md says what is published of each run.
"""

import pptrace
from pptrace.plugin import Kind

BIG, SMALL = "Qwen3-235B-A22B, 256 H100", "Qwen3-30B-A3B, 16 H100"
RUNS = {
    BIG: "model.preset=qwen3-235b-a22b model.recompute=selective model.recompute_modules=[layernorm,moe_act] "
    "parallel.tp=2 parallel.sequence_parallel=true parallel.pp=8 parallel.vp=4 parallel.ep=32 parallel.dp=16 "
    "batch.global=2048 p2p.policy=megatron",
    SMALL: "model.preset=qwen3-30b-a3b parallel.pp=1 parallel.ep=16 parallel.dp=16 batch.microbatches=64 "
    "costs.delay_wgrad=false",
}
PUBLISHED = {BIG: (19.7, 17.6), SMALL: (24.7, 21.0)}  # seconds without overlap and with it
SPEEDS = {"not slowed": 1, "1.19 times slower": 1 / 1.189, "1.4 times": 1 / 1.4, "1.8 times": 1 / 1.8}
"""Of computation beside an exchange: 1.19 is the mean and 1.4 the most in arXiv:2507.03114, 1.8 is assumed."""


def simulate(name: str, schedule: str, speed: float = 1) -> pptrace.Run:
    sets = RUNS[name].split()
    return pptrace.simulate("combined.yaml", schedule=schedule, contention={"compute": speed}, sets=sets)


def exchanged(run: pptrace.Run) -> float:
    """Return the seconds in which a rank exchanges tokens, each exchange for as long as alone, on average."""
    costs, schedule = run.prepared.workload, run.prepared.schedule
    parts = [part for kind in (Kind.F, Kind.B) for stage in costs.segments[kind] for part in stage]
    once = sum(part.duration_ns for part in parts if part.name in {"dispatch", "combine"})
    return once * schedule.microbatches / schedule.ranks / 1e9


print("                                      step  less   of which exchanges take, and save")
for name, (before, after) in PUBLISHED.items():
    plain = simulate(name, "interleaved-1f1b" if name == BIG else "1f1b")
    seconds, exchanges = plain.metrics.step_ns / 1e9, exchanged(plain)
    print(f"{name + ', published':36} {before:4.1f} s")
    print(f"  with overlap                       {after:4.1f} s {100 * (1 - after / before):5.1f}%")
    print(f"  simulated                          {seconds:4.1f} s {exchanges:14.1f} s")
    for slower, speed in SPEEDS.items():
        step = simulate(name, "combined-1f1b", speed).metrics.step_ns / 1e9
        print(f"  with overlap, {slower:20} {step:4.1f} s {100 * (1 - step / seconds):5.1f}%", end="")
        print(f" {100 * (seconds - step) / exchanges:21.0f}%")
