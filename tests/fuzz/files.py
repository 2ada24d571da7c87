"""Small files of every format: each function writes a run into a folder, and returns the file to change."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from .stores import OTHER_JOURNAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from pptrace.run.figures import Row

__all__ = [
    "PLAN",
    "SWEEP",
    "accuracy_journal",
    "complete",
    "job",
    "kernel_table",
    "kernels",
    "lengths",
    "of_ours",
    "of_profiler",
    "of_text",
    "overlapped",
    "plan_journal",
    "results",
    "rows",
    "searches",
    "spans",
    "sweep_journal",
]

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / f"plugins/pptrace-{name}/tests") for name in ("profilers", "stragglers")]
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


def complete(command: str, folder: Path) -> None:
    """Run a command in this process and in a folder, however it ends."""
    from pptrace.cli.main import main

    sys.argv = ["pptrace", *shlex.split(command)]
    streams = [io.TextIOWrapper(io.BytesIO()) for _ in range(2)]
    redirected = contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1])
    with contextlib.chdir(folder), redirected[0], redirected[1], contextlib.suppress(SystemExit):
        main()


def results(suffix: str) -> Callable[[Path], Path]:
    """Return what writes the table of a finished sweep."""

    def write(folder: Path) -> Path:
        of_text("step.yaml", STEP)(folder)
        complete(f"{SWEEP} -o results.{suffix}", folder)
        return folder / f"results.{suffix}"

    return write


def sweep_journal(folder: Path) -> Path:
    """Write the journal of a sweep that ended early, and that of a plan."""
    of_text("step.yaml", STEP)(folder)
    of_text("small.yaml", SMALL)(folder)
    _journal(PLAN, folder).rename(folder / OTHER_JOURNAL)
    return _journal(SWEEP, folder)


def plan_journal(folder: Path) -> Path:
    """Write the journal of a plan that ended early, and that of another plan."""
    of_text("small.yaml", SMALL)(folder)
    _journal(PLAN.replace("--sequence 512", "--sequence 256"), folder).rename(folder / OTHER_JOURNAL)
    return _journal(PLAN, folder)


def accuracy_journal(folder: Path) -> Path:
    """Write the journal of measured steps that ended early, and that of a sweep."""
    of_text("step.yaml", STEP)(folder)
    rows(folder)
    _journal(SWEEP, folder).rename(folder / OTHER_JOURNAL)
    return _journal("accuracy own.csv --executor serial", folder)


def _journal(command: str, folder: Path) -> Path:
    """Run a command with ``-o out.csv``, and write half of its rows into a journal."""
    from pptrace.search.runner import Journal, journal_path

    finished: list[Row] = []
    with mock.patch.object(Journal, "append", lambda _, row: finished.append(row)):
        complete(f"{command} -o out.csv", folder)
    (folder / "out.csv").unlink()
    path = folder / journal_path("out.csv")
    with Journal(path) as journal:
        for row in finished[: (len(finished) + 1) // 2]:
            journal.append(row)
    return path


def kernels(folder: Path) -> Path:
    """Write a step, and the compiled kernels that simulate it into a folder, which is what to change."""
    from pptrace_kernel import always_compiled

    of_text("step.yaml", LARGE)(folder)
    os.environ["PPTRACE_KERNEL_CACHE"] = str(folder / "kernels")
    with always_compiled():
        complete("simulate step.yaml --json", folder)
    return folder / "kernels"


def searches(folder: Path) -> Path:
    """Write OptPipe's cache of three searches of one shape into a folder, which is what to change."""
    os.environ["PPTRACE_OPTPIPE_CACHE"] = str(folder / "searches")
    of_text("step.yaml", STEP)(folder)
    for forward in (2, 3, 4):
        complete(f"optimize step.yaml --memory 8GiB --work 0.2 --set costs.forward[1]={forward}ms", folder)
    return folder / "searches"


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
STEP = """
schedule: 1f1b
parallel: {pp: 2}
batch: {microbatches: 3}
costs: {name: table, forward: [1 ms, 2 ms], backward: [3 ms, 2 ms], activation: 1 GiB}
"""
SMALL = """
model: {layers: 2, hidden: 1024, heads: 8, ffn: 4096, vocabulary: 32000}
device: a100-sxm
network: {name: hockney, bandwidth: 25 GB/s}
"""
LARGE = """
schedule: zb-h1
parallel: {pp: 16}
batch: {microbatches: 200}
network: {name: hockney, bandwidth: 25 GB/s}
"""
SWEEP = "sweep step.yaml --over microbatches=2,3,4,6 --executor serial"
PLAN = (
    "plan small.yaml --gpus 2 --global 2 --sequence 512 --tp 1 --micro 1 --vary schedule=1f1b,gpipe --vary zero=1 "
    "--exhaustive --no-robustness --executor serial"
)
