"""Small files of every format: each function writes a run into a folder, and returns the file to change."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["job", "kernel_table", "lengths", "of_ours", "of_profiler", "of_text", "overlapped", "rows", "spans"]

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "plugins/pptrace-profilers/tests"))
_SIZES = "b=1, m=4096, k=4096, n=4096, layout=TN, accumulate=False, out_dtype=bf16"
_EXPERTS = "ng=8, M=4096, N=4096, K=4096, dtype=bf16, stage=fwd"


def of_profiler(name: str) -> Callable[[Path], Path]:
    """Return what writes the profilers' small pipeline in one of their formats."""

    def write(folder: Path) -> Path:
        from conftest import Pipeline

        pipeline = Pipeline()
        if name == "nsys":
            return pipeline.nsys(folder / "run.sqlite")
        if name == "chrome":
            pipeline.rules(folder)
            return pipeline.chrome(folder)
        return getattr(pipeline, name)(folder)[-1]

    return write


def of_ours(suffix: str) -> Callable[[Path], Path]:
    """Return what writes a simulated step in one of our own formats."""

    def write(folder: Path) -> Path:
        import pptrace

        network = {"name": "hockney", "bandwidth": "50 GB/s"}
        run = pptrace.simulate(schedule="1f1b", pp=2, microbatches=3, p2p="ordered", network=network)
        return run.save(folder / f"step.{suffix}")[0]

    return write


def of_text(name: str, text: str) -> Callable[[Path], Path]:
    """Return what writes a text."""

    def write(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return write


def spans(folder: Path) -> Path:
    """Write OpenTelemetry's spans of two ranks."""
    import otel_lines

    from conftest import Pipeline

    files = [folder / f"rank{rank}.jsonl" for rank in (0, 1)]
    for rank, file in enumerate(files):
        file.write_text("\n".join(otel_lines.spans(Pipeline(), rank, "lens")) + "\n")
    return files[-1]


def job(folder: Path) -> Path:
    """Write a job with replicas as parquet."""
    from straggler_parquet import operations, write_job

    return write_job(folder / "job.parquet", operations(lambda *_: 0.01))


def rows(folder: Path) -> Path:
    """Write rows of measured steps, as ``accuracy`` takes them."""
    content = (ROOT / "examples/published-steps/own.csv").read_text()
    return of_text("own.csv", content)(folder)


def lengths(folder: Path) -> Path:
    """Write a step whose microbatches' lengths are a file, which is the one to change."""
    step = MODEL.replace("sequence: 2048", "sequence: 2048, lengths: lengths.txt")
    of_text("step.yaml", step)(folder)
    return of_text("lengths.txt", "2048, 1024 512 100\n7 2048 2048 1\n")(folder)


def kernel_table(folder: Path) -> Path:
    """Write a step with a table of measured products, which is the one to change."""
    of_text(
        "step.yaml", MODEL.replace("name: roofline", "name: roofline, kernels: shapes, kernel_table: table.json")
    )(folder)
    products, experts = ({"tflops": 989.5, "accurate_efficient_factor": {one: 0.5}} for one in (_SIZES, _EXPERTS))
    operations = {"matmul": products, "group_matmul": experts}
    content = {"device": {"multiprocessors": 132}, "accelerator": {"op": operations}}
    return of_text("table.json", json.dumps(content))(folder)


def overlapped(folder: Path) -> Path:
    """Write a step of overlapped pairs in segments, beside its table."""
    of_text("overlap.csv", (ROOT / "examples/overlap.csv").read_text())(folder)
    return of_text("step.yaml", (ROOT / "examples/overlap.yaml").read_text())(folder)


MODEL = """
schedule: {name: 1f1b}
parallel: {pp: 2, tp: 2, dp: 2, vp: 1}
batch: {microbatches: 4, micro: 1, sequence: 2048}
model: {preset: llama3-8b, recompute: none}
device: {preset: h100-sxm}
network: {name: hockney, bandwidth: 50 GB/s, latency: 5 us}
p2p: {policy: ordered, stream: pair}
costs: {name: roofline}
data_parallel: {overlap: true}
"""
MIXTURE = """
schedule: {name: combined-1f1b, offload: {ratio: 0.5, gap: 0}}
parallel: {pp: 2, tp: 1, dp: 4, ep: 4, vp: 2}
batch: {microbatches: 4, micro: 1, sequence: 1024}
model: {layers: 4, hidden: 256, heads: 4, ffn: 512, vocabulary: 1024, num_experts: 8, top_k: 2, shared_ffn: 128}
device: {preset: h100-sxm}
cluster: {preset: dgx-h100x2, spare: true}
p2p: {policy: megatron}
costs: {name: roofline, kernels: shapes, segments: true, zero: 2, spread: 0.02}
"""
COSTS = """
schedule: 1f1b
parallel: {pp: 2}
batch: {microbatches: 4}
cluster: {preset: dgx-h100x2, spare: true}
contention: {compute: 0.9}
costs: {name: table, forward: [1 ms, 2 ms], backward: 2 ms, activation: 1 GiB, boundary: 1 MiB, slices: 2}
"""
TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
