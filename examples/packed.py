"""Packed sequences: the published slowdown of a job with unequal documents, and what balanced replicas save.

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
