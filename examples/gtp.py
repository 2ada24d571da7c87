"""Scaling of generalized tensor parallelism (GTP) beside the figures that Megatron-LM publishes for it.

Its documentation (docs/api-guide/core/generalized_tensor_parallel.md, section 1.7) has a hybrid model of about
280B parameters with GTP 64, EP 64 and EGTP 2 on GB200. Throughput per GPU stays at 93 % or more of that of 128
GPUs, and reserved memory falls. The model's sizes, the sequence length and the number of microbatches are not
published.
"""

from typing import NamedTuple

import pptrace

MICROBATCHES = 4  # assumed
SHARDS = 64


class Step(NamedTuple):
    tokens_per_s: float
    gigabytes: float
    run: pptrace.Run


def step(groups: int, **sets: str) -> Step:
    replicas = SHARDS * groups
    sizes = [f"cluster.nodes={groups}", f"batch.global={MICROBATCHES * replicas}"]
    run = pptrace.simulate("gtp.yaml", dp=replicas, sets=[*sizes, *(f"{key}={sets[key]}" for key in sets)])
    memory = run.metrics.memory
    return Step((run.metrics.tokens_per_s or 0) / replicas, memory.peak_bytes.max() / 1e9, run)


print("                efficiency             GB")
print("  GPUs    published  simulated    published  simulated")
first = None
for groups, efficiency, gigabytes in ((2, "100%", "137"), (12, ">= 93%", "-"), (48, ">= 93%", "104")):
    at = step(groups)
    first = first or at
    simulated = f"{at.tokens_per_s / first.tokens_per_s:.1%}"
    print(f"{groups * SHARDS:6}  {efficiency:>11}  {simulated:>9}  {gigabytes:>11}  {at.gigabytes:9.0f}")
print()
print("128 GPUs                      step       exposed communication      GB")
for name, sets in (
    ("a matrix at a time", {}),
    ("a layer at a time", {"data_parallel.units": "null"}),
    ("groups reduce each time", {"data_parallel.reduce_groups": "each", "costs.outer_sharding": "false"}),
    ("copies of optimizer state", {"costs.outer_sharding": "false"}),
    ("experts are not shared", {"data_parallel.expert_shard": "1"}),
):
    at = step(2, **sets)
    metrics = at.run.metrics
    print(
        f"{name:25}  {metrics.step_ns / 1e9:5.2f} s  {metrics.exposed_ns[0] / 1e6:23,.0f} ms  {at.gigabytes:6.0f}"
    )
print()
print("Exposed communication includes the exchanges of tokens, which are equal in all rows.")
