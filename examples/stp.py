"""Synergistic tensor and pipeline parallelism beside interleaved 1F1B, as its paper compares them.

The step is stp.yaml; plugins/pptrace-stp/README.md sets what this prints beside the paper's figures.
"""

from typing import Any

import pptrace
from pptrace.plugin import Kind

LAYERS = {"12.1b": 30, "26.3b": 46}
GPUS = 8  # of a node
NODE = {"a800-sxm": "160 GB/s", "h20": "360 GB/s"}  # ranks of one node reach each other over its NVLinks
SPLIT = {"name": "zb-v", "options": {"order": "fixed"}}
ZB_V = {"name": "zb-v", "options": {"order": "fixed", "merge": True}}
A800 = {  # model, tp, pp, sequence: the paper's peaks of 1F1B-I, ZB-V and STP in GB
    ("12.1b", 4, 4, 3072): "41 30 53", ("12.1b", 4, 4, 6144): "41 30 54",
    ("12.1b", 8, 2, 3072): "31 24 43", ("12.1b", 8, 2, 6144): "31 24 43",
    ("26.3b", 4, 8, 3072): "55 38 72", ("26.3b", 4, 8, 6144): "55 38 72",
    ("26.3b", 8, 4, 3072): "43 32 59", ("26.3b", 8, 4, 6144): "43 32 59",
}  # fmt: skip
H20 = {  # tp, pp, sequence: samples/s of 1F1B-I, STP (with offloading at 2, 8, 8192) and ZB-V, peaks as above
    (2, 8, 6144): ((3.77, 3.79, 3.63), "58 42 73"), (4, 4, 6144): ((3.39, 3.44, 3.30), "41 30 54"),
    (8, 2, 6144): ((2.80, 2.89, 2.80), "31 24 43"), (2, 8, 8192): ((2.72, 2.74, 2.61), "76 54 68"),
    (4, 4, 8192): ((2.47, 2.52, 2.41), "53 38 71"), (8, 2, 8192): ((2.06, 2.12, 2.07), "40 31 57"),
}  # fmt: skip
SLOWED = {"compute": 0.828, "communication": 0.896}


def run(
    model: str,
    tp: int,
    pp: int,
    sequence: int,
    count: int,
    schedule: Any,
    device: str = "a800-sxm",
    **more: Any,
) -> pptrace.Run:
    each = (LAYERS[model] + 2) // (2 * pp)
    network = {"name": "hockney", "bandwidth": "25 GB/s", "latency": "5 us"}
    if tp < GPUS:
        network["node"] = {"ranks": GPUS // tp, "bandwidth": NODE[device], "latency": "2 us"}
    return pptrace.simulate(
        "stp.yaml",
        model={"preset": f"qwen2-{model}", "layers_per_stage": [each] * (2 * pp - 1) + [each - 2]},
        parallel={"pp": pp, "tp": tp, "vp": 2},
        batch={"microbatches": count, "micro": max(1, 6144 // sequence), "sequence": sequence},
        device={"preset": device, "network_efficiency": 0.89, "host_bandwidth": "25 GB/s"},
        schedule=schedule,
        network=network,
        **more,
    )


def both(*sizes: Any, **sections: Any) -> list[pptrace.Run]:
    return [run(*sizes, schedule, **sections) for schedule in ("interleaved-1f1b", "stp")]


def gain(one: pptrace.Run, other: pptrace.Run) -> str:
    return f"{100 * (one.metrics.step_ns / other.metrics.step_ns - 1):.1f}%"


def gib(one: pptrace.Run) -> str:
    return f"{one.metrics.memory.peak_bytes.max() / 2**30:.0f}"


def share(one: pptrace.Run) -> str:
    costs = one.prepared.workload
    parts = [part for stage in costs.segments[Kind.F] for part in stage]
    return f"{100 * sum(part.duration_ns for part in parts if not part.is_computation) / costs.f_ns.sum():.1f}%"


def gibs(*runs: pptrace.Run) -> str:
    return " ".join(f"{gib(one):>2}" for one in runs)


print("gains over 1F1B-I; memory of 1F1B-I, ZB-V and STP\n")
print("A800   tp pp  sequence  share   STP at 64, 128, 192 microbatches    ZB-V  split       GiB  paper's GB")
for (model, tp, pp, sequence), gigabytes in A800.items():
    pairs = [both(model, tp, pp, sequence, count) for count in (64, 128, 192)]
    ((one, two), *_), third = pairs, run(model, tp, pp, sequence, 64, ZB_V)
    gains = " ".join(f"{gain(*pair):>6}" for pair in pairs)
    split = run(model, tp, pp, sequence, 64, SPLIT)
    print(f"{model}  {tp:2} {pp:2}  {sequence:8}  {share(two):>5}  {gains}", end="")
    print(f"  {gain(one, third):>18}  {gain(one, split):>5}  {gibs(one, third, two)}    {gigabytes}")

print("\nH20    tp pp  sequence  share     STP  paper    ZB-V  paper       GiB  paper's GB")
for (tp, pp, sequence), (speeds, gigabytes) in H20.items():
    one, two = both("12.1b", tp, pp, sequence, 192, device="h20")
    third = run("12.1b", tp, pp, sequence, 192, ZB_V, device="h20")
    print(f"12.1b  {tp:2} {pp:2}  {sequence:8}  {share(two):>5}  {gain(one, two):>6}", end="")
    print(f"  {100 * (speeds[1] / speeds[0] - 1):4.1f}%  {gain(one, third):>6}", end="")
    print(f"  {100 * (speeds[2] / speeds[0] - 1):4.1f}%  {gibs(one, third, two)}    {gigabytes}")

print("\ncomputation and communication slow each other as in the micro-benchmark: 12.1b, tp 8, pp 2, 6144, 192")
print("faster by", gain(*both("12.1b", 8, 2, 6144, 192, contention=SLOWED)))

print("\noffload  warm-up  steady  GiB of ranks 0 to 3  peak    throughput  (H20, 12.1b, tp 4, pp 4, 6144, 64)")
plain = run("12.1b", 4, 4, 6144, 64, "stp", device="h20")
for shares in ((0, 0), (0.25, 0.5), (0.5, 0.5), (0.5, 1)):
    options = dict(zip(("offload_warm_up", "offload_steady"), shares, strict=True))
    copied = run("12.1b", 4, 4, 6144, 64, {"name": "stp", "options": options}, device="h20")
    peaks = copied.metrics.memory.peak_bytes / 2**30
    less = 100 * (peaks.max() * 2**30 / plain.metrics.memory.peak_bytes.max() - 1)
    print(f"         {shares[0]:7} {shares[1]:7}  {' '.join(f'{one:.1f}' for one in peaks):19}", end="")
    print(f"  {less:5.1f}%  {100 * (plain.metrics.step_ns / copied.metrics.step_ns - 1):5.2f}%")
