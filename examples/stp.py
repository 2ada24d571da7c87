"""Synergistic tensor and pipeline parallelism beside interleaved 1F1B, as its paper compares them.

The step is stp.yaml; plugins/pptrace-stp/README.md sets what this prints beside the paper's figures.
"""

from typing import Any

import pptrace
from pptrace.plugin import Kind

LAYERS = {"12.1b": 30, "26.3b": 46}
GPUS = 8  # of a node
NODE = {"a800-sxm": "160 GB/s", "h20": "360 GB/s"}  # ranks of one node reach each other over its NVLinks
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


print("A800   tp pp  sequence  share   faster at 64, 128, 192 microbatches  GiB of 1F1B-I, STP")
for model, sizes in (("12.1b", ((4, 4), (8, 2))), ("26.3b", ((4, 8), (8, 4)))):
    for tp, pp in sizes:
        for sequence in (3072, 6144):
            pairs = [both(model, tp, pp, sequence, count) for count in (64, 128, 192)]
            gains = " ".join(f"{gain(*pair):>6}" for pair in pairs)
            print(f"{model}  {tp:2} {pp:2}  {sequence:8}  {share(pairs[0][1]):>5}  {gains}", end="")
            print(f"  {gib(pairs[0][0]):>22} {gib(pairs[0][1]):>4}")

print("\nH20    tp pp  sequence  share  faster  GiB of 1F1B-I, STP")
for sequence in (6144, 8192):
    for tp, pp in ((2, 8), (4, 4), (8, 2)):
        pair = both("12.1b", tp, pp, sequence, 192, device="h20")
        print(f"12.1b  {tp:2} {pp:2}  {sequence:8}  {share(pair[1]):>5}  {gain(*pair):>6}", end="")
        print(f"  {gib(pair[0]):>13} {gib(pair[1]):>4}")

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
