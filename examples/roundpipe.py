"""RoundPipe beside schedules with stages on fixed ranks: steps of the authors' simulator, and this one's.

Source: github.com/ITcarrot/RoundPipe-artifact, ``pp-simulate/run.sh`` (times in ms, stages) and ``log`` (steps and
bubbles) of commit e44270a, for 8 GPUs and 16 microbatches.
"""

from typing import Any, NamedTuple

import pptrace


class Model(NamedTuple):
    """Times of a layer, of the LM head and of a message, layers of stages, and published steps and bubbles."""

    layer: tuple[float, float]
    head: tuple[float, float]
    message: float
    ranks: list[int]
    """Layers of each rank with one stage per rank."""
    chunks: list[int]
    """Layers of each stage with several stages per rank."""
    forward: list[int]
    """Layers of each forward pass of RoundPipe."""
    backward: list[int]
    """Layers of each of its backward passes after that of the LM head."""
    published: dict[str, tuple[float, float]]


MODELS = {
    "Qwen3-1.7B": Model(
        (7.429, 15.831), (22.0655, 43.707), 1.6, [3, 3, 4, 4, 4, 4, 4, 2], [1] * 18 + [2] * 5 + [0],
        [7] * 4, [3] * 8 + [2] * 2,
        {"1f1b": (2854.7220, 35.1906), "interleaved-1f1b": (2560.8020, 27.7520), "gpipe": (2896.9170, 36.1346),
         "looped-bfs": (2467.2710, 25.0131), "roundpipe": (2286.0170, 19.0676)},
    ),
    "Llama3-8B": Model(
        (18.50370313, 41.20659375), (37.2255, 74.501), 3.2, [4] * 8, [1] * 32, [5] * 4 + [6] * 2, [2] * 16,
        {"1f1b": (9028.1120, 42.0793), "interleaved-1f1b": (7539.2180, 30.6407), "gpipe": (9028.1120, 42.0793),
         "looped-bfs": (7385.6180, 29.1982), "roundpipe": (6100.5450, 14.2839)},
    ),
    "GPT-OSS-20B": Model(
        (21.6445625, 81.780875), (44.2925, 86.264), 2.25, [3] * 8, [1] * 24, [4] + [5] * 4, [1] * 24,
        {"1f1b": (10750.2340, 41.7271), "interleaved-1f1b": (9071.2540, 30.9415), "gpipe": (10750.2340, 41.7271),
         "looped-bfs": (8999.2540, 30.3890), "roundpipe": (7282.8064, 13.9827)},
    ),
    "Qwen3-32B": Model(
        (40.5610625, 91.17429688), (54.928, 108.294), 4, [8] * 8, [1] * 64, [2] * 2 + [3] * 20, [1] * 64,
        {"1f1b": (34370.0936, 34.8841), "interleaved-1f1b": (26375.5690, 15.1473), "gpipe": (34370.0936, 34.8841),
         "looped-bfs": (25927.5690, 13.6811), "roundpipe": (23978.8338, 6.6661)},
    ),
    "Qwen3-235B": Model(
        (43.016, 58.376), (42.444, 43.294), 3.2, [11] + [12] * 6 + [11], [0] + [1] * 94 + [0], [2] * 47, [1] * 94,
        {"1f1b": (39716.4600, 31.2119), "interleaved-1f1b": (29052.8820, 5.9640), "gpipe": (39698.3300, 31.1805),
         "looped-bfs": (28575.7140, 4.3937), "roundpipe": (28250.0320, 3.2915)},
    ),
}  # fmt: skip
"""LoRA is trained for the last one, whose backward has no weight gradients."""


def ns(time_ms: float) -> str:
    """Return a time of the artifact in ns."""
    return f"{round(time_ms * 1e6)} ns"


def simulate(model: Model, name: str) -> pptrace.Run:
    """Return a step; a backward of a layer recomputes its forward."""
    (forward, backward), (head_forward, head_backward) = model.layer, model.head
    schedule: dict[str, Any] = {"name": name}
    if name == "roundpipe":
        # Recomputation is a separate action, and the LM head is a stage of the first backward pass.
        layers, recomputed = sum(model.forward), 0.0
        schedule["options"] = {"forward": model.forward, "backward": [1, *model.backward]}
        forwards, backwards = [forward] * layers + [head_forward], [backward] * layers + [head_backward]
    else:
        stages, recomputed = model.ranks if name in {"1f1b", "gpipe"} else model.chunks, forward
        forwards = [count * forward for count in stages]
        backwards = [count * (backward + recomputed) for count in stages]
        forwards[-1] += head_forward
        backwards[-1] += head_backward
    return pptrace.simulate(
        {
            "schedule": schedule,
            "parallel": {"pp": 8, "vp": 1 if name == "roundpipe" else len(forwards) // 8},
            "batch": {"microbatches": 16},
            "costs": {"name": "table", "forward": [*map(ns, forwards)], "backward": [*map(ns, backwards)]},
            "network": {"name": "hockney", "bandwidth": "1000 GB/s", "latency": ns(model.message)},
        }
    )


print("model        schedule          step published   bubble published")
for model_name, model in MODELS.items():
    for name, (step_ms, bubble) in model.published.items():
        metrics = simulate(model, name).metrics
        print(
            f"{model_name:11}  {name:16} {metrics.step_ns / 1e9:6.3f} s  {step_ms / 1e3:6.3f} s  "
            f"{float(metrics.bubble):6.1%}    {bubble:6.1f}%"
        )
print()
print("The authors' simulator lets the LM head of RoundPipe start before its input has arrived.")
print("Here it waits, which lengthens the steps of GPT-OSS-20B and Qwen3-32B.")
