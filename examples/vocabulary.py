"""Vocabulary parallelism beside 1F1B, in the cases of its paper's artifact on one node.

The step is vocabulary.yaml; plugins/pptrace-schedules/README.md explains what this prints. Published figures are
those of the artifact of arXiv:2411.05288 (sail-sg/VocabularyParallelism). Arguments name sequences to print.
"""

import sys
from typing import Any

import pptrace

PUBLISHED = {  # MFU in per cent and peak in GB: 1F1B, the same with fewer layers at the head, Vocab-1, Vocab-2
    2048: {
        32_000: ((47.52, 16.01), (47.52, 16.01), (53.10, 16.64), (52.56, 15.87)),
        64_000: ((40.82, 17.74), (49.15, 17.74), (52.74, 17.48), (52.36, 16.64)),
        128_000: ((33.70, 21.00), (44.12, 21.00), (52.22, 18.40), (51.95, 17.56)),
        256_000: ((17.29, 35.56), (38.21, 27.63), (51.73, 19.44), (51.20, 18.85)),
    },
    4096: {
        32_000: ((52.82, 22.23), (52.81, 22.23), (58.52, 24.97), (58.23, 23.39)),
        64_000: ((45.78, 23.98), (53.81, 23.98), (58.22, 24.58), (57.94, 23.14)),
        128_000: ((37.13, 27.22), (49.56, 27.22), (57.87, 26.10), (57.40, 24.56)),
        256_000: ((27.63, 33.86), (42.45, 33.72), (57.31, 27.38), (56.61, 26.25)),
    },
}
EVEN = [4] * 8
MOVED = {32_000: EVEN, 64_000: [4] * 6 + [5, 3], 128_000: [4] * 5 + [5, 5, 2], 256_000: [4, 4, 4, 5, 5, 5, 5, 0]}
LAYERS, WIDTH, COUNT, PEAK = 32, 3072, 128, 8 * 312e12


def printed_flops(sequence: int, vocabulary: int) -> float:
    """Return the FLOPs of a step in the printed MFU, which counts attention to all tokens."""
    share = 1 + sequence / (6 * WIDTH) + vocabulary / (12 * LAYERS * WIDTH)
    return 72 * COUNT * sequence * LAYERS * WIDTH**2 * share


def run(sequence: int, vocabulary: int, layers: list[int], schedule: Any) -> pptrace.Run:
    values = {"batch.sequence": sequence, "model.vocabulary": vocabulary, "model.layers_per_stage": layers}
    sets = [f"{key}={value}" for key, value in values.items()]
    return pptrace.simulate("vocabulary.yaml", sets=sets, schedule=schedule)


def print_sequence(sequence: int) -> None:
    print(f"\n{sequence} tokens: printed and simulated MFU, speed over 1F1B, and peak (paper's GB, simulated GiB)")
    print("vocabulary  schedule        MFU            speed        peak")
    for vocabulary, rows in PUBLISHED[sequence].items():
        schedules = (
            ("1f1b", EVEN, "1f1b"),
            ("fewer layers", MOVED[vocabulary], "1f1b"),
            ("2 barriers", EVEN, {"name": "vocab-1f1b", "options": {"barriers": 2}}),
            ("1 barrier", EVEN, "vocab-1f1b"),
        )
        flops, first = printed_flops(sequence, vocabulary), 0.0
        for (name, layers, schedule), (published, gigabytes) in zip(schedules, rows, strict=True):
            metrics = run(sequence, vocabulary, layers, schedule).metrics
            mfu = 100 * flops / (PEAK * metrics.step_ns / 1e9)
            first = first or mfu
            print(f"{vocabulary:10,}  {name:12}  {published:5.1f}% {mfu:5.1f}%", end="")
            print(f"  {published / rows[0][0]:5.2f} {mfu / first:5.2f}", end="")
            print(f"  {gigabytes:5.1f} {metrics.memory.peak_bytes.max() / 2**30:5.1f}")


for part in sys.argv[1:] or PUBLISHED:
    print_sequence(int(part))
