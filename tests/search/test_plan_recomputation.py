"""Options of recomputation vary within the kind that has them, and are printed as Megatron-LM takes them."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

import pptrace
from pptrace.plugins.registry import Registry

pytestmark = pytest.mark.needs_plugins


@pytest.mark.parametrize(
    ("own", "vary", "expected"),
    [
        (
            {},
            {"recompute": ["none", "selective"], "model.recompute_modules": [["core_attn"], ["layernorm", "mlp"]]},
            ["--recompute-granularity", "selective", "--recompute-modules", "layernorm", "mlp"],
        ),
        (
            {"recompute": "selective", "recompute_modules": ["mlp"]},
            {"recompute": ["none", "full"], "model.recompute_method": ["block"],
             "model.recompute_num_layers": [1, 2, 4]},
            ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers", "4"],
        ),
    ],
)  # fmt: skip
def test_what_is_computed_again_varies_within_its_kind(
    own: dict[str, Any], vary: dict[str, Any], expected: list[str]
) -> None:
    """What is without options is there once; what keeps least wins where nothing else fits."""
    model = {"layers": 8, "hidden": 512, "heads": 8, "ffn": 2048, "vocabulary": 1000, **own}
    config = {
        "model": model, "device": "h100-sxm", "batch": {"global": 8, "sequence": 1024, "micro": 1},
        "parallel": {"pp": 2}, "network": "ideal",
    }  # fmt: skip
    beside = {"pp": [2], "tp": [1], "schedule": ["1f1b"], "layers": ["even"], "zero": [0], "micro": [1]}
    asked: dict[str, Any] = {"gpus": 2, "robust": False, "executor": "serial", "registry": Registry.load()}

    every = pptrace.plan(config, vary={**beside, **vary}, **asked)
    least = min(one.row["peak_memory_bytes"] for one in every.ranked)
    best = pptrace.plan(config, vary={**beside, **vary}, memory=f"{least // 1024 + 1}KiB", **asked)

    options = max(len(values) for key, values in vary.items() if key != "recompute")
    assert every.counts()["considered"] == len(every.ranked) == 1 + options
    words = shlex.split(best.to_dict()["arguments"]["megatron"]["arguments"])
    assert words[words.index("--recompute-granularity") :] == expected
    run = pptrace.simulate(best.configuration, registry=Registry.load())
    assert run.metrics.step_ns == best.best.row["step_ns"]
    assert int(run.metrics.memory.peak_bytes.max()) == least
