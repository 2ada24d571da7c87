"""Highest model-FLOPs utilisation of ordinary configurations with default settings, by device and precision.

    python benchmarks/bench_plausibility.py [--workers 2]

Models, devices, precisions and parallel sizes form a grid of some 500 pipeline-parallel steps that fit their
devices' memory, all with the default stack. Figures are in percent of the dense BF16 peak. The published ones are
``published_bf16`` and so on of the device presets, which have their sources. Exits with 1 if a step is more than 3
points above the published one. It takes some 15 s of one core.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

from pptrace.search.runner import simulate_many
from pptrace_models.accelerator import Accelerator
from pptrace_models.presets import DEVICES
from pptrace_models.transformer import checked

if TYPE_CHECKING:
    from collections.abc import Iterator

PRECISIONS = {
    "a100-sxm": ("bf16",),
    "a800-sxm": ("bf16",),
    "h100-sxm": ("bf16", "fp8"),
    "h800-sxm": ("bf16",),
    "b200": ("bf16", "mxfp8"),
    "gb200": ("bf16", "fp8", "mxfp8", "nvfp4"),
    "gb300": ("fp8", "mxfp8", "nvfp4"),
}
"""Devices with published steps, and their precisions."""
LAYOUTS = {
    "llama3-8b": [(1, 2, 1, 8, 1), (2, 2, 4, 8, 1), (2, 4, 2, 4, 1), (4, 2, 2, 4, 1)],
    "llama2-7b": [(2, 2, 4, 8, 1)],
    "qwen2-12.1b": [(4, 4, 2, 1, 1), (8, 2, 2, 1, 1)],
    "llama3-70b": [(2, 8, 5, 4, 1), (4, 4, 5, 16, 1), (4, 8, 2, 2, 1), (8, 4, 5, 8, 1), (8, 8, 1, 4, 1)],
    "gpt3-175b": [(4, 8, 6, 8, 1), (8, 8, 3, 4, 1), (8, 16, 1, 4, 1)],
    "llama3-405b": [(8, 16, 1, 4, 1), (4, 16, 4, 8, 1), (8, 9, 7, 8, 1)],
    "mixtral-8x7b": [(1, 4, 8, 8, 8), (2, 4, 1, 8, 4)],
    "qwen3-30b-a3b": [(1, 2, 6, 16, 8), (1, 4, 1, 8, 8)],
    "deepseek-v3": [(1, 16, 1, 16, 16)],
}
"""Tensor, pipeline, chunks, data and expert parallel sizes of each model."""
BATCHES = ((4096, 1), (8192, 1))
"""Tokens in a sequence, and sequences in a microbatch."""
NICS = {"a100-sxm": ("25 GB/s", "20 GB/s"), "a800-sxm": ("25 GB/s", "20 GB/s")}
"""Rates of messages and of reductions, where they are not those of 400 Gb/s NICs."""
MARGIN = 3.0
"""Points by which a step may be above the published ones."""
_MICROBATCHES = 8
"""Microbatches per pipeline rank."""


class Point(NamedTuple):
    """A step of the grid."""

    device: str
    precision: str
    configuration: dict[str, Any]

    @property
    def name(self) -> str:
        """The model with its sizes."""
        sizes = " ".join(f"{name}{size}" for name, size in self.configuration["parallel"].items())
        batch = self.configuration["batch"]
        return f"{self.configuration['model']['preset']} {sizes} mbs{batch['micro']} s{batch['sequence']}"


def grid() -> Iterator[Point]:
    """Yield the points of the grid."""
    for device, precisions in PRECISIONS.items():
        messages, reductions = NICS.get(device, ("50 GB/s", "40 GB/s"))
        for precision, (model, layouts) in product(precisions, LAYOUTS.items()):
            for (tp, pp, vp, dp, ep), (sequence, micro) in product(layouts, BATCHES):
                configuration = {
                    "model": {"preset": model, "precision": precision},
                    "device": device,
                    "parallel": {"tp": tp, "pp": pp, "vp": vp, "dp": dp, "ep": ep},
                    "batch": {"microbatches": _MICROBATCHES * pp, "micro": micro, "sequence": sequence},
                    "schedule": {"name": "interleaved-1f1b" if vp > 1 else "1f1b"},
                    "network": {"name": "hockney", "bandwidth": messages, "latency": "5 us"},
                    "data_parallel": {"bandwidth": reductions},
                }
                yield Point(device, precision, configuration)


def utilization(run: Any) -> dict[str, Any]:
    """Return model FLOP/s per device, and whether the step fits."""
    metrics, parallel = run.metrics, run.prepared.resolved.experiment.parallel
    devices = parallel.tp * parallel.cp * parallel.dp * metrics.ranks
    return {
        "flops": metrics.model_flops * 1e9 / metrics.step_ns / devices,
        "fits": metrics.memory.over_capacity is None,
    }


def main() -> int:
    """Print the highest utilisation per device and precision beside the published one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=0, help="steps that run at once; one per core")
    points = list(grid())
    rows = simulate_many(
        [point.configuration for point in points], utilization, workers=parser.parse_args().workers
    )
    fitting = [(row["flops"], point) for row, point in zip(rows, points, strict=True) if row.get("fits")]
    failed = [point.name for row, point in zip(rows, points, strict=True) if row.get("error")]
    devices = {offer.name: checked(Accelerator, offer.values, "device") for offer in DEVICES}
    print(f"{len(points)} steps, of which {len(fitting)} fit; % of the BF16 peak")
    print(f"{'device':9} {'':6} {'steps':>5} {'highest':>7} {'published':>9}")
    is_plausible = not failed
    for name, precisions in PRECISIONS.items():
        device = devices[name]
        for precision in precisions:
            steps = [item for item in fitting if item[1][:2] == (name, precision)]
            flops, point = max(steps, key=lambda item: item[0])
            published = getattr(device, f"published_{precision}") or 0
            highest, known = (100 * rate / device.peak_bf16 for rate in (flops, published))
            is_plausible &= not known or highest <= known + MARGIN
            text = f"{known:9.1f}" if known else f"{'-':>9}"
            print(f"{name:9} {precision:6} {len(steps):5} {highest:7.1f} {text}  {point.name}")
    for name in failed:
        print(f"cannot run: {name}")
    return 0 if is_plausible else 1


if __name__ == "__main__":
    sys.exit(main())
