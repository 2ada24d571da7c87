"""Packed sequences: the published slowdown by unequal documents, and what balance and dynamic groups save.

ByteDance published traces of a job with 32 replicas of two pipeline ranks (arXiv 2505.05713, job SE). Its steps
take 1.537 times as long as steps in which each computation takes the mean time of its kind. The distribution of
lengths in packed.yaml is fitted to the times of its microbatches, not to this figure. Each seed is a step.
"""

from statistics import mean
from typing import Any

import numpy as np

import pptrace

PUBLISHED = 1.537
SEEDS = {"none": range(1, 4), "attention": range(1, 2)}


def slowdown(seed: int, balance: str) -> float:
    """Return a step's time relative to the step in which each computation takes the mean of its kind."""
    sets = [f"batch.documents.seed={seed}", f"batch.documents.balance={balance}"]
    run = pptrace.simulate("packed.yaml", sets=sets)
    replicas: Any = run.prepared.differing
    share = np.bincount(replicas.classes.ravel()) / replicas.classes.size  # of microbatches, by their costs
    costs = (replicas.costs, *replicas.costs.classes)
    forward, backward = (
        round(sum(part * column.mean() for part, column in zip(share, columns, strict=True)))
        for columns in ([each.f_ns for each in costs], [each.b_ns for each in costs])
    )
    times = {"name": "table", "forward": f"{forward} ns", "backward": f"{backward} ns"}
    batch = {"microbatches": run.prepared.schedule.microbatches}
    ideal = pptrace.simulate({"parallel": {"pp": 2}, "batch": batch, "schedule": "1f1b", "costs": times})
    return run.metrics.step_ns / ideal.metrics.step_ns


arrival, balanced = ([slowdown(seed, balance) for seed in seeds] for balance, seeds in SEEDS.items())
print("slowdown                      published  simulated  difference  single steps")
for name, published, values in (
    ("in order of arrival", PUBLISHED, arrival),
    ("balanced by attention", None, balanced),
):
    cells = f"{published:9}  {mean(values):9.3f}  {mean(values) / published - 1:+10.1%}" if published else (
        f"{'-':>9}  {mean(values):9.3f}  {'-':>10}"
    )  # fmt: skip
    print(f"{name:28}  {cells}  {min(values):.3f} to {max(values):.3f}")
print()
print("Balanced replicas keep the slower last stage, which has the output layer and the loss.")


LENGTHS = {
    "median": 2237,
    "sigma": 1.1,
}  # of the example of mock lengths in Megatron-LM's gpt_dataset.py: mean 4096
LONG_TAIL = {"median": 1500, "sigma": 1.5}  # assumed
NARROW = {"hidden": 1024, "heads": 8, "kv_heads": 8, "ffn": 4096}
LLAMA_13B = {"layers": 40, "hidden": 5120, "heads": 40, "kv_heads": 40, "ffn": 13824, "recompute": "full"}
TWO_GPUS = {"cluster": {"preset": "dgx-h100", "gpus": 2, "nodes": 1}, "parallel": {"pp": 1, "cp": 2}}
NODES = {"cluster": {"preset": "dgx-h100", "nodes": 8}, "parallel": {"pp": 8, "cp": 8}}


def speed_up(sequence: int, count: int, lengths: dict[str, float], **sections: Any) -> float:
    """Return the step time with Megatron-LM's dp_balanced over that with its default_dynamic_cp."""
    fixed, dynamic = (
        pptrace.simulate({
            **sections, "schedule": "1f1b",
            "batch": {"sequence": sequence, "documents": {"count": count, "lognormal": lengths, scheduler: True}},
        }).metrics.step_ns
        for scheduler in ("whole", "dynamic_cp")
    )  # fmt: skip
    return fixed / dynamic


print("\ncontext parallelism by document         published  simulated")
for name, published, sections in (
    ("2 GPUs, 4 layers of Llama 3 8B", "1.11", {**TWO_GPUS, "model": {"preset": "llama3-8b", "layers": 4}}),
    ("2 GPUs, 4 narrow layers, slow host", "1.11", {
        **TWO_GPUS, "model": {"preset": "llama3-8b", "layers": 4, **NARROW}, "costs": {"host_launch": "20 us"},
    }),
):  # fmt: skip
    print(f"{name:38}  {published:>9}  {speed_up(8192, 16, LENGTHS, **sections):9.2f}")
model = {"preset": "llama2-7b", **LLAMA_13B}
gain = speed_up(65536, 512, LONG_TAIL, model=model, **NODES)
print(f"{'64 GPUs, Llama 2 13B, pp 8, cp 8':38}  {'to 1.48':>9}  {gain:9.2f}")
print()
print(
    "1.11 is from NVIDIA/Megatron-LM pull request 5123: 236.6 ms over 213.9 ms. Its author calls this run a test"
)
print("of the code, and model and lengths are not published. On two GPUs, a group of one GPU often waits for the")
print("other one; the gain needs steps that the host limits. 1.48 is the most of NVIDIA's article on the method.")
