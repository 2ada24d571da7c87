"""Times of the kernels of published models' layers on this machine's GPU, at its power limit.

    python measure_gpu.py > kernels.csv

The matrix products of a layer, its attention and three memory-bound kernels run one after another, as in a
training step, until the GPU is as warm and as slow as in a long run. Nothing but PyTorch is needed. What Hopper
devices attain (``pptrace_models.presets``) comes from such tables of two H100 and an H200. One is among the
tests of pptrace-models.
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import layer_norm, scaled_dot_product_attention

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP_S = 6.0
ROUNDS = 12
HEADER = ("model", "precision", "attention", "kernel", "m", "n", "k", "us")


class Layer(NamedTuple):
    """Sizes of a layer on one device."""

    tokens: int
    hidden: int
    qkv: int
    """Columns of queries, keys and values together."""
    wide: int
    """Columns of the MLP's first product."""
    narrow: int
    """Rows of the MLP's second product."""
    heads: int
    head_dim: int
    sequence: int


LAYERS = {
    "llama3-8b tp 1": Layer(8192, 4096, 6144, 28672, 14336, 32, 128, 8192),
    "llama3-70b tp 4": Layer(8192, 8192, 2560, 14336, 7168, 16, 128, 8192),
    "llama3.1-405b tp 8": Layer(8192, 16384, 2304, 13312, 6656, 16, 128, 8192),
    "gpt3-175b tp 4": Layer(4096, 12288, 9216, 12288, 12288, 24, 128, 2048),
    "gpt3-175b tp 8": Layer(4096, 12288, 4608, 6144, 6144, 12, 128, 2048),
    "nemotron4-340b tp 8": Layer(4096, 18432, 3072, 9216, 9216, 12, 192, 4096),
    "nemotron4-15b tp 2": Layer(4096, 6144, 4096, 12288, 12288, 24, 128, 4096),
}
MIXES = (
    ("bf16", SDPBackend.CUDNN_ATTENTION, 0.0),
    ("bf16", SDPBackend.FLASH_ATTENTION, 0.0),
    ("bf16", SDPBackend.CUDNN_ATTENTION, 0.1),
    ("fp8", SDPBackend.CUDNN_ATTENTION, 0.0),
)
"""Precision of the products, kernel of attention, and dropout of its scores."""


def numbers(*shape: int) -> torch.Tensor:
    """Return normal random numbers: the power of a product depends on its data."""
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def product(m: int, n: int, k: int, precision: str, *, forward: bool) -> Callable[[], object]:
    """Return a function that computes a product; in FP8, the backward adds in FP32 more often."""
    left, right = numbers(m, k), numbers(n, k)
    if precision == "bf16":
        return partial(torch.mm, left, right.t(), out=numbers(m, n))
    one = torch.ones((), device="cuda")
    left, right = left.to(torch.float8_e4m3fn), right.to(torch.float8_e4m3fn).t()
    return partial(
        torch._scaled_mm, left, right, one, one, out_dtype=torch.bfloat16, use_fast_accum=forward  # noqa: SLF001 - the only name
    )  # fmt: skip


def attention(layer: Layer, backend: SDPBackend, dropout: float) -> tuple[Callable[[], object], ...]:
    """Return functions that compute causal attention and its gradients."""
    shape = (layer.tokens // layer.sequence, layer.sequence, layer.heads, layer.head_dim)
    factors = [numbers(*shape).transpose(1, 2).requires_grad_() for _ in range(3)]

    def forward() -> torch.Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(*factors, dropout_p=dropout, is_causal=True)

    result = forward()
    gradient = torch.randn_like(result)
    return torch.no_grad()(forward), partial(torch.autograd.grad, result, factors, gradient, retain_graph=True)


def kernels_of(
    layer: Layer, precision: str, backend: SDPBackend, dropout: float
) -> list[tuple[str, tuple[int, int, int], Callable[[], object]]]:
    """Return names, sizes and functions of a layer's kernels; attention has heads, sequence and head width."""
    tokens, hidden = layer.tokens, layer.hidden
    found: list[tuple[str, tuple[int, int, int], Callable[[], object]]] = []
    for name, n, k in (
        ("qkv", layer.qkv, hidden), ("projection", hidden, layer.heads * layer.head_dim),
        ("mlp 1", layer.wide, hidden), ("mlp 2", hidden, layer.narrow),
    ):  # fmt: skip
        for kind, sizes in (("F", (tokens, n, k)), ("I", (tokens, k, n)), ("W", (n, k, tokens))):
            found.append((f"{kind} {name}", sizes, product(*sizes, precision, forward=kind == "F")))
    heads = layer.heads * tokens // layer.sequence
    sizes = (heads, layer.sequence, layer.head_dim)
    found += [
        (f"{k} attention", sizes, run) for k, run in zip("FI", attention(layer, backend, dropout), strict=True)
    ]
    first, second, scale = numbers(tokens, hidden), numbers(tokens, hidden), numbers(hidden)
    empty = torch.empty_like(first)
    return [
        *found,
        ("add", (tokens, hidden, 0), partial(torch.add, first, second, out=empty)),
        ("norm", (tokens, hidden, 0), partial(layer_norm, first, (hidden,), scale)),
        ("copy", (tokens, hidden, 0), partial(empty.copy_, first)),
    ]


def measured(runs: list[Callable[[], object]]) -> list[float]:
    """Return the median microseconds of each function, while all run in turn."""
    until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < until:
        for run in runs:
            run()
        torch.cuda.synchronize()
    rounds = []
    for _ in range(ROUNDS):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(runs) + 1)]
        events[0].record()
        for run, event in zip(runs, events[1:], strict=True):
            run()
            event.record()
        rounds.append(events)
    torch.cuda.synchronize()
    times_ms = [[begin.elapsed_time(end) for begin, end in pairwise(events)] for events in rounds]
    return [1e3 * statistics.median(of_kernel) for of_kernel in zip(*times_ms, strict=True)]


def main() -> None:
    """Measure all layers."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(HEADER)
    versions = (torch.__version__, torch.version.cuda, torch.backends.cudnn.version())
    print(torch.cuda.get_device_name(), *versions, file=sys.stderr)
    for model, layer in LAYERS.items():
        for precision, backend, dropout in MIXES:
            if dropout and "gpt3" not in model:
                continue
            kernels = kernels_of(layer, precision, backend, dropout)
            kind = {SDPBackend.FLASH_ATTENTION: "flash-2"}.get(backend, "dropout" if dropout else "fused")
            for (name, sizes, _), us in zip(kernels, measured([run for *_, run in kernels]), strict=True):
                out.writerow((model, precision, kind, name, *sizes, f"{us:.1f}"))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
