"""Every format that pptrace reads: a small file of it, how it is changed, and the commands that read it."""

from __future__ import annotations

import gzip
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from . import mutations

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

__all__ = ["FORMATS", "Format"]

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "plugins/pptrace-profilers/tests"))
STEP = """
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
COSTS = """
schedule: 1f1b
parallel: {pp: 2}
batch: {microbatches: 4}
cluster: {preset: dgx-h100x2, spare: true}
contention: {compute: 0.9}
costs: {name: table, forward: [1 ms, 2 ms], backward: 2 ms, activation: 1 GiB, boundary: 1 MiB, slices: 2}
"""
TABLE = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"


@dataclass(frozen=True, kw_only=True)
class Format:
    """One format."""

    write: Callable[[Path], Path]
    """Write a run into a folder; return the file to change."""
    change: Callable[[bytes, Random], bytes]
    """Change its content, keeping its structure."""
    commands: tuple[str, ...]
    """What reads it, in its folder; ``FILE`` is its name, ``*`` all files there."""

    def spoil(self, file: Path, random: Random) -> None:
        """Change the file."""
        if self.change is in_place:
            mutations.in_database(file, random)
            content = file.read_bytes()
        else:
            content = file.read_bytes()
            packed = content[:2] == b"\x1f\x8b"
            content = gzip.decompress(content) if packed else content
            content = self.change(content, random)
            content = gzip.compress(content, 1) if packed else content
        if random.random() < 0.2:
            content = mutations.in_bytes(content, random)
        file.write_bytes(content)


def in_place(content: bytes, _random: Random) -> bytes:
    """Stand for the changes of a database, which is changed where it is."""
    return content


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


_READ = ("explain *",)
FORMATS = {
    "kineto": Format(write=of_profiler("kineto"), change=mutations.in_json, commands=(*_READ, "calibrate *")),
    "chrome": Format(
        write=of_profiler("chrome"), change=mutations.in_json, commands=("explain FILE --rules rules.yaml",)
    ),
    "pytorch-perfetto": Format(write=of_profiler("pftrace"), change=mutations.in_protobuf, commands=_READ),
    "nsys": Format(write=of_profiler("nsys"), change=in_place, commands=_READ),
    "nccl": Format(write=of_profiler("nccl"), change=mutations.in_json, commands=_READ),
    "inspector": Format(write=of_profiler("inspector"), change=mutations.in_lines, commands=_READ),
    "pftrace": Format(
        write=of_ours("pftrace"), change=mutations.in_protobuf, commands=("convert FILE out.json", "explain FILE")
    ),
    "json": Format(
        write=of_ours("json"), change=mutations.in_json, commands=("convert FILE out.pftrace", "explain FILE")
    ),
    "model": Format(
        write=of_text("step.yaml", STEP), change=mutations.in_yaml, commands=("simulate FILE --json --explain",)
    ),
    "costs": Format(
        write=of_text("step.yaml", COSTS), change=mutations.in_yaml, commands=("simulate FILE -o out.pftrace",)
    ),
    "rules": Format(
        write=lambda folder: of_profiler("chrome")(folder).with_name("rules.yaml"), change=mutations.in_yaml,
        commands=("explain all.json --rules FILE",),
    ),
    "table": Format(
        write=of_text("table.csv", TABLE), change=mutations.in_table,
        commands=("validate FILE --p2p ordered", "simulate --schedule FILE", "show FILE"),
    ),
}  # fmt: skip
"""By name."""
