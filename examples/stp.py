"""Synergistic tensor and pipeline parallelism beside interleaved 1F1B and ZB-V, in the cases of its paper.

The step is stp.yaml; plugins/pptrace-stp/README.md explains what this prints. Published figures are those of
arXiv:2510.27257: tables 4 and 8 (H20), 5 (memory), 6 (throughput) and 7 (MFU), that of activation checkpointing,
and the gains that its text states for multimodal models. Arguments name the parts to print.
"""

import sys
from collections.abc import Iterator
from functools import cache
from statistics import mean
from typing import Any, NamedTuple

import pptrace
from pptrace.plugin import Kind

LAYERS = {"12.1b": 30, "26.3b": 46}
GPUS = 8  # of a node
NODE = {"a800-sxm": "160 GB/s", "h20": "360 GB/s"}  # ranks of one node reach each other over its NVLinks
SPLIT = {"name": "zb-v", "options": {"order": "fixed"}}
ZB_V = {"name": "zb-v", "options": {"order": "fixed", "merge": True}}
SCHEDULES = ("interleaved-1f1b", ZB_V, "stp")
SLOWED = {"compute": 0.828, "communication": 0.896}  # table 11


class Case(NamedTuple):
    model: str
    tp: int
    pp: int
    sequence: int
    micro: int  # the caption of table 5


A800 = {  # samples/s of 1F1B-I, ZB-V and STP by number of microbatches
    Case("12.1b", 4, 4, 3072, 2): {64: (9.52, 9.12, 9.87), 128: (9.63, 9.26, 10.1), 192: (9.66, 9.31, 10.1)},
    Case("12.1b", 8, 2, 3072, 2): {64: (6.57, 6.42, 7.28), 128: (6.60, 6.46, 7.32), 192: (6.60, 6.46, 7.33)},
    Case("12.1b", 4, 4, 6144, 1): {64: (4.51, 4.45, 4.74), 128: (4.57, 4.48, 4.82), 192: (4.58, 4.49, 4.83)},
    Case("12.1b", 8, 2, 6144, 1): {64: (3.11, 3.13, 3.46), 128: (3.13, 3.13, 3.47), 192: (3.11, 3.13, 3.49)},
    Case("26.3b", 4, 8, 2048, 2): {96: (12.3, 12.4, 13.0), 176: (12.8, 12.7, 13.2), 256: (12.7, 12.8, 13.4)},
    Case("26.3b", 8, 4, 2048, 2): {96: (8.60, 8.71, 9.48), 176: (8.67, 8.79, 9.56), 256: (8.68, 8.79, 9.61)},
    Case("26.3b", 4, 8, 4096, 1): {96: (6.16, 6.17, 6.33), 176: (6.17, 6.28, 6.49), 256: (6.28, 6.31, 6.51)},
    Case("26.3b", 8, 4, 4096, 1): {96: (4.23, 4.26, 4.66), 176: (4.24, 4.28, 4.70), 256: (4.25, 4.29, 4.72)},
}
A800_GB = ("41 30 53", "31 24 43", "41 30 54", "31 24 43", "55 38 72", "43 32 59", "55 38 72", "43 32 59")
A800_MFU = (49.13, 35.65, 53.72, 38.82, 45.93, 32.94, 48.95, 35.49)  # of STP, with most microbatches
H20 = {  # samples/s of 1F1B-I, ZB-V and STP (with offloading at 2, 8, 8192), peaks in GB
    Case("12.1b", 2, 8, 6144, 1): ((3.77, 3.63, 3.79), "58 42 73"),
    Case("12.1b", 4, 4, 6144, 1): ((3.39, 3.30, 3.44), "41 30 54"),
    Case("12.1b", 8, 2, 6144, 1): ((2.80, 2.80, 2.89), "31 24 43"),
    Case("12.1b", 2, 8, 8192, 1): ((2.72, 2.61, 2.74), "76 54 68"),
    Case("12.1b", 4, 4, 8192, 1): ((2.47, 2.41, 2.52), "53 38 71"),
    Case("12.1b", 8, 2, 8192, 1): ((2.06, 2.07, 2.12), "40 31 57"),
}
NOT_RECOMPUTED = (4.79, 56.0)  # samples/s and GB of STP on A800, 12.1b, tp 4, pp 4, 6144, 128
RECOMPUTED = {
    ("mlp",): (4.19, 44.7), ("mlp", "full_attn"): (3.94, 41.5), ("mlp", "full_attn", "layernorm"): (3.75, 36.3),
}  # fmt: skip
LAST = {"mlp": "mlp", "full_attn": "attention projections"}  # operations with their last products


class Multimodal(NamedTuple):
    """A language model behind a vision encoder, which is on the first chunk."""

    name: str
    language: Case
    layers: list[int]
    """Layers of the language model in each chunk, without another even division of their number."""
    encoder: dict[str, int]
    images: tuple[int, ...]
    """Numbers of images in a sequence."""
    gain: str


VIT_2048, VIT_4096 = {"layers": 32, "hidden": 2048, "heads": 16}, {"layers": 26, "hidden": 4096, "heads": 16}
EIGHT_TWO, FOUR_FOUR = Case("12.1b", 8, 2, 6144, 1), Case("12.1b", 4, 4, 6144, 1)
MULTIMODAL = (
    Multimodal("14.9b", EIGHT_TWO, [5, 10, 10, 8], VIT_2048, (3, 4, 6), "16.7%"),
    Multimodal("14.9b", FOUR_FOUR, [0, *[5] * 6, 3], VIT_2048, (3, 4, 6), "2 to 4.3%"),
    Multimodal("28.8b", Case("26.3b", 8, 4, 4096, 1), [0, *[6] * 6, 4], VIT_4096, (1, 2, 3), "11.7%"),
)
IMAGE = {"tokens": 1024, "merge": 4}  # assumed: patches, of which a token of the language model has four
THROUGHPUTS = (
    "paper's            simulated          above                STP/1F1B-I     STP/ZB-V       ZB-V/1F1B-I"
)
GROUPS = {"name": "roofline", "segments": True}
VARIANTS: dict[str, dict[str, Any]] = {
    "as in stp.yaml": {},
    "kernels in groups": {"costs": {**GROUPS, "alone": "overlapped"}},
    "kernels in groups, backwards in order": {"costs": GROUPS},
    "messages beside everything": {"p2p": "async"},
    "slowed as in table 11": {"contention": SLOWED},
    "attention to all tokens": {"model": {"causal": False}},
    "slowed, attention to all tokens": {"contention": SLOWED, "model": {"causal": False}},
    "3.1 GB/s between nodes": {"network": {"bandwidth": "3.125 GB/s"}},
    "half of the NVLink": {"device": {"network_efficiency": 0.4}},
}


def run(case: Case, count: int, schedule: Any, gpu: str = "a800-sxm", **sections: Any) -> pptrace.Run:
    each = (LAYERS[case.model] + 2) // (2 * case.pp)
    network: dict[str, Any] = {"name": "hockney", "bandwidth": "25 GB/s", "latency": "5 us"}
    if case.tp < GPUS:
        network["node"] = {"ranks": GPUS // case.tp, "bandwidth": NODE[gpu], "latency": "2 us"}
    layers = [each] * (2 * case.pp - 1) + [each - 2]
    model = {"preset": f"qwen2-{case.model}", "layers_per_stage": layers}
    return pptrace.simulate(
        "stp.yaml",
        model=model | sections.pop("model", {}),
        parallel={"pp": case.pp, "tp": case.tp, "vp": 2},
        batch={"microbatches": count, "micro": case.micro, "sequence": case.sequence},
        device={"preset": gpu, "host_bandwidth": "25 GB/s"} | sections.pop("device", {}),
        schedule=schedule,
        network=network | sections.pop("network", {}),
        **sections,
    )


def samples_per_s(run: pptrace.Run, case: Case, count: int) -> float:
    return count * case.micro / (run.metrics.step_ns / 1e9)


@cache
def throughputs(case: Case, count: int, variant: str = "as in stp.yaml") -> list[float]:
    sections = VARIANTS[variant]
    return [samples_per_s(run(case, count, schedule, **sections), case, count) for schedule in SCHEDULES]


def excess(value: float, other: float) -> float:
    """Return by how many per cent a value is above another."""
    return 100 * (value / other - 1)


def gain(run: pptrace.Run, faster: pptrace.Run) -> str:
    return f"{excess(run.metrics.step_ns, faster.metrics.step_ns):.1f}%"


def gibs(*runs: pptrace.Run) -> str:
    return " ".join(f"{run.metrics.memory.peak_bytes.max() / 2**30:>2.0f}" for run in runs)


def share(run: pptrace.Run) -> str:
    costs = run.prepared.workload
    parts = [part for stage in costs.segments[Kind.F] for part in stage]
    return f"{100 * sum(part.duration_ns for part in parts if not part.is_computation) / costs.f_ns.sum():.1f}%"


def sizes(case: Case) -> str:
    return f"{case.model}  {case.tp:2} {case.pp:2}  {case.sequence:8}"


def three(values: Any) -> str:
    return " ".join(f"{value:5.2f}" for value in values)


def ratios(published: Any, simulated: Any) -> Iterator[str]:
    for above, below in ((2, 0), (2, 1), (1, 0)):
        yield " ".join(f"{excess(values[above], values[below]):5.1f}%" for values in (published, simulated))


def print_throughputs() -> None:
    print(
        "A800: samples/s of 1F1B-I, ZB-V and STP; how far simulated ones are above; gains, paper's and simulated"
    )
    print(f"\n       tp pp  sequence    m  {THROUGHPUTS}")
    above: list[tuple[Case, float]] = []
    for case, counts in A800.items():
        for count, published in counts.items():
            simulated = throughputs(case, count)
            more = [excess(*pair) for pair in zip(simulated, published, strict=True)]
            above += [(case, value) for value in more]
            print(f"{sizes(case)}  {count:3}  {three(published)}  {three(simulated)}", end="")
            print("  " + " ".join(f"{value:5.1f}%" for value in more), *ratios(published, simulated), sep="  ")
    print("\nabove  mean", *(f"{title} {mean(values):.1f}%" for title, values in by_tp(above)), end="  ")
    print(f"least {min(value for _, value in above):.1f}%  most {max(value for _, value in above):.1f}%")


def by_tp(values: list[tuple[Case, float]]) -> Iterator[tuple[str, list[float]]]:
    yield "all", [value for _, value in values]
    for tp in (4, 8):
        yield f"tp {tp}", [value for case, value in values if case.tp == tp]


def print_memory() -> None:
    print("\nA800, most microbatches: MFU of STP as printed, with causal attention counted once, and simulated")
    print("       tp pp  sequence  share  printed  once  simulated  split ZB-V/1F1B-I       GiB  paper's GB")
    for (case, counts), printed, gigabytes in zip(A800.items(), A800_MFU, A800_GB, strict=True):
        count, published = max(counts.items())
        runs = [run(case, count, schedule) for schedule in SCHEDULES]
        split, mfu = run(case, count, SPLIT), 100 * (runs[2].metrics.mfu or 0)
        once = mfu * published[2] / samples_per_s(runs[2], case, count)
        print(f"{sizes(case)}  {share(runs[2]):>5}  {printed:6.1f}% {once:4.1f}%  {mfu:8.1f}%", end="")
        print(f"  {gain(runs[0], split):>17}  {gibs(*runs)}    {gigabytes}")
    eight = run(Case("12.1b", 8, 2, 6144, 1), 64, "stp").prepared.workload
    print(f"a chunk keeps {eight.activation_bytes.max() / 1e9:.1f} GB of a microbatch", end="")
    print(" (12.1b, tp 8, 6144); in the paper 3.6 under ZB-V, 4.3 under STP")


def print_loss() -> None:
    print("\nA800, most microbatches: samples/s with tp 4 over those with tp 8, of 1F1B-I, ZB-V and STP")
    print("       sequence  paper's            simulated")
    for four, eight in zip(*(sorted(case for case in A800 if case.tp == tp) for tp in (4, 8)), strict=True):
        (count, above), (_, below) = (max(A800[case].items()) for case in (four, eight))
        published = [high / low for high, low in zip(above, below, strict=True)]
        simulated = [
            high / low for high, low in zip(throughputs(four, count), throughputs(eight, count), strict=True)
        ]
        print(f"{four.model}  {four.sequence:8}  {three(published)}  {three(simulated)}")


def print_variants() -> None:
    print("\nA800, sequences 6144 and 4096, fewest microbatches: mean of how far simulated samples/s are above;")
    print("points by which gains of STP over 1F1B-I are off")
    print("                                          tp 4    tp 8     all  points")
    for name in VARIANTS:
        above, off = [], []
        for case, (count, published) in (
            (case, min(counts.items())) for case, counts in A800.items() if case.micro == 1
        ):
            simulated = throughputs(case, count, name)
            above += [(case, excess(*pair)) for pair in zip(simulated, published, strict=True)]
            off.append(abs(excess(simulated[2], simulated[0]) - excess(published[2], published[0])))
        everything, *groups = (f"{mean(values):6.1f}%" for _, values in by_tp(above))
        print(f"{name:39}", *groups, everything, f"{mean(off):7.1f}")


def print_recomputation() -> None:
    case = Case("12.1b", 4, 4, 6144, 1)
    print("\nA800, 12.1b, tp 4, pp 4, 6144, 128: STP's throughput and peak with recomputed modules, against none")
    print("                          paper's        simulated      activation unfused  up to the last product")
    for modules, published in RECOMPUTED.items():
        print(f"{' '.join(modules):24}", *changes(published, NOT_RECOMPUTED), sep="  ", end="")
        for unfused in ({}, {"fused_activation": False}):
            again = {"recompute": "selective", "recompute_modules": [*modules]}
            figures = [recomputation(case, model | unfused) for model in (again, {})]
            print("  ", *changes(*figures), sep="  ", end="")
        print(f"    {up_to_the_last_product(case, modules):.1f}%")


def recomputation(case: Case, model: dict[str, Any]) -> tuple[float, float]:
    step = run(case, 128, "stp", model=model)
    return samples_per_s(step, case, 128), float(step.metrics.memory.peak_bytes.max())


def changes(figures: tuple[float, float], plain: tuple[float, float]) -> Iterator[str]:
    return (f"{excess(*pair):5.1f}%" for pair in zip(figures, plain, strict=True))


def up_to_the_last_product(case: Case, modules: tuple[str, ...]) -> float:
    """Return the change of throughput in per cent if recomputed modules end before their last product."""
    kernels = list(run(case, 16, "stp").prepared.workload.kernels())
    plain_ns = sum(row.duration_ns for row in kernels if row.name != "exposed collectives")
    again = run(case, 16, "stp", model={"recompute": "selective", "recompute_modules": [*modules]})
    added_ns = sum(row.duration_ns for row in again.prepared.workload.kernels() if row.part == "computed again")
    for operation in (LAST[module] for module in modules if module in LAST):
        products = [row for row in kernels if (row.kind, row.name) == (Kind.F, operation)]
        added_ns -= sum(row.duration_ns for row in products[1::2])  # the second of two on each stage
    return excess(plain_ns, plain_ns + added_ns)


def print_multimodal() -> None:
    print("\nA800, 192 microbatches, images of 256 tokens in each sequence: samples/s of 1F1B-I, ZB-V and STP")
    print("       tp pp  sequence  images  first/second chunk  simulated          STP/1F1B-I  paper's    GiB")
    for case in MULTIMODAL:
        for images in case.images:
            steps = [multimodal(case, images, schedule) for schedule in SCHEDULES]
            simulated = [samples_per_s(step, case.language, 192) for step in steps]
            first, second, *_ = steps[0].prepared.workload.f_ns
            print(f"{sizes(case.language._replace(model=case.name))}  {images:6}", end="")
            print(f"  {first / second:18.2f}  {three(simulated)}", end="")
            print(f"  {gain(steps[0], steps[2]):>10}  {case.gain:9}  {gibs(*steps)}")


def multimodal(case: Multimodal, images: int, schedule: Any) -> pptrace.Run:
    encoder = {**case.encoder, **IMAGE, "ffn": 4 * case.encoder["hidden"], "items": images}
    layers = {"layers": sum(case.layers), "layers_per_stage": case.layers}
    return run(case.language, 192, schedule, model={**layers, "encoder": encoder})


def print_h20() -> None:
    print("\nH20: as for A800, 192 microbatches")
    print(f"       tp pp  sequence  share  {THROUGHPUTS}         GiB  paper's GB")
    for case, (published, gigabytes) in H20.items():
        runs = [run(case, 192, schedule, "h20") for schedule in SCHEDULES]
        simulated = [samples_per_s(each, case, 192) for each in runs]
        more = " ".join(f"{excess(*pair):5.1f}%" for pair in zip(simulated, published, strict=True))
        print(f"{sizes(case)}  {share(runs[2]):>5}  {three(published)}  {three(simulated)}  {more}", end="  ")
        print(*ratios(published, simulated), f"{gibs(*runs)}    {gigabytes}", sep="  ")


def print_offload() -> None:
    print(
        "\noffload  warm-up  steady  GiB of ranks 0 to 3  peak    throughput  (H20, 12.1b, tp 4, pp 4, 6144, 64)"
    )
    case = Case("12.1b", 4, 4, 6144, 1)
    plain = run(case, 64, "stp", "h20")
    for shares in ((0, 0), (0.25, 0.5), (0.5, 0.5), (0.5, 1)):
        options = dict(zip(("offload_warm_up", "offload_steady"), shares, strict=True))
        copied = run(case, 64, {"name": "stp", "options": options}, "h20")
        peaks = copied.metrics.memory.peak_bytes / 2**30
        less = excess(peaks.max() * 2**30, plain.metrics.memory.peak_bytes.max())
        print(f"         {shares[0]:7} {shares[1]:7}  {' '.join(f'{peak:.1f}' for peak in peaks):19}", end="")
        print(f"  {less:5.1f}%  {excess(plain.metrics.step_ns, copied.metrics.step_ns):5.2f}%")


PARTS = {
    "throughputs": print_throughputs, "memory": print_memory, "loss": print_loss, "variants": print_variants,
    "recomputation": print_recomputation, "multimodal": print_multimodal, "h20": print_h20,
    "offload": print_offload,
}  # fmt: skip
for part in sys.argv[1:] or PARTS:
    PARTS[part]()
