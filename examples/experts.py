"""Uneven experts: published loads and overlap beside simulated ones, and balanced placements."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pptrace

# Tokens of the fullest expert over the mean, in NVIDIA/Megatron-LM pull request 7488: 8 experts on 4 devices, 2 of
# them for each of 128 tokens. The second figure follows from the construction of the workload, without noise.
WORKLOADS = {
    "W0": (1.000, 1.00), "W1": (3.312, 3.25), "W2": (3.219, 3.25), "W3": (1.281, 1.75), "W4": (1.281, 1.00),
    "W5": (2.156, 2.00), "W6": (3.312, 3.25), "W7": (1.219, 1.00),
}  # fmt: skip
SMALL: dict[str, Any] = {
    "device": "h100-sxm", "schedule": "1f1b", "stack": "ideal", "pp": 1, "dp": 4, "ep": 4, "microbatches": 1,
    "sequence": 32,
}  # fmt: skip

# Share of expert-parallel time that is hidden, in pytorch/torchtitan issue 3434. Exchanges take 477.6 ms with
# equal loads and 982.2 ms with real routing. sigma is fitted to their ratio.
HIDDEN = {"uniform": "86.0, 86.7 %", "lognormal": "68.6, 62.5 %"}


def draw(workload: str) -> float:
    """Return the tokens of the fullest expert in one draw of a workload, relative to the mean."""
    model = {"preset": "mixtral-8x7b", "layers": 1, "expert_load": workload}
    notes = " ".join(pptrace.simulate(model=model, **SMALL).to_dict()["notes"])
    found = re.search(r"fullest expert ([0-9.]+) times", notes)
    return float(found[1]) if found else 1.0


def step(name: str, **load: Any) -> pptrace.Run:
    """Simulate a step whose experts have loads of a distribution."""
    loads = json.dumps({"name": name, "sigma": 0.5, "drift": 0.5, **load})
    return pptrace.simulate("experts.yaml", sets=[f"model.expert_load={loads}"])


print("workload  published  expected  one draw")
for workload, (published, expected) in WORKLOADS.items():
    print(f"{workload:8}  {published:9.3f}  {expected:8.2f}  {draw(workload):8.2f}")

print("\nloads      hidden  published     exchanges")
for name, expected_share in HIDDEN.items():
    exchanges = next(group for group in step(name).metrics.groups if group.name == "expert-parallel")
    total_ns = int(exchanges.total_ns.sum())
    hidden, total_ms = int(exchanges.hidden_ns.sum()) / total_ns, total_ns / 1e6 / 16  # of a microbatch
    print(f"{name:9}  {hidden:6.1%}  {expected_share:12}  {total_ms:6.0f} ms")

# Placements for the loads of the step before, and equal loads as their bound.
print("\nplacement                     step  saves  peak memory")
placements: dict[str, dict[str, Any]] = {
    "consecutive experts": {},
    "balanced": {"placement": "balanced"},
    "1 replica on each device": {"placement": "balanced", "redundant": 32},
    "2 replicas on each device": {"placement": "balanced", "redundant": 64},
}
before_ns = 0
for text, placement in placements.items():
    run = step("lognormal", step=1, **placement)
    step_ns, peak = run.metrics.step_ns, run.memory.fullest_bytes / 2**30
    before_ns = before_ns or step_ns
    print(f"{text:25}  {step_ns / 1e9:5.2f} s  {1 - step_ns / before_ns:5.1%}  {peak:7.1f} GiB")

# A file of loads: traces name it, and their slices of experts have the kind of load of their microbatch.
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "loads.csv"
    tokens = [(microbatch, expert % 4, expert, 4 + 3 * microbatch * (expert == 0))
              for microbatch in range(2) for expert in range(8)]  # fmt: skip
    lines = ["microbatch,source,expert,tokens", *(",".join(map(str, row)) for row in tokens)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    model = {"preset": "mixtral-8x7b", "layers": 1, "expert_load": str(file)}
    loads = pptrace.simulate(model=model, **{**SMALL, "microbatches": 4}).provenance["expert_load"]
print("\nmetadata of a trace")
for key, value in loads.items():
    print(f"{key:13} {value}")
