"""Published steps of Megatron-LM on A100s beside simulated ones, under several ways to issue messages.

    python published_steps.py

``megatron-a100.csv`` holds the steps. "table 5" is that of Korthikanti et al., Reducing Activation Recomputation
in Large Transformer Models (arXiv:2205.05198), whose selective recomputation comes with sequence parallelism.
"SC21" is table 1 of Narayanan et al. (arXiv:2104.04473), with the steps that its TFLOP/s and FLOP formula give,
and sizes of Megatron-LM's scripts ``sc21/run_table_1.sh``. ``gpt-a100.yaml`` is the machine. Nothing is fitted to
a row.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pptrace

__all__ = ["POLICIES", "WITHOUT_OVERLAP", "error", "simulated", "steps"]

HERE = Path(__file__).parent
NIC_GBPS = 200
WITHOUT_OVERLAP = {"policy": "megatron", "options": {"overlap_p2p_comm": False}}
POLICIES: dict[str, Any] = {
    "async": "async",
    "ordered": "ordered",
    "megatron": "megatron",
    "no overlap": WITHOUT_OVERLAP,
    "batched, asap": {"policy": "batched", "receive": "asap"},
}


def steps() -> list[dict[str, str]]:
    """Return the rows of ``megatron-a100.csv``."""
    with (HERE / "megatron-a100.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def simulated(step: dict[str, str], p2p: Any) -> pptrace.Run:
    """Simulate one of the rows under a policy."""
    selective = step["recompute"] == "selective"
    parts = 1 if selective else int(step["tp"])
    sets = [
        *(f"model.{name}={step[name]}" for name in ("layers", "hidden", "heads", "recompute")),
        f"model.ffn={4 * int(step['hidden'])}",
        *(f"parallel.{name}={step[name]}" for name in ("tp", "pp", "vp", "dp")),
        f"parallel.sequence_parallel={str(selective).lower()}",
        *(f"batch.{name}={step[name]}" for name in ("global", "micro")),
        f"network.bandwidth={parts * NIC_GBPS} Gb/s",
    ]
    schedule = "1f1b" if step["vp"] == "1" else "interleaved-1f1b"
    return pptrace.simulate(HERE / "gpt-a100.yaml", schedule=schedule, p2p=p2p, sets=sets)


def error(step: dict[str, str], p2p: Any) -> float:
    """Return by which share a simulated step is longer than the published one."""
    return simulated(step, p2p).metrics.step_ns / 1e9 / float(step["step_s"]) - 1


def main() -> None:
    """Print the error of every row under every policy, and the means of their sizes."""
    print(f"{'':36}{'step':>9}", *(f"{name:>13}" for name in POLICIES))
    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    for step in steps():
        name = f"{step['source']}, {step['model']}, recompute {step['recompute']}"
        print(f"{name:36}{float(step['step_s']):7.2f} s", end="")
        for policy, p2p in POLICIES.items():
            found[policy].append(error(step, p2p))
            print(f" {100 * found[policy][-1]:+11.1f} %", end="")
        print(flush=True)
    means = (sum(map(abs, errors)) / len(errors) for errors in found.values())
    print(f"{'mean of the sizes of errors':45}", *(f"{100 * mean:11.1f} %" for mean in means))


if __name__ == "__main__":
    main()
