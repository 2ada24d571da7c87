"""Time of Muon's update beside the figures that its users publish, and with sharded gradients and weights.

NVIDIA (Advancing Emerging Optimizers for Accelerated LLM Training with NVIDIA Megatron, 2026, table 1) measured
Adam and Muon on GB300 in MXFP8 with Megatron-Bridge 26.02. A step with Muon is longer by the ratio of TFLOP/s
without those of Muon: 1051 to 1029 for Kimi K2, 713 to 686 for Qwen3 30B-A3B. Batches are those of
Megatron-Bridge's performance summary, as the source does not state them. plugins/pptrace-models/README.md explains
the output.
"""

from typing import Any

import pptrace

COMMON: dict[str, Any] = {"device": "gb300", "stack": "megatron-bridge-26.02", "sequence": 4096}
MEASURED: dict[str, tuple[float, dict[str, Any]]] = {
    "kimi-k2": (1051 / 1029, {
        "pp": 4, "vp": 4, "dp": 64, "ep": 64, "micro": 2, "global": 4096, "schedule": "interleaved-1f1b",
    }),
    "qwen3-30b-a3b": (713 / 686, {
        "pp": 1, "dp": 8, "ep": 8, "micro": 8, "global": 512, "schedule": "1f1b",
    }),
}  # fmt: skip
RECIPES = {
    "kimi-k2": [
        "model.layout=Et*4|(t*4|)*14tL", "model.recompute=selective", "model.recompute_modules=[mla_up_proj]",
    ],
    "qwen3-30b-a3b": ["costs.cuda_graphs=[moe_router, moe_preprocess]"],
}  # fmt: skip
FSDP = {
    "Adam, ZeRO 3": ["costs.optimizer=adam"],
    "Muon, ZeRO 1": ["costs.zero=1"],
    "Muon, ZeRO 2": ["costs.zero=2"],
    "Muon, ZeRO 3": [],
    "exchange is exposed": ["costs.overlap_muon=false"],
}


def optimizer_share(run: pptrace.Run) -> float:
    """Return the optimizer's share of the critical path."""
    path_ns = run.to_dict()["critical_path"]["by_kind_ns"]
    return float(path_ns.get("OPTIMIZER", 0) / sum(path_ns.values()))


print("longer with Muon  published  simulated  optimizer on the critical path")
for model, (published, sizes) in MEASURED.items():
    sets = ["model.precision=mxfp8", *RECIPES[model]]
    adam, muon = (
        pptrace.simulate(model=model, sets=[*sets, f"costs.optimizer={name}"], **COMMON, **sizes)
        for name in ("adam", "muon")
    )
    longer = muon.metrics.step_ns / adam.metrics.step_ns - 1
    print(f"{model:16}  {published - 1:9.1%}  {longer:9.1%}  {optimizer_share(muon):30.1%}")

print("\nno_pipeline.yaml        step  optimizer  peak memory")
for name, sets in FSDP.items():
    run = pptrace.simulate("no_pipeline.yaml", sets=["costs.optimizer=muon", *sets])
    peak = run.metrics.memory.peak_bytes.max() / 2**30
    print(f"{name:20}  {run.metrics.step_ns / 1e9:4.2f} s  {optimizer_share(run):9.1%}  {peak:7.0f} GiB")
